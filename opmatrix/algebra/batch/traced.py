"""The reading of a term that records its operations: a line for each, in order, with the shape of its result. Any other
reading can take the lines one by one, so a term is split, counted and run from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from opmatrix.algebra.batch.batch_sizes import Bounds, Role
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import weight
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import LiveSize, Shape
from opmatrix.algebra.term import Operator, read


class Operation(NamedTuple):
    """One operation: a method of readings, the lines that it takes, its attributes, and the shape that it gives.
    `level`: one row whatever x is, as a bias gives."""

    op: str
    args: tuple[int, ...]
    more: tuple[Any, ...]
    shape: Shape
    level: bool = False


@dataclass
class Trace:
    """The lines of a term; equal lines are one."""

    lines: list[Operation] = field(default_factory=list)
    known: dict[tuple[Any, ...], int] = field(default_factory=dict)

    def write(
        self, op: str, args: tuple[int, ...], more: tuple[Any, ...], shape: Shape, level: bool = False
    ) -> TracedValue:
        """Return the value of a line, which is added unless an equal one is there."""
        key = op, args, more, shape
        if key not in self.known:
            self.known[key] = len(self.lines)
            self.lines.append(Operation(op, args, more, shape, level))
        return TracedValue(self, self.known[key])


@dataclass(frozen=True, eq=False)
class TracedValue:
    """A value of a trace."""

    trace: Trace
    at: int

    @property
    def line(self) -> Operation:
        """The operation that made this value."""
        return self.trace.lines[self.at]

    @property
    def shape(self) -> Shape:
        """The heads, rows and columns of this value."""
        return self.line.shape

    @property
    def size(self) -> tuple[LiveSize, LiveSize]:
        """The rows and columns of this value."""
        return self.shape.size

    @property
    def heads(self) -> LiveSize:
        """The heads of this value."""
        return self.shape.heads

    def then(self, op: str, *others: TracedValue, more: tuple[Any, ...] = (), shape: Shape) -> TracedValue:
        """Write the line of an operation on this value and others; it is one row where all of them are."""
        taken = (self, *others)
        level = all(value.line.level for value in taken)
        return self.trace.write(op, tuple(value.at for value in taken), more, shape, level)

    def act(self, matrix: Operator) -> TracedValue:
        """Note a matrix kind: none for the identity, one row for a constant, narrower operands for a range of
        columns."""
        shape = self.shape.act(matrix)
        if matrix.kind.name == "I":
            return self
        if matrix.constant:  # one row, of one head unless it is a stack
            heads = shape.heads if len(matrix.args[0].shape) == 3 else 1
            return self.trace.write("act", (), (matrix,), shape._replace(heads=heads), True)
        if matrix.kind.name == "cols" and (narrowed := narrow_columns(self, *matrix.args[:2])):
            return narrowed
        return self.then("act", more=(matrix,), shape=shape)

    def __add__(self, other: TracedValue) -> TracedValue:
        return self.then("add", other, shape=self.shape + other.shape)

    def __mul__(self, other: TracedValue) -> TracedValue:
        return self.then("mul", other, shape=self.shape * other.shape)

    def keep_top(self, by: TracedValue, k: LiveSize) -> TracedValue:
        """Note the k largest of each row by other numbers."""
        return self.then("keep_top", by, more=(k,), shape=self.shape.keep_top(by.shape, k))

    def turn(self) -> TracedValue:
        """Note the exchange of rows and columns."""
        return self.then("turn", shape=self.shape.turn())

    def beside(self, other: TracedValue) -> TracedValue:
        """Note columns beside columns."""
        return self.then("beside", other, shape=self.shape.beside(other.shape))

    def split(self, h: LiveSize) -> TracedValue:
        """Note the division of columns into h heads."""
        return self.then("split", more=(h,), shape=self.shape.split(h))

    def join(self, h: LiveSize) -> TracedValue:
        """Note heads put side by side."""
        return self.then("join", more=(h,), shape=self.shape.join(h))

    def repeat(self, h: LiveSize) -> TracedValue:
        """Note copies of heads, so that there are h; none if there are as many."""
        return self if self.shape.heads == h else self.then("repeat", more=(h,), shape=self.shape.repeat(h))

    def total(self) -> TracedValue:
        """Note the sum of all heads."""
        return self.then("total", shape=self.shape.total())

    def fold(self, h: LiveSize) -> TracedValue:
        """Note sums of groups of heads, so that h are left; none if there are as many."""
        return self if self.shape.heads == h else self.then("fold", more=(h,), shape=self.shape.fold(h))

    def shares(self, where: Pattern) -> TracedValue:
        """Note the softmax of each row over the columns that a pattern lets it see."""
        return self.then("shares", more=(where,), shape=self.shape)

    def dropped(self, name: str, rate: float) -> TracedValue:
        """Note a dropout by the mask of this name, at this rate."""
        return self.then("dropped", more=(name, rate), shape=self.shape)

    # Further operations of backward lines: sums over all rows, of all sequences, and values that forward saves.

    def kept(self) -> TracedValue:
        """Note that forward saves this value."""
        return self.then("kept", shape=self.shape)

    def summed(self) -> TracedValue:
        """Note the sum over all rows, of all sequences: one row."""
        return self.then("summed", shape=self.shape._replace(rows=1))

    def outer(self, other: TracedValue) -> TracedValue:
        """Multiply the numbers of each row by those of the other's row, and sum over all rows."""
        shape = self.shape.turn().product(other.shape, "sum", None)
        return self.then("outer", other, shape=shape)

    def spread(self, rows: LiveSize, cols: LiveSize) -> TracedValue:
        """Return the value itself: a line has no size of its own to spread to."""
        return self

    def pick(self, relation: Relation) -> TracedValue:
        """Note a pick of one row for each row of the relation."""
        return self.then("pick", more=(relation,), shape=self.shape.pick(relation))

    def shift(self, k: int) -> TracedValue:
        """Note a shift by k rows of the same sequence; a k below 0 looks behind."""
        return self.then("shift", more=(k,), shape=self.shape.shift(k))

    def backwards(self) -> TracedValue:
        """Note the rows of each sequence from the last to the first."""
        return self.then("backwards", shape=self.shape.backwards())

    def given(self, field: str, cols: LiveSize) -> TracedValue:
        """Note one-hot rows of a field of the batch."""
        return self.trace.write("given", (), (field, cols), self.shape.given(field, cols))

    def by_distance(self, table: Data, most: LiveSize) -> TracedValue:
        """Note a table of numbers by distance, one for each pair of tokens."""
        return self.trace.write("by_distance", (), (table, most), self.shape.by_distance(table, most))

    def at_distances(self, table: Data) -> TracedValue:
        """Note products with a table, of which each pair of tokens has one by its distance."""
        return self.then("at_distances", more=(table,), shape=self.shape.at_distances(table))

    def related(self, relation: Relation) -> TracedValue:
        """Note the entries of a relation that the batch gives."""
        return self.trace.write("related", (), (relation,), self.shape.related(relation))

    def entered(self, port: Port) -> TracedValue:
        """Note an input of the batch, with the shape that its port declares."""
        return self.entered_as(port, self.shape.entered(port))

    def entered_as(self, port: Port, shape: Shape) -> TracedValue:
        """Note an input of the batch, with another shape than that of its port."""
        return self.trace.write("entered", (), (port,), shape)

    def symbol(self, name: str, into: Shape, out: Shape) -> TracedValue:
        """Note an operator of which only name and sizes are known."""
        return self.then("symbol", more=(name, into, out), shape=self.shape.symbol(name, into, out))

    def product(self, other: TracedValue, over: type[Monoid], where: Pattern) -> TracedValue:
        """Note a product with another value, over a monoid and under a pattern."""
        return self.then("product", other, more=(over, where), shape=self.shape.product(other.shape, over, where))

    def scan(self, other: TracedValue, over: type[Monoid], where: Pattern) -> TracedValue:
        """Note rows merged with those before them, over a monoid and under a pattern."""
        return self.then("scan", other, more=(over, where), shape=self.shape.scan(other.shape, over, where))

    def delta_rule(self, *others: TracedValue) -> TracedValue:
        """Note keys, values, betas and decays of rows that correct a state, which this value reads."""
        return self.then("delta_rule", *others, shape=self.shape.delta_rule(*(each.shape for each in others)))


