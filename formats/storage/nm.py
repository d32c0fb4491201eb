"""N of every M: sparsity with a fixed number of entries in every group of inputs."""

from types import MappingProxyType

import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, ceiling, f4, group, kept, n, p, u1
from formats.storage.csr import CSR
from formats.storage.format import Format
from formats.storage.pruning import importance

GROUPS = 4, 8, 16  # group sizes that are tried for a matrix


class NM(Format):
    """N numbers of every M consecutive inputs of each output, with their places in the group: no pointers.

    Row j of idx and val holds output j, group after group, N places each, ascending; a group with fewer nonzero
    numbers is filled up with zeros (Mishra et al. 2021, arXiv:2104.08378, there along the contracted axis too). n must
    be a multiple of M, and M at most 256."""

    idx: u1[p, n / group * kept]
    val: f4[p, n / group * kept]
    prunes = True
    work = n * p * kept / group * ceiling(T / 16), n * p * kept / group, T * (n + p)
    named = MappingProxyType({"n": kept, "m": group})

    def fit(W, *, n=2, m=4, scale=None):
        """Keep the n highest |W| (times scale: see `importance`) of every m."""
        score = split_groups(importance(W, scale, "nm.fit"), n, m)
        best = np.argsort(-score, axis=2, kind="stable")[..., :n]
        mask = np.zeros(score.shape, bool)
        np.put_along_axis(mask, best, True, 2)
        return W * mask.reshape(W.shape[::-1]).T

    def pack(W, *, n=2, m=4):
        """Return the places of each group's nonzero numbers, ascending, and the numbers (p, n / group * kept)."""
        numbers = split_groups(W, n, m)
        places = np.sort(np.argsort(numbers == 0, axis=2, kind="stable")[..., :n], axis=2)
        return places.reshape(W.shape[1], -1), np.take_along_axis(numbers, places, 2).reshape(W.shape[1], -1)

    def unpack(shape, idx, val, *, n, m):
        """Put the stored numbers at their places in groups of zeros."""
        numbers = np.zeros((shape[1], shape[0] // m, m), np.float32)
        np.put_along_axis(numbers, idx.reshape(shape[1], -1, n).astype(np.intp), val.reshape(shape[1], -1, n), 2)
        return numbers.reshape(shape[::-1]).T

    def kernel(x, idx, val, out, epilogue, *, n, m):
        """Write x @ W to `out` from the stored numbers and their places, then the epilogue."""
        from formats.kernels import product_nm

        product_nm(x, idx, val, out, group=m, epilogue=epilogue)

    def transpose(self):
        """Store W.T as CSR: a matrix with n of every m inputs need not have n of every m outputs."""
        return CSR.pack(self.unpack().T)

    def unsound(self):
        """Describe the fault of n and m, or of places that leave their group or do not ascend; empty if there is
        none."""
        try:
            sound(self.shape[0], **self.remembered)
        except FormatError as error:
            return str(error)
        places = self.idx.reshape(len(self.idx), -1, self.remembered["n"]).astype(int)
        if places.max() >= self.remembered["m"]:
            return f"idx holds {places.max()} in groups of {self.remembered['m']}"
        return "" if (np.diff(places, axis=2) > 0).all() else "the places in a group do not ascend"

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose 2 of 4, 4 of 8 and 1 of 4, where m divides the inputs."""
        return [{"n": n, "m": m} for n, m in ((2, 4), (4, 8), (1, 4)) if inputs % m == 0]

    @classmethod
    def layouts_of(cls, W):
        """Return the options of its shape, and for each group size the least N that holds the matrix."""
        layouts = cls.layouts(*W.shape)
        for m in (m for m in GROUPS if len(W) % m == 0):
            n = max(1, int((W != 0).reshape(-1, m, W.shape[1]).sum(1).max()))
            if {"n": n, "m": m} not in layouts:
                layouts.append({"n": n, "m": m})
        return layouts

    @classmethod
    def counts(cls, inputs, outputs, *, n=2, m=4, scale=None):
        """Return n and m; FormatError if n of every m inputs cannot be kept."""
        sound(inputs, n, m)
        return {kept: n, group: m}


def sound(inputs, n, m):
    """Raise FormatError unless n of every m of this many inputs can be kept."""
    if not (isinstance(n, int) and isinstance(m, int) and 1 <= n <= m <= 256):
        raise FormatError(f"nm: n = {n!r} of every m = {m!r} is not a choice of 1 <= n <= m <= 256")
    if inputs % m:
        raise FormatError(f"nm: {inputs} inputs are not a multiple of m = {m}; choose another m")


def split_groups(W, n, m):
    """Reshape W (inputs, outputs) to (outputs, groups, m)."""
    sound(len(W), n, m)
    return W.T.reshape(W.shape[1], -1, m)
