"""N of every M for whole rows of a tile: sparsity that a vector can follow."""

from types import MappingProxyType

import numpy as np

from formats.core.arrays import FormatError
from formats.core.sizes import T, c, ceiling, f4, group, kept, n, p, u4
from formats.storage.csr import CSR
from formats.storage.format import Format
from formats.storage.nm import sound
from formats.storage.pruning import importance

WIDTH = 32


class VectorWise(Format):
    """N of every M consecutive inputs, the same for a tile of `width` outputs, a multiple of 16 (as in V:N:M: Castro et
    al. 2023, arXiv:2310.02065).

    Tile i has the inputs idx[i], ascending, and their numbers for its outputs; a group with fewer is filled up with
    zeros."""

    idx: u4[ceiling(p / c), n / group * kept]
    val: f4[ceiling(p / c), n / group * kept, c]
    named = MappingProxyType({"n": kept, "m": group, "width": c})
    prunes = True
    work = T * n / group * kept * p, n / group * kept * p, T * (n + p)

    def fit(W, *, n=2, m=4, width=WIDTH, scale=None):
        """Keep the n inputs of every m whose numbers in a tile have the largest norms (of W times scale: see
        `importance`)."""
        score = np.square(split_tiles(importance(W, scale, "vectorwise.fit"), m, n, width)).sum(3)
        best = np.argsort(-score, axis=2, kind="stable")[..., :n]
        mask = np.zeros(score.shape, bool)
        np.put_along_axis(mask, best, True, 2)
        return W * np.repeat(mask.reshape(len(mask), -1).T, width, 1)[:, : W.shape[1]]

    def pack(W, *, n=2, m=4, width=WIDTH):
        """Return the inputs that each tile keeps (tiles, n / group * kept), and their numbers for all outputs of the
        tile."""
        numbers = split_tiles(W, m, n, width)
        places = np.sort(np.argsort(~numbers.any(3), axis=2, kind="stable")[..., :n], axis=2)
        chosen = np.take_along_axis(numbers, places[..., None], 2)
        idx = places + np.arange(0, len(W), m)[:, None]
        return idx.reshape(len(idx), -1), chosen.reshape(len(idx), -1, width)

    def unpack(shape, idx, val, *, n, m, width):
        """Put the stored rows of tiles at their inputs, and drop the padding of the last tile."""
        numbers = np.zeros((len(idx), shape[0], width), np.float32)
        np.put_along_axis(numbers, idx[..., None].astype(np.intp), val, 1)
        return numbers.transpose(1, 0, 2).reshape(shape[0], -1)[:, : shape[1]]

    def kernel(x, idx, val, out, epilogue, *, n, m, width):
        """Write x @ W to `out`, one tile of outputs at a time, then the epilogue."""
        from formats.kernels import product_vectorwise

        product_vectorwise(x, idx, val, out, epilogue)

    def transpose(self):
        """Store W.T as CSR: a pattern shared by the outputs of a tile need not be shared by inputs."""
        return CSR.pack(self.unpack().T)

    def unsound(self):
        """Describe the fault of n, m and width, or of inputs that leave their group or do not ascend; empty if there is
        none."""
        try:
            sound(self.shape[0], self.remembered["n"], self.remembered["m"])
        except FormatError as error:
            return str(error)
        if self.remembered["width"] % 16:
            return f"a tile is {self.remembered['width']} wide, which is no multiple of 16"
        groups = self.idx.reshape(len(self.idx), -1, self.remembered["n"]) // self.remembered["m"]
        if (groups != np.arange(groups.shape[1])[:, None]).any():
            return "idx leaves its group"
        return "" if (np.diff(self.idx.astype(np.int64), axis=1) > 0).all() else "idx does not ascend"

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose 2 of 4, 1 of 4 and 1 of 8, where m divides the inputs."""
        return [{"n": n, "m": m, "width": WIDTH} for n, m in ((2, 4), (1, 4), (1, 8)) if inputs % m == 0]

    @classmethod
    def counts(cls, inputs, outputs, *, n=2, m=4, width=WIDTH, scale=None):
        """Return n, m and the width of tiles; FormatError if n of every m inputs cannot be kept."""
        sound(inputs, n, m)
        return {kept: n, group: m, c: width}


def split_tiles(W, m, n, width):
    """Reshape W (inputs, outputs) to (tiles, groups, m, width), with zeros beyond the edge."""
    sound(len(W), n, m)
    if not isinstance(width, int) or width < 1 or width % 16:
        raise FormatError(f"vectorwise: width = {width!r} is not a positive multiple of 16")
    padded = np.pad(W, ((0, 0), (0, -W.shape[1] % width)))
    return padded.reshape(len(W) // m, m, -1, width).transpose(2, 0, 1, 3)
