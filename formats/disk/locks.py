"""Locks between processes, by files. The system frees a lock when its holder ends, so no lock outlives a killed
process; a holder that is merely stopped is waited for only a limited time."""

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try:
    fcntl: Any = importlib.import_module("fcntl")
except ImportError:
    fcntl = None  # as on Windows

INTERVAL = 0.05  # seconds between two tries


def wait_for_lock(number: int, seconds: float, shared: bool = False) -> bool:
    """Lock an open file or directory, alone or with others. False where another process has held it for `seconds`;
    True, too, where the system has no locks."""
    if fcntl is None:
        return True
    kind, end = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(number, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
        except OSError:
            return True
        else:
            return True
        time.sleep(INTERVAL)


@contextmanager
def taking(file: Path, seconds: float) -> Iterator[bool]:
    """Take a file as a lock inside the block, for this process alone; it is made, and removed afterwards. Yield False
    where another process has held it for `seconds`; True, too, where no file can be made there."""
    try:
        number = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError:
        yield True
        return
    taken = False
    try:
        taken = wait_for_lock(number, seconds)
        yield taken
    finally:
        if taken:
            with suppress(OSError):
                file.unlink()
        os.close(number)
