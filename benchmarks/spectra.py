"""Products of Krylov-Schur beside scipy's ARPACK and primme, and of processes that send each other Ritz vectors.

    python benchmarks/spectra.py [--count 4] [--subspaces 20,8] [--seeds 2] [--matrices grid,path,..] [--no-wall]

A row is the median over the seeds. "right" counts the seeds that came to the eigenvalues that LAPACK finds, within 1e-6
of the largest; a run that did not converge counts with all its products. For "two processes" the products are those of
the busier one: what is waited for where they run side by side. All solvers stop at residuals of 1e-8 of the eigenvalue.
The last table is in wall time, on a product that computes: a Gaussian kernel that is never formed."""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, named, say, spread, tabled, takes

import numpy as np

from formats.core.errors import InputError
from opmatrix.spectra import krylov_schur, unite_processes

COLUMNS = "matrix", "subspace", "solver", "products", "right", "spread"
TOLERANCE = 1e-8
MOST = 8_000  # products of a peer
N = 400


def line(n: int) -> Any:
    """The Laplacian of a path."""
    from scipy.sparse import diags_array

    return diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr")


def grid() -> Any:
    """The Laplacian of a grid of 60 by 53."""
    from scipy.sparse import eye_array, kron

    return (kron(line(60), eye_array(53)) + kron(eye_array(60), line(53))).tocsr()


def frame(n: int) -> Any:
    """A random orthogonal matrix."""
    return np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]


def covariance() -> Any:
    """Eigenvalues i^-0.5 in a random frame, as of activations."""
    return frame(N) * (1 + np.arange(N)) ** -0.5 @ frame(N).T


def clustered() -> Any:
    """Six eigenvalues a thousandth apart, the others at most .97 of them at both ends."""
    values = np.concatenate([1 + 1e-3 * np.arange(6), np.linspace(-0.97, 0.97, N - 6)])
    return frame(N) * values @ frame(N).T


def convection() -> Any:
    """Convection and diffusion on a 20 by 20 grid: not normal, pairs of equal eigenvalues."""
    one = 2 * np.eye(20) - 1.3 * np.eye(20, k=1) - 0.7 * np.eye(20, k=-1)
    return np.kron(np.eye(20), one) + np.kron(one, np.eye(20))


def circular() -> Any:
    """Independent normal numbers: complex eigenvalues of nearly equal magnitude."""
    return np.random.default_rng(0).standard_normal((N, N))


def attention() -> Any:
    """The weights of an attention head of 32 dimensions over 400 rows: not normal."""
    random = np.random.default_rng(0)
    scores = random.standard_normal((N, 32)) @ random.standard_normal((32, N)) / np.sqrt(32)
    weights = np.exp(scores)
    return weights / weights.sum(1, keepdims=True)


MATRICES: dict[str, tuple[Callable[[], Any], bool]] = {
    "grid": (grid, True),
    "path": (partial(line, N), True),
    "covariance": (covariance, True),
    "clustered": (clustered, True),
    "convection": (convection, False),
    "random": (circular, False),
    "attention": (attention, False),
}


class Counted:
    """A matrix that counts its products."""

    def __init__(self, matrix: Any) -> None:
        self.matrix, self.shape, self.dtype, self.products = matrix, matrix.shape, matrix.dtype, 0

    def __matmul__(self, x: Any) -> Any:
        self.products += 1 if x.ndim == 1 else x.shape[1]
        return self.matrix @ x


def largest(matrix: Any, symmetric: bool, number: int) -> Any:
    """The magnitudes of the largest eigenvalues by LAPACK, falling."""
    dense = matrix.toarray() if hasattr(matrix, "toarray") else matrix
    return np.sort(abs((np.linalg.eigvalsh if symmetric else np.linalg.eigvals)(dense)))[::-1][:number]


