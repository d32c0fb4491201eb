"""Two oracles from the same declarations. Entrywise: scalars, by definition. Dense: float64 arrays. Neither knows a
kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from formats.core.head_blocks import HeadBlocks
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch, Fields
from opmatrix.algebra.batch.relations import Relation, Sparse
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.monoid import Carrier, Monoid
from opmatrix.algebra.monoids import Visible
from opmatrix.algebra.named_sizes import require_numbers
from opmatrix.algebra.nodes import IN_RECURRENCES, Cell, ScalarBody
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.positions.visibility import Seeing, SeeingEntries, needed, visible, visible_pairs
from opmatrix.algebra.routes import LISTENING, keep_taken, take_top
from opmatrix.algebra.shapes import Shape, ShapeError, T, brief
from opmatrix.algebra.term import Body, Operator, read

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["dense", "entrywise"]
Cells: TypeAlias = dict[tuple[int, int], Cell]  # the entries of a matrix that are there, by place
ReadInput: TypeAlias = "ArrayLike | csr_array | Batch"  # an input at which a term is read
ORACLE_ROWS = 128  # rows of the sequences that are computed at a time


def reduced(term: Operator) -> tuple[Operator, type[Monoid]]:
    """Return the matrix of a matrix kind, and the monoid that it reduces over."""
    return term.args if term.kind.name == "over" else (term, monoids.sum)


def read_relation(batch: Fields | None, relation: Relation, rows: int | None = None) -> Sparse:
    """Return the entries of a relation, whose columns are checked against the number of rows where that is known."""
    entries = needed(batch, f"relation {relation}").relation(relation)
    if rows is not None:
        entries.meets(rows)
    return entries


def unbound(name: str) -> TypeError:
    return TypeError(
        f"symbol {name} stands for an unknown operator and has no numbers: "
        f"substitute(term, {{{name}: an operator}}) first"
    )


@dataclass(frozen=True, eq=False)
class DenseReading(Seeing):
    """A reading in whole arrays, (heads,) rows x columns, with the batch's fields of these rows. A selection stays CSR
    until it is multiplied, and a relation stays sparse."""

    value: Any
    batch: Fields | None = None
    dtype: DTypeLike = np.float64
    stored: dict[Data, Numeric] | None = None  # weights in dtype, kept while one term is read

    def of(self, value: object) -> Self:
        return replace(self, value=value)

    @cached_property
    def array(self) -> Numeric:
        return self.taken(self.whole())

    def whole(self) -> Numeric:
        array: Numeric = self.value.toarray() if hasattr(self.value, "toarray") else self.value
        return array.dense(self.dtype) if isinstance(array, Sparse) else array

    @property
    def size(self) -> tuple[int, int]:
        rows, columns = self.value.shape[-2:]
        return rows, columns

    @property
    def heads(self) -> int:
        return int(np.prod(self.value.shape[:-2]))

    def __add__(self, other: DenseReading) -> Self:
        return self.meet_entries(other, np.add)

    def __mul__(self, other: DenseReading) -> Self:
        return self.meet_entries(other, np.multiply)

    def keep_top(self, by: DenseReading, k: int) -> Self:
        numbers = by.array
        return self.of(keep_taken(np.broadcast_to(self.array, numbers.shape), numbers, take_top(numbers, k)))

    def beside(self, other: DenseReading) -> Self:
        parts = [
            np.broadcast_to(a, (*heads, *a.shape[-2:]))
            for a in (self.array, other.array)
            for heads in [np.broadcast_shapes(self.array.shape[:-2], other.array.shape[:-2])]
        ]
        return self.of(np.concatenate(parts, -1))

    def split(self, h: int) -> Self:
        flat = self.array.reshape(self.array.shape[-2:])
        return self.of(flat.reshape(len(flat), h, -1).swapaxes(0, 1))

    def join(self, h: int) -> Self:
        rows, cols = self.array.shape[-2:]
        return self.of(self.array.reshape(h, rows, cols).swapaxes(0, 1).reshape(rows, h * cols))

    def repeat(self, h: int) -> Self:
        stacked = self.array.reshape(-1, *self.array.shape[-2:])
        return self.of(stacked.repeat(h // len(stacked), 0))

    def total(self) -> Self:
        return self.of(self.array.sum(-3) if self.array.ndim == 3 else self.array)

    def given(self, field: str, cols: int) -> Self:
        return self.of(needed(self.batch, f"given({field!r}, {cols})").selection(field, cols).astype(self.dtype))

    def related(self, relation: Relation) -> Self:
        entries = read_relation(self.batch, relation)
        return replace(self, value=entries, batch=needed(self.batch, relation).space(relation.rows, entries.shape[0]))

    def entered(self, port: Port) -> Self:
        matrix = needed(self.batch, f"input {port}").input(port).astype(self.dtype)
        rows = needed(self.batch, port).space(port.space, len(matrix))
        return replace(self, value=matrix if matrix.ndim == 2 else matrix.swapaxes(0, 1), batch=rows)

    def pick(self, relation: Relation) -> Self:
        at = read_relation(self.batch, relation, self.size[0]).single()
        return replace(self, value=self.array[..., at, :], batch=needed(self.batch, relation).picked(at))

    def symbol(self, name: str, into: Shape, out: Shape) -> Self:
        raise unbound(name)

    def numbers(self, data: Data) -> Numeric:
        """Return the array of an attribute, in the number type of the computation."""
        stored = {} if self.stored is None else self.stored
        if data not in stored:
            stored[data] = data.array.astype(self.dtype)
        return stored[data]

    def act(self, term: Operator) -> Self:
        if (multiply := term.kind.dense) is not None:
            stacked = any(isinstance(a, Data) and len(a.shape) == 3 for a in term.args)
            operands = [self.numbers(a) if isinstance(a, Data) else a for a in term.args]
            if isinstance(self.value, HeadBlocks) and not stacked:
                shape = (*self.value.shape[:-1], self.value.shape[-1] if term.diagonal else 1)
                return self.in_heads(shape, lambda x: multiply(x, *operands))
            sparse = term.kind.name == "weight" and not stacked  # a stack multiplies arrays only
            return self.of(multiply(self.value if sparse else self.array, *operands))
        matrix, over = reduced(term)
        *shape, n = self.value.shape
        heads = [*tabulate_heads(matrix, n)]
        if len(heads) > 1:
            return self.of(np.stack([self.reduce(self.array, over, *entries) for entries in heads]))
        [(_, _, p)] = heads
        return self.in_heads((*shape, p * over.count(n)), lambda x: self.reduce(x, over, *heads[0]))

    def reduce(self, x: Numeric, over: type[Monoid], entries: Cells, n: int, p: int) -> Numeric:
        """Reduce by one head's matrix over a monoid: at once where entries are numbers, one by one where they are
        functions."""
        if any(map(callable, entries.values())):
            lifted = [(j, over.entry(e, i)(x[..., i])) for (i, j), e in entries.items()]
            columns = [merged(over, (c for k, c in lifted if k == j)) for j in range(p)]
            values = [over.finished(c, x.shape[:-1]) for c in columns]
            return np.stack(values, -1) if over.width == 1 else np.concatenate(values, -1)
        right, present = np.zeros((n, p), self.dtype), np.zeros((n, p), bool)
        for at, e in entries.items():
            right[at], present[at] = e, True
        if over.closed and present.all():
            return np.asarray(over.closed(x, right, None), self.dtype)
        return np.asarray(over.product(x, right, present=None if present.all() else present), self.dtype)

    def product(self, other: DenseReading, over: type[Monoid], where: Pattern) -> Self:
        if isinstance(self.value, Sparse):
            self.value.meets(other.size[0])
        seen = visible_pairs(where, self.batch, other.batch, self.size)
        if isinstance(self.value, Sparse):
            return self.of(self.gathered(other, over, seen))
        shape = (
            *np.broadcast_shapes(self.value.shape[:-2], other.value.shape[:-2]),
            self.size[0],
            other.size[1] * over.count(self.size[1]),
        )

        def make(left: Numeric, right: Numeric) -> Numeric:
            return np.asarray(over.product_of_seen(left, right, seen), self.dtype)

        return self.in_heads(shape, make, other)

    def gathered(self, other: DenseReading, over: type[Monoid], seen: Visible) -> Numeric:
        """Compute a product with a relation from its entries alone: the first entry of all rows, then the second, and
        so on."""
        right, shape = other.array, (*other.array.shape[:-2], self.size[0], other.size[1])
        total = tuple(np.full(shape, c, self.dtype) for c in over.unit())
        for rows, at, numbers in self.value.layers():
            if seen is not None:
                rows, at, numbers = (part[seen[rows, at]] for part in (rows, at, numbers))
            fresh = over.lifted(numbers[:, None].astype(self.dtype), right[..., at, :], at[:, None])
            carrier = over.merged(tuple(c[..., rows, :] for c in total), fresh)
            for c, new in zip(total, carrier, strict=True):
                c[..., rows, :] = new
        return np.asarray(over.finished(total, shape), self.dtype)


def merged(over: type[Monoid], carriers: Iterable[Carrier]) -> Carrier:
    """Merge carriers without finishing."""
    total = over.unit()
    for c in carriers:
        total = over.merged(total, c)
    return total


def tabulate_heads(matrix: Operator, n: int) -> Iterator[tuple[Cells, int, int]]:
    """Yield the entries that are there, by place, and the size: once, or once for each head of a stack."""
    *stack, _, p = matrix.shape_of(n)
    for k in range(*stack or [1]):
        args = [a.head(k) if isinstance(a, Data) else a for a in matrix.args]
        yield {(i, j): e for i in range(n) for j in range(p) if (e := matrix.kind.body(i, j, *args)) is not None}, n, p


class ExactData:
    """An array whose numbers are given in another number type."""

    def __init__(self, data: Data, number: ScalarBody) -> None:
        self.data, self.number, self.shape = data, number, data.shape

    def __getitem__(self, at: int | tuple[int, ...]) -> object:
        return self.number(self.data[at])

    @classmethod
    def of(cls, a: object, head: int, number: ScalarBody) -> object:
        """Return an attribute as it is, an array as the exact numbers of one head."""
        return cls(a.head(head), number) if isinstance(a, Data) else a


@dataclass(frozen=True, eq=False)
class Entrywise(SeeingEntries):
    """One entry at a time, in Python scalars: out[r, j] = finish of the merged lifts over i. `number` makes the
    scalars: float, Fraction for the polynomial fragment, or any class of a field that takes a float."""

    value: NDArray[np.object_]  # always heads x rows x columns
    batch: Fields | None = None
    number: ScalarBody = float
    present: NDArray[np.bool_] | None = None  # the entries of a relation

    def of(self, shape: tuple[int, ...], f: Body) -> Entrywise:
        out = np.empty(shape, dtype=object)
        for at in itertools.product(*map(range, shape)):
            out[at] = f(*at)
        return replace(self, value=out, present=None)

    @property
    def size(self) -> tuple[int, int]:
        _, rows, columns = self.value.shape
        return rows, columns

    @property
    def heads(self) -> int:
        return len(self.value)

    def spread(self, rows: int, cols: int) -> Entrywise:
        """Spread a value that is the same in all its rows, or columns, to this size."""
        _, r, c = self.value.shape
        return self.of(
            (len(self.value), rows, cols), lambda h, i, j: self.value[h, i if r == rows else 0, j if c == cols else 0]
        )

    def at(self, h: int, r: int, c: int) -> Any:
        H, _, C = self.value.shape
        return self.value[h if H > 1 else 0, r, c if C > 1 else 0]

    def pointwise(self, other: Entrywise, f: Body) -> Entrywise:
        shape = tuple(max(a, b) for a, b in zip(self.value.shape, other.value.shape, strict=True))
        return self.of(shape, lambda *at: f(self.at(*at), other.at(*at)))

    def __add__(self, other: Entrywise) -> Entrywise:
        return self.pointwise(other, lambda u, v: u + v)

    def __mul__(self, other: Entrywise) -> Entrywise:
        return self.pointwise(other, lambda u, v: u * v)

    def keep_top(self, by: Entrywise, k: int) -> Entrywise:
        def at(h: int, r: int, j: int) -> object:
            row = by.value[h, r]
            before = (v > row[j] if i > j else v >= row[j] for i, v in enumerate(row) if i != j)
            return self.kept(self.at(h, r, j), row, [*before], k)

        return self.of(by.value.shape, at)

    def kept(self, own: Any, row: Any, before: list[Any], k: int) -> object:
        """Return an entry where fewer than k of its row come before it, else 0; NaN where its row has one."""
        if any(isinstance(v, float) and isnan(v) for v in row):
            return nan
        return own if sum(map(bool, before)) < k else self.number(0.0)

    def turn(self) -> Entrywise:
        h, r, c = self.value.shape
        return self.of((h, c, r), lambda h, r, c: self.value[h, c, r])

    def beside(self, other: Entrywise) -> Entrywise:
        (h, r, c), (k, _, d) = self.value.shape, other.value.shape
        return self.of(
            (max(h, k), r, c + d),
            lambda h, r, j: self.value[h % len(self.value), r, j] if j < c else other.value[h % k, r, j - c],
        )

    def split(self, heads: int) -> Entrywise:
        _, r, c = self.value.shape
        return self.of((heads, r, c // heads), lambda h, r, j: self.value[0, r, h * (c // heads) + j])

    def join(self, heads: int) -> Entrywise:
        _, r, c = self.value.shape
        return self.of((1, r, c * heads), lambda _, r, j: self.value[j // c, r, j % c])

    def repeat(self, heads: int) -> Entrywise:
        h, r, c = self.value.shape
        return self.of((heads, r, c), lambda k, r, j: self.value[k * h // heads, r, j])

    def total(self) -> Entrywise:
        _, r, c = self.value.shape
        return self.of((1, r, c), lambda _, r, c: sum(self.value[:, r, c]))

    def given(self, field: str, cols: int) -> Entrywise:
        ids = needed(self.batch, f"given({field!r}, {cols})").field(field, cols)
        return self.of((1, len(ids), cols), lambda _, r, j: self.number(float(ids[r] == j)))

    def related(self, relation: Relation) -> Entrywise:
        entries = read_relation(self.batch, relation)
        numbers = entries.dense()
        reading = self.of((1, *entries.shape), lambda _, r, j: self.number(float(numbers[r, j])))
        rows = needed(self.batch, relation).space(relation.rows, entries.shape[0])
        return replace(reading, batch=rows, present=entries.there())

    def entered(self, port: Port) -> Entrywise:
        matrix = needed(self.batch, f"input {port}").input(port).reshape(-1, port.heads, port.columns)
        reading = self.of((port.heads, len(matrix), port.columns), lambda h, r, j: self.number(float(matrix[r, h, j])))
        return replace(reading, batch=needed(self.batch, port).space(port.space, len(matrix)))

    def pick(self, relation: Relation) -> Entrywise:
        at = read_relation(self.batch, relation, self.size[0]).single()
        reading = self.of((len(self.value), len(at), self.size[1]), lambda h, r, j: self.value[h, at[r], j])
        return replace(reading, batch=needed(self.batch, relation).picked(at))

    def symbol(self, name: str, into: Shape, out: Shape) -> Entrywise:
        raise unbound(name)

    def act(self, term: Operator) -> Entrywise:
        h, r, n = self.value.shape
        matrix, over = reduced(term)
        *stack, _, p = matrix.shape_of(n)  # a stack of weights has one for each head
        heads = [[ExactData.of(a, k, self.number) for a in matrix.args] for k in range(*stack or [1])]

        def out(h: int, r: int, j: int) -> object:
            entries = ((i, matrix.kind.body(i, j, *heads[h if stack else 0])) for i in range(n))
            return over.fold(over.entry(e, i)(self.at(h, r, i)) for i, e in entries if e is not None)

        return self.finished((max(h, *stack, 1), r, p), over.count(n), out, term)

    def product(self, other: Entrywise, over: type[Monoid], where: Pattern) -> Entrywise:
        (h, r, m), (k, _, p) = self.value.shape, other.value.shape

        def out(h: int, r: int, j: int) -> object:
            seen = (
                i
                for i in range(m)
                if (where is everyone or visible(where, self.batch, r, other.batch, i))
                and (self.present is None or self.present[r, i])
            )
            return over.fold(over.lifted(self.at(h, r, i), other.at(h, i, j), i) for i in seen)

        return self.finished((max(h, k), r, p), over.count(m), out, over.__name__)

    def finished(self, shape: tuple[int, ...], width: int, value: Body, doing: object) -> Entrywise:
        """Compute every value of every column. Raises TypeError for a value that is not exact where exact numbers are
        requested."""

        def at(h: int, r: int, j: int) -> object:
            try:
                result = value(h, r, j // width)
            except TypeError as error:
                if self.number is float:
                    raise
                raise TypeError(f"{brief(doing)} has no exact value: {error}") from error
            if isinstance(result, tuple):
                if len(result) != width:
                    raise TypeError(f"{brief(doing)} returns {len(result)} numbers, not {width}")
                result = result[j % width]
            result = result.item() if isinstance(result, np.ndarray) else result
            if self.number is not float and isinstance(result, float) and np.isfinite(result):
                raise TypeError(f"{brief(doing)} has no exact value: it is not a polynomial of its input")
            return result

        return self.of((*shape[:2], shape[2] * width), at)


def dense(term: Operator, x: ReadInput, batch: Batch | None = None, dtype: DTypeLike = np.float64) -> Numeric:
    """Compute the term at x in arrays of that number type. x is (rows, columns), (heads, rows, columns), a CSR
    selection or a Batch, which stands for its one-hot tokens; a result of one head is rows and columns, but where x is
    by heads. Sequences that do not see each other are computed a few at a time."""
    [array] = read_factors(term, [entered(term, x, batch, dtype)])
    return array


def dense_each(term: Operator, batches: Sequence[Batch]) -> list[Numeric]:
    """Compute the term at several batches in float64: the bits of `dense` at each. A weight is widened once for all of
    them, unless routes are listened to, batch by batch."""
    if LISTENING.get() is not None:
        return [dense(term, batch) for batch in batches]
    return read_factors(term, [entered(term, batch) for batch in batches])


def read_factors(term: Operator, inputs: Sequence[DenseReading]) -> list[Numeric]:
    """Return the arrays of a term at several inputs, which go through one factor after the other together."""
    values = [*inputs]
    for f in factors(term):
        stored = dict[Data, Numeric]()
        values = [apply_factor(f, value, stored) for value in values]
    arrays = [np.asarray(value.array) for value in values]
    return [
        array[0] if array.ndim == 3 and len(array) == 1 and before.value.ndim == 2 else array
        for array, before in zip(arrays, inputs, strict=True)
    ]


def entered(term: Operator, x: ReadInput, batch: Batch | None = None, dtype: DTypeLike = np.float64) -> DenseReading:
    """Return the input of a term, as its first factor takes it. Raises as `dense` does."""
    x, batch = check_input(term, x, batch)
    return DenseReading(x.astype(dtype) if hasattr(x, "toarray") else np.asarray(x, dtype), batch, dtype)


def apply_factor(term: Operator, x: DenseReading, stored: dict[Data, Numeric] | None = None) -> DenseReading:
    """Apply one factor of the model; scores are only ever as large as one sequence, or as those of ORACLE_ROWS rows.
    `stored` gets its weights in the number type of x, for other inputs of that type."""
    value, batch, stored = x.value, x.batch, {} if stored is None else stored

    def at(value: object, batch: Fields | None) -> DenseReading:
        reading: DenseReading = read(term, DenseReading(value, batch, x.dtype, stored), {})
        return reading.of(reading.array)

    if not isinstance(batch, Batch) or len(batch) < 2 or term.row_wise or not separate(term):
        return at(value, batch)
    pieces = [*(batch if batch.alone else batch.pieces(ORACLE_ROWS))]
    starts = np.cumsum([0, *(piece.rows for piece in pieces)])
    parts = [value[:, lo:hi] if value.ndim == 3 else value[lo:hi] for lo, hi in pairwise(starts)]
    computed, routes = [], LISTENING.get()
    if routes:
        routes.go_on()
    for part, one in zip(parts, pieces, strict=True):
        if routes:
            routes.go_back()
        computed.append(at(part, one).array)
    if routes:
        routes.go_on()
    return DenseReading(np.concatenate(computed, -2), batch, x.dtype)


def entrywise(
    term: Operator, x: ReadInput, batch: Batch | None = None, number: ScalarBody = float
) -> NDArray[np.object_]:
    """Compute the term at x by definition, one scalar after another: an object array, heads x rows x columns.
    `number=Fraction` is exact, for polynomial terms. Raises TypeError naming the operator that is not polynomial."""
    x, batch = check_input(term, x, batch)
    x = np.asarray(x.toarray() if hasattr(x, "toarray") else x)
    start = Entrywise(x if x.ndim == 3 else x[None], batch, number)

    def one(*at: int) -> object:  # Python's own: Fractions of numpy's whole numbers overflow
        return v if isinstance(v := start.value.item(at), Fraction) else number(v)

    exact = start.of(start.value.shape, one)
    values: NDArray[np.object_] = term(exact).value
    return values


def check_input(term: Operator, x: Any, batch: Batch | None) -> tuple[Any, Batch | None]:
    """Return x as an array or a selection, and its batch, checked against the input that the term takes."""
    require_numbers(term)
    if isinstance(x, Batch):
        x, batch = first(term, x), x
    x = x if hasattr(x, "toarray") else np.asarray(x)

    def wrong(said: str) -> ShapeError:
        return ShapeError(f"({brief(term)}) at x: x has {said}")

    if x.ndim not in (2, 3):
        raise wrong(f"shape {x.shape}: (rows, columns) or (heads, rows, columns)")
    if x.dtype.kind not in "biufO":
        raise TypeError(f"({brief(term)}) at x: x has numbers of type {x.dtype}: give real ones")
    if batch is not None and x.shape[-2] != batch.rows:
        raise wrong(f"{x.shape[-2]} rows, but its {batch}")
    if term.into.rows is not T:
        raise wrong(f"its rows are {T}, the tokens of a batch, but the term takes rows of {term.into.rows}")
    term(Shape(x.shape[0] if x.ndim == 3 else 1, T, x.shape[-1]))
    return x, batch


def first(term: Operator, batch: Batch) -> csr_array | NDArray[np.float64]:
    """Return the one-hot tokens that a term takes; for a term that takes any columns, such as one that begins with an
    input, a column that no operation reads."""
    return batch.selection("tokens", term.into.cols) if isinstance(term.into.cols, int) else np.zeros((batch.rows, 1))


def factors(term: Operator) -> Iterator[Operator]:
    """Yield the factors that x goes through, one after the other."""
    todo = [term]
    while todo:
        node = todo.pop()
        if node.kind.name == "compose":
            todo += reversed(node.children)
        else:
            yield node


def separate(term: Operator) -> bool:
    """True if every sequence can be computed alone: tokens are only ever contracted under a pattern within sequences,
    and a value with tokens as columns goes to such a product through functions of single entries alone."""

    def apart(node: Operator) -> bool:
        match node.kind.name, node.args:
            case "product", (_, b, over, where):  # an index counts all tokens of the batch
                return where.relation is None and bool(b.out.rows is not T or (where.within and not over.indexed))
            case "scan", (*_, over, where):
                return bool(where.within and not over.indexed)
            case name, _ if name in IN_RECURRENCES:
                return True
            case "compose", (a, b):
                return bool(a.out.cols is not T or b.entrywise)
            case (("row" | "keep_top"), (a, b, *_)):
                return T not in (a.out.cols, b.out.cols)
            case "given", (field, _):
                return bool(field != "sequence")
        alone = not node.children and node.row_wise
        return (
            node.kind.name in ("add", "mul", "turn", "rotate", "by_distance", "at_distances", "shift")
            or alone
            or bool(node.kind.matrix)
        )

    return term.out.cols is not T and all(map(apart, term.walk()))
