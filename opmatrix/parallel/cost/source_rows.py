"""Rows of a source, which a tower before a decoder has of each sequence, patches or frames, in formulas beside tokens.
A part of a model that is read for s tokens has them renamed; a layer that meets both is read for equally many rows, and
the steps that come from the source are followed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.shapes import LiveSize, expression, size
from opmatrix.parallel.cost.quantities import Formula
from opmatrix.parallel.cost.step_costs import BackwardBooked
from opmatrix.parallel.sharding.redistribute import RankStep

DECODER_ROWS, SOURCE_ROWS = "s", "source"  # sizes in formulas; longer than an axis's letter, so that none is equal


class RowSpaces(NamedTuple):
    """The sizes that the rows and columns of a value count, where these are rows of a sequence."""

    rows: str = DECODER_ROWS
    cols: str = DECODER_ROWS

    def sized(self, dims: Dims) -> Dims:
        """Return dimensions with rows of the source where they were read for tokens."""
        return dims._replace(rows=sized(dims.rows, self.rows), cols=sized(dims.cols, self.cols))


def sized(count: LiveSize, name: str) -> LiveSize:
    """Return a count with tokens replaced by rows of another name."""
    renamed: LiveSize = expression(count).xreplace({size(DECODER_ROWS): size(name)}) if name != DECODER_ROWS else count
    return renamed


def rename_rows(formula: Formula, share: float = 1) -> Formula:
    """Return a formula of tokens for a source, of whose rows a `share` is meant.

    >>> str(rename_rows(Formula(((2.0, (("b", 1), ("s", 2))),)), 0.5))
    '0.5·b·source^2'"""
    terms = []
    for count, powers in formula.terms:
        named = dict(powers)
        renamed = {SOURCE_ROWS if name == DECODER_ROWS else name: power for name, power in named.items()}
        terms.append((count * share ** named.get(DECODER_ROWS, 0), tuple(sorted(renamed.items()))))
    return Formula(tuple(sorted(terms, key=lambda term: term[1])))


def with_source(booked: BackwardBooked, first: int) -> BackwardBooked:
    """Return the formulas of a layer whose input has rows of a source in its columns from `first` on."""
    spaces = list[RowSpaces]()
    for step in booked.steps:
        spaces.append(spaces_of(step, spaces, first))
    split = copy(booked.split)
    split.steps = [step._replace(dims=space.sized(step.dims)) for step, space in zip(booked.steps, spaces, strict=True)]
    return BackwardBooked(split)


def spaces_of(step: RankStep, spaces: Sequence[RowSpaces], first: int) -> RowSpaces:
    """Return what the rows and columns of a step's value count. Columns that are chosen of the input are of the source
    from `first` on; what is put back into them is the input's."""
    if not step.args:
        return RowSpaces()
    x = spaces[step.args[0]]
    if step.op == "act" and step.more[0].kind.name == "place":
        return RowSpaces()
    if step.op == "act" and step.more[0].kind.name == "cols" and step.more[0].attributes[0] == first:
        return RowSpaces(SOURCE_ROWS)
    if step.op == "turn":
        return RowSpaces(x.cols, x.rows)
    if step.op == "product":
        return RowSpaces(x.rows, spaces[step.args[1]].cols)
    return x
