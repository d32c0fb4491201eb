"""Terms read at padded values, (batch, heads, rows, columns): the reading of steps that are terms, for other runtimes.

The same bodies that give shapes and numbers of a term give this reading. A value of S has one row in each sequence, one
of T as many as the longest has tokens; numbers of padding are computed, and no row that is a token reads them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self, cast

import numpy as np

from formats.core.activation import ACTIVATIONS
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Carrier, Monoid
from opmatrix.algebra.oracles import Cells, merged, reduced, tabulate_heads
from opmatrix.algebra.positions.patterns import Pattern, everyone, sequence
from opmatrix.algebra.shapes import LiveSize, S, Shape, Space, T, space
from opmatrix.algebra.term import Operator, read
from opmatrix.runtime.declarations.arguments import STATE_NAMES, VALUE_NAMES, Arguments, split_operands
from opmatrix.runtime.declarations.operands import Heads, Rows
from opmatrix.runtime.declarations.padded import (
    LOWEST,
    Padded,
    PaddedBatch,
    Unpadded,
    activate_rows,
    bias_scores,
    group_heads,
    into_heads,
    keep_largest,
    multiply_distances,
    out_of_heads,
    pass_valid,
    pick_padded,
    share_rows,
    share_seen,
    take_rows,
)
from opmatrix.runtime.terms import parse_operator

ROW_AXIS = -2  # the axis of rows; that of columns is the last
THREE_AXES = 3  # of a row for each head, (heads, 1, columns)
MOST_UNROLLED = 1 << 10  # entries that are functions, each of which becomes operations of its own


def float_array(data: Data) -> Padded:
    """Return the array of an attribute, in float32."""
    return np.asarray(data.array, np.float32)


class Selection(NamedTuple):
    """One-hot rows: (batch, rows) numbers below `limit`, whose product with a matrix takes rows of it."""

    ids: Padded
    limit: int

    def __matmul__(self, matrix: Padded) -> Padded:
        """Return the rows of a matrix that the numbers name, (batch, 1, rows, columns)."""
        return np.expand_dims(take_rows(self.ids, matrix), 1)

    def array(self) -> Padded:
        """Return zeros and ones, (batch, 1, rows, limit)."""
        hot = np.where(np.expand_dims(self.ids, 2) == np.arange(self.limit), 1.0, 0.0)
        return np.expand_dims(hot, 1)


class RelationEntries(NamedTuple):
    """A relation of sequences: numbers (batch, length), and which of them are there."""

    numbers: Padded
    present: Padded

    def array(self) -> Padded:
        """Return the numbers as rows of S, (batch, 1, 1, length)."""
        return np.expand_dims(np.expand_dims(self.numbers, 1), 1)


@dataclass(frozen=True, eq=False)
class PaddedReading:
    """A value of a term at a padded batch: its shape in the algebra, and its array (batch, heads, rows, columns), in
    which an axis of size one may stand for any size."""

    shape: Shape
    value: Padded
    batch: PaddedBatch
    values: Sequence["PaddedReading"] = ()
    last: str = ""  # the relation that its rows were picked by, if they were
    enter: Callable[[Data], Padded] = float_array  # the array of an attribute, as it enters
    states: Mapping[int, Padded] = field(default_factory=dict)  # last rows of values, or of a scan, by their numbers
    number: int | None = None  # of the value that it is, if it is one

    def of(self, value: Padded, shape: Shape) -> Self:
        """Return a reading of the same batch."""
        return replace(self, value=value, shape=shape, number=None)

    @property
    def array(self) -> Padded:
        """The value as an array of four axes."""
        return self.value.array() if isinstance(self.value, Selection | RelationEntries) else self.value

    @property
    def size(self) -> tuple[LiveSize, LiveSize]:
        """The rows and columns of the value."""
        return self.shape.size

    @property
    def heads(self) -> LiveSize:
        """The heads of the value."""
        return self.shape.heads

    def spread(self, rows: LiveSize, cols: LiveSize) -> Self:
        """Return the value as it is, of another shape: it spreads where it is used."""
        return self.of(self.value, self.shape.spread(rows, cols))

    def __add__(self, other: Self) -> Self:
        return self.of(self.array + other.array, self.shape + other.shape)

    def __mul__(self, other: Self) -> Self:
        return self.of(self.array * other.array, self.shape * other.shape)

    def keep_top(self, by: Self, k: int) -> Self:
        """Keep the k largest of each row. Raises Unpadded for columns that are tokens."""
        self.refuse_tokens("keep_top")
        return self.of(keep_largest(self.array, by.array, k), self.shape.keep_top(by.shape, k))

    def turn(self) -> Self:
        """Exchange rows and columns."""
        return self.of(np.swapaxes(self.array, ROW_AXIS, -1), self.shape.turn())

    def wide(self) -> Padded:
        """Return the array with all its columns, where these are no tokens."""
        array, cols = self.array, self.shape.cols
        spreads = isinstance(cols, int) and array.shape[-1] != cols
        return array * np.ones(int(cols), np.float32) if spreads else array

    def full(self) -> Padded:
        """Return the array with all its rows and columns, for each sequence."""
        array, tokens = self.wide(), self.shape.rows is T
        if array.shape[0] != 1 and (array.shape[ROW_AXIS] != 1 or not tokens):
            return array
        zeros = self.batch.positions if tokens else self.batch.lengths
        return array + np.expand_dims(np.expand_dims(zeros * 0.0, 1), 3)

    def beside(self, other: Self) -> Self:
        """Put columns next to columns."""
        parts = self.full(), other.full()
        heads = max(part.shape[1] for part in parts)
        rows = [group_heads(part, heads, 1) for part in parts]
        return self.of(np.concatenate(rows, -1), self.shape.beside(other.shape))

    def split(self, h: int) -> Self:
        """Split columns into heads."""
        return self.of(np.moveaxis(into_heads(self.full()[:, 0], h), 2, 1), self.shape.split(h))

    def join(self, h: int) -> Self:
        """Put heads side by side."""
        array = group_heads(self.full(), h, 1)
        return self.of(np.expand_dims(out_of_heads(np.swapaxes(array, 1, 2)), 1), self.shape.join(h))

    def repeat(self, h: int) -> Self:
        """Repeat each head."""
        return self.of(group_heads(self.array, h, 1), self.shape.repeat(h))

    def total(self) -> Self:
        """Sum all heads."""
        return self.of(self.array.sum(1, keepdims=True), self.shape.total())

    def given(self, field: str, cols: int) -> Self:
        """Return the one-hot rows of a field of these rows."""
        ids = self.batch.field(field)
        if self.shape.rows is S and not self.last:
            raise Unpadded(f"it reads the field {field} of rows that were pooled")
        ids = np.expand_dims(self.batch.pick(ids, self.last), 1) if self.shape.rows is S else ids
        return self.of(Selection(ids, cols), self.shape.given(field, cols))

    def by_distance(self, table: Data, most: int) -> Self:
        """Return a number for each pair of tokens, by their distance."""
        at = self.batch.positions
        numbers = bias_scores(np.zeros((1, 1, 1, 1), np.float32), self.enter(table), at, at)
        return self.of(numbers, self.shape.by_distance(table, most))

    def at_distances(self, table: Data) -> Self:
        """Return products with a table, of which each pair of tokens has one by its distance."""
        products = multiply_distances(self.full(), self.enter(table), self.batch.positions)
        return self.of(products, self.shape.at_distances(table))

    def related(self, relation: Relation) -> Self:
        """Return the entries of a relation of sequences. Raises Unpadded for another one."""
        numbers = self.batch.weights(relation)
        there = numbers > 0 if relation.picked else self.batch.valid
        return self.of(RelationEntries(numbers, there), self.shape.related(relation))

    def entered(self, port: Port) -> Self:
        """Raise Unpadded: other runtimes have no such input."""
        raise Unpadded(f"it reads the input {port}, which only a batch of this project can give")

    def pick(self, relation: Relation) -> Self:
        """Pick the first or the last row of each sequence. Raises Unpadded for another relation."""
        rows = pick_padded(self.batch, np.swapaxes(self.full(), 1, 2), relation)
        picked = np.expand_dims(rows, 2)
        return replace(self.of(picked, self.shape.pick(relation)), last=relation.name)

    def symbol(self, name: str, into: Shape, out: Shape) -> Self:
        """Return the value of a step."""
        entered = self.values[int(name[1:])]
        return replace(self.of(entered.value, entered.shape), number=int(name[1:]))

    def shares(self, where: Pattern) -> Self:
        """Compute the softmax of each row over the columns that it sees."""
        if self.shape.cols is not T:
            return self.of(share_rows(self.array), self.shape)
        return self.of(share_seen(self.array, self.batch.seen(where), where.reflexive), self.shape)

    def dropped(self, name: str, rate: float) -> Self:
        """Raise Unpadded: a mask of a batch is no part of a program that is exported."""
        raise Unpadded(f"it drops numbers by the mask {name} of a batch")

    def fold(self, h: int) -> Self:
        """Sum neighbouring heads, so that h are left."""
        heads = np.moveaxis(self.array, 1, -1)
        return self.of(np.moveaxis(into_heads(heads, h).sum(-1), -1, 1), self.shape.fold(h))

    def refuse_tokens(self, what: object) -> None:
        """Raise Unpadded for columns that are the tokens of all sequences."""
        if isinstance(self.shape.cols, Space):
            raise Unpadded(f"{what} of columns that are rows of {self.shape.cols}: it would join sequences")

    # ---- matrices of entries, and products

    def act(self, term: Operator) -> Self:
        """Apply an operator matrix."""
        shape, kind = self.shape.act(term), term.kind
        if kind.name in ACTIVATIONS and not term.args:
            return self.of(activate_rows(self.array, kind.name), shape)
        operands = [self.enter(a) if isinstance(a, Data) else a for a in term.args]
        if kind.name == "const":
            return self.of(as_heads(operands[0]), shape)
        if kind.dense is not None:
            if not term.entrywise and not term.diagonal:
                self.refuse_tokens(kind.name)
            chosen = kind.name == "weight" and isinstance(self.value, Selection) and operands[0].ndim == 2
            value = self.value if chosen else self.array if term.entrywise else self.wide()
            return self.of(kind.dense(value, *operands), shape)
        self.refuse_tokens(kind.name)
        matrix, over = reduced(term)
        heads = [*tabulate_heads(matrix, int(self.shape.cols))]
        parts = [self.reduce(over, *cells, h if len(heads) > 1 else None) for h, cells in enumerate(heads)]
        return self.of(np.concatenate(parts, 1) if len(parts) > 1 else parts[0], shape)

    def reduce(self, over: type[Monoid], cells: Cells, n: int, p: int, head: int | None) -> Padded:
        """Reduce by one head's matrix over a monoid. Raises Unpadded for too many entries that are functions."""
        x = self.wide()
        x = x if head is None or x.shape[1] == 1 else x[:, head : head + 1]
        if not any(map(callable, cells.values())):
            right, present = np.zeros((n, p), np.float32), np.zeros((n, p), bool)
            for at, number in cells.items():
                right[at], present[at] = cast("float", number), True
            return multiply_over(over, x, right, None if present.all() else present)
        if len(cells) > MOST_UNROLLED:
            raise Unpadded(f"a matrix of {len(cells):,} functions; {MOST_UNROLLED:,} are supported")
        lifted = [(j, over.entry(e, i)(x[..., i : i + 1])) for (i, j), e in cells.items()]
        columns = [finish_columns(over, merged(over, (c for k, c in lifted if k == j))) for j in range(p)]
        return np.concatenate([column + x[..., :1] * 0.0 for column in columns], -1)

    def product(self, other: Self, over: type[Monoid], where: Pattern) -> Self:
        """Multiply value by value over a monoid, over the keys that are seen."""
        shape = self.shape.product(other.shape, over, where)
        seen = self.seen(where)
        left, right = self.array, other.full()
        if over is monoids.softmax and seen is not None:
            reflexive = where.reflexive or isinstance(self.value, RelationEntries)
            return self.of(share_seen(left, seen, reflexive) @ right, shape)
        if left.shape[-1] == 1 and self.shape.cols is T:
            left = left + np.expand_dims(np.expand_dims(self.batch.positions * 0.0, 1), 1)
        elif left.shape[-1] == 1 and right.shape[ROW_AXIS] != 1:
            left = left * np.ones(right.shape[ROW_AXIS], np.float32)
        return self.of(multiply_over(over, left, right, seen), shape)

    def scan(self, other: Self, over: type[Monoid], where: Pattern) -> Self:
        """Merge the rows that each row sees, column by column: all pairs of rows at once where the monoid can, else row
        after row."""
        shape, (x, w) = self.shape.scan(other.shape, over, where), (self.full(), other.full())
        carrier = over.lifted(x, w, np.expand_dims(np.expand_dims(self.batch.positions, 1), 3))
        carrier = spread_carrier(carrier, x * 0.0 + w * 0.0)
        if over not in MERGES_OF_ALL or self.states:
            return self.of(self.pass_carriers(carrier, over, where), shape)
        pairs = np.expand_dims(self.batch.seen(where), -1)
        rows = tuple(np.expand_dims(c, 2) for c in carrier)
        masked = tuple(np.where(pairs, c, unit) for c, unit in zip(rows, over.unit(), strict=True))
        return self.of(finish_columns(over, reduce_all(over, masked, T)), shape)

    def pass_carriers(self, carrier: Carrier, over: type[Monoid], where: Pattern) -> Padded:
        """Merge carriers (batch, heads, rows, columns) row after row, from the last result of a session's state if
        there is one. Raises Unpadded for a pattern that is no prefix of a sequence, and for a monoid that keeps all
        numbers."""
        if not where.prefix or over.width is None:
            raise Unpadded(f"a scan over {over.__name__} of rows where {where}")
        zeros = self.batch.zeros(int(carrier[0].shape[1]), int(carrier[0].shape[3]))
        states = [zeros + unit for unit in over.unit()]
        if self.states:
            states[finished_number(over)] = self.states[0][:, :, 0]

        def merge(before: Sequence[Padded], row: Sequence[Padded]) -> tuple[Sequence[Padded], Padded]:
            """Merge one row, and finish."""
            merged = over.merged(tuple(before), tuple(row))
            return merged, finish_columns(over, merged)

        rows = [np.moveaxis(part, 2, 1) for part in carrier]
        last, results = pass_valid(merge, states, rows, self.batch.valid)
        if where.whole:
            return np.expand_dims(finish_columns(over, tuple(last)), 2)
        return np.moveaxis(results, 1, 2)

    def delta_rule(self, *others: Self) -> Self:
        """Raise Unpadded: a state that rows correct is no product of pairs of rows."""
        raise Unpadded("the delta rule")

    def shift(self, k: int) -> Self:
        """Return the row k before each row in its sequence, zeros where there is none."""
        held = None if self.number is None else self.states.get(self.number)
        return self.of(self.batch.shift_rows(self.full(), k, held), self.shape.shift(k))

    def seen(self, where: Pattern) -> Padded:
        """Return a mask of the columns that rows see, (batch, 1, rows, columns); None where each sees all. Raises
        Unpadded for rows that see those of other sequences."""
        if self.shape.cols is not T:
            if where is not everyone:
                raise Unpadded(f"the pattern {where} of columns that are no tokens")
            return None
        if isinstance(self.value, RelationEntries):
            if where is not everyone:
                raise Unpadded(f"the pattern {where} of a relation")
            return np.expand_dims(np.expand_dims(self.value.present, 1), 1)
        if self.shape.rows is S:
            at = None if not self.last else np.expand_dims(self.batch.pick(self.batch.positions, self.last), 1)
            if at is None and where != sequence:
                raise Unpadded(f"the pattern {where} of rows that were pooled")
            return self.batch.seen(where, np.zeros((1, 1), np.int64) if at is None else at)
        if self.shape.rows is not T:
            raise Unpadded(f"rows of {self.shape.rows} see tokens of all sequences")
        return self.batch.seen(where)


