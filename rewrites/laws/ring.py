"""The near-ring: composition distributes over sums from the left always, from the right where the factor is linear."""

from opmatrix.algebra.operators import I, row
from rewrites.laws.kinds import first_rows, last_rows
from rewrites.laws.law import (
    NORMALISE,
    SIMPLIFY,
    collect,
    column,
    constant,
    k,
    law,
    matrix,
    n,
    operator,
    p,
    value,
    varying,
)


@law(both=True, source="composition of maps")
def associate(x: value[n], A: matrix[n, k], B: matrix[k, p]):
    """Order is a choice, not a meaning: a chain of matrices is folded, or kept apart where it is thin. True of any
    operators; of matrices alone it comes to an end."""
    return (x @ A) @ B, x @ (A @ B)


@law(
    phase=NORMALISE, canonical=True, source="near-ring: x @ (A * B) = (x @ A) * (x @ B)", without=(dict(c=varying[n]),)
)
def gain(x: value[n], c: constant[n]):
    """Multiplying columns by constants is a diagonal matrix, so it folds like one. True of rows by position, too, which
    are no stored matrix."""
    return x * c, x @ (I * c)


@law(phase=SIMPLIFY, source="linearity", without=(dict(A=operator[n, p]),))
def spread(x: value[n], c: constant[n], A: matrix[n, p]):
    """A shift goes through a matrix and becomes a bias: norms lose their shift to the next product. True of any c, but
    spreading residual streams too would only multiply products."""
    return (x + c) @ A, x @ A + c @ A


@law(source="linearity", without=(dict(A=operator[n, p]), dict(r=value[n], A=matrix[n, n])))
def late_scale(x: value[n], r: column, A: matrix[n, p]):
    """Scaling a row commutes with linear maps: a norm may divide after the product."""
    return (x * r) @ A, (x @ A) * r


@law(source="near-ring: x @ (A + B) = x @ A + x @ B")
def factor(x: value[n], A: matrix[n, p], B: matrix[n, p]):
    """Two products of one value are one, with the sum of the weights. True of any operators; matrices can be stored."""
    return x @ A + x @ B, x @ (A + B)


@law(source="near-ring; Hu et al. 2022, LoRA, eq. 3")
def beside(x: value[n], A: matrix[n, p], B: matrix[n, k], C: matrix[k, p]):
    """A thin product that is added to a weight is kept beside it, where the weight is stored in fewer bytes than the
    sum would be. True of any operators; matrices can be stored."""
    return x @ (A + B @ C), x @ A + (x @ B) @ C


@law(
    when=("(single A)",),
    source="block matrices: [x y] @ [[V] [W]] = x @ V + y @ W",
    without=(dict(A=operator[n + k, p]),),
)
def row_apart(x: value[n], y: value[k], A: matrix[n + k, p]):
    """Values side by side need not be put so before a product: each goes through its own rows of the matrix."""
    return row(x, y) @ A, x @ first_rows(A, x, y) + y @ last_rows(A, x, y)


@law(phase=SIMPLIFY, canonical=True, source="associativity of +")
def outward(x: value[n], c: constant[n], y: value[n]):
    """Constants of a sum stand last, where a kernel adds them. True of any c; constant, it is canonical."""
    return (x + c) + y, (x + y) + c


@law(phase=SIMPLIFY, canonical=True, source="associativity of +")
def outward_right(x: value[n], c: constant[n], y: value[n]):
    """Constants of a second summand stand last, too. True of any c."""
    return y + (x + c), (y + x) + c


@law(phase=SIMPLIFY, canonical=True, source="associativity of +")
def merge_shifts(x: value[n], c: constant[n], d: constant[n]):
    """Two biases are one. True of any c and d; constant, their sum is stored."""
    return (x + c) + d, x + (c + d)


RING_LAWS = collect(globals())
