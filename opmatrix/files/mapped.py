"""Arrays of a program in a safetensors file. They are mapped into memory, each beginning on a cache line: an array that
is not read is never loaded, and loaded ones are shared by all processes that run the program. Index arrays, which hold
places of numbers, are copied: they are checked once, and the file may change later. The hash is computed meanwhile,
through buffers."""

import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from io import BufferedReader
from math import prod
from pathlib import Path
from threading import Lock, Thread
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats import FORMATS
from formats.core.arrays import LINE, aligned, all_finite, room
from formats.core.errors import InputError
from formats.host.threads import threads
from opmatrix.algebra.data import Numeric
from opmatrix.files.tensors import Tensor

DTYPES = {
    name: np.dtype(number)
    for name, number in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "U8": "u1",
        "U16": "<u2",
        "U32": "<u4",
        "I32": "<i4",
        "I64": "<i8",
    }.items()
}
GAP = "padding"  # prefix of the names of padding arrays
PIECE = 1 << 20  # bytes that are hashed at a time
HASH_THREADS = 4  # threads that hash: more would wait for memory
AGAIN = "copy the whole directory again, or create the program again"


def write_tensors(arrays: Mapping[str, Numeric], file: Path, gap: str = GAP) -> None:
    """Write safetensors whose arrays begin on cache lines. The format allows no gaps, so the padding between arrays is
    stored as arrays, too."""
    names, at = {number: name for name, number in DTYPES.items()}, 0
    while any(name.startswith(gap) for name in arrays):
        gap += "_"
    entries: dict[str, object] = {}
    for name, array in arrays.items():
        if array.dtype not in names:
            raise InputError(f"array {name!r} is of {array.dtype}, which no program stores")
        entries[name] = {
            "dtype": names[array.dtype],
            "shape": array.shape,
            "data_offsets": (at, at := at + array.nbytes),
        }
        if left := -at % LINE:
            entries[f"{gap}{len(entries)}"] = {"dtype": "U8", "shape": (left,), "data_offsets": (at, at := at + left)}
    contiguous = map(np.ascontiguousarray, arrays.values())
    write_entries(file, entries, (part for array in contiguous for part in (array.data, bytes(-array.nbytes % LINE))))


def write_entries(
    file: Path, entries: Mapping[str, object], content: Iterable[bytes | memoryview], line: int = LINE
) -> None:
    """Write a safetensors file: the length of the entries as JSON, these, padded to a multiple of `line` bytes in all,
    and the content that they describe."""
    head = json.dumps(entries).encode()
    head += b" " * (-(len(head) + 8) % line)
    with file.open("wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        out.writelines(content)


class ArrayPart(NamedTuple):
    """An array of a constant: its name in the file, its format and field (empty for a plain array), its place."""

    name: str
    format: str
    field: str
    tensor: Tensor

    @property
    def indexes(self) -> bool:
        """True if the array holds positions, which kernels follow without checks."""
        return bool(self.field) and self.field in FORMATS[self.format].indices()

    @property
    def number(self) -> np.dtype[np.generic]:
        """The number type of the stored array."""
        return DTYPES[self.tensor.number]

    @property
    def bytes(self) -> int:
        """The bytes of the stored array."""
        return prod(self.tensor.shape) * self.number.itemsize


class ArrayFile:
    """An open, read-only file of arrays: seen as a whole, and read piece by piece by several threads. The whole is
    mapped. It is read instead if a copy is asked for, if it cannot be mapped, or on systems where mapped files cannot
    be replaced."""

    def __init__(self, raw: BufferedReader, copy: bool):
        self.raw, self.lock = raw, Lock()
        self.seen: mmap.mmap | NDArray[np.uint8] = (None if copy else mapped(raw)) or self.copied()

    def copied(self) -> NDArray[np.uint8]:
        """Read the whole file into memory."""
        whole = room((os.fstat(self.raw.fileno()).st_size,), np.dtype(np.uint8))
        self.raw.seek(0)
        if (count := self.raw.readinto(whole)) != len(whole):  # type: ignore[arg-type]
            raise InputError(f"{self.raw.name}: it ends at byte {count}: {AGAIN}")
        whole.flags.writeable = False
        return whole

    def read(self, start: int, into: memoryview, name: str) -> None:
        """Fill a buffer with the bytes from `start` on. Raises InputError, which names the file and the array `name`,
        if the file ends before."""
        if isinstance(self.seen, np.ndarray):
            into[:] = self.seen[start : start + len(into)].data
        else:
            with self.lock:
                self.raw.seek(start)
                count = self.raw.readinto(into)
            if count != len(into):
                raise InputError(f"{self.raw.name}: it ends within {name!r}: {AGAIN}")

    def padding(self, tensor: Tensor) -> bool:
        """True if an array is padding between two others: zeros, less than a cache line."""
        if not tensor.name.startswith(GAP) or tensor.number != "U8" or (size := prod(tensor.shape)) >= LINE:
            return False
        self.read(tensor.start, memoryview(held := bytearray(size)), tensor.name)
        return not any(held)

    def array(self, part: ArrayPart) -> Numeric:
        """Return a read-only array that begins on a cache line, so that a format holds it without a copy: a view of the
        file, or a copy of an index array."""
        shape, start = part.tensor.shape, part.tensor.start
        if part.indexes:
            numbers = room(shape, part.number)
            self.read(start, numbers.reshape(-1).view(np.uint8).data, part.name)
        elif not (size := prod(shape)):
            numbers = np.empty(shape, part.number)
        else:
            numbers = np.frombuffer(self.seen, part.number, size, start).reshape(shape)
            numbers = aligned(numbers, part.number, part.name)
        numbers.flags.writeable = False
        return numbers


def mapped(raw: BufferedReader) -> mmap.mmap | None:
    """Map the bytes of an open file; None if that is not possible."""
    with suppress(OSError, ValueError):
        return None if os.name == "nt" else mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ)
    return None


