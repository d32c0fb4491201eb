"""Compressed sparse rows of Wᵀ: unstructured sparsity."""

import numpy as np

from formats.core.sizes import T, ceiling, f4, n, nnz, p, u4, unsigned
from formats.storage.format import Format
from formats.storage.pruning import count_kept, highest, importance


class CSR(Format):
    """The nonzero numbers of each output, with the inputs that they multiply in ascending order.

    Output j owns the range ptr[j] to ptr[j + 1] of idx and val, because a kernel sums for one output at a time: these
    are compressed rows of Wᵀ (Saad 2003, section 3.4)."""

    ptr: u4[p + 1]
    idx: unsigned(n)[nnz]
    val: f4[nnz]
    prunes = True
    work = nnz * ceiling(T / 16), nnz, T * (n + p), p

    def fit(W, *, density=0.1, scale=None):
        """Keep the highest |W| (times scale: see `importance`), a share `density` of the whole matrix."""
        return W * highest(importance(W, scale, "csr.fit"), CSR.counts(*W.shape, density=density)[nnz])

    def pack(W):
        """Return (ptr, idx, val): the nonzero numbers, one output after the other."""
        present = W.T != 0
        return np.append(0, present.sum(1).cumsum()), present.nonzero()[1], W.T[present]

    def unpack(shape, ptr, idx, val):
        """Put the stored numbers at their places in a matrix of zeros."""
        W = np.zeros(shape, np.float32)
        W[idx, np.repeat(np.arange(shape[1]), np.diff(ptr))] = val
        return W

    def kernel(x, ptr, idx, val, out, epilogue):
        """Sum each output from its stored numbers into `out`, then apply the epilogue."""
        from formats.kernels import product_csr

        product_csr(x, ptr, idx, val, out, epilogue)

    def unsound(self):
        """Describe the fault of the compressed outputs, whose indices are inputs; empty if there is none."""
        return compression(self.ptr, self.idx, self.shape[0])

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose half, a quarter, a tenth and a twentieth of the numbers."""
        return [{"density": density} for density in (0.5, 0.25, 0.1, 0.05)]

    @classmethod
    def proposed_by(cls, spectrum):
        """Propose the densities at which the numbers left out cross a level of error."""
        return [{"density": density} for density in spectrum.densities()]

    @classmethod
    def counts(cls, inputs, outputs, *, density=0.1, scale=None):
        """Count the numbers that a density keeps."""
        return {nnz: count_kept(density, inputs * outputs, "csr")}


def compression(ptr, idx, limit):
    """Describe the fault of compressed indices below `limit`, ascending within each range of ptr; empty if there is
    none."""
    ptr, idx = ptr.astype(np.int64), idx.astype(np.int64)
    if ptr[0] != 0 or ptr[-1] != len(idx):
        return f"ptr goes from {ptr[0]} to {ptr[-1]}, there are {len(idx)} indices"
    if (np.diff(ptr) < 0).any():
        return f"ptr falls at {np.diff(ptr).argmin()}"
    if len(idx) and idx.max() >= limit:
        return f"idx[{idx.argmax()}] = {idx.max()} is not below {limit}"
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    same = (np.diff(idx) <= 0) & (np.diff(owner) == 0)
    return f"idx does not ascend at {same.argmax()}" if same.any() else ""
