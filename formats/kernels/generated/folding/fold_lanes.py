"""The vocabulary of generated products: that of rows (../rowwise/row_lanes.py), and tiles of queries and keys."""

import numpy as np

from formats.kernels.attentions.biased import lay_strip as lay_strip
from formats.kernels.attentions.heads import copy_rows as copy_rows
from formats.kernels.attentions.heads import turn_keys as turn_keys
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import floats, longs, pointer
from formats.kernels.engine.native import njit
from formats.kernels.generated.folding.fold_sizes import SCORE_BYTES, UNIT_SIDE
from formats.kernels.generated.rowwise.row_lanes import INFINITY
from formats.kernels.generated.rowwise.row_lanes import both as both
from formats.kernels.generated.rowwise.row_lanes import cut as cut
from formats.kernels.generated.rowwise.row_lanes import either as either
from formats.kernels.generated.rowwise.row_lanes import equal as equal
from formats.kernels.generated.rowwise.row_lanes import exp_whole as exp_whole
from formats.kernels.generated.rowwise.row_lanes import expm1_whole as expm1_whole
from formats.kernels.generated.rowwise.row_lanes import first_lane as first_lane
from formats.kernels.generated.rowwise.row_lanes import gelu_of as gelu_of
from formats.kernels.generated.rowwise.row_lanes import gelu_tanh_of as gelu_tanh_of
from formats.kernels.generated.rowwise.row_lanes import get as get
from formats.kernels.generated.rowwise.row_lanes import in_all_lanes as in_all_lanes
from formats.kernels.generated.rowwise.row_lanes import keep as keep
from formats.kernels.generated.rowwise.row_lanes import lane_numbers as lane_numbers
from formats.kernels.generated.rowwise.row_lanes import lanes_of as lanes_of
from formats.kernels.generated.rowwise.row_lanes import largest_of as largest_of
from formats.kernels.generated.rowwise.row_lanes import less as less
from formats.kernels.generated.rowwise.row_lanes import less_equal as less_equal
from formats.kernels.generated.rowwise.row_lanes import log1p_whole as log1p_whole
from formats.kernels.generated.rowwise.row_lanes import log_whole as log_whole
from formats.kernels.generated.rowwise.row_lanes import magnitude as magnitude
from formats.kernels.generated.rowwise.row_lanes import negative as negative
from formats.kernels.generated.rowwise.row_lanes import one_number as one_number
from formats.kernels.generated.rowwise.row_lanes import record as record
from formats.kernels.generated.rowwise.row_lanes import sigmoid_of as sigmoid_of
from formats.kernels.generated.rowwise.row_lanes import silu_of as silu_of
from formats.kernels.generated.rowwise.row_lanes import smallest_of as smallest_of
from formats.kernels.generated.rowwise.row_lanes import square_root as square_root
from formats.kernels.generated.rowwise.row_lanes import tanh_of as tanh_of
from formats.kernels.generated.rowwise.row_lanes import whole_below as whole_below
from formats.kernels.generated.rowwise.row_lanes import words as words
from formats.kernels.simd.arithmetic import fused as fused
from formats.kernels.simd.arithmetic import larger as larger
from formats.kernels.simd.arithmetic import smaller as smaller
from formats.kernels.simd.arithmetic import sum_lanes

f4, i8 = np.float32, np.int64


@njit(**HELPER)
def unit_at(starts, count, nth):
    """Return (first row, length, first query) of the nth unit of queries of all sequences; the query is -1 if there are
    fewer units."""
    rows, left = longs(starts, count + 1), nth
    for s in range(count):
        length = rows[s + 1] - rows[s]
        units = (length + UNIT_SIDE - 1) // UNIT_SIDE
        if left < units:
            return rows[s], length, left * UNIT_SIDE
        left -= units
    return i8(0), i8(0), i8(-1)


