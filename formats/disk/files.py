"""Files that others may have written: only regular files are opened, JSON is read within bounds, and files are written
completely or not at all."""

import json
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from errno import EINVAL
from io import BufferedReader, BufferedWriter
from math import isfinite
from pathlib import Path
from typing import Any

from formats.core.errors import InputError

MAX_TEXT_BYTES, MAX_JSON_BYTES = 1 << 28, 1 << 24  # bytes of a text; of JSON, which takes many times as many once read
MOST_NAMES = 6  # names in a directory that a message lists
OPENED = "/proc/self/fd"  # links to the files that this process has open
TRIAL = 1 << 20  # bytes of a trial that shows whether the disk has room
FILE_TYPES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path) -> BufferedReader:
    """Open a regular file for reading. Raise InputError for one that does not exist, and for a directory, a pipe or a
    device, whose reading might never end."""
    # opening a pipe waits for a writer,
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        regular(path, os.stat(path).st_mode)  # and takes away the writer that another reader waits for
        number = os.open(path, flags)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{shown(path)}: {reason(error)}") from error
    try:
        regular(path, os.fstat(number).st_mode)
    except InputError:
        os.close(number)
        raise
    return os.fdopen(number, "rb")


def regular(path: str | Path, mode: int) -> None:
    """Raise InputError unless the mode is that of a regular file."""
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: it is {FILE_TYPES.get(stat.S_IFMT(mode), 'not a regular file')}: give a file")


def open_stream(path: str | Path) -> BufferedReader:
    """Open a regular file or a pipe, to be read once from its beginning; opening a pipe waits for a writer. Raise
    InputError for anything else."""
    try:
        piped = stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        piped = False
    if not piped:
        return open_regular(path)
    try:
        return open(path, "rb")
    except OSError as error:
        raise InputError(f"{shown(path)}: {reason(error)}") from error


def read_bytes(path: str | Path, largest: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a regular file. Raise InputError where there is none, or where it holds more bytes than
    `largest`."""
    with open_regular(path) as raw:
        try:
            content = raw.read(largest + 1)
        except OSError as error:
            raise InputError(f"{path}: {reason(error)}") from error
    if len(content) > largest:
        raise InputError(f"{path}: more than {largest:,} bytes: is it the right file?")
    return content


def read_text(path: str | Path) -> str:
    """Return the text of a UTF-8 file. Raise InputError, which names the first byte that is not UTF-8."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error


Reads = Callable[[str], object] | None  # a number, or what stands for it, from its digits


def read_json(path: str | Path, largest: int = MAX_JSON_BYTES, integer: Reads = None, constant: Reads = None) -> Any:
    """Parse the JSON of a file; see `parse_json`. Raise InputError, which names the file."""
    return parse_json(read_bytes(path, largest), str(path), integer, constant)


def parse_json(text: str | bytes, where: str, integer: Reads = None, constant: Reads = None) -> Any:
    """Parse JSON in UTF-8: integers of 64 bits (or as `integer` reads them), finite numbers, brackets as deep as Python
    can follow. NaN and Infinity are errors (or as `constant` reads them). Raise InputError."""
    try:
        if isinstance(text, bytes):
            text = text.decode().removeprefix("\ufeff")
        return json.loads(text, parse_int=integer or parse_int64, parse_float=real, parse_constant=constant or real)
    except RecursionError:
        raise InputError(f"{where}: brackets are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not JSON: byte {error.start} is not UTF-8: save the file as UTF-8") from error
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error


def parse_int64(digits: str) -> int:
    """Parse an integer of 64 bits."""
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError(f"{digits[:24]}{'…' * (len(digits) > 24)} is not a 64-bit integer")
    return number


def real(digits: str) -> float:
    """Parse a finite number."""
    if not isfinite(number := float(digits)):
        raise ValueError(f"{digits[:24]} is not a finite number")
    return number


@contextmanager
def replacing(path: str | Path, mode: int = 0o666) -> Generator[BufferedWriter]:
    """Open a file that takes the place of `path` when the block ends, complete and on the disk; if the block raises,
    the old file stays. It is made with this mode, less the umask. Raise OSError where that is impossible, and where
    `path` is a link or anything but a file."""
    target = Path(path)
    irregular(target)
    fresh = target.with_name(f".{os.urandom(4).hex()}.part")
    try:
        unnamed = open_unnamed(target.parent, mode)
        with unnamed or open(fresh, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
            if unnamed:
                give_name(unnamed, fresh)
        os.replace(fresh, target)
    finally:
        with suppress(OSError):
            fresh.unlink()


def open_unnamed(directory: Path, mode: int) -> BufferedWriter | None:
    """Open a file in a directory that has no name yet, so that no trace is left where the process is killed. None where
    the system, or the file system of the directory, does not support that."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir(OPENED):
        return None
    try:
        return os.fdopen(os.open(directory, os.O_TMPFILE | os.O_WRONLY, mode), "wb")
    except OSError:
        return None  # the error will be that of a file with a name


def give_name(unnamed: BufferedWriter, file: Path) -> None:
    """Give an unnamed file its first name. OSError."""
    # with a directory given, the link below OPENED is followed
    os.link(f"{OPENED}/{unnamed.fileno()}", file, src_dir_fd=unnamed.fileno(), follow_symlinks=True)


def writable(path: str | Path) -> None:
    """Raise InputError where `replacing` could not write a file. This is found out by a trial file beside it, which has
    no name or is removed."""
    from tempfile import TemporaryDirectory

    target = Path(path)
    try:
        irregular(target)
        if unnamed := open_unnamed(target.parent, 0o600):
            with unnamed:
                fill(unnamed)
        else:
            with TemporaryDirectory(prefix=".", dir=target.parent) as room, open(Path(room, "trial"), "xb") as out:
                fill(out)
    except (OSError, ValueError) as error:
        raise InputError(f"{shown(path)}: not writable: {reason(error)}") from error


def irregular(target: Path) -> None:
    """Raise OSError where a file to be written would replace something that is not a regular file."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(mode := target.lstat().st_mode):
            raise OSError(EINVAL, f"it is {FILE_TYPES.get(stat.S_IFMT(mode), 'not a regular file')}: name a file")


def fill(out: BufferedWriter) -> None:
    """Write TRIAL bytes to the disk. Raise OSError where they do not fit."""
    out.write(bytes(TRIAL))
    out.flush()
    os.fsync(out.fileno())


def reason(error: Exception) -> str:
    """Return the system's words for an error."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shown(path: object) -> str:
    """Return a name for a message, shortened where it is long."""
    words = str(path).replace("\0", "\\0")
    return words if len(words) <= 200 else f"{words[:100]}…{words[-60:]}"


def lying(directory: str | Path) -> str:
    """List the entries of a directory for a message; where it does not exist, those of the nearest directory above
    it."""
    place = Path(directory)
    while not os.path.isdir(place) and place != place.parent:
        place = place.parent
    try:
        names = sorted(os.listdir(place))
    except OSError as error:
        return f"{shown(place)}: {reason(error)}"
    where = "the working directory" if place == Path() else shown(place)
    more = f" and {len(names) - MOST_NAMES} more" * (len(names) > MOST_NAMES)
    listed = ", ".join(shown(name) if name.isprintable() else repr(name) for name in names[:MOST_NAMES])
    return f"{where} holds {listed}{more}" if names else f"{where} is empty"
