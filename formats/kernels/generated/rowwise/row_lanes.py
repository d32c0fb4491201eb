"""Vector code of generated kernels: the operations of scalar_functions.py, 16 numbers at a time."""

import numpy as np

from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.launch import words as words
from formats.kernels.engine.memory import floats
from formats.kernels.engine.memory import longs as longs
from formats.kernels.engine.memory import record as record
from formats.kernels.engine.native import intrinsic, ir, njit
from formats.kernels.simd.arithmetic import NUMBER, VECTOR16, WHOLE, binary, emitted, fused, larger, smaller, unary
from formats.kernels.simd.arithmetic import cut as cut
from formats.kernels.simd.arithmetic import get as get
from formats.kernels.simd.arithmetic import keep as keep
from formats.kernels.simd.arithmetic import magnitude as magnitude
from formats.kernels.simd.arithmetic import negative as negative
from formats.kernels.simd.maths import LN2_HIGH, LN2_LOW, ONE, ROUNDER, TWO, ZERO, growth
from formats.kernels.simd.maths import gelu_of as gelu_of
from formats.kernels.simd.maths import gelu_tanh_of as gelu_tanh_of
from formats.kernels.simd.maths import sigmoid_of as sigmoid_of
from formats.kernels.simd.maths import silu_of as silu_of
from formats.kernels.simd.maths import tanh_of as tanh_of
from formats.kernels.simd.vectors import LANES, VECTOR, closed, llvm_function

f4 = np.float32
FROM, BEYOND = f4(-87.4), f4(89)  # e^x is 0 below FROM, infinite from BEYOND on
HALF_ROUNDER = f4(ROUNDER - ONE)  # powers of two are kept halved, so that none is too large
SMALL, GROWN, GROWTH = f4(2**-126), f4(2**23), f4(23)  # subnormal numbers are multiplied first
ONE_HALF = f4(0.5)
LG1, LG2, LG3, LG4 = (f4(c) for c in (0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841))  # see musl's logf
INFINITY, NAN = f4(np.inf), f4(np.nan)


def as_truth(builder, test):
    """Return 1 where a comparison is true, 0 elsewhere."""
    return builder.select(test, ir.Constant(VECTOR, [1.0] * LANES), ir.Constant(VECTOR, [0.0] * LANES))


def is_true(builder, x):
    return builder.fcmp_unordered("!=", x, ir.Constant(VECTOR, [0.0] * LANES))


def unless_nan(builder, x, other):
    return builder.select(builder.fcmp_unordered("uno", x, x), x, other)


# NaN in either operand gives NaN
largest_of = binary(lambda b, x, y: unless_nan(b, x, b.select(b.fcmp_ordered(">", x, y), x, y)))
smallest_of = binary(lambda b, x, y: unless_nan(b, x, b.select(b.fcmp_ordered("<", x, y), x, y)))
less = binary(lambda b, x, y: as_truth(b, b.fcmp_ordered("<", x, y)))
less_equal = binary(lambda b, x, y: as_truth(b, b.fcmp_ordered("<=", x, y)))
equal = binary(lambda b, x, y: as_truth(b, b.fcmp_ordered("==", x, y)))
both = binary(lambda b, x, y: as_truth(b, b.and_(is_true(b, x), is_true(b, y))))
either = binary(lambda b, x, y: as_truth(b, b.or_(is_true(b, x), is_true(b, y))))
square_root = unary(lambda b, x: b.call(llvm_function(b, f"llvm.sqrt.v{LANES}f32", VECTOR, VECTOR), [x]))
whole_below = unary(lambda b, x: b.call(llvm_function(b, f"llvm.floor.v{LANES}f32", VECTOR, VECTOR), [x]))
in_all_lanes = unary(lambda b, x: x)


@intrinsic
def lanes_of(typing, test, one, other):
    """Return `one` where a test is not 0, else `other`."""

    def emit(builder, test, one, other):
        return builder.select(is_true(builder, test), one, other)

    def code(context, builder, signature, values):
        return emitted(emit, builder, signature.args, values)

    return VECTOR16(test, one, other), code


