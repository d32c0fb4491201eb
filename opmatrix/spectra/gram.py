"""The activation side: the error that an approximation of W causes in the output X W, in closed form from G = XᵀX
alone."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError
from opmatrix.algebra.batch.signature import GivenMatrix
from opmatrix.spectra.measures import RealArray, Spectrum, check_matrix

RIDGE = 0.1  # share of the energy of the rows that is spread over all
# directions
NULL = 1e-7  # share of the largest singular value: smaller values
# are rounding, left by squaring


@dataclass(frozen=True, eq=False)
class Gram:
    """A summary of activations X (rows, n): G = XᵀX, the sums of the columns, and the number of rows. Grams of parts of
    the rows add up, so X is never held at once. G is also the Hessian, up to 2, of ‖X(W - Ŵ)‖² (Frantar, Alistarh
    2022)."""

    matrix: RealArray
    total: RealArray
    rows: int

    @classmethod
    def of(cls, activations: ArrayLike, name: str = "activations") -> "Gram":
        """Compute the Gram of X (rows, n), in float64. Raises InputError where an entry is not finite."""
        x = check_matrix(activations, name)
        return cls(x.T @ x, x.sum(0), len(x))

    def __add__(self, other: "Gram") -> "Gram":
        if self.matrix.shape != other.matrix.shape:
            raise InputError(f"Gram + Gram: {self.matrix.shape} against {other.matrix.shape}: the widths differ")
        return Gram(self.matrix + other.matrix, self.total + other.total, self.rows + other.rows)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float64]:
        return np.array(self.matrix, dtype=dtype, copy=copy)  # type: ignore[call-overload,no-any-return]

    @cached_property
    def covariance(self) -> RealArray:
        """(n, n): G / rows minus the product of the means."""
        mean = self.total / self.rows
        return self.matrix / self.rows - np.outer(mean, mean)

    def spectrum(self, name: str = "activations") -> Spectrum:
        """Return standard deviations along the principal axes: roots of the covariance's eigenvalues."""
        values = np.sqrt(np.maximum(np.linalg.eigvalsh(self.covariance)[::-1], 0))
        precision = float(np.sqrt(np.finfo(np.float64).eps))  # a root of squares keeps half the digits
        return Spectrum(values, (self.rows, len(values)), name, "activation", precision)


@dataclass(frozen=True, eq=False)
class Seen:
    """Activations of a value in calibration: its rows X (rows, n) in float32; of many rows half of their Gram, which is
    symmetric; or the Gram's diagonal alone, where no more is required. A share of the energy, which is the trace of
    XᵀX, is spread over all directions: few rows say nothing of most directions, which is no reason to drop those."""

    rows: GivenMatrix | None
    half: Gram | None = None  # its matrix is the upper triangle, row after row
    squares: RealArray | None = None  # the diagonal

    @classmethod
    def of(cls, activations: GivenMatrix, name: str = "activations") -> "Seen":
        """Record activations. Raises InputError where an entry is not finite."""
        check_matrix(activations, name)
        rows, n = activations.shape
        if rows <= 2 * n:
            return cls(np.array(activations))
        whole = Gram.of(activations, name)
        return cls(None, replace(whole, matrix=np.asarray(halved(whole.matrix), np.float64)))

    @classmethod
    def by_columns(cls, activations: GivenMatrix, name: str = "activations") -> "Seen":
        """Record the squared norms of the columns, in float64. Raises InputError where an entry is not finite."""
        check_matrix(activations[:1], name)
        squares = np.einsum("ti,ti->i", activations, activations, dtype=np.float64)
        if not np.isfinite(squares).all():
            check_matrix(activations, name)
        return cls(None, None, squares)

    @property
    def whole(self) -> bool:
        """True if its Gram is known."""
        return self.squares is None

    @property
    def gram(self) -> Gram:
        """XᵀX with its ridge."""
        if self.half is None:
            gram = Gram.of(self.rows)  # type: ignore[arg-type]
        else:
            gram = replace(self.half, matrix=mirrored(self.half.matrix, len(self.half.total)))
        at = np.diag_indices(len(gram.total))
        gram.matrix[at] += ridge(gram.matrix[at])
        return gram

    @property
    def diagonal(self) -> RealArray:
        """The diagonal of the Gram with its ridge, (n,)."""
        if self.squares is not None:
            squares = self.squares
        elif self.half is None:
            squares = np.square(self.rows, dtype=np.float64).sum(0)  # type: ignore[arg-type]
        else:
            squares = self.half.matrix[np.cumsum([0, *range(len(self.half.total), 1, -1)])]
        return np.asarray(squares + ridge(squares))


