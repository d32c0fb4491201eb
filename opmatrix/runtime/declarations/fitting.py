"""Helpers of declarations of kernels besides mathematics: checks of shapes, and the calls that a calibration times."""

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

ONE_PASS = (T * p,)  # time grows with the numbers of the result
SCORED = S2 * h * d, S2 * h, T * h * d  # time grows with products, exponentials, rows
TIMED_ROUTERS = (8, 2), (64, 8), (256, 8)  # timed calls: experts, and experts that a row names
Cases = Callable[["Grid", "Numbers"], Iterator[Timed]]


# ---- shapes; a ValueError names the one that does not fit


def same(what: str, found: object, wanted: object) -> None:
    """Raise ValueError unless both values are equal; `what` names them in the message."""
    if found != wanted:
        raise ValueError(f"{what}: {found}, where {wanted} is needed")


def after(a: Arguments, cols: int) -> Rows:
    """Return the shape after an epilogue, which is unchanged: its vectors have one number a column, its residual has as
    many columns. Raises ValueError."""
    for name in VECTORS:
        if (vector := getattr(a, name, None)) is not None:
            same(name, vector.shape, (cols,))
    for name in ROW_FIELDS:
        if (rows := getattr(a, name, None)) is not None:
            same(f"{name} columns", rows.cols, cols)
    return Rows(cols)


def heads_of(**values: Heads | Cache) -> int:
    """Return the most heads of these values; the heads of the others divide it. Raises ValueError."""
    most = max(value.heads for value in values.values())
    for name, value in values.items():
        if most % value.heads:
            raise ValueError(f"{name} heads: {value.heads}, which do not divide {most}")
    return most


def fit_bias(bias: object, heads: int) -> int:
    """Return the heads of scores with a table by distance, which may have more than queries and keys. Raises ValueError
    for an array that is no such table, or has other heads."""
    if not isinstance(bias, np.ndarray):
        return heads
    if bias.ndim != 2 or bias.shape[1] < 3 or bias.shape[1] % 2 == 0:
        raise ValueError(f"bias: {bias.shape}, where (heads, a column for each distance from -most to most) is needed")
    if len(bias) != 1 and heads not in (1, len(bias)):
        raise ValueError(f"bias heads: {len(bias)}, where {heads}, or 1, are needed")
    return max(heads, len(bias))


def copied(a: Arguments) -> NDArray[np.float64]:
    """Return the error bound of kernels that leave numbers as they are: 0."""
    return np.zeros(1)


# ---- calls that are timed: only shapes matter to time


def passes(call: Callable[..., object]) -> Cases:
    """Return the timed cases of `call(x, out)` on rows."""

    def cases(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
        """Yield the sizes and the call for each shape of rows of the grid."""
        for sizes, x, out in grid.passes(numbers):
            yield sizes, partial(call, x, out)

    return cases


def timed_batches(call: Callable[..., Timed]) -> Cases:
    """Return the timed cases of `call(numbers, starts, sizes, h, d)` for sentences between these rows, with h heads of
    d columns."""

    def cases(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
        """Yield the timed call of each batch of sentences and each head shape of the grid."""
        for lengths in grid.batches:
            starts = np.cumsum([0, *lengths])
            for heads, cols in grid.heads:
                sizes = {"T": sum(lengths), "S2": int(np.dot(lengths, lengths)), "h": heads, "d": cols}
                yield call(numbers, starts, sizes, heads, cols)

    return cases
