"""Values in blocks, side by side and one above the other, and their parts. Directed: blocks come out of everything, and
parts of blocks are found. Equal sizes are guards: blocks that do not meet are left alone."""

from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import product, row, turn
from rewrites.laws.kinds import left, right
from rewrites.laws.law import SIMPLIFY, array, collect, entrywise, k, law, n, p, q, varying
from rewrites.laws.proving.value_kinds import below

BLOCK_ALGEBRA = "block matrices"
EQUALLY_WIDE, WIDE = ("(= (wide a) (wide b))",), ("(= (wide a) (wide c))",)
TALL, INNER = ("(= (tall a) (tall c))",), ("(= (wide a) (tall c))",)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def turn_row(a: array[k, n], b: array[k, p]):
    """Blocks side by side are one above the other when transposed."""
    return turn(row(a, b)), below(turn(a), turn(b))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def turn_below(a: array[k, n], b: array[p, n]):
    """Blocks one above the other are side by side when transposed."""
    return turn(below(a, b)), row(turn(a), turn(b))


# ---- blocks come out


@law(phase=SIMPLIFY, both=True, source=BLOCK_ALGEBRA)
def beside(a: array[k, n], b: array[k, p], c: array[k, q]):
    """Side by side is associative: a part may be cut out anywhere."""
    return row(row(a, b), c), row(a, row(b, c))


@law(phase=SIMPLIFY, both=True, source=BLOCK_ALGEBRA)
def above(a: array[k, n], b: array[p, n], c: array[q, n]):
    """One above the other is associative too."""
    return below(below(a, b), c), below(a, below(b, c))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=TALL)
def block_matrix(a: array[k, n], b: array[p, n], c: array[k, q], d: array[p, q]):
    """Two columns of blocks are two rows of blocks, where the blocks are equally tall."""
    return row(below(a, b), below(c, d)), below(row(a, c), row(b, d))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=WIDE)
def row_sum(a: array[k, n], b: array[k, p], c: array[k, n], d: array[k, p]):
    """Blocks are added block by block, where they are equally wide."""
    return row(a, b) + row(c, d), row(a + c, b + d)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=WIDE)
def row_entries(a: array[k, n], b: array[k, p], c: array[k, n], d: array[k, p]):
    """Blocks are multiplied entry by entry block by block, where they are equally wide."""
    return row(a, b) * row(c, d), row(a * c, b * d)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=TALL)
def below_sum(a: array[k, n], b: array[p, n], c: array[k, n], d: array[p, n]):
    """Blocks are added block by block, where they are equally tall."""
    return below(a, b) + below(c, d), below(a + c, b + d)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=TALL)
def below_entries(a: array[k, n], b: array[p, n], c: array[k, n], d: array[p, n]):
    """Blocks are multiplied entry by entry block by block, where they are equally tall."""
    return below(a, b) * below(c, d), below(a * c, b * d)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, without=(dict(f=varying[1]),))
def row_entrywise(a: array[k, n], b: array[k, p], f: entrywise):
    """A function of single entries does not see what stands beside them."""
    return compose(row(a, b), f), row(compose(a, f), compose(b, f))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def below_entrywise(a: array[k, n], b: array[p, n], f: entrywise):
    """A function of single entries does not see what stands below them. True of any f that acts on single rows."""
    return compose(below(a, b), f), below(compose(a, f), compose(b, f))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def columns_of_product(a: array[k, n], b: array[n, p], c: array[n, q]):
    """A column of a product needs one column of the right factor."""
    return product(a, row(b, c)), row(product(a, b), product(a, c))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def rows_of_product(a: array[k, n], b: array[p, n], c: array[n, q]):
    """A row of a product needs one row of the left factor."""
    return product(below(a, b), c), below(product(a, c), product(b, c))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=INNER)
def inner_blocks(a: array[k, n], b: array[k, p], c: array[n, q], d: array[p, q]):
    """A product is the sum of those of its blocks, where they fit."""
    return product(row(a, b), below(c, d)), product(a, c) + product(b, d)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=WIDE)
def first_part(a: array[k, n], b: array[k, p], c: array[q, n]):
    """As many columns as the first part has are the first part."""
    return left(row(a, b), c), a


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=WIDE)
def last_part(a: array[k, n], b: array[k, p], c: array[q, n]):
    """The columns behind as many as the first part has are the last part."""
    return right(row(a, b), c), b


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def first_of_below(a: array[k, n + p], b: array[p, n + p], c: array[q, n]):
    """Columns are cut in every row."""
    return left(below(a, b), c), below(left(a, c), left(b, c))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def last_of_below(a: array[k, n + p], b: array[p, n + p], c: array[q, n]):
    """Columns are cut in every row."""
    return right(below(a, b), c), below(right(a, c), right(b, c))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def parts(a: array[k, n + p], c: array[q, n]):
    """A value is its two parts side by side."""
    return row(left(a, c), right(a, c)), a


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def parts_below(a: array[k, n + p], c: array[q, n]):
    """A value is its two parts one above the other."""
    return below(turn(left(a, c)), turn(right(a, c))), turn(a)


# ---- parts go in


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=EQUALLY_WIDE)
def first_of_sum(a: array[k, n + p], b: array[k, n + p], c: array[q, n]):
    """Columns are cut in every term."""
    return left(a + b, c), left(a, c) + left(b, c)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=EQUALLY_WIDE)
def last_of_sum(a: array[k, n + p], b: array[k, n + p], c: array[q, n]):
    """Columns are cut in every term."""
    return right(a + b, c), right(a, c) + right(b, c)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=EQUALLY_WIDE)
def first_of_entries(a: array[k, n + p], b: array[k, n + p], c: array[q, n]):
    """Columns are cut in every factor."""
    return left(a * b, c), left(a, c) * left(b, c)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA, when=EQUALLY_WIDE)
def last_of_entries(a: array[k, n + p], b: array[k, n + p], c: array[q, n]):
    """Columns are cut in every factor."""
    return right(a * b, c), right(a, c) * right(b, c)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def first_of_entrywise(a: array[k, n + p], c: array[q, n], f: entrywise):
    """A function of single entries does not see what is cut off. Hardly another fits both sides."""
    return left(compose(a, f), c), compose(left(a, c), f)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def last_of_entrywise(a: array[k, n + p], c: array[q, n], f: entrywise):
    """A function of single entries does not see what is cut off. Hardly another fits both sides."""
    return right(compose(a, f), c), compose(right(a, c), f)


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def first_of_product(a: array[k, n], b: array[n, n + p], c: array[q, n]):
    """Columns of a product are cut in its right factor."""
    return left(product(a, b), c), product(a, left(b, c))


@law(phase=SIMPLIFY, source=BLOCK_ALGEBRA)
def last_of_product(a: array[k, n], b: array[n, n + p], c: array[q, n]):
    """Columns of a product are cut in its right factor."""
    return right(product(a, b), c), product(a, right(b, c))


BLOCK_LAWS = collect(globals())
