"""Low rank plus sparse: two thin factors, and the numbers that they miss."""
import numpy as np

from formats.core.arrays import FormatError, as_matrix
from formats.core.epilogue import UNIT, gamma
from formats.core.pruning import count_kept, highest, importance
from formats.core.sizes import Min, T, ceiling, f4, n, nnz, p, r, u4, unsigned
from formats.format import SMALLEST, Format
from formats.storage.csr import CSR, compression
from formats.storage.lowrank import LowRank, multiply_factors, ranked

STEPS, REFINED, STALLED, DAMPING = 100, 40, 1e-3, 1e-10


class LowRankSparse(Format):
    """u (n, r), v (r, p) and a sparse remainder stored as in csr: x @ W is (x @ u) @ v + x @ S.

    The factors hold what outputs have in common, the remainder holds outliers (robust principal components: Candès et
    al. 2011; of weights: Zhang and Papyan 2024, arXiv:2409.13652)."""
    u: f4[n, r]
    v: f4[r, p]
    ptr: u4[p + 1]
    idx: unsigned(n)[nnz]
    val: f4[nnz]
    work = (T * r * (n + p), r * (n + p) * Min(1 + ceiling(T / 8), 4), T * (n + 2 * p + r),
            nnz * ceiling(T / 16), nnz, p)
    proposed = projects = False

    def fit(W, *, rank=None, density=0.05, scale=None):
        """The best sum of a matrix of this rank and one of a share `density` of nonzero numbers that `alternate` finds;
        errors count `scale` times, one positive number for each input."""
        return sum_parts(W.shape, *alternate(W, rank, density, scale))

    def pack(W, *, rank=None, density=0.05):
        """What `alternate` finds, refined, and in the remainder whatever else is more than rounding: any matrix can be
        held. Where factors are so thin and outliers so few that they determine each other, they are mostly found
        again."""
        u, v, *remainder = alternate(W, rank, density)
        u, v = refined(W.astype(np.float64), v, CSR.declared.unpack(W.shape, *remainder) == 0)
        mean = np.linalg.norm(W.astype(np.float64)) / W.size ** 0.5
        rest, noise = W - multiply_factors(u, v), 4 * UNIT * (mean + abs(W) + multiply_factors(abs(u), abs(v)))
        return u, v, *CSR.declared.pack(np.where(abs(rest) > noise, rest, 0).astype(np.float32))

    def unpack(shape, u, v, ptr, idx, val): return sum_parts(shape, u, v, ptr, idx, val)

    def kernel(x, u, v, ptr, idx, val, out, epilogue):
        from formats.kernels import product_lowrank_sparse
        product_lowrank_sparse(x, u, v, ptr, idx, val, out, epilogue)

    @classmethod
    def approximate(cls, W, *, rank=None, density=0.05, scale=None):
        """What `fit` finds, its parts as they are."""
        W = as_matrix(W, f"{cls.name}.approximate")
        return cls(W.shape, alternate(W, rank, density, scale))

    @classmethod
    def pack_factors(cls, u, v, remainder=None):
        """Store u (n, r) v (r, p) + remainder (n, p, mostly zeros; by default all), as float32, without a
        decomposition."""
        factors = LowRank.pack_factors(u, v)
        S = CSR.pack(np.zeros(factors.shape) if remainder is None else remainder)
        if S.shape != factors.shape:
            raise FormatError(f"{cls.name}.pack_factors: {factors!r} and a remainder of {S.shape}")
        return cls(S.shape, (factors.u, factors.v, *S.arrays().values()))

    def transpose(self):
        """W.T: both parts turned."""
        remainder = CSR(self.shape, (self.ptr, self.idx, self.val)).transpose()
        return LowRankSparse(self.shape[::-1], (self.v.T, self.u.T, *remainder.arrays().values()))

    def unsound(self): return compression(self.ptr, self.idx, self.shape[0])

    def scratch(self): return len(self.v)

    def bound(self, x, operands=None):
        """Three products, a sum, and the rounding of unpack(): γ_{n+r+2} |x| (|u| |v| + |S|), and what underflows."""
        x, u, v = (abs(np.asarray(each, np.float64)) for each in (x, self.u, self.v))
        lost = len(u) * v.sum(0) + (len(u) + len(v)) * (1 + x.sum(1, keepdims=True))
        return gamma(len(u) + len(v) + 2) * (x @ absolute(self)) + SMALLEST * lost

    def tolerance(self, W):
        """What `pack` takes for rounding, and what rounding the parts and their sum may add."""
        return float(UNIT * (9 * np.linalg.norm(W.astype(np.float64)) + 6 * np.linalg.norm(absolute(self))))

    @classmethod
    def choices(cls, inputs, outputs):
        even = inputs * outputs / (inputs + outputs)                    # the rank that stores as much as dense
        return [{"rank": max(1, int(even * share)), "density": density}
                for share, density in ((0.25, 0.05), (0.1, 0.02))]

    @classmethod
    def counts(cls, inputs, outputs, *, rank=None, density=0.05, scale=None):
        return {r: choose_rank(rank, (inputs, outputs)), nnz: count_kept(density, inputs * outputs, cls.name)}


