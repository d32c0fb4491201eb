"""Exponential and gelu in float32: straight-line arithmetic, so that LLVM computes a vector of them at a time.

Coefficients are minimax fits (weighted least squares, iterated); tests hold the errors stated here."""
import numpy as np
from numba import njit

from .memory import nearest, power_of_two

f4 = np.float32
LOG2_E, LN2_HIGH, LN2_LOW = f4(1.4426950408889634), f4(0.693145751953125), f4(1.42860682030941723212e-6)
SMALLEST = f4(-87.3)
# (e^r - 1 - r) / r^2 on |r| <= ln(2) / 2
E2, E3, E4, E5, E6 = (f4(c) for c in (4.999999341e-1, 1.666652011e-1, 4.166839419e-2, 8.368780387e-3, 1.381446806e-3))
# ln Phi(-a), a from 0 to 10: the logarithm of the normal distribution's tail is nearly a parabola
TAIL = 10.0
(P0, P1, P2, P3, P4, P5, P6, P7, P8, P9, P10) = (f4(c) for c in (
    -6.931399640e-01, -7.979765518e-01, -3.179233599e-01, -3.710295805e-02, 5.620820439e-03, -5.079067227e-04,
    2.727969504e-06, 5.775047984e-06, -7.324271399e-07, 4.050754426e-08, -8.823922158e-10))


@njit(fastmath={"contract"}, forceinline=True)
def exp(x):
    """e^x for x <= 88 within 2 units in the last place; 0 below -87.3 (no denormal numbers)."""
    bounded = max(x, SMALLEST)
    n = nearest(bounded * LOG2_E)
    r = (bounded - n * LN2_HIGH) - n * LN2_LOW
    q = (((E6 * r + E5) * r + E4) * r + E3) * r + E2
    value = (q * (r * r) + (r + f4(1))) * power_of_two(n)
    return value if x >= SMALLEST else f4(0)


@njit(fastmath={"contract"}, forceinline=True)
def gelu(x):
    """x Phi(x) = max(x, 0) - |x| Phi(-|x|) (Hendrycks and Gimpel 2016): 2e-7 absolute, and negative x keep 4 digits."""
    a = min(abs(x), f4(TAIL))
    low = (((P4 * a + P3) * a + P2) * a + P1) * a + P0
    high = ((((P10 * a + P9) * a + P8) * a + P7) * a + P6) * a + P5
    a2 = a * a
    return max(x, f4(0)) - a * exp(high * (a2 * a2 * a) + low)
