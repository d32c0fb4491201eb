"""The cache of the user: one directory for everything that opmatrix fetched, measured or compiled.

A file there is trusted only if no one but the user and the system could have written it: object code is called, and
measurements decide which program is chosen. A failure to write to the cache is reported in a line, and the work goes on
without it."""

import errno
import os
import stat
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from formats.core.errors import InputError
from formats.disk.files import open_regular, reason, replacing, shown

CACHE_VARIABLE = "OPMATRIX_CACHE"
MAX_FILE_BYTES = 1 << 26  # largest file of the cache, in bytes
LINKS = 40  # links that a path may lead through
HOUR = 3600.0  # seconds
OTHERS = stat.S_IWGRP | stat.S_IWOTH
# modes of new entries, less the umask; others may never write, as files that they could write are not trusted
DIRECTORY_MODE, FILE_MODE = 0o755, 0o644


class Distrusted(InputError):
    """An entry of the cache that others could have written. Names it, and the remedy."""


class Unreadable(InputError):
    """An entry of the cache that exists but that this user may not read. Names it, and the remedy."""


def location() -> Path:
    """Return the directory `$OPMATRIX_CACHE`, else the platform's cache directory for opmatrix. Where that needs a home
    and there is none, return a path below the null device: no file is found or written there."""
    if not (named := os.environ.get(CACHE_VARIABLE)):
        from platformdirs import user_cache_dir

        named = user_cache_dir("opmatrix", appauthor=False)
    path = os.path.expanduser(named)
    return Path(os.devnull, path) if path.startswith("~") else Path(path)


def cache_directory() -> Path:
    """Return the cache's directory, made if it is absent. OSError where it cannot be made."""
    return make_directory(location())


def make_directory(directory: Path) -> Path:
    """Make a directory and those above it. Others may read new directories, as far as the umask lets them, and never
    write. OSError."""
    try:
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    except FileNotFoundError:
        if directory.parent == directory:
            raise
        make_directory(directory.parent)
        directory.mkdir(DIRECTORY_MODE, exist_ok=True)
    return directory


# ---- trust: the users who could have written a file


def trusted() -> frozenset[int] | None:
    """Return the users whose files are trusted: this one, root, and the owner of the root directory, who in a container
    need not be user 0. None where the system does not report owners."""
    return frozenset({0, os.geteuid(), os.stat("/").st_uid}) if hasattr(os, "geteuid") else None


def guarded(directory: Path) -> Path:
    """Return the directory with its links resolved. Raise Distrusted where others could write to it or replace it, and
    OSError where it does not exist. From the root on, each directory must belong to a trusted user, and no other user
    may write there, except to files of their own (sticky, as /tmp is). So a checked path stays what it was."""
    whole = directory.absolute()
    if (users := trusted()) is None:
        return whole
    place, left, links = Path(whole.anchor), [*reversed(whole.parts[1:])], 0
    check_directory(place, os.lstat(place), users, last=not left)
    while left:
        if (name := left.pop()) == "..":
            place = place.parent
            continue
        status = os.lstat(at := place / name)
        if stat.S_ISLNK(status.st_mode):
            if status.st_uid not in users:
                raise Distrusted(foreign(at, status))
            if (links := links + 1) > LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(directory))
            target = Path(os.readlink(at))
            if target.is_absolute():
                place = Path(target.anchor)
            left += [part for part in reversed(target.parts) if part != target.anchor]
        else:
            check_directory(place := at, status, users, last=not left)
    return place


def check_directory(place: Path, status: os.stat_result, users: frozenset[int], last: bool) -> None:
    """Raise Distrusted where others could replace entries of a directory, or, if it is the last one, add entries.
    OSError where it is no directory."""
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if status.st_uid not in users:
        raise Distrusted(foreign(place, status))
    if status.st_mode & OTHERS and (last or not status.st_mode & stat.S_ISVTX):
        better = f"chmod {'700' if last else 'go-w'} {shown(place)}"
        raise Distrusted(
            f"{shown(place)}: other users may write there (mode {stat.S_IMODE(status.st_mode):o}): `{better}` "
            f"if you trust its files, or set {CACHE_VARIABLE} to a directory of your own"
        )


def foreign(place: Path, status: os.stat_result) -> str:
    """Describe the fault of a place in the cache that belongs to another user, with the remedy."""
    return f"{shown(place)}: it belongs to user {status.st_uid}: set {CACHE_VARIABLE} to a directory of your own"


