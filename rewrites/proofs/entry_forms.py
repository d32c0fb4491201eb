"""Operators read at entries that are polynomials (rewrites/proofs/polynomials.py): two are equal where all entries have
one form. The rows are as many as come in, the columns too; where parts of columns are told apart, an axis is in
pieces of other sizes, of which the entries have a polynomial each. Laws of functions say what becomes of a function of
a polynomial (rewrites/proofs/laws/functions.py)."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from typing import Any, TypeAlias

import numpy as np
import sympy

from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.oracles import reduced
from opmatrix.algebra.shapes import LiveSize, N, Shape, Space, T, as_int, certain
from opmatrix.algebra.term import KINDS, Operator
from opmatrix.patterns import Pattern, everyone
from opmatrix.relations import Relation
from opmatrix.signature import Port
from rewrites.proofs.function_forms import INNER
from rewrites.proofs.merged_lines import Line
from rewrites.proofs.ordered_forms import OrderedForms
from rewrites.proofs.polynomials import (
    COLUMN,
    ROW,
    ZERO,
    Array,
    At,
    GaveUp,
    Polynomial,
    Ring,
    constant,
)

Place: TypeAlias = tuple[int, int, int]                     # head, piece of rows, piece of columns
Pieces: TypeAlias = tuple[LiveSize, ...]
Entry: TypeAlias = Callable[[int, int, int], Polynomial]    # at a place
MOST_PIECES = 64                                            # entries of a value that have a polynomial of their own


class Cut(Exception):
    """An axis of this size must be in pieces that end here."""

    def __init__(self, size: LiveSize, ends: Iterable[LiveSize]) -> None: self.size, self.ends = size, tuple(ends)


def total(pieces: Iterable[LiveSize]) -> LiveSize:
    """The size of an axis in pieces."""
    sizes = [*pieces]
    if all(isinstance(size, int) for size in sizes): return sum(sizes)
    return as_int(sympy.expand(sum(map(sympy.sympify, sizes))))


def ends(pieces: Sequence[LiveSize]) -> list[LiveSize]:
    """Where each piece ends."""
    return [total(pieces[:k + 1]) for k in range(len(pieces))]


@dataclass
class Forms:
    """What is known while two operators are compared: polynomials, functions of them, cuts of axes; and what goes
    through the symbols of operators."""
    through: Callable[[Value, Operator], Value]
    ring: Ring = field(default_factory=Ring)
    cuts: dict[LiveSize, set[LiveSize]] = field(default_factory=dict)
    symbols: dict[str, Operator] = field(default_factory=dict)
    sizes: set[LiveSize] = field(default_factory=set)       # of axes
    functions: OrderedForms = field(init=False)

    def __post_init__(self) -> None: self.functions = OrderedForms(self.ring)

    def pieces(self, size: LiveSize) -> Pieces:
        """The pieces of an axis."""
        if isinstance(size, Space): return (size,)
        self.sizes.add(size)
        order = sort_ends([*self.cuts.get(size, ()), size])
        return tuple(as_int(sympy.expand(sympy.sympify(b) - sympy.sympify(a))) for a, b in pairwise([0, *order]))

    def leaf(self, content: tuple[Any, ...], heads: int, rows: Pieces, cols: Pieces, uniform: bool = False) -> Value:
        """A value of which nothing is known but its sizes, and that all rows are the same, where that is so."""
        def entry(h: int, i: int, j: int) -> Polynomial:
            at = (*((ROW,) if rows[i] != 1 and not uniform else ()), *((COLUMN,) if cols[j] != 1 else ()))
            place = h if heads != 1 else 0, 0 if uniform else ends(rows)[i], ends(cols)[j]
            return self.ring.atom(self.ring.head(*content, *place), at)
        return Value.of(self, heads, rows, cols, entry)

    def numbers(self, array: Array, at: At) -> Polynomial:
        """An array of known numbers at indices; where all are the same that number."""
        if not np.isfinite(array).all(): raise GaveUp("numbers that are not finite")
        first = array.flat[0]
        return constant(float(first)) if (array == first).all() else self.ring.atom(self.ring.array(array), at)


def sort_ends(order: Iterable[LiveSize]) -> list[LiveSize]:
    """Ends of pieces from the first to the last, each once; it must be certain which comes before which."""
    found: list[LiveSize] = []
    for end in order:
        if end in found or end == 0: continue
        at = next((k for k, other in enumerate(found) if certain(end < other)), len(found))
        if not all(certain(other < end) for other in found[:at]): raise GaveUp(f"columns that may end at {end} first")
        found.insert(at, end)
    return found


@dataclass(frozen=True, eq=False)
class Value:
    """The entries of a value in pieces of rows and columns, of each of so many heads."""
    forms: Forms
    heads: int
    rows: Pieces
    cols: Pieces
    at: dict[Place, Polynomial]

    @classmethod
    def of(cls, forms: Forms, heads: int, rows: Pieces, cols: Pieces, entry: Entry) -> Value:
        if heads * len(rows) * len(cols) > MOST_PIECES: raise GaveUp(f"{heads * len(rows) * len(cols)} pieces")
        return cls(forms, heads, rows, cols, {(h, i, j): entry(h, i, j) for h in range(heads) for i in range(len(rows))
                                              for j in range(len(cols))})

    def made(self, entry: Entry, cols: Pieces | None = None) -> Value:
        """Of the same heads and rows."""
        return Value.of(self.forms, self.heads, self.rows, self.cols if cols is None else cols, entry)

    def entry(self, h: int, i: int, j: int) -> Polynomial: return self.at[h if self.heads > 1 else 0, i, j]
    def scaled(self, by: Fraction) -> Value: return self.made(lambda *at: self.at[at].scaled(by))

    @property
    def ring(self) -> Ring: return self.forms.ring
    @property
    def size(self) -> tuple[LiveSize, LiveSize]: return total(self.rows), total(self.cols)

    # ---- what terms are read by

    def spread(self, rows: LiveSize, cols: LiveSize) -> Value:
        """So many rows and columns, of what is the same in all of them."""
        wide = self.cols if cols == self.size[1] else self.forms.pieces(cols)
        tall = self.rows if rows == self.size[0] else self.forms.pieces(rows)
        same = self.at
        if tall is not self.rows and any(ROW in p.free for p in same.values()): raise GaveUp("rows that are not alike")
        if wide is not self.cols and any(COLUMN in p.free for p in same.values()): raise GaveUp("unlike columns")
        return Value.of(self.forms, self.heads, tall, wide,
                        lambda h, i, j: self.at[h, i if tall is self.rows else 0, j if wide is self.cols else 0])

    def met(self, other: Value) -> tuple[Value, Value]:
        """Both in the same pieces; one column spreads, and rows that are all alike."""
        a, b = self, other
        if a.cols != b.cols:
            if a.cols == (1,): a = a.spread(a.size[0], b.size[1]).like(b)
            elif b.cols == (1,): b = b.spread(b.size[0], a.size[1]).like(a)
            else: cut_alike(a.cols, b.cols)
        if a.rows != b.rows: cut_alike(a.rows, b.rows)
        return a, b

    def like(self, other: Value) -> Value:
        """Spread columns, in the pieces of another."""
        return self if self.cols == other.cols else Value.of(self.forms, self.heads, self.rows, other.cols,
                                                             lambda h, i, j: self.at[h, i, 0])

    def pointwise(self, other: Value, join: Callable[[Polynomial, Polynomial], Polynomial]) -> Value:
        a, b = self.met(other)
        return Value.of(self.forms, max(a.heads, b.heads), a.rows, a.cols,
                        lambda *at: join(a.entry(*at), b.entry(*at)))

    def __add__(self, other: Value) -> Value: return self.pointwise(other, self.ring.add)
    def __mul__(self, other: Value) -> Value: return self.pointwise(other, self.ring.multiply)

    def turn(self) -> Value:
        return Value.of(self.forms, self.heads, self.cols, self.rows,
                        lambda h, i, j: self.ring.moved(self.at[h, j, i], {ROW: COLUMN, COLUMN: ROW}))

    def beside(self, other: Value) -> Value:
        if self.rows != other.rows: cut_alike(self.rows, other.rows)
        n = len(self.cols)
        return Value.of(self.forms, max(self.heads, other.heads), self.rows, self.cols + other.cols,
                        lambda h, i, j: self.entry(h, i, j) if j < n else other.entry(h, i, j - n))

    def columns(self, lo: LiveSize, hi: LiveSize) -> Value:
        """Columns lo to hi."""
        at = [0, *ends(self.cols)]
        if lo not in at or hi not in at: raise Cut(total(self.cols), [e for e in (lo, hi) if e not in at])
        first = at.index(lo)
        return self.made(lambda h, i, j: self.at[h, i, j + first], self.cols[first:at.index(hi)])

    def split(self, heads: int) -> Value:
        """Columns into heads of equal width."""
        if not isinstance(heads, int): raise GaveUp(f"{heads} heads")
        if self.heads != 1: raise GaveUp("heads of heads")
        wide = sympy.sympify(total(self.cols)) / heads
        at = [as_int(sympy.expand(wide * h)) for h in range(heads + 1)]
        parts = [self.columns(lo, hi) for lo, hi in pairwise(at)]
        for part in parts[1:]: cut_alike(parts[0].cols, part.cols, same=True)
        return Value.of(self.forms, heads, self.rows, parts[0].cols, lambda h, i, j: parts[h].at[0, i, j])

    def join(self, heads: int) -> Value:
        """Heads into columns."""
        if not isinstance(heads, int): raise GaveUp(f"{heads} heads")
        width = len(self.cols)
        return Value.of(self.forms, 1, self.rows, self.cols * heads,
                        lambda _, i, j: self.entry(j // width, i, j % width))

    def repeat(self, heads: int) -> Value:
        if not isinstance(heads, int): raise GaveUp(f"{heads} heads")
        return Value.of(self.forms, heads, self.rows, self.cols, lambda h, i, j: self.at[h * self.heads // heads, i, j])

    def total(self) -> Value:
        return Value.of(self.forms, 1, self.rows, self.cols,
                        lambda _, i, j: self.ring.add(*(self.at[h, i, j] for h in range(self.heads))))

    def tokens(self) -> None:
        """Raises GaveUp where rows are no tokens as they came."""
        if self.rows != (T,): raise GaveUp("what is known of tokens, of other rows")

    def given(self, name: str, cols: int) -> Value:
        self.tokens()
        return self.forms.leaf(("given", name, cols), 1, self.rows, self.forms.pieces(cols))
    def by_distance(self, table: Data, most: int) -> Value:
        self.tokens()
        return self.forms.leaf(("by distance", table, most), table.shape[0], self.rows, self.rows)
    def related(self, relation: Relation) -> Value:
        shape = Shape(1, T, N).related(relation)
        return self.forms.leaf(("related", relation), 1, (shape.rows,), (shape.cols,))
    def entered(self, port: Port) -> Value:
        shape = Shape(1, T, N).entered(port)
        return self.forms.leaf(("entered", port), port.heads, (shape.rows,), self.forms.pieces(port.columns))
    def pick(self, relation: Relation) -> Value: raise GaveUp("rows that are picked")

    def symbol(self, name: str, into: Shape, out: Shape) -> Value:
        return self.forms.through(self, self.forms.symbols[name])

    def keep_top(self, by: Value, k: int) -> Value:
        """Its entries times whether they are among the largest of the row."""
        a, b = self.met(by)
        if k == total(a.cols): return a
        def chosen(h: int, i: int, j: int) -> Polynomial:
            line = [self.ring.moved(b.entry(h, i, at), {COLUMN: INNER}) for at in range(len(b.cols))]
            return self.forms.functions.among_largest(k, [*zip(map(str, b.cols), line, strict=True)], j)
        return Value.of(self.forms, max(a.heads, b.heads), a.rows, a.cols,
                        lambda *at: self.ring.multiply(a.entry(*at), chosen(*at)))

    def product(self, other: Value, over: type[Monoid], where: Pattern) -> Value:
        """A product over a monoid."""
        if self.cols != other.rows: cut_alike(self.cols, other.rows)
        seen = self.seen(other, where)
        def line(h: int, i: int, j: int) -> Line:
            left = [self.ring.moved(self.entry(h, i, k), {COLUMN: INNER}) for k in range(len(self.cols))]
            right = [self.ring.moved(other.entry(h, k, j), {ROW: INNER}) for k in range(len(self.cols))]
            return Line(self.forms.functions, self.cols, left, right, seen, absent)
        absent = not over.ordinary and any(is_related(p) for p in self.at.values())
        return Value.of(self.forms, max(self.heads, other.heads), self.rows, other.cols,
                        lambda *at: line(*at).over(over))

    def seen(self, other: Value, where: Pattern) -> Polynomial | None:
        """1 where a row sees an inner index, 0 elsewhere; none where all are seen."""
        if where == everyone: return None
        if not self.rows == self.cols == other.rows == (T,): raise GaveUp("a pattern of rows that are no tokens")
        return self.ring.atom(self.ring.head("sees", where), (ROW, INNER))

    def act(self, term: Operator) -> Value:
        """Through an operator matrix."""
        kind, forms = term.kind, self.forms
        if kind is KINDS["I"]: return self
        if kind is KINDS["cols"]:
            lo, hi, _ = term.args
            return self.columns(lo, hi)
        if kind is KINDS["place"]:
            lo, n = term.args
            return self.placed(lo, n)
        if kind is KINDS["const"]: return self.constant(term.args[0])
        if kind is KINDS["diag"]: return self * self.constant(term.args[0])
        if term.entrywise: return self.made(lambda *at: forms.functions.apply(term, self.at[at]))
        matrix, over = reduced(term)
        if matrix.kind is KINDS["ones"]: right = Value.of(forms, 1, self.cols, (1,), lambda *_: constant(1))
        elif matrix.kind is KINDS["weight"]: right = self.stored(matrix.args[0])
        elif matrix.kind is KINDS["I"] and over.width == 1:
            return self.made(lambda *at: Line(forms.functions, (1,), [self.at[at]], [constant(1)], None).over(over))
        else: raise GaveUp(f"{matrix}")
        return self.product(right, over, everyone)

    # ---- numbers

    def placed(self, lo: LiveSize, n: LiveSize) -> Value:
        """From column lo on in n columns, zeros elsewhere."""
        if not any(p.terms for p in self.at.values()): return self.made(lambda *_: ZERO, self.forms.pieces(n))
        before, behind = lo, as_int(sympy.expand(sympy.sympify(n) - lo - total(self.cols)))
        def zeros(size: LiveSize) -> Pieces: return () if size == 0 else (size,)
        first, last = zeros(before), zeros(behind)
        k, m = len(first), len(first) + len(self.cols)
        made = self.made(lambda h, i, j: self.at[h, i, j - k] if k <= j < m else ZERO, first + self.cols + last)
        wanted = self.forms.pieces(n)
        return made if made.cols == wanted else made.cut(wanted)

    def cut(self, wanted: Pieces) -> Value:
        """The same columns in smaller pieces, where those that are cut are all alike."""
        own, new = [0, *ends(self.cols)], [0, *ends(wanted)]
        if not {*own} <= {*new}: raise Cut(total(self.cols), own)
        at = {end: k for k, end in enumerate(own)}
        source, k = [], 0
        for lo in new[:-1]:
            if lo in at: k = at[lo]
            source.append(k)
        for k in {*source}:
            if source.count(k) > 1 and any(COLUMN in p.free for (_, _, j), p in self.at.items() if j == k):
                raise GaveUp("columns that are cut")
        return self.made(lambda h, i, j: self.at[h, i, source[j]], wanted)

    def constant(self, data: Data) -> Value:
        """A row of numbers, in each row."""
        shape = data.shape
        if len(shape) == 1:
            if shape == (1,): return self.made(lambda *_: self.number(data), (1,)) if self.heads == 1 else Value.of(
                self.forms, 1, self.rows, (1,), lambda *_: self.number(data))
            return Value.of(self.forms, 1, self.rows, self.forms.pieces(shape[0]), self.slicing(data, None))
        if len(shape) == 3: return Value.of(self.forms, shape[0], self.rows, self.forms.pieces(shape[-1]),
                                            self.slicing(Data(data.array[:, 0]), None, stacked=True))
        return self.constant(Data(data.array[0]))

    def number(self, data: Data) -> Polynomial:
        if getattr(data, "expression", None) is not None:
            return self.ring.atom(self.ring.head("number", data.key), ())
        found = data[0]
        if not isfinite(found): raise GaveUp("numbers that are not finite")
        return constant(found)

    def stored(self, data: Data) -> Value:
        """A matrix, one for each head where it is a stack."""
        *stack, n, p = data.shape
        return Value.of(self.forms, stack[0] if stack else 1, self.forms.pieces(n), self.forms.pieces(p),
                        self.slicing(data, 0, stacked=bool(stack)))

    def slicing(self, data: Data, rows: int | None, stacked: bool = False) -> Callable[[int, int, int], Polynomial]:
        """The entries of an array: numbers alone where the pieces are single."""
        forms, whole = self.forms, None if hasattr(data, "promise") else np.asarray(data.array, np.float64)
        row_pieces = forms.pieces(data.shape[-2]) if rows is not None else (1,)
        col_pieces = forms.pieces(data.shape[-1])
        def entry(h: int, i: int, j: int) -> Polynomial:
            at = (*((ROW,) if rows is not None and row_pieces[i] != 1 else ()),
                  *((COLUMN,) if col_pieces[j] != 1 else ()))
            if whole is None: return forms.ring.atom(forms.ring.head("promised", data, h, i, j), at)
            part = whole[h] if stacked else whole
            lines: list[Any] = []
            if rows is not None: lines.append(span(row_pieces, i))
            lines.append(span(col_pieces, j))
            return forms.numbers(np.asarray(part[tuple(lines)]), at)
        return entry


def span(pieces: Pieces, k: int) -> Any:
    """The numbers of a piece: one, or a slice."""
    lo = total(pieces[:k])
    return lo if pieces[k] == 1 else slice(lo, total(pieces[:k + 1]))


def cut_alike(a: Pieces, b: Pieces, same: bool = False) -> None:
    """Raises Cut, so that two axes of one size are in the same pieces."""
    if a == b: return
    if total(a) != total(b): raise GaveUp(f"{total(a)} against {total(b)}")
    both = {*ends(a), *ends(b)}
    if same: raise GaveUp("heads in unlike pieces")
    raise Cut(total(a), both)


def is_related(p: Polynomial) -> bool:
    """Whether entries of a relation are among its atoms: what is none is left out of a product."""
    return any(head.content[:1] == ("related",) for each in p.terms for head, _ in each.factors)   # type: ignore[index]
