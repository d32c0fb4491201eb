"""Dense: the format that every other one is measured against."""

from formats.core.sizes import Min, T, ceiling, f4, n, p
from formats.storage.format import Format


class Dense(Format):
    """Every number in float32, row by row.

    One row of storage for each input; BLAS reads it without conversion."""

    w: f4[n, p]
    plain = rowwise = True
    unit = "float32"
    # few rows read the weight again for every 8 of them, from a nearer cache; more copy it once, which takes 4 readings
    work = T * n * p, n * p * Min(1 + ceiling(T / 8), 4), T * (n + p)

    def fit(W):
        """Return W itself, as every matrix can be held."""
        return W

    def pack(W):
        """Return W as the one stored array."""
        return W

    def unpack(shape, w):
        """Return the stored array, which is W."""
        return w

    def kernel(x, w, out, epilogue):
        """Write x @ W to `out`, both in float32, then the epilogue."""
        from formats.kernels import product_dense

        product_dense(x, w, out, epilogue)