def recall(file: Path, largest: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a file of the cache. Raise InputError where there is none or it is too large, Unreadable
    where this user may not read it, Distrusted where others could have written it, by the owner and mode of the opened
    file."""
    try:
        directory = guarded(file.parent)
    except PermissionError as error:
        raise Unreadable(why(file, error)) from error
    except OSError as error:
        raise InputError(f"{shown(file)}: {reason(error)}") from error
    if os.path.islink(directory / file.name):  # its target would not be checked
        raise Distrusted(f"{shown(file)}: it is a symbolic link, and the cache has none")
    try:
        opened = open_regular(directory / file.name)
    except InputError as error:
        if isinstance(error.__cause__, PermissionError):
            raise Unreadable(why(file, error.__cause__)) from error
        raise
    with opened as raw:
        status, users = os.fstat(raw.fileno()), trusted()
        if users is not None:
            if status.st_uid not in users:
                raise Distrusted(foreign(file, status))
            if status.st_mode & OTHERS:
                raise Distrusted(f"{shown(file)}: other users may write to it (mode {stat.S_IMODE(status.st_mode):o})")
        try:
            content = raw.read(largest + 1)
        except OSError as error:
            raise InputError(f"{shown(file)}: {reason(error)}") from error
    if len(content) > largest:
        raise InputError(f"{shown(file)}: more than {largest:,} bytes")
    if time.time() - status.st_mtime > HOUR:
        with suppress(OSError):
            os.utime(directory / file.name)  # the time of its last use, to the hour
    return content


# ---- writing, and messages about it


def put(file: Path, content: bytes) -> None:
    """Write a file of the cache, completely or not at all, writable by no other user; a link in its place is removed.
    Raise OSError, and Distrusted where others may write there too."""
    place = guarded(make_directory(file.parent)) / file.name
    if os.path.islink(place):
        os.unlink(place)
    with replacing(place, FILE_MODE) as out:
        out.write(content)


def unkept(what: str, directory: Path, error: Exception) -> None:
    """Report that something is not stored in a directory, and why."""
    say(f"{what}: not kept: {why(directory, error)}")


def why(directory: Path, error: Exception) -> str:
    """Explain why a directory cannot be written, and what to do."""
    cause = (
        str(error)
        if isinstance(error, Distrusted)
        else find_barrier(directory)
        or f"{shown(directory)}: {reason(error)}: set {CACHE_VARIABLE} to a directory that can be written"
    )
    return " ".join(cause.split())


def find_closed(directory: Path) -> str:
    """Describe the first directory on the way to `directory`, itself included, that not every user may enter, and the
    remedy; empty where there is none."""
    for place in (*reversed(directory.absolute().parents), directory.absolute()):
        mode = stat.S_IMODE(os.stat(place).st_mode)
        if not mode & stat.S_IXOTH:
            return f"{shown(place)}: not all users may enter it (mode {mode:o}): `chmod a+x {shown(place)}`"
    return ""


def find_barrier(path: Path) -> str:
    """Describe the first existing place on the way to a path, itself included, that this user may not read, and the
    remedy; empty where there is none."""
    cache = location().absolute()
    for place in (*reversed(path.absolute().parents), path.absolute()):
        try:
            status = os.stat(place)
        except OSError:
            return ""
        needed = os.X_OK if stat.S_ISDIR(status.st_mode) else os.R_OK
        if not os.access(place, needed, effective_ids=os.access in os.supports_effective_ids):
            inside = place == cache or cache in place.parents
            opening = f"let that user `chmod -R go+rX {shown(cache)}`, or " if inside else ""
            named = f"{shown(place)}: it" if needed == os.X_OK else f"{shown(place.parent)}: a file there"
            return (
                f"{named} belongs to user {status.st_uid}, and user {os.geteuid()} may not read it (mode "
                f"{stat.S_IMODE(status.st_mode):o}): {opening}set {CACHE_VARIABLE} to a directory of your own"
            )
    return ""


def tell(line: str) -> None:
    """Write a line for the user: on standard error, unless the program that embeds this package set up logging
    otherwise."""
    import logging

    logging.getLogger("opmatrix").warning("opmatrix: %s", line)


@cache
def say(line: str) -> None:
    """Write a line for the user as `tell` does, but once a process however often it is called."""
    tell(line)
