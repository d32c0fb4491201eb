"""Products that share their input are one, with the weights side by side. Directed by who reads them together."""
from opmatrix.operators import row
from rewrites.kinds import blank, left, right
from rewrites.law import JOIN, collect, constant, h, law, matrix, n, p, q, value


@law(phase=JOIN, when=("(joinable A B)",), source="block matrices")
def join(x: value[n], A: matrix[h, n, p], B: matrix[h, n, q]):
    """Queries, keys and values are one product. True of any operators; matrices can be stored side by side."""
    y = x @ row(A, B)
    return (x @ A, x @ B), (left(y, A), right(y, A))


@law(phase=JOIN, when=("(joinable A B)",), source="block matrices")
def join_bias(x: value[n], A: matrix[h, n, p], a: constant[h, p], B: matrix[h, n, q]):
    """Where only the first has a bias, the second is given zeros, so that one kernel adds it. True of any a."""
    y = x @ row(A, B) + row(a, blank(B))
    return (x @ A + a, x @ B), (left(y, A), right(y, A))


LAWS = collect(globals())
