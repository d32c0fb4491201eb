"""The metric of both sides of a weight: the error of the *model* with W + E (n, p) instead of W, from G = XᵀX of
the rows that come in and S = Σ g gᵀ of the cotangents g of what goes out.

A change E of the weight changes the output along a random sign vector u by Σ_t (x_t E) · g_t. Were rows apart and x and
g independent, its mean square would be tr(Eᵀ G E S), up to a factor of rows: the metric here (K-FAC: Martens and Grosse
2015, arXiv:1503.05671). What rows of a sentence do together is lost, so it says what to propose; what this costs is
predicted by the cotangents themselves, or measured."""

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError
from opmatrix.spectra.gram import (
    NULL,
    Gram,
    gram_diagonal,
    metric,
    multiply_gram,
    output_energy,
    root,
    strengths,
    whitened,
)
from opmatrix.spectra.measures import RealArray, Spectrum, check_matrix

SHRINKAGE = 0.3  # share of S that is its diagonal alone: few rows say little of pairs
DAMPING = 0.1  # share of the mean of its diagonal that is added to each direction
SINGULAR = 1e-12  # eigenvalues of S below this share of the largest count as zero
REFIT_STEPS = 12  # of conjugate gradients; with G alone a third of them is enough


@dataclass(frozen=True, eq=False)
class Factors:
    """W (n, p) as a product of all of its directions, the weightiest first: `left` (n, k), `right` (k, p), and the
    singular values (k,), falling. The first r of each are the best rank r in the metric, and the tail of the squared
    values is its squared error."""

    values: RealArray
    left: RealArray
    right: RealArray

    def rank(self, r: int) -> tuple[RealArray, RealArray]:
        """Return the best factors of rank r: U (n, r), V (r, p)."""
        return self.left[:, :r], self.right[:r]


def damped(cotangents: ArrayLike) -> RealArray:
    """Return S, (p, p) or its diagonal (p,), made fit to be inverted: shrunk towards its diagonal, and a share of the
    mean of that added to all directions. Zeros stay zeros: no cotangent, no metric."""
    s = np.array(cotangents, np.float64)
    added = DAMPING * float(gram_diagonal(s).mean())
    if s.ndim == 1:
        return s + added
    diagonal = s.diagonal().copy()
    s *= 1 - SHRINKAGE
    s[np.diag_indices(len(s))] = diagonal + added
    return s


def two_sided(weight: ArrayLike, gram: ArrayLike | Gram | None = None, cotangents: ArrayLike | None = None) -> Factors:
    """Return W (n, p) decomposed in the metric tr(Eᵀ G E S): with S = QᵀQ and G = RᵀR, the singular value decomposition
    of R W Qᵀ, whose right factor is brought back by Q⁻¹. G is never inverted, nor is S of a wide W: the smaller side is
    decomposed, as by `whitened`. G and S are full or diagonal; ones where they are left out, so without S this is
    `low_rank`. Raises InputError where shapes do not fit."""
    w = check_matrix(weight, "weight")
    g, s = metrics(w, gram, cotangents)
    if w.shape[1] > len(w):
        worth, rooted = multiply_right(w, s) @ w.T, root(g)
        sizes, axes = np.linalg.eigh(rooted @ worth @ rooted.T)
        values = np.sqrt(np.maximum(sizes[::-1], 0))
        scale = np.divide(1, values, out=np.zeros_like(values), where=values > NULL * values[0])
        turned = rooted.T @ (axes[:, ::-1] * scale)
        return Factors(values, worth @ turned, turned.T @ w)
    rooted, inverse = root_and_inverse(s)
    spread = multiply_right(w, rooted.T)
    values, right = whitened(spread, g)
    return Factors(values, spread @ right.T, multiply_right(right, inverse.T))


def two_sided_values(
    weight: ArrayLike, gram: ArrayLike | Gram | None = None, cotangents: ArrayLike | None = None
) -> RealArray:
    """Return the error spectrum (k,), falling: the singular values of R W Qᵀ, without their vectors."""
    w = check_matrix(weight, "weight")
    g, s = metrics(w, gram, cotangents)
    if w.shape[1] > len(w):
        rooted = root(g)
        square = rooted @ (multiply_right(w, s) @ w.T) @ rooted.T
        return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(square)[::-1], 0)))
    return strengths(multiply_right(w, root_and_inverse(s)[0].T), g)


def two_sided_errors(
    weight: ArrayLike, gram: ArrayLike | Gram | None = None, cotangents: ArrayLike | None = None
) -> RealArray:
    """Return the error of the best rank r, relative to that of leaving W out, for r = 0 … k at once."""
    return np.sqrt(Spectrum(two_sided_values(weight, gram, cotangents), np.shape(weight)).tail)


