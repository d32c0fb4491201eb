"""How a value lies on an axis of a mesh: whole, cut along one of its dimensions, or as a part of a sum that is not
merged yet. Sizes are numbers or expressions; `Piece` is what a rank holds of a cut."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sympy

from opmatrix.algebra.batch.batch_sizes import Bounds, Role
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.shapes import LiveSize, as_int


class Cut(NamedTuple):
    """Cut along a dimension into pieces of neighbours, of whole units: as many heads as columns lie in, say. `copied`:
    there are fewer units than ranks, and each rank holds one, as key heads are that groups of queries share."""
    role: Role
    units: LiveSize
    copied: bool = False

    def bounds(self, n: int, r: int, units: int) -> Bounds:
        """From which to which of so many units rank `r` of `n` holds."""
        return (r * units // n, r * units // n + 1) if self.copied else bounds(units, n, r)

    def __str__(self) -> str: return f"{self.role} of {self.units}" + " copied" * self.copied


class Partial(NamedTuple):
    """Each rank holds a carrier of the monoid, and the value is what they merge to, finished."""
    over: type[Monoid]

    def __str__(self) -> str: return f"partial {self.over.__name__}"


class Needed(NamedTuple):
    """Each rank holds the rows that its entries of a relation name, those of others, too: its halo. The relation's rows
    are cut on the same axis."""
    relation: Relation
    units: LiveSize

    def __str__(self) -> str: return f"rows that {self.relation} names"


AxisState: TypeAlias = Cut | Partial | Needed | None        # of one axis; None is whole


class Coordinate(sympy.Symbol):                             # type: ignore[misc]
    """Where a rank is on an axis, from 0 on: a symbol unlike any size, whatever sizes are called."""


def describe(state: AxisState) -> str: return "whole" if state is None else str(state)


class Piece(sympy.Function):                                # type: ignore[misc]
    """Units that rank `r` of `n` holds of `units`: as many each, the first ranks one more."""
    @classmethod
    def eval(cls, units: Any, n: Any, r: Any) -> Any:
        if n == 1: return units
        if all(each.is_Integer for each in (units, n, r)):
            lo, hi = bounds(int(units), int(n), int(r))
            return sympy.Integer(hi - lo)
        return None

    def even(self) -> sympy.Expr:
        """Where ranks divide units."""
        units, n, _ = self.args
        return units / n

    def _latex(self, printer: Any, **_: object) -> str: return str(printer.doprint(self.even()))


class Largest(sympy.Function):                              # type: ignore[misc]
    """The largest of several sums of products of sizes. Those that never are it are left out; symbols are not compared
    otherwise, which takes sympy's Max seconds."""
    @classmethod
    def eval(cls, *each: Any) -> Any:
        kept = leave_dominated(each)
        if all(e.is_number for e in kept): return max(kept)
        if len(kept) == 1: return kept[0]
        return None if len(kept) == len(each) else cls(*kept)

    def _sympystr(self, printer: Any) -> str: return f"Max({', '.join(map(printer.doprint, self.args))})"
    def _pythoncode(self, printer: Any) -> str: return f"max({', '.join(map(printer.doprint, self.args))})"
    def _latex(self, printer: Any, **_: object) -> str:
        return rf"\max\left({', '.join(map(printer.doprint, self.args))}\right)"


def leave_dominated(each: Iterable[sympy.Expr]) -> list[sympy.Expr]:
    """The ones of several sums of products that may be the largest: none is term by term at most another."""
    kept: list[tuple[sympy.Expr, Mapping[sympy.Expr, sympy.Expr]]] = []
    for e in dict.fromkeys(map(sympy.expand, each)):
        terms = e.as_coefficients_dict()
        if any(covers(other, terms) for _, other in kept): continue
        kept = [(o, other) for o, other in kept if not covers(terms, other)] + [(e, terms)]
    return [e for e, _ in kept]


def covers(one: Mapping[sympy.Expr, sympy.Expr], other: Mapping[sympy.Expr, sympy.Expr]) -> bool:
    """Whether a sum of products of sizes is term by term at least another."""
    return all(one.get(term, 0) >= other.get(term, 0) for term in {*one, *other})


def bounds(units: int, n: int, r: int) -> Bounds:
    """From which unit to which rank `r` of `n` holds."""
    each, more = divmod(units, n)
    lo = r * each + min(r, more)
    return lo, lo + each + (r < more)


def piece(units: LiveSize, n: LiveSize, r: LiveSize) -> LiveSize:
    """Units that a rank holds."""
    return as_int(Piece(units, n, r))


def even(e: LiveSize) -> sympy.Expr:
    """An expression where all cuts are even."""
    found = sympy.sympify(e)
    while held := found.atoms(Piece): found = found.xreplace({each: each.even() for each in held})
    return found


def mergeable(over: type[Monoid]) -> bool:
    """Whether ranks can merge parts of a product over it: what they carry has a place for each number that comes out,
    and none says where in the whole something stood."""
    return over.width == 1 and not over.indexed


def widths(over: type[Monoid], cols: LiveSize) -> list[LiveSize]:
    """Columns of each component that a monoid carries for a product of so many columns: what depends on the left
    operand alone, as softmax's maximum and mass do, is one column."""
    parts = over.lifted(np.ones((1, 1)), np.ones((1, 3)), 0)
    return [cols if np.shape(each)[-1:] == (3,) else 1 for each in parts]


def carried_columns(over: type[Monoid], cols: LiveSize) -> LiveSize:
    """Columns of all that a monoid carries."""
    return sum(widths(over, cols))


def all_bounds(units: int, n: int) -> list[Bounds]:
    """The bounds of all ranks."""
    return [bounds(units, n, r) for r in range(n)]