def choose_rank(rank, shape):
    """The rank, by default one that stores an eighth of W; FormatError if the shape cannot have it."""
    return ranked(max(1, shape[0] * shape[1] // (8 * sum(shape))) if rank is None else rank, shape)


def alternate(W, rank, density, scale=None):
    """u, v, ptr, idx, val: by turns the highest numbers of what the factors miss, and the factors of what the remainder
    leaves, each from the last by one step of a subspace iteration (Zhou and Tao 2011, algorithm 1).

    It begins with the best factors or the highest numbers, whichever err less; no step loses; it ends when one hardly
    gains."""
    rank, kept = choose_rank(rank, W.shape), count_kept(density, W.size, "lowranksparse")
    weight = importance(np.ones_like(W), scale, "lowranksparse.fit")[:, :1]
    A = W * weight
    starts = [(right, start @ right @ right.T) for start in (A, np.where(highest(abs(A), kept), 0, A))
              for right in [leading(start, rank)]]
    (right, low), before = min(starts, key=lambda start: missed(A, start[1], kept)), np.inf
    for _ in range(STEPS):
        rest = np.where(highest(abs(A - low), kept), low, A)
        right = np.linalg.qr(rest.T @ (rest @ right))[0]
        left = rest @ right
        low = left @ right.T
        if (error := missed(A, low, kept)) >= before * (1 - STALLED): break
        before = error
    u, v = (left / weight).astype(np.float32), right.T.astype(np.float32)
    mask = highest(abs(A - low), kept)
    return u, v, *CSR.declared.pack(np.where(mask, W - multiply_factors(u, v), 0).astype(np.float32))


def refined(A, v, kept):
    """u and v in float32 after steps that are exact where `alternate` takes small ones: the factors with the least
    error on what is kept, one after the other (alternating least squares: Ruhe and Wedin 1980), then the highest
    numbers anew."""
    right, removed, before = np.linalg.qr(v.T.astype(np.float64))[0], A.size - kept.sum(), np.inf
    for _ in range(REFINED):
        left = np.linalg.qr(solved(A, kept, right))[0]
        low = left @ (turned := solved(A.T, kept.T, left)).T
        right, kept = np.linalg.qr(turned)[0], ~highest(abs(A - low), removed)
        if (error := missed(A, low, removed)) >= before * (1 - STALLED): break
        before = error
    return left.astype(np.float32), turned.T.astype(np.float32)


def solved(A, kept, basis):
    """The rows U with the least error of U basisᵀ on what is kept of A; the columns of the basis are orthonormal."""
    wanted, rows = (A * kept) @ basis, np.empty((len(A), basis.shape[1]))
    for i, missing in enumerate(~kept):
        gram = np.eye(len(rows[i])) * (1 + DAMPING) - basis[missing].T @ basis[missing]
        rows[i] = np.linalg.solve(gram, wanted[i])
    return rows


def missed(A, low, kept):
    """The norm of A - low without its highest numbers."""
    rest = A - low
    return np.linalg.norm(rest[~highest(abs(rest), kept)])


def leading(A, rank):
    """Its leading right singular vectors, as columns."""
    if A.shape[1] <= len(A): return np.linalg.eigh(A.T @ A)[1][:, :-rank - 1:-1]
    return np.linalg.qr(A.T @ np.linalg.eigh(A @ A.T)[1][:, :-rank - 1:-1])[0]


def sum_parts(shape, u, v, ptr, idx, val):
    """The sum of both parts, in float64."""
    return multiply_factors(u, v) + CSR.declared.unpack(shape, ptr, idx, val)


def absolute(packed):
    """|u| |v| + |S|: what roundings are in proportion to."""
    u, v, *remainder, val = map(abs, packed.arrays().values())
    return sum_parts(packed.shape, u, v, *remainder, val)
