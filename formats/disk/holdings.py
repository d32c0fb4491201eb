"""What the cache holds, by kind, and what of it goes when it grows: what was not used for longest, never what a process
uses."""
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

DAY = 86400.0                                                # seconds
MONTH = 30 * DAY
REMOVAL_TIME = 1.0                                          # seconds that a directory is removed in
# what an interruption left of a file that was being written, or compiled
LEFT = re.compile(r"\.[0-9a-f]{8}\.part|[\w.-]+\.\d+|\.[\w-]+\.lock")
# a checkpoint that benchmarks make, its files
BASE, MODEL = "base", {"config.json", "model.safetensors", "tokenizer.json"}


@dataclass(frozen=True)
class EntryKind:
    """Entries of a directory of the cache: what their names are like, how many of them stay."""

    names: re.Pattern[str]
    most: int


ENTRY_KINDS = {"kernels": EntryKind(re.compile(r"[0-9a-f]{16}"), 32),
               "machines": EntryKind(re.compile(r"[0-9a-f]{16}(\.peaks)?\.json"), 64),
               "errors": EntryKind(re.compile(r"[0-9a-f]{24}\.json"), 256),
               "processors": EntryKind(re.compile(r"[0-9a-f]{16}\.txt"), 16)}
CODE = EntryKind(re.compile(r"(?!term-)\w+-[0-9a-f]{16}\.o"), 1024) # of kernels, as they are and as they were
TERM_CODE = EntryKind(re.compile(r"term-[0-9a-f]{16}\.o"), 1024)    # of kernels that terms become
BENCHMARKS = {"peers": re.compile(r"[\w.+-]+-[0-9a-f]{12}"), "programs": re.compile(r"opmatrix-[\w.+-]+-[0-9a-f]{12}")}


@dataclass(frozen=True)
class CacheEntry:
    """`used`: when last, in seconds since the epoch; bytes with all that lies below."""

    path: Path
    used: float
    bytes: int = 0


def list_entries(directory: Path, names: re.Pattern[str] | None = None) -> list[CacheEntry]:
    """What lies in a directory under such names, links left out, the last used first; nothing where it cannot be
    read."""
    found = []
    with suppress(OSError), os.scandir(directory) as listed:
        for each in listed:
            with suppress(OSError):
                if not each.is_symlink() and (names is None or names.fullmatch(each.name)):
                    found.append(CacheEntry(Path(each.path), each.stat().st_mtime))
    return sorted(found, key=lambda entry: (-entry.used, entry.path.name))


def count_bytes(path: Path) -> int:
    """Bytes of a file, or of all files below a directory; links are not followed."""
    total = 0
    with suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode): return status.st_size
        with os.scandir(path) as listed: total = sum(count_bytes(Path(each.path)) for each in listed)
    return total


def holdings(others: Iterable[str] = ()) -> dict[str, tuple[int, int]]:
    """(entries, bytes) of the cache by kind, those that are there, and of others by name. What else lies there is not
    ours."""
    places = {name: location() / name for name in (*ENTRY_KINDS, *BENCHMARKS, BASE, *others)}
    return {name: (len(list_entries(place)), count_bytes(place)) for name, place in places.items()
            if os.path.isdir(place)}


def try_put(file: Path, content: bytes, what: str) -> bool:
    """Write a file of the cache, where no more stay than its directory's kind says; whether it could be written: where
    it could not, that is said."""
    try: put(file, content)
    except (OSError, InputError) as error:
        unkept(what, file.parent, error)
        return False
    if kind := ENTRY_KINDS.get(file.parent.name): evict_oldest(file.parent, kind)
    return True


# ---- what goes

def evict_oldest(directory: Path, kind: EntryKind) -> None:
    """After something was written to a directory: no more entries stay than their kind says."""
    removed(each.path for each in list_entries(directory, kind.names)[kind.most:])
    leftovers(directory)


def leftovers(directory: Path) -> list[CacheEntry]:
    """Removes what interruptions left a day ago or longer."""
    return removed(each.path for each in list_entries(directory, LEFT) if time.time() - each.used > DAY)


def clean(key: str, calibrated: Callable[[Path], bool]) -> list[CacheEntry]:
    """Removes what the installed version makes no use of, and returns it: kernels of other keys, calibrations that are
    not `calibrated`, errors that nobody asked for in a month, what benchmarks made before today, what interruptions
    left. Raises Distrusted where the cache is not ours, OSError where there is none."""
    home, now = guarded(location()), time.time()
    old = [each.path for each in list_entries(home / "kernels", ENTRY_KINDS["kernels"].names) if each.path.name != key]
    old += [each.path for each in list_entries(home / "machines", ENTRY_KINDS["machines"].names)
            if not calibrated(each.path)]
    old += [each.path for each in list_entries(home / "errors", ENTRY_KINDS["errors"].names) if now - each.used > MONTH]
    for name, names in BENCHMARKS.items():
        old += [each.path for each in list_entries(home / name, names) if now - each.used > DAY]
    old += [each.path for each in list_entries(home, re.compile(BASE))
            if {file.path.name for file in list_entries(each.path)} <= MODEL and now - each.used > DAY]
    directories = ([home / name for name in ENTRY_KINDS] + [each.path for each in list_entries(home / "kernels",
                                                                                     ENTRY_KINDS["kernels"].names)])
    return removed(old) + [gone for each in directories for gone in leftovers(each)]


def removed(paths: Iterable[Path]) -> list[CacheEntry]:
    """Removes files and directories, but for directories that a process uses, and returns what went, with its bytes."""
    gone = []
    for path in paths:
        found = CacheEntry(path, 0.0, count_bytes(path))
        with suppress(OSError), unused(path):
            if not path.is_dir(): path.unlink()
            else:
                from shutil import rmtree
                rmtree(path)
            gone.append(found)
    return gone


# ---- what is in use

def using(directory: Path) -> int | None:
    """Says, until this process ends, that it uses a directory, which is made if it is absent; a descriptor. None where
    a system has no locks. Raises OSError, and Distrusted."""
    while True:
        place = guarded(make_directory(directory))
        with suppress(OSError): os.utime(place)
        if fcntl is None: return None
        number = os.open(place, os.O_RDONLY)
        # whoever removes it is done soon, and a stranger may lock for ever what he may read
        wait_for_lock(number, REMOVAL_TIME, shared=True)
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), os.stat(place)): return number
        os.close(number)                                     # it went meanwhile


@contextmanager
def unused(path: Path) -> Iterator[None]:
    """Inside, no process begins to use a path. OSError where one uses it already; without locks, where one did
    today."""
    if not path.is_dir(): yield
    elif fcntl is None:
        if time.time() - path.stat().st_mtime < DAY: raise BlockingIOError
        yield
    else:
        number = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally: os.close(number)
