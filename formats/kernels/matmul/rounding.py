"""Rows of float32 as bfloat16, or as bytes with a scale for each row (dynamic quantisation: Dettmers et al. 2022,
arXiv:2208.07339, section 2.1), 64 numbers at a time."""

import numpy as np

from formats.core.layout import LEAST_SCALED
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import ints_at
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.simd.arithmetic import VECTOR16, folded, get
from formats.kernels.simd.maths import ONE as ONE
from formats.kernels.simd.vectors import (
    FEATURES,
    LANE,
    LANES,
    VECTOR,
    closed,
    llvm_function,
    load_vector,
    pointer_at,
    zeros,
)
from formats.kernels.simd.words import BYTE, SHORT, WORDS, BFloat, add_fours, store_words, words_of
from formats.storage.bf16 import BF16_OVERFLOW

PACKS = "+avx512bw" in FEATURES  # instructions that narrow two vectors into one
HALVES = "+avx512bf16" in FEATURES
f4, i4 = np.float32, np.int32
FINITE = f4(np.finfo(f4).max)
# rows whose largest number is below or above these are multiplied or divided by LIFT, so that their scale, one over it,
# and its product with a scale of W, are float32
LIFT_BELOW, LIFT_ABOVE, LIFT = f4(LEAST_SCALED), f4(2.0**60), f4(2.0**64)


def as_words(builder, vector):
    return builder.bitcast(vector, WORDS)


@intrinsic
def larger_magnitude(typing, most, x):
    """Return the larger magnitude of each lane; a NaN is larger than all numbers."""

    def code(context, builder, signature, values):
        most, x = (as_words(builder, builder.extract_value(value, 0)) for value in values)
        x = builder.and_(x, words_of(0x7FFFFFFF))
        found = builder.select(builder.icmp_unsigned("<", most, x), x, most)
        return closed(builder, [builder.bitcast(found, VECTOR)])

    return VECTOR16(VECTOR16, VECTOR16), code


def greater(builder, x, y):
    a, b = as_words(builder, x), as_words(builder, y)
    return builder.bitcast(builder.select(builder.icmp_unsigned("<", a, b), b, a), VECTOR)


largest_magnitude = folded(greater)
added_words = folded(
    lambda builder, x, y: builder.bitcast(builder.add(as_words(builder, x), as_words(builder, y)), VECTOR)
)


@intrinsic
def bits(typing, number):
    """Return the integer whose bits a float32 has."""

    def code(context, builder, signature, values):
        return builder.bitcast(values[0], LANE)

    return types.int32(types.float32), code


def nearest_words(builder, vector):
    """Round to integers, to nearest."""
    if not PACKS:
        return builder.fptosi(
            builder.call(llvm_function(builder, f"llvm.rint.v{LANES}f32", VECTOR, VECTOR), [vector]), WORDS
        )
    convert = llvm_function(builder, "llvm.x86.avx512.mask.cvtps2dq.512", WORDS, VECTOR, WORDS, SHORT, LANE)
    return builder.call(convert, [vector, words_of(0), SHORT(0xFFFF), LANE(4)])


