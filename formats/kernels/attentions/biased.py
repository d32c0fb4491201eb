"""A bias of scores by distance: a table has a row for each head, or one for all, and a column for each distance key -
query from -most to most; what is farther away has the number of the end.

Tiles of scores have a line for each key and a lane for each query. So lines hold the numbers of a strip, which has one
for each distance query - key in turn: that of the next key begins one number earlier. A line is read where it lies."""
import numpy as np

from formats.core.arrays import LINE as CACHE_LINE
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.launch import address, words
from formats.kernels.engine.memory import floats
from formats.kernels.engine.native import njit
from formats.kernels.simd.arithmetic import fused, get, keep

LOG2_E = 1.4426950408889634
BY_DISTANCE = words("table table_head most strip")          # of a record; table: 0 where there is none; strip: bytes
                                                            # before it in a worker's room
f4 = np.float32


@njit(**HELPER)
def column_of(most, ahead):
    """The column of a table for a query so many positions ahead of a key."""
    return most - min(max(ahead, -most), most)


@njit(**HELPER)
def lay_strip(table, most, first, count, factor, strip):
    """Lays so many numbers of a row of a table: those for queries `first` and more positions ahead, times a factor."""
    row, numbers = floats(table, 2 * most + 1), floats(strip, count)
    for t in range(count): numbers[t] = row[column_of(most, first + t)] * factor


@njit(**HELPER)
def lay_lines(c, head, low, key, keys, wide, factor, strip):
    """Lays the strip of keys from one on against queries from low on, times a factor; where the first key's line
    begins in it. 0 where there is no table."""
    if not c.table: return 0
    lay_strip(c.table + 4 * head * c.table_head, c.most, low - key - keys + 1, keys + wide - 1, factor, strip)
    return strip + 4 * (keys - 1)


@njit(**HELPER)
def begin_line(lines, key, g):
    """Where the line of a key begins, g bytes on; 0 where there is no strip."""
    return lines - 4 * key + g if lines else 0


@njit(**HELPER)
def add_lines(s, step, keys, wide, lines):
    """Scores, as powers of two, plus the lines of a strip; bytes between lines of scores."""
    for key in range(keys):
        for g in range(0, 4 * wide, 64):
            at = s + key * step + g
            keep(fused(get(lines - 4 * key + g, None), f4(LOG2_E), get(at, None)), at, None)


@njit(**HELPER)
def add_rows(c, s, step, keys, head, many, ahead, strip):
    """Scores of one query in so many heads, a row each, plus their numbers; the query lies so many positions ahead of
    the first key."""
    numbers = floats(strip, keys)
    for i in range(many):
        row = floats(c.table + 4 * (head + i) * c.table_head, 2 * c.most + 1)
        for key in range(keys): numbers[key] = row[column_of(c.most, ahead - key)]
        for g in range(0, 4 * keys, 64):
            at = s + i * step + g
            keep(fused(get(strip + g, None), f4(LOG2_E), get(at, None)), at, None)


def table_of(bias: np.ndarray | None, heads: int) -> tuple[int, int, int]:
    """(address, numbers between heads, most) of a table by distance for so many heads; zeros where there is none.
    ValueError for what is none."""
    if bias is None: return 0, 0, 0
    if bias.dtype != f4 or bias.ndim != 2 or not (bias.flags.c_contiguous and bias.flags.aligned):
        raise ValueError(f"bias: expected contiguous float32 of two axes, got {bias.dtype} of {bias.shape} with "
                         f"strides of {bias.strides} bytes")
    own, columns = bias.shape
    if own not in (1, heads): raise ValueError(f"bias: a table of {own} heads, where there are {heads}")
    if columns < 3 or columns % 2 == 0:
        raise ValueError(f"bias: a table of {columns} columns: it has one for each distance from -most to most")
    return address(bias), columns if own > 1 else 0, columns // 2


def strip_bytes(keys: int, queries: int) -> int:
    """Bytes of a strip for so many keys and queries at most, in whole cache lines."""
    return -(-4 * (keys + queries) // CACHE_LINE) * CACHE_LINE
