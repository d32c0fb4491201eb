"""The rows of each sequence as one, and rows of length one."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from formats import kernels as compiled
from formats.core.choices import OneOf, Range
from formats.core.epilogue import UNIT
from formats.core.reductions import HOW, PICKS
from formats.core.sizes import S, T, p
from formats.machine.prices import Price, Timed, Work
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.by_sequence import LEAST_SHARE, Doubles, sentence_rows
from opmatrix.runtime.declarations.costs import Costs, one_pass
from opmatrix.runtime.declarations.fitting import ONE_PASS, after, passes, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Rows
from opmatrix.runtime.declarations.padded import Padded, reduce_padded
from opmatrix.runtime.declarations.pullbacks import Cotangents
from opmatrix.runtime.declarations.telling import short_sequences, telling_rows

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

How = Annotated[str, OneOf(HOW)]
Least = Annotated[float, Range(float, 0.0, 1.0)]


def reduce_rows(x: Doubles, how: str) -> Doubles:
    """Reduce rows (n, p) to one (p,): the first, the last, the largest, the sum over 1, n or √n, or the mean
    weighted by place."""
    places = np.arange(1.0, len(x) + 1)
    match how:
        case "first" | "last":
            return np.asarray(x[0 if how == "first" else -1])
        case "max":
            return np.asarray(x.max(0))
        case "by_place":
            return np.asarray(places @ x / places.sum())
    return np.asarray(x.sum(0) / {"sum": 1, "mean": len(x), "by_root": len(x) ** 0.5}[how])


def reduce_sentences(x: Doubles, batch: Batch, how: str) -> Doubles:
    """Reduce the rows of each sequence to one: (T, p) to (S, p)."""
    return np.stack([reduce_rows(x[rows], how) for rows in sentence_rows(batch)])


def pull_reduction(x: Doubles, how: str, g: Doubles) -> Doubles:
    """Return the cotangents (K, n, p) of rows (n, p) whose reduction has cotangents g (K, p)."""
    if how == "max":
        taken = np.zeros_like(x)
        np.put_along_axis(taken, x.argmax(0)[None], 1, 0)
        return np.asarray(g[:, None] * taken)
    return np.asarray(g[:, None] * reduce_rows(np.eye(len(x)), how).astype(x.dtype)[:, None])


def pull_length(x: Doubles, least: float | None, g: Doubles) -> Doubles:
    """Return the cotangent of rows that `lengthen` maps: the part of g across the row, over the row's length."""
    if least is None:
        return g
    length = np.sqrt(np.square(x).sum(-1, keepdims=True) + least)
    along = x / length
    return np.asarray((g - along * (g * along).sum(-1, keepdims=True)) / length)


def lengthen(x: Doubles, least: float | None) -> Doubles:
    """Return rows normalised to length one if `least` is given."""
    return x if least is None else np.asarray(x / np.sqrt(np.square(x).sum(1, keepdims=True) + least))


def time_pooling(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield calls of means over the sequences of each batch, at each width."""
    from formats.kernels.attentions.heads import layout

    for lengths in grid.batches:
        starts = layout(np.cumsum([0, *lengths]).tobytes())
        for width in grid.widths:
            x, out = numbers.some(sum(lengths), width), numbers.room(len(lengths), width)
            yield {"T": len(x), "S": len(out), "p": width}, partial(compiled.pool_rows, x, starts, out, "mean")


def unit_rows(x: Padded, least: float) -> Padded:
    """Divide rows by their length, to the square of which `least` is added."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + least)


@kernel(
    launches=True,
    changes_space=True,
    pads_sequences=True,
    price=Price((T * p, S * p), lambda tile: Work(vector=T * p, moved=(T + S) * p), time_pooling),
)
class pool(Arguments):
    """A row for each sequence, made of its rows; with `unit` of length one, the square of which it is added to."""

    part = "pooling"

    def run(out: Any, batch: Any, x: Rows, *, how: How, unit: Least | None = None) -> None:
        """Launch the compiled reduction of each sequence."""
        compiled.pool_rows(x, batch.starts, out, how, unit)

    def shape(a) -> Rows:
        """Return one row a sequence. Raises ValueError unless the rows of x are tokens."""
        same("x rows", a.x.space, T)
        return Rows(a.x.cols, space=S)

    def reference(a) -> Doubles:
        """Reduce each sequence in float64, and normalise the result if `unit` is set."""
        return lengthen(reduce_sentences(a.x, a.batch, a.how), a.unit)

    def padded(a) -> Padded:
        """Reduce the rows of each sequence that are no padding, and normalise the result if `unit` is set."""
        row = reduce_padded(a.x, a.batch, a.how)
        return row if a.unit is None else unit_rows(row, a.unit)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangents of each sentence's rows."""
        g = pull_length(reduce_sentences(a.x, a.batch, a.how), a.unit, g)
        parts = [pull_reduction(a.x[rows], a.how, g[:, s]) for s, rows in enumerate(sentence_rows(a.batch))]
        return {"x": np.concatenate(parts, 1)}

    def bound(a) -> Doubles:
        """Bound the error of a result that is computed in float64, with a norm too, and rounded once: the rounding of
        float64 itself is visible if a sum cancels."""
        row, size = (reduce_sentences(x, a.batch, a.how) for x in (a.exact.x, abs(a.exact.x)))
        doubt = 2 * len(a.x) * 2.0**-52
        return np.asarray(
            2 * UNIT * abs(lengthen(row, a.unit)) + doubt * (size if a.unit is None else 1.0) + LEAST_SHARE
        )

    def telling(a, rng: "np.random.Generator") -> Iterator[dict[str, object]]:
        """Yield short sequences, each of rows of one kind: as they are, scaled by half to one and a half, and with
        signs that make them cancel almost."""
        rows = telling_rows(a.x.shape[1:], rng)
        batch = short_sequences(len(rows))
        same, shares = rows[batch.sequence], rng.uniform(0.5, 1.5, (batch.rows, 1)).astype(np.float32)
        signs = np.float32(1 - 2 * (batch.positions[:, None] % 2))
        for x in (same, same * shares, same * signs):
            yield {"batch": batch, "x": x}

    def cost(a, out: Rows, extents: Extents) -> Costs:
        """Return the price by the rows that are read, and those that are written."""
        return [("pool", {"T": extents[S if a.how in PICKS else T], "S": extents[S], "p": out.cols})]


@kernel(
    launches=True,
    price=Price(
        ONE_PASS,
        lambda tile: Work(vector=3 * T * p, moved=2 * T * p),
        passes(lambda x, out: compiled.pool_rows(x, None, out, "first", 1e-12)),
    ),
)
class unit(Arguments):
    """Each row with length one, to the square of which `unit` is added."""

    part = "normalising"

    def run(out: Any, x: Rows, *, unit: Least) -> None:
        """Launch the reduction of single rows, which only normalises them."""
        compiled.pool_rows(x, None, out, "first", unit)

    def shape(a) -> Rows:
        """Return the rows of x."""
        return after(a, a.x.cols)

    def reference(a) -> Doubles:
        """Divide each row by its length, `unit` added to the square."""
        return lengthen(a.x, a.unit)

    def padded(a) -> Padded:
        """Divide each row by its length."""
        return unit_rows(a.x, a.unit)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the part of g across each row, over the row's length."""
        return {"x": pull_length(a.x, a.unit, g)}

    def bound(a) -> Doubles:
        """Bound the error by two roundings of each number, and the smallest share for tiny ones."""
        return 2 * UNIT * abs(lengthen(a.exact.x, a.unit)) + LEAST_SHARE

    cost = one_pass("unit")
