"""Dense: the format that every other one is measured against."""
from .format import Format
from .sizes import f4, n, p


class Dense(Format):
    """Every number in float32, row by row.

    One row of storage for each input; BLAS reads it as it lies."""
    w: f4[n, p]

    def fit(W): return W
    def pack(W): return W
    def unpack(shape, w): return w

    def kernel(x, w, out, epilogue):
        from .kernels import product_dense
        product_dense(x, w, out, epilogue)
