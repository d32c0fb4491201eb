"""Half: a number type as a format."""

import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, f2, n, p
from formats.storage.format import Format

FLOAT16_MAX = float(np.finfo(np.float16).max)


class Half(Format):
    """Every number rounded to float16 (IEEE 754 binary16), row by row; arithmetic stays in float32.

    A kernel widens a tile at a time, so the numbers cross the memory bus at half the width."""

    w: f2[n, p]
    rowwise = True
    unit = "float16"
    work = T * n * p, n * p, T * (n + p)

    def fit(W):
        """Round to the nearest float16 numbers. FormatError beyond 65504, where there are none."""
        if abs(W).max() > FLOAT16_MAX:
            i, j = np.unravel_index(abs(W).argmax(), W.shape)
            raise FormatError(f"half.fit: W[{i}, {j}] = {W[i, j]} is beyond {FLOAT16_MAX:.0f}, the largest float16")
        return W.astype(np.float16)

    def pack(W):
        """Return W, whose numbers float16 must hold."""
        return W

    def unpack(shape, w):
        """Return the stored float16 numbers."""
        return w

    def kernel(x, w, out, epilogue):
        """Write x @ W to `out`, W widened to float32 on the way, then the epilogue."""
        from formats.kernels import product_half

        product_half(x, w, out, epilogue)
