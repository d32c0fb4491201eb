"""Columns of a matrix in blocks of files (formats/core/block_layout.py), number by number: rows of a table that a
product stores."""

from functools import cache

import numpy as np

from formats.core.block_layout import PLANE_INPUTS, WORD_BITS, BlockLayout
from formats.core.layout import PANEL, VECTOR
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.launch import words
from formats.kernels.engine.memory import bytes_at, floats, ints_at, record, shorts, widen
from formats.kernels.engine.native import njit

# the first and the second plane of levels, and of the integers of groups, in bits; see BlockLayout. table: the address
# of the numbers that levels stand for; powers: that of the scales that bytes of exponents stand for, 0 for others;
# wide: scales are float32
COLUMN_LAYOUT = np.dtype(
    words("table first second group groups field more scale_bits middle minimum centred powers wide")
)
BYTE_VALUES = 256  # values of a byte
f4 = np.float32


@cache
def kept_layout(layout: BlockLayout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the record of a layout, and the tables that it points to; all are kept, as recordings read them later."""
    values = layout.values - np.float32(0)
    powers = layout.widen_scales(np.arange(BYTE_VALUES, dtype=np.uint8))
    first, second = (*layout.planes, 0)[:2]
    field, more = (*layout.fields, 0, 0)[:2]
    held = np.array(
        [
            (
                values.ctypes.data,
                first,
                second,
                layout.group,
                layout.groups,
                field,
                more,
                layout.scale_bits,
                layout.middle,
                int(layout.minimum),
                int(layout.centred),
                powers.ctypes.data if layout.exponents else 0,
                int(layout.wide),
            )
        ],
        COLUMN_LAYOUT,
    )
    return held, values, powers


@njit(**HELPER)
def plane_entry(start, across, first, bits, at):
    """Return entry `at` of a plane of some bits, which begins `first` words behind an address, the words of an output
    `across` bytes apart."""
    place = at * bits
    word = np.int64(ints_at(start + across * (first + place // WORD_BITS), 1)[0])
    return word >> place % WORD_BITS & (1 << bits) - 1


@njit(**HELPER)
def group_integer(parts, across, c, group):
    """Return the integer of a group of a block whose integers begin at `parts`."""
    whole = plane_entry(parts, across, 0, c.field, group)
    if c.more:
        whole = whole + (plane_entry(parts, across, c.field * c.groups // WORD_BITS, c.more, group) << c.field)
    return whole


@njit(**HELPER)
def add_block_column(y, f, column, fresh):
    """Set y to a column of blocks, or add the column to it."""
    c = record(f.layout, COLUMN_LAYOUT)
    start = column // PANEL * PANEL
    lanes, at = min(PANEL, (f.N + VECTOR - 1) // VECTOR * VECTOR - start), column - start
    across, bits, part_words = 4 * lanes, c.first + c.second, (c.field + c.more) * c.groups // WORD_BITS
    blocks, scales = f.deep // (c.group * c.groups), 1 + c.minimum
    w = f.table + 4 * (f.deep // PLANE_INPUTS * bits * start + at)
    parts = f.parts + 4 * (part_words * blocks * start + at)
    table = floats(c.table, 1 << bits)
    for top in range(0, y.size, c.group):
        block, group = top // c.group // c.groups, top // c.group % c.groups
        place, d, m = blocks * start + block * lanes + at, f4(0), f4(0)
        if c.powers:
            d = floats(c.powers, BYTE_VALUES)[bytes_at(f.scale + place, 1)[0]]
        elif c.wide:
            d = floats(f.scale + 4 * place, 1)[0]
        elif c.centred:
            vector, lane = f.scale + 3 * (place - place % VECTOR), place % VECTOR
            d = widen(shorts(vector + 2 * lane, 1)[0])
            m = f4(bytes_at(vector + 2 * VECTOR + lane, 1)[0])
        else:
            held = shorts(f.scale + 2 * scales * place, scales)
            d = widen(held[0])
            if c.minimum:
                m = widen(held[1])
        if c.field:
            whole = group_integer(parts + across * part_words * block, across, c, group)
            d = d * f4((whole & (1 << c.scale_bits) - 1) - c.middle)
            m = m * f4(whole >> c.scale_bits)
        if c.centred:
            m = -(m * d)
        for j in range(top, min(top + c.group, y.size)):
            begin = w + across * bits * (j // PLANE_INPUTS)
            level = plane_entry(begin, across, 0, c.first, j % PLANE_INPUTS)
            if c.second:
                level = level + (plane_entry(begin, across, c.first, c.second, j % PLANE_INPUTS) << c.first)
            number = d * table[level] + m
            y[j] = number + (f4(0) if fresh else y[j])
