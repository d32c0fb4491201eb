"""Locks between processes, by files. The system frees a lock when its holder ends, so none outlives a process that was
killed; a holder that only stopped is waited for so long and no longer."""
import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

try: fcntl: Any = importlib.import_module("fcntl")
except ImportError: fcntl = None                             # as on Windows

INTERVAL = 0.05                                              # seconds between two tries


def wait_for_lock(number: int, seconds: float, shared: bool = False) -> bool:
    """Lock an open file or directory, alone or with others. False where another process has held it for so many
    seconds; True, too, where the system has no locks."""
    if fcntl is None: return True
    kind, end = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, time.monotonic() + seconds
    while True:
        try: fcntl.flock(number, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end: return False
        except OSError: return True
        else: return True
        time.sleep(INTERVAL)


@contextmanager
def taking(file: Path, seconds: float) -> Iterator[bool]:
    """Inside, this process alone has taken what a file stands for, which is made and goes again. False where another
    has had it for so many seconds; True, too, where no file can be made there."""
    try: number = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except OSError:
        yield True
        return
    taken = False
    try:
        taken = wait_for_lock(number, seconds)
        yield taken
    finally:
        if taken:
            with suppress(OSError): file.unlink()
        os.close(number)
