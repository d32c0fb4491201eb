"""Exponential and what is made of it in float32, 16 numbers at a time, and the passes over a row that use them.

Coefficients are minimax fits (weighted least squares, iterated); tests hold the errors stated here."""
import numpy as np
from numba import njit

from .arithmetic import cut, get, highest, keep, larger, low_bits_as_power, magnitude, nearest, power_of_two, smaller, total, zero_below
from .compiled import HELPER
from .vectors import zeros

f4 = np.float32
LOG2_E, LN2_HIGH, LN2_LOW = f4(1.4426950408889634), f4(0.693145751953125), f4(1.42860682030941723212e-6)
TINY = f4(2 ** -126)
SMALLEST, ZERO, ONE, INFINITY = f4(-87.3), f4(0), f4(1), f4(np.inf)
FAR, BOUND, TWO, HALF = f4(87), f4(20), f4(2), f4(0.5)
LINEAR, CUBIC = f4(2 * (2 / np.pi) ** 0.5), f4(2 * (2 / np.pi) ** 0.5 * 0.044715)
SWITCH, T0, T1, T2, T3, T4 = (f4(c) for c in (
    0.625, -3.33332819422e-1, 1.33314422036e-1, -5.37397155531e-2, 2.06390887954e-2, -5.70498872745e-3))
# (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2
E2, E3, E4, E5, E6 = (f4(c) for c in (4.999999341e-1, 1.666652011e-1, 4.166839419e-2, 8.368780387e-3, 1.381446806e-3))
# (2^r - 1) / r on |r| <= 1 / 2
B1, B2, B3, B4, B5 = (f4(c) for c in (6.931470037e-1, 2.402224690e-1, 5.550710857e-2, 9.671293199e-3, 1.326955506e-3))
LEAST, ROUNDED = f4(-127), f4(1.5 * 2 ** 23 + 127)
# ln Phi(-a), a from 0 to 10: the logarithm of the normal distribution's tail is nearly a parabola
TAIL = f4(10)
(P0, P1, P2, P3, P4, P5, P6, P7, P8, P9, P10) = (f4(c) for c in (
    -6.931399640e-01, -7.979765518e-01, -3.179233599e-01, -3.710295805e-02, 5.620820439e-03, -5.079067227e-04,
    2.727969504e-06, 5.775047984e-06, -7.324271399e-07, 4.050754426e-08, -8.823922158e-10))


@njit(forceinline=True, **HELPER)
def exp(x):
    """e^x for x <= 88 within 2 units in the last place; 0 below -87.3 (no denormal numbers)."""
    bounded = larger(x, SMALLEST)
    n = nearest(bounded * LOG2_E)
    r = (bounded - n * LN2_HIGH) - n * LN2_LOW
    q = (((r * E6 + E5) * r + E4) * r + E3) * r + E2
    return zero_below(x, SMALLEST, (q * (r * r) + (r + ONE)) * power_of_two(n))


@njit(forceinline=True, **HELPER)
def exp2(x):
    """2^x for x <= 126 within 2 units in the last place; 0 at -127 and below (between -126 and there, 0 or denormal)."""
    whole = larger(x, LEAST) + ROUNDED                       # the sum rounds x to a whole number, in its low bits
    r = larger(x, LEAST) - (whole - ROUNDED)
    p = ((((r * B5 + B4) * r + B3) * r + B2) * r + B1) * r + ONE
    return p * low_bits_as_power(whole)


@njit(forceinline=True, **HELPER)
def gelu(x):
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|) (Hendrycks and Gimpel 2016): 2e-7 absolute, and negative x keep 4 digits."""
    a = smaller(magnitude(x), TAIL)
    low = (((a * P4 + P3) * a + P2) * a + P1) * a + P0
    high = ((((a * P10 + P9) * a + P8) * a + P7) * a + P6) * a + P5
    a2 = a * a
    return larger(x, ZERO) - a * exp(high * (a2 * a2 * a) + low)


@njit(forceinline=True, **HELPER)
def logistic(x, u):
    """x / (1 + e^-u), where x is u times something positive; 0 where u is far below 0."""
    return zero_below(u, -FAR, x / (exp(smaller(ZERO - u, FAR)) + ONE))


@njit(forceinline=True, **HELPER)
def silu(x):
    """x times its logistic function."""
    return logistic(x, x)


@njit(forceinline=True, **HELPER)
def gelu_tanh(x):
    """x (1 + tanh z) / 2 = x / (1 + e^-2z), z = √(2/π) (x + 0.044715 x³)."""
    near = larger(smaller(x, BOUND), ZERO - BOUND)          # beyond, its cube would be no number, and nothing changes
    return logistic(x, near * ((near * near) * CUBIC + LINEAR))


@njit(forceinline=True, **HELPER)
def tanh(x):
    """A polynomial below 5/8 (Cephes), above it (1 - e^-2x) / (1 + e^-2x)."""
    a = smaller(magnitude(x), TAIL)
    near, e = larger(smaller(x, TAIL), ZERO - TAIL), exp(a * (ZERO - TWO))
    z = smaller(a, ONE) * smaller(a, ONE)
    small = near + near * z * ((((z * T4 + T3) * z + T2) * z + T1) * z + T0)
    large = near / larger(a, HALF) * ((ONE - e) / (e + ONE))
    return zero_below(a, SWITCH, large) + (small - zero_below(a, SWITCH, small))


@njit(**HELPER)
def largest(s, count, scale):
    """The largest of count numbers at the address s, each scaled."""
    full, top = count // 16 * 16, zeros(1, 1) - INFINITY
    for at in range(s, s + 4 * full, 64): top = larger(top, get(at, None) * scale)
    if full < count: top = larger(top, cut(get(s + 4 * full, count - full) * scale, count - full, -INFINITY))
    return highest(top)


@njit(**HELPER)
def exponentials(s, count, scale, top):
    """count numbers s become e^(scale s - top), in place; their sum."""
    full, mass = count // 16 * 16, zeros(1, 1)
    for at in range(s, s + 4 * full, 64):
        e = exp(get(at, None) * scale - top)
        keep(e, at, None)
        mass = mass + e
    if full < count:
        e = exp(get(s + 4 * full, count - full) * scale - top)
        keep(e, s + 4 * full, count - full)
        mass = mass + cut(e, count - full, ZERO)
    return total(mass)


@njit(**HELPER)
def fade(old, new):
    """e^(old - new), one number."""
    return highest(exp(zeros(1, 1) + (old - new)))


@njit(forceinline=True, **HELPER)
def over(x):
    """1 / x, but 0 for 0, where x is not negative."""
    return zero_below(x, TINY, ONE / larger(x, TINY))