def hash_program(said: str, arrays: Iterable[tuple[str, str, tuple[int, ...], Iterable[bytes]]]) -> str:
    """Return the hash of a program: sha256 of its JSON and, for each array, of its name, number type, shape and the
    sha256 of each of its pieces, so that the pieces can be hashed in parallel."""
    total = hashlib.sha256(said.encode())
    for name, number, shape, pieces in arrays:
        total.update(f"{name} {number} {shape}".encode())
        for piece in pieces:
            total.update(piece)
    return total.hexdigest()[:32]


def pieces(array: Numeric) -> Iterator[bytes]:
    """Yield the sha256 of each piece of an array."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for at in range(0, len(flat), PIECE):
        yield hashlib.sha256(flat[at : at + PIECE].data).digest()


class Digest:
    """`Program.hash` of files, computed in threads beside other work, through buffers. Leaving the context waits for
    the threads, and raises InputError that names a number that is not finite."""

    def __init__(self, parts: Mapping[str, list[ArrayPart]], stored: Mapping[Path, ArrayFile]):
        self.stored = stored
        self.parts = [(name, part) for name, several in sorted(parts.items()) for part in several]
        self.sums: list[list[bytes]] = [[b""] * -(-part.bytes // PIECE) for _, part in self.parts]
        self.left = iter([(i, at) for i, sums in enumerate(self.sums) for at in range(len(sums))])
        self.wrong: InputError | None = None
        self.threads = [Thread(target=self.work) for _ in range(min(threads(), HASH_THREADS))]

    def __enter__(self) -> "Digest":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        for thread in self.threads:
            thread.join()
        if self.wrong and raised == (None, None, None):
            raise self.wrong

    def found(self, said: str) -> str:
        """Return the hash, given the JSON of the program."""
        described = (
            (part.name, part.number.str, part.tensor.shape, sums)
            for (_, part), sums in zip(self.parts, self.sums, strict=True)
        )
        return hash_program(said, described)

    def work(self) -> None:
        """Hash pieces that no other thread has taken."""
        buffer = memoryview(bytearray(PIECE))
        try:
            for i, at in self.left:
                self.sums[i][at] = self.piece(*self.parts[i], at * PIECE, buffer)
        except InputError as error:
            self.wrong = error
        except OSError as error:
            self.wrong = InputError(f"{self.parts[i][1].tensor.file}: it cannot be read: {error.strerror}")

    def piece(self, name: str, part: ArrayPart, at: int, buffer: memoryview) -> bytes:
        """Return the sha256 of the piece of an array that begins at byte `at`."""
        some = buffer[: min(PIECE, part.bytes - at)]
        self.stored[part.tensor.file].read(part.tensor.start + at, some, part.name)
        if part.field and part.number.kind == "f" and not all_finite(numbers := np.frombuffer(some, part.number)):
            bad = numbers[~np.isfinite(numbers)][0]
            raise InputError(
                f"{part.tensor.file}: constant {name!r}: {part.format}.{part.field}: it holds {bad}, "
                "which is not finite"
            )
        return hashlib.sha256(some).digest()
