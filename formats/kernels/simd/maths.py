"""Exponential and functions made of it in float32, 16 numbers at a time, and the passes over a row that use them.

e^x is 2^n (1 + s) with |s| < 0.42: the last rounding is that of a sum with s, so roundings do not add up. Coefficients
are minimax fits. Tests check the errors stated here, in units in the last place of float32, wherever the result is a
normal number."""

import numpy as np

from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.native import njit
from formats.kernels.simd.arithmetic import (
    below,
    cut,
    fused,
    get,
    highest,
    keep,
    larger,
    low_bits_as_power,
    magnitude,
    negative,
    signed_as,
    smaller,
    sum_lanes,
)
from formats.kernels.simd.tail import EDGE, tail
from formats.kernels.simd.vectors import zeros

f4 = np.float32
LOG2_E, LN2_HIGH, LN2_LOW = f4(1.4426950408889634), f4(0.693145751953125), f4(1.42860682030941723212e-6)
TINY, ZERO, ONE, TWO, HALF, INFINITY = f4(2**-126), f4(0), f4(1), f4(2), f4(0.5), f4(np.inf)
# (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2
E2, E3, E4, E5, E6 = (f4(c) for c in (4.999999341e-1, 1.666652011e-1, 4.166839419e-2, 8.368780387e-3, 1.381446806e-3))
# (2^r - 1) / r on |r| <= 1 / 2
B1, B2, B3, B4, B5 = (f4(c) for c in (6.931470037e-1, 2.402224690e-1, 5.550710857e-2, 9.671293199e-3, 1.326955506e-3))
MIN_EXPONENT, NO_SHARE = f4(-127), f4(-100)  # exponents of 2: of 0, and below which a share is 0
ROUNDER = f4(1.5 * 2**23 + 127)  # a sum with it is whole: n + 127 in its low bits
VANISHING = f4(-88)
# 1 + e^u is stored times 2^-40, so that u may be so large that x / (1 + e^u) becomes 0
SCALE, SCALED_ROUNDER, HIGH, LOW = f4(2**-40), f4(1.5 * 2**23 + 127 - 40), f4(110), f4(-50)
# 2 √(2/π) and 0.044715 times it, in two parts each; beyond FAR, e^-2z is 0 or vast
LINEAR = 2 * (2 / np.pi) ** 0.5
CUBIC, LINEAR_HIGH, GELU_RANGE = f4(0.044715 * LINEAR), f4(np.round(LINEAR * 2**11) / 2**11), f4(12)
CUBIC_LOW, LINEAR_LOW = f4(0.044715 * LINEAR - float(CUBIC)), f4(LINEAR - float(LINEAR_HIGH))
SWITCH, TANH_LIMIT, T0, T1, T2, T3, T4 = (
    f4(c)
    for c in (0.625, 10, -3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2, 2.06390887954e-2, -5.70498872745e-3)
)


# Φ(-a) for a up to BUMP, beyond which a Φ(-a) is below 1.3e-4: least largest error of a Φ(-a)
BUMP = f4(4)
R0, R1, R2, R3, R4, R5, R6, R7, R8 = (
    f4(c)
    for c in (
        4.98960603e-1,
        -3.89800909e-1,
        -2.64779514e-2,
        1.00379715e-1,
        -1.84300955e-2,
        -1.03002566e-2,
        5.09921608e-3,
        -8.49350657e-4,
        5.11866563e-5,
    )
)


@njit(forceinline=True, **HELPER)
def growth(x, rest, rounded):
    """Return (2^n, s): e^(x + rest) = 2^n (1 + s), where rest is small. The low bits of `rounded` are the exponent
    field for n = 0: 127, or less for a scaled 2^n."""
    whole = fused(x, LOG2_E, rounded)
    n = whole - rounded
    r = fused(n, -LN2_HIGH, x) + fused(n, -LN2_LOW, rest)  # the first is exact, the second small: one rounding
    q = (((r * E6 + E5) * r + E4) * r + E3) * r + E2
    return low_bits_as_power(whole), fused(q, r * r, r)


@njit(forceinline=True, **HELPER)
def exp(x):
    """Return e^x for x <= 88 within 1 unit; 0 from about -87.7 down."""
    power, s = growth(larger(x, VANISHING), ZERO, ROUNDER)
    return fused(power, s, power)


@njit(forceinline=True, **HELPER)
def nearest_power(x):
    """Return (2^n, r): 2^x = 2^n 2^r for x <= 126, n an integer, |r| <= 1 / 2. 2^n is 0 for x below -100: it is
    negligible in a sum of 1 or more, and its products would be denormal, which take a hundred times as long."""
    x = below(x, NO_SHARE, MIN_EXPONENT, x)
    whole = x + ROUNDER  # the sum rounds x to a whole number, in its low bits
    return low_bits_as_power(whole), x - (whole - ROUNDER)


