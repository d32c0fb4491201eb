"""Low rank in bytes: two thin factors, each in bytes, and the product with the first in bytes too."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from formats.core.arrays import FormatError, as_matrix
from formats.core.layout import PANEL, TILE, unpanelled
from formats.core.sizes import T, ceiling, f4, n, p, r, u1
from formats.storage.format import Format
from formats.storage.int8 import STEP_INPUTS, Int8, bound_error, by_row, row_bytes
from formats.storage.lowrank import LowRank, multiply_factors
from formats.storage.pairs.in_bytes import COLUMN, INT8_ERROR, too_deep, unsound

ONE_SCALE = {"group": COLUMN}  # a factor has a scale for each of its outputs


class LowRankInt8(Format):
    """Two factors in bytes, u (n, r) and v (r, p): x @ W is (x @ u) @ v.

    Each is stored as in int8, with a scale for each of its outputs; x and x @ u are rounded row by row as for int8.
    The factors are scaled so that a column of u and its row of v have one norm, as rounding then loses least."""

    left: f4[r]
    u: u1[64 * ceiling(n / 64) * 16 * ceiling(r / 16)]
    v: u1[64 * ceiling(r / 64) * 16 * ceiling(p / 16)]
    right: f4[p]
    unit, projected, projects = "int8", True, False
    portion = PANEL
    flops = 2 * T * r * (n + p)
    work = T * r * (n + p), r * (n + p) * ceiling(T / 256), T * (n + p + r), T * (n + r), T * (r + p)

    def fit(W, *, rank=None, weight=None):
        """Return the product of the factors of low rank, each rounded."""
        return LowRankInt8.approximate(W, rank=rank, weight=weight).unpack()

    def pack(W, *, rank=None):
        """Decompose W into two factors as `lowrank` does, and store each in bytes."""
        return halves(*map(np.float32, LowRank.declared.pack(W, rank=rank)))

    def unpack(shape, left, u, v, right):
        """Multiply the two stored factors, in float64."""
        return multiply_factors(*unpack_factors(shape, left, u, v, right))

    def kernel(x, left, u, v, right, out, epilogue):
        """Write (x @ u) @ v to `out`, x and x @ u rounded to bytes row by row, then the epilogue."""
        from formats.kernels import product_lowrank_bytes

        product_lowrank_bytes(x, u, left, v, right, out, epilogue)

    def factored(self):
        """Return the stored factors, in float32."""
        return unpack_factors(self.shape, *self._stored)

    def integers(self):
        """Return both factors as whole numbers."""
        (n, p), r = self.shape, len(self.left)
        sides = ((n, r), self.u, self.left), ((r, p), self.v, self.right)
        return tuple(Int8(shape, (w, scale[None]), **ONE_SCALE).integers()[0] for shape, w, scale in sides)

    @classmethod
    def pack_factors(cls, u: ArrayLike, v: ArrayLike) -> Self:
        """Store the product of u (n, r) and v (r, p)."""
        u, v = as_matrix(u, "lowrankint8.pack_factors, u"), as_matrix(v, "lowrankint8.pack_factors, v")
        if u.shape[1] != len(v):
            raise FormatError(f"lowrankint8.pack_factors: u is {u.shape}, v is {v.shape}: their ranks differ")
        return cls((len(u), v.shape[1]), halves(u, v))

    @classmethod
    def approximate(cls, W, **given):
        """Return `pack_factors` of the factors of low rank: one decomposition."""
        return cls.pack_factors(*LowRank.factors(W, **given))

    @classmethod
    def projection(cls, W, directions, *, rank):
        """Project W (n, p) on the first of these directions, orthonormal rows, the weightiest first."""
        return cls.pack_factors(W @ directions[:rank].T, directions[:rank])

    def factors(self):
        """Return u (n, r) and v (r, p) as they are stored, in float32."""
        return unpack_factors(self.shape, *self.arrays().values())

    def transpose(self):
        """Store W.T by its factors in float32, exchanged and each turned."""
        return LowRank.pack_factors(*(factor.T for factor in reversed(self.factors())))

    def unsound(self):
        """Describe the fault of numbers beyond the rank, of either side's inputs or scales; empty if there is none."""
        r, p = len(self.left), self.shape[1]
        if unpanelled(self.v, (-(-r // STEP_INPUTS) * STEP_INPUTS, p), 4, TILE)[r:].any():
            return f"v has numbers beyond its rank, {r}"
        return unsound(self.shape[0], self.left) or unsound(r, self.right)

    def scratch(self):
        """Return the rank: one row of x @ u is stored between the factors."""
        return len(self.left)

    def tolerance(self, W):
        """Return three times the norm that roundings of the factors add up to, if they are independent and uniform
        within half a step."""
        u, v = self.factors()
        lost = len(u) * np.square(self.left[:, None] * v).sum() + np.square(u).sum() * np.square(self.right).sum()
        return float(3 * np.sqrt(lost / 12))

    @staticmethod
    def reads(x):
        """Return x as the first product reads it: integers up to 127 times the scale of their row, in float64."""
        return by_row(x)

    def operands(self, x):
        """Return the product with the first factor, as it is rounded, and v: the sums of bytes are exact, their float32
        is made by the kernel's steps."""
        u, v = self.factors()
        whole, scale, lift = row_bytes(x)
        sums = (
            whole.astype(np.float64) @ np.rint(u.astype(np.float64) / np.where(self.left > 0, self.left, 1))
        ).astype(np.float32)
        return by_row(sums * (self.left * scale) / lift), v.astype(np.float64)

    def bound(self, x, operands=None):
        """Bound the roundings of the second product alone, as `operands` begins with the result of the first."""
        middle, v = operands or self.operands(x)
        return bound_error(middle, middle, v, 1)

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose the ranks of `lowrank`."""
        return LowRank.choices(inputs, outputs)

    @classmethod
    def proposed_by(cls, spectrum):
        """Propose the ranks of `lowrank` for this spectrum."""
        return LowRank.proposed_by(spectrum)

    @classmethod
    def predicted(cls, spectrum, *, rank):
        """Combine the spectrum's error at this rank with that of two roundings to bytes, as independent ones."""
        return float(np.hypot(spectrum.errors[rank], 2**0.5 * INT8_ERROR))

    @classmethod
    def counts(cls, inputs, outputs, *, rank=None, weight=None):
        """Return the rank, as for `lowrank`."""
        return LowRank.counts(inputs, outputs, rank=rank)


def halves(u, v):
    """Return the arrays of two factors; a column of u and the row of v are scaled to equal norms."""
    if wrong := too_deep(len(u)):
        raise FormatError(f"lowrankint8: {wrong}")
    norms = [np.linalg.norm(factor.astype(np.float64), axis=axis) for factor, axis in ((u, 0), (v, 1))]
    share = np.sqrt(np.divide(norms[1], norms[0], out=np.ones_like(norms[0]), where=np.minimum(*norms) > 0))
    (first, left), (second, right) = (
        Int8.declared.pack(factor.astype(np.float32), **ONE_SCALE) for factor in (u * share, v / share[:, None])
    )
    return left[0], first, second, right[0]


def unpack_factors(shape, left, u, v, right):
    """Return the factors that `halves` stored, in float32."""
    (n, p), r = shape, len(left)
    return (
        Int8.declared.unpack((n, r), u, left[None], **ONE_SCALE),
        Int8.declared.unpack((r, p), v, right[None], **ONE_SCALE),
    )
