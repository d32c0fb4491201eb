"""Unite and conquer: restarted Arnoldi processes of different subspace sizes share what they learn at every restart.

Emad and Petiton (2016), *Unite and conquer approach for high scale numerical computing*, after the multiple explicitly
restarted Arnoldi method (Emad, Petiton, Edjlali 2005). The processes need each other only at a restart, so they can run
on separate machines. In MERAM each eigenvalue's best Ritz vector is picked and passed on; here one Rayleigh-Ritz step
takes the best that all their subspaces and the last restart's vectors hold together. It needs no product with A, since
an Arnoldi basis carries its image: A V_m = V_{m+1} H. Each process then starts from another random combination of the
wanted vectors that have not converged, so that the subspaces differ in direction as well as in size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError

Matrix = NDArray[Any]  # real or complex
DType = np.dtype[Any]
SPARE = 2  # Ritz pairs carried beyond those wanted


class SquareOperator(Protocol):
    """A matrix, or an object with its shape and type of numbers that multiplies as one."""

    def __matmul__(self, x: Matrix, /) -> Matrix: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The rows and columns of the matrix, which are equal."""

    @property
    def dtype(self) -> DType:
        """The number type of the matrix."""


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Eigenvalues of largest magnitude first (k,), vectors (n, k), ‖A u - λ u‖ (k,), and their cost: restarts, products
    with A, and the worst relative residual at each restart."""

    values: Matrix
    vectors: Matrix
    residuals: NDArray[np.float64]
    restarts: int
    products: int
    history: tuple[float, ...]
    converged: bool
    shares: tuple[int, ...] = ()  # products of each process
    lost: tuple[str, ...] = ()  # a line for each process that died

    def __repr__(self) -> str:
        state = "converged" if self.converged else "not converged"
        worst = self.history[-1] if self.history else 0.0
        return (
            f"{len(self.values)} eigenpairs, {state}: worst relative residual {worst:.1e} after {self.restarts} "
            f"restarts, {self.products} products\n" + "  ".join(f"{value:.6g}" for value in self.values)
        ) + "".join(f"\n{line}" for line in self.lost)


@dataclass
class Counted:
    """An operator that counts its products."""

    operator: SquareOperator
    products: int = 0

    def __matmul__(self, x: Matrix) -> Matrix:
        self.products += 1 if x.ndim == 1 else x.shape[1]
        image = np.asarray(self.operator @ x)
        if not np.isfinite(image).all():
            raise InputError(f"eigenpairs: product {self.products} with the operator is not finite")
        return image


def arnoldi(operator: Counted, start: Matrix, size: int) -> tuple[Matrix, Matrix]:
    """Compute V (n, m+1) orthonormal and H (m+1, m) with A V_m = V_{m+1} H; fewer columns where the subspace is already
    invariant. Classical Gram-Schmidt twice (Saad 2011, algorithm 6.2, reorthogonalised)."""
    basis = np.zeros((len(start), size + 1), start.dtype)
    inner = np.zeros((size + 1, size), start.dtype)
    basis[:, 0] = start / np.linalg.norm(start)
    for j in range(size):
        known, image = basis[:, : j + 1], operator @ basis[:, j]
        for _ in range(2):
            along = known.conj().T @ image
            image = image - known @ along
            inner[: j + 1, j] += along
        inner[j + 1, j] = left = np.linalg.norm(image)
        if left <= 1e-13 * np.linalg.norm(inner[: j + 1, j]):
            return basis[:, : j + 2], inner[: j + 2, : j + 1]
        basis[:, j + 1] = image / left
    return basis, inner


def project(inner: Matrix, count: int, symmetric: bool) -> tuple[Matrix, Matrix]:
    """Compute the `count` eigenpairs of a small projected matrix that are largest in magnitude."""
    values, vectors = np.linalg.eigh((inner + inner.conj().T) / 2) if symmetric else np.linalg.eig(inner)
    order = np.argsort(-abs(values), kind="stable")[:count]
    return values[order], vectors[:, order]


def spanning(vectors: Matrix, dtype: DType) -> Matrix:
    """Return vectors of the given type with the same span: conjugate pairs of a real operator become their two real
    parts."""
    if np.iscomplexobj(vectors) and not np.issubdtype(dtype, np.complexfloating):
        return np.concatenate([vectors.real, vectors.imag], axis=1)
    return vectors


def rayleigh_ritz(basis: Matrix, image: Matrix, count: int, symmetric: bool) -> tuple[Matrix, Matrix, Matrix]:
    """Compute eigenvalues, vectors U and images A U of A projected on the span of a basis whose image A B is known.
    Directions that the basis holds only to a part in 1e6 are left out: they would carry rounding, not information."""
    size = np.linalg.norm(basis, axis=0)
    basis, image = basis[:, size > 0] / size[size > 0], image[:, size > 0] / size[size > 0]
    _, strength, turn = np.linalg.svd(basis, full_matrices=False)
    strong = strength > 1e-6 * strength[0]
    change = turn[strong].conj().T / strength[strong]
    frame, moved = basis @ change, image @ change
    values, inner = project(frame.conj().T @ moved, count, symmetric)
    return values, frame @ inner, moved @ inner


def relative(values: Matrix, vectors: Matrix, images: Matrix) -> NDArray[np.float64]:
    """Compute ‖A u - λ u‖ / |λ|, less the rounding of the largest λ (an eigenvalue zero has no relative residual)."""
    rounding = 100 * np.finfo(np.float64).eps * abs(values[:1])
    left = np.linalg.norm(images - vectors * values, axis=0) - rounding
    return np.asarray(np.maximum(left, 0) / np.maximum(abs(values), np.finfo(np.float64).tiny))


def checked(operator: SquareOperator, count: int, subspaces: Sequence[int]) -> DType:
    """Return the type of the numbers to work in. Raises InputError where the sizes do not fit."""
    n = operator.shape[0]
    if tuple(operator.shape) != (n, n):
        raise InputError(f"eigenpairs: the operator has shape {tuple(operator.shape)}; it must be square")
    if not 0 < count <= min(n, *subspaces):
        raise InputError(
            f"eigenpairs: {count} of an operator of size {n} with subspaces {tuple(subspaces)}: the count "
            f"must be at least 1 and at most the size and the smallest subspace"
        )
    return np.result_type(operator.dtype, np.float64)


def unite_and_conquer(
    operator: SquareOperator,
    count: int,
    subspaces: Sequence[int] = (10, 15, 20),
    tolerance: float = 1e-8,
    restarts: int = 300,
    symmetric: bool = False,
    seed: int = 0,
) -> Eigenpairs:
    """Compute the `count` eigenpairs of largest magnitude of a square operator (anything with shape, dtype and `@`).

    Each restart builds one Krylov subspace of each size, unites them with the last restart's vectors, and stops when
    every wanted residual is at most `tolerance` · |λ|, confirmed with fresh products. `symmetric` promises A = Aᴴ.
    Deterministic for a seed; the result tells where it did not converge. Raises InputError for sizes that do not
    fit."""
    dtype, random, counted = checked(operator, count, subspaces), np.random.default_rng(seed), Counted(operator)
    n, wanted = operator.shape[0], min(count + SPARE, operator.shape[0])
    starts = [random.standard_normal(n).astype(dtype) for _ in subspaces]
    pool: list[tuple[Matrix, Matrix]] = []
    history: list[float] = []
    while True:
        built = [arnoldi(counted, start, min(size, n)) for start, size in zip(starts, subspaces, strict=True)]
        known = pool + [(basis[:, :-1], basis @ inner) for basis, inner in built]
        basis, image = (np.hstack(part) for part in zip(*known, strict=True))
        ritz = rayleigh_ritz(basis, image, wanted, symmetric)
        left = relative(*ritz)[:count]
        history.append(float(left.max()))
        if history[-1] <= tolerance or len(history) == restarts:
            pairs = confirmed(counted, ritz, count, history, tolerance)
            if pairs.converged or len(history) == restarts:
                return pairs
        pool = [(spanning(ritz[1], dtype), spanning(ritz[2], dtype))]
        unfinished = ritz[1][:, :count][:, left > tolerance]
        starts = [
            restart(unfinished, len(inner[0]) < min(size, n), random, dtype)
            for (_, inner), size in zip(built, subspaces, strict=True)
        ]


def restart(vectors: Matrix, invariant: bool, random: np.random.Generator, dtype: DType) -> Matrix:
    """Return a random combination of the vectors; a random vector where there are none, or where the last subspace was
    invariant and so has nothing more to tell. Of complex vectors of a real operator, a real one in the span of the
    pairs."""
    if invariant or not vectors.shape[1]:
        return random.standard_normal(len(vectors)).astype(dtype)
    real = spanning(vectors, dtype)
    return np.asarray(real @ random.standard_normal(real.shape[1])).astype(dtype)


def restarted_arnoldi(
    operator: SquareOperator,
    count: int,
    subspace: int = 20,
    tolerance: float = 1e-8,
    restarts: int = 300,
    symmetric: bool = False,
    seed: int = 0,
) -> Eigenpairs:
    """Run one explicitly restarted Arnoldi process, ERAM (Saad 2011, section 6.4): the baseline of uniting. It restarts
    from the sum of the wanted Ritz vectors, each weighted by its residual. Results as `unite_and_conquer`."""
    dtype, counted = checked(operator, count, (subspace,)), Counted(operator)
    n, random = operator.shape[0], np.random.default_rng(seed)
    start = random.standard_normal(n).astype(dtype)
    history: list[float] = []
    while True:
        basis, inner = arnoldi(counted, start, min(subspace, n))
        values, inside = project(inner[:-1], count, symmetric)
        ritz = values, basis[:, :-1] @ inside, basis @ (inner @ inside)
        left = relative(*ritz)
        history.append(float(left.max()))
        if history[-1] <= tolerance or len(history) == restarts:
            pairs = confirmed(counted, ritz, count, history, tolerance)
            if pairs.converged or len(history) == restarts:
                return pairs
        start = (spanning(ritz[1] * left, dtype).sum(1) if left.any() else random.standard_normal(n)).astype(dtype)


def confirmed(
    counted: Counted, found: tuple[Matrix, Matrix, Matrix], count: int, history: list[float], tolerance: float
) -> Eigenpairs:
    """Return the pairs with residuals from fresh products; converged where those are within twice the tolerance."""
    values, vectors = found[0][:count], found[1][:, :count]
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    images = counted @ vectors
    residuals = np.linalg.norm(images - vectors * values, axis=0)
    converged = len(values) == count and bool((relative(values, vectors, images) <= 2 * tolerance).all())
    return Eigenpairs(values, vectors, residuals, len(history), counted.products, tuple(history), converged)
