"""Bitmap: a bit says whether a number is there."""
import numpy as np

from formats.core.pruning import count_kept, highest, importance
from formats.core.sizes import T, ceiling, f4, n, nnz, p, u2, u4
from formats.format import Format


class Bitmap(Format):
    """One bit an entry, and the nonzero numbers of each output: indices of two bytes cost more above density 1/16.

    Bit i % 16 of bits[j, i // 16] says whether input i is there; output j owns the range ptr[j] to ptr[j + 1] of val.
    One row of x is multiplied 16 inputs at a time, which spreads as many numbers as there are bits over their
    places."""
    ptr: u4[p + 1]
    bits: u2[p, ceiling(n / 16)]
    val: f4[nnz]
    work = nnz * ceiling(T / 16), nnz, n * p, T * (n + p)
    proposed = False

    def fit(W, *, density=0.5, scale=None):
        """Keep the highest |W| (times scale: see `importance`), a share `density` of the whole matrix."""
        return W * highest(importance(W, scale, "bitmap.fit"), count_kept(density, W.size, "bitmap"))

    def pack(W):
        present = W.T != 0
        bits = np.pad(present, ((0, 0), (0, -len(W) % 16))).reshape(len(present), -1, 16) @ (1 << np.arange(16))
        return np.append(0, present.sum(1).cumsum()), bits, W.T[present]

    def unpack(shape, ptr, bits, val):
        W = np.zeros(shape[::-1], np.float32)
        W[unpack_bits(bits)[:, :shape[0]]] = val
        return W.T

    def kernel(x, ptr, bits, val, out, epilogue):
        from formats.kernels import product_bitmap
        product_bitmap(x, ptr, bits, val, out, epilogue)

    def unsound(self):
        present = unpack_bits(self.bits)
        if present[:, self.shape[0]:].any(): return f"a bit is set beyond input {self.shape[0] - 1}"
        if not np.array_equal(self.ptr, ends := np.append(0, present.sum(1).cumsum())):
            return f"the bits of the outputs end at {ends}, ptr says {self.ptr}"
        return "" if len(self.val) == ends[-1] else f"{ends[-1]} bits are set, there are {len(self.val)} numbers"

    @classmethod
    def choices(cls, inputs, outputs): return [{"density": density} for density in (0.5, 0.25)]

    @classmethod
    def counts(cls, inputs, outputs, *, density=0.5, scale=None):
        return {nnz: count_kept(density, inputs * outputs, "bitmap")}


def unpack_bits(bits):
    """Words of 16 bits as booleans, the lowest bit first."""
    return (bits[..., None] >> np.arange(16, dtype=np.uint16) & 1).astype(bool).reshape(len(bits), -1)