def arpack(matrix: Any, number: int, size: int, symmetric: bool, seed: int) -> tuple[int, Any]:
    """Products of scipy's ARPACK, and its eigenvalues."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

    counted = Counted(matrix)
    operator = LinearOperator(matrix.shape, counted.__matmul__, dtype=float)
    start = np.random.default_rng(seed).standard_normal(matrix.shape[0])
    solve = eigsh if symmetric else eigs
    try:
        values = solve(
            operator, number, ncv=size, v0=start, tol=TOLERANCE, maxiter=MOST // size, return_eigenvectors=False
        )
    except ArpackNoConvergence as error:
        values = error.eigenvalues
    return counted.products, values


def primme(matrix: Any, number: int, size: int, symmetric: bool, seed: int) -> tuple[int, Any] | None:
    """Products of primme, and its eigenvalues; None where it is not installed or does not serve."""
    try:
        from primme import eigsh
    except ImportError:
        return None
    if not symmetric:
        return None
    from scipy.sparse.linalg import LinearOperator

    counted = Counted(matrix)
    operator = LinearOperator(matrix.shape, counted.__matmul__, matmat=counted.__matmul__, dtype=float)
    start = np.random.default_rng(seed).standard_normal((matrix.shape[0], 1))
    values = eigsh(operator, number, which="LM", ncv=size, v0=start, tol=TOLERANCE, return_eigenvectors=False)
    return counted.products, values


def restarted(matrix: Any, number: int, size: int, symmetric: bool, seed: int) -> tuple[int, Any]:
    """Products of Krylov-Schur, and its eigenvalues."""
    pairs = krylov_schur(matrix, number, size, TOLERANCE, symmetric=symmetric, seed=seed)
    return pairs.products, pairs.values


def two(matrix: Any, number: int, size: int, symmetric: bool, seed: int) -> tuple[int, Any]:
    """Products of the busier of two processes, and their eigenvalues."""
    pairs = unite_processes(matrix, number, (size, size), TOLERANCE, symmetric=symmetric, seed=seed)
    return max(pairs.shares) + number, pairs.values


SOLVERS: dict[str, Callable[..., tuple[int, Any] | None]] = {
    "krylov_schur": restarted,
    "arpack": arpack,
    "primme": primme,
    "two processes": two,
}


def right(values: Any, wanted: Any) -> bool:
    """True if all eigenvalues are those that LAPACK finds."""
    sizes = np.sort(abs(values))[::-1]
    return len(sizes) == len(wanted) and bool(np.allclose(sizes, wanted, rtol=0, atol=1e-6 * wanted[0]))


def measured(given: argparse.Namespace) -> Iterator[tuple[str, int, str, float, int, float | None]]:
    """A row of each matrix, subspace and solver that is there."""
    for name in given.matrices:
        make, symmetric = MATRICES[name]
        matrix = make()
        wanted = largest(matrix, symmetric, given.count)
        for size in given.subspaces:
            for solver, solve in SOLVERS.items():
                runs = [solve(matrix, given.count, size, symmetric, seed) for seed in range(given.seeds)]
                there = [each for each in runs if each is not None]
                if there:
                    products = [each[0] for each in there]
                    correct = sum(right(each[1], wanted) for each in there)
                    yield name, size, solver, median(products), correct, spread(products)
        say(name)


# ---- wall time


class Kernel:
    """The Gaussian kernel of n points on a line, narrow, computed anew for each product by entrywise operations."""

    def __init__(self, n: int) -> None:
        self.points = np.arange(n) * 1.0
        self.shape, self.dtype = (n, n), np.dtype(float)

    def __matmul__(self, x: Any) -> Any:
        apart = self.points[:, None] - self.points
        return np.exp(-0.5 * (apart / 3) ** 2) @ x


class Weight:
    """BᵀB of a dense B: two products that read memory."""

    def __init__(self, n: int) -> None:
        self.factor = np.random.default_rng(0).standard_normal((n, n)) / np.sqrt(n)
        self.shape, self.dtype = (n, n), np.dtype(float)

    def __matmul__(self, x: Any) -> Any:
        return self.factor.T @ (self.factor @ x)


def seconds(work: Callable[[], object]) -> float:
    """Seconds of wall time of a call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def walls(given: argparse.Namespace) -> Iterator[Figure]:
    """Two processes of one thread over the better of one process of one and of two threads, each the best of the
    seeds, in turn."""
    from threadpoolctl import threadpool_limits

    for name, operator in {"kernel": Kernel(1000), "dense": Weight(1500)}.items():
        taken: dict[str, list[float]] = {"one thread": [], "two threads": [], "two processes": []}
        for seed in range(given.seeds):
            alone = partial(krylov_schur, operator, given.count, 20, symmetric=True, seed=seed)
            with threadpool_limits(1):
                taken["one thread"].append(seconds(alone))
                taken["two processes"].append(
                    seconds(partial(unite_processes, operator, given.count, (20, 20), symmetric=True, seed=seed))
                )
            with threadpool_limits(2):
                taken["two threads"].append(seconds(alone))
        best = {way: min(times) for way, times in taken.items()}
        print(f"{name:<12}" + "".join(f"{way}: {value:.3f} s   " for way, value in best.items()), flush=True)
        share = best["two processes"] / min(best["one thread"], best["two threads"])
        yield Figure(f"{name}: seconds of two processes over the better of one", share, "x", most=0.8)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=4)
    parser.add_argument(
        "--subspaces", type=lambda text: tuple(int(count(word)) for word in listed(text)), default=(20, 8)
    )
    parser.add_argument("--seeds", type=count, default=2)
    parser.add_argument("--matrices", type=listed, default=[*MATRICES])
    parser.add_argument("--no-wall", action="store_true", help="count products only")
    given = parser.parse_args()
    named("matrices", given.matrices, MATRICES)
    if given.count + 2 > min(given.subspaces):
        raise InputError(f"--subspaces {min(given.subspaces)}: more than --count {given.count} + 1")
    takes(20 * given.seeds)
    rows = []
    print(f"{'':<14}{'subspace':>8}  {'solver':<16}{'products':>10}{'right':>8}")
    for row in measured(given):
        rows.append(row)
        print(f"{row[0]:<14}{row[1]:>8}  {row[2]:<16}{row[3]:>10g}{row[4]:>6}/{given.seeds}", flush=True)
    tabled(given.csv, [COLUMNS, *rows])
    ratios = [*figures(rows, given.seeds)]
    concluded(given, ratios if given.no_wall else [*ratios, *walls(given)])


def figures(rows: list[tuple[str, int, str, float, int, float | None]], seeds: int) -> Iterator[Figure]:
    """Products of Krylov-Schur over ARPACK's, by matrix and subspace, where Krylov-Schur is right for every seed."""
    by_place = {row[:3]: row for row in rows}
    for name, size in dict.fromkeys(row[:2] for row in rows):
        mine, peer = by_place[name, size, "krylov_schur"], by_place[name, size, "arpack"]
        bars = {20: 1.0, 8: 0.7} if name == "grid" else {}
        yield Figure(
            f"{name}, subspace {size}: products of Krylov-Schur over ARPACK's ({peer[4]}/{seeds} right)",
            mine[3] / peer[3] if mine[4] == seeds else None,
            "x",
            mine[5],
            most=bars.get(size),
            why="not every seed found the eigenvalues",
        )


if __name__ == "__main__":
    command.run(main)
