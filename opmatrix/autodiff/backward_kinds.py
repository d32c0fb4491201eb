"""Node kinds that backward terms are made of, and dropout: adjoints that are no forward operator, derivatives of
functions of one number, the shares of softmax as a value of its own."""

from __future__ import annotations

from formats.core.errors import InputError
from opmatrix.algebra.monoid import Scalars
from opmatrix.algebra.nodes import DERIVATIVES, Cell, ReadAt, ScalarBody, combinator, every, matrix, ones
from opmatrix.algebra.positions.lags import Lag
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.term import KINDS, Operator


def derivative_of(f: Operator) -> ScalarBody:
    """Return the derivative that is declared beside a function of one number. Raises InputError where none is."""
    if f.kind.name in DERIVATIVES:
        return DERIVATIVES[f.kind.name]
    raise InputError(f"pullback: {f} declares no derivative: @scalar_function(derivative), or `derivative=`")


def slope_at(x: Scalars, f: Operator) -> Scalars:
    """Compute the derivative of f at x. Raises InputError if f declares none."""
    return derivative_of(f)(x)


@matrix(lambda n, f: (n, n), slope_at, linear=False, entrywise=True)
def derivative(i: int, j: int, f: Operator) -> Cell:
    """The derivative of a function of one number, entry by entry."""
    return derivative_of(f) if i == j else None


def repeat_column(x: Scalars, n: int) -> Scalars:
    """Copy a single column n times."""
    return x.repeat(n, -1)


@matrix(lambda k, n: (1, n), repeat_column, adjoint=lambda k, n: ones())
def widen(i: int, j: int, n: int) -> Cell:
    """One column as n equal ones: the adjoint of the sum of a row."""
    return 1


@combinator(additive=True, row_wise=True, uniform=True, adjoint=lambda n, h: KINDS["repeat"](h))
def fold(x: ReadAt, h: int) -> ReadAt:
    """The sum of each of h groups of neighbouring heads: the adjoint of heads that groups share."""
    return x.fold(h)


@combinator(additive=True, selective=True)
def ahead(x: ReadAt, k: Lag) -> ReadAt:
    """The row k behind in the same sequence, for each row; zeros for the last k rows: the adjoint of a shift."""
    return x.shift(-k)


@combinator(additive=True, selective=True, adjoint=lambda n: KINDS["backwards"]())
def backwards(x: ReadAt) -> ReadAt:
    """The rows of each sequence from the last to the first: a scan between two of them merges the rows behind."""
    return x.backwards()


@combinator(at_x=1, **every("constant", "row_wise"))
def shares(x: ReadAt, z: Operator, where: Pattern = everyone) -> ReadAt:
    """The shares that softmax gives each row's visible rows, by their scores: they sum to 1, and are 0 for rows that it
    does not see. A product of shares with values is attention."""
    return z(x).shares(where)


@combinator(row_linear=True, diagonal=True)
def dropped(x: ReadAt, name: str, rate: float) -> ReadAt:
    """Entries times a mask of zeros and ones that the batch gives by its name, over the share 1 - rate of those that
    stay (Srivastava et al. 2014). Its adjoint is itself."""
    return x.dropped(name, rate)


def drop(name: str, rate: float) -> Operator:
    """Return dropout by the mask of that name. Raises InputError for a rate that drops all entries, or is negative."""
    if not (isinstance(rate, int | float) and 0 <= rate < 1):
        raise InputError(f"dropout {name!r}: rate {rate!r}: it is from 0 to below 1, such as 0.1")
    dropping: Operator = dropped(name, rate)
    return dropping
