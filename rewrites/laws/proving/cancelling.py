"""Numbers that cancel: a value less itself, times zero, times one; averages of a value shifted by one number.
`EQUAL_SIZES` requires equal rows, columns and heads, so that no operand is repeated; a number that is `narrow` is one
for all heads. A canonical left side is no longer matched: a times one is a, and so is a times one times one."""

from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import I, const, mean
from rewrites.laws.law import JOIN, SIMPLIFY, array, collect, k, law, n, p, q, scalar

EQUAL_SIZES = ("(= (wide a) (wide b))", "(= (tall a) (tall b))", "(= (deep a) (deep b))")
SPREADING = ("(column r)", "(= (tall a) (tall r))", "(= (deep a) (deep r))")
RING, AVERAGE = "ring axioms", "an average of a sum is the sum of the averages"


def none(a):
    """Multiply by zero."""
    return compose(a, I * 0.0)


def minus(a):
    """Multiply by minus one."""
    return compose(a, I * -1.0)


@law(phase=SIMPLIFY, canonical=True, source=RING)
def once(a: array[k, n]):
    """A value times one is the value."""
    return compose(a, I * 1.0), a


@law(phase=SIMPLIFY, canonical=True, source=RING)
def minus_twice(a: array[k, n]):
    """A value negated twice is the value."""
    return minus(minus(a)), a


@law(phase=SIMPLIFY, canonical=True, source=RING, when=EQUAL_SIZES)
def nothing_added(a: array[k, n], b: array[k, n]):
    """Zeros of the same size add nothing."""
    return a + none(b), a


@law(phase=SIMPLIFY, canonical=True, source=RING, when=EQUAL_SIZES)
def nothing_before(a: array[k, n], b: array[k, n]):
    """Zeros of the same size before a term add nothing to it."""
    return none(b) + a, a


@law(phase=SIMPLIFY, canonical=True, source=RING, when=SPREADING)
def nothing_spread(a: array[k, n], r: array[k, 1]):
    """A column of zeros adds nothing to every column."""
    return a + none(r), a


@law(phase=SIMPLIFY, canonical=True, source=RING, when=SPREADING)
def nothing_spread_before(a: array[k, n], r: array[k, 1]):
    """A column of zeros before a term adds nothing to its columns."""
    return none(r) + a, a


@law(phase=SIMPLIFY, canonical=True, source=RING, when=("(narrow s)",))
def nothing_times(s: scalar):
    """Zero times a number is zero. True of any s."""
    return const(0.0) * s, const(0.0)


@law(phase=SIMPLIFY, canonical=True, source=RING, when=("(narrow s)",))
def times_nothing(s: scalar):
    """A number times zero is zero. True of any s."""
    return s * const(0.0), const(0.0)


@law(phase=SIMPLIFY, canonical=True, source=RING)
def minus_minus():
    """Minus one times itself is one."""
    return const(-1.0) * const(-1.0), const(1.0)


@law(phase=SIMPLIFY, canonical=True, source=RING)
def once_times(s: scalar):
    """One times a number is the number. True of any s."""
    return const(1.0) * s, s


@law(phase=SIMPLIFY, canonical=True, source=RING)
def times_once(s: scalar):
    """A number times one is the number. True of any s."""
    return s * const(1.0), s


@law(phase=SIMPLIFY, canonical=True, source=RING, when=("(narrow s)",))
def nothing_scaled(a: array[k, n], s: scalar):
    """No times anything is nothing. True of any s."""
    return compose(none(a), I * s), none(a)


@law(phase=SIMPLIFY, source=RING)
def opposite(a: array[k, n]):
    """A term less itself leaves zeros."""
    return a + minus(a), none(a)


@law(phase=SIMPLIFY, source=RING)
def opposite_first(a: array[k, n]):
    """A term added to its negative leaves zeros."""
    return minus(a) + a, none(a)


@law(phase=SIMPLIFY, source=RING)
def opposite_chain(a: array[k, n], b: array[k, n]):
    """A term less itself leaves zeros before the rest of a sum, too."""
    return a + (minus(a) + b), none(a) + b


@law(phase=SIMPLIFY, source=RING)
def opposite_chain_first(a: array[k, n], b: array[k, n]):
    """A term added to its negative leaves zeros before the rest of a sum, too."""
    return minus(a) + (a + b), none(a) + b


@law(phase=JOIN, source=RING)
def opposite_last(a: array[k, n], b: array[k, n]):
    """A term less itself leaves zeros with another term between them."""
    return a + (b + minus(a)), none(a) + b


@law(phase=JOIN, source=RING)
def opposite_last_first(a: array[k, n], b: array[k, n]):
    """A term added to its negative leaves zeros with another term between them."""
    return minus(a) + (b + a), none(a) + b


@law(phase=JOIN, source=RING)
def opposite_within(a: array[k, n], b: array[k, n], c: array[k, n]):
    """A term less itself leaves zeros with another term between them, before the rest."""
    return a + (b + (minus(a) + c)), none(a) + (b + c)


@law(phase=JOIN, source=RING)
def opposite_within_first(a: array[k, n], b: array[k, n], c: array[k, n]):
    """A term added to its negative leaves zeros with another term between them, before the rest."""
    return minus(a) + (b + (a + c)), none(a) + (b + c)


@law(phase=SIMPLIFY, source=AVERAGE, when=("(column r)",))
def mean_shifted(a: array[k, p], r: array[k, 1]):
    """A number that is added to every number of a row is added to its average."""
    return compose(a + r, mean), compose(a, mean) + r


@law(phase=SIMPLIFY, source=AVERAGE, when=("(column r)",))
def mean_shifted_first(a: array[k, p], r: array[k, 1]):
    """A number that every number of a row is added to is added to its average."""
    return compose(r + a, mean), r + compose(a, mean)


@law(phase=SIMPLIFY, source=AVERAGE, when=("(column r)",))
def mean_scaled(a: array[k, p], r: array[k, 1]):
    """A factor of every number of a row is a factor of its average."""
    return compose(a * r, mean), compose(a, mean) * r


@law(phase=SIMPLIFY, source=AVERAGE, when=("(column r)",))
def mean_scaled_first(a: array[k, p], r: array[k, 1]):
    """A factor before every number of a row is a factor before its average."""
    return compose(r * a, mean), r * compose(a, mean)


@law(phase=SIMPLIFY, canonical=True, source=AVERAGE, when=("(column r)",))
def mean_once(r: array[q, 1]):
    """The average of one number is that number."""
    return compose(r, mean), r


CANCELLING_LAWS = collect(globals())
