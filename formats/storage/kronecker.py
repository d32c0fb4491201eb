"""Kronecker products: every block of the matrix is a multiple of one block."""
import numpy as np

from formats.core.arrays import FormatError
from formats.core.epilogue import UNIT, gamma
from formats.core.sizes import T, c, ceiling, f4, k, n, p, r
from formats.format import SMALLEST, Format
from formats.storage.lowrank import leading

ROOM = 1 << 24                                               # numbers that a row of x may leave between two products


class Kronecker(Format):
    """A sum of k products A ⊗ B of A (r, c) and B (n / r, p / c), mostly of one: row (T, n) of x as X (r, n / r) gives
    AᵀXB, which is row (T, p) of x @ W.

    a holds Aᵀ. The nearest sum is the truncated singular value decomposition of the matrix whose rows are the blocks of
    W (Van Loan and Pitsianis 1993, theorem 2.1)."""
    a: f4[k, c, r]
    b: f4[k, n / r, p / c]
    flops = 2 * T * k * (n * p / c + r * p)
    work = T * k * (n * p / c + r * p), k * (r * c + n * p / (r * c)), T * (n + p), ceiling(T / 16) * k
    proposed = False

    def fit(W, *, outer=None, terms=1):
        """The sum of `terms` products that is nearest in Frobenius norm; `outer` is the shape (r, c) of A, by default
        the divisors of n and p next below their roots."""
        outer = choose_outer(outer, W.shape)
        a, b = fit_factors(W, outer, terms)
        return gathered(a.T @ b, outer, W.shape)

    def pack(W, *, outer=None, terms=1):
        (r, c), (n, p) = choose_outer(outer, W.shape), W.shape
        a, b = fit_factors(W, (r, c), terms)
        return a.reshape(terms, r, c).transpose(0, 2, 1), b.reshape(terms, n // r, p // c)

    def unpack(shape, a, b):
        terms, c, r = a.shape
        blocks = a.astype(np.float64).transpose(0, 2, 1).reshape(terms, -1).T @ b.astype(np.float64).reshape(terms, -1)
        return gathered(blocks, (r, c), shape)

    def kernel(x, a, b, out, epilogue):
        from formats.kernels import product_kronecker
        product_kronecker(x, a, b, out, epilogue)

    def transpose(self):
        """W.T: both factors turned."""
        return Kronecker(self.shape[::-1], (self.a.transpose(0, 2, 1), self.b.transpose(0, 2, 1)))

    def unsound(self):
        (_, _, rows), (_, _, columns) = self.a.shape, self.b.shape
        return f"{rows} × {columns} numbers lie between its two products; {ROOM:,} may" if rows * columns > ROOM else ""

    def bound(self, x, operands=None):
        """Two products, a sum, and the rounding of unpack(): γ of their lengths and 1 on |x| Σ |A| ⊗ |B|."""
        x, (terms, _, rows), inner = abs(np.asarray(x, np.float64)), self.a.shape, self.b.shape[1]
        size, steps = absolute(self), terms * (rows + inner) + 2
        lost = steps * (1 + abs(self.a).sum()) * (1 + x.sum(1, keepdims=True))
        return gamma(steps) * (x @ size) + SMALLEST * lost

    def tolerance(self, W):
        """What rounding W to float32 may leave outside the sum, and rounding the factors and their product may add."""
        size = np.linalg.norm(absolute(self))
        return float(1.01 * UNIT * (np.linalg.norm(W.astype(np.float64)) + 3 * size))

    @classmethod
    def choices(cls, inputs, outputs): return [{"terms": 2}, {}]

    @classmethod
    def counts(cls, inputs, outputs, *, outer=None, terms=1):
        rows, columns = choose_outer(outer, (inputs, outputs))
        return {k: several(terms, (rows, columns), (inputs, outputs)), r: rows, c: columns}


def choose_outer(outer, shape):
    """The shape of A; FormatError unless it divides the shape of W."""
    if outer is None: return tuple(max(d for d in range(1, int(side ** 0.5) + 1) if side % d == 0) for side in shape)
    match outer:
        case [int(r), int(c)] if r > 0 and c > 0 and shape[0] % r == shape[1] % c == 0: return r, c
    raise FormatError(f"kronecker: outer = {outer!r} is not a pair of divisors of the shape {shape}")


def several(terms, outer, shape):
    """How many products; FormatError for more than W could need."""
    blocks = outer[0] * outer[1]
    if isinstance(terms, int) and 1 <= terms <= (most := min(blocks, shape[0] * shape[1] // blocks)): return terms
    raise FormatError(f"kronecker: terms = {terms!r} is not between 1 and {most}")


def fit_factors(W, outer, terms):
    """(terms, blocks) and (terms, entries of a block), in float64: the best approximation of the matrix of blocks."""
    (r, c), (n, p) = outer, W.shape
    several(terms, outer, W.shape)
    rows = W.astype(np.float64).reshape(r, n // r, c, p // c).transpose(0, 2, 1, 3).reshape(r * c, -1)
    if len(rows) <= rows.shape[1]: return (left := leading(rows @ rows.T, terms).T), left @ rows
    return (rows @ (right := leading(rows.T @ rows, terms))).T, right.T


def gathered(rows, outer, shape):
    """The matrix of this shape that has these blocks."""
    (r, c), (n, p) = outer, shape
    return rows.reshape(r, c, n // r, p // c).transpose(0, 2, 1, 3).reshape(shape)


def absolute(packed):
    """Σ |A| ⊗ |B|, in float64: what roundings are in proportion to."""
    a, b = (abs(array.astype(np.float64)) for array in (packed.a, packed.b))
    return Kronecker.declared.unpack(packed.shape, a, b)
