"""Products of narrow numbers by matrix registers: an item rounds its rows into pieces of the registers' layout, and
keeps the sums of a band of rows in scratch, from where they pass through the epilogue."""

import numpy as np

from formats.core.layout import PANEL
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.memory import bytes_at, floats, ints_at, record
from formats.kernels.engine.native import njit
from formats.kernels.matmul.linear import LINEAR, tile
from formats.kernels.matmul.narrow_vectors import NARROW, balanced, halves, lift_rows, nibbled, quantised
from formats.kernels.matmul.rounding import ONE, round_bytes, round_halves
from formats.kernels.rows.following import finish_rows, move_block
from formats.kernels.simd.amx import MATRIX, matrix_fours, matrix_pairs, release_registers, shape_registers
from formats.kernels.simd.arithmetic import get, keep
from formats.kernels.simd.words import as_numbers

BAND = 32  # rows of two registers, whose sums are in scratch
f4 = np.float32


@njit(forceinline=True, **HELPER)
def settle(found, less, factor, scale, to, fresh, lanes):
    """Convert a vector of integer sums: minus the added total, times the scales of its row and of its columns."""
    number = as_numbers(get(found, None), less) * (get(scale, lanes) * factor)
    keep(number if fresh else number + get(to, lanes), to, None)


@njit(forceinline=True, **HELPER)
def settle_rows(sums, rows, columns, totals, groups, g, scales, scale, to):
    """Convert the integer sums of a group to float32, and add them to those of the groups before; `to` may be sums if
    there is one group."""
    full = columns // 16 * 16
    for i in range(rows):
        less, factor = ints_at(totals + 4 * (i * groups + g), 1)[0], floats(scales + 4 * i, 1)[0]
        found, kept = sums + 4 * PANEL * i, to + 4 * PANEL * i
        for j in range(0, full, 16):
            settle(found + 4 * j, less, factor, scale + 4 * j, kept + 4 * j, g == 0, None)
        if full < columns:
            settle(found + 4 * full, less, factor, scale + 4 * full, kept + 4 * full, g == 0, columns - full)


@njit(**HELPER)
def spread_nibbles(w, count, target):
    """Convert halves of bytes to bytes: `count` lines of 64 at w, each of two words of depth, become twice as many."""
    for k in range(count):
        source, low, high = (
            bytes_at(w + 64 * k, 64),
            bytes_at(target + 128 * k, 64),
            bytes_at(target + 128 * k + 64, 64),
        )
        for i in range(64):
            low[i] = source[i] & 15
            high[i] = source[i] >> 4


@njit(forceinline=True, **HELPER)
def row_of(x, i, span):
    """Return the address of a rounded row: rows are stored 16 at a time in pieces of 64 bytes, as registers take
    them."""
    return x + i // 16 * 16 * span + i % 16 * 64


