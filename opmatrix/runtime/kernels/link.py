"""Rows joined by a relation that the batch gives: sums, means and maxima of several, or a single one."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from formats import kernels as compiled
from formats.core.choices import OneOf
from formats.core.epilogue import gamma
from formats.core.sizes import T, p, size
from formats.machine.prices import Price, Timed, Work
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents, entries
from opmatrix.algebra.batch.relations import Relation, Sparse, parse_relation
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, one_pass, row_width
from opmatrix.runtime.declarations.fitting import ONE_PASS, copied, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import C, Rows
from opmatrix.runtime.declarations.padded import Padded, pick_padded, reduce_padded
from opmatrix.runtime.declarations.pullbacks import Cotangents

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

Over = Annotated[str, OneOf(("sum", "mean", "max"))]


def relation_of(a: Arguments) -> Relation:
    """Return the relation of a step; in a search the step has the relation itself."""
    return a.relation if isinstance(a.relation, Relation) else parse_relation(a.relation)


def read_relation(a: Arguments) -> tuple[Relation, ...]:
    """Name the relation that the step reads."""
    return (relation_of(a),)


def entries_of(batch: Batch, relation: str, rows: int) -> Sparse:
    """Return the entries that a batch gives a relation, after a check that these name only existing rows."""
    sparse = batch.relation(parse_relation(relation))
    sparse.meets(rows)
    return sparse


def related(a: Arguments) -> Rows:
    """Return the shape: rows of the relation's space. Relations of caches have other kernels."""
    relation = parse_relation(a.relation)
    if str(C) in (relation.rows, relation.cols):
        raise ValueError(f"relation {relation}: rows of space {C} belong to the kernels of caches")
    same("x rows", str(a.x.space), relation.cols)
    return Rows(a.x.cols, space=size(relation.rows))


def time_links(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls with one entry a row."""
    for sizes, x, out in grid.passes(numbers):
        starts, at, ones = np.arange(len(x) + 1), numbers.rng.permutation(len(x)), np.ones(len(x), np.float32)
        yield sizes, partial(compiled.link_rows, x, starts, at, ones, out, "sum")


def time_picks(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield calls that gather all rows in random order, by numpy."""
    for sizes, x, out in grid.passes(numbers):
        yield sizes, partial(np.take, x, numbers.rng.permutation(len(x)), 0, out)


@kernel(
    changes_space=True,
    price=Price(
        ONE_PASS, lambda tile: Work(vector=2 * T * p, moved=2 * T * p), time_links, recorded=False, common=False
    ),
)
class link(Arguments):
    """A row for each row of a relation that the batch gives: what its entries join, times their numbers."""

    def run(out: Any, batch: Any, x: Rows, *, relation: str, over: Over) -> None:
        """Join the rows that the relation's entries name, by sum, mean or max."""
        sparse = entries_of(batch, relation, len(x))
        compiled.link_rows(x, sparse.starts, sparse.at, sparse.numbers, out, over)

    shape, relations = related, read_relation

    def reference(a) -> Doubles:
        """Join rows by definition; a row without entries is 0, or minus infinity under max."""
        sparse = entries_of(a.batch, a.relation, len(a.x))
        out = np.full((sparse.shape[0], a.x.shape[1]), -np.inf if a.over == "max" else 0.0)
        for i, (low, high) in enumerate(pairwise(sparse.starts)):
            parts = sparse.numbers[low:high, None] * a.x[sparse.at[low:high]]
            if low < high:
                out[i] = parts.max(0) if a.over == "max" else parts.sum(0) / (high - low if a.over == "mean" else 1)
        return out

    def padded(a) -> Padded:
        """Join the rows of each sequence, times the numbers of a relation that every batch has."""
        relation = relation_of(a)
        numbers = np.expand_dims(a.batch.weights(relation), 2)
        if a.over == "sum":
            return (np.where(numbers == 0, 0.0, a.x) * numbers).sum(1)
        if a.over == "mean":
            return reduce_padded(a.x * numbers, a.batch, "mean")
        return reduce_padded(a.x * numbers, a.batch, "max")

    def bound(a) -> Doubles:
        """Bound the error: a product for each entry, whose number is rounded, a sum and a quotient."""
        sparse = a.batch.relation(parse_relation(a.relation))
        out = np.zeros((sparse.shape[0], a.x.shape[1]))
        for i, (low, high) in enumerate(pairwise(sparse.starts)):
            parts, largest = abs(sparse.numbers[low:high, None] * a.exact.x[sparse.at[low:high]]), a.over == "max"
            if low < high:
                out[i] = gamma(3 + (high - low) * (not largest)) * (parts.max(0) if largest else parts.sum(0))
        return out

    def cost(a, out: Rows, extents: Extents) -> Costs:
        """Return the price by the entries that rows are joined from, and the rows: it is timed with one entry a row,
        and grows with both."""
        relation = relation_of(a)
        count = extents[entries[relation]] if relation.custom else extents[T]
        return [("link", {"T": (extents[out.space] + count) / 2, "p": row_width(out)})]


@kernel(
    changes_space=True,
    price=Price(ONE_PASS, lambda tile: Work(moved=2 * T * p), time_picks, recorded=False, common=False),
)
class pick(Arguments):
    """The row of x that a relation has as its only entry, for each row of the relation."""

    def run(out: Any, batch: Any, x: Rows, *, relation: str) -> None:
        """Gather the rows that the entries name, by numpy."""
        np.take(np.asarray(x), entries_of(batch, relation, len(x)).single(), 0, out)

    shape, relations = related, read_relation

    def reference(a) -> Doubles:
        """Gather the rows that the entries name."""
        return np.asarray(a.x[entries_of(a.batch, a.relation, len(a.x)).single()])

    def padded(a) -> Padded:
        """Pick the first or the last row of each sequence. Raises Unpadded for another relation."""
        return pick_padded(a.batch, a.x, relation_of(a))

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g added to the rows that were picked."""
        at, x = entries_of(a.batch, a.relation, len(a.x)).single(), np.zeros((len(g), *a.x.shape), g.dtype)
        for into, part in zip(x, g, strict=True):
            np.add.at(into, at, part)
        return {"x": x}

    bound, cost = copied, one_pass("pick")
