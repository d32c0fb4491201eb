"""Arrays of a program in a safetensors file. They are mapped into memory, each beginning on a cache line: what nobody looks at is
never loaded, and what is loaded is shared by all who run the program. Their hash is worked out meanwhile, through a buffer."""
import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Mapping
from io import BufferedReader
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.arrays import LINE, aligned, finite, room
from opmatrix.checkpoint import Tensor
from opmatrix.errors import InputError

NUMBERS = {name: np.dtype(number) for name, number in {"F64": "<f8", "F32": "<f4", "F16": "<f2", "U8": "u1", "U16": "<u2",
                                                       "U32": "<u4", "I32": "<i4", "I64": "<i8"}.items()}
GAP = "padding"                                             # what names of arrays of zeros between the others begin with
BUFFER = 1 << 20                                            # bytes that are hashed at a time
AGAIN = "copy the whole directory again, or make the program anew"


def write_tensors(arrays: Mapping[str, NDArray[Any]], file: Path) -> None:
    """Safetensors whose arrays begin on cache lines. The format allows no holes, so what fills them are arrays, too."""
    names, gap, at = {number: name for name, number in NUMBERS.items()}, GAP, 0
    while any(name.startswith(gap) for name in arrays): gap += "_"
    entries: dict[str, Any] = {}
    for name, array in arrays.items():
        if array.dtype not in names: raise InputError(f"array {name!r} is of {array.dtype}, which no program stores")
        entries[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": (at, at := at + array.nbytes)}
        if left := -at % LINE:
            entries[f"{gap}{len(entries)}"] = {"dtype": "U8", "shape": (left,), "data_offsets": (at, at := at + left)}
    head = json.dumps(entries).encode()
    head += b" " * (-(len(head) + 8) % LINE)
    with file.open("wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for array in arrays.values(): out.writelines((np.ascontiguousarray(array).data, bytes(-array.nbytes % LINE)))


class Part(NamedTuple):
    """An array of a constant: its name in the file, its format and field (none of a plain array), where it lies."""
    name: str
    format: str
    field: str
    tensor: Tensor

    @property
    def number(self) -> np.dtype[Any]: return NUMBERS[self.tensor.number]


def padding(tensor: Tensor) -> bool:
    """Whether it fills a hole between arrays, with zeros."""
    if not tensor.name.startswith(GAP) or tensor.number != "U8" or (size := prod(tensor.shape)) >= LINE: return False
    with tensor.file.open("rb") as raw:
        raw.seek(tensor.start)
        return raw.read(size) == bytes(size)


def view(raw: BufferedReader) -> mmap.mmap | NDArray[np.uint8]:
    """The bytes of an open file, to be read only: mapped, or read where that cannot be, or where files that are mapped cannot be
    replaced."""
    try:
        if os.name != "nt": return mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError): pass
    whole = room((os.fstat(raw.fileno()).st_size,), np.dtype(np.uint8))
    raw.readinto(whole)                                     # type: ignore[arg-type]
    whole.flags.writeable = False
    return whole


def array(part: Part, mapped: mmap.mmap | NDArray[np.uint8]) -> NDArray[Any]:
    """An array as it lies in its file, that is only read and begins on a cache line: a format keeps it without a copy."""
    shape, start = part.tensor.shape, part.tensor.start
    found = np.frombuffer(mapped, part.number, size, start).reshape(shape) if (size := prod(shape)) else np.empty(shape, part.number)
    kept = aligned(found, part.number, part.name)
    kept.flags.writeable = False
    return kept


class Digest(Thread):
    """`Program.hash` of what files say, worked out beside other work. Leaving it waits for it; InputError names a number that is
    not finite."""

    def __init__(self, said: Mapping[str, Any], stored: Iterable[tuple[str, list[Part]]], raw: BufferedReader):
        super().__init__()
        self.total, self.stored = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=16), stored
        self.raw = raw
        self.wrong: InputError | None = None

    def __enter__(self) -> "Digest":
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.join()
        if self.wrong and raised == (None, None, None): raise self.wrong

    @property
    def found(self) -> str: return self.total.hexdigest()

    def run(self) -> None:
        buffer = memoryview(bytearray(BUFFER))
        try:
            for name, several in self.stored:
                for part in several: self.add(name, part, buffer)
        except InputError as error: self.wrong = error
        except OSError as error: self.wrong = InputError(f"{part.tensor.file}: it cannot be read: {error.strerror}")

    def add(self, name: str, part: Part, buffer: memoryview) -> None:
        """One array, as much at a time as the buffer holds."""
        self.total.update(f"{part.name} {part.number.str} {part.tensor.shape}".encode())
        left = prod(part.tensor.shape) * part.number.itemsize
        self.raw.seek(part.tensor.start)
        while left:
            some = buffer[:min(left, BUFFER)]
            if self.raw.readinto(some) != len(some): raise InputError(f"{part.tensor.file}: it ends within {part.name!r}: {AGAIN}")
            self.total.update(some)
            left -= len(some)
            if part.field and part.number.kind == "f" and not finite(numbers := np.frombuffer(some, part.number)):
                bad = numbers[~np.isfinite(numbers)][0]
                raise InputError(f"{part.tensor.file}: constant {name!r}: {part.format}.{part.field}: it holds {bad}, which is not "
                                 "finite")
