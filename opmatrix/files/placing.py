"""A directory in the place of another, which a program killed at any moment leaves as the one or the other: the two are
exchanged at once where the system can; elsewhere what was there waits beside its place, and is found there again."""
import ctypes
import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

HERE, EXCHANGE = -100, 2                                     # AT_FDCWD; RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
UNABLE = errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV


def replace_directory(fresh: Path, target: Path, parts: Collection[str]) -> None:
    """Put a fresh directory in the target's place, with what lay there beside those parts and is not made anew. Where
    that fails or is interrupted, all is put back; where the process is killed, the one or the other is at its place,
    whole, or `recover` brings it there."""
    waiting = aside(target)
    if not target.exists():
        fresh.rename(target)
        return
    kept = [name for name in sorted(path.name for path in target.iterdir())
            if name not in parts and not (fresh / name).exists()]
    for name in kept: twin(target / name, fresh / name)
    if exchange(fresh, target): old = fresh
    else:
        shutil.rmtree(waiting, ignore_errors=True)           # of a process that was killed when it was done
        old = waiting
        try:
            target.rename(old)
            fresh.rename(target)
        except BaseException:
            if not target.exists(): old.rename(target)
            raise
    returned = list[str]()
    try:
        for name in kept:                                    # what others have open there goes on as it was
            if not (old / name).is_symlink() and (old / name).is_dir() and exchange(old / name, target / name):
                returned.append(name)
    except BaseException:
        for name in returned: exchange(old / name, target / name)
        if old is waiting: target.rename(fresh); old.rename(target)
        else: exchange(fresh, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def recover(target: Path) -> None:
    """Brings back what waits beside its place, where a process was killed between two renamings."""
    with suppress(OSError, ValueError):                      # a name that cannot be is nobody's
        if not os.path.lexists(target) and (waiting := aside(target)).is_dir(): waiting.rename(target)


def aside(target: Path) -> Path:
    """Where a directory waits while another is put in its place."""
    return target.with_name(f".{hashlib.blake2b(os.fsencode(target.name), digest_size=8).hexdigest()}.old")


def exchange(one: Path, other: Path) -> bool:
    """Gives two their places to each other, at once. False where the system cannot; raises OSError for anything
    else."""
    library = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
    names = os.fsencode(one), os.fsencode(other)
    if hasattr(library, "renameat2"):
        failed = library.renameat2(HERE, names[0], HERE, names[1], EXCHANGE)    # type: ignore[union-attr]
    elif sys.platform == "darwin": failed = library.renamex_np(*names, EXCHANGE)    # type: ignore[union-attr]
    else: return False
    if not failed: return True
    if (number := ctypes.get_errno()) in UNABLE: return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def twin(path: Path, copy: Path) -> None:
    """Puts the same files below another name: by hard links, by copies where the system has none. Raises OSError."""
    if path.is_symlink(): copy.symlink_to(os.readlink(path))
    elif path.is_dir():
        copy.mkdir()
        for each in path.iterdir(): twin(each, copy / each.name)
        shutil.copystat(path, copy)
    else:
        try: os.link(path, copy)
        except OSError: shutil.copy2(path, copy)
