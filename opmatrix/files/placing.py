"""Replacing one directory by another so that a process killed at any moment leaves the one or the other. The two are
exchanged at once where the system can. Elsewhere the old one waits beside its place, and is found there again."""

import ctypes
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

HERE, EXCHANGE = -100, 2  # AT_FDCWD; RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
UNABLE = errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV


def replace_directory(fresh: Path, target: Path, parts: Collection[str]) -> None:
    """Put a fresh directory in the target's place, together with the old entries that are not in `parts` and not made
    anew. If that fails or is interrupted, everything is put back. If the process is killed, the old or the new
    directory is at its place, complete, or `recover` brings it there."""
    waiting = aside(target)
    if not target.exists():
        fresh.rename(target)
        return
    others = [
        name
        for name in sorted(path.name for path in target.iterdir())
        if name not in parts and not (fresh / name).exists()
    ]
    for name in others:
        twin(target / name, fresh / name)
    if exchange(fresh, target):
        old = fresh
    else:
        shutil.rmtree(waiting, ignore_errors=True)  # a leftover of a process that was killed when it was done
        old = waiting
        try:
            target.rename(old)
            fresh.rename(target)
        except BaseException:
            if not target.exists():
                old.rename(target)
            raise
    returned = list[str]()
    try:
        for name in others:  # open directories of other processes stay the same
            if not (old / name).is_symlink() and (old / name).is_dir() and exchange(old / name, target / name):
                returned.append(name)
    except BaseException:
        for name in returned:
            exchange(old / name, target / name)
        if old is waiting:
            target.rename(fresh)
            old.rename(target)
        else:
            exchange(fresh, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Bring back a directory that waits beside its place because a process was killed between two renamings."""
    with suppress(OSError, ValueError):  # no directory can have such a name
        if not os.path.lexists(target) and (waiting := aside(target)).is_dir():
            waiting.rename(target)


def aside(target: Path) -> Path:
    """Return the path where a directory waits while another is put in its place."""
    return target.with_name(f".{hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}.old")


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths at once. False if the system cannot; raises OSError for any other failure."""
    library = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(HERE, names[0], HERE, names[1], EXCHANGE)  # type: ignore[union-attr]
    elif sys.platform == "darwin":
        failed = library.renamex_np(*names, EXCHANGE)  # type: ignore[union-attr]
    else:
        return False
    if not failed:
        return True
    if (number := ctypes.get_errno()) in UNABLE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def twin(path: Path, copy: Path) -> None:
    """Create the same files below another name: by hard links, or by copies if the system has none. Raises OSError."""
    if path.is_symlink():
        copy.symlink_to(os.readlink(path))
    elif path.is_dir():
        copy.mkdir()
        for child in path.iterdir():
            twin(child, copy / child.name)
        shutil.copystat(path, copy)
    else:
        try:
            os.link(path, copy)
        except OSError:
            shutil.copy2(path, copy)
