"""The routers' treatment of scores: shares, the largest few and zeros, a sum of one."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from formats import kernels as compiled
from formats.core.choices import Range
from formats.core.epilogue import UNIT, gamma
from formats.core.sizes import T, p, size
from formats.machine.prices import Price, Timed, Work
from opmatrix.algebra.batch.extents import Extents
from opmatrix.algebra.routes import keep_taken, take_top
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.by_sequence import LEAST_SHARE
from opmatrix.runtime.declarations.costs import Costs, row_width
from opmatrix.runtime.declarations.fitting import TIMED_ROUTERS, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads, Rows
from opmatrix.runtime.declarations.padded import Padded, keep_largest, share_rows
from opmatrix.runtime.declarations.pullbacks import Cotangents, softmax_pullback
from opmatrix.runtime.declarations.telling import telling_values, tied_rows

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

Switch = Annotated[int, Range(int, 0, 1)]
Few = Annotated[int, Range(int, 0, 2**20)]
k = size("k")  # largest columns of a head, the others become 0


def in_heads(x: Padded) -> Padded:
    """Return rows as those of one head."""
    return x[:, None] if x.ndim == 2 else x


def in_columns(by: Padded) -> Padded:
    """Return a number of each head as a column."""
    return by if by.ndim == 2 else by[:, :, 0]


def by_heads(x: Any) -> Doubles:
    """Return heads x rows x columns."""
    return np.swapaxes(in_heads(x), 0, 1)


def soft_shares(x: Doubles) -> Doubles:
    """Return the softmax of the last axis; NaN where the largest number is infinite."""
    with np.errstate(invalid="ignore"):
        grown = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(grown / grown.sum(-1, keepdims=True))


def chosen_entries(a: Arguments, by: Doubles) -> Doubles:
    """Return ones where `by` is among the k largest of its head, and zeros."""
    scores = by_heads(by)
    return np.swapaxes(keep_taken(np.ones(scores.shape), scores, take_top(scores, a.k)), 0, 1).reshape(by.shape)


def time_gates(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield calls for routers of a few sizes: with shares, the largest few, and a sum of one."""
    for cols, most in TIMED_ROUTERS:
        for rows in (1, 16, 256):
            x, out = numbers.some(rows, 1, cols), numbers.room(rows, 1, cols)
            yield {"T": rows, "p": cols, "k": most}, partial(compiled.gate_rows, x, out, None, most, True, True)


@kernel(
    launches=True,
    price=Price(
        (T * p, T * p * k), lambda tile: Work(vector=(20 + k) * T * p, moved=2 * T * p), time_gates, common=False
    ),
)
class gate(Arguments):
    """Rows, with `shares` their softmax, with k those where `by` (x itself, where nothing is given) is among the k
    largest of its head and 0 elsewhere, with `unit` over their sum, in this order."""

    def run(
        out: Any, x: Rows | Heads, by: Rows | Heads | None = None, *, k: Few = 0, shares: Switch = 0, unit: Switch = 0
    ) -> None:
        """Launch the compiled gate on rows as heads."""
        compiled.gate_rows(
            in_heads(x), in_heads(out), None if by is None else in_heads(by), k, bool(shares), bool(unit)
        )

    def shape(a) -> Rows | Heads:
        """Return the shape of x. Raises ValueError if `by` has other heads or columns, or if k exceeds the columns."""
        if a.by is not None:
            same("by", a.by[:2], a.x[:2])
        if a.k > a.x.cols:
            raise ValueError(f"k: {a.k} is outside the {a.x.cols} columns of x")
        return Rows(a.x.cols) if isinstance(a.x, Rows) else Heads(a.x.heads, a.x.cols)

    def keeps(a) -> bool:
        """True if k is set: the k largest numbers of each row are chosen, and the others zeroed."""
        return bool(a.k)

    def reference(a) -> Doubles:
        """Compute the softmax, keep the k largest by `by`, divide by the sum: each step if it is chosen."""
        result = soft_shares(a.x) if a.shares else a.x
        if a.k:
            by = by_heads(a.x if a.by is None else a.by)
            result = np.swapaxes(keep_taken(by_heads(result), by, take_top(by, a.k)), 0, 1).reshape(a.x.shape)
        return result / result.sum(-1, keepdims=True) if a.unit else np.asarray(result)

    def padded(a) -> Padded:
        """Compute the softmax, keep the k largest by `by`, divide by the sum: each step if it is chosen."""
        shares = share_rows(a.x) if a.shares else a.x
        if a.k:
            shares = keep_largest(shares, a.x if a.by is None else a.by, a.k)
        return shares / shares.sum(-1, keepdims=True) if a.unit else shares

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangent of x with the entries that are chosen now; the choice itself has none."""
        shares = soft_shares(a.x) if a.shares else a.x
        by = np.asarray(a.x if a.by is None else a.by)
        mask = (chosen_entries(a, by) if a.k else np.ones(a.x.shape)).astype(g.dtype)
        if a.unit:
            total = (shares * mask).sum(-1, keepdims=True)
            g = (g - (g * shares * mask / total).sum(-1, keepdims=True)) / total
        g = g * mask
        return {"x": softmax_pullback(shares, g) if a.shares else g}

    def bound(a) -> Doubles:
        """Bound the error: a share is a quotient of exponentials, whose arguments are rounded once. The choice of
        entries is exact, as their scores are."""
        x, cols = np.asarray(a.exact.x), a.x.shape[-1]
        result, error = x, np.zeros(x.shape)
        if a.shares:
            result = soft_shares(x)
            below = np.where(np.isneginf(x), 0.0, x.max(-1, keepdims=True) - x)  # the share of -inf is exactly 0
            error = result * (gamma(cols + 8) + 2 * UNIT * below) + LEAST_SHARE
            error = error + result * error.sum(-1, keepdims=True)
        if a.k:
            mask = chosen_entries(a, x if a.by is None else np.asarray(a.exact.by))
            result, error = result * mask, error * mask
        if not a.unit:
            return error
        total, size = result.sum(-1, keepdims=True), abs(result).sum(-1, keepdims=True)
        moved = (error.sum(-1, keepdims=True) + gamma(cols + 2) * size) / abs(total)
        return np.asarray((error + abs(result) * moved) / abs(total) * (1 + 2 * moved) + 2 * UNIT * abs(result / total))

    def telling(a, rng: "np.random.Generator") -> Iterator[dict[str, object]]:
        """Yield rows of every kind, and many with ties, also with zeros of either sign: of equal numbers the lower
        column is kept."""
        shapes = {name: operand.shape[1:] for name in ("x", "by") if (operand := getattr(a, name)) is not None}
        yield {**telling_values(shapes, rng)}
        tied = {name: tied_rows(shape, rng) for name, shape in shapes.items()}
        yield {**tied}
        if a.by is not None:
            yield {**tied, "x": rng.standard_normal(tied["x"].shape, np.float32)}

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """Return the price by the numbers that are read, once for each that is kept."""
        return [("gate", {"T": extents[out.space], "p": row_width(out), "k": a.k})]