def as_heads(numbers: Padded) -> Padded:
    """Return a row of numbers, (columns) or (1, columns), or one for each head, (heads, 1, columns), as an array of
    four axes, (1, heads, 1, columns)."""
    row = numbers if numbers.ndim > 1 else np.expand_dims(numbers, 0)
    return np.expand_dims(row if row.ndim == THREE_AXES else np.expand_dims(row, 0), 0)


# ---- products over monoids


def multiply_over(over: type[Monoid], x: Padded, w: Padded, seen: Padded) -> Padded:
    """Compute the product over a monoid of x (.., rows, inner) and w (.., inner, columns). `seen` masks x, (.., rows,
    inner), or w, (inner, columns). Raises Unpadded for a monoid that cannot be merged over all tokens at once."""
    by_entry = seen is not None and getattr(seen, "ndim", 0) == 2
    if over.closed and not by_entry:
        return over.closed(x, w, seen)
    if over.width is None:
        raise Unpadded(f"the monoid {over.__name__} keeps all its numbers")
    inner = w.shape[ROW_AXIS]
    index = np.arange(inner).reshape(-1, 1) if isinstance(inner, int) else 0
    carrier = over.lifted(np.expand_dims(x, -1), np.expand_dims(w, -3), index)
    if seen is not None:
        there = seen if by_entry else np.expand_dims(seen, -1)
        carrier = tuple(np.where(there, c, unit) for c, unit in zip(carrier, over.unit(), strict=True))
    carrier = spread_carrier(carrier, np.expand_dims(x, -1) * 0.0 + np.expand_dims(w, -3) * 0.0)
    return finish_columns(over, reduce_all(over, carrier, inner))


