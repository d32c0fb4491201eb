"""Proofs by entries: the reading of operators by their declared properties, and a test if all entries of two operators
have one form (rewrites/proofs/entry_forms.py)."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import TypeAlias

import sympy

from opmatrix.algebra import monoids
from opmatrix.algebra.operators import symbol
from opmatrix.algebra.positions.patterns import everyone
from opmatrix.algebra.shapes import H, LiveSize, N, ShapeError, T, as_int, size
from opmatrix.algebra.term import KINDS, Operator, substitute
from rewrites.proofs.entry_forms import AxisPieces, CutNeeded, EntryPlace, EntryValue, Forms, ends, size_in_all
from rewrites.proofs.polynomials import COLUMN_INDEX, NO_TERMS, ROW_INDEX, GaveUp, Monomial, Polynomial, are_equal

# ---- operators with known properties only


def through(x: EntryValue, term: Operator) -> EntryValue:
    """Read a symbol at a value, by its declared properties."""
    forms, out, into = x.forms, term.out, term.into
    heads = x.heads if out.heads is H else out.heads
    if not isinstance(heads, int):
        raise GaveUp(f"{heads} heads")
    if into.cols is not N and size_in_all(x.cols) != into.cols:
        raise GaveUp("an input with other columns")
    cols = x.cols if out.cols is N else forms.pieces(out.cols)
    rows = x.rows if out.rows is T else forms.pieces(out.rows)
    if term.constant:
        return forms.leaf(("symbol", term), heads, rows, cols, term.uniform)
    if term.entrywise:
        return x.made(lambda *at: forms.functions.apply(term, x.at[at]))
    if term.linear:
        matrix = forms.leaf(("symbol", term), heads, x.cols, cols)
        return x.product(matrix, monoids.sum, everyone)
    if term.positively_homogeneous and not term.additive:
        size = next((abs(p.leading) for p in x.at.values() if p.terms), Fraction(1))
        if size != 1:
            return through(x.scaled(1 / size), term).scaled(size)
    if term.maps_zero_to_zero and not any(p.terms for p in x.at.values()):
        return EntryValue.of(forms, heads, rows, cols, lambda *_: NO_TERMS)
    parts = additive_parts(x) if term.additive else [(Fraction(1), x)]
    terms = [opaque(part, term, heads, rows, cols).scaled(number) for number, part in parts]
    return reduce(add, terms) if terms else EntryValue.of(forms, heads, rows, cols, lambda *_: NO_TERMS)


def additive_parts(x: EntryValue) -> list[tuple[Fraction, EntryValue]]:
    """Return a value as a list of values of one term each, with the term's number; the value is their sum."""

    def alone(place: EntryPlace, each: Monomial) -> EntryValue:
        """Return the value with a single term left, at one place."""
        one = Polynomial({each: Fraction(1)})
        return x.made(lambda *at: one if at == place else NO_TERMS)

    return [(number, alone(place, monomial)) for place, p in x.at.items() for monomial, number in p.terms.items()]


def opaque(x: EntryValue, term: Operator, heads: int, rows: AxisPieces, cols: AxisPieces) -> EntryValue:
    """Read an operator without known properties: as a function of one row, or of the whole value."""
    by_row = term.row_wise and rows == x.rows
    if by_row and not term.uniform:
        x.tokens()

    def entry(h: int, i: int, j: int) -> Polynomial:
        """Return an atom that depends on all entries that the operator may read."""
        seen = tuple((at, p.key) for at, p in x.at.items() if not by_row or at[1] == i)
        known = ("symbol", term, x.cols, () if by_row else x.rows, seen)
        in_rows, in_columns = rows[i] != 1 and not term.by_key, cols[j] != 1 and not term.level
        at = (*((ROW_INDEX,) if in_rows else ()), *((COLUMN_INDEX,) if in_columns else ()))
        head = x.ring.head(*known, h, 0 if by_row or term.by_key else ends(rows)[i], 0 if term.level else ends(cols)[j])
        return x.ring.atom(head, at)

    return EntryValue.of(x.forms, heads, rows, cols, entry)


# ---- two operators

AxisCuts: TypeAlias = dict[LiveSize, set[LiveSize]]  # by size of an axis, the ends of its pieces

MOST_CUTS, MOST_COLUMNS = 12, 8  # rounds of new cuts; columns that are read one by one


