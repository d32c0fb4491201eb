"""Functions of single numbers, each a pass over a row in place: compiled when an epilogue first asks for it."""
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
def each_vector(of, y, count):
    """A function of vectors over count numbers at the address y."""
    full = count // 16 * 16
    for at in range(y, y + 4 * full, 64): keep(of(get(at, None)), at, None)
    if full < count: keep(of(get(y + 4 * full, count - full)), y + 4 * full, count - full)


@Function.of(2)
def gelu(y, count):
    """gelu of count numbers at the address y."""
    each_vector(gelu_of, y, count)


@Function.of(2)
def gelu_rough(y, count):
    """gelu within ROUGH_ERROR."""
    each_vector(gelu_rough_of, y, count)


@Function.of(2, rare=True)
def gelu_tanh(y, count):
    """gelu by a tanh."""
    each_vector(gelu_tanh_of, y, count)


@Function.of(2, rare=True)
def silu(y, count):
    """Each number times its logistic function."""
    each_vector(silu_of, y, count)


@Function.of(2, rare=True)
def tanh(y, count):
    """The hyperbolic tangent."""
    each_vector(tanh_of, y, count)


@Function.of(2, rare=True)
def relu(y, count):
    """Negative numbers become zero; what is no number stays."""
    row = floats(y, count)
    for j in range(count): row[j] = f4(0) if row[j] < f4(0) else row[j]


@Function.of(2, rare=True)
def square(y, count):
    """Each number times itself."""
    row = floats(y, count)
    for j in range(count): row[j] *= row[j]


@Function.of(2, rare=True)
def rsqrt(y, count):
    """One over the square root."""
    row = floats(y, count)
    for j in range(count): row[j] = f4(1) / np.sqrt(row[j])


ACTIVATIONS = {each.name: each for each in (gelu, gelu_tanh, silu, tanh, relu, square, rsqrt)}
ROUGH = ACTIVATIONS | {"gelu": gelu_rough}                   # after products of narrow numbers, which are no more exact
