"""Heads in groups, and products over any monoid in blocks: the computation of a rank that has some heads, some columns
or some rows. They serve proofs that a shard rule is right (tests/support/split_rules.py)."""

from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import product, row, scan, total, turn
from rewrites.laws.kinds import with_heads
from rewrites.laws.law import SIMPLIFY, Sort, array, collect, entrywise, h, k, law, mixing, n, over, p, q, where
from rewrites.laws.proving.blocks import WIDE
from rewrites.laws.proving.value_kinds import below

BY_HEAD, MONOID = "heads do not see each other", "definition of a product over a monoid"
some = Sort("value")  # a value or a constant, of several heads
between = Sort("scores")  # scores that may depend on the input
AS_MANY_HEADS = ("(= (deep a) (deep c))",)
each_row = Sort("operator", ("row_wise", "uniform"))  # acts on each row by itself, at any position


@law(phase=SIMPLIFY, source=BY_HEAD)
def turn_heads(a: some[h, n], b: some[k, n]):
    """Each head is turned by itself."""
    return turn(with_heads(a, b)), with_heads(turn(a), turn(b))


@law(phase=SIMPLIFY, source=BY_HEAD, when=AS_MANY_HEADS)
def add_heads(a: some[h, n], b: some[k, n], c: some[h, n], d: some[k, n]):
    """Heads are added head by head, where there are as many."""
    return with_heads(a, b) + with_heads(c, d), with_heads(a + c, b + d)


@law(phase=SIMPLIFY, source=BY_HEAD, when=AS_MANY_HEADS)
def multiply_heads(a: some[h, n], b: some[k, n], c: some[h, n], d: some[k, n]):
    """Heads are multiplied entry by entry head by head, where there are as many."""
    return with_heads(a, b) * with_heads(c, d), with_heads(a * c, b * d)


@law(phase=SIMPLIFY, source=BY_HEAD, when=AS_MANY_HEADS)
def product_heads(a: between[h], b: between[k], c: some[h, n], d: some[k, n], M: over, P: where):
    """A product of heads is one of each head, over any monoid."""
    return product(with_heads(a, b), with_heads(c, d), M, P), with_heads(product(a, c, M, P), product(b, d, M, P))


@law(phase=SIMPLIFY, source=BY_HEAD)
def entrywise_heads(a: some[h, n], b: some[k, n], f: entrywise):
    """A function of single entries does not see other heads. True of any f that acts on each head alone."""
    return compose(with_heads(a, b), f), with_heads(compose(a, f), compose(b, f))


@law(phase=SIMPLIFY, source=BY_HEAD, when=AS_MANY_HEADS)
def row_heads(a: some[h, n], b: some[k, n], c: some[h, p], d: some[k, p]):
    """Columns stand beside each other head by head, where there are as many."""
    return row(with_heads(a, b), with_heads(c, d)), with_heads(row(a, c), row(b, d))


@law(phase=SIMPLIFY, source="a sum of heads may be taken in parts")
def total_heads(a: some[h, n], b: some[k, n]):
    """The sum of all heads is that of the first ones and that of the last ones."""
    return compose(with_heads(a, b), total), compose(a, total) + compose(b, total)


@law(phase=SIMPLIFY, source=MONOID)
def columns_over(z: between[h], v: some[h, n], w: some[h, p], M: over, P: where):
    """A column of a product over any monoid needs one column of the right factor."""
    return product(z, row(v, w), M, P), row(product(z, v, M, P), product(z, w, M, P))


@law(phase=SIMPLIFY, source=BY_HEAD, when=AS_MANY_HEADS)
def scan_heads(a: some[h, n], b: some[k, n], c: some[h, n], d: some[k, n], M: over, P: where):
    """Rows of a head are merged with those of that head, where there are as many heads."""
    return scan(with_heads(a, b), with_heads(c, d), M, P), with_heads(scan(a, c, M, P), scan(b, d, M, P))


@law(phase=SIMPLIFY, source=MONOID, when=WIDE)
def columns_scanned(a: some[h, n], b: some[h, p], c: some[h, n], d: some[h, p], M: over, P: where):
    """Rows are merged column by column, where blocks of columns are equally wide."""
    return scan(row(a, b), row(c, d), M, P), row(scan(a, c, M, P), scan(b, d, M, P))


@law(phase=SIMPLIFY, source=MONOID)
def rows_over(a: array[k, n], b: array[p, n], c: array[n, q], M: over):
    """A row of a product over any monoid needs one row of the left factor."""
    return product(below(a, b), c, M), below(product(a, c, M), product(b, c, M))


@law(phase=SIMPLIFY, source="rows one by one", without=(dict(f=mixing[n, p]),))
def below_each(a: array[k, n], b: array[q, n], f: each_row[n, p]):
    """An operator that acts on each row by itself, wherever it stands, does not see the rows below."""
    return compose(below(a, b), f), below(compose(a, f), compose(b, f))


GROUP_LAWS = collect(globals())
