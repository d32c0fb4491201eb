"""Krylov-Schur: Arnoldi with thick restart (Stewart 2001), which for Aᴴ = A is thick-restart Lanczos (Wu, Simon 2000).

A Krylov decomposition A V = V T + v bᴴ holds for any orthonormal V, so a restart keeps the Schur vectors of the largest
Ritz values and continues from v. Kept sizes are drawn at each restart: a constant size applies nearly the same filter
again and again, and stagnates in small subspaces."""

import numpy as np

from formats.core.errors import InputError
from opmatrix.spectra.unite import Counted, Eigenpairs, Matrix, SquareOperator, checked, confirmed

SMALLEST = 20  # smallest default subspace, as ARPACK's
CHECK = 16  # products from another start before values that converged are final
SAME = 1e-7  # relative difference of eigenvalues that are the same
EXHAUSTED = 1e-13  # an image that leaves its subspace by less than this share is inside


def default_subspace(count: int, n: int) -> int:
    """Return the default size of the subspace, as ARPACK's: twice the count and one, at least SMALLEST."""
    return min(max(2 * count + 1, SMALLEST), n)


def orthogonalise(vector: Matrix, known: Matrix) -> tuple[Matrix, Matrix]:
    """Return the part of a vector orthogonal to an orthonormal basis, and its coordinates along it. Classical
    Gram-Schmidt twice."""
    along = known.conj().T @ vector
    vector = vector - known @ along
    again = known.conj().T @ vector
    return vector - known @ again, along + again


def random_direction(known: Matrix, random: np.random.Generator) -> Matrix:
    """Return a random unit vector orthogonal to an orthonormal basis (n, j), zero where the basis is complete."""
    n, size = known.shape
    if size >= n:
        return np.zeros(n, known.dtype)
    vector = orthogonalise(np.asarray(random.standard_normal(n), known.dtype), known)[0]
    return np.asarray(vector / np.linalg.norm(vector))


def extend(operator: Counted, basis: Matrix, inner: Matrix, done: int, random: np.random.Generator) -> None:
    """Extend A V_j = V_{j+1} T_j in place from `done` columns to all of `inner` (m+1, m). From an invariant subspace it
    continues in a random direction."""
    for j in range(done, inner.shape[1]):
        image, inner[: j + 1, j] = orthogonalise(operator @ basis[:, j], basis[:, : j + 1])
        left = np.linalg.norm(image)
        if left <= EXHAUSTED * np.linalg.norm(inner[: j + 1, j]):
            basis[:, j + 1] = random_direction(basis[:, : j + 1], random)
        else:
            inner[j + 1, j] = left
            basis[:, j + 1] = image / left


def ritz_values(inner: Matrix, symmetric: bool) -> tuple[Matrix, Matrix]:
    """Compute all eigenpairs of a projected matrix by falling magnitude."""
    values, vectors = np.linalg.eigh((inner + inner.conj().T) / 2) if symmetric else np.linalg.eig(inner)
    order = np.argsort(-abs(values), kind="stable")
    return values[order], vectors[:, order]


def leading(inner: Matrix, keep: int, symmetric: bool) -> Matrix:
    """Return an orthonormal basis (m, p) of the invariant subspace of the `keep` eigenvalues of a projected matrix that
    are largest in magnitude; p is one more, or one less than m, where `keep` would divide a conjugate pair."""
    from scipy.linalg import schur

    values, vectors = ritz_values(inner, symmetric)
    if symmetric:
        return vectors[:, :keep]
    sizes = abs(values)
    falls = np.flatnonzero(sizes[:-1] - sizes[1:] > 1e-10 * sizes[0]) + 1  # places that divide no equal magnitudes
    ordered = int(max(falls[falls <= keep], default=0))
    limit = (sizes[ordered - 1] + sizes[ordered]) / 2 if 0 < ordered < len(sizes) else 0.0
    if np.iscomplexobj(inner):
        return np.asarray(schur(inner, output="complex", sort=lambda value: abs(value) > limit)[1][:, :keep])
    triangle, frame, _ = schur(inner, output="real", sort=lambda real, imaginary: np.hypot(real, imaginary) > limit)
    if keep < len(inner) and triangle[keep, keep - 1]:
        keep += 1 if keep + 1 < len(inner) else -1
    return np.asarray(frame[:, :keep])


