"""Numbers that a file stores in blocks, read from it when they are asked for: the file's bytes are in memory only while
a program's form of them is made, and widened numbers only while someone holds them."""

import hashlib
from collections.abc import Callable
from functools import cached_property
from math import prod
from pathlib import Path
from typing import NamedTuple
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats
from formats.core.errors import InputError
from opmatrix.algebra.data import SKETCHED, Data, Numeric
from opmatrix.files.quantised import BlockType
from opmatrix.files.tensors import ExpertTensors, Tensor

DIGESTED_BLOCKS = 1 << 16  # blocks that are widened at a time for a digest


class BlockSource(NamedTuple):
    """The place of blocks: the shape of their numbers, their type, the function that reads them (..., groups), and
    their file, None for a model in memory."""

    shape: tuple[int, ...]
    stored: BlockType
    read: Callable[[], Numeric]
    file: Path | None

    @classmethod
    def of(cls, tensor: Tensor | ExpertTensors) -> "BlockSource | None":
        """Return the source of a matrix, or of those of all experts; None where no format holds their blocks."""
        first = tensor.matrices[0] if isinstance(tensor, ExpertTensors) else tensor
        stored = first.kept_type()
        if stored is None:
            return None
        count = (len(tensor.matrices),) if isinstance(tensor, ExpertTensors) else ()
        return cls((*count, *first.shape), stored, tensor.read_filed, None if first.held else first.file)

    def written(self) -> tuple[int, int]:
        """Return when the file was last written, and its bytes. Raises InputError if it is gone."""
        if self.file is None:
            return 0, 0
        try:
            status = self.file.stat()
        except OSError as error:
            raise InputError(f"{self.file}: {error.strerror}: it was there when the model was opened") from error
        return status.st_mtime_ns, status.st_size


class InFile(Data):
    """An array whose numbers lie in a file."""

    @cached_property
    def digest(self) -> str:
        """The hash of shape, type and numbers. Raises InputError as `check_file`."""
        raise NotImplementedError

    def check_file(self) -> None:
        """Raise InputError if the file has changed since it was opened, or is gone."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The digest. Of a file that is gone the numbers are equal to no others."""
        try:
            self.check_file()
            return self.digest
        except InputError:
            return f"unread {id(self)}"

    @property
    def is_finite(self) -> bool:
        """True: scales that are not finite are refused when a file is opened."""
        return True


class FiledData(InFile):
    """An array whose blocks lie in a file. It is equal to the array of the same numbers."""

    def __init__(self, source: BlockSource, name: str | None) -> None:
        self.source, self.name, self.written = source, name, source.written()
        self.widened: ReferenceType[Floats] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the numbers."""
        return self.source.shape

    @property
    def block_type(self) -> np.dtype[np.generic]:
        """The structure of a block."""
        return self.source.stored.block

    @property
    def blocks(self) -> Numeric:  # type: ignore[override]
        """The blocks of the file, read anew. Raises InputError if the file has changed, or is gone."""
        self.check_file()
        return self.source.read()

    def check_file(self) -> None:
        """Raise InputError if the file has changed since it was opened, or is gone."""
        if self.source.written() != self.written:
            raise InputError(f"{self.source.file}: it has changed since the model was opened: open it again")

    @property
    def array(self) -> Numeric:  # type: ignore[override]
        """The numbers in float32, widened anew unless someone holds them."""
        known = None if self.widened is None else self.widened()
        if known is not None:
            return known
        array = self.source.stored.widen(self.blocks.reshape(-1)).reshape(self.shape)
        array.flags.writeable = False
        self.widened = ref(array)
        return array

    @cached_property
    def digest(self) -> str:
        """The hash of shape, type and numbers. Raises InputError as `blocks`."""
        digest = hashlib.blake2b(repr((self.shape, np.dtype(np.float32).str)).encode(), digest_size=16)
        flat = self.blocks.reshape(-1)
        for at in range(0, len(flat), DIGESTED_BLOCKS):
            digest.update(np.ascontiguousarray(self.source.stored.widen(flat[at : at + DIGESTED_BLOCKS])).data)
        return digest.hexdigest()

    @cached_property
    def sketch(self) -> int:
        """A hash of shape, type and a few numbers, as that of the widened array."""
        return self.sketch_of(self.shape, evenly(self.shape))

    def take(self, places: tuple[NDArray[np.int64], ...]) -> Numeric:
        """Return the numbers at some places; only their blocks are widened."""
        return self.take_flat(np.ravel_multi_index(places, self.shape))

    def take_flat(self, at: NDArray[np.int64]) -> Numeric:
        """Return the numbers at some places, counted row by row."""
        stored = self.source.stored
        chosen = stored.widen(self.blocks.reshape(-1)[at // stored.numbers]).reshape(len(at), -1)
        return np.asarray(chosen[np.arange(len(at)), at % stored.numbers], np.float32)

    def sketch_of(self, shape: tuple[int, ...], at: NDArray[np.int64]) -> int:
        """Return the sketch of an array of this shape whose numbers stand at these places of this one."""
        words = repr((shape, np.dtype(np.float32).str)).encode() + self.take_flat(at).tobytes()
        return int.from_bytes(hashlib.blake2b(words, digest_size=7).digest(), "big")

    @cached_property
    def _turned(self) -> Data:
        return TurnedBlocks(self)


class TurnedBlocks(InFile):
    """The transpose of an array whose blocks lie in a file."""

    def __init__(self, base: FiledData) -> None:
        self.base, self.name = base, None
        self.filed = base

    def check_file(self) -> None:
        """Raise InputError as the base."""
        self.filed.check_file()

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the base, the last two exchanged."""
        *stack, rows, columns = self.filed.shape
        return (*stack, columns, rows)

    @property
    def array(self) -> Numeric:  # type: ignore[override]
        """The numbers in float32, a view of those of the base."""
        return self.filed.array.swapaxes(-1, -2)

    @cached_property
    def digest(self) -> str:
        """The hash of shape, type and numbers. Raises InputError as those of the base."""
        return Data(self.array).key

    @cached_property
    def sketch(self) -> int:
        """A hash of shape, type and a few numbers, as that of the widened array."""
        *stack, row, column = np.unravel_index(evenly(self.shape), self.shape)
        return self.filed.sketch_of(self.shape, np.ravel_multi_index((*stack, column, row), self.filed.shape))

    def take(self, places: tuple[NDArray[np.int64], ...]) -> Numeric:
        """Return the numbers at some places; only their blocks are widened."""
        *stack, row, column = places
        return self.filed.take((*stack, column, row))


def evenly(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the places of the numbers that enter a sketch, counted row by row."""
    size = prod(shape)
    return np.linspace(0, size - 1, min(SKETCHED, size)).astype(np.int64)
