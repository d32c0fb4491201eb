"""What declarations of kernels share beside mathematics: what fits what, and the calls that a calibration times."""
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.core.sizes import T, p
from formats.core.stage import ROW_FIELDS, VECTORS
from formats.machine.prices import S2, Timed, d, h
from opmatrix.runtime.declarations.arguments import Arguments
from opmatrix.runtime.declarations.operands import Cache, Heads, Rows

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

ONE_PASS = (T * p,)                                             # what time grows with: numbers of the result
SCORED = S2 * h * d, S2 * h, T * h * d                      # products, exponentials, rows
TIMED_ROUTERS = (8, 2), (64, 8), (256, 8)                   # experts, and how many a row names, of calls that are timed
Cases = Callable[["Grid", "Numbers"], Iterator[Timed]]


# ---- shapes. ValueError says which does not fit

def same(what: str, found: object, wanted: object) -> None:
    if found != wanted: raise ValueError(f"{what}: {found}, where {wanted} is needed")


def after(a: Arguments, cols: int) -> Rows:
    """An epilogue keeps the shape: its vectors have one number a column, its residual the same columns."""
    for name in VECTORS:
        if (vector := getattr(a, name, None)) is not None: same(name, vector.shape, (cols,))
    for name in ROW_FIELDS:
        if (rows := getattr(a, name, None)) is not None: same(f"{name} columns", rows.cols, cols)
    return Rows(cols)


def heads_of(**values: Heads | Cache) -> int:
    """The most heads that one of them has; those of the others divide it."""
    most = max(value.heads for value in values.values())
    for name, value in values.items():
        if most % value.heads: raise ValueError(f"{name} heads: {value.heads}, which do not divide {most}")
    return most


def fit_bias(bias: object, heads: int) -> int:
    """The heads of scores with a table by distance, which may have more than queries and keys. ValueError for what is
    none, or has others."""
    if not isinstance(bias, np.ndarray): return heads
    if bias.ndim != 2 or bias.shape[1] < 3 or bias.shape[1] % 2 == 0:
        raise ValueError(f"bias: {bias.shape}, where (heads, a column for each distance from -most to most) is needed")
    if len(bias) != 1 and heads not in (1, len(bias)):
        raise ValueError(f"bias heads: {len(bias)}, where {heads}, or 1, are needed")
    return max(heads, len(bias))


def copied(a: Arguments) -> NDArray[np.float64]:
    """The bound of kernels that leave numbers as they are."""
    return np.zeros(1)


# ---- calls that are timed: only shapes matter to time

def passes(call: Callable[..., object]) -> Cases:
    """`call(x, out)` of rows."""
    def cases(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
        for sizes, x, out in grid.passes(numbers): yield sizes, partial(call, x, out)
    return cases


def timed_batches(call: Callable[..., Timed]) -> Cases:
    """`call(numbers, starts, sizes, h, d)` for sentences between these rows, in so many heads of so many columns."""
    def cases(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
        for lengths in grid.batches:
            starts = np.cumsum([0, *lengths])
            for heads, cols in grid.heads:
                sizes = {"T": sum(lengths), "S2": int(np.dot(lengths, lengths)), "h": heads, "d": cols}
                yield call(numbers, starts, sizes, heads, cols)
    return cases
