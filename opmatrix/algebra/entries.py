"""A[i, j]: an operator matrix is read entry by entry. A composite has entries where the homomorphism theorem gives
them: if every entry b of B is one (b(u + v) = b(u) + b(v), b(unit) = unit), the matrix of A @ B is the generalised
product of the matrices; where A is diagonal, b(unit) = unit is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.shapes import LiveSize, brief
from opmatrix.algebra.term import Operator

Carried = Callable[[Any], Any] | None  # a function into the carrier; None: no entry


class NoMatrix(TypeError):
    """An error: an operator has no entries, or not the requested ones. The text names the factor in the way."""


def entry(A: Operator, at: tuple[int, ...]) -> Callable[[Any], Any]:
    """A[i, j], or A[h, i, j] of a stack: a function of a number, finished; the unit where there is no entry. Raises
    IndexError outside the matrix, and NoMatrix, a TypeError, naming the factor, where the theorem gives no entry."""
    if not (isinstance(at, tuple) and len(at) in (2, 3) and all(isinstance(k, int | np.integer) for k in at)):
        raise IndexError(f"{brief(A)}[{at}]: an entry is [i, j], or [h, i, j] in a stack")
    *h, i, j = map(int, at)
    if A.kind.name in ("const", "weight") and len(A.args[0].shape) == 3:
        if not h:
            raise IndexError(f"{brief(A)} is a stack: [h, i, j] takes the entry of one head")
        A = A.kind(A.args[0].head(inside(A, "head", h.pop(), A.args[0].shape[0])))
    if h:
        raise IndexError(f"{brief(A)} is no stack of matrices: [i, j] takes an entry")
    i, j = inside(A, "row", i, A.into.cols), inside(A, "column", j, A.out.cols)
    over, f = monoid(A), carried(A, i, j)
    return lambda u: over.finish(*(over.unit() if f is None else f(u)))


def inside(A: Operator, axis: str, k: int, size: LiveSize) -> int:
    """The index, counted from the end where it is negative."""
    if not (-size <= k < size if isinstance(size, int) else k >= 0):
        raise IndexError(f"{brief(A)}: {axis} {k} is outside its {size}")
    return k % size if isinstance(size, int) else k


def monoid(A: Operator) -> Any:
    """Return the monoid that merges the entries of a column. Raises NoMatrix where there is none."""
    match A.kind.name, A.args:
        case "over", (_, over):
            return over
        case "compose", (_, b):
            return monoid(b)
        case (("add" | "mul"), (a, b)):
            for c in (a, b):
                if not monoid(c).ordinary:
                    raise no(A, f"{brief(c)} is no sum")
            return monoids.sum
        case "row", (a, b) if monoid(a) is monoid(b):
            return monoid(a)
        case _ if A.kind.matrix:
            return monoids.sum
    raise no(A, f"{A.kind} is no operator matrix")


def no(A: Operator, why: str) -> NoMatrix:
    """Return the error that an operator has no entries, with the reason."""
    return NoMatrix(f"({brief(A)})[i, j]: {why}")


def carried(A: Operator, i: int, j: int) -> Carried:
    """Return the entry before finish; None where there is none."""
    match A.kind.name, A.args:
        case "over", (a, over):
            return lift_entry(a, over, i, j)
        case _ if A.kind.matrix:
            return lift_entry(A, monoids.sum, i, j)
        case "add", (a, b):
            f, g = (carried(c, i, column_of(c, j)) for c in (a, b))
            return (lambda u: monoids.sum.merged(f(u), g(u))) if f and g else f or g
        case "mul", (a, b):
            return multiply_entries(A, a, b, i, j)
        case "row", (a, b):
            if not isinstance(w := a.out.cols, int):
                raise no(A, f"the columns of {brief(a)} are not known")
            return carried(a, i, j) if j < w else carried(b, i, j - w)
        case "compose", (a, b):
            return composed(A, a, b, i, j)
    raise no(A, f"{A.kind} is no operator matrix")


def lift_entry(a: Operator, over: type[Monoid], i: int, j: int) -> Carried:
    """Return entry (i, j) of a matrix kind as a function into the carrier of `over`; None where there is no entry."""
    e = a.kind.body(i, j, *a.args)
    return None if e is None else over.entry(e, i)


def column_of(c: Operator, j: int) -> int:
    """Return the column j, or 0 of an operator with a single column, which serves all."""
    return 0 if c.out.cols == 1 else j


def multiply_entries(A: Operator, a: Operator, b: Operator, i: int, j: int) -> Carried:
    """A product of entries: one factor is the same number in every row, or both are diagonal."""
    constant = next((c for c in (b, a) if c.constant and c.uniform), None)
    if constant is None and not (a.diagonal and b.diagonal):
        raise no(A, f"neither {brief(a)} nor {brief(b)} is constant, and not both are diagonal")
    f, g = (carried(c, 0 if c is constant else i, column_of(c, j)) for c in (a, b))
    return (lambda u: (f(u)[0] * g(u)[0],)) if f and g else None


def composed(A: Operator, a: Operator, b: Operator, i: int, j: int) -> Carried:
    """The generalised product of two matrices at (i, j), where the theorem allows it."""
    first, last, inner = monoid(a), monoid(b), a.out.cols if isinstance(a.out.cols, int) else b.into.cols
    through: Iterable[int] | None
    if not (obstacle := strange(b, first)):
        through = range(inner) if isinstance(inner, int) else None
    elif not a.diagonal:
        what = "not additive" if first.ordinary else f"no homomorphism of {first.__name__}"
        raise no(A, f"{brief(obstacle)} is {what} and {brief(a)} is not diagonal, so their product has no entries")
    elif not keeps_unit(b, first):
        raise no(A, f"{brief(b)} does not map the unit of {first.__name__} to that of {last.__name__}")
    else:
        through = [i]
    if not first.plain():
        raise no(A, f"{first.__name__} finishes its sum in {brief(a)}, so {brief(b)} cannot continue the sum")
    through = [i] if a.diagonal else [j] if b.diagonal else through
    if through is None:
        raise no(A, f"the number of columns between {brief(a)} and {brief(b)} is unknown")
    pairs = [(f, g) for k in through if (f := carried(a, i, k)) and (g := carried(b, k, j))]

    def along(u: object) -> Any:
        """Merge, by the last monoid, the images of the first factor's finished entries along the inner index."""
        total = last.unit()
        for f, g in pairs:
            total = last.merged(total, g(first.finish(*f(u))))
        return total

    return along if pairs else None


def strange(b: Operator, over: type[Monoid]) -> Operator | None:
    """The first factor of b with an entry that is no homomorphism of the monoid."""
    match b.kind.name, b.args:
        case "compose", (c, d):
            return strange(c, over) or strange(d, over)
        case "over", (c, m):
            return None if m is over and (w := list_numbers(c)) and all(map(m.distributes, w)) else b
    return None if over.ordinary and b.linear else b


def list_numbers(c: Operator) -> list[float]:
    """Return the entries of a matrix of numbers, as far as they differ; an empty list where entries are functions."""
    if c.args and isinstance(c.args[0], Data):
        return [] if c.kind.name == "const" else list(c.args[0].array.flat)
    return [] if callable(c.kind.body(0, 0, *c.args)) else [1]


def keeps_unit(b: Operator, over: type[Monoid]) -> bool:
    """True if every entry of b maps the unit of `over` to the unit of b's own monoid."""
    if (last := monoid(b)).ordinary:
        return bool(over.ordinary and b.maps_zero_to_zero)
    if b.kind.name != "over" or not (w := list_numbers(b.args[0])):
        return False
    return all(last.lifted(over.identity, p) == last.unit() for p in w)