def spread_carrier(carrier: Carrier, zeros: Padded) -> Carrier:
    """Return a carrier each of whose numbers has the axes of these zeros."""
    return tuple(c if getattr(c, "shape", ()) == zeros.shape else c + zeros for c in carrier)


def finish_columns(over: type[Monoid], carrier: Carrier) -> Padded:
    """Finish a carrier: values of several columns side by side."""
    values = over.finish(*carrier)
    return out_of_heads(np.stack(values, -1)) if isinstance(values, tuple) else values


def finished_number(over: type[Monoid]) -> int:
    """Return which number of a carrier is the result of a monoid that finishes with one of them."""
    marks = [object() for _ in over.unit()]
    return marks.index(over.finish(*marks))


def reduce_all(over: type[Monoid], carrier: Carrier, inner: LiveSize) -> Carrier:
    """Merge a carrier along its axis before the last: by a reduction, or neighbours two by two. Raises Unpadded for
    tokens, of which there are any number."""
    if over in MERGES_OF_ALL:
        return MERGES_OF_ALL[over](*carrier)
    if not isinstance(inner, int):
        raise Unpadded(f"the monoid {over.__name__} has no form that merges any number of tokens at once")
    while inner > 1:
        half, rest = inner // 2, inner % 2
        pairs = [tuple(c[..., at : 2 * half : 2, :] for c in carrier) for at in (0, 1)]
        joined = over.merged(*pairs)
        if rest:
            last = (c[..., 2 * half :, :] for c in carrier)
            joined = tuple(np.concatenate(parts, ROW_AXIS) for parts in zip(joined, last, strict=True))
        carrier, inner = joined, half + rest
    return tuple(c[..., 0, :] for c in carrier)