def narrow_columns(value: TracedValue, lo: LiveSize, hi: LiveSize) -> TracedValue | None:
    """Return columns lo to hi of x @ W + b as x @ W[:, lo:hi] + b[lo:hi]; None for a value that is no such sum or
    product."""
    line = value.line
    if line.op == "add":
        parts = [narrow_columns(TracedValue(value.trace, at), lo, hi) for at in line.args]
        return parts[0] + parts[1] if parts[0] and parts[1] else None
    if line.op != "act" or line.more[0].kind.matrix is None:
        return None
    matrix = line.more[0]
    if matrix.constant and matrix.args[0].shape and matrix.args[0].shape[-1] != 1:
        shape = line.shape._replace(cols=hi - lo)
        return value.trace.write("act", (), (matrix.kind(sliced(matrix.args[0], -1, lo, hi)),), shape, True)
    if matrix.kind is not weight:
        return None
    return TracedValue(value.trace, line.args[0]).act(weight(sliced(matrix.args[0], -1, lo, hi)))


def sliced(data: Data, axis: int, lo: LiveSize, hi: LiveSize) -> Data:
    """Return rows, columns or heads lo to hi of an array, without hi."""
    axis %= len(data.shape)
    if (lo, hi) == (0, data.shape[axis]):
        return data
    if isinstance(data, Promised):
        shape = (*data.shape[:axis], hi - lo, *data.shape[axis + 1 :])
        part: Data = Promised(f"{data}[{', '.join([':'] * axis + [f'{lo}:{hi}'])}]", shape)
    else:
        part = Data.of(data.array[(slice(None),) * axis + (slice(lo, hi),)])
        part.key = f"{data.key}[{axis}:{lo}:{hi}]"  # another array of these numbers is no part of this one
    part.cut_of, inside = data.cut_of or data, 0
    if data.cut_at is not None and data.cut_at[0] == axis - len(data.shape):
        inside = data.cut_at[1]
    part.cut_at = axis - len(data.shape), inside + lo, inside + hi
    return part


