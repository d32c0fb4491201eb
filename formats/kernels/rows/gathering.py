"""Rows of tables gathered from the storage of products: the columns of a matrix in panels (formats/core/layout.py)."""

from typing import Any, NamedTuple, Self

import numpy as np

from formats.core.block_layout import BlockLayout
from formats.core.layout import PANEL, VECTOR, Panelled
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.launch import address, words
from formats.kernels.engine.memory import bytes_at, extended, floats, shorts, widen
from formats.kernels.engine.native import njit
from formats.kernels.rows.block_columns import add_block_column, kept_layout

__all__ = ["Columns"]

# ids (int64), bytes between ids, table, bytes of a number. words: 0 for a table of rows of p numbers; for panels:
# width, words (numbers side by side), deep (numbers of a column), halves (1 if bytes hold two inputs), N columns,
# scales (groups, N), half (1 if scales are float16 in panels), inputs of a group; of blocks (block_columns.py) the
# integers of groups and the address of their layout, 0 for others
SOURCE = np.dtype(words("ids apart table bytes width words deep halves N scale half group parts layout"))
SOURCE_BYTES = SOURCE.itemsize
f4 = np.float32
PANEL_TYPES = np.float32, np.uint16, np.uint8  # panels: float32, bfloat16, bytes or 4-bit with scales


class Columns(NamedTuple):
    """The columns of a matrix (n, N) in panels, as a table of N rows of n numbers."""

    shape: tuple[int, int]
    panelled: Panelled
    w: np.ndarray
    scale: np.ndarray | None = None
    group: int = 0
    parts: np.ndarray | None = None

    @classmethod
    def of(cls, stored: Any) -> Self:
        """Return the columns of a stored matrix whose format declares its panels."""
        return cls(stored.shape, stored.panelled, **stored.arrays(), **stored.remembered)

    def told(self) -> tuple[int, ...]:
        """Return the kernel's fields for this table. ValueError for arrays of other sizes or kinds."""
        if self.panelled.layout is not None:
            return self.block_fields(self.panelled.layout)
        (n, N), (width, side, _, halves, half, _) = self.shape, self.panelled
        deep = self.panelled.stored(n)
        if (
            self.w.dtype not in PANEL_TYPES
            or self.w.shape != (deep * -(-N // VECTOR) * VECTOR,)
            or not is_contiguous(self.w)
        ):
            raise ValueError(f"table: {self.w.dtype} of {self.w.shape} are not panels of {n} by {N} numbers")
        group = half or self.group
        groups = -(-n // group) if group else 0
        if (self.w.itemsize == 1) != bool(groups) or (self.scale is not None) != bool(groups):
            raise ValueError(f"table: panels of {self.w.dtype} with{'out' if self.scale is None else ''} scales")
        kind, shape = (np.float16, (groups * -(-N // VECTOR) * VECTOR,)) if half else (f4, (groups, N))
        if self.scale is not None and (
            self.scale.shape != shape or self.scale.dtype != kind or not is_contiguous(self.scale)
        ):
            raise ValueError(
                f"table: scales {self.scale.dtype} of {self.scale.shape}, expected {np.dtype(kind)} of {shape}"
            )
        return (
            address(self.w),
            self.w.itemsize,
            width,
            side,
            deep,
            int(halves),
            N,
            address(self.scale),
            int(half > 0),
            group,
            0,
            0,
        )

    def block_fields(self, layout: BlockLayout) -> tuple[int, ...]:
        """Return the kernel's fields for a table in blocks. ValueError for arrays of other sizes or kinds."""
        (n, N), deep = self.shape, self.panelled.filled(self.shape[0])
        count = deep // layout.inputs * -(-N // VECTOR) * VECTOR
        for name, array, size, kind in (
            ("w", self.w, layout.words, np.uint32),
            ("scale", self.scale, layout.scales, layout.scale_type),
            ("parts", self.parts, layout.part_words, np.uint32),
        ):
            if size and (
                array is None or array.shape != (size * count,) or array.dtype != kind or not is_contiguous(array)
            ):
                raise ValueError(f"table: {name} is not {np.dtype(kind)} of ({size * count},): no blocks of {n} by {N}")
        record, *_ = kept_layout(layout)
        return (
            address(self.w),
            4,
            PANEL,
            1,
            deep,
            0,
            N,
            address(self.scale),
            1,
            layout.group,
            address(self.parts),
            address(record),
        )


def is_contiguous(array: np.ndarray) -> bool:
    return bool(array.flags.c_contiguous and array.flags.aligned)


def describe_table(table: np.ndarray | Columns) -> tuple[int, ...]:
    """Return the kernel's fields for a table of rows, or of columns. ValueError as for `Columns.told`."""
    return table.told() if isinstance(table, Columns) else (address(table), table.itemsize, *[0] * 10)


@njit(**HELPER)
def add(y, j, number, fresh):
    y[j] = number + (f4(0) if fresh else y[j])


@njit(**HELPER)
def add_row(y, f, row, fresh):
    """Set y to a row of float32 or float16, or add the row to it."""
    if f.bytes == 2:
        stored = shorts(f.table + 2 * row * y.size, y.size)
        for j in range(y.size):
            add(y, j, widen(stored[j]), fresh)
    else:
        single = floats(f.table + 4 * row * y.size, y.size)
        for j in range(y.size):
            add(y, j, single[j], fresh)


@njit(**HELPER)
def add_halves(y, f, column, along, stored, fresh):
    """Set y to a column of 4-bit values, two per byte, or add the column to it: f.words inputs are in the low halves,
    the next f.words in the high halves."""
    for low in range(0, y.size, f.words):
        at = low // (2 * f.words) * along
        high, turn = min(low + f.words, y.size), low // f.words % 2 * 4
        scale = floats(f.scale + 4 * (low // f.group * f.N + column), 1)[0]
        for j in range(low, high):
            add(y, j, f4((np.int64(stored[at + j - low]) >> turn & 15) - 8) * scale, fresh)


@njit(**HELPER)
def scale_of(f, column, start, across, group):
    """Return the scale of a group of a column, in a panel that begins at column `start` and is `across` columns
    wide."""
    if not f.half:
        return floats(f.scale + 4 * (group * f.N + column), 1)[0]
    return widen(shorts(f.scale + 2 * (f.deep // f.group * start + group * across + column - start), 1)[0])


@njit(**HELPER)
def add_column(y, f, column, fresh):
    """Set y to a column of panels, or add the column to it: float32, bfloat16, bytes, or 4-bit values, with scales."""
    if f.layout:
        return add_block_column(y, f, column, fresh)
    start = column // f.width * f.width
    along = min(f.width, (f.N + VECTOR - 1) // VECTOR * VECTOR - start) * f.words
    count, first = (f.deep // f.words - 1) * along + f.words, f.deep * start + (column - start) * f.words
    single, short, stored = (
        floats(f.table + 4 * first, count),
        shorts(f.table + 2 * first, count),
        bytes_at(f.table + first, count),
    )
    if f.halves:
        return add_halves(y, f, column, along, stored, fresh)
    at = 0
    for low in range(0, y.size, f.words):
        high = min(low + f.words, y.size)
        if f.bytes == 4:
            for j in range(low, high):
                add(y, j, single[at + j - low], fresh)
        elif f.bytes == 2:
            for j in range(low, high):
                add(y, j, extended(short[at + j - low]), fresh)
        else:
            scale = scale_of(f, column, start, along // f.words, low // f.group)
            for j in range(low, high):
                add(y, j, f4(np.int64(stored[at + j - low]) - 128) * scale, fresh)
        at += along