def sum_exponentials(top: Padded, mass: Padded) -> Carrier:
    """Merge all of logsumexp: the largest, and the mass under it."""
    most = top.max(ROW_AXIS, keepdims=True)
    finite = np.where(most > LOWEST, most, 0.0)
    return most[..., 0, :], (np.exp(np.maximum(top, LOWEST) - finite) * mass).sum(ROW_AXIS)


def gather_moments(n: Padded, u: Padded, s: Padded) -> Carrier:
    """Merge all of moments: count, mean, and squares about it."""
    count = n.sum(ROW_AXIS, keepdims=True)
    mean = (n * u).sum(ROW_AXIS, keepdims=True) / np.maximum(count, 1.0)
    squares = (n * (u - mean) * (u - mean) + s).sum(ROW_AXIS)
    return count[..., 0, :], mean[..., 0, :], squares


def each_sum(*carrier: Padded) -> Carrier:
    """Sum each number of the carriers."""
    return tuple(c.sum(ROW_AXIS) for c in carrier)


MERGES_OF_ALL: dict[type[Monoid], Callable[..., Carrier]] = {
    monoids.sum: each_sum,
    monoids.mean: each_sum,
    monoids.sumsq: each_sum,
    monoids.max: lambda c: (c.max(ROW_AXIS),),
    monoids.min: lambda c: (c.min(ROW_AXIS),),
    monoids.rectify: lambda c: (c.max(ROW_AXIS),),
    monoids.logsumexp: sum_exponentials,
    monoids.moments: gather_moments,
    monoids.moments.mean: gather_moments,  # type: ignore[attr-defined]    # one of its finishes
}


