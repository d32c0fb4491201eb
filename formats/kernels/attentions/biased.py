"""A bias of scores by distance: a table has a row for each head, or one for all, and a column for each distance key -
query from -most to most; larger distances take the number at the end of the row.

Tiles of scores have a line for each key and a lane for each query. Lines of the bias overlap in one strip, which holds
a number for each distance query - key, in order: the line of the next key begins one number earlier. A line is read
where it is stored."""

import numpy as np

from formats.core.arrays import LINE as CACHE_LINE
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.launch import address, words
from formats.kernels.engine.memory import floats
from formats.kernels.engine.native import njit
from formats.kernels.simd.arithmetic import fused, get, keep

LOG2_E = 1.4426950408889634
BY_DISTANCE = words("table table_head most strip")  # fields of a record; table: 0 if there is none; strip:
# its offset in a worker's room, in bytes
f4 = np.float32


@njit(**HELPER)
def column_of(most, ahead):
    """Return the column of a table for a query `ahead` positions ahead of a key."""
    return most - min(max(ahead, -most), most)


@njit(**HELPER)
def lay_strip(table, most, first, count, factor, strip):
    """Write `count` numbers of a row of a table to a strip: those for queries `first` and more positions ahead, times a
    factor."""
    row, numbers = floats(table, 2 * most + 1), floats(strip, count)
    for t in range(count):
        numbers[t] = row[column_of(most, first + t)] * factor


@njit(**HELPER)
def lay_lines(c, head, low, key, keys, wide, factor, strip):
    """Write the strip of keys from `key` on against queries from `low` on, times a factor; return the address of the
    first key's line in it. 0 if there is no table."""
    if not c.table:
        return 0
    lay_strip(c.table + 4 * head * c.table_head, c.most, low - key - keys + 1, keys + wide - 1, factor, strip)
    return strip + 4 * (keys - 1)


@njit(**HELPER)
def begin_line(lines, key, g):
    """Return the address of a key's line, g bytes on; 0 if there is no strip."""
    return lines - 4 * key + g if lines else 0


@njit(**HELPER)
def add_lines(s, step, keys, wide, lines):
    """Add the lines of a strip to scores, as powers of two; `step`: bytes between lines of scores."""
    for key in range(keys):
        for g in range(0, 4 * wide, 64):
            at = s + key * step + g
            keep(fused(get(lines - 4 * key + g, None), f4(LOG2_E), get(at, None)), at, None)


@njit(**HELPER)
def add_rows(c, s, step, keys, head, many, ahead, strip):
    """Add the numbers of `many` heads to the scores of one query, a row each; the query is `ahead` positions ahead of
    the first key."""
    numbers = floats(strip, keys)
    for i in range(many):
        row = floats(c.table + 4 * (head + i) * c.table_head, 2 * c.most + 1)
        for key in range(keys):
            numbers[key] = row[column_of(c.most, ahead - key)]
        for g in range(0, 4 * keys, 64):
            at = s + i * step + g
            keep(fused(get(strip + g, None), f4(LOG2_E), get(at, None)), at, None)


def table_of(bias: np.ndarray | None, heads: int) -> tuple[int, int, int]:
    """Return (address, numbers between heads, most) of a table by distance for this many heads; zeros if there is none.
    ValueError for an array that is no such table."""
    if bias is None:
        return 0, 0, 0
    if bias.dtype != f4 or bias.ndim != 2 or not (bias.flags.c_contiguous and bias.flags.aligned):
        raise ValueError(
            f"bias: expected contiguous float32 of two axes, got {bias.dtype} of {bias.shape} with "
            f"strides of {bias.strides} bytes"
        )
    table_heads, columns = bias.shape
    if table_heads not in (1, heads):
        raise ValueError(f"bias: a table of {table_heads} heads, but attention has {heads}: give 1 or {heads}")
    if columns < 3 or columns % 2 == 0:
        raise ValueError(
            f"bias: a table of {columns} columns: give 2 * most + 1, one for each distance from -most to most"
        )
    return address(bias), columns if table_heads > 1 else 0, columns // 2


def strip_bytes(keys: int, queries: int) -> int:
    """Return the bytes of a strip for at most this many keys and queries, in whole cache lines."""
    return -(-4 * (keys + queries) // CACHE_LINE) * CACHE_LINE
