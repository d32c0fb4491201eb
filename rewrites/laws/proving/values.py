"""The ring of values: numbers in rows and columns, from any operator. Directed, so that equal values come to the same
form: transposes at the leaves, blocks outermost (rewrites/laws/proving/blocks.py), then sums, then numbers, then
products from the right. They serve proofs (rewrites/proofs/equations.py), not the search: no program is cheaper for
them.

A sum is taken apart only where no column is repeated (EQUALLY_WIDE). No law subsumes its left side: a node that is no
longer matched may still be needed once its class is merged with another."""

from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import I, product, relu, turn
from rewrites.laws.law import (
    JOIN,
    SIMPLIFY,
    array,
    collect,
    entrywise,
    k,
    law,
    matrix,
    n,
    operator,
    p,
    q,
    scalar,
    varying,
)
from rewrites.laws.proving import blocks
from rewrites.laws.proving.blocks import EQUALLY_WIDE
from rewrites.laws.proving.value_kinds import unit

SORTED = ("(= a (ordering-max a b))", "(!= a b)")  # a and b are in the wrong order
TRANSPOSE, RING, LINEARITY = "(a b)ᵀ = bᵀ aᵀ", "ring axioms", "linearity"


# ---- transposes go to the leaves


@law(phase=SIMPLIFY, source=TRANSPOSE)
def turn_back(a: array[k, n]):
    """Rows and columns exchanged twice are as they were."""
    return turn(turn(a)), a


@law(phase=SIMPLIFY, source=TRANSPOSE, when=EQUALLY_WIDE)
def turn_sum(a: array[k, n], b: array[k, n]):
    """A transpose moves entries and leaves their sums alone."""
    return turn(a + b), turn(a) + turn(b)


@law(phase=SIMPLIFY, source=TRANSPOSE, when=EQUALLY_WIDE)
def turn_entries(a: array[k, n], b: array[k, n]):
    """A transpose moves entries and leaves their products alone."""
    return turn(a * b), turn(a) * turn(b)


@law(phase=SIMPLIFY, source=TRANSPOSE)
def turn_product(a: array[k, n], b: array[n, p]):
    """(a b)ᵀ = bᵀ aᵀ, since multiplying numbers is commutative."""
    return turn(product(a, b)), product(turn(b), turn(a))


@law(phase=SIMPLIFY, source=TRANSPOSE, without=(dict(a=array[n, n], f=operator[n, n]),))
def turn_entrywise(a: array[k, n], f: entrywise):
    """A function of single entries does not see where they stand."""
    return turn(compose(a, f)), compose(turn(a), f)


@law(phase=SIMPLIFY, source="the identity is symmetric")
def turn_unit(a: array[k, n]):
    """The identity matrix is its own transpose."""
    return turn(unit(a)), unit(a)


# ---- sums come out of products


@law(source=RING, when=EQUALLY_WIDE)
def sum_left(a: array[k, n], b: array[k, n], c: array[n, p]):
    """A product is linear in its left factor."""
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
    """Entry by entry, multiplication from the left distributes over addition."""
    return c * (a + b), c * a + c * b


@law(source=LINEARITY, when=EQUALLY_WIDE, without=(dict(A=operator[n, p]),))
def sum_through(a: array[k, n], b: array[k, n], A: matrix[n, p]):
    """A matrix is additive."""
    return compose(a + b, A), compose(a, A) + compose(b, A)


# ---- numbers and matrices come out of products of values


@law(phase=SIMPLIFY, source=LINEARITY, without=(dict(s=varying[1]),))
def scale_left(a: array[k, n], b: array[n, p], s: scalar):
    """A number may be multiplied last."""
    return product(compose(a, I * s), b), compose(product(a, b), I * s)


@law(phase=SIMPLIFY, source="associativity", without=(dict(A=operator[p, q]),))
def late(a: array[k, n], b: array[n, p], A: matrix[p, q]):
    """A matrix on the right, or a number, may be multiplied last."""
    return product(a, compose(b, A)), compose(product(a, b), A)


