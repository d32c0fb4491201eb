"""Operators read at entries that are polynomials (rewrites/proofs/polynomials.py): two operators are equal if all
entries have one form. Numbers of rows and columns are those of the input; if parts of columns differ, an axis is in
pieces of other sizes, whose entries have a polynomial each. Laws of functions rewrite a function of a polynomial
(rewrites/laws/proving/functions.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
import sympy

from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.oracles import reduced
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import LiveSize, N, Shape, Space, T, as_int, certain
from opmatrix.algebra.term import KINDS, Operator
from rewrites.proofs.function_forms import INNER
from rewrites.proofs.merged_lines import MergedLine
from rewrites.proofs.ordered_forms import OrderedForms
from rewrites.proofs.polynomials import (
    COLUMN_INDEX,
    NO_TERMS,
    ROW_INDEX,
    EntryFloats,
    GaveUp,
    IndexTuple,
    Polynomial,
    Ring,
    as_polynomial,
)

EntryPlace: TypeAlias = tuple[int, int, int]  # head, piece of rows, piece of columns
AxisPieces: TypeAlias = tuple[LiveSize, ...]
Entry: TypeAlias = Callable[[int, int, int], Polynomial]  # the entry at a place
EXCHANGED = {ROW_INDEX: COLUMN_INDEX, COLUMN_INDEX: ROW_INDEX}
MOST_PIECES = 64  # most entries with a polynomial of their own


class CutNeeded(Exception):
    """An axis of this size must be in pieces that end here."""

    def __init__(self, size: LiveSize, ends: Iterable[LiveSize]) -> None:
        self.size, self.ends = size, tuple(ends)


def size_in_all(pieces: Iterable[LiveSize]) -> LiveSize:
    """Return the size of an axis in pieces."""
    sizes = [*pieces]
    if all(isinstance(size, int) for size in sizes):
        return sum(sizes)
    return as_int(sympy.expand(sum(map(sympy.sympify, sizes))))


def ends(pieces: Sequence[LiveSize]) -> list[LiveSize]:
    """Return the last entry of each piece, plus one."""
    return [size_in_all(pieces[: k + 1]) for k in range(len(pieces))]


@dataclass
class Forms:
    """State of a comparison of two operators: polynomials, functions of them, cuts of axes, and the values that go
    through the symbols of operators."""

    through: Callable[[EntryValue, Operator], EntryValue]
    ring: Ring = field(default_factory=Ring)
    cuts: dict[LiveSize, set[LiveSize]] = field(default_factory=dict)
    symbols: dict[str, Operator] = field(default_factory=dict)
    sizes: set[LiveSize] = field(default_factory=set)  # sizes of axes
    functions: OrderedForms = field(init=False)

    def __post_init__(self) -> None:
        self.functions = OrderedForms(self.ring)

    def pieces(self, size: LiveSize) -> AxisPieces:
        """Return the sizes of the pieces that an axis of this size is in, by the cuts so far; a space is one piece."""
        if isinstance(size, Space):
            return (size,)
        self.sizes.add(size)
        order = sort_ends([*self.cuts.get(size, ()), size])
        return tuple(as_int(sympy.expand(sympy.sympify(b) - sympy.sympify(a))) for a, b in pairwise([0, *order]))

    def leaf(
        self, content: tuple[Any, ...], heads: int, rows: AxisPieces, cols: AxisPieces, uniform: bool = False
    ) -> EntryValue:
        """Return an unknown value of these sizes; if it is `uniform`, all its rows are the same."""

        def entry(h: int, i: int, j: int) -> Polynomial:
            """Return an atom at this place, with free indices along the axes that have several entries."""
            at = (*((ROW_INDEX,) if rows[i] != 1 and not uniform else ()), *((COLUMN_INDEX,) if cols[j] != 1 else ()))
            place = h if heads != 1 else 0, 0 if uniform else ends(rows)[i], ends(cols)[j]
            return self.ring.atom(self.ring.head(*content, *place), at)

        return EntryValue.of(self, heads, rows, cols, entry)

    def numbers(self, array: EntryFloats, at: IndexTuple) -> Polynomial:
        """Return an array of known numbers at indices; if all its numbers are equal, that number."""
        if not np.isfinite(array).all():
            raise GaveUp("numbers that are not finite")
        first = array.flat[0]
        return as_polynomial(float(first)) if (array == first).all() else self.ring.atom(self.ring.array(array), at)


def sort_ends(order: Iterable[LiveSize]) -> list[LiveSize]:
    """Return ends of pieces from the first to the last, each once. Raises GaveUp if their order is not certain."""
    line: list[LiveSize] = []
    for end in order:
        if end in line or end == 0:
            continue
        at = next((k for k, other in enumerate(line) if certain(end < other)), len(line))
        if not all(certain(other < end) for other in line[:at]):
            raise GaveUp(f"columns whose order depends on {end}")
        line.insert(at, end)
    return line


@dataclass(frozen=True, eq=False)
class EntryValue:
    """The entries of a value in pieces of rows and columns, for each of its heads."""

    forms: Forms
    heads: int
    rows: AxisPieces
    cols: AxisPieces
    at: dict[EntryPlace, Polynomial]
    absent: bool = False  # True for a relation: its zeros are no entries

    @classmethod
    def of(cls, forms: Forms, heads: int, rows: AxisPieces, cols: AxisPieces, entry: Entry) -> EntryValue:
        """Make a value from the polynomial of each head and piece. Raises GaveUp for more than MOST_PIECES."""
        if heads * len(rows) * len(cols) > MOST_PIECES:
            raise GaveUp(f"{heads * len(rows) * len(cols)} pieces")
        return cls(
            forms,
            heads,
            rows,
            cols,
            {(h, i, j): entry(h, i, j) for h in range(heads) for i in range(len(rows)) for j in range(len(cols))},
        )

    def made(self, entry: Entry, cols: AxisPieces | None = None) -> EntryValue:
        """Return other entries in the same heads and rows."""
        return EntryValue.of(self.forms, self.heads, self.rows, self.cols if cols is None else cols, entry)

    def entry(self, h: int, i: int, j: int) -> Polynomial:
        """Return an entry; one head serves all."""
        return self.at[h if self.heads > 1 else 0, i, j]

    def scaled(self, by: Fraction) -> EntryValue:
        """Multiply all entries by a number."""
        return self.made(lambda *at: self.at[at].scaled(by))

    @property
    def ring(self) -> Ring:
        """The ring of the entries' polynomials."""
        return self.forms.ring

    @property
    def size(self) -> tuple[LiveSize, LiveSize]:
        """The sums of the pieces of rows and columns."""
        return size_in_all(self.rows), size_in_all(self.cols)

    # ---- operations by which terms are read

    def spread(self, rows: LiveSize, cols: LiveSize) -> EntryValue:
        """Repeat a value whose rows and columns are all the same, to this size."""
        wide = self.cols if cols == self.size[1] else self.forms.pieces(cols)
        tall = self.rows if rows == self.size[0] else self.forms.pieces(rows)
        same = self.at
        read = frozenset[int]().union(*(p.free for p in same.values()))
        if tall is not self.rows and ROW_INDEX in read:
            raise GaveUp("rows with unlike entries")
        if wide is not self.cols and COLUMN_INDEX in read:
            raise GaveUp("columns with unlike entries")
        return EntryValue.of(
            self.forms,
            self.heads,
            tall,
            wide,
            lambda h, i, j: self.at[h, i if tall is self.rows else 0, j if wide is self.cols else 0],
        )

    def met(self, other: EntryValue) -> tuple[EntryValue, EntryValue]:
        """Return both values in the same pieces. A value of one column is spread to the other's columns. Raises
        CutNeeded."""
        a, b = self, other
        if a.cols != b.cols:
            if a.cols == (1,):
                a = a.spread(a.size[0], b.size[1]).like(b)
            elif b.cols == (1,):
                b = b.spread(b.size[0], a.size[1]).like(a)
            else:
                cut_alike(a.cols, b.cols)
        if a.rows != b.rows:
            cut_alike(a.rows, b.rows)
        return a, b

    def like(self, other: EntryValue) -> EntryValue:
        """Spread a single column to the pieces of another value."""
        return (
            self
            if self.cols == other.cols
            else EntryValue.of(self.forms, self.heads, self.rows, other.cols, lambda h, i, j: self.at[h, i, 0])
        )

    def pointwise(self, other: EntryValue, join: Callable[[Polynomial, Polynomial], Polynomial]) -> EntryValue:
        """Join two values entry by entry, after they are cut into the same pieces."""
        a, b = self.met(other)
        return EntryValue.of(
            self.forms, max(a.heads, b.heads), a.rows, a.cols, lambda *at: join(a.entry(*at), b.entry(*at))
        )

    def __add__(self, other: EntryValue) -> EntryValue:
        return self.pointwise(other, self.ring.add)

    def __mul__(self, other: EntryValue) -> EntryValue:
        return self.pointwise(other, self.ring.multiply)

    def turn(self) -> EntryValue:
        """Exchange rows and columns, and their indices in every entry."""
        return EntryValue.of(
            self.forms, self.heads, self.cols, self.rows, lambda h, i, j: self.ring.moved(self.at[h, j, i], EXCHANGED)
        )

    def beside(self, other: EntryValue) -> EntryValue:
        """Put columns beside columns. Raises CutNeeded if their rows are in different pieces."""
        if self.rows != other.rows:
            cut_alike(self.rows, other.rows)
        n = len(self.cols)
        return EntryValue.of(
            self.forms,
            max(self.heads, other.heads),
            self.rows,
            self.cols + other.cols,
            lambda h, i, j: self.entry(h, i, j) if j < n else other.entry(h, i, j - n),
        )

    def columns(self, lo: LiveSize, hi: LiveSize) -> EntryValue:
        """Return columns lo to hi. Raises CutNeeded if they do not end where pieces end."""
        at = [0, *ends(self.cols)]
        if lo not in at or hi not in at:
            raise CutNeeded(size_in_all(self.cols), [e for e in (lo, hi) if e not in at])
        first = at.index(lo)
        return self.made(lambda h, i, j: self.at[h, i, j + first], self.cols[first : at.index(hi)])

    def split(self, heads: int) -> EntryValue:
        """Split columns into heads of equal width."""
        if not isinstance(heads, int):
            raise GaveUp(f"{heads} heads")
        if self.heads != 1:
            raise GaveUp("heads within heads")
        wide = sympy.sympify(size_in_all(self.cols)) / heads
        at = [as_int(sympy.expand(wide * h)) for h in range(heads + 1)]
        parts = [self.columns(lo, hi) for lo, hi in pairwise(at)]
        for part in parts[1:]:
            cut_alike(parts[0].cols, part.cols, same=True)
        return EntryValue.of(self.forms, heads, self.rows, parts[0].cols, lambda h, i, j: parts[h].at[0, i, j])

    def join(self, heads: int) -> EntryValue:
        """Join heads as columns."""
        if not isinstance(heads, int):
            raise GaveUp(f"{heads} heads")
        width = len(self.cols)
        return EntryValue.of(
            self.forms, 1, self.rows, self.cols * heads, lambda _, i, j: self.entry(j // width, i, j % width)
        )

    def repeat(self, heads: int) -> EntryValue:
        """Copy each head, copies side by side. Raises GaveUp if the number of heads is a symbol."""
        if not isinstance(heads, int):
            raise GaveUp(f"{heads} heads")
        return EntryValue.of(
            self.forms, heads, self.rows, self.cols, lambda h, i, j: self.at[h * self.heads // heads, i, j]
        )

    def total(self) -> EntryValue:
        """Sum the entries over the heads."""
        return EntryValue.of(
            self.forms,
            1,
            self.rows,
            self.cols,
            lambda _, i, j: self.ring.add(*(self.at[h, i, j] for h in range(self.heads))),
        )

    def tokens(self) -> None:
        """Raise GaveUp if rows are not the tokens of the input."""
        if self.rows != (T,):
            raise GaveUp("facts of tokens at rows that are not tokens")

    def given(self, name: str, cols: int) -> EntryValue:
        """Return unknown one-hot rows, the same wherever this field is read."""
        self.tokens()
        return self.forms.leaf(("given", name, cols), 1, self.rows, self.forms.pieces(cols))

    def by_distance(self, table: Data, most: int) -> EntryValue:
        """Return an unknown table of numbers, one for each pair of rows."""
        self.tokens()
        return self.forms.leaf(("by distance", table, most), table.shape[0], self.rows, self.rows)

    def at_distances(self, table: Data) -> EntryValue:
        """Raise GaveUp: numbers that are chosen by distance have no form."""
        raise GaveUp("numbers chosen by distance")

    def related(self, relation: Relation) -> EntryValue:
        """Return the unknown entries of a relation; its zeros are absent."""
        shape = Shape(1, T, N).related(relation)
        return replace(self.forms.leaf(("related", relation), 1, (shape.rows,), (shape.cols,)), absent=True)

    def entered(self, port: Port) -> EntryValue:
        """Return the unknown numbers of an input."""
        shape = Shape(1, T, N).entered(port)
        return self.forms.leaf(("entered", port), port.heads, (shape.rows,), self.forms.pieces(port.columns))

    def pick(self, relation: Relation) -> EntryValue:
        """Raise GaveUp: picked rows have no form."""
        raise GaveUp("rows that are picked")

    def delta_rule(self, *others: EntryValue) -> EntryValue:
        """Raise GaveUp: a state that rows correct has no form."""
        raise GaveUp("rows that correct a state")

    def shift(self, k: int) -> EntryValue:
        """Raise GaveUp: rows before have no form."""
        raise GaveUp("rows that are shifted")

    def symbol(self, name: str, into: Shape, out: Shape) -> EntryValue:
        """Apply an unknown operator, as the comparison reads it."""
        return self.forms.through(self, self.forms.symbols[name])

    def keep_top(self, by: EntryValue, k: int) -> EntryValue:
        """Return its entries times 1 if they are among the largest of the row, else 0."""
        a, b = self.met(by)
        if k == size_in_all(a.cols):
            return a

        def chosen(h: int, i: int, j: int) -> Polynomial:
            """Return the form of "entry j is among the k largest of its row"."""
            line = [self.ring.moved(b.entry(h, i, at), {COLUMN_INDEX: INNER}) for at in range(len(b.cols))]
            return self.forms.functions.among_largest(k, [*zip(map(str, b.cols), line, strict=True)], j)

        return EntryValue.of(
            self.forms, max(a.heads, b.heads), a.rows, a.cols, lambda *at: self.ring.multiply(a.entry(*at), chosen(*at))
        )

    def product(self, other: EntryValue, over: type[Monoid], where: Pattern) -> EntryValue:
        """Return a product over a monoid."""
        if self.cols != other.rows:
            cut_alike(self.cols, other.rows)
        seen = self.seen(other, where)

        def line(h: int, i: int, j: int) -> MergedLine:
            """Collect the row and the column that are merged at one place."""
            left = [self.ring.moved(self.entry(h, i, k), {COLUMN_INDEX: INNER}) for k in range(len(self.cols))]
            right = [self.ring.moved(other.entry(h, k, j), {ROW_INDEX: INNER}) for k in range(len(self.cols))]
            return MergedLine(self.forms.functions, self.cols, left, right, seen, absent)

        absent = self.absent and not over.ordinary
        return EntryValue.of(
            self.forms, max(self.heads, other.heads), self.rows, other.cols, lambda *at: line(*at).over(over)
        )

    def scan(self, other: EntryValue, over: type[Monoid], where: Pattern) -> EntryValue:
        """Return rows merged with those that they see, column by column."""
        a, b = self.met(other)
        self.tokens()
        sees = self.ring.atom(self.ring.head("sees", where), (ROW_INDEX, INNER))

        def line(h: int, i: int, j: int) -> MergedLine:
            """Collect the two columns that are merged at one place."""
            left, right = ([self.ring.moved(x.entry(h, 0, j), {ROW_INDEX: INNER})] for x in (a, b))
            return MergedLine(self.forms.functions, self.rows, left, right, sees)

        return EntryValue.of(self.forms, max(a.heads, b.heads), a.rows, a.cols, lambda *at: line(*at).over(over))

    def seen(self, other: EntryValue, where: Pattern) -> Polynomial | None:
        """Return 1 where a row sees an inner index, 0 elsewhere; None if all are seen."""
        if where == everyone:
            return None
        if not self.rows == self.cols == other.rows == (T,):
            raise GaveUp("a pattern on rows that are not tokens")
        return self.ring.atom(self.ring.head("sees", where), (ROW_INDEX, INNER))

    def act(self, term: Operator) -> EntryValue:
        """Apply an operator to the value."""
        kind, forms = term.kind, self.forms
        if kind is KINDS["I"]:
            return self
        if kind is KINDS["cols"]:
            lo, hi, _ = term.args
            return self.columns(lo, hi)
        if kind is KINDS["place"]:
            lo, n = term.args
            return self.placed(lo, n)
        if kind is KINDS["const"]:
            return self.constant(term.args[0])
        if kind is KINDS["diag"]:
            return self * self.constant(term.args[0])
        if term.entrywise:
            return self.made(lambda *at: forms.functions.apply(term, self.at[at]))
        matrix, over = reduced(term)
        if matrix.kind is KINDS["ones"]:
            right = EntryValue.of(forms, 1, self.cols, (1,), lambda *_: as_polynomial(1))
        elif matrix.kind is KINDS["weight"]:
            right = self.stored(matrix.args[0])
        elif matrix.kind is KINDS["I"] and over.width == 1:
            one = [as_polynomial(1)]
            return self.made(lambda *at: MergedLine(forms.functions, (1,), [self.at[at]], one, None).over(over))
        else:
            raise GaveUp(f"{matrix}")
        return self.product(right, over, everyone)

    # ---- numbers

    def placed(self, lo: LiveSize, n: LiveSize) -> EntryValue:
        """Place the columns from column lo on in n columns, zeros elsewhere."""
        if not any(p.terms for p in self.at.values()):
            return self.made(lambda *_: NO_TERMS, self.forms.pieces(n))
        before, behind = lo, as_int(sympy.expand(sympy.sympify(n) - lo - size_in_all(self.cols)))

        def zeros(size: LiveSize) -> AxisPieces:
            """Return a piece of this size; none for 0."""
            return () if size == 0 else (size,)

        first, last = zeros(before), zeros(behind)
        k, m = len(first), len(first) + len(self.cols)
        placed = self.made(lambda h, i, j: self.at[h, i, j - k] if k <= j < m else NO_TERMS, first + self.cols + last)
        wanted = self.forms.pieces(n)
        return placed if placed.cols == wanted else placed.cut(wanted)

    def cut(self, wanted: AxisPieces) -> EntryValue:
        """Return the same columns in smaller pieces. Raises GaveUp if the columns of a piece that is cut are not all
        alike."""
        here, new = [0, *ends(self.cols)], [0, *ends(wanted)]
        if not {*here} <= {*new}:
            raise CutNeeded(size_in_all(self.cols), here)
        at = {end: k for k, end in enumerate(here)}
        source, k = [], 0
        for lo in new[:-1]:
            if lo in at:
                k = at[lo]
            source.append(k)
        for k in {*source}:
            if source.count(k) > 1 and any(COLUMN_INDEX in p.free for (_, _, j), p in self.at.items() if j == k):
                raise GaveUp("columns that are split")
        return self.made(lambda h, i, j: self.at[h, i, source[j]], wanted)

    def constant(self, data: Data) -> EntryValue:
        """Return a value with these numbers in each row."""
        shape = data.shape
        if len(shape) == 1:
            if shape == (1,):
                return EntryValue.of(self.forms, 1, self.rows, (1,), lambda *_: self.number(data))
            return EntryValue.of(self.forms, 1, self.rows, self.forms.pieces(shape[0]), self.slicing(data, None))
        if len(shape) == 3:
            return EntryValue.of(
                self.forms,
                shape[0],
                self.rows,
                self.forms.pieces(shape[-1]),
                self.slicing(Data(data.array[:, 0]), None, stacked=True),
            )
        return self.constant(Data(data.array[0]))

    def number(self, data: Data) -> Polynomial:
        """Return a scalar as a polynomial: an atom if it is an expression of sizes. Raises GaveUp if it is not
        finite."""
        if getattr(data, "expression", None) is not None:
            return self.ring.atom(self.ring.head("number", data.key), ())
        value = data[0]
        if not isfinite(value):
            raise GaveUp("numbers that are not finite")
        return as_polynomial(value)

    def stored(self, data: Data) -> EntryValue:
        """Return a stored matrix, one for each head if it is a stack."""
        *stack, n, p = data.shape
        return EntryValue.of(
            self.forms,
            stack[0] if stack else 1,
            self.forms.pieces(n),
            self.forms.pieces(p),
            self.slicing(data, 0, stacked=bool(stack)),
        )

    def slicing(self, data: Data, rows: int | None, stacked: bool = False) -> Callable[[int, int, int], Polynomial]:
        """Return the entries of an array as a function of the place; single numbers where the pieces are single."""
        forms, whole = self.forms, None if hasattr(data, "promise") else np.asarray(data.array, np.float64)
        row_pieces = forms.pieces(data.shape[-2]) if rows is not None else (1,)
        col_pieces = forms.pieces(data.shape[-1])

        def entry(h: int, i: int, j: int) -> Polynomial:
            """Return the numbers of one piece as an entry, or an atom if the array is only promised."""
            at = (
                *((ROW_INDEX,) if rows is not None and row_pieces[i] != 1 else ()),
                *((COLUMN_INDEX,) if col_pieces[j] != 1 else ()),
            )
            if whole is None:
                return forms.ring.atom(forms.ring.head("promised", data, h, i, j), at)
            part = whole[h] if stacked else whole
            lines: list[Any] = []
            if rows is not None:
                lines.append(piece_of(row_pieces, i))
            lines.append(piece_of(col_pieces, j))
            return forms.numbers(np.asarray(part[tuple(lines)]), at)

        return entry


def piece_of(pieces: AxisPieces, k: int) -> Any:
    """Return the index of a piece: a number if it has size 1, else a slice."""
    lo = size_in_all(pieces[:k])
    return lo if pieces[k] == 1 else slice(lo, size_in_all(pieces[: k + 1]))


def cut_alike(a: AxisPieces, b: AxisPieces, same: bool = False) -> None:
    """Raise CutNeeded, so that two axes of one size get the same pieces; GaveUp if that is not possible."""
    if a == b:
        return
    if size_in_all(a) != size_in_all(b):
        raise GaveUp(f"{size_in_all(a)} against {size_in_all(b)}")
    both = {*ends(a), *ends(b)}
    if same:
        raise GaveUp("heads that are split at unlike columns")
    raise CutNeeded(size_in_all(a), both)
