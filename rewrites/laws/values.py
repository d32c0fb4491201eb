"""The ring of values: numbers in rows and columns, whatever operator gives them. Directed, so that equal values come to
the same form: transposes at the leaves, blocks outermost, then sums, then numbers, then products from the right. They
serve proofs (rewrites/equations.py), not the search: a program is none the cheaper for them.

Sums and entrywise products are sorted, not saturated: of all orders of n terms one is kept, which commutativity and
associativity allow. `ordering-max` is the order in which the engine met two classes; any total order would do."""
from opmatrix.nodes import compose
from opmatrix.operators import I, product, relu, row, turn
from rewrites.blocks import below, unit
from rewrites.kinds import left, right
from rewrites.law import (
    RESTRUCTURE,
    SIMPLIFY,
    array,
    collect,
    entrywise,
    k,
    matrix,
    n,
    operator,
    p,
    q,
    scalar,
    varying,
)
from rewrites.law import law as declare

BLOCKS, TRANSPOSE, RING, LINEAR = "block matrices", "(a b)ᵀ = bᵀ aᵀ", "ring axioms", "linearity"


def law(**declared):
    """A law of values is canonical, unless it says otherwise: its left side is never needed again."""
    return declare(**{"phase": SIMPLIFY, "canonical": False} | declared)


# ---- transposes go to the leaves

@law(source=TRANSPOSE)
def turn_back(a: array[k, n]):
    """Rows and columns exchanged twice are as they were."""
    return turn(turn(a)), a


@law(source=TRANSPOSE)
def turn_sum(a: array[k, n], b: array[k, n]):
    """A transpose moves entries and leaves their sums alone."""
    return turn(a + b), turn(a) + turn(b)


@law(source=TRANSPOSE)
def turn_entries(a: array[k, n], b: array[k, n]):
    """A transpose moves entries and leaves their products alone."""
    return turn(a * b), turn(a) * turn(b)


@law(source=TRANSPOSE)
def turn_product(a: array[k, n], b: array[n, p]):
    """(a b)ᵀ = bᵀ aᵀ, since multiplying numbers is commutative."""
    return turn(product(a, b)), product(turn(b), turn(a))


@law(source=TRANSPOSE, without=(dict(a=array[n, n], f=operator[n, n]),))
def turn_entrywise(a: array[k, n], f: entrywise):
    """A function of single entries does not see where they stand."""
    return turn(compose(a, f)), compose(turn(a), f)


@law(source=BLOCKS)
def turn_row(a: array[k, n], b: array[k, p]):
    """What stood side by side stands one above the other."""
    return turn(row(a, b)), below(turn(a), turn(b))


@law(source=BLOCKS)
def turn_below(a: array[k, n], b: array[p, n]):
    """What stood one above the other stands side by side."""
    return turn(below(a, b)), row(turn(a), turn(b))


@law(source="the identity is symmetric")
def turn_unit(a: array[k, n]):
    """The identity matrix is its own transpose."""
    return turn(unit(a)), unit(a)


# ---- blocks come out

@law(canonical=False, both=True, source=BLOCKS)
def beside(a: array[k, n], b: array[k, p], c: array[k, q]):
    """Side by side is associative: a part may be cut out anywhere."""
    return row(row(a, b), c), row(a, row(b, c))


@law(canonical=False, both=True, source=BLOCKS)
def above(a: array[k, n], b: array[p, n], c: array[q, n]):
    """One above the other is associative too."""
    return below(below(a, b), c), below(a, below(b, c))


@law(source=BLOCKS, when=("(= (tall a) (tall c))",))
def block_matrix(a: array[k, n], b: array[p, n], c: array[k, q], d: array[p, q]):
    """Two columns of blocks are two rows of blocks, where the blocks are equally tall."""
    return row(below(a, b), below(c, d)), below(row(a, c), row(b, d))


@law(source=BLOCKS, when=("(= (wide a) (wide c))",))
def row_sum(a: array[k, n], b: array[k, p], c: array[k, n], d: array[k, p]):
    """Blocks are added block by block, where they are equally wide."""
    return row(a, b) + row(c, d), row(a + c, b + d)


@law(source=BLOCKS, when=("(= (wide a) (wide c))",))
def row_entries(a: array[k, n], b: array[k, p], c: array[k, n], d: array[k, p]):
    """Blocks are multiplied entry by entry block by block, where they are equally wide."""
    return row(a, b) * row(c, d), row(a * c, b * d)


@law(source=BLOCKS, when=("(= (tall a) (tall c))",))
def below_sum(a: array[k, n], b: array[p, n], c: array[k, n], d: array[p, n]):
    """Blocks are added block by block, where they are equally tall."""
    return below(a, b) + below(c, d), below(a + c, b + d)


@law(source=BLOCKS, when=("(= (tall a) (tall c))",))
def below_entries(a: array[k, n], b: array[p, n], c: array[k, n], d: array[p, n]):
    """Blocks are multiplied entry by entry block by block, where they are equally tall."""
    return below(a, b) * below(c, d), below(a * c, b * d)


@law(source=BLOCKS, without=(dict(f=varying[1]),))
def row_entrywise(a: array[k, n], b: array[k, p], f: entrywise):
    """A function of single entries does not see what stands beside them."""
    return compose(row(a, b), f), row(compose(a, f), compose(b, f))


@law(source=BLOCKS)
def below_entrywise(a: array[k, n], b: array[p, n], f: entrywise):
    """A function of single entries does not see what stands below them. True of any f that acts on single rows."""
    return compose(below(a, b), f), below(compose(a, f), compose(b, f))


@law(source=BLOCKS)
def columns_of_product(a: array[k, n], b: array[n, p], c: array[n, q]):
    """A column of a product needs one column of the right factor."""
    return product(a, row(b, c)), row(product(a, b), product(a, c))


