"""Queries of one row, in the heads that share keys and values, against pages of keys. Lanes are keys, so none is idle
even with few heads. A page of keys is transposed once for all heads. Every sum has the order defined in chunks.py."""

import numpy as np

from formats.kernels.attentions.attending import HIDDEN, LINE, carry
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import extended, floats, shorts
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.matmul.transposing import turn_in
from formats.kernels.simd.arithmetic import get, highest, keep, larger, sum_lanes
from formats.kernels.simd.maths import exp2
from formats.kernels.simd.vectors import (
    LANES,
    MANY_REGISTERS,
    VECTOR,
    Vectors,
    add_outer,
    closed,
    load_vector,
    pointer_at,
    put,
    store_tile,
    turned,
    zeros,
)
from formats.kernels.simd.words import SHORT, WORDS, words_of

PAGE = 16  # rows of a page
KEYS_AT_ONCE = 128  # keys that queries meet at once
ROW = 4 * KEYS_AT_ONCE  # bytes of scores of a head
TURNED_KEYS = 2 * PAGE  # keys that are transposed side by side
f4 = np.float32


@njit(**HELPER)
def score_heads(none, turned, keys, depth, s):
    """Compute the scores of as many heads as a tile has rows."""
    sums = none
    for _ in range(depth):
        sums = add_outer(sums, turned, 4, keys, None)
        turned += LINE
        keys += 4 * TURNED_KEYS
    store_tile(sums, s, ROW, None)


@njit(**HELPER)
def score_turned(turned, many, keys, depth, s):
    """Compute the scores of all heads against transposed keys; queries are transposed, too, with a line for each
    column."""
    head = 0
    if MANY_REGISTERS:
        while head + 8 <= many:
            score_heads(zeros(8, 2), turned + 4 * head, keys, depth, s + head * ROW)
            head += 8
        while head + 4 <= many:
            score_heads(zeros(4, 2), turned + 4 * head, keys, depth, s + head * ROW)
            head += 4
        if head + 3 == many:
            score_heads(zeros(3, 2), turned + 4 * head, keys, depth, s + head * ROW)
            head += 3
    while head + 2 <= many:
        score_heads(zeros(2, 2), turned + 4 * head, keys, depth, s + head * ROW)
        head += 2
    if head < many:
        score_heads(zeros(1, 2), turned + 4 * head, keys, depth, s + head * ROW)


@intrinsic
def turn_halves(typing, x, across, y, along):
    """y[j, i] = x[i, j] for a tile of 16 by 32 bfloat16, as float32 (addresses; bytes between rows)."""

    def code(context, builder, signature, values):
        x, across, y, along = values
        rows = [load_vector(builder, builder.add(x, builder.mul(across, across.type(i)))) for i in range(LANES)]
        for j, row in enumerate(turned(builder, rows)):  # a column of pairs
            pairs = builder.bitcast(row, WORDS)
            for half, wide in enumerate((builder.shl(pairs, words_of(16)), builder.and_(pairs, words_of(0xFFFF0000)))):
                at = builder.add(y, builder.mul(along, along.type(2 * j + half)))
                put(builder, builder.bitcast(wide, VECTOR), at)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code


@intrinsic
def widened(typing, address):
    """Load the 16 bfloat16 at an address, as float32."""

    def code(context, builder, signature, values):
        stored = builder.load(pointer_at(builder, values[0], 0, ir.VectorType(SHORT, LANES)))
        stored.align = 2
        return closed(builder, [builder.bitcast(builder.shl(builder.zext(stored, WORDS), words_of(16)), VECTOR)])

    return Vectors(1, 1)(types.int64), code


@njit(**HELPER)
def widen_rows(source, along, rows, first, columns, target, across):
    """Convert rows of bfloat16 to float32, from column `first` on; along and across: bytes between rows."""
    whole = first + (columns - first) // 16 * 16
    for i in range(rows):
        for j in range(first, whole, 16):
            keep(widened(source + i * along + 2 * j), target + i * across + 4 * j, None)
        given, kept = shorts(source + i * along, columns), floats(target + i * across, columns)
        for j in range(whole, columns):
            kept[j] = extended(given[j])


@njit(**HELPER)
def turn_page(halves, page, along, columns, keys, room):
    """Transpose the rows of a page into lanes, columns one after another."""
    if not halves:
        return turn_in(page, along, PAGE, columns, keys, TURNED_KEYS, columns)
    whole = columns // 32 * 32
    for j in range(0, whole, 32):
        turn_halves(page + 2 * j, along, keys + 4 * TURNED_KEYS * j, 4 * TURNED_KEYS)
    if whole < columns:
        widen_rows(page, along, PAGE, whole, columns, room, 4 * columns)
        turn_in(
            room + 4 * whole,
            4 * columns,
            PAGE,
            columns - whole,
            keys + 4 * TURNED_KEYS * whole,
            TURNED_KEYS,
            columns - whole,
        )


@njit(**HELPER)
def soften_heads(s, many, keys, tops, masses, fades, shares, fresh):
    """Run `softened` for `many` heads: scores become powers of two of their distance to each head's maximum so far.
    Lanes beyond the keys add nothing."""
    whole = (keys + PAGE - 1) // PAGE * PAGE
    found, top = floats(shares, many), floats(fades, many)
    for head in range(many):
        scores = floats(s + head * ROW, whole)
        for key in range(keys, whole):
            scores[key] = HIDDEN
        most = get(s + head * ROW, None)
        for at in range(64, 4 * whole, 64):
            most = larger(most, get(s + head * ROW + at, None))
        found[head] = highest(most)
    wide = (many + 15) // 16 * 64
    for g in range(0, wide, 64):
        keep(larger(get(tops + g, None), get(shares + g, None)), fades + g, None)
    for head in range(many):
        mass = f4(0)
        for at in range(s + head * ROW, s + head * ROW + 4 * whole, 64):
            e = exp2(get(at, None) - top[head])
            keep(e, at, None)
            mass += sum_lanes(e)
        found[head] = mass
    for g in range(0, wide, 64):
        carry(
            get(tops + g, None),
            get(fades + g, None),
            get(shares + g, None),
            tops + g,
            masses + g,
            fades + g,
            shares + g,
            fresh,
            False,
        )
