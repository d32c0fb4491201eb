"""Products that share their input are one, with the weights side by side. Markers of their common readers direct these
laws."""

from rewrites.laws.kinds import behind, blank, joined, left
from rewrites.laws.law import JOIN, collect, constant, h, k, law, matrix, n, p, q, value

BLOCK_MATRICES = "block matrices"


@law(phase=JOIN, when=("(joinable A B)",), source=BLOCK_MATRICES)
def join(x: value[n], A: matrix[h, n, p], B: matrix[k, n, q]):
    """Queries, keys and values are one product, and so are a gate and what it multiplies, each in as many heads as it
    has. True of any operators; matrices can be stored side by side."""
    y = x @ joined(A, B)
    return (x @ A, x @ B), (left(y, A), behind(y, A, B))


@law(phase=JOIN, when=("(joinable_bias A B)",), source=BLOCK_MATRICES)
def join_bias(x: value[n], A: matrix[h, n, p], a: constant[h, p], B: matrix[k, n, q]):
    """If only the first has a bias, the second is given zeros, so that one kernel adds it. True of any a."""
    y = x @ joined(A, B) + joined(a, blank(B))
    return (x @ A + a, x @ B), (left(y, A), behind(y, A, B))


@law(phase=JOIN, when=("(joinable_biases A B)",), source=BLOCK_MATRICES)
def join_biases(x: value[n], A: matrix[h, n, p], a: constant[h, p], B: matrix[k, n, q], b: constant[k, q]):
    """Two biases are one row, as of keys that are rotated, or of a gate and what it multiplies. True of any a and b."""
    y = x @ joined(A, B) + joined(a, b)
    return (x @ A + a, x @ B + b), (left(y, A), behind(y, A, B))


JOINING_LAWS = collect(globals())
