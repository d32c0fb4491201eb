"""Attention in bfloat16, with the layout of attending.py: q, k, v and the weights of values are rounded, sums are
float32.

A word of 32 bits holds two neighbours along the contracted axis: two numbers of a head for scores, two keys for values.
Both products have queries as columns, so they are transposed when they are stored."""

import numpy as np
from numpy.typing import ArrayLike

from formats.kernels.attentions.attending import (
    ATTEND,
    LINE,
    LOWEST,
    QUERIES,
    carry,
    cut_units,
    first_unit,
    hide,
    highest_lines,
    run_attention,
)
from formats.kernels.attentions.biased import LOG2_E, add_lines, lay_lines
from formats.kernels.attentions.heads import EVERY, KEYS, Layout, Reach, blank, check_heads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.memory import floats, longs, record
from formats.kernels.engine.native import intrinsic, ir, njit
from formats.kernels.matmul.rounding import as_words, keep_halves, kept_finite
from formats.kernels.matmul.tiles import attended_pairs
from formats.kernels.matmul.transposing import turn_in, turn_out
from formats.kernels.simd.amx import MATRIX, multiply_tiles, release_registers, shape_registers
from formats.kernels.simd.arithmetic import VECTOR16, get, keep
from formats.kernels.simd.maths import ONE, nearest_power
from formats.kernels.simd.vectors import VECTOR, closed, turn, zeros
from formats.kernels.simd.words import words_of
from formats.storage.bf16 import BF16_OVERFLOW, nearest, widen_bits

f4 = np.float32
# (2^r - 1) / r on |r| <= 1 / 2 to 2^-13; bfloat16 keeps only 2^-9
C1, C2, C3 = (f4(c) for c in (6.932829022e-1, 2.422109693e-1, 5.500905588e-2))


@intrinsic
def paired(typing, low, high):
    """Round two vectors to bfloat16, to nearest, ties away from 0: one in the low halves of words, one in the high
    halves."""

    def code(context, builder, signature, values):
        low, high = (
            builder.add(as_words(builder, builder.extract_value(value, 0)), words_of(0x8000)) for value in values
        )
        word: ir.Value = builder.or_(builder.lshr(low, words_of(16)), builder.and_(high, words_of(0xFFFF0000)))
        return closed(builder, [builder.bitcast(word, VECTOR)])

    return VECTOR16(VECTOR16, VECTOR16), code


@njit(forceinline=True, **HELPER)
def exp2_nearly(x):
    """Return 2^x for x <= 126, with relative error 2^-13; 0 below -100, as exp2."""
    power, r = nearest_power(x)
    return (((r * C3 + C2) * r + C1) * r + ONE) * power