@law(phase=SIMPLIFY, source=LINEARITY, without=(dict(s=varying[1]),))
def scale_entries(a: array[k, n], b: array[k, n], s: scalar):
    """A number is multiplied after the entries."""
    return compose(a, I * s) * b, compose(a * b, I * s)


@law(phase=SIMPLIFY, source=LINEARITY, without=(dict(s=varying[1]),))
def entries_scale(a: array[k, n], b: array[k, n], s: scalar):
    """A number on the second factor is multiplied after the entries."""
    return a * compose(b, I * s), compose(a * b, I * s)


@law(phase=SIMPLIFY, source="associativity", without=(dict(t=varying[1]),))
def scales(a: array[k, n], s: scalar, t: scalar):
    """Two numbers are one. True of any s."""
    return compose(compose(a, I * s), I * t), compose(a, I * (s * t))


@law(source=RING)
def scale_sum(a: array[k, n], s: scalar, t: scalar):
    """A sum of numbers is multiplied number by number. True of any s and any t."""
    return compose(a, I * (s + t)), compose(a, I * s) + compose(a, I * t)


# ---- products associate to the right; repeated operators are dropped


@law(phase=SIMPLIFY, source="associativity")
def chain(a: array[k, n], b: array[n, p], c: array[p, q]):
    """A product of three may begin at either end."""
    return product(product(a, b), c), product(a, product(b, c))


@law(phase=SIMPLIFY, source="the identity matrix")
def unit_left(a: array[k, n], b: array[n, k]):
    """The identity times a value is the value."""
    return product(unit(b), a), a


@law(phase=SIMPLIFY, source="the identity matrix")
def unit_right(a: array[k, n], b: array[k, n]):
    """A value times the identity is the value."""
    return product(a, unit(b)), a


@law(phase=SIMPLIFY, source="no entry of the identity is negative")
def unit_relu(a: array[k, n]):
    """Ones and zeros are no negative numbers."""
    return compose(unit(a), relu), unit(a)


@law(phase=SIMPLIFY, source="relu(relu(u)) = relu(u)")
def relu_once(a: array[k, n]):
    """A number that is not negative stays."""
    return compose(compose(a, relu), relu), compose(a, relu)


# ---- sums and products of entries are sorted, not saturated: of all orders only that of the class numbers is built


@law(phase=JOIN, source="associativity of +")
def sum_chain(a: array[k, n], b: array[k, n], c: array[k, n]):
    """A sum of three may begin at either end."""
    return (a + b) + c, a + (b + c)


@law(phase=JOIN, when=SORTED, source="commutativity of +")
def sum_order(a: array[k, n], b: array[k, n]):
    """Two terms of a sum in the order of their classes. True in any order."""
    return a + b, b + a


@law(phase=JOIN, when=SORTED, source="commutativity of +")
def sum_exchange(a: array[k, n], b: array[k, n], c: array[k, n]):
    """Neighbours in a sum in the order of their classes. True in any order."""
    return a + (b + c), b + (a + c)


@law(phase=JOIN, source="associativity of *")
def entries_chain(a: array[k, n], b: array[k, n], c: array[k, n]):
    """A product of three entries may begin at either end."""
    return (a * b) * c, a * (b * c)


@law(phase=JOIN, when=SORTED, source="commutativity of *")
def entries_order(a: array[k, n], b: array[k, n]):
    """Two factors of each entry in the order of their classes. True in any order."""
    return a * b, b * a


@law(phase=JOIN, when=SORTED, source="commutativity of *")
def entries_exchange(a: array[k, n], b: array[k, n], c: array[k, n]):
    """Neighbours in a product of entries in the order of their classes. True in any order."""
    return a * (b * c), b * (a * c)


VALUE_LAWS = collect(globals()) + blocks.BLOCK_LAWS
