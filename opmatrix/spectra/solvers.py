"""Eigenvalues and singular values of anything that multiplies: LAPACK for small matrices, projection methods for large
or implicit ones. Each solver is one row of a table; "auto" takes the one of fewest predicted products."""

import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.spectra.co_methods import unite_processes
from opmatrix.spectra.krylov_schur import default_subspace, krylov_schur
from opmatrix.spectra.unite import Eigenpairs, Matrix, unite_and_conquer

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import LinearOperator

MAX_RESIDUAL = 1e-8
CO_METHODS = 2  # processes of solver "processes"
LAPACK_FLOPS = {True: 4 / 3, False: 10.0}  # of all eigenvalues, in n³ (Golub and Van Loan 2013): symmetric, other
LAPACK_SPEED = 3.0  # flops a second of LAPACK over those of a product with one vector, which reads the matrix
PRODUCTS = {True: 70, False: 50}  # per wanted eigenvalue, medians of benchmarks/spectra.py: symmetric, other
OVER_KRYLOV_SCHUR = {"krylov_schur": {True: 1.0, False: 1.0}, "arpack": {True: 1.4, False: 0.9}}  # likewise


class Shaped(Protocol):
    """A matrix, a sparse matrix, or an object that multiplies as one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The rows and columns of the matrix."""


def as_linear_operator(given: object) -> "LinearOperator":
    """Return a scipy LinearOperator of a matrix, a sparse matrix, or anything with shape and matvec."""
    from scipy.sparse.linalg import aslinearoperator

    try:
        return aslinearoperator(given)
    except TypeError as error:
        raise InputError(f"{type(given).__name__}: not a matrix or LinearOperator ({error})") from None


def as_dense(given: object) -> Matrix:
    """Return the entries; an implicit operator is multiplied by the identity, from its narrower side."""
    if isinstance(given, np.ndarray):
        return given
    if hasattr(given, "toarray"):
        return np.asarray(given.toarray())
    implicit = as_linear_operator(given)
    rows, columns = implicit.shape
    if rows < columns:
        return np.asarray(implicit.H @ np.eye(rows)).conj().T
    return np.asarray(implicit @ np.eye(columns))


def is_symmetric(given: "Matrix | csr_array | LinearOperator") -> bool:
    """True if a stored matrix equals its conjugate transpose; implicit operators are not assumed to."""
    if isinstance(given, np.ndarray):
        return np.array_equal(given, given.conj().T)
    return hasattr(given, "toarray") and abs(given - given.conj().T).sum() == 0


def take_largest(values: Matrix, count: int | None) -> Matrix:
    """Return the first `count` by falling magnitude."""
    return values[np.argsort(-abs(values), kind="stable")][:count]


def lapack(given: object, count: int | None, symmetric: bool, seed: int) -> Matrix:
    """Compute all eigenvalues, then take the wanted ones."""
    return take_largest((np.linalg.eigvalsh if symmetric else np.linalg.eigvals)(as_dense(given)), count)


def arpack(given: object, count: int, symmetric: bool, seed: int) -> Matrix:
    """Implicitly restarted Arnoldi or Lanczos (Lehoucq, Sorensen, Yang 1998)."""
    from scipy.sparse.linalg import ArpackNoConvergence, eigs, eigsh

    implicit, solve = as_linear_operator(given), eigsh if symmetric else eigs
    start = np.random.default_rng(seed).standard_normal(implicit.shape[0])
    try:
        return take_largest(solve(implicit, count, which="LM", v0=start, return_eigenvectors=False), count)
    except ArpackNoConvergence as error:
        values = error.eigenvalues
        residuals = distances(implicit, values, error.eigenvectors)
        raise failed("arpack", f"{len(values)} of {count} eigenvalues", values, residuals) from None