MATRIX_AXES: tuple[tuple[Role, int], ...] = ("cols", -1), ("rows", -2), ("heads", -3)


def sliced_at(data: Data, places: Mapping[Role, Bounds]) -> Data:
    """Return the part of an array at some columns, rows and heads, where it has these axes."""
    for role, axis in MATRIX_AXES:
        if role in places and len(data.shape) >= -axis:
            data = sliced(data, axis, *places[role])
    return data


class Reads(Protocol):
    """A line that takes the values of other lines, by their numbers."""

    @property
    def args(self) -> tuple[int, ...]:
        """The numbers of the lines whose values it takes."""


def renumber(lines: Sequence[Reads], results: set[int]) -> dict[int, int]:
    """Return the new number of each line that some results need, when the lines they do not need are left out."""
    needed = {*results}
    for at in range(len(lines) - 1, -1, -1):
        if at in needed:
            needed |= {*lines[at].args}
    return {at: k for k, at in enumerate(sorted(needed))}


def trace(term: Operator, x: Shape) -> tuple[list[Operation], int]:
    """Trace a term at x: return the lines that its result needs, and the line of the result. Line 0 is x."""
    start = Trace().write("input", (), (), x)
    result: TracedValue = read(term, start, {})
    lines = result.trace.lines
    place = renumber(lines, {0, result.at})
    needed_lines = [lines[at]._replace(args=tuple(place[a] for a in lines[at].args)) for at in place]
    return needed_lines, place[result.at]
