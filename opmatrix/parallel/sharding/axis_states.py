"""The placement of a value on one mesh axis: replicated, sharded along one dimension, or a partial sum that is not
reduced yet. Sizes are numbers or expressions; `Piece` is the part of a sharded dimension that a rank holds."""

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
    """A dimension sharded into contiguous pieces of whole units."""

    role: Role  # the sharded dimension
    units: LiveSize  # indivisible units, such as heads for columns
    copied: bool = False  # fewer units than ranks: each holds one, as shared keys

    def bounds(self, n: int, r: int, units: int) -> Bounds:
        """Return the half-open range of `units` units that rank `r` of `n` holds."""
        return (r * units // n, r * units // n + 1) if self.copied else bounds(units, n, r)

    def __str__(self) -> str:
        return f"{self.role} of {self.units}" + " copied" * self.copied


class Partial(NamedTuple):
    """A partial value: each rank holds a carrier of the monoid. The value is the finished merge of all carriers."""

    over: type[Monoid]

    def __str__(self) -> str:
        return f"partial {self.over.__name__}"


class Needed(NamedTuple):
    """Each rank holds the rows that its entries of a relation name, including rows of other ranks: its halo. The rows
    of the relation are sharded on the same axis."""

    relation: Relation  # the relation whose entries name rows
    units: LiveSize  # rows of the value

    def __str__(self) -> str:
        return f"rows that {self.relation} names"


AxisState: TypeAlias = Cut | Partial | Needed | None  # placement on one axis; None is replicated


class Coordinate(sympy.Symbol):  # type: ignore[misc]
    """The coordinate of a rank on an axis, from 0 on: a symbol that equals no size, whatever sizes are called."""


def describe(state: AxisState) -> str:
    """Write a state for error texts; `whole` for a replicated value."""
    return "whole" if state is None else str(state)


class Piece(sympy.Function):  # type: ignore[misc]
    """The units that rank `r` of `n` holds of `units`: an equal share, and one more on the first ranks."""

    @classmethod
    def eval(cls, units: Any, n: Any, r: Any) -> Any:
        """Return the units where they are numbers, or where there is one rank; else stay an expression."""
        if n == 1:
            return units
        if all(size.is_Integer for size in (units, n, r)):
            lo, hi = bounds(int(units), int(n), int(r))
            return sympy.Integer(hi - lo)
        return None

    def even(self) -> sympy.Expr:
        """Return the size of an equal piece, for ranks that divide the units."""
        units, n, _ = self.args
        return units / n

    def _latex(self, printer: Any, **_: object) -> str:
        return str(printer.doprint(self.even()))


class Largest(sympy.Function):  # type: ignore[misc]
    """The largest of several sums of products of sizes. Sums that are never the largest are left out. Symbols are not
    compared otherwise, because that takes sympy's Max seconds."""

    @classmethod
    def eval(cls, *each: Any) -> Any:
        """Return the largest of numbers, or the only sum left after dominated ones are dropped; else stay an
        expression."""
        candidates = leave_dominated(each)
        if all(e.is_number for e in candidates):
            return max(candidates)
        if len(candidates) == 1:
            return candidates[0]
        return None if len(candidates) == len(each) else cls(*candidates)

    def _sympystr(self, printer: Any) -> str:
        return f"Max({', '.join(map(printer.doprint, self.args))})"

    def _pythoncode(self, printer: Any) -> str:
        return f"max({', '.join(map(printer.doprint, self.args))})"

    def _latex(self, printer: Any, **_: object) -> str:
        return rf"\max\left({', '.join(map(printer.doprint, self.args))}\right)"


def leave_dominated(each: Iterable[sympy.Expr]) -> list[sympy.Expr]:
    """Return the sums of products that may be the largest: leave out every sum that another one covers term by term."""
    candidates: list[tuple[sympy.Expr, Mapping[sympy.Expr, sympy.Expr]]] = []
    for e in dict.fromkeys(map(sympy.expand, each)):
        terms = e.as_coefficients_dict()
        if any(covers(other, terms) for _, other in candidates):
            continue
        candidates = [(o, other) for o, other in candidates if not covers(terms, other)] + [(e, terms)]
    return [e for e, _ in candidates]


def covers(one: Mapping[sympy.Expr, sympy.Expr], other: Mapping[sympy.Expr, sympy.Expr]) -> bool:
    """True if every term of the first sum of products of sizes is at least the same term of the other."""
    return all(one.get(term, 0) >= other.get(term, 0) for term in {*one, *other})


def bounds(units: int, n: int, r: int) -> Bounds:
    """Return the half-open range of units that rank `r` of `n` holds."""
    share, more = divmod(units, n)
    lo = r * share + min(r, more)
    return lo, lo + share + (r < more)


def piece(units: LiveSize, n: LiveSize, r: LiveSize) -> LiveSize:
    """Return the number of units that a rank holds."""
    return as_int(Piece(units, n, r))


def even(e: LiveSize) -> sympy.Expr:
    """Return the expression with every piece of equal size."""
    expression = sympy.sympify(e)
    while held := expression.atoms(Piece):
        expression = expression.xreplace({part: part.even() for part in held})
    return expression


def mergeable(over: type[Monoid]) -> bool:
    """True if ranks can merge partial products over the monoid: the carrier has one place for each output number, and
    no component is a position in the whole operand."""
    return over.width == 1 and not over.indexed


def widths(over: type[Monoid], cols: LiveSize) -> list[LiveSize]:
    """Return the columns of each component that a monoid carries for a product of `cols` columns. A component that
    depends on the left operand alone, such as softmax's maximum or mass, has one column."""
    parts = over.lifted(np.ones((1, 1)), np.ones((1, 3)), 0)
    return [cols if np.shape(part)[-1:] == (3,) else 1 for part in parts]


def carried_columns(over: type[Monoid], cols: LiveSize) -> LiveSize:
    """Return the columns of all components that a monoid carries."""
    return sum(widths(over, cols))


def all_bounds(units: int, n: int) -> list[Bounds]:
    """Return the bounds of all ranks."""
    return [bounds(units, n, r) for r in range(n)]