def lobpcg(given: object, count: int, symmetric: bool, seed: int) -> Matrix:
    """Locally optimal block conjugate gradients (Knyazev 2001), at both ends of a symmetric spectrum."""
    from scipy.sparse.linalg import lobpcg as scipy_lobpcg

    if not symmetric:
        raise InputError("eigenvalues: 'lobpcg' needs a symmetric operator; give symmetric=True if it is")
    implicit = as_linear_operator(given)
    start = np.random.default_rng(seed).standard_normal((implicit.shape[0], min(2 * count, implicit.shape[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the residual that it warns of is checked below
        ends = [scipy_lobpcg(implicit, start, tol=MAX_RESIDUAL, maxiter=500, largest=end) for end in (True, False)]
    values, vectors = (np.concatenate(part, axis=-1) for part in zip(*ends, strict=True))
    order = np.argsort(-abs(values), kind="stable")[:count]
    residuals = distances(implicit, values[order], vectors[:, order])
    if residuals.max() > 1e-6 * abs(values[order[0]]):
        raise failed("lobpcg", "500 iterations", values[order], residuals)
    return np.asarray(values[order])


def united(given: Shaped, count: int, symmetric: bool, seed: int) -> Matrix:
    """Run unite and conquer, with subspaces of 2, 3 and 4 times the wanted count."""
    sizes = [min(factor * count + 5, given.shape[0]) for factor in (2, 3, 4)]
    return converged(
        "unite",
        unite_and_conquer(as_linear_operator(given), count, sizes, MAX_RESIDUAL, symmetric=symmetric, seed=seed),
    )


def restarted(given: Shaped, count: int, symmetric: bool, seed: int) -> Matrix:
    """Run Krylov-Schur with its default subspace."""
    operator = as_linear_operator(given)
    return converged(
        "krylov_schur", krylov_schur(operator, count, tolerance=MAX_RESIDUAL, symmetric=symmetric, seed=seed)
    )


def in_processes(given: Shaped, count: int, symmetric: bool, seed: int) -> Matrix:
    """Run CO_METHODS processes that send each other Ritz vectors; warn of each that died."""
    operator, sizes = as_linear_operator(given), [default_subspace(count, given.shape[0])] * CO_METHODS
    pairs = unite_processes(operator, count, sizes, MAX_RESIDUAL, symmetric=symmetric, seed=seed)
    for line in pairs.lost:
        warnings.warn(f"eigenvalues: {line}; the others went on", RuntimeWarning, stacklevel=3)
    return converged("processes", pairs)


def converged(solver: str, pairs: Eigenpairs) -> Matrix:
    """Return the eigenvalues. Raises InputError where the pairs did not converge."""
    if not pairs.converged:
        raise failed(solver, f"{pairs.restarts} restarts, {pairs.products} products", pairs.values, pairs.residuals)
    return pairs.values


def distances(operator: "LinearOperator", values: Matrix, vectors: Matrix) -> NDArray[np.float64]:
    """Compute ‖A u - λ u‖ of pairs."""
    return np.asarray(np.linalg.norm(operator @ vectors - vectors * values, axis=0))


def failed(solver: str, effort: str, values: Matrix, residuals: NDArray[np.float64]) -> InputError:
    """Return the error of a solver that did not converge: the eigenvalues so far, each with its residual."""
    pairs = ", ".join(f"{value:.6g} ± {left:.1e}" for value, left in zip(values, residuals, strict=True))
    return InputError(
        f"eigenvalues: solver {solver!r} did not converge after {effort}; eigenvalues ± residuals so far: "
        f"{pairs or 'none'}; request fewer or take another solver"
    )


EIGEN: dict[str, Callable[..., Matrix]] = {
    "lapack": lapack,
    "krylov_schur": restarted,
    "arpack": arpack,
    "lobpcg": lobpcg,
    "unite": united,
    "processes": in_processes,
}


def predicted_products(given: Shaped, count: int, symmetric: bool) -> dict[str, float]:
    """Predict the cost of each solver that "auto" may take, in products with one vector. LAPACK's is that of its flops
    at its speed, and for an implicit operator the products that form the matrix."""
    small, wide = min(given.shape), max(given.shape)
    entries = float(getattr(given, "nnz", small * wide))
    formed = 0 if hasattr(given, "toarray") or isinstance(given, np.ndarray) else small
    dense = LAPACK_FLOPS[symmetric] * small**2 * wide / (2 * max(entries, wide)) / LAPACK_SPEED
    projected = {name: count * PRODUCTS[symmetric] * over[symmetric] for name, over in OVER_KRYLOV_SCHUR.items()}
    return {"lapack": formed + dense, **projected}


def choose_solver(
    solver: str, table: Collection[str], given: Shaped, count: int | None, room: int, symmetric: bool
) -> str:
    """Return the solver that is meant: "auto" is the one of fewest predicted products, and LAPACK where over a quarter
    of the spectrum is wanted. Raises InputError for an unknown solver and a count that does not fit."""
    if len(given.shape) != 2:
        raise InputError(f"spectra: a matrix is needed, this has shape {tuple(given.shape)}")
    small = min(given.shape)
    if count is not None and not 1 <= count <= small:
        raise InputError(f"spectra: count {count} of a matrix {tuple(given.shape)} is not between 1 and {small}")
    if solver == "auto":
        if count is None or count > min(small // 4, room):
            return "lapack"
        predicted = predicted_products(given, count, symmetric)
        return min(predicted, key=lambda name: predicted[name])
    if solver not in table:
        raise InputError(f"spectra: no solver {solver!r}; there are auto, {', '.join(table)}")
    if solver != "lapack" and (count is None or count > room):
        raise InputError(
            f"spectra: solver {solver!r} finds at most {room} of {small} here, {count or 'all'} were "
            f"requested; give a smaller count or take 'lapack'"
        )
    return solver


def eigenvalues(
    matrix: Shaped, count: int | None = None, solver: str = "auto", symmetric: bool | None = None, seed: int = 0
) -> Matrix:
    """Compute the `count` eigenvalues of largest magnitude (all without one) of a square matrix, sparse matrix or
    LinearOperator, falling. `solver`: auto, lapack, krylov_schur, arpack, lobpcg (symmetric only), unite, processes
    (two, forked). `symmetric` of a stored matrix is looked up; for an implicit one it must be given. Raises InputError
    for arguments that do not fit, and for a solver that does not converge, with what it found."""
    if matrix.shape[0] != matrix.shape[-1]:
        raise InputError(f"eigenvalues: the matrix is {matrix.shape}, not square")
    symmetric = is_symmetric(matrix) if symmetric is None else symmetric
    chosen = choose_solver(solver, EIGEN, matrix, count, max(matrix.shape[0] - 2, 0), symmetric)
    return EIGEN[chosen](matrix, count, symmetric, seed)


def normal(given: object) -> "LinearOperator":
    """Return AᴴA or AAᴴ, whichever is smaller, as an operator: its eigenvalues are the squared singular values."""
    a = as_linear_operator(given)
    return a.H @ a if a.shape[0] >= a.shape[1] else a @ a.H


def randomised(given: object, count: int, seed: int) -> NDArray[np.float64]:
    """Return the values of `randomised_svd`."""
    return randomised_svd(given, count, seed=seed)[1]


def randomised_svd(
    matrix: object, count: int, oversampling: int = 10, powers: int = 4, seed: int = 0
) -> tuple[Matrix, NDArray[np.float64], Matrix]:
    """Compute U (n, count), σ (count,), Vᴴ (count, p) from a random sketch with `powers` subspace iterations (Halko,
    Martinsson, Tropp 2011, algorithms 4.4, 5.1). Not exact: the error shrinks as the decay of σ to 2 `powers` + 1."""
    a = as_linear_operator(matrix)
    width = min(count + oversampling, *a.shape)
    frame = np.linalg.qr(a @ np.random.default_rng(seed).standard_normal((a.shape[1], width)))[0]
    for _ in range(powers):
        frame = np.linalg.qr(a @ np.linalg.qr(a.H @ frame)[0])[0]
    left, values, right = np.linalg.svd(np.asarray(a.H @ frame).conj().T, full_matrices=False)
    return frame @ left[:, :count], values[:count], right[:count]


def squared(solver: str) -> Callable[..., NDArray[np.float64]]:
    """Return a solver of singular values by an eigensolver on the normal operator: values below 1e-8 of the largest are
    rounding."""
    return lambda given, count, seed: np.sqrt(np.maximum(EIGEN[solver](normal(given), count, True, seed).real, 0))


SINGULAR: dict[str, Callable[..., NDArray[np.float64]]] = {
    "lapack": lambda given, count, seed: np.linalg.svd(as_dense(given), compute_uv=False)[:count],
    **{name: squared(name) for name in EIGEN if name != "lapack"},
    "random": randomised,
}


def singular_values(
    matrix: Shaped, count: int | None = None, solver: str = "auto", seed: int = 0
) -> NDArray[np.float64]:
    """Compute the `count` largest singular values (all without one) of a matrix, sparse matrix or LinearOperator,
    falling. `solver`: auto, lapack, krylov_schur, arpack, lobpcg, unite, processes, random (a sketch: near, not
    exact). Raises InputError as `eigenvalues`."""
    chosen = choose_solver(solver, SINGULAR, matrix, count, max(min(matrix.shape) - 2, 0), True)
    return SINGULAR[chosen](matrix, count, seed)