# ---- a step


def read_term(a: Arguments) -> Padded:
    """Return the result of a step that is a term. Raises Unpadded for a term that reads other sequences, or whose
    functions are no functions of numpy that graphs know."""
    _, arrays = split_operands(a)
    spaces = {entry[1]: entry[2] for entry in json.loads(a.term) if entry[0] == "value" and len(entry) == 3}
    values = [
        enter_value(getattr(a, name), getattr(a.shapes, name), spaces.get(k, "T"), a.batch)
        for k, name in enumerate(VALUE_NAMES)
        if getattr(a, name, None) is not None
    ]
    term = parse_operator(a.term, [value.shape for value in values], arrays)
    nothing = np.zeros((1, 1, 1, 1), np.float32)
    states = {k: held for k, name in enumerate(STATE_NAMES) if (held := getattr(a, name, None)) is not None}
    result: PaddedReading = read(term, PaddedReading(Shape(1, T, 1), nothing, a.batch, values, states=states), {})
    return leave_value(result)


def enter_value(value: Padded, shape: Rows | Heads, of: str, batch: PaddedBatch) -> PaddedReading:
    """Return the value of a step as a term reads it. Raises Unpadded for rows of another space than T and S."""
    heads, tokens = getattr(shape, "heads", 1), str(shape.space) == "T"
    if not tokens and str(shape.space) != "S":
        raise Unpadded(f"it reads rows of {shape.space}")
    array = value if hasattr(shape, "heads") else np.expand_dims(value, -2)
    array = np.swapaxes(array, 1, 2) if tokens else np.expand_dims(array, 2)
    return PaddedReading(Shape(heads, space(of), shape.cols), array, batch)


def leave_value(result: PaddedReading) -> Padded:
    """Return the result of a term in the axes of a step's value."""
    heads = int(result.shape.heads)
    array = group_heads(result.full(), heads, 1)
    rows = array[:, :, 0] if result.shape.rows is S else np.swapaxes(array, 1, 2)
    return rows if heads > 1 else rows[..., 0, :]