@intrinsic
def keep_bytes(typing, a, b, c, d, address):
    """Store four vectors as 64 bytes, to nearest."""

    def code(context, builder, signature, values):
        *vectors, address = values
        numbers = [nearest_words(builder, builder.extract_value(vector, 0)) for vector in vectors]
        if not PACKS:
            for i, each in enumerate(numbers):
                store_words(builder, each, builder.add(address, address.type(16 * i)), BYTE)
            return context.get_dummy_value()
        shorts, bytes_ = ir.VectorType(SHORT, 2 * LANES), ir.VectorType(BYTE, 4 * LANES)
        pairs = llvm_function(builder, "llvm.x86.avx512.packssdw.512", shorts, WORDS, WORDS)
        fours = llvm_function(builder, "llvm.x86.avx512.packsswb.512", bytes_, shorts, shorts)
        halves = [builder.call(pairs, numbers[i : i + 2]) for i in (0, 2)]
        mixed = as_words(builder, builder.call(fours, halves))
        order = ir.Constant(WORDS, [4 * (i % 4) + i // 4 for i in range(LANES)])
        builder.store(builder.shuffle_vector(mixed, mixed, order), pointer_at(builder, address, 0, WORDS)).align = 1
        return context.get_dummy_value()

    return types.void(a, b, c, d, types.int64), code


@intrinsic
def add_bytes(typing, sums, address):
    """Add 64 signed bytes to the lanes of sums, which are integers by their bits."""

    def code(context, builder, signature, values):
        found = as_words(builder, load_vector(builder, values[1]))
        return closed(builder, [add_fours(builder, builder.extract_value(values[0], 0), found, words_of(0x01010101))])

    return VECTOR16(VECTOR16, types.int64), code


@intrinsic
def kept_finite(typing, vector):
    """Replace finite numbers that would round to an infinite bfloat16 by the largest one, and NaN by one that no
    rounding changes."""

    def code(context, builder, signature, values):
        word = as_words(builder, builder.extract_value(values[0], 0))
        size = builder.and_(word, words_of(0x7FFFFFFF))
        cut = builder.and_(word, words_of(0xFFFF0000))
        nan = builder.icmp_unsigned(">", size, words_of(0x7F800000))
        cut = builder.select(nan, builder.or_(cut, words_of(1 << 22)), cut)
        found = builder.select(builder.icmp_unsigned("<", size, words_of(BF16_OVERFLOW)), word, cut)
        return closed(builder, [builder.bitcast(found, VECTOR)])

    return VECTOR16(VECTOR16), code


@intrinsic
def keep_halves(typing, vector, address):
    """Store a vector as 16 bfloat16: to nearest, ties to even, finite numbers to finite ones; NaN stays NaN."""

    def code(context, builder, signature, values):
        value = builder.extract_value(values[0], 0)
        word = as_words(builder, value)
        size = builder.and_(word, words_of(0x7FFFFFFF))
        beyond = builder.icmp_unsigned(
            "<", builder.sub(size, words_of(BF16_OVERFLOW)), words_of(0x7F800000 - BF16_OVERFLOW)
        )
        if HALVES:
            value = builder.bitcast(builder.select(beyond, builder.and_(word, words_of(0xFFFF0000)), word), VECTOR)
            narrow = ir.VectorType(BFloat(), LANES)
            convert = llvm_function(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", narrow, VECTOR)
            builder.store(builder.call(convert, [value]), pointer_at(builder, values[1], 0, narrow)).align = 1
            return context.get_dummy_value()
        odd = builder.and_(builder.lshr(word, words_of(16)), words_of(1))
        usual = builder.add(builder.add(word, words_of(0x7FFF)), odd)
        nan = builder.icmp_unsigned(">", size, words_of(0x7F800000))
        usual = builder.select(nan, builder.or_(word, words_of(1 << 22)), usual)
        kept = builder.lshr(builder.select(beyond, word, usual), words_of(16))
        store_words(builder, kept, values[1], SHORT)
        return context.get_dummy_value()

    return types.void(vector, types.int64), code


@njit(**HELPER)
def round_halves(x, n, target, depth, piece):
    """Store n float32 at x as bfloat16; zeros up to depth, a multiple of 32. Each 64 bytes begin `piece` bytes after
    those before."""
    full = n // 32 * 32
    for k in range(0, full, 32):
        keep_halves(get(x + 4 * k, None), target)
        keep_halves(get(x + 4 * k + 64, None), target + 32)
        target += piece
    for k in range(full, depth, 32):
        keep_halves(get(x + 4 * k, n - k), target)
        keep_halves(get(x + 4 * k + 64, n - k - 16), target + 32)
        target += piece


@njit(forceinline=True, **HELPER)
def keep_row(x, n, target, depth, piece, group, groups, totals, middle, lift, turns):
    """Store n float32 at x, times lift, times turns, as bytes, for `round_bytes`."""
    full = n // 64 * 64
    for g in range(groups):
        start, end, added = g * group, min((g + 1) * group, depth), zeros(1, 1)
        for k in range(start, min(end, full), 64):
            at, to = x + 4 * k, target + k // 64 * piece
            keep_bytes(
                get(at, None) * lift * turns,
                get(at + 64, None) * lift * turns,
                get(at + 128, None) * lift * turns,
                get(at + 192, None) * lift * turns,
                to,
            )
            added = add_bytes(added, to)
        if start <= full < end:
            at, left, to = x + 4 * full, n - full, target + full // 64 * piece
            keep_bytes(
                get(at, left) * lift * turns,
                get(at + 64, left - 16) * lift * turns,
                get(at + 128, left - 32) * lift * turns,
                get(at + 192, left - 48) * lift * turns,
                to,
            )
            added = add_bytes(added, to)
        totals[g] = i4(middle * bits(added_words(added)))


@njit(**HELPER)
def keep_far_row(x, n, target, depth, piece, group, groups, totals, middle, lift, turns):
    """Run `keep_row` for rare rows, which need a lift."""
    keep_row(x, n, target, depth, piece, group, groups, totals, middle, lift, turns)


@njit(**HELPER)
def round_bytes(x, n, target, depth, piece, group, groups, sums, middle):
    """Round n float32 at x to integers up to 127 times two scales, and return the scales: the second is 1 except for
    rare rows (see LIFT), the first NaN for rows that are not finite. Zeros follow up to depth, a multiple of 64. The
    sum of each group, times middle, is stored as int32 at sums. Each 64 bytes begin `piece` bytes after those
    before."""
    full, totals = n // 64 * 64, ints_at(sums, groups)
    a, b = zeros(1, 1), zeros(1, 1)
    for k in range(0, full, 64):
        a = larger_magnitude(larger_magnitude(a, get(x + 4 * k, None)), get(x + 4 * k + 64, None))
        b = larger_magnitude(larger_magnitude(b, get(x + 4 * k + 128, None)), get(x + 4 * k + 192, None))
    for k in range(full, n, 16):
        a = larger_magnitude(a, get(x + 4 * k, n - k))
    largest = largest_magnitude(larger_magnitude(a, b))
    if f4(0) < largest < LIFT_BELOW or LIFT_ABOVE < largest <= FINITE:
        lift = LIFT if largest < LIFT_BELOW else ONE / LIFT
        keep_far_row(x, n, target, depth, piece, group, groups, totals, middle, lift, f4(127) / (largest * lift))
        return largest * lift / f4(127), ONE / lift
    turns = f4(127) / largest if f4(0) < largest <= FINITE else f4(0)
    keep_row(x, n, target, depth, piece, group, groups, totals, middle, ONE, turns)
    return largest / f4(127) if largest <= FINITE else f4(np.nan), ONE
