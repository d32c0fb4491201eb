"""Low rank: two thin factors instead of a matrix."""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from formats.core.arrays import Floats, FormatError, as_matrix
from formats.core.epilogue import UNIT, gamma
from formats.core.sizes import Min, T, ceiling, f4, n, p, r
from formats.core.stage import SMALLEST
from formats.storage.format import Format


class LowRank(Format):
    """Two factors, u (n, r) and v (r, p): x @ W is (x @ u) @ v.

    The best factors of a given rank are those of the truncated singular value decomposition (Eckart and Young 1936)."""

    u: f4[n, r]
    v: f4[r, p]
    projected = True
    work = T * r * (n + p), r * (n + p) * Min(1 + ceiling(T / 8), 4), T * (n + p + r)

    def fit(W, *, rank=None, weight=None):
        """Return the product of `factors(W, rank, weight)`, rounded once."""
        return multiply_factors(*LowRank.factors(W, rank=rank, weight=weight))

    def pack(W, *, rank=None):
        """Return the factors of a matrix of this rank, up to the rounding of W, u and v; without `rank`, of the least
        rank that achieves this. For factors that are known, `pack_factors` needs no decomposition."""
        U, s, V = np.linalg.svd(W.astype(np.float64), full_matrices=False)
        tail = np.sqrt(np.cumsum(np.square(s[::-1])))[::-1]  # norm of the remainder at rank 0, 1, 2, …
        rank = max(1, int((tail > UNIT * tail[0]).sum())) if rank is None else ranked(rank, W.shape)
        return U[:, :rank] * s[:rank], V[:rank]

    def unpack(shape, u, v):
        """Multiply the two factors, in float64."""
        return multiply_factors(u, v)

    def kernel(x, u, v, out, epilogue):
        """Write (x @ u) @ v to `out`, then the epilogue."""
        from formats.kernels import product_lowrank

        product_lowrank(x, u, v, out, epilogue)

    @staticmethod
    def factors(W: ArrayLike, *, rank: int | None = None, weight: ArrayLike | None = None) -> tuple[Floats, Floats]:
        """Return u (n, rank), v (rank, p), float32, with the least ‖W - u v‖ (Frobenius); the default rank stores half
        as much as W. A `weight` of n positive numbers d minimises ‖diag(d) (W - u v)‖; an (n, n) Gram matrix G = XᵀX
        minimises ‖X (W - u v)‖, the error of the outputs (whitening: Wang et al. 2024, arXiv:2403.07378).

        All three project the outputs on the leading right singular vectors V of R W, where RᵀR is I, diag(d²) or G:
        R (W V Vᵀ) is the best approximation of R W, and no matrix is inverted, so G may be singular."""
        W = as_matrix(W, "lowrank").astype(np.float64)
        rank = LowRank.counts(*W.shape, rank=rank)[r]
        V = right_vectors(W, weight, rank)
        with np.errstate(over="ignore"):
            u = (W @ V.T).astype(np.float32)
        if not np.isfinite(u).all():
            raise FormatError(
                f"lowrank: W holds {abs(W).max():.3g}, so that a factor exceeds float32; give smaller weights"
            )
        return u, V.astype(np.float32)

    @classmethod
    def pack_factors(cls, u: ArrayLike, v: ArrayLike) -> Self:
        """Store the product of u (n, r) and v (r, p), as float32."""
        u, v = as_matrix(u, "lowrank.pack_factors, u"), as_matrix(v, "lowrank.pack_factors, v")
        if u.shape[1] != len(v):
            raise FormatError(f"lowrank.pack_factors: u is {u.shape}, v is {v.shape}: their ranks differ")
        return cls((len(u), v.shape[1]), (u, v))

    @classmethod
    def approximate(cls, W, **given):
        """Return `pack_factors(factors(W))`: one decomposition."""
        return cls.pack_factors(*cls.factors(W, **given))

    def factored(self):
        """Return the factors."""
        return self.u, self.v

    def transpose(self):
        """Exchange the factors and turn each: vᵀ (p, r), then uᵀ (r, n)."""
        return LowRank.pack_factors(self.v.T, self.u.T)

    def scratch(self):
        """Return the rank: one row of x @ u is stored between the factors."""
        return len(self.v)

    def bound(self, x, operands=None):
        """Bound two products and the rounding of unpack(): γ_{n+r+1} |x| |u| |v|, and the underflow in each of the
        three."""
        x, u, v = (abs(np.asarray(matrix, np.float64)) for matrix in (x, self.u, self.v))
        lost = len(u) * v.sum(0) + len(v) * (1 + x.sum(1, keepdims=True))
        return gamma(len(u) + len(v) + 1) * (x @ u @ v) + SMALLEST * lost

    def tolerance(self, W):
        """Bound the part of W beyond the rank that rounding W to float32 may leave, and the rounding of u, v and their
        product. The truncated decomposition is at least as near to W as the exact matrix that W was rounded from."""
        size = np.linalg.norm(abs(self.u.astype(np.float64)) @ abs(self.v.astype(np.float64)))
        return float(1.01 * UNIT * (np.linalg.norm(W.astype(np.float64)) + 3 * size))

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose 3/4, 1/2, 1/4 and 1/8 of the rank at which factors take as much as dense, in multiples of 8."""
        even = inputs * outputs / (inputs + outputs)  # the rank that stores as much as dense
        shares = (even * share for share in (0.75, 0.5, 0.25, 0.125))
        return [{"rank": rank} for rank in dict.fromkeys(max(1, int(share) // 8 * 8 or int(share)) for share in shares)]

    @classmethod
    def proposed_by(cls, spectrum):
        """Propose the ranks at which the spectrum's error crosses a level."""
        return [{"rank": rank} for rank in spectrum.ranks()]

    @classmethod
    def predicted(cls, spectrum, *, rank):
        """Return the spectrum's relative error of its best approximation of this rank."""
        return float(spectrum.errors[rank])

    @classmethod
    def projection(cls, W, directions, *, rank):
        """Project W (n, p) on the first of these directions, orthonormal rows, the weightiest first."""
        return cls.pack_factors(W @ directions[:rank].T, directions[:rank])

    @classmethod
    def counts(cls, inputs, outputs, *, rank=None, weight=None):
        """Return the rank: by default the one whose factors take half as much as dense. FormatError for a rank that the
        shape cannot have."""
        default = max(1, inputs * outputs // (2 * (inputs + outputs)))
        return {r: default if rank is None else ranked(rank, (inputs, outputs))}


def ranked(rank, shape):
    """Return the rank; FormatError if the shape cannot have it."""
    if isinstance(rank, int | np.integer) and 1 <= rank <= min(shape):
        return int(rank)
    raise FormatError(f"lowrank: rank = {rank!r} is not between 1 and {min(shape)}, the least side of {shape}")


def multiply_factors(u, v):
    """Return u @ v in float64."""
    return u.astype(np.float64) @ v.astype(np.float64)


def right_vectors(W, weight, rank):
    """Return the leading right singular vectors of R W (see `factors`), as rows: eigenvectors of the smaller Gram
    matrix."""
    weight = metric(weight, len(W))
    if W.shape[1] <= len(W):
        return leading(W.T @ (weight @ W if weight.ndim == 2 else np.square(weight)[:, None] * W), rank).T
    if weight.ndim == 2:
        values, vectors = spectrum(weight)
        R = np.sqrt(np.maximum(values, 0))[:, None] * vectors.T
        W = R @ W
    else:
        W = weight[:, None] * W
    return np.linalg.qr(W.T @ leading(W @ W.T, rank))[0].T


def leading(gram, rank):
    """Return the eigenvectors of the `rank` largest eigenvalues, as columns, the largest first."""
    return spectrum(gram)[1][:, : -rank - 1 : -1]


def spectrum(gram):
    """Return eigenvalues, ascending, and eigenvectors of a Gram matrix; FormatError if it is none."""
    values, vectors = np.linalg.eigh(gram)
    if values[0] < -1e-6 * abs(values[-1]):
        raise FormatError(
            f"lowrank: weight has an eigenvalue below 0 ({values[0]:.3g}); a Gram matrix XᵀX has only nonnegative ones"
        )
    return values, vectors


def metric(weight, inputs):
    """Return the weight in float64, ones by default; FormatError unless it is `inputs` positive numbers or
    symmetric."""
    if weight is None:
        return np.ones(inputs)
    weight = np.asarray(weight, np.float64)
    if weight.shape not in ((inputs,), (inputs, inputs)):
        raise FormatError(f"lowrank: weight has shape {weight.shape}, not ({inputs},) or ({inputs}, {inputs})")
    if not np.isfinite(weight).all():
        raise FormatError("lowrank: the weight holds numbers that are not finite")
    if weight.ndim == 1 and weight.min() <= 0:
        raise FormatError(f"lowrank: weight[{weight.argmin()}] = {weight.min()} is not positive")
    if weight.ndim == 2 and not np.allclose(weight, weight.T, rtol=1e-5, atol=1e-8 * abs(weight).max()):
        raise FormatError("lowrank: weight is not symmetric; a Gram matrix is XᵀX")
    return weight
