"""Laws of picked rows: rows may be picked before any row-wise operator, so a value of which only a few rows are read is
computed for those alone. No law here depends on a layer."""

from opmatrix.algebra.operators import pick, product, row
from rewrites.laws.law import (
    SELECT,
    Sort,
    by_rows,
    collect,
    constant,
    distances,
    h,
    law,
    mixing,
    n,
    over,
    p,
    placed,
    relation,
    scores,
    value,
    where,
)

EARLY = "early row selection"
other = Sort("value")  # a value or a constant


@law(phase=SELECT, source=EARLY, without=(dict(A=mixing[n, p]),))
def pick_before(x: other[n], A: by_rows[n, p], r: relation):
    """Rows that go through A one by one may be picked first. They keep their positions, so rotations and tables of
    positions count among such A."""
    return (x @ A) @ pick(r), (x @ pick(r)) @ A


@law(phase=SELECT, source=EARLY)
def pick_of_sum(x: value[n], y: value[n], r: relation):
    """Rows of a sum are sums of rows."""
    return (x + y) @ pick(r), x @ pick(r) + y @ pick(r)


@law(phase=SELECT, source=EARLY, without=(dict(c=placed[n], r=relation["square"]),))
def pick_of_shift(x: other[n], c: constant[n], r: relation):
    """A constant row is the same in all rows, and so of any space."""
    return (x + c) @ pick(r), x @ pick(r) + c


@law(phase=SELECT, source=EARLY)
def pick_of_product(x: other[n], y: other[n], r: relation):
    """Rows of an entrywise product are products of rows."""
    return (x * y) @ pick(r), (x @ pick(r)) * (y @ pick(r))


@law(phase=SELECT, source=EARLY)
def pick_of_columns(x: other[n], y: other[p], r: relation):
    """Rows of values side by side."""
    return row(x, y) @ pick(r), row(x @ pick(r), y @ pick(r))


@law(phase=SELECT, source=EARLY)
def pick_of_bias(s: scores[h], b: distances[h], r: relation):
    """Rows of scores with a bias by distance: the distances from the queries that are read. True of any b; other sums
    are those of `pick_of_sum`."""
    return (s + b) @ pick(r), s @ pick(r) + b @ pick(r)


@law(phase=SELECT, source=EARLY)
def pick_queries(s: scores[h], v: other[h, n], M: over, P: where, r: relation):
    """Rows of a product over any monoid are those of its left operand: attention is left with the queries that are
    read."""
    return product(s, v, M, P) @ pick(r), product(s @ pick(r), v, M, P)


SPACE_LAWS = collect(globals())
