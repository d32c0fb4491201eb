"""Laws of rows that are read before: a shift is the same 0/1 matrix for all columns, from the left of a value, so it
commutes with whatever acts on rows from the right."""

from opmatrix.algebra.operators import shift
from rewrites.laws.law import Sort, collect, constant, lag, law, mixing, n, p, rotation, value

other = Sort("value")  # a value or a constant
by_each_row = Sort("operator", ("row_wise", "uniform", "maps_zero_to_zero"))


@law(source="composition of maps")
def shift_twice(x: other[n], i: lag, j: lag):
    """A row before a row before is one further back, as far as kernels read. True of any lags."""
    return (x @ shift(i)) @ shift(j), x @ shift(i + j)


@law(
    source="(S x) W = S (x W), S the 0/1 matrix of a shift",
    without=(dict(A=mixing[n, p]), dict(A=rotation[n, n]), dict(A=constant[p])),
)
def shift_late(x: value[n], A: by_each_row[n, p], k: lag):
    """Rows that all go through one function are shifted after it, so taps of a convolution share a product. The zeros
    before a sequence must stay zeros."""
    return (x @ shift(k)) @ A, (x @ A) @ shift(k)


SHIFT_LAWS = collect(globals())