def drawn_size(count: int, size: int, random: np.random.Generator) -> int:
    """Draw the number of vectors that a restart keeps, from count + 1 to size - 1."""
    return int(random.integers(min(count + 1, size - 1), size)) if size > 1 else 1


def krylov_schur(
    operator: SquareOperator,
    count: int,
    subspace: int | None = None,
    tolerance: float = 1e-8,
    restarts: int = 1000,
    symmetric: bool = False,
    seed: int = 0,
) -> Eigenpairs:
    """Compute the `count` eigenpairs of largest magnitude by Krylov-Schur in a subspace of at most `subspace` vectors.

    When all wanted residuals are within `tolerance` · |λ|, the coupling to the Krylov vector is dropped, and CHECK more
    products begin in a random direction: copies of a repeated eigenvalue, which one start cannot see, show there if
    they are well apart from the rest. Results and errors as `unite_and_conquer`."""
    n = operator.shape[0]
    size = min(subspace or default_subspace(count, n), n)
    dtype, random, counted = checked(operator, count, (size,)), np.random.default_rng(seed), Counted(operator)
    if size < min(count + 2, n):
        raise InputError(f"eigenpairs: subspace {size} for {count} of {n}: at least {min(count + 2, n)} are needed")
    basis, inner = np.zeros((n, size + 1), dtype), np.zeros((size + 1, size), dtype)
    basis[:, 0] = random_direction(basis[:, :0], random)
    done, history = 0, list[float]()
    settled, dropped = 0.0, 0  # smallest wanted magnitude when the coupling was dropped, products until then
    while True:
        extend(counted, basis, inner, done, random)
        values, vectors = ritz_values(inner[:-1], symmetric)
        left = residuals(values[:count], inner[-1] @ vectors[:, :count])
        history.append(float(left.max()))
        smallest, met = abs(values[count - 1]), history[-1] <= tolerance / 2
        stable = met and smallest <= settled * (1 + SAME)
        complete = size == n or (stable and counted.products - dropped >= CHECK)
        if (met and complete) or len(history) >= restarts:
            ritz = values[:count], basis[:, :-1] @ vectors[:, :count], basis @ (inner @ vectors[:, :count])
            pairs = confirmed(counted, ritz, count, history, tolerance)
            if pairs.converged or len(history) >= restarts:
                return pairs
        drop = met and not stable
        frame = leading(inner[:-1], count if drop else drawn_size(count, size, random), symmetric)
        done = restart_from(basis, inner, frame)
        if drop:
            settled, dropped = smallest, counted.products
            inner[done] = 0
            basis[:, done] = random_direction(basis[:, :done], random)


def residuals(values: Matrix, coupling: Matrix) -> Matrix:
    """Compute |bᴴ y| / |λ|, less the rounding of the largest λ (an eigenvalue zero has no relative residual)."""
    left = abs(coupling) - 100 * np.finfo(np.float64).eps * abs(values[:1])
    return np.asarray(np.maximum(left, 0) / np.maximum(abs(values), np.finfo(np.float64).tiny))


def restart_from(basis: Matrix, inner: Matrix, frame: Matrix) -> int:
    """Restart a Krylov decomposition in place from an invariant subspace (m, p) of its projection; return p."""
    size = int(frame.shape[1])
    reduced, coupling = frame.conj().T @ inner[:-1] @ frame, inner[-1] @ frame
    basis[:, :size] = basis[:, :-1] @ frame
    basis[:, size] = basis[:, -1]
    inner[:] = 0
    inner[:size, :size], inner[size, :size] = reduced, coupling
    return size