def two_sided_energy(
    change: ArrayLike, gram: ArrayLike | Gram | None = None, cotangents: ArrayLike | None = None
) -> float:
    """Compute tr(Eᵀ G E S) of a change E (n, p)."""
    e = check_matrix(change, "change")
    g, s = metrics(e, gram, cotangents)
    if s.ndim == 1:
        return output_energy(e * np.sqrt(s), g)
    return max(float(np.einsum("ij,ij->", multiply_gram(g, e), e @ s)), 0.0)


def entry_losses(
    weight: ArrayLike, gram: ArrayLike | Gram | None = None, cotangents: ArrayLike | None = None
) -> RealArray:
    """Compute G_ii W_ij² S_jj (n, p), the loss with each entry alone: the Gauss-Newton form of optimal brain damage
    (LeCun, Denker and Solla 1990)."""
    w = check_matrix(weight, "weight")
    g, s = metrics(w, gram, cotangents)
    return np.asarray(gram_diagonal(g)[:, None] * w**2 * gram_diagonal(s))


def refitted(
    weight: ArrayLike,
    kept: NDArray[np.bool_],
    gram: ArrayLike | Gram | None = None,
    cotangents: ArrayLike | None = None,
    steps: int = REFIT_STEPS,
    number_type: type[np.floating] = np.float64,
) -> RealArray:
    """Return the weight (n, p) that is zero outside `kept` and, after so many steps of conjugate gradients, next to the
    least of tr((W - Ŵ)ᵀ G (W - Ŵ) S): optimal brain surgeon for all entries that go at once (Hassibi and Stork 1993).
    With a diagonal S outputs are independent, so it has no say; with a diagonal G, too, entries stay as they are. Steps
    compute in `number_type`."""
    w = check_matrix(weight, "weight")
    g, s = metrics(w, gram, cotangents)
    if kept.shape != w.shape:
        raise InputError(f"refitted: weight {w.shape} against kept {kept.shape}")
    fitted = np.where(kept, w, 0.0)
    if s.ndim == 1:
        if g.ndim == 1:
            return fitted
        s = np.ones(len(s))
    w, g, s, fitted = (array.astype(number_type) for array in (w, g, s / (gram_diagonal(s).max() or 1), fitted))

    def slope(e: RealArray) -> RealArray:
        """Return the kept entries of G E S."""
        return np.where(kept, multiply_right(multiply_gram(g, e), s), 0.0)

    tiny = float(np.finfo(number_type).tiny)
    scale = 1 / np.maximum(gram_diagonal(g)[:, None] * gram_diagonal(s), tiny**0.5)
    left = slope(w - fitted)
    towards = scale * left
    size = float(np.vdot(left, towards))
    for _ in range(steps):
        if size <= tiny:
            break
        turned = slope(towards)
        step = number_type(size / max(float(np.vdot(towards, turned)), tiny))
        fitted += step * towards
        left -= step * turned
        scaled = scale * left
        size, before = float(np.vdot(left, scaled)), size
        towards = scaled + number_type(size / before) * towards
    return fitted


def metrics(w: RealArray, gram: ArrayLike | Gram | None, cotangents: ArrayLike | None) -> tuple[RealArray, RealArray]:
    """Return G and S as arrays, full or diagonal; ones where they are left out. Raises InputError for a shape that does
    not fit W (n, p)."""
    p = w.shape[1]
    s = np.ones(p) if cotangents is None else np.asarray(cotangents, np.float64)
    if s.shape not in ((p,), (p, p)):
        raise InputError(
            f"cotangents: shape {s.shape}; a weight of {p} columns needs ({p}, {p}) or its diagonal ({p},)"
        )
    return metric(gram, len(w)), s


def multiply_right(matrix: RealArray, other: RealArray) -> RealArray:
    """Compute A B, of a full or a diagonal B."""
    return matrix @ other if other.ndim == 2 else matrix * other


def root_and_inverse(s: RealArray) -> tuple[RealArray, RealArray]:
    """Return Q with QᵀQ = S, and Q⁻¹: Cholesky's; where S is singular, or rounding made it so, a root whose inverse has
    zeros in the directions that S does not see."""
    if s.ndim == 1:
        scale = np.sqrt(np.maximum(s, 0))
        return scale, np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    with suppress(np.linalg.LinAlgError):
        upper = np.asarray(np.linalg.cholesky(s).T, np.float64)
        if upper.diagonal().min() ** 2 > SINGULAR * upper.diagonal().max() ** 2:
            return upper, np.asarray(np.linalg.inv(upper), np.float64)
    sizes, axes = np.linalg.eigh(s)
    scale = np.sqrt(np.maximum(sizes, 0))
    inverted = np.divide(1, scale, out=np.zeros_like(scale), where=sizes > SINGULAR * sizes[-1])
    return scale[:, None] * axes.T, axes * inverted