@dataclass(frozen=True)
class EntryProof:
    """The answer to the question if entries of two operators have one form; the laws of functions that were used; the
    number of products and sums of stored numbers that were evaluated, within rounding; and, if there is no common
    form, the reason."""

    proved: bool
    laws: tuple[str, ...] = ()
    evaluated: int = 0
    reason: str = ""

    @property
    def said(self) -> str:
        """The outcome, in words."""
        if not self.proved:
            return self.reason or "their forms differ"
        laws = f"by {', '.join(self.laws)}" if self.laws else ""
        numbers = f"{self.evaluated} products and sums of stored numbers were evaluated, and are equal but for rounding"
        return "; ".join(filter(None, (laws, numbers if self.evaluated else "")))


def compare_entries(left: Operator, right: Operator) -> EntryProof:
    """Test if all entries of two operators have one form: first in as few pieces of axes as possible, then, if the
    sizes are few numbers, column by column."""
    proof = compare_in_pieces(left, right, {})
    few = {
        size
        for side in (left, right)
        for node in side.walk()
        for shape in (node.into, node.out)
        for size in shape[1:]
        if isinstance(size, int) and 1 < size
    }
    if proof.proved or not few or max(few) > MOST_COLUMNS:
        return proof
    apart = compare_in_pieces(left, right, {size: {*range(1, size + 1)} for size in few})
    return apart if apart.proved else proof


def compare_in_pieces(left: Operator, right: Operator, cuts: AxisCuts) -> EntryProof:
    """Compare both sides at one unknown value, with axes cut as the sides need."""
    for _ in range(MOST_CUTS):
        forms = Forms(through, cuts=cuts)
        try:
            one, other = read_entries(forms, left, right)
        except (GaveUp, ShapeError) as error:
            return EntryProof(False, reason=str(error))
        except CutNeeded as cut:
            try:
                cuts = cut_more(cuts, cut, forms.sizes)
            except GaveUp as error:
                return EntryProof(False, reason=str(error))
        else:
            proved = len(one.at) == len(other.at) and all(are_equal(p, other.at[at]) for at, p in one.at.items())
            return EntryProof(proved, tuple(sorted(forms.functions.used)), forms.ring.evaluated)
    return EntryProof(False, reason=f"axes in more than {MOST_CUTS} ways")


def cut_more(cuts: AxisCuts, cut: CutNeeded, sizes: Iterable[LiveSize]) -> AxisCuts:
    """Return the cuts with the requested one. If it exists already, cut the axes of a multiple of that size instead,
    which heads are split from."""
    if not {*cut.ends} <= cuts.get(cut.size, set()):
        return cuts | {cut.size: cuts.get(cut.size, set()) | {*cut.ends}}
    more = dict(cuts)
    for wide in sizes:
        times = sympy.sympify(wide) / cut.size
        if not times.is_Integer or times == 1:
            continue
        parts = {as_int(sympy.expand(sympy.sympify(cut.size) * k + end)) for k in range(int(times)) for end in cut.ends}
        more[wide] = more.get(wide, set()) | parts
    if more == cuts:
        raise GaveUp(f"columns of {cut.size} that are split")
    return more


def read_entries(forms: Forms, left: Operator, right: Operator) -> tuple[EntryValue, EntryValue]:
    """Read both operators at one value, in the same pieces and heads."""
    sides = left, right
    columns = next((side.into.cols for side in sides if side.into.cols is not N), size("columns of x"))
    heads = next((side.into.heads for side in sides if side.into.heads is not H), 1)
    if not isinstance(heads, int):
        raise GaveUp(f"{heads} heads")
    x = forms.leaf(("x",), heads, (T,), forms.pieces(columns))
    symbols = dict.fromkeys(node for side in sides for node in side.walk() if node.kind is KINDS["symbol"])
    called = {
        node: symbol(f"{k}", *node.args[1:3], **dict.fromkeys(node.args[3], True)) for k, node in enumerate(symbols)
    }
    forms.symbols.update({str(renamed.args[0]): node for node, renamed in called.items()})
    one, other = (substitute(side, called)(x) for side in sides)
    if (one.heads, *one.size) != (other.heads, *other.size):
        raise GaveUp("their shapes differ")
    pair: tuple[EntryValue, EntryValue] = one.met(other)
    return pair
