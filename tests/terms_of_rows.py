"""Terms that go through rows one by one, named and random, with what each is by numpy."""

from opmatrix.algebra import monoids
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.operators import (
    I,
    const,
    exp,
    gelu,
    heads,
    magnitude,
    ones,
    over,
    relu,
    row,
    rsqrt,
    share,
    silu,
    softplus,
    square,
    tanh,
    total,
    weight,
)
from opmatrix.algebra.operators import cols as columns
from opmatrix.algebra.shapes import Shape, T

ENTRYWISE = tanh, relu, gelu, silu, softplus, square, magnitude
MERGED = monoids.max, monoids.mean, monoids.sumsq, monoids.logsumexp, monoids.moments, monoids.topk(2), ones


def value(k, cols, count=1):
    """The k-th value that a term is read over."""
    return symbol(f"x{k}", Shape(), Shape(count, T, cols), ())


def tame(x):
    """A value whose numbers stay within some tens: what grows without end says nothing of errors."""
    return x @ tanh


def random_term(rng, cols):
    """(a term of one or two values of so many columns, these values)."""
    values = [value(k, cols) for k in range(rng.integers(1, 3))]
    term = values[0]
    for _ in range(rng.integers(1, 5)):
        match rng.integers(0, 9):
            case 0: term = term @ ENTRYWISE[rng.integers(len(ENTRYWISE))]
            case 1: term = term * tame(values[-1])
            case 2: term = term + values[-1] @ const(rng.normal(size=cols))
            case 3: term = tame(term) * (tame(term) @ square @ monoids.mean @ rsqrt_of_more())
            case 4: term = tame(term) @ exp
            case 5: term = term @ share
            case 6: term = term + values[-1] @ (I * rng.normal())
            case 7: term = term * (values[0] @ magnitude @ over(ones, monoids.max))
            case 8: term = term + tame(values[0]) @ const(rng.normal(size=cols)) * const(0.5)
    match rng.integers(0, 6):
        case 0: term = term @ over_of(MERGED[rng.integers(len(MERGED))])
        case 1: term = row(term, values[0] @ tanh)
        case 2 if cols % 3 == 0:
            term = term @ heads(3) @ share * ((tame(values[-1]) @ columns(0, 3, cols)) @ heads(3)) @ total
        case 4 if cols > 3: term = tame(term) * (values[0] @ columns(2, 3, cols))
        case 3 if cols <= 48: term = tame(term) @ weight(rng.normal(size=(cols, 5)))
    return term, values


def rsqrt_of_more(): return (I + const(1e-3)) @ rsqrt
def over_of(monoid): return monoid if monoid is ones else over(ones, monoid)
