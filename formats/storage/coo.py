"""Coordinates: the place of every number, for matrices with fewer numbers than columns."""
import numpy as np

from formats.core.pruning import count_kept, highest, importance
from formats.core.sizes import T, ceiling, f4, n, nnz, p, unsigned
from formats.format import Format


class COO(Format):
    """Every nonzero number with its input and its output, by ascending outputs, then inputs.

    No pointers: nothing is stored for an output that nothing adds to, so it is the smallest where most outputs are
    empty (coordinates: Saad 2003, section 3.4)."""
    inputs: unsigned(n)[nnz]
    outputs: unsigned(p)[nnz]
    val: f4[nnz]
    work = nnz * ceiling(T / 16), nnz, T * (n + p)
    proposed = False

    def fit(W, *, density=0.1, scale=None):
        """Keep the highest |W| (times scale: see `importance`), a share `density` of the whole matrix."""
        return W * highest(importance(W, scale, "coo.fit"), count_kept(density, W.size, "coo"))

    def pack(W):
        outputs, inputs = W.T.nonzero()
        return inputs, outputs, W[inputs, outputs]

    def unpack(shape, inputs, outputs, val):
        W = np.zeros(shape, np.float32)
        W[inputs, outputs] = val
        return W

    def kernel(x, inputs, outputs, val, out, epilogue):
        from formats.kernels import product_coo
        product_coo(x, inputs, outputs, val, out, epilogue)

    def unsound(self):
        for name, limit in zip(("inputs", "outputs"), self.shape, strict=True):
            if (at := getattr(self, name)).size and at.max() >= limit:
                return f"{name}[{at.argmax()}] = {at.max()} is not below {limit}"
        down, across = (np.diff(at.astype(np.int64)) for at in (self.inputs, self.outputs))
        falls = (across < 0) | (across == 0) & (down <= 0)
        return f"the places do not ascend at {falls.argmax()}" if falls.any() else ""

    @classmethod
    def choices(cls, inputs, outputs): return [{"density": density} for density in (0.1, 0.01)]

    @classmethod
    def counts(cls, inputs, outputs, *, density=0.1, scale=None):
        return {nnz: count_kept(density, inputs * outputs, "coo")}