@njit(**HELPER)
def following(panel, size, rows, more):
    """Return the address of the next panel, and how many of its lines a band prefetches."""
    bands = (rows + BAND - 1) // BAND
    return panel + size, (size // 64 + bands - 1) // bands if more else 0


# ---- kernels


halves_matrix, quantised_matrix, nibbled_matrix = halves, quantised, nibbled
if MATRIX:  # other processors cannot compile these

    @Kernel
    def halves_matrix(item, worker, arguments):
        """Multiply by bfloat16, with matrix registers."""
        c = record(arguments, LINEAR)
        w = record(c.w, NARROW)
        low, high, left, right = tile(c, item)
        x = c.room + worker * c.apart
        sums = x + (high - low + BAND - 1) // BAND * BAND * w.span  # registers take whole bands of rows
        shape_registers(sums + 4 * BAND * PANEL)
        for i in range(high - low):
            round_halves(c.x + 4 * (low + i) * c.along, c.n, row_of(x, i, w.span), w.depth, 1024)
        for start in range(left, right, PANEL):
            columns = min(PANEL, c.p - start)
            stored, panel = (columns + 15) // 16 * 16, w.w + 2 * w.depth * start
            ahead, lines = following(panel, 2 * w.depth * stored, high - low, start + PANEL < right)
            for i in range(0, high - low, BAND):
                rows, out = min(BAND, high - low - i), c.out + 4 * ((low + i) * c.step + start)
                matrix_pairs(
                    rows,
                    stored,
                    x + i * w.span,
                    w.span,
                    panel,
                    64,
                    32 * w.depth,
                    w.depth // 2,
                    sums,
                    4 * PANEL,
                    ahead + 2 * i * lines,
                    lines,
                )
                move_block(c.after, low + i, low + i + rows, start, start + columns, sums, 4 * PANEL, out, 4 * c.step)
        release_registers()
        if right - left == c.p:
            finish_rows(c.after, low, high)

    @njit(forceinline=True, **HELPER)
    def bytes_by(middle, per, spread, item, worker, arguments):
        """Compute an item of bytes, or of halves of them (two words of depth in a vector), which are spread to bytes;
        middle was added to W, per numbers of a column are stored in a word."""
        c = record(arguments, LINEAR)
        w = record(c.w, NARROW)
        low, high, left, right = tile(c, item)
        groups = w.groups
        x = c.room + worker * c.apart
        sums = x + (high - low + BAND - 1) // BAND * BAND * w.span  # registers take whole bands of rows
        scales = sums + 4 * BAND * PANEL + 64
        lifts, far = scales + 4 * (high - low), False
        totals = lifts + 4 * (high - low)
        aside = totals + 4 * (high - low) * groups
        wide = aside + (4 * w.depth if w.factors else 0) + 64
        wide -= wide % 64
        block = sums if groups == 1 else wide + PANEL * w.depth  # the sums over groups
        shape_registers(sums + 4 * BAND * PANEL)
        for i in range(high - low):
            at, n = balanced(c, low + i, w.depth, w.factors, aside)
            scale, lift = round_bytes(
                at, n, row_of(x, i, w.span), w.depth, 1024, w.group, groups, totals + 4 * i * groups, middle
            )
            floats(scales + 4 * i, 1)[0], floats(lifts + 4 * i, 1)[0] = scale, lift
            far |= lift != ONE
        for start in range(left, right, PANEL):
            columns = min(PANEL, c.p - start)
            stored, panel, packed = (columns + 15) // 16 * 16, w.w + w.depth * start * 4 // per, 4 if spread else per
            ahead, lines = following(panel, w.depth * stored * 4 // per, high - low, start + PANEL < right)
            if spread:
                spread_nibbles(panel, w.depth * stored // 128, wide)
                panel = wide
            for i in range(0, high - low, BAND):
                rows, out = min(BAND, high - low - i), c.out + 4 * ((low + i) * c.step + start)
                for g in range(groups):
                    length = min(w.group, w.depth - g * w.group)
                    matrix_fours(
                        rows,
                        stored,
                        x + i * w.span + g * w.group * 16,
                        w.span,
                        panel + g * w.group * 64 // packed,
                        64,
                        w.depth * 64 // packed,
                        length // 4,
                        sums,
                        4 * PANEL,
                        ahead + 2 * i * lines,
                        lines if g == 0 else 0,
                    )
                    settle_rows(
                        sums,
                        rows,
                        columns,
                        totals + 4 * i * groups,
                        groups,
                        g,
                        scales + 4 * i,
                        w.scale + 4 * (g * c.p + start),
                        block,
                    )
                if far:
                    lift_rows(block, rows, lifts + 4 * i)
                move_block(c.after, low + i, low + i + rows, start, start + columns, block, 4 * PANEL, out, 4 * c.step)
        release_registers()
        if right - left == c.p:
            finish_rows(c.after, low, high)

    @Kernel
    def quantised_matrix(item, worker, arguments):
        """Multiply by bytes, with matrix registers."""
        bytes_by(128, 4, False, item, worker, arguments)

    @Kernel.of(3, rare=True)
    def nibbled_matrix(item, worker, arguments):
        """Multiply by halves of bytes, spread to bytes, with matrix registers."""
        bytes_by(8, 8, True, item, worker, arguments)
