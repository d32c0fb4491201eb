"""Vector code of activations (formats/core/activation.py). Each is a pass in place over `rows` rows of `count` numbers
at the address y, `step` bytes from one to the next; it is compiled when an epilogue first needs it."""

import numpy as np

from formats.core.activation import CLAMPED, COMPILED, GATE_SLOPE, TIMED, Activation
from formats.kernels.engine.compiled import HELPER, Function
from formats.kernels.engine.memory import floats
from formats.kernels.engine.native import njit
from formats.kernels.simd import maths
from formats.kernels.simd.arithmetic import get, keep, larger, smaller

f4 = np.float32


@njit(forceinline=True, **HELPER)
def each_vector(of, y, count, rows, step):
    """Apply a function of vectors to these rows."""
    full = count // 16 * 16
    for row in range(y, y + rows * step, step):
        for at in range(row, row + 4 * full, 64):
            keep(of(get(at, None)), at, None)
        if full < count:
            keep(of(get(row + 4 * full, count - full)), row + 4 * full, count - full)


@njit(forceinline=True, **HELPER)
def each_number(of, y, count, rows, step):
    """Apply a function of single numbers to these rows."""
    for i in range(rows):
        row = floats(y + i * step, count)
        for j in range(count):
            row[j] = of(row[j])


def passing(name, of, each=each_vector, rare=True):
    """Build the function of that name: `of` is applied to each vector, or each number, of the rows."""

    def body(y, count, rows, step):
        each(of, y, count, rows, step)

    body.__name__ = name
    return Function(body, 4, rare=rare)


@njit(forceinline=True, **HELPER)
def relu_of(x):
    return f4(0) if x < f4(0) else x  # NaN stays NaN


@njit(forceinline=True, **HELPER)
def square_of(x):
    return x * x


@njit(forceinline=True, **HELPER)
def rsqrt_of(x):
    return f4(1) / np.sqrt(x)


@njit(forceinline=True, **HELPER)
def clamped_gate_of(x):
    """v σ(1.702 v), v = min(x, 7); from -100 down it is 0."""
    v = larger(smaller(x, f4(CLAMPED)), f4(-100))
    return v * maths.sigmoid_of(v * f4(GATE_SLOPE))


@njit(forceinline=True, **HELPER)
def clamped_factor_of(x):
    return larger(smaller(x, f4(CLAMPED)), f4(-CLAMPED)) + f4(1)


BY_NUMBER = "relu_of", "square_of", "rsqrt_of"  # take single numbers; the others take vectors


def pass_of(declared: Activation, name: str, code: str) -> Function:
    """Build the pass from the function that a record names, in this module or in maths; TypeError if there is none."""
    of = globals().get(code) or getattr(maths, code, None)
    if of is None:
        raise TypeError(
            f"activation {declared.name}: formats/kernels/rows/activations.py has no {code} before "
            "PASSES: write it there, or leave it out of the record: the activation then runs as a term"
        )
    loop = each_number if code in BY_NUMBER else each_vector
    return passing(name, of, loop, rare=declared.name != TIMED)


PASSES = {name: pass_of(activation, name, activation.vector) for name, activation in COMPILED.items()}
# less exact passes, for products of narrow numbers, which are no more exact either
ROUGH = PASSES | {
    name: pass_of(activation, f"{name}_rough", activation.rough)
    for name, activation in COMPILED.items()
    if activation.rough
}
