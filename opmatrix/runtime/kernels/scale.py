"""Rows times numbers: every number times a factor; each head of a row times a number of its own, summed."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from formats import kernels as compiled
from formats.core.epilogue import gamma
from formats.core.sizes import T, p
from formats.core.stage import SMALLEST
from formats.machine.prices import Price, Timed, Work, h
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, one_pass
from opmatrix.runtime.declarations.fitting import ONE_PASS, passes, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads, Rows
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.declarations.pullbacks import Cotangents
from opmatrix.runtime.kernels.gate import in_columns, in_heads

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers


@kernel(
    launches=True,
    inplace="x",
    price=Price(
        ONE_PASS, lambda tile: Work(vector=T * p, moved=2 * T * p), passes(lambda x, out: compiled.scale(x, 0.5, out))
    ),
)
class scale(Arguments):
    """Every number times a factor."""

    def run(out: Any, x: Rows, *, factor: float) -> None:
        """Launch the compiled product of all numbers by the factor."""
        compiled.scale(x, factor, out)

    def shape(a) -> Rows:
        """Return the rows of x. Raises ValueError for a view, whose rows are not contiguous."""
        if a.x.apart:
            raise ValueError(f"x: its rows are columns of a wider value, {a.x.apart} numbers apart")
        return Rows(a.x.cols)

    def reference(a) -> Doubles:
        """Multiply by the factor in float64."""
        return np.asarray(a.x * a.factor)

    def padded(a) -> Padded:
        """Multiply by the factor."""
        return a.x * a.factor

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g times the factor."""
        return {"x": g * a.factor}

    def bound(a) -> Doubles:
        """Bound the error: the factor is rounded, and the product."""
        return np.asarray(gamma(2) * abs(a.exact.x * a.factor))

    cost = one_pass("scale")


def sum_products(x: Doubles, by: Doubles) -> Doubles:
    """Sum the heads of each row, head h times by[t, h]: (T, h, p) and (T, h) to (T, p)."""
    return np.asarray((in_heads(x) * in_columns(by)[:, :, None]).sum(1))


def time_weighing(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield calls for a few numbers of heads, columns and rows."""
    for heads, cols in ((1, 64), (1, 1024), (8, 256)):
        for rows in (1, 16, 256):
            x, by, out = numbers.some(rows, heads, cols), numbers.some(rows, heads), numbers.room(rows, cols)
            yield {"T": rows, "h": heads, "p": cols}, partial(compiled.blend_heads, x, by, out)


@kernel(
    launches=True,
    price=Price(
        (T * h * p, T * p), lambda tile: Work(vector=2 * T * h * p, moved=T * h * p + 2 * T * p), time_weighing
    ),
)
class blend_heads(Arguments):
    """The sum of a row's heads, each times a number of its own, + residual; rows are one head."""

    def run(out: Any, x: Rows | Heads, by: Rows | Heads, residual: Rows | None = None) -> None:
        """Launch the compiled weighted sum of heads."""
        compiled.blend_heads(in_heads(x), in_columns(by), out, residual)

    def shape(a) -> Rows:
        """Return rows of one head's columns. Raises ValueError unless `by` has one number for each head."""
        same("by heads", getattr(a.by, "heads", 1), getattr(a.x, "heads", 1))
        same("by columns of a head", a.by.cols, 1)
        if a.residual is not None:
            same("residual columns", a.residual.cols, a.x.cols)
        return Rows(a.x.cols)

    def reference(a) -> Doubles:
        """Sum the weighted heads in float64, and add the residual if there is one."""
        return sum_products(a.x, a.by) if a.residual is None else np.asarray(sum_products(a.x, a.by) + a.residual)

    def padded(a) -> Padded:
        """Sum the weighted heads of each row, and add the residual if there is one."""
        products = a.x * a.by
        rows = products.sum(-2) if isinstance(a.shapes.x, Heads) else products
        return rows if a.residual is None else rows + a.residual

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g times each head's number, and its products with each head."""
        x, by = in_heads(a.x), in_columns(a.by)
        numbers = np.einsum("ktp,thp->kth", g, x)
        of_x = g[:, :, None] * by[:, :, None]
        return {
            "x": of_x.reshape(len(g), *a.x.shape),
            "by": numbers.reshape(len(g), *a.by.shape),
            **({} if a.residual is None else {"residual": g}),
        }

    def bound(a) -> Doubles:
        """Bound the error: a rounding for each product and each sum."""
        sizes = sum_products(abs(a.exact.x), abs(a.exact.by))
        if a.residual is not None:
            sizes = sizes + abs(a.exact.residual)
        return np.asarray(gamma(in_heads(a.x).shape[1] + 1) * sizes + SMALLEST)

    def cost(a, out: Rows, extents: Extents) -> Costs:
        """Return the price by the numbers that are read and written."""
        return [("blend_heads", {"T": extents[out.space], "h": getattr(a.x, "heads", 1), "p": out.cols})]
