"""Products of narrow numbers by vectors: an item rounds its rows, and multiplies them by panel after panel with tiles
of sums (tiles.py)."""

import numpy as np

from formats.core.layout import PANEL
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import words
from formats.kernels.engine.memory import floats, record
from formats.kernels.engine.native import njit
from formats.kernels.matmul.hadamard import mix_row
from formats.kernels.matmul.linear import LINEAR, tile
from formats.kernels.matmul.rounding import ONE, round_bytes, round_halves
from formats.kernels.matmul.tiles import TALLEST_TILE, grouped_eights, grouped_fours, vector_fours, vector_pairs
from formats.kernels.rows.following import finish_rows, finish_sums, move_block, pointwise_sums, sums_at
from formats.kernels.simd.arithmetic import get, keep, negative
from formats.kernels.simd.vectors import zeros

# depth: numbers of a column of W, in whole steps of 64 bytes; group: inputs that share a scale; groups: their number;
# span: bytes of a converted row; factors: of balanced inputs, 0 if there are none
NARROW = np.dtype(words("w scale depth group groups span factors"))
BAND = 4 * TALLEST_TILE  # rows that meet a panel one after another, while it is in cache


@njit(**HELPER)
def lift_rows(block, rows, lifts):
    """Multiply rows of sums by the factors that their scales leave out (see LIFT)."""
    for i in range(rows):
        lift, row = floats(lifts + 4 * i, 1)[0], floats(block + 4 * PANEL * i, PANEL)
        for j in range(PANEL if lift != ONE else 0):
            row[j] *= lift


@njit(**HELPER)
def unscaled(how, start, columns, edge):
    """Replace scales_at for bfloat16, which has no scales: return `how` as it is."""
    return how


@njit(**HELPER)
def scales_at(how, start, columns, edge):
    """Return `how` (see by_bands) for the panel that begins at a column; if the panel ends within a vector, scales are
    copied to the edge."""
    less, factors, scales, pitch, groups, group = how
    scales += 4 * start
    if columns % 16 == 0:
        return less, factors, scales, pitch, groups, group
    for g in range(groups):
        for j in range(0, columns, 16):
            keep(get(scales + g * pitch + 4 * j, min(16, columns - j)), edge + 4 * (g * PANEL + j), None)
    return less, factors, edge, 4 * PANEL, groups, group


@njit(forceinline=True, **HELPER)
def by_panels(multiply, scaled, c, w, item, x, size, words, how, far, lifts, block, edge):
    """Multiply rounded rows at x by panel after panel of `size` bytes a column, `words` deep. Sums go to the output,
    with bias and residual added on the way; by way of a block if they have lifts, or if the panel ends within a
    vector."""
    low, high, left, right = tile(c, item)
    most, simple, nothing = high - low, pointwise_sums(c.after), block + 4 * BAND * PANEL
    for j in range(0, 4 * PANEL, 64):
        keep(negative(zeros(1, 1)), nothing + j, None)  # x + -0 is x, whatever x is
    for start in range(left, right, PANEL):
        columns = min(PANEL, c.p - start)
        stored, here, aside = (columns + 15) // 16 * 16, scaled(how, start, columns, edge), far or columns % 16 > 0
        after = sums_at(0 if aside else c.after, low, start, nothing, simple)
        for i in range(0, most, BAND):
            rows, out = min(BAND, most - i), c.out + 4 * (low * c.step + start)
            to, step = (block - 4 * PANEL * i, 4 * PANEL) if aside else (out, 4 * c.step)
            multiply(i, i + rows, stored, x, w.span, w.w + size * start, 64, 16 * size, words, to, step, after, here)
            if far:
                lift_rows(block, rows, lifts + 4 * i)
            if aside:
                move_block(
                    c.after,
                    low + i,
                    low + i + rows,
                    start,
                    start + columns,
                    block,
                    4 * PANEL,
                    out + 4 * i * c.step,
                    4 * c.step,
                )
            elif not simple:
                finish_sums(c.after, low + i, low + i + rows, start, start + columns, 1)
    if right - left == c.p:
        finish_rows(c.after, low, high)


@Kernel
def halves(item, worker, arguments):
    """Multiply by bfloat16, with vectors."""
    c = record(arguments, LINEAR)
    w = record(c.w, NARROW)
    low, high, _, _ = tile(c, item)
    block = c.room + worker * c.apart
    x = block + 4 * (BAND + 1) * PANEL
    for i in range(high - low):
        round_halves(c.x + 4 * (low + i) * c.along, c.n, x + i * w.span, w.depth, 64)
    by_panels(vector_pairs, unscaled, c, w, item, x, 2 * w.depth, w.depth // 2, (0, 0, 0, 0, 1, 0), False, 0, block, 0)


@njit(forceinline=True, **HELPER)
def balanced(c, row, depth, factors, aside):
    """Return the address of a row of x, and its count of numbers. If inputs have factors, the balanced row is computed
    at `aside`."""
    at = c.x + 4 * row * c.along
    if not factors:
        return at, c.n
    mix_row(at, c.n, factors, aside, depth)
    return aside, depth


@njit(forceinline=True, **HELPER)
def round_rows(c, w, low, rows, x, scales, lifts, totals, middle, beside, factors, aside):
    """Round the rows of an item to bytes at x, `beside` rows next to each other in pieces of 64 bytes; store their
    scales and lifts (see LIFT), and the sum of each group, times middle. True if any row is lifted. factors, aside: see
    `balanced`."""
    far = False
    for i in range(rows):
        to = x + i // beside * beside * w.span + i % beside * 64
        at, n = balanced(c, low + i, w.depth, factors, aside)
        scale, lift = round_bytes(at, n, to, w.depth, 64 * beside, w.group, w.groups, totals + 4 * i * w.groups, middle)
        floats(scales + 4 * i, 1)[0], floats(lifts + 4 * i, 1)[0] = scale, lift
        far |= lift != ONE
    return far


@njit(forceinline=True, **HELPER)
def bytes_by_vectors(whole, grouped, per, middle, item, worker, arguments):
    """Compute an item of bytes, or of halves of them, of which `per` are stored in a word; middle was added to W."""
    c = record(arguments, LINEAR)
    w = record(c.w, NARROW)
    low, high, _, _ = tile(c, item)
    rows, groups = high - low, w.groups
    block = c.room + worker * c.apart
    edge = block + 4 * (BAND + 1) * PANEL
    x = edge + 4 * PANEL * groups
    scales = x + rows * w.span
    lifts = scales + 4 * rows
    totals = lifts + 4 * rows
    aside = totals + 4 * rows * groups
    far = round_rows(c, w, low, rows, x, scales, lifts, totals, middle, 1, w.factors, aside)
    how, size = (totals, scales, w.scale, 4 * c.p, groups, w.group // 4), w.depth * 4 // per
    words = (c.n + 3) // 4 if per == 4 and not w.factors else w.depth // 4  # the padding of x is zero
    if groups == 1:
        by_panels(whole, scales_at, c, w, item, x, size, words, how, far, lifts, block, edge)
    else:
        by_panels(grouped, scales_at, c, w, item, x, size, words, how, far, lifts, block, edge)


@Kernel
def quantised(item, worker, arguments):
    """Multiply by bytes, with vectors."""
    bytes_by_vectors(vector_fours, grouped_fours, 4, 128, item, worker, arguments)


@Kernel.of(3, rare=True)
def nibbled(item, worker, arguments):
    """Multiply by halves of bytes, with vectors."""
    bytes_by_vectors(grouped_eights, grouped_eights, 8, 8, item, worker, arguments)
