"""Entries of the cache by kind, and their eviction as it grows: those that were not used for longest are removed, never
those in use by a process."""

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.cache import guarded, location, make_directory, put, unkept
from formats.disk.locks import fcntl, wait_for_lock

DAY = 86400.0  # seconds
MONTH = 30 * DAY
REMOVAL_TIME = 1.0  # seconds that the removal of a directory takes at most
# names of files that were being written, or compiled, at an interruption
LEFT = re.compile(r"\.[0-9a-f]{8}\.part|[\w.-]+\.\d+|\.[\w-]+\.lock")
# a checkpoint that benchmarks make, and its files
BASE, MODEL = "base", {"config.json", "model.safetensors", "tokenizer.json"}


@dataclass(frozen=True)
class EntryKind:
    """Entries of a directory of the cache: the pattern of their names, and the largest number of them."""

    names: re.Pattern[str]
    most: int


ENTRY_KINDS = {
    "kernels": EntryKind(re.compile(r"[0-9a-f]{16}"), 32),
    "machines": EntryKind(re.compile(r"[0-9a-f]{16}(\.(peaks|[0-9a-f]{16}))?\.json"), 64),
    "errors": EntryKind(re.compile(r"[0-9a-f]{24}\.json"), 256),
    "processors": EntryKind(re.compile(r"[0-9a-f]{16}\.txt"), 16),
    "encoders": EntryKind(re.compile(r"[0-9a-f]{24}"), 8),
}
CODE = EntryKind(re.compile(r"(?!term-)\w+-[0-9a-f]{16}\.o"), 1024)  # code of kernels, present and earlier ones
TERM_CODE = EntryKind(re.compile(r"term-[0-9a-f]{16}\.o"), 1024)  # code of kernels made from terms
BENCHMARKS = {"peers": re.compile(r"[\w.+-]+-[0-9a-f]{12}"), "programs": re.compile(r"opmatrix-[\w.+-]+-[0-9a-f]{12}")}


@dataclass(frozen=True)
class CacheEntry:
    """An entry of the cache. `used`: time of its last use, in seconds since the epoch; `bytes`: its size, with all
    files below it."""

    path: Path
    used: float
    bytes: int = 0


def list_entries(directory: Path, names: re.Pattern[str] | None = None) -> list[CacheEntry]:
    """List the entries of a directory with such names, without links, the last used first; empty where it cannot be
    read."""
    entries = []
    with suppress(OSError), os.scandir(directory) as listed:
        for file in listed:
            with suppress(OSError):
                if not file.is_symlink() and (names is None or names.fullmatch(file.name)):
                    entries.append(CacheEntry(Path(file.path), file.stat().st_mtime))
    return sorted(entries, key=lambda entry: (-entry.used, entry.path.name))


def count_bytes(path: Path) -> int:
    """Count the bytes of a file, or of all files below a directory; links are not followed."""
    total = 0
    with suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_size
        with os.scandir(path) as listed:
            total = sum(count_bytes(Path(entry.path)) for entry in listed)
    return total


def holdings(others: Iterable[str] = ()) -> dict[str, tuple[int, int]]:
    """Return (entries, bytes) of each kind that the cache has, and of each directory in `others`. Other files there are
    not ours."""
    places = {name: location() / name for name in (*ENTRY_KINDS, *BENCHMARKS, BASE, *others)}
    return {
        name: (len(list_entries(place)), count_bytes(place)) for name, place in places.items() if os.path.isdir(place)
    }


def try_put(file: Path, content: bytes, what: str) -> bool:
    """Write a file of the cache, and evict entries beyond the largest number of its directory's kind. Return whether it
    could be written; a failure is reported."""
    try:
        put(file, content)
    except (OSError, InputError) as error:
        unkept(what, file.parent, error)
        return False
    if kind := ENTRY_KINDS.get(file.parent.name):
        evict_oldest(file.parent, kind)
    return True


# ---- eviction


def evict_oldest(directory: Path, kind: EntryKind) -> None:
    """Remove entries beyond the largest number of their kind, after one was written to the directory."""
    removed(entry.path for entry in list_entries(directory, kind.names)[kind.most :])
    leftovers(directory)


def leftovers(directory: Path) -> list[CacheEntry]:
    """Remove files that interruptions left a day ago or longer."""
    return removed(entry.path for entry in list_entries(directory, LEFT) if time.time() - entry.used > DAY)


def clean(key: str, calibrated: Callable[[Path], bool]) -> list[CacheEntry]:
    """Remove the entries that the installed version has no use for, and return them: kernels of other keys,
    calibrations that are not `calibrated`, errors that were not read for a month, files that benchmarks made before
    today, files that interruptions left. Raise Distrusted where the cache is not ours, OSError where there is none."""
    home, now = guarded(location()), time.time()
    old = [
        entry.path for entry in list_entries(home / "kernels", ENTRY_KINDS["kernels"].names) if entry.path.name != key
    ]
    old += [
        entry.path
        for entry in list_entries(home / "machines", ENTRY_KINDS["machines"].names)
        if not calibrated(entry.path)
    ]
    old += [
        entry.path for entry in list_entries(home / "errors", ENTRY_KINDS["errors"].names) if now - entry.used > MONTH
    ]
    for name, names in BENCHMARKS.items():
        old += [entry.path for entry in list_entries(home / name, names) if now - entry.used > DAY]
    old += [
        entry.path
        for entry in list_entries(home, re.compile(BASE))
        if {file.path.name for file in list_entries(entry.path)} <= MODEL and now - entry.used > DAY
    ]
    directories = [home / name for name in ENTRY_KINDS] + [
        entry.path for entry in list_entries(home / "kernels", ENTRY_KINDS["kernels"].names)
    ]
    return removed(old) + [gone for directory in directories for gone in leftovers(directory)]


def removed(paths: Iterable[Path]) -> list[CacheEntry]:
    """Remove files and directories, except directories that a process uses. Return the removed entries with their
    bytes."""
    gone = []
    for path in paths:
        entry = CacheEntry(path, 0.0, count_bytes(path))
        with suppress(OSError), unused(path):
            if not path.is_dir():
                path.unlink()
            else:
                from shutil import rmtree

                rmtree(path)
            gone.append(entry)
    return gone


# ---- directories in use


def using(directory: Path) -> int | None:
    """Mark a directory, which is made if it is absent, as used until this process ends. Return a descriptor; None where
    a system has no locks. Raise OSError, and Distrusted."""
    while True:
        place = guarded(make_directory(directory))
        with suppress(OSError):
            os.utime(place)
        if fcntl is None:
            return None
        number = os.open(place, os.O_RDONLY)
        # a removal ends soon; but anyone who may read the directory could hold a lock for ever, so the wait is limited
        wait_for_lock(number, REMOVAL_TIME, shared=True)
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), os.stat(place)):
                return number
        os.close(number)  # it was removed meanwhile


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Keep other processes from starting to use a path inside the block. Raise OSError where one uses it already;
    without locks, where one did today."""
    if not path.is_dir():
        yield
    elif fcntl is None:
        if time.time() - path.stat().st_mtime < DAY:
            raise BlockingIOError
        yield
    else:
        number = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            os.close(number)
