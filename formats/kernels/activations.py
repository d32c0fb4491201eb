"""Functions of single numbers, each a pass over a row in place: compiled when an epilogue first asks for it."""
import numpy as np

from .arithmetic import get, keep
from .compiled import Function
from .maths import gelu as gelu_of
from .maths import gelu_tanh as gelu_tanh_of
from .maths import silu as silu_of
from .maths import tanh as tanh_of
from .memory import floats

f4 = np.float32


@Function.of(2)
def gelu(y, count):
    """gelu of count numbers at the address y."""
    full = count // 16 * 16
    for at in range(y, y + 4 * full, 64): keep(gelu_of(get(at, None)), at, None)
    if full < count: keep(gelu_of(get(y + 4 * full, count - full)), y + 4 * full, count - full)


@Function.of(2, rare=True)
def gelu_tanh(y, count):
    """gelu by a tanh."""
    full = count // 16 * 16
    for at in range(y, y + 4 * full, 64): keep(gelu_tanh_of(get(at, None)), at, None)
    if full < count: keep(gelu_tanh_of(get(y + 4 * full, count - full)), y + 4 * full, count - full)


@Function.of(2, rare=True)
def silu(y, count):
    """Each number times its logistic function."""
    full = count // 16 * 16
    for at in range(y, y + 4 * full, 64): keep(silu_of(get(at, None)), at, None)
    if full < count: keep(silu_of(get(y + 4 * full, count - full)), y + 4 * full, count - full)


@Function.of(2, rare=True)
def tanh(y, count):
    """The hyperbolic tangent."""
    full = count // 16 * 16
    for at in range(y, y + 4 * full, 64): keep(tanh_of(get(at, None)), at, None)
    if full < count: keep(tanh_of(get(y + 4 * full, count - full)), y + 4 * full, count - full)


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
