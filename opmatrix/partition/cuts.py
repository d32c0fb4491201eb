"""How a value lies on an axis of a mesh: whole, cut along one of its dimensions, or as a part of a sum that is not
merged yet. Sizes are numbers or expressions; `Piece` is the one that a rank holds of a cut, `Before` what lies
before it."""
from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import sympy

from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.shapes import LiveSize, as_int

Role: TypeAlias = Literal["batch", "heads", "rows", "cols"]
Bounds: TypeAlias = tuple[int, int]


class Dims(NamedTuple):
    """The numbers of a value: sequences x heads x rows x columns. What has no rows of a sequence has a batch of one."""
    batch: LiveSize = 1
    heads: LiveSize = 1
    rows: LiveSize = 1
    cols: LiveSize = 1

    @property
    def numbers(self) -> LiveSize: return self.batch * self.heads * self.rows * self.cols
    def __str__(self) -> str: return " × ".join(map(str, self))


class Cut(NamedTuple):
    """Cut along a dimension into pieces of neighbours, of whole units: as many heads as columns lie in, say. Units that
    are fewer than ranks are copied: each rank holds one."""
    role: Role
    units: LiveSize

    def __str__(self) -> str: return f"{self.role} of {self.units}"


class Partial(NamedTuple):
    """Each rank holds a carrier of the monoid, and the value is what they merge to, finished."""
    over: type[Monoid]

    def __str__(self) -> str: return f"partial {self.over.__name__}"


State: TypeAlias = Cut | Partial | None                     # of one axis; None is whole


def describe(state: State) -> str: return "whole" if state is None else str(state)


class Piece(sympy.Function):                                # type: ignore[misc]
    """Units that rank `r` of `n` holds of `units`: as many each, the first ranks one more; of fewer units than ranks,
    one, which the ranks of a group copy."""
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


class Before(sympy.Function):                               # type: ignore[misc]
    """Units that ranks before `r` of `n` hold of `units`."""
    @classmethod
    def eval(cls, units: Any, n: Any, r: Any) -> Any:
        if r == 0: return sympy.Integer(0)
        if r == n: return units
        if all(each.is_Integer for each in (units, n, r)): return sympy.Integer(bounds(int(units), int(n), int(r))[0])
        return None

    def even(self) -> sympy.Expr:
        """Where ranks divide units."""
        units, n, r = self.args
        return units * r / n

    def _latex(self, printer: Any, **_: object) -> str: return str(printer.doprint(self.even()))


def bounds(units: int, n: int, r: int) -> Bounds:
    """From which unit to which rank `r` of `n` holds."""
    if units < n: return r * units // n, r * units // n + 1
    each, more = divmod(units, n)
    lo = r * each + min(r, more)
    return lo, lo + each + (r < more)


def piece(units: LiveSize, n: LiveSize, r: LiveSize) -> LiveSize:
    """Units that a rank holds."""
    return as_int(Piece(units, n, r))


def before(units: LiveSize, n: LiveSize, r: LiveSize) -> LiveSize:
    """Units that lie before a rank's."""
    return as_int(Before(units, n, r))


def even(e: LiveSize) -> sympy.Expr:
    """An expression where all cuts are even."""
    found = sympy.sympify(e)
    while held := found.atoms(Piece, Before): found = found.xreplace({each: each.even() for each in held})
    return found


def carried_columns(over: type[Monoid], cols: LiveSize) -> LiveSize:
    """Columns of what a monoid carries for a product of so many columns: a component that depends on the left operand
    alone, as softmax's maximum and mass do, is one column."""
    if over.indexed: parts = [np.shape(each) for each in over.lifted(np.ones((1, 1)), np.ones((1, 3)), 0)]
    else: parts = [np.shape(each) for each in over.lifted(np.ones((1, 1)), np.ones((1, 3)))]
    wide = sum(shape[-1:] == (3,) for shape in parts)
    return wide * cols + (len(parts) - wide)


def pieces(units: int, n: int) -> list[Bounds]:
    """The bounds of all ranks."""
    return [bounds(units, n, r) for r in range(n)]


def ends(at: list[int]) -> list[Bounds]:
    """Neighbouring bounds."""
    return [*pairwise(at)]