@intrinsic
def lane_numbers(typing, start):
    """Return start, start + 1, ..., start + 15, one in each lane."""

    def code(context, builder, signature, values):
        first = emitted(lambda b, x: x, builder, (NUMBER,), [values[0]])
        lanes = ir.Constant(VECTOR, [float(i) for i in range(LANES)])
        return closed(builder, [builder.fadd(builder.extract_value(first, 0), lanes)])

    return VECTOR16(NUMBER), code


def moved_down(distance):
    """Build an intrinsic that moves lanes down: lane i gets lane i + distance, cyclically."""

    @intrinsic
    def move(typing, vector):
        def code(context, builder, signature, values):
            order = ir.Constant(WHOLE, [(lane + distance) % LANES for lane in range(LANES)])
            x = builder.extract_value(values[0], 0)
            return closed(builder, [builder.shuffle_vector(x, x, order)])

        return VECTOR16(VECTOR16), code

    return move


down1, down2, down4, down8 = map(moved_down, (1, 2, 4, 8))


@intrinsic
def first_lane(typing, vector):
    """Copy the first number to all lanes."""

    def code(context, builder, signature, values):
        x = builder.extract_value(values[0], 0)
        return closed(builder, [builder.shuffle_vector(x, x, ir.Constant(WHOLE, [0] * LANES))])

    return VECTOR16(VECTOR16), code


@njit(forceinline=True, **HELPER)
def one_number(at):
    """Load the number at an address into all lanes."""
    return in_all_lanes(floats(at, 1)[0])


@njit(forceinline=True, **HELPER)
def exp_whole(x):
    """Return e^x for any x within 1 unit; 0 from about -87 down."""
    power, s = growth(larger(smaller(x, BEYOND), FROM), ZERO, HALF_ROUNDER)
    return fused(power, s, power) * TWO


@njit(forceinline=True, **HELPER)
def expm1_whole(x):
    """Return e^x - 1 within 3 units: with e^x = 2^n (1 + s) it is 2^n s + (2^n - 1)."""
    power, s = growth(larger(smaller(x, BEYOND), f4(-80)), ZERO, HALF_ROUNDER)
    return fused(power, s, power - ONE_HALF) * TWO


def exponent_of(builder, x):
    """Return (2^-e x, from √½ to √2, and e), from the bits of x."""
    bits = builder.bitcast(x, WHOLE)
    above = builder.sub(bits, ir.Constant(WHOLE, [0x3F3504F3] * LANES))
    e = builder.ashr(above, ir.Constant(WHOLE, [23] * LANES))
    return builder.bitcast(builder.sub(bits, builder.shl(e, ir.Constant(WHOLE, [23] * LANES))), VECTOR), e


mantissa = unary(lambda b, x: exponent_of(b, x)[0])
exponent = unary(lambda b, x: b.sitofp(exponent_of(b, x)[1], VECTOR))


@njit(forceinline=True, **HELPER)
def log_whole(x):
    """Return the natural logarithm within 1 unit, as musl's logf; -inf for 0, NaN for negative numbers."""
    tiny = less(x, SMALL)
    y = lanes_of(tiny, x * GROWN, x)
    f, e = mantissa(y) - ONE, exponent(y) - lanes_of(tiny, in_all_lanes(GROWTH), in_all_lanes(ZERO))
    s = f / (f + TWO)
    z = s * s
    w = z * z
    r = z * (w * LG3 + LG1) + w * (w * LG4 + LG2)
    h = f * f * ONE_HALF
    found = fused(s, h + r, e * LN2_LOW) - h + f + e * LN2_HIGH
    found = lanes_of(less(x, INFINITY), found, x)  # infinity and NaN pass through
    return lanes_of(less_equal(x, ZERO), lanes_of(equal(x, ZERO), in_all_lanes(-INFINITY), in_all_lanes(NAN)), found)


@njit(forceinline=True, **HELPER)
def log1p_whole(x):
    """Return log(1 + x) within 3 units: the rounding error of the sum is added."""
    u = x + ONE
    rest = (x - (u - ONE)) / u
    found = log_whole(u) + lanes_of(less(magnitude(rest), ONE), rest, in_all_lanes(ZERO))
    return lanes_of(less(x, INFINITY), found, x)
