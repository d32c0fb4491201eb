"""Compressed columns of Wᵀ: unstructured sparsity by inputs."""

import numpy as np

from formats.core.sizes import T, ceiling, f4, n, nnz, p, u4, unsigned
from formats.storage.csr import CSR, compression
from formats.storage.format import Format
from formats.storage.pruning import count_kept, highest, importance


class CSC(Format):
    """The nonzero numbers of each input, with the outputs that they are added to in ascending order.

    Input i owns the range ptr[i] to ptr[i + 1] of idx and val: compressed columns of Wᵀ (Saad 2003, section 3.4). The
    numbers of an input are added to many sums, so all are skipped where x is zero; many rows of x are read once."""

    ptr: u4[n + 1]
    idx: unsigned(p)[nnz]
    val: f4[nnz]
    prunes = True
    work = nnz * ceiling(T / 16), nnz, T * (n + p), n
    proposed = False

    def fit(W, *, density=0.1, scale=None):
        """Keep the highest |W| (times scale: see `importance`), a share `density` of the whole matrix."""
        return W * highest(importance(W, scale, "csc.fit"), count_kept(density, W.size, "csc"))

    def pack(W):
        """Return (ptr, idx, val): the nonzero numbers, one input after the other."""
        present = W != 0
        return np.append(0, present.sum(1).cumsum()), present.nonzero()[1], W[present]

    def unpack(shape, ptr, idx, val):
        """Put the stored numbers at their places in a matrix of zeros."""
        W = np.zeros(shape, np.float32)
        W[np.repeat(np.arange(shape[0]), np.diff(ptr)), idx] = val
        return W

    def kernel(x, ptr, idx, val, out, epilogue):
        """Write x @ W to `out`, one input after the other, then the epilogue."""
        from formats.kernels import product_csc

        product_csc(x, ptr, idx, val, out, epilogue)

    def transpose(self):
        """Store W.T as CSR: the same three arrays."""
        return CSR(self.shape[::-1], (self.ptr, self.idx, self.val))

    def unsound(self):
        """Describe the fault of the compressed inputs, whose indices are outputs; empty if there is none."""
        return compression(self.ptr, self.idx, self.shape[1])

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose a quarter and a twentieth of the numbers."""
        return [{"density": density} for density in (0.25, 0.05)]

    @classmethod
    def counts(cls, inputs, outputs, *, density=0.1, scale=None):
        """Count the numbers that a density keeps."""
        return {nnz: count_kept(density, inputs * outputs, "csc")}