@dataclass(frozen=True, eq=False)
class Symmetric:
    """A symmetric matrix (n, n), of which half is held: the upper triangle, row after row."""

    half: NDArray[np.floating]
    n: int

    @classmethod
    def of(cls, matrix: NDArray[np.floating]) -> "Symmetric":
        """Hold half of a matrix, in its number type."""
        return cls(halved(matrix), len(matrix))

    def __len__(self) -> int:
        return self.n

    def __add__(self, other: "Symmetric") -> "Symmetric":
        return Symmetric(self.half + other.half, self.n)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float64]:
        return np.asarray(mirrored(self.half, self.n), dtype=dtype)  # type: ignore[call-overload,no-any-return]


def halved(matrix: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return the upper triangle of a matrix, row after row."""
    return np.concatenate([row[i:] for i, row in enumerate(matrix)])


def mirrored(upper: NDArray[np.floating], n: int) -> RealArray:
    """Return the symmetric matrix (n, n) with this upper triangle."""
    full, at = np.empty((n, n)), 0
    for i in range(n):
        full[i, i:] = full[i:, i] = upper[at : at + n - i]
        at += n - i
    return full


def ridge(diagonal: RealArray) -> float:
    """Return the energy that is added to each direction."""
    return float(RIDGE * diagonal.sum() / len(diagonal))


def metric(gram: ArrayLike | Gram | None, n: int) -> RealArray:
    """Return G as an array: (n, n), or (n,) where only its diagonal is given; ones where there is none."""
    if gram is None:
        return np.ones(n)
    values = np.asarray(gram, dtype=np.float64)
    if values.shape not in ((n,), (n, n)):
        raise InputError(f"gram: shape {values.shape}; a weight of {n} rows needs ({n}, {n}) or its diagonal ({n},)")
    return values


def multiply_gram(gram: RealArray, matrix: RealArray) -> RealArray:
    """Compute G D, of a full or a diagonal G."""
    return gram @ matrix if gram.ndim == 2 else gram[:, None] * matrix


def gram_diagonal(gram: RealArray) -> RealArray:
    """Return the diagonal of a full or a diagonal G: squared column norms of X."""
    return gram.diagonal() if gram.ndim == 2 else gram


def output_energy(matrix: RealArray, gram: RealArray) -> float:
    """Compute ‖X D‖_F² = tr(Dᵀ G D)."""
    if gram.ndim == 1:
        return float(np.einsum("ij,ij->i", matrix, matrix) @ gram)
    return max(float(np.einsum("ij,ij->", matrix, gram @ matrix)), 0.0)


def predicted_error(weight: ArrayLike, approximated: ArrayLike, gram: ArrayLike | Gram | None = None) -> float:
    """Compute ‖X(W - Ŵ)‖_F / ‖X W‖_F from G (n, n), its diagonal (n,), or none (the plain relative Frobenius error)."""
    w, a = check_matrix(weight, "weight"), check_matrix(approximated, "approximated")
    if w.shape != a.shape:
        raise InputError(f"predicted_error: weight {w.shape} against approximated {a.shape}")
    g = metric(gram, len(w))
    lost, whole = output_energy(w - a, g), output_energy(w, g)
    if whole == 0:
        return 0.0 if lost == 0 else float("inf")
    return float(np.sqrt(lost / whole))


def root(gram: RealArray) -> RealArray:
    """Return R with RᵀR = G: Cholesky's, or, where rounding made directions negative, one in which these count as
    zero."""
    if gram.ndim == 1:
        return np.diag(np.sqrt(gram))
    with suppress(np.linalg.LinAlgError):
        return np.asarray(np.linalg.cholesky(gram).T, np.float64)
    sizes, axes = np.linalg.eigh(gram)
    return np.asarray(np.sqrt(np.maximum(sizes, 0))[:, None] * axes.T)


def whitened(weight: ArrayLike, gram: ArrayLike | Gram | None = None) -> tuple[RealArray, RealArray]:
    """Compute the singular values (k,) of G^½ W, falling, and its right singular vectors (k, p): the directions of the
    outputs X W.

    Their tail is the squared output error of the best rank r for every r (Eckart and Young 1936, in the metric of G).
    The smaller side is decomposed; squaring leaves values below 1e-8 of the largest to rounding, as G itself does.
    Where W is wide, vectors of values below 1e-7 of the largest are zeros."""
    w = check_matrix(weight, "weight")
    g = metric(gram, len(w))
    if w.shape[1] <= w.shape[0]:
        sizes, axes = np.linalg.eigh(w.T @ multiply_gram(g, w))
        return np.sqrt(np.maximum(sizes[::-1], 0)), axes.T[::-1]
    rooted = stretched(w, g)
    sizes, axes = np.linalg.eigh(rooted @ rooted.T)
    values = np.sqrt(np.maximum(sizes[::-1], 0))
    right = axes.T[::-1] @ rooted
    return values, right * np.where(values > NULL * values[0], 1 / np.maximum(values, np.finfo(np.float64).tiny), 0.0)[
        :, None
    ]


def stretched(weight: RealArray, gram: RealArray) -> RealArray:
    """Compute G^½ W, up to a rotation."""
    return np.sqrt(gram)[:, None] * weight if gram.ndim == 1 else root(gram) @ weight


def strengths(weight: RealArray, gram: RealArray) -> RealArray:
    """Compute the singular values of G^½ W (k,), falling, without their vectors."""
    if weight.shape[1] <= weight.shape[0]:
        square = weight.T @ multiply_gram(gram, weight)
    else:
        square = (rooted := stretched(weight, gram)) @ rooted.T
    return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(square)[::-1], 0)))


def low_rank_errors(weight: ArrayLike, gram: ArrayLike | Gram | None = None) -> RealArray:
    """Compute the relative output error of the best rank r, for r = 0 … k at once."""
    w = check_matrix(weight, "weight")
    return np.sqrt(Spectrum(strengths(w, metric(gram, len(w))), w.shape).tail)


def low_rank(weight: ArrayLike, rank: int, gram: ArrayLike | Gram | None = None) -> tuple[RealArray, RealArray]:
    """Compute factors U (n, r), V (r, p) whose product errs least in the output X W: W projected on the r largest
    directions of the outputs, so G is never inverted (whitened low rank: Wang et al. 2024, SVD-LLM; Chen et al. 2021,
    DRONE)."""
    w = check_matrix(weight, "weight")
    if not 0 <= rank <= min(w.shape):
        raise InputError(f"low_rank: rank {rank} of a weight {w.shape}")
    right = whitened(w, gram)[1][:rank]
    return w @ right.T, right


def prune_scores(weight: ArrayLike, gram: ArrayLike | Gram | None = None) -> RealArray:
    """Compute |W_ij| √G_ii (n, p), the score by which entries are dropped, the lowest first: Wanda (Sun et al. 2023);
    magnitude where there is no G."""
    w = check_matrix(weight, "weight")
    return np.asarray(abs(w) * np.sqrt(gram_diagonal(metric(gram, len(w))))[:, None])


def mask_errors(weight: ArrayLike, gram: ArrayLike | Gram | None = None, score: RealArray | None = None) -> RealArray:
    """Compute the relative output error (n p + 1,) after the 0, 1, 2 … entries of lowest score are dropped: every
    density at once.

    A diagonal G makes it a running sum of G_ii W_ij². For a full one, an entry that joins those dropped before it adds
    W_ij (W_ij G_ii + 2 Σ_{i' dropped before} G_ii' W_i'j), n² p in all. Exact; `score` defaults to Wanda's."""
    w = check_matrix(weight, "weight")
    g = metric(gram, len(w))
    order = np.argsort(prune_scores(w, g) if score is None else score, axis=None, kind="stable")
    added = gram_diagonal(g)[:, None] * w**2
    if g.ndim == 2:
        turn = np.argsort(order).reshape(w.shape)  # the step at which each entry is dropped
        for j in range(w.shape[1]):
            rows = np.argsort(turn[:, j])
            dropped = w[rows, j]
            added[rows, j] += 2 * dropped * (np.tril(g[np.ix_(rows, rows)], -1) @ dropped)
    lost = np.maximum(np.concatenate([[0.0], np.cumsum(added.ravel()[order])]), 0)
    return np.asarray(np.sqrt(lost / lost[-1]) if lost[-1] > 0 else lost)
