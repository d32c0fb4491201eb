"""Functions of single numbers, each a pass in place over so many rows of count numbers at the address y, step bytes from one to the
next: compiled when an epilogue first asks for it."""
import numpy as np

from .arithmetic import get, keep
from .compiled import HELPER, Function
from .maths import gelu as gelu_of
from .maths import gelu_rough as gelu_rough_of
from .maths import gelu_tanh as gelu_tanh_of
from .maths import silu as silu_of
from .maths import tanh as tanh_of
from .memory import floats
from .native import njit

f4 = np.float32


@njit(forceinline=True, **HELPER)
def each_vector(of, y, count, rows, step):
    """A function of vectors over these rows."""
    full = count // 16 * 16
    for row in range(y, y + rows * step, step):
        for at in range(row, row + 4 * full, 64): keep(of(get(at, None)), at, None)
        if full < count: keep(of(get(row + 4 * full, count - full)), row + 4 * full, count - full)


@njit(forceinline=True, **HELPER)
def each_number(of, y, count, rows, step):
    """A function of single numbers over these rows."""
    for i in range(rows):
        row = floats(y + i * step, count)
        for j in range(count): row[j] = of(row[j])


@Function.of(4)
def gelu(y, count, rows, step):
    """x Φ(x)."""
    each_vector(gelu_of, y, count, rows, step)


@Function.of(4)
def gelu_rough(y, count, rows, step):
    """gelu within ROUGH_ERROR."""
    each_vector(gelu_rough_of, y, count, rows, step)


@Function.of(4, rare=True)
def gelu_tanh(y, count, rows, step):
    """gelu by a tanh."""
    each_vector(gelu_tanh_of, y, count, rows, step)


@Function.of(4, rare=True)
def silu(y, count, rows, step):
    """Each number times its logistic function."""
    each_vector(silu_of, y, count, rows, step)


@Function.of(4, rare=True)
def tanh(y, count, rows, step):
    """The hyperbolic tangent."""
    each_vector(tanh_of, y, count, rows, step)


@njit(forceinline=True, **HELPER)
def relu_of(x): return f4(0) if x < f4(0) else x


@njit(forceinline=True, **HELPER)
def square_of(x): return x * x


@njit(forceinline=True, **HELPER)
def rsqrt_of(x): return f4(1) / np.sqrt(x)


@Function.of(4, rare=True)
def relu(y, count, rows, step):
    """Negative numbers become zero; what is no number stays."""
    each_number(relu_of, y, count, rows, step)


@Function.of(4, rare=True)
def square(y, count, rows, step):
    """Each number times itself."""
    each_number(square_of, y, count, rows, step)


@Function.of(4, rare=True)
def rsqrt(y, count, rows, step):
    """One over the square root."""
    each_number(rsqrt_of, y, count, rows, step)


ACTIVATIONS = {each.name: each for each in (gelu, gelu_tanh, silu, tanh, relu, square, rsqrt)}
ROUGH = ACTIVATIONS | {"gelu": gelu_rough}                   # after products of narrow numbers, which are no more exact