@law(source=BLOCKS)
def rows_of_product(a: array[k, n], b: array[p, n], c: array[n, q]):
    """A row of a product needs one row of the left factor."""
    return product(below(a, b), c), below(product(a, c), product(b, c))


@law(source=BLOCKS, when=("(= (wide a) (tall c))",))
def inner_blocks(a: array[k, n], b: array[k, p], c: array[n, q], d: array[p, q]):
    """A product is the sum of those of its blocks, where they fit."""
    return product(row(a, b), below(c, d)), product(a, c) + product(b, d)


@law(source=BLOCKS, when=("(= (wide a) (wide c))",))
def first_part(a: array[k, n], b: array[k, p], c: array[q, n]):
    """As many columns as the first part has are the first part."""
    return left(row(a, b), c), a


@law(source=BLOCKS, when=("(= (wide a) (wide c))",))
def last_part(a: array[k, n], b: array[k, p], c: array[q, n]):
    """The columns behind as many as the first part has are the last part."""
    return right(row(a, b), c), b


@law(source=BLOCKS)
def first_of_below(a: array[k, n + p], b: array[p, n + p], c: array[q, n]):
    """Columns are cut in every row."""
    return left(below(a, b), c), below(left(a, c), left(b, c))


@law(source=BLOCKS)
def last_of_below(a: array[k, n + p], b: array[p, n + p], c: array[q, n]):
    """Columns are cut in every row."""
    return right(below(a, b), c), below(right(a, c), right(b, c))


@law(source=BLOCKS)
def parts(a: array[k, n + p], c: array[q, n]):
    """A value is its two parts side by side."""
    return row(left(a, c), right(a, c)), a


# ---- sums come out of products

@law(source=RING, when=("(= (wide a) (wide b))",))
def sum_left(a: array[k, n], b: array[k, n], c: array[n, p]):
    """A product is linear in its left factor. Columns are multiplied with rows, so none may spread."""
    return product(a + b, c), product(a, c) + product(b, c)


@law(source=RING)
def sum_right(a: array[k, n], b: array[n, p], c: array[n, p]):
    """A product is linear in its right factor."""
    return product(a, b + c), product(a, b) + product(a, c)


@law(source=RING)
def sum_entries(a: array[k, n], b: array[k, n], c: array[k, n]):
    """Entry by entry, multiplication distributes over addition."""
    return (a + b) * c, a * c + b * c


@law(source=RING)
def entries_sum(a: array[k, n], b: array[k, n], c: array[k, n]):
    """The same from the other side."""
    return c * (a + b), c * a + c * b


@law(source=LINEAR, without=(dict(A=operator[n, p]),))
def sum_through(a: array[k, n], b: array[k, n], A: matrix[n, p]):
    """A matrix is additive."""
    return compose(a + b, A), compose(a, A) + compose(b, A)


# ---- numbers and matrices come out of products of values

@law(source=LINEAR)
def scale_left(a: array[k, n], b: array[n, p], s: scalar):
    """A number may be multiplied last."""
    return product(compose(a, I * s), b), compose(product(a, b), I * s)


@law(source="associativity", without=(dict(A=operator[p, q]),))
def late(a: array[k, n], b: array[n, p], A: matrix[p, q]):
    """A matrix on the right, or a number, may be multiplied last."""
    return product(a, compose(b, A)), compose(product(a, b), A)


@law(source=LINEAR)
def scale_entries(a: array[k, n], b: array[k, n], s: scalar):
    """A number is multiplied after the entries."""
    return compose(a, I * s) * b, compose(a * b, I * s)


@law(source=LINEAR)
def entries_scale(a: array[k, n], b: array[k, n], s: scalar):
    """The same from the other side."""
    return a * compose(b, I * s), compose(a * b, I * s)


@law(source="associativity")
def scales(a: array[k, n], s: scalar, t: scalar):
    """Two numbers are one."""
    return compose(compose(a, I * s), I * t), compose(a, I * (s * t))


# ---- products stand from the right; what is there twice goes

@law(source="associativity")
def chain(a: array[k, n], b: array[n, p], c: array[p, q]):
    """A product of three may begin at either end."""
    return product(product(a, b), c), product(a, product(b, c))


@law(source="the identity matrix")
def unit_left(a: array[k, n], b: array[n, k]):
    """The identity times a value is the value."""
    return product(unit(b), a), a


@law(source="the identity matrix")
def unit_right(a: array[k, n], b: array[k, n]):
    """A value times the identity is the value."""
    return product(a, unit(b)), a


@law(source="relu(relu(u)) = relu(u)")
def relu_once(a: array[k, n]):
    """What is not negative stays."""
    return compose(compose(a, relu), relu), compose(a, relu)


# ---- sums and products of entries are bags: what commutes and associates needs no order (rewrites/equations.py)

@law(phase=RESTRUCTURE, source="commutativity of +")
def sum_order(a: array[k, n], b: array[k, n]):
    """A sum has no order."""
    return a + b, b + a


@law(phase=RESTRUCTURE, source="associativity of +")
def sum_chain(a: array[k, n], b: array[k, n], c: array[k, n]):
    """A sum of three may begin at either end."""
    return (a + b) + c, a + (b + c)


@law(phase=RESTRUCTURE, source="commutativity of *")
def entries_order(a: array[k, n], b: array[k, n]):
    """A product of entries has no order."""
    return a * b, b * a


@law(phase=RESTRUCTURE, source="associativity of *")
def entries_chain(a: array[k, n], b: array[k, n], c: array[k, n]):
    """A product of three entries may begin at either end."""
    return (a * b) * c, a * (b * c)


LAWS = collect(globals())