@njit(**HELPER)
def round_rows(x, along, rows, n, factor, target, span):
    """Store rows of n float32 at x, times a factor, as bfloat16; zeros up to span bytes."""
    for i in range(rows):
        at, to = x + i * along, target + i * span
        for k in range(0, n // 16 * 16, 16):
            keep_halves(get(at + 4 * k, None) * factor, to + 2 * k)
        for k in range(n // 16 * 16, span // 2, 16):
            keep_halves(get(at + 4 * k, n - k) * factor, to + 2 * k)


@njit(**HELPER)
def turn_values(v, along, keys, e, target, span, room):
    """target (e, keys) = v (keys, e) transposed, as bfloat16; zeros up to a multiple of 32 keys. room: 16 lines of e
    numbers, rounded up to 64 bytes."""
    across = (e + 15) // 16 * 64
    for key in range(0, keys, 32):
        for j in range(16):
            at = v + (key + 2 * j) * along
            for k in range(0, e, 16):
                low = get(at + 4 * k, e - k if key + 2 * j < keys else 0)
                high = get(at + along + 4 * k, e - k if key + 2 * j + 1 < keys else 0)
                keep(paired(kept_finite(low), kept_finite(high)), room + j * across + 4 * k, None)
        for k in range(0, e, 16):
            turn(room + 4 * k, across, target + k * span + 2 * key, span)


@njit(**HELPER)
def softened_pairs(s, keys, tops, masses, fades, shares, first, last):
    """Run `softened` of attending.py, but store the weights of two keys as the words of one line; zeros up to 16
    lines."""
    old = get(tops, None)
    top = highest_lines(s, keys, old)
    mass = zeros(1, 1)
    for j in range(keys // 2):
        low, high = exp2_nearly(get(s + 2 * j * LINE, None) - top), exp2_nearly(get(s + (2 * j + 1) * LINE, None) - top)
        keep(paired(low, high), s + j * LINE, None)
        mass = mass + (low + high)
    if keys % 2:
        low = exp2_nearly(get(s + (keys - 1) * LINE, None) - top)
        keep(paired(low, zeros(1, 1)), s + keys // 2 * LINE, None)
        mass = mass + low
    for j in range((keys + 1) // 2, (keys + 31) // 32 * 16):
        keep(zeros(1, 1), s + j * LINE, None)
    carry(old, top, mass, tops, masses, fades, shares, first, last)


@njit(**HELPER)
def add_faded(sums, more, lines, wide, fades):
    """Multiply `lines` lines of sums by fades, and add `more`."""
    for at in range(0, lines * LINE, LINE):
        for g in range(0, 4 * wide, 64):
            keep(get(sums + at + g, None) * get(fades + g, None) + get(more + at + g, None), sums + at + g, None)


@njit(**HELPER)
def share_out(sums, lines, wide, shares):
    """Multiply `lines` lines of sums by shares."""
    for at in range(sums, sums + lines * LINE, LINE):
        for g in range(0, 4 * wide, 64):
            keep(get(at + g, None) * get(shares + g, None), at + g, None)


# forceinline: a function called through an argument could otherwise not be cached on disk


@njit(forceinline=True, **HELPER)
def unit_of_halves(product, c, room, start, length, head, low, rows, k, span, v, apart):
    """Attend with some queries of a head of the sequence at `start`, from its row `low` on; k and v are bfloat16, with
    rows of span and apart bytes."""
    wide, lines = (rows + 15) // 16 * 16, (c.e + 15) // 16 * 16
    q, o = (
        c.q + 4 * ((start + low) * c.q_row + head // c.q_of * c.q_head),
        c.o + 4 * ((start + low) * c.o_row + head * c.o_head),
    )
    tops, masses, fades, shares, turned = room, room + LINE, room + 2 * LINE, room + 3 * LINE, room + 4 * LINE
    sums = turned + span // 4 * LINE
    more = sums + lines * LINE
    s = more + lines * LINE
    first, last = max(0, low - c.behind) // 32 * 32, min(length, low + rows + c.ahead)
    if first >= last:
        for i in range(rows):
            blank(floats(o + 4 * i * c.o_row, c.e), c.e, c.e, c.e)
        return
    round_rows(q, 4 * c.q_row, rows, c.d, f4(c.scale), s, span)
    turn_in(s, span, rows, span // 4, turned, QUERIES, span // 4)
    for g in range(0, 4 * wide, 64):
        keep(zeros(1, 1) + LOWEST, tops + g, None)
        keep(zeros(1, 1) + ONE, shares + g, None)
    for key in range(first, last, c.tile):
        keys = min(c.tile, last - key)
        product(keys, wide, k + key * span, span, turned, LINE, span // 4, s, LINE)
        # the strip's offset counts from the worker's room, which begins 64 bytes before `room`
        bias = lay_lines(c, head, low, key, keys, wide, ONE, room - 64 + c.strip)
        if bias:
            add_lines(s, LINE, keys, wide, bias)
        hide(c, s, low, key, keys, rows)
        for g in range(0, 4 * wide, 64):
            softened_pairs(s + g, keys, tops + g, masses + g, fades + g, shares + g, key == first, key + keys == last)
        to = sums if key == first else more
        product(lines, wide, v + 2 * key, apart, s, LINE, (keys + 31) // 32 * 16, to, LINE)
        if key > first:
            add_faded(sums, more, lines, wide, fades)
    share_out(sums, lines, wide, shares)
    turn_out(sums, QUERIES, c.e, o, 4 * c.o_row, rows)


@njit(forceinline=True, **HELPER)
def halves_of(product, shape, release, item, worker, arguments):
    """Attend with the units of an item; keys and values of a head are rounded and transposed once."""
    c = record(arguments, ATTEND)
    starts, before, room = longs(c.starts, c.S + 1), longs(c.before, c.S + 1), c.room + worker * c.apart
    span, lines, most = (c.d + 31) // 32 * 64, (c.e + 15) // 16 * 16, (starts[c.S] + 31) // 32 * 32
    k = room + 64 + LINE * (4 + span // 4 + 2 * lines + max(c.tile + 32, span // 4 + 1))
    v, aside = k + most * span, room + 64 + LINE * (4 + span // 4 + lines)
    shape(room)
    s, begin = first_unit(c, starts, before, item)
    end, stop = first_unit(c, starts, before, item + 1)
    while s < end or begin < stop:
        length = starts[s + 1] - starts[s]
        (tiles, each), apart = cut_units(length, 0), (length + 31) // 32 * 64
        for at in range(begin, tiles * c.h if s < end else stop):
            head, query = at // tiles, at % tiles * each
            if at == begin or query == 0:
                found = c.k + 4 * (starts[s] * c.k_row + head // c.k_of * c.k_head)
                round_rows(found, 4 * c.k_row, length, c.d, ONE, k, span)
                found = c.v + 4 * (starts[s] * c.v_row + head // c.v_of * c.v_head)
                turn_values(found, 4 * c.v_row, length, c.e, v, apart, aside)
            unit_of_halves(
                product, c, room + 64, starts[s], length, head, query, min(each, length - query), k, span, v, apart
            )
        s, begin = s + 1, 0
        if s > end:
            break
    release()


@njit(**HELPER)
def by_vectors(rows, columns, x, along, w, apart, words, y, step):
    """Compute the sums at y (rows, columns) of words of x against words of w."""
    attended_pairs(0, rows, columns, x, along, w, apart, 64, words, y, step, (0, 0, 0), (0, 0, 0, 0, 1, 0))


@njit(**HELPER)
def no_shape(at):
    """Replace shape_registers for kernels that use vectors: no effect."""


@njit(**HELPER)
def no_release():
    """Replace release_registers for kernels that use vectors: no effect."""


@Kernel.of(3, rare=True)
def attend_halves(item, worker, arguments):
    """Attention in bfloat16, by vectors."""
    halves_of(by_vectors, no_shape, no_release, item, worker, arguments)


attend_halves_matrix = attend_halves
if MATRIX:  # other processors cannot compile these
    both, left, upper, corner = (multiply_tiles("tdpbf16ps", rows, across) for rows in (2, 1) for across in (2, 1))

    @njit(**HELPER)
    def by_registers(rows, columns, x, along, w, apart, words, y, step):
        """Compute `by_vectors` with matrix registers, 16 or 32 rows at a time: whole registers of x are read, and of
        sums written."""
        steps = words // 16
        for row in range(0, rows, 32):
            at, to, two = x + row * along, y + row * step, rows - row > 16
            for v in range(0, 4 * columns - 64, 128):
                if two:
                    both(at, along, 16 * along, 64, w + v, apart, 64, steps, to + v, step, 0, 0)
                else:
                    upper(at, along, 16 * along, 64, w + v, apart, 64, steps, to + v, step, 0, 0)
            if columns % 32:
                v = 4 * columns - 64
                if two:
                    left(at, along, 16 * along, 64, w + v, apart, 64, steps, to + v, step, 0, 0)
                else:
                    corner(at, along, 16 * along, 64, w + v, apart, 64, steps, to + v, step, 0, 0)

    @Kernel.of(3, rare=True)
    def attend_halves_matrix(item, worker, arguments):
        """Attention in bfloat16, by matrix registers."""
        halves_of(by_registers, shape_registers, release_registers, item, worker, arguments)


__all__ = ["attention_halves"]
__borders__ = (QUERIES,)


def attention_halves(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    scale: float = 1.0,
    reach: Reach = EVERY,
    tile: int = KEYS,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """Compute `attention` with q (times scale), k, v and the weights of values rounded to bfloat16; sums are float32.
    tile is rounded up to a multiple of 32."""
    check_heads(out, q=q, k=k, v=v)
    (T, _, d), e = q.shape, v.shape[2]
    span, lines, tile = -(-d // 32) * 64, -(-e // 16) * 16, -(-min(tile, max(KEYS, T)) // 32) * 32
    room = (
        64 + LINE * (4 + span // 4 + 2 * lines + max(tile + 32, span // 4 + 1)) + -(-T // 32) * 32 * (span + 2 * lines)
    )
    return run_attention(attend_halves_matrix, q, k, v, starts, out, scale, reach, tile, room, bias=bias)


def operands(q: ArrayLike, k: ArrayLike, v: ArrayLike, scale: float) -> tuple[np.ndarray, ...]:
    """Return (q times the scale, k, v) in float64 as `attention_halves` rounds them: q times its factor of powers of
    two, and k, with ties to even (round_rows); v with ties away from 0 (turn_values)."""
    q, k, v = (np.ascontiguousarray(array, f4) for array in (q, k, v))
    bits = v.view(np.uint32)
    bits = np.where(
        abs(v).view(np.uint32) < BF16_OVERFLOW, bits + np.uint32(0x8000), bits | np.isnan(v) * np.uint32(1 << 22)
    )
    away = (bits & np.uint32(0xFFFF0000)).view(f4)
    powers = widen_bits(nearest(q * f4(scale * LOG2_E)))
    return powers.astype(np.float64) / LOG2_E, widen_bits(nearest(k)).astype(np.float64), away.astype(np.float64)
