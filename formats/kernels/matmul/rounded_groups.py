"""x @ W for W in words of blocks (widened_words.py), where each 32 numbers of a row of x are rounded to bytes with a
scale of their own, as ggml rounds them: products of a group are sums of integers, four at a time (words.py).

Levels d q + m of a group give d (x q) + m (x 1): the factor of m is computed when x is rounded. A sum is one chain
along the groups in any tile, so its bits do not depend on the tile. On processors with AVX2 only, products of the
levels of a group are added up in 16 bits, which they just fit, and bytes meet numbers of x that are stored in 16 bits
each."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from formats.core.epilogue import Epilogue
from formats.core.layout import PANEL
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch
from formats.kernels.engine.memory import floats, ints_at, record
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.linear import ENOUGH, LINEAR, MAX_ITEM_ROWS, linear_stages, split_work, tile, typed
from formats.kernels.matmul.q4_1_levels import LEVELS
from formats.kernels.matmul.q8_0_bytes import BYTES
from formats.kernels.matmul.rounding import FINITE, LIFT_BELOW, keep_bytes, larger_magnitude, largest_magnitude
from formats.kernels.matmul.widened_words import WORDED, GroupPlace, WordedArrays, Wording, ask_ahead, check_words
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.kernels.simd.arithmetic import get
from formats.kernels.simd.vectors import (
    FEATURES,
    FLOAT,
    LANE,
    LANES,
    MANY_REGISTERS,
    VECTOR,
    closed,
    llvm_function,
    load_vector,
    multiply_add,
    pointer_at,
    splat,
    store_tile,
    zeros,
)
from formats.kernels.simd.words import BYTE, FOURS, SHORT, WORDS, add_fours, everywhere, nibbles, words_of
from formats.storage.q4_1 import GROUP_INPUTS

__all__ = ["product_rounded_bytes", "product_rounded_levels"]

TWO_GROUPS = 2 * GROUP_INPUTS  # numbers of x that are rounded at a time
PAIRED = "+avx2" in FEATURES and not FOURS  # two numbers are multiplied and added at a time
WIDE_PAIRS = "+avx512bw" in FEATURES  # the same in vectors of 512 bits
__borders__ = ENOUGH, MAX_ITEM_ROWS, 2, 3, 6  # the last three: rows of tiles
f4 = np.float32
SHORTS = ir.VectorType(SHORT, 2 * LANES)
SHARE = f4(64)  # a group may add up to 32 times the largest float32


@intrinsic
def sum_of_group(typing, address):
    """Return the sum of 32 signed bytes."""

    def code(context, builder, signature, values):
        wide = ir.VectorType(LANE, GROUP_INPUTS)
        stored = builder.load(pointer_at(builder, values[0], 0, ir.VectorType(BYTE, GROUP_INPUTS)))
        stored.align = 1
        found = builder.sext(stored, wide)
        for distance in (16, 8, 4, 2, 1):
            order = ir.Constant(ir.VectorType(LANE, GROUP_INPUTS), [i ^ distance for i in range(GROUP_INPUTS)])
            found = builder.add(found, builder.shuffle_vector(found, found, order))
        return builder.extract_element(found, LANE(0))

    return types.int32(types.int64), code


@intrinsic
def deal_bytes(typing, address):
    """Reorder 64 bytes, of every 8 those of even place first: in the order of the low and high halves of a word's
    bytes."""

    def code(context, builder, signature, values):
        kind = ir.VectorType(BYTE, TWO_GROUPS)
        at = pointer_at(builder, values[0], 0, kind)
        stored = builder.load(at)
        stored.align = 1
        order = [8 * (i // 8) + 2 * (i % 4) + i % 8 // 4 for i in range(TWO_GROUPS)]
        dealt = builder.shuffle_vector(stored, stored, ir.Constant(ir.VectorType(LANE, TWO_GROUPS), order))
        builder.store(dealt, at).align = 1
        return context.get_dummy_value()

    return types.void(types.int64), code


@intrinsic
def spread_bytes(typing, address):
    """Extend 64 signed bytes to 16 bits each, in the room of 128 bytes: of every four the first and third, then the
    others, in the order of the halves of a word's bytes."""

    def code(context, builder, signature, values):
        stored = builder.load(pointer_at(builder, values[0], 0, ir.VectorType(BYTE, TWO_GROUPS)))
        stored.align = 1
        order = [4 * (i // 4) + (0, 2, 1, 3)[i % 4] for i in range(TWO_GROUPS)]
        dealt = builder.shuffle_vector(stored, stored, ir.Constant(ir.VectorType(LANE, TWO_GROUPS), order))
        kind = ir.VectorType(SHORT, TWO_GROUPS)
        builder.store(builder.sext(dealt, kind), pointer_at(builder, values[0], 0, kind)).align = 1
        return context.get_dummy_value()

    return types.void(types.int64), code


@njit(**HELPER)
def steps_of(largest):
    """Return the factor and the scale of a group with this largest magnitude: (0, NaN) if a number is not finite, (0,
    0) if the scale would be no normal float32."""
    if not largest <= FINITE:
        return f4(0), f4(np.nan)
    return (f4(127) / largest, largest / f4(127)) if largest >= LIFT_BELOW else (f4(0), f4(0))


@njit(**HELPER)
def round_groups(x, n, groups, target, scales, totals, dealt, wide, shifted, middle):
    """Round n float32 at x to integers up to 127, of `wide` bytes each, with zeros up to whole steps. Store the scales
    of the groups, and the sum of the integers of each group: if shifted, as float32 times a share of the scale, else as
    int32 times middle."""
    scale, shift, whole = floats(scales, groups), floats(totals, groups), ints_at(totals, groups)
    for k in range(0, n, TWO_GROUPS):
        at, left, to, g = x + 4 * k, n - k, target + wide * k, k // GROUP_INPUTS
        if left >= TWO_GROUPS:
            a, b, c, d = get(at, None), get(at + 64, None), get(at + 128, None), get(at + 192, None)
        else:
            a, b, c, d = get(at, left), get(at + 64, left - 16), get(at + 128, left - 32), get(at + 192, left - 48)
        first, low = steps_of(largest_magnitude(larger_magnitude(larger_magnitude(zeros(1, 1), a), b)))
        second, high = steps_of(largest_magnitude(larger_magnitude(larger_magnitude(zeros(1, 1), c), d)))
        keep_bytes(a * first, b * first, c * second, d * second, to)
        for h in range(g, min(g + 2, groups)):
            scale[h] = low if h == g else high
            total = sum_of_group(to + GROUP_INPUTS * (h - g))
            if shifted:
                shift[h] = scale[h] * (f4(total) / SHARE)
            else:
                whole[h] = np.int32(middle * total)
        if wide > 1:
            spread_bytes(to)
        elif dealt:
            deal_bytes(to)


def by_widest(builder, wide, narrow, result, *vectors):
    """Run an instruction on vectors of 512 bits, or if there is none the one of 256 bits on their halves."""
    if WIDE_PAIRS:
        whole = ir.VectorType(result.element, 2 * result.count)
        function = llvm_function(builder, f"llvm.x86.avx512.{wide}.512", whole, *(part.type for part in vectors))
        return builder.call(function, vectors)
    results = []
    for half in range(2):
        parts = []
        for vector in vectors:
            count = vector.type.count // 2
            lanes = ir.Constant(ir.VectorType(LANE, count), [*range(half * count, half * count + count)])
            parts.append(builder.shuffle_vector(vector, vector, lanes))
        function = llvm_function(builder, f"llvm.x86.avx2.{narrow}", result, *(part.type for part in parts))
        results.append(builder.call(function, parts))
    lanes = ir.Constant(ir.VectorType(LANE, 2 * result.count), [*range(2 * result.count)])
    return builder.shuffle_vector(*results, lanes)


def times_levels(builder, x, w):
    """Multiply pairs of bytes of x by levels w, and add them up as 16 bits: the total of a group is at most 8 times 2
    times 15 times 127, which just fits."""
    kind = ir.VectorType(BYTE, TWO_GROUPS)
    return by_widest(
        builder,
        "pmaddubs.w",
        "pmadd.ub.sw",
        ir.VectorType(SHORT, LANES),
        builder.bitcast(w, kind),
        builder.bitcast(x, kind),
    )


def times_pairs(builder, x, w):
    """Multiply pairs of signed 16-bit numbers, and add them up as 32 bits."""
    return by_widest(
        builder,
        "pmaddw.d",
        "pmadd.wd",
        ir.VectorType(LANE, LANES // 2),
        builder.bitcast(x, SHORTS),
        builder.bitcast(w, SHORTS),
    )


def adding(kind, times):
    """Return a function that adds products of x and w to a total, whose bits are integers of this kind."""

    def add(builder, total, x, w):
        return builder.bitcast(builder.add(builder.bitcast(total, kind), times(builder, x, w)), VECTOR)

    return add


def join_pairs(builder, total):
    """Add sums of 16 bits, two by two."""
    ones = ir.Constant(SHORTS, [1] * 2 * LANES)
    return times_pairs(builder, ones, total)


def keep_words(builder, total):
    """Return sums that are words already."""
    return builder.bitcast(total, WORDS)


def split_bytes(builder, words):
    """Return the bytes of even place, and those of odd place, as 16 bits."""
    pairs = builder.bitcast(words, SHORTS)
    eight = ir.Constant(SHORTS, [8] * 2 * LANES)
    return builder.and_(words, words_of(0x00FF00FF)), builder.bitcast(builder.lshr(pairs, eight), WORDS)


class Rounded(NamedTuple):
    """The product of words of a wording with integers of x of `wide` bytes each. `split` takes words apart into words
    of two or four numbers, for `add`, which does not remove the `middle` that was added to each; `close` makes words of
    the sums of a group. shifted: m is a separate number."""

    wording: Wording
    wide: int
    split: Callable[..., Sequence[ir.Value]]
    add: Callable[..., ir.Value]
    close: Callable[..., ir.Value]
    middle: int
    shifted: bool


def group_adder(how: Rounded) -> Callable[..., Any]:
    """Build an intrinsic that adds a group of inputs to a tile of sums."""
    inputs, split, add, apart_in_x = how.wording.inputs, how.split, how.add, how.wide * how.wording.inputs

    @intrinsic
    def add_group(typing, sums, x, along, w, across, scale, factors, totals, apart):
        """Return sums + a group. Rows of bytes are along bytes apart, words of the next inputs across bytes apart;
        factors and totals of the rows are apart bytes from each other."""

        def code(context, builder, signature, values):
            tile, x, along, w, across, scale, factors, totals, apart = values

            def at_row(start, apart, r, kind, offset=0):
                return builder.load(
                    pointer_at(builder, builder.add(start, builder.mul(apart, apart.type(r))), offset, kind)
                )

            rows = range(sums.rows)
            begin = (
                [builder.bitcast(everywhere(builder, at_row(totals, apart, r, LANE)), VECTOR) for r in rows]
                if how.middle
                else [ir.Constant(VECTOR, None)] * sums.rows
            )
            whole = [each for each in begin for _ in range(sums.across)]
            for k in range(GROUP_INPUTS // inputs):
                start = builder.add(w, builder.mul(across, across.type(k)))
                if sums.rows == 1 or not MANY_REGISTERS:
                    ask_ahead(builder, sums.across, start)
                found = [
                    split(builder, builder.bitcast(load_vector(builder, start, 64 * v), WORDS))
                    for v in range(sums.across)
                ]
                for i, vectors in enumerate(zip(*found, strict=True)):
                    for r in rows:
                        factor = everywhere(builder, at_row(x, along, r, LANE, apart_in_x * k + 4 * i))
                        for v, vector in enumerate(vectors):
                            at = r * sums.across + v
                            whole[at] = add(builder, whole[at], factor, vector)
            place = GroupPlace(scale, scale, across, across)
            turns, new = how.wording.scales(builder, place, sums.across), []
            share = splat(builder, FLOAT(float(SHARE)))
            shares = [builder.fmul(m, share) for m in turns[sums.across :]] if how.shifted else []
            for at, each in enumerate(whole):
                r, v = divmod(at, sums.across)
                number = builder.fmul(builder.sitofp(how.close(builder, each), VECTOR), turns[v])
                total = multiply_add(
                    builder, number, splat(builder, at_row(factors, apart, r, FLOAT)), builder.extract_value(tile, at)
                )
                if how.shifted:
                    shift = splat(builder, at_row(totals, apart, r, FLOAT))
                    total = multiply_add(builder, shares[v], shift, total)
                new.append(total)
            return closed(builder, new)

        return sums(sums, *[types.int64] * 8), code

    return add_group


def group_strips(how: Rounded) -> tuple[Callable[..., None], Callable[..., None]]:
    """Build functions: a tile of rows against some columns; all rows from one on."""
    inputs, scale_bytes, add_group = how.wording.inputs, how.wording.scale_bytes, group_adder(how)
    group_bytes = how.wide * GROUP_INPUTS

    @njit(**HELPER)
    def strip_groups(none, x, along, w, across, scale, factors, totals, groups, y, step, lanes):
        """Compute a tile of sums: some rows against as many columns as it has."""
        sums = none
        for g in range(groups):
            sums = add_group(
                sums, x + group_bytes * g, along, w, across, scale, factors + 4 * g, totals + 4 * g, 4 * groups
            )
            w += GROUP_INPUTS // inputs * across
            scale += across // 4 * scale_bytes
        store_tile(sums, y, step, lanes)

    @njit(**HELPER)
    def strips(many, two, one, row, rows, high, x, along, w, across, scale, factors, totals, groups, y, step, lanes):
        """Multiply the rows from `row` on, `high` at a time, then two, then one, by as many columns as these tiles
        have."""
        while row + high <= rows:
            strip_groups(
                many,
                x + row * along,
                along,
                w,
                across,
                scale,
                factors + 4 * row * groups,
                totals + 4 * row * groups,
                groups,
                y + row * step,
                step,
                lanes,
            )
            row += high
        while row + 2 <= rows:
            strip_groups(
                two,
                x + row * along,
                along,
                w,
                across,
                scale,
                factors + 4 * row * groups,
                totals + 4 * row * groups,
                groups,
                y + row * step,
                step,
                lanes,
            )
            row += 2
        if row < rows:
            strip_groups(
                one,
                x + row * along,
                along,
                w,
                across,
                scale,
                factors + 4 * row * groups,
                totals + 4 * row * groups,
                groups,
                y + row * step,
                step,
                lanes,
            )

    return strip_groups, strips


def multiply_rounded(how: Rounded) -> Callable[..., None]:
    """Build a function that computes an item of a product; the epilogue follows panel by panel."""
    inputs, scale_bytes, middle, shifted = how.wording.inputs, how.wording.scale_bytes, how.middle, how.shifted
    strip_groups, strips = group_strips(how)
    dealt, wide = inputs > 4, how.wide

    @njit(**HELPER)
    def multiply_item(item, worker, arguments):
        c = record(arguments, LINEAR)
        w = record(c.w, WORDED)
        low, high, left, right = tile(c, item)
        rows, groups, step = high - low, w.blocks, 4 * c.step
        span = (c.n + TWO_GROUPS - 1) // TWO_GROUPS * TWO_GROUPS * wide
        x = c.room + worker * c.apart
        factors = x + rows * span
        totals = factors + 4 * rows * groups
        for i in range(rows):
            round_groups(
                c.x + 4 * (low + i) * c.along,
                c.n,
                groups,
                x + i * span,
                factors + 4 * i * groups,
                totals + 4 * i * groups,
                dealt,
                wide,
                shifted,
                -middle,
            )
        for start in range(left, right, PANEL):
            columns, y = min(PANEL, c.p - start), c.out + 4 * low * c.step + 4 * start
            across, whole = (columns + 15) // 16 * 64, MANY_REGISTERS and columns == PANEL
            stored = w.w + 4 * GROUP_INPUTS // inputs * groups * start
            scale = w.scale + scale_bytes * groups * start
            if whole:
                tall = rows // 6 * 6
                for at in range(0, PANEL if tall else 0, 2 * LANES):
                    for row in range(0, tall, 6):
                        strip_groups(
                            zeros(6, 2),
                            x + row * span,
                            span,
                            stored + 4 * at,
                            across,
                            scale + scale_bytes * at,
                            factors + 4 * row * groups,
                            totals + 4 * row * groups,
                            groups,
                            y + row * step + 4 * at,
                            step,
                            None,
                        )
                strips(
                    zeros(2, 4),
                    zeros(2, 4),
                    zeros(1, 4),
                    tall,
                    rows,
                    2,
                    x,
                    span,
                    stored,
                    across,
                    scale,
                    factors,
                    totals,
                    groups,
                    y,
                    step,
                    None,
                )
            else:
                for at in range(0, columns, LANES):
                    strips(
                        zeros(3, 1),
                        zeros(2, 1),
                        zeros(1, 1),
                        0,
                        rows,
                        3,
                        x,
                        span,
                        stored + 4 * at,
                        across,
                        scale + scale_bytes * at,
                        factors,
                        totals,
                        groups,
                        y + 4 * at,
                        step,
                        min(LANES, columns - at),
                    )
            finish_block(c.after, low, high, start, start + columns)
        if right - left == c.p:
            finish_rows(c.after, low, high)

    return multiply_item


ROUNDED_LEVELS = Rounded(
    LEVELS, 1, nibbles, *((adding(SHORTS, times_levels), join_pairs) if PAIRED else (add_fours, keep_words)), 0, True
)
ROUNDED_BYTES = (
    Rounded(BYTES, 2, split_bytes, adding(WORDS, times_pairs), keep_words, 128, False)
    if PAIRED
    else Rounded(BYTES, 1, lambda builder, words: [words], add_fours, keep_words, 128, False)
)
multiply_rounded_levels = multiply_rounded(ROUNDED_LEVELS)
multiply_rounded_bytes = multiply_rounded(ROUNDED_BYTES)


@Kernel.of(3, rare=True)
def rounded_levels(item, worker, arguments):
    """Multiply by w in levels, x in bytes; the epilogue follows panel by panel."""
    multiply_rounded_levels(item, worker, arguments)


@Kernel.of(3, rare=True)
def rounded_bytes(item, worker, arguments):
    """Multiply by w in bytes, x in bytes; the epilogue follows panel by panel."""
    multiply_rounded_bytes(item, worker, arguments)


def product_rounded(
    kernel: Kernel,
    how: Rounded,
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None,
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, each 32 numbers of a row of x rounded to bytes, then the epilogue."""
    groups, workers = check_words(kernel, how.wording, x, WordedArrays(w, scale), out), threads()
    after, weight = epilogue_record(epilogue, out), filled(address(w), address(scale), 0, groups)
    rows, _ = split_work(len(x), out.shape[1], workers, PANEL)
    with POOL.lock:
        span = how.wide * -(-x.shape[1] // TWO_GROUPS) * TWO_GROUPS
        room = ROOM.reserve(rows * (span + 8 * groups) + TWO_GROUPS, workers)
        launch(workers, *linear_stages(kernel, x, address(weight), out, after, workers, room, unit=PANEL))
    return out


def product_rounded_levels(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_levels`, with each 32 numbers of a row of x rounded to 255 steps; sums are exact within a
    group."""
    w, scale = typed("w", w, np.uint32), typed("scale", scale, np.float16)
    return product_rounded(rounded_levels, ROUNDED_LEVELS, x, w, scale, out, epilogue)


def product_rounded_bytes(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_scaled_bytes`, with each 32 numbers of a row of x rounded to 255 steps; sums are exact within a
    group."""
    w, scale = typed("w", w, np.uint8), typed("scale", scale, np.float16)
    return product_rounded(rounded_bytes, ROUNDED_BYTES, x, w, scale, out, epilogue)
