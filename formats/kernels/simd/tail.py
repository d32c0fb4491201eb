"""The tail of the normal distribution by a table: Φ(-a) = e^(-a²/2) R(a), and R is smooth.

R, half of erfcx(a / √2), is a polynomial on each of 16 intervals of a, selected by the highest bits of a + 1; vectors
look up 16 coefficients at once."""

import math
from functools import cache
from itertools import pairwise

import numpy as np

from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.native import intrinsic, ir, njit
from formats.kernels.engine.processor import FEATURES
from formats.kernels.simd.arithmetic import VECTOR16, WHOLE, fused
from formats.kernels.simd.vectors import FLOAT, LANE, LANES, VECTOR, closed, llvm_function

DEGREE, ONE = 6, np.float32(1)
EDGE = np.float32(13.2625)  # from there on, e^(-a²/2) is 0
SHIFT = 21  # bits above it in a float32: sign, exponent, two more
EDGES = [2.0**octave * (1 + quarter / 4) - 1 for octave in range(4) for quarter in range(4)] + [15.0]


def scaled_tail(a: float) -> float:
    """Return R(a) in float64."""
    return math.exp(a * a / 2) * math.erfc(a / math.sqrt(2)) / 2


def polynomial(low: float, high: float) -> list[float]:
    """Return [centre, *coefficients] on an interval: R is nearly a float32 at the centre, and is interpolated at the
    zeros of a Chebyshev polynomial."""
    near = (low + high) / 2 + (high - low) * np.arange(-32, 32) / 1024
    centre = min(near.tolist(), key=lambda a: abs(float(np.float32(scaled_tail(a))) / scaled_tail(a) - 1))
    at = (low + high) / 2 + (high - low) / 2 * np.cos(np.pi * (np.arange(DEGREE) + 0.5) / DEGREE)
    rises = [(scaled_tail(a) - scaled_tail(centre)) / (a - centre) for a in at.tolist()]
    return [centre, scaled_tail(centre), *np.linalg.solve(np.vander(at - centre, increasing=True), rises).tolist()]


@cache
def fit_tables() -> np.ndarray:
    """Return (2 + DEGREE, 16): centres, then coefficients. The column of an interval is given by the bits of its lower
    end plus one."""
    codes = (np.array(EDGES[:-1], np.float32) + ONE).view(np.uint32) >> SHIFT & 15
    tables = np.empty((2 + DEGREE, 16), np.float32)
    tables[:, codes] = np.transpose([polynomial(*interval) for interval in pairwise(EDGES)])
    return tables


def permute(builder, values, codes):
    """Return in each lane the one of 16 values that the lane's low 4 bits select."""
    if "+avx512f" in FEATURES:
        return builder.call(
            llvm_function(builder, "llvm.x86.avx512.permvar.sf.512", VECTOR, VECTOR, WHOLE),
            [ir.Constant(VECTOR, values), codes],
        )
    nothing, parts = ir.Constant(VECTOR, ir.Undefined), []
    if "+avx2" in FEATURES:
        half, lanes = ir.VectorType(FLOAT, 8), ir.VectorType(LANE, 8)
        permute = llvm_function(builder, "llvm.x86.avx2.permps", half, half, lanes)
        for first in (0, 8):
            order = ir.Constant(lanes, list(range(first, first + 8)))
            some = builder.shuffle_vector(codes, ir.Constant(WHOLE, ir.Undefined), order)
            low, high = (builder.call(permute, [ir.Constant(half, values[at : at + 8]), some]) for at in (0, 8))
            upper = builder.icmp_unsigned(
                "!=", builder.and_(some, ir.Constant(lanes, [8] * 8)), ir.Constant(lanes, [0] * 8)
            )
            parts.append(builder.select(upper, high, low))
        return builder.shuffle_vector(*parts, ir.Constant(WHOLE, list(range(LANES))))
    for lane in range(LANES):
        code = builder.and_(builder.extract_element(codes, LANE(lane)), LANE(15))
        value = builder.extract_element(ir.Constant(VECTOR, values), code)
        nothing = builder.insert_element(nothing, value, LANE(lane))
    return nothing


def make_lookup(row):
    """Build an intrinsic that selects, for a vector of a + 1, from the 16 values of a row of the tables."""

    @intrinsic
    def look_up(typing, sums):
        def code(context, builder, signature, given):
            bits = builder.bitcast(builder.extract_value(given[0], 0), WHOLE)
            codes = builder.lshr(bits, ir.Constant(WHOLE, [SHIFT] * LANES))
            return closed(builder, [permute(builder, fit_tables()[row].tolist(), codes)])

        return VECTOR16(VECTOR16), code

    return look_up


centre, r0, r1, r2, r3, r4, r5, r6 = map(make_lookup, range(2 + DEGREE))


@njit(forceinline=True, **HELPER)
def tail(a):
    """Return R(a) for a from 0 to EDGE, as a sum of two vectors."""
    s = a + ONE
    h = a - centre(s)
    y = fused(fused(fused(fused(fused(r6(s), h, r5(s)), h, r4(s)), h, r3(s)), h, r2(s)), h, r1(s))
    high = fused(h, y, r0(s))
    return high, fused(h, y, r0(s) - high)
