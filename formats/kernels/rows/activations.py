"""Functions of single numbers, each a pass in place over so many rows of count numbers at the address y, step bytes
from one to the next: compiled when an epilogue first asks for it."""
import numpy as np

from formats.kernels.engine.arithmetic import get, keep
from formats.kernels.engine.compiled import HELPER, Function
from formats.kernels.engine.maths import gelu_of, gelu_tanh_of, silu_of, tanh_of
from formats.kernels.engine.maths import gelu_rough as gelu_rough_of
from formats.kernels.engine.memory import floats
from formats.kernels.engine.native import njit

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


def passing(name, of, each=each_vector, rare=True):
    """The function of that name: `of` for each vector, or each number, of the rows."""
    def body(y, count, rows, step): each(of, y, count, rows, step)
    body.__name__ = name
    return Function(body, 4, rare=rare)


@njit(forceinline=True, **HELPER)
def relu_of(x): return f4(0) if x < f4(0) else x             # what is no number stays


@njit(forceinline=True, **HELPER)
def square_of(x): return x * x


@njit(forceinline=True, **HELPER)
def rsqrt_of(x): return f4(1) / np.sqrt(x)


gelu, gelu_rough = passing("gelu", gelu_of, rare=False), passing("gelu_rough", gelu_rough_of, rare=False)
gelu_tanh, silu, tanh = passing("gelu_tanh", gelu_tanh_of), passing("silu", silu_of), passing("tanh", tanh_of)
relu, square, rsqrt = (passing(name, of, each_number) for name, of in
                       (("relu", relu_of), ("square", square_of), ("rsqrt", rsqrt_of)))
PASSES = {each.name: each for each in (gelu, gelu_tanh, silu, tanh, relu, square, rsqrt)}
ROUGH = PASSES | {"gelu": gelu_rough}                   # after products of narrow numbers, which are no more exact
