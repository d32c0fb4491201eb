"""Types of the values that steps read and write. A class is the shape of a value and, as the annotation of a kernel's
operand, its type."""

from typing import NamedTuple

import numpy as np

from formats.core.arrays import LINE as LINE
from formats.core.sizes import Size as Live
from formats.core.sizes import size
from formats.storage.format import Format
from formats.storage.stacked import Stacked
from opmatrix.algebra.batch.extents import WHOLE, Extents, S, T
from opmatrix.algebra.batch.signature import CACHED, FLOAT, HELD_NUMBERS, STATE_SPACE, Port

FLOAT_BYTES = 4  # bytes of a number at run time: every value is float32
C, Z = size(CACHED), size(STATE_SPACE)  # rows of caches, and states


def round_to_lines(size: int) -> int:
    """Return bytes rounded up to whole cache lines."""
    return -(-size // LINE) * LINE


class BufferSize(NamedTuple):
    """The bytes of a buffer: for each row of the batch, each pair of tokens of one sentence, each sequence, and each
    row of another space."""

    row: int
    pair: int
    sequence: int = 0
    other: int = 0
    space: Live = T

    def at(self, extents: Extents) -> int:
        """Return the bytes of the buffer for a batch of this size; pairs take whole cache lines."""
        total = self.row * extents[T] if self.row else 0
        if self.pair:
            total += round_to_lines(self.pair * extents[WHOLE])
        if self.other:
            total += self.other * extents[self.space]
        return int(total + self.sequence * extents[S] if self.sequence else total)


def rows_of(space: Live, numbers: int) -> BufferSize:
    """Return the size of a buffer of rows of `numbers` numbers."""
    size = round_to_lines(FLOAT_BYTES * numbers)
    if space == T:
        return BufferSize(size, 0)
    return BufferSize(0, 0, size) if space == S else BufferSize(0, 0, 0, size, space)


class Rows(NamedTuple):
    """(T, cols): one row a token, sentences in turn; (S, cols): one a sequence; or of another space. In a view of a
    wider value rows are `apart` numbers apart."""

    cols: int
    apart: int = 0
    space: Live = T

    def at(self, extents: Extents) -> tuple[int, ...]:
        """Return the axes for a batch of this size: rows of the space, columns."""
        return extents[self.space], self.cols

    @property
    def size(self) -> BufferSize:
        """The bytes of a buffer for the rows."""
        return rows_of(self.space, self.cols)

    def __str__(self) -> str:
        return f"{self.space}×{self.cols}"


class Heads(NamedTuple):
    """(T, heads, cols), or (S, heads, cols): a row's columns in equal blocks, rows apart as above."""

    heads: int
    cols: int
    apart: int = 0
    space: Live = T

    def at(self, extents: Extents) -> tuple[int, ...]:
        """Return the axes for a batch of this size: rows of the space, heads, columns."""
        return extents[self.space], self.heads, self.cols

    @property
    def size(self) -> BufferSize:
        """The bytes of a buffer for all heads."""
        return rows_of(self.space, self.heads * self.cols)

    def __str__(self) -> str:
        return f"{self.space}×{self.heads}×{self.cols}"


class Scores(NamedTuple):
    """Block-diagonal scores, flat: for each sentence in turn (heads, length, length)."""

    heads: int

    def at(self, extents: Extents) -> tuple[int, ...]:
        """Return the one axis for a batch of this size: heads times all pairs of tokens."""
        return (self.heads * extents[WHOLE],)

    @property
    def size(self) -> BufferSize:
        """The bytes of a buffer for the scores, by pairs of tokens."""
        return BufferSize(0, FLOAT_BYTES * self.heads)

    def __str__(self) -> str:
        return f"{self.heads}×Σlength²"


class Cache(NamedTuple):
    """(C, heads, cols): rows of a cache, which lies with a session, in a number type."""

    heads: int
    cols: int
    number: str = FLOAT

    def at(self, extents: Extents) -> tuple[int, ...]:
        """Return the axes for a batch of this size: cached rows, heads, columns."""
        return extents[C], self.heads, self.cols

    @property
    def size(self) -> BufferSize:
        """No bytes: a cache is stored with its session, in no buffer of a program."""
        return BufferSize(0, 0)

    @property
    def row(self) -> int:
        """The bytes of one row of the cache."""
        return np.dtype(HELD_NUMBERS[self.number]).itemsize * self.heads * self.cols

    def __str__(self) -> str:
        return f"C×{self.heads}×{self.cols}" + (f" {self.number}" if self.number != FLOAT else "")


class States(NamedTuple):
    """(states, heads, cols): states of sequences, which lie with a session: in every head the last rows of a value,
    side by side."""

    heads: int
    cols: int

    def at(self, extents: Extents) -> tuple[int, ...]:
        """Return the axes for a batch of this size: states, heads, columns."""
        return extents[Z], self.heads, self.cols

    @property
    def size(self) -> BufferSize:
        """No bytes: states are stored with their session, in no buffer of a program."""
        return BufferSize(0, 0)

    @property
    def row(self) -> int:
        """The bytes of one state."""
        return FLOAT_BYTES * self.heads * self.cols

    def __str__(self) -> str:
        return f"{STATE_SPACE}×{self.heads}×{self.cols}"


Value = Rows | Heads | Scores | Cache | States
WITH_SESSION = Cache, States  # values that lie with a session


def entering(port: Port) -> Value:
    """Return the value of an input in the steps: a cache for the space of caches, states for theirs, else rows, or
    heads if it has several."""
    if port.space == CACHED:
        return Cache(port.heads, port.columns, port.number)
    if port.space == STATE_SPACE:
        return States(port.heads, port.columns)
    return (
        Rows(port.columns, space=size(port.space))
        if port.heads == 1
        else Heads(port.heads, port.columns, space=size(port.space))
    )


def number_of(value: Value) -> type[np.generic]:
    """Return the number type of a value's buffer."""
    return HELD_NUMBERS[value.number] if isinstance(value, Cache) else np.float32


def leaving(name: str, of: str, value: Value) -> Port:
    """Return the port of an output, and of the value that it is. Raises ValueError for a value that is no rows."""
    if not isinstance(value, Rows):
        raise ValueError(
            f"output: {of!r} is {value}; a program gives one row a token or a sequence, or one of another space"
        )
    return Port(name, str(value.space), value.cols)


class Weight:
    """A constant in a storage format, used as x @ W: shape (n, p)."""

    @staticmethod
    def holds(constant: object) -> bool:
        """True for a matrix in a storage format."""
        return isinstance(constant, Format)


class Vector:
    """A constant float32 array: one number a column."""

    @staticmethod
    def holds(constant: object) -> bool:
        """True for a float32 array of one axis."""
        return is_float32(constant, 1)


class Stack:
    """A constant float32 array, or a stack in a storage format: a matrix (d, n) for each head."""

    @staticmethod
    def holds(constant: object) -> bool:
        """True for a stack in a storage format, or a float32 array of three axes."""
        return isinstance(constant, Stacked) or is_float32(constant, 3)


class Array:
    """A constant float32 array of any shape."""

    @staticmethod
    def holds(constant: object) -> bool:
        """True for a float32 array of any shape."""
        return isinstance(constant, np.ndarray) and constant.dtype == np.float32


class Tables:
    """As many constants as are given, named table0, table1, …: rows, or columns of panels, to choose from."""

    @staticmethod
    def holds(constant: object) -> bool:
        """True for a matrix whose format can gather rows, or columns of panels."""
        return isinstance(constant, Format) and (constant.rowwise or constant.panelled is not None)


def is_float32(constant: object, axes: int) -> bool:
    """True for a float32 array with this number of axes."""
    return isinstance(constant, np.ndarray) and constant.dtype == np.float32 and constant.ndim == axes


CONSTANT = (Weight, Vector, Stack, Array, Tables)
