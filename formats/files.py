"""Files that others may have written: only regular ones are opened, JSON is read within bounds, and what is written is there
whole or not at all."""
import json
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

from .errors import InputError

LARGEST, JSON = 1 << 28, 1 << 24                             # bytes of a text; of JSON, which takes many times as many once read
KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
         stat.S_IFSOCK: "a socket"}


def open_regular(path: str | Path) -> BufferedReader:
    """A regular file, to be read. Raises InputError for one that is not there, and for a directory, a pipe or a device,
    whose reading might never end."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)      # opening a pipe waits for a writer
    try: number = os.open(path, flags)
    except (OSError, ValueError) as error: raise InputError(f"{shown(path)}: {reason(error)}") from error
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode): return os.fdopen(number, "rb")
    os.close(number)
    raise InputError(f"{path}: it is {KINDS.get(stat.S_IFMT(mode), 'no regular file')}: give a file")


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """The content of a regular file. Raises InputError where there is none, or where it holds more bytes than `largest`."""
    with open_regular(path) as raw:
        try: content = raw.read(largest + 1)
        except OSError as error: raise InputError(f"{path}: {reason(error)}") from error
    if len(content) > largest: raise InputError(f"{path}: more than {largest:,} bytes: is it the right file?")
    return content


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file. Raises InputError, which names the byte that is none."""
    try: return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8: save the file as UTF-8") from error


def read_json(path: str | Path, largest: int = JSON) -> Any:
    """What the JSON of a file says; see `parse_json`. Raises InputError, which names the file."""
    return parse_json(read_bytes(path, largest), str(path))


def parse_json(text: str | bytes, where: str) -> Any:
    """What JSON says: whole numbers of 64 bits, finite ones, brackets as deep as Python can follow. Raises InputError."""
    try: return json.loads(text, parse_int=whole, parse_float=real, parse_constant=real)
    except RecursionError: raise InputError(f"{where}: brackets are nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error: raise InputError(f"{where}: no JSON: {error}") from error


def whole(digits: str) -> int:
    """A whole number of 64 bits."""
    if len(digits) > 20 or not -2 ** 63 <= (number := int(digits)) < 2 ** 63:
        raise ValueError(f"{digits[:24]}{'…' * (len(digits) > 24)} is no whole number of 64 bits")
    return number


def real(digits: str) -> float:
    """A finite number."""
    if not isfinite(number := float(digits)): raise ValueError(f"{digits[:24]} is no finite number")
    return number


@contextmanager
def replacing(path: str | Path) -> Generator[BufferedWriter]:
    """A file to write to that takes the place of `path` when the block ends, complete and on the disk; where the block
    raises, what was there stays. Raises OSError where that cannot be."""
    target = Path(path)
    fresh = target.with_name(f".{uuid4().hex[:8]}.part")
    try:
        with fresh.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(fresh, target)
    finally:
        with suppress(OSError): fresh.unlink()


def reason(error: Exception) -> str:
    """Why the system would not, in its words."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def shown(path: object) -> str:
    """A name in a message, cut where it is long."""
    words = str(path).replace("\0", "\\0")
    return words if len(words) <= 200 else f"{words[:100]}…{words[-60:]}"