@njit(forceinline=True, **HELPER)
def exp2(x):
    """Return 2^x for x <= 126 within 2 units in the last place; 0 below -100."""
    power, r = nearest_power(x)
    p = ((((r * B5 + B4) * r + B3) * r + B2) * r + B1) * r + ONE
    return p * power


@njit(forceinline=True, **HELPER)
def gelu_rough(x):
    """Return max(x, 0) - |x| Φ(-|x|) by one polynomial: within 1.7e-4 of gelu, a fifth of its time."""
    a = smaller(magnitude(x), BUMP)
    return larger(x, ZERO) - a * (
        (((((((a * R8 + R7) * a + R6) * a + R5) * a + R4) * a + R3) * a + R2) * a + R1) * a + R0
    )


@njit(forceinline=True, **HELPER)
def gelu_of(x):
    """Return x Φ(x) = max(x, 0) - |x| Φ(-|x|) within 2 units (Hendrycks and Gimpel 2016)."""
    a = smaller(magnitude(x), EDGE)
    high, low = tail(a)
    half = a * (-HALF)
    h = half * a
    power, s = growth(h, fused(half, a, negative(h)), ROUNDER)
    factor = negative(a * power)
    return fused(factor, high, fused(factor, fused(high, s, low), larger(x, ZERO)))


@njit(forceinline=True, **HELPER)
def logistic(x, u, rest):
    """Return x / (1 + e^(u + rest)), where x is positive if u is very negative, and u may be so large that the result
    is 0."""
    power, s = growth(larger(smaller(u, HIGH), LOW), rest, SCALED_ROUNDER)
    whole = power + SCALE
    part = fused(power, s, SCALE - (whole - power))
    return smaller(x / (part + whole) * SCALE, larger(x, ZERO))


@njit(forceinline=True, **HELPER)
def silu_of(x):
    """Return x / (1 + e^-x) within 2 units; from about -92 down it is subnormal, from -104 down 0."""
    return logistic(larger(x, -HIGH), negative(x), ZERO)


@njit(forceinline=True, **HELPER)
def sigmoid_of(x):
    """Return 1 / (1 + e^-x) within 2 units; from about -87 down it is subnormal."""
    return logistic(zeros(1, 1) + ONE, negative(x), ZERO)


@njit(forceinline=True, **HELPER)
def gelu_tanh_of(x):
    """Return x (1 + tanh z) / 2 = x / (1 + e^-2z), z = √(2/π) (x + 0.044715 x³), within 2 units: 2z is computed in two
    parts."""
    a = larger(smaller(x, GELU_RANGE), -GELU_RANGE)
    square = a * a
    w = fused(square, CUBIC, LINEAR_HIGH)
    rest = fused(square, CUBIC, LINEAR_HIGH - w) + fused(
        fused(a, a, negative(square)), CUBIC, fused(square, CUBIC_LOW, LINEAR_LOW)
    )
    u = a * w
    return logistic(larger(x, -GELU_RANGE), negative(u), negative(fused(a, rest, fused(a, w, negative(u)))))


@njit(forceinline=True, **HELPER)
def tanh_of(x):
    """Return tanh x within 2 units: a polynomial below 5/8 (Cephes), above it 1 - 2 / (1 + e^2x)."""
    a = smaller(magnitude(x), TANH_LIMIT)
    power, s = growth(a * TWO, ZERO, ROUNDER)
    large = ONE - TWO / fused(power, s, power + ONE)
    z = a * a
    small = a * z * ((((z * T4 + T3) * z + T2) * z + T1) * z + T0) + a
    return signed_as(below(a, SWITCH, small, large), x)


@njit(**HELPER)
def largest(s, count, scale):
    """Return the largest of count numbers at the address s, each scaled."""
    full, top = count // 16 * 16, zeros(1, 1) - INFINITY
    for at in range(s, s + 4 * full, 64):
        top = larger(top, get(at, None) * scale)
    if full < count:
        top = larger(top, cut(get(s + 4 * full, count - full) * scale, count - full, -INFINITY))
    return highest(top)


@njit(**HELPER)
def exponentials(s, count, scale, top):
    """Replace count numbers s by e^(scale s - top), in place, and return their sum."""
    full, mass = count // 16 * 16, zeros(1, 1)
    for at in range(s, s + 4 * full, 64):
        e = exp(get(at, None) * scale - top)
        keep(e, at, None)
        mass = mass + e
    if full < count:
        e = exp(get(s + 4 * full, count - full) * scale - top)
        keep(e, s + 4 * full, count - full)
        mass = mass + cut(e, count - full, ZERO)
    return sum_lanes(mass)


@njit(**HELPER)
def fade(old, new):
    """Return e^(old - new), one number."""
    return highest(exp(zeros(1, 1) + (old - new)))


@njit(forceinline=True, **HELPER)
def reciprocal(x):
    """Return 1 / x, but 0 for 0, for x that is not negative."""
    return below(x, TINY, ZERO, ONE / larger(x, TINY))