@njit(**HELPER)
def tiles_seen(c, low, rows, length):
    """Return (first, end) of the tiles of keys of which a unit sees some: tile numbers, or with a mask places in its
    blocks."""
    if c.ptr:
        ptr, idx = pointer(c.ptr, np.uint32), pointer(c.idx, np.uint32)
        at, end = i8(ptr[low // UNIT_SIDE]), i8(ptr[low // UNIT_SIDE + 1])
        while at < end and i8(idx[end - 1]) * UNIT_SIDE >= length:
            end -= 1
        return at, end
    first, last = max(0, low - c.behind), min(length, low + rows + c.ahead)
    if first >= last:
        return i8(0), i8(0)
    return first // UNIT_SIDE, (last + UNIT_SIDE - 1) // UNIT_SIDE


@njit(**HELPER)
def tile_seen(c, at, low, rows, length, lines):
    """Return (first key of a tile that a unit sees, the number of keys from there, True if all their scores are seen),
    and write a line of 1 and 0 for each key."""
    if c.ptr:
        key, edge = i8(pointer(c.idx, np.uint32)[at]) * UNIT_SIDE, i8(pointer(c.edge, np.uint32)[at])
        keys, bits = min(UNIT_SIDE, length - key), c.bits + (edge - 1) * UNIT_SIDE * UNIT_SIDE // 8
        for k in range(keys):
            line = floats(lines + SCORE_BYTES * k, UNIT_SIDE)
            for i in range(UNIT_SIDE):
                line[i] = pointer(bits, np.uint16)[i * (UNIT_SIDE // 16) + k // 16] >> (k % 16) & 1 if edge else 1
        return key, keys, edge == 0
    key = max(at * UNIT_SIDE, low - c.behind)
    keys = min(min(at * UNIT_SIDE + UNIT_SIDE, length), low + rows + c.ahead) - key
    for k in range(keys):
        line = floats(lines + SCORE_BYTES * k, UNIT_SIDE)
        first, last = key + k - c.ahead - low, key + k + c.behind - low
        for i in range(UNIT_SIDE):
            line[i] = 1 if i >= first and i <= last else 0
    return key, keys, key >= low + rows - 1 - c.behind and key + keys - 1 <= low + c.ahead


@njit(**HELPER)
def keys_seen(c, query, key, keys):
    """Return (first, end) of the keys of a tile that some of 16 queries see. With a mask these are all keys: the lines
    say which query sees which."""
    if c.ptr:
        return i8(0), i8(keys)
    return max(0, query - c.behind - key), min(keys, query + 16 + c.ahead - key)


@njit(**HELPER)
def clear_numbers(at, count):
    """Write fewer than 16 zeros."""
    keep(in_all_lanes(f4(0)), at, count)


@njit(**HELPER)
def all_finite(at, rows, columns, across):
    """True if all numbers of an array are finite: 0 times each is 0. Four rows are tested at a time, the last rows more
    than once."""
    a, b, c, d = (in_all_lanes(f4(0)), in_all_lanes(f4(0)), in_all_lanes(f4(0)), in_all_lanes(f4(0)))
    for j in range(0, columns, 16):
        lanes = min(16, columns - j)
        for i in range(0, rows, 4):
            a = fused(get(at + i * across + 4 * j, lanes), f4(0), a)
            b = fused(get(at + min(i + 1, rows - 1) * across + 4 * j, lanes), f4(0), b)
            c = fused(get(at + min(i + 2, rows - 1) * across + 4 * j, lanes), f4(0), c)
            d = fused(get(at + min(i + 3, rows - 1) * across + 4 * j, lanes), f4(0), d)
    return sum_lanes(a + b + (c + d)) == f4(0)


@njit(**HELPER)
def within_infinity(at, rows, columns, across):
    """Return (True if all numbers of an array are above -inf, True if all are below inf). `across`: bytes between
    rows."""
    if all_finite(at, rows, columns, across):
        return True, True
    above, below = in_all_lanes(f4(0)), in_all_lanes(f4(0))
    for i in range(rows):
        for j in range(0, columns, 16):
            x = get(at + i * across + 4 * j, min(16, columns - j))
            above, below = above + less(-INFINITY, x), below + less(x, INFINITY)
    all = f4(rows * ((columns + 15) // 16 * 16))
    return sum_lanes(above) == all, sum_lanes(below) == all
