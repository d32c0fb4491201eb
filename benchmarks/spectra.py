"""Eigensolvers, and low rank and pruning of weights."""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median
from typing import Any
from unittest.mock import patch

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, named, say, spread, tabled, takes

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from opmatrix.spectra import krylov_schur, unite_processes
from opmatrix.spectra.gram import Gram, metric, prune_scores, strengths
from opmatrix.spectra.measures import RealArray, check_matrix
from opmatrix.spectra.removal import inverse
from opmatrix.spectra.two_sided import damped, two_sided_values
from rewrites.approximate import predicted_errors, proposals
from rewrites.approximate.proposals import Choices
from rewrites.approximate.sites import WeightSite, observe, sites, stored_for
from rewrites.approximate.weight_errors import measure_changes
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method
from rewrites.opened import Opened, Searched, search_exact
from rewrites.search import fit
from rewrites.search.fit import Fitter
from rewrites.verify.differences import difference
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload

# ---- spectra

SPECTRA_COLUMNS = "matrix", "subspace", "solver", "products", "right", "spread"
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


def measure_spectra() -> None:
    """Count products of Krylov-Schur beside scipy's ARPACK and primme, and of processes that send each other Ritz
    vectors.

        python benchmarks/spectra.py [--count 4] [--subspaces 20,8] [--seeds 2] [--matrices grid,path,..]
                [--no-wall]

    A row is the median over the seeds. "right" counts the seeds that came to the eigenvalues that LAPACK finds,
    within 1e-6 of the largest; a run that did not converge counts with all its products. For "two processes" the
    products are those of the busier one: what is waited for where they run side by side. All solvers stop at
    residuals of 1e-8 of the eigenvalue. The last table is in wall time, on a product that computes: a Gaussian
    kernel that is never formed."""
    parser = Parser(measure_spectra)
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
    tabled(given.csv, [SPECTRA_COLUMNS, *rows])
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


# ---- sparsity

COMPARED = 128  # inputs whose entries are compared, where the rest is
# corrected
Groups = tuple[int, int]  # n of every m inputs of an output stay
SHARES = 0.5, 0.25  # of the rank at which factors take as much as dense
PRUNED = (
    Method("csr", (("density", 0.5),), "wanda"),
    Method("csr", (("density", 0.25),), "wanda"),
    Method("nm", (("n", 2), ("m", 4)), "wanda"),
    Method("block", (("density", 0.5),), "wanda"),
)
INPUTS, SCORES, BOTH = "inputs", "scores of both", "both sides"
SPARSITY_COLUMNS = "method", "way", "weights", "median_error", "median_ratio", "least_ratio", "largest_ratio", "better"
OUTLIER, OWL_SPREAD = 5.0, 0.08  # times the mean score (Yin et al. 2023, arXiv:2310.05175): M, and λ
ALPHA_SPREAD = 0.3  # of the mean, to both sides (Lu et al. 2024, arXiv:2410.10912)


def measure_sparsity() -> None:
    """Compare low rank and pruning in the metric of both sides with that of inputs alone: the change of the model's
    output by each, one weight at a time, on rows that nothing was fitted to; and ranks allocated over all weights
    at equal bytes.

        python benchmarks/spectra.py sparsity [--model minilm] [--every 4] [--bytes 0.8,0.6] [--seed 1986]
                [--csv OUT]

    Beside it `sparsify`, for benchmarks/errors.py quality: leaving out single entries of a weight, input after
    input, what is left corrected for it, optimal brain surgeon with one inverse for all outputs (SparseGPT: Frantar
    and Alistarh 2023, arXiv:2301.00774, algorithm 1).

    The metric decides what it is, as in opmatrix/spectra/removal.py: with the whole Gram of the inputs the rest is
    corrected; with its diagonal nothing can be, and entries go by Wanda's scores (Sun et al. 2023); without one, by
    magnitude."""
    parser = Parser(measure_sparsity)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--every", type=count, default=1, help="one of so many weights is tried alone")
    parser.add_argument("--bytes", type=lambda text: [float(word) for word in listed(text)], default=[0.8, 0.6])
    parser.add_argument("--seed", type=count, default=predicted_errors.SEED, help="of the directions")
    given = parser.parse_args()
    takes(20 + 90 / given.every + 15 * len(given.bytes))
    checkpoint = open_model(given.model)
    with silence_stdout(), patch.object(predicted_errors, "SEED", given.seed):
        opened = Opened(
            checkpoint.operator(True), Workload.of(checkpoint), this_machine(), EXACT_LAWS, source(checkpoint)
        )
        weights = Weights.of(search_exact(opened))
        rows = [*compared(weights, given.every)]
        allocated = [*allocations(weights, given.bytes)]
    print(
        table(
            [
                [
                    *row[:2],
                    str(row[2]),
                    f"{100 * row[3]:.3g} %",
                    f"{row[4]:.3f}",
                    f"{row[5]:.2f} to {row[6]:.2f}",
                    f"{row[7]:.2f}",
                ]
                for row in rows
            ],
            ["method", "fitted to", "weights", "error, median", "over inputs alone", "range", "better"],
        )
    )
    print(
        table(
            [[name, *(f"{100 * error:.3g} %" for error in errors)] for name, *errors in allocated],
            ["ranks of all weights by", *(f"error at {share:g} of the bytes" for share in given.bytes)],
        )
    )
    tabled(given.csv, [SPARSITY_COLUMNS, *rows, *allocated])
    concluded(
        given,
        [
            Figure(f"{row[0]}: error by {row[1]} over inputs alone, median", row[4], most=1.0)
            for row in rows
            if row[1] == BOTH
        ]
        + [
            Figure(
                f"error of ranks by error spectra over the best of the others, {share:g} of the bytes",
                allocated[-1][at] / min(row[at] for row in allocated[:-1]),
                most=1.0,
            )
            for at, share in enumerate(given.bytes, 1)
        ],
    )


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of products of an exact program, in order, with the fitters to inputs alone and to both sides."""

    searched: Searched
    sites: Sequence[WeightSite]
    inputs: Fitter
    both: Fitter

    @cached_property
    def sizes(self) -> NDArray[np.intp]:
        """Inputs and outputs of each."""
        return np.array([site.numbers().shape for site in self.sites])

    @classmethod
    def of(cls, searched: Searched) -> "Weights":
        """All matrices of a program whose cotangents are known."""
        exact, fitted = searched.exact, searched.workload.fit
        every = [site for site in sites(exact, searched.optimum, searched.emitter) if site.x and not site.heads]
        choices = Choices(
            searched.space,
            {},
            fitted,
            searched.opened.representable,
            weigh=partial(proposals.weigh_products, searched.optimum, exact, every, fitted),
        )
        cotangents = choices.cotangents_of(searched.optimum)
        known = sorted((site for site in every if site.key in cotangents), key=lambda site: site.readers(exact)[0])
        rows = observe(exact, [site.x for site in known if site.x], fitted)
        seen = {site.key: rows[site.x] for site in known if site.x}
        return cls(searched, known, Fitter(seen), Fitter(seen, cotangents=cotangents))


def compared(weights: Weights, every: int) -> Iterator[tuple]:
    """A row for each method and way of fitting."""
    exact, batch = weights.searched.exact, weights.searched.workload.verify
    wanted, values = exact.run(batch), list[NDArray[np.float32] | None]()
    errors: dict[tuple[str, str], list[float]] = {}
    for done, site in enumerate(some := weights.sites[::every]):
        for _ in exact.schedule.walk(batch, values, site.readers(exact)[0]):
            pass
        tried = [*ways(weights, site)]
        for (name, way, _), error in zip(
            tried, measure_changes(exact, site, batch, wanted, values, [make for *_, make in tried]), strict=True
        ):
            errors.setdefault((name, way), []).append(error)
        weights.both.directions.clear()
        weights.inputs.directions.clear()
        say(f"{site.name}, {done + 1} of {len(some)}")
    for (name, way), found in errors.items():
        ratios = np.divide(found, errors[name, INPUTS])
        figures = median(found), float(np.median(ratios)), float(ratios.min()), float(ratios.max())
        yield name, way, len(found), *figures, float(np.mean(ratios < 1))


def ways(weights: Weights, site: WeightSite) -> Iterator[tuple[str, str, Callable]]:
    """Method, way, and what makes the weight by it."""
    numbers = site.numbers()
    even = numbers.size / sum(numbers.shape)
    for share in SHARES:
        for name in ("lowrank", "lowrankint8"):
            method = Method(name, (("rank", max(8, int(share * even) // 8 * 8)),), "whitened")
            for way, fitter in ((INPUTS, weights.inputs), (BOTH, weights.both)):
                yield f"{name}, {share:g} of the even rank", way, partial(stored_for, site, numbers, fitter, method)
    for method in PRUNED:
        for way, fitter, work in (
            (INPUTS, weights.inputs, 0),
            (SCORES, weights.both, 0),
            (BOTH, weights.both, fit.REFIT_WORK),
        ):
            yield str(method), way, partial(refit_within, work, site, numbers, fitter, method)


def refit_within(work: float, *given):
    """The weight as stored, with so much work for a refit."""
    with patch.object(fit, "REFIT_WORK", work):
        return stored_for(*given)


# ---- ranks of all weights


def allocations(weights: Weights, shares: Sequence[float]) -> Iterator[tuple]:
    """The name of a rule, and the error of the whole program at each share of the bytes of all these weights. Factors
    are those of both sides throughout."""
    spectra = {INPUTS: [], BOTH: []}
    scores, alphas = [], []
    for site in weights.sites:
        W, gram, s = site.numbers(), weights.inputs.seen[site.key].gram, weights.both.cotangents[site.key]
        one = strengths(W, np.asarray(gram))
        spectra[INPUTS].append(np.square(one) / np.square(one).sum())
        spectra[BOTH].append(np.square(two_sided_values(W, gram, damped(s))))
        score = prune_scores(W, gram)
        scores.append(float((score > OUTLIER * score.mean()).mean()))
        alphas.append(hill(np.linalg.svd(W, compute_uv=False) ** 2))
    ones = np.ones(len(weights.sites))
    rules: Mapping[str, Callable] = {
        "uniform": partial(by_share, weights, ones),
        "OWL": partial(by_share, weights, between(np.array(scores), OWL_SPREAD)),
        "AlphaPruning": partial(by_share, weights, between(-np.array(alphas), ALPHA_SPREAD)),
        "spectra of inputs, one sort": partial(by_spectra, weights, spectra[INPUTS]),
        "error spectra, one sort": partial(by_spectra, weights, spectra[BOTH]),
    }
    batch = weights.searched.workload.verify
    wanted = weights.searched.exact.run(batch)
    for name, rule in rules.items():
        errors = [difference(factored(weights, rule(share)).run(batch), wanted) for share in shares]
        say(f"{name}: {', '.join(f'{100 * error:.3g} %' for error in errors)}")
        yield name, *errors


def hill(eigenvalues: RealArray) -> float:
    """Hill's estimator of the exponent of a tail, of the larger half."""
    top = np.sort(eigenvalues)[len(eigenvalues) // 2 :]
    return 1 + len(top) / float(np.log(top / top[0]).sum())


def between(figures: RealArray, spread: float) -> RealArray:
    """Shares around one, to both sides by the spread, linear in some figures: more for larger ones."""
    wide = float(np.ptp(figures)) or 1.0
    return 1 + spread * (2 * (figures - figures.min()) / wide - 1)


def by_share(weights: Weights, shares: RealArray, whole: float) -> list[int]:
    """Ranks in proportion to shares, at most so much of all bytes."""
    sizes = weights.sizes
    even = sizes.prod(1) / sizes.sum(1)
    return best_below(lambda factor: (factor * shares * even).astype(int), sizes, whole, 0.0, 2.0)


def by_spectra(weights: Weights, squares: Sequence[RealArray], whole: float) -> list[int]:
    """Ranks whose next direction saves less error for a byte than a level, one level for all: one sort."""
    sizes = weights.sizes

    def ranks(level: float) -> NDArray[np.intp]:
        """Ranks at the level exp(-level), or all of a weight where no rank costs less for what it saves."""
        chosen = []
        for square, (n, p) in zip(squares, sizes, strict=True):
            tail = np.append(np.cumsum(square[::-1])[::-1], 0.0)
            price = np.minimum(np.arange(len(tail)) * (n + p), n * p) * np.exp(-level)
            price[-1] = n * p * np.exp(-level)
            chosen.append(int(np.argmin(tail + price)))
        return np.array(chosen)

    return best_below(ranks, sizes, whole, -60.0, 60.0)


def best_below(ranks: Callable[[float], NDArray[np.intp]], sizes, whole: float, low: float, high: float) -> list[int]:
    """The ranks of the largest argument whose bytes are within a share of those of all weights, by halving."""
    for _ in range(60):
        middle = (low + high) / 2
        taken = np.minimum(ranks(middle) * sizes.sum(1), sizes.prod(1)).sum()
        low, high = (middle, high) if taken <= whole * sizes.prod(1).sum() else (low, middle)
    return [int(rank) for rank in ranks(low)]


def factored(weights: Weights, ranks: Sequence[int]) -> Program:
    """The program with these ranks; a weight whose factors are no smaller stays."""
    exact, made = weights.searched.exact, {}
    for site, rank in zip(weights.sites, ranks, strict=True):
        numbers = site.numbers()
        if rank * sum(numbers.shape) < numbers.size:
            method = Method("lowrank", (("rank", max(1, rank)),), "whitened")
            made[site.constant] = stored_for(site, numbers, weights.both, method)
    return Program(exact.steps, {**exact.constants, **made}, exact.output)


# ---- SparseGPT


@dataclass(frozen=True)
class Sparsity:
    """Which entries go: `share` of all, or all but n of every m inputs of each output."""

    share: float = 0.5
    groups: Groups | None = None

    def check(self, inputs: int) -> None:
        """Raises InputError for what leaves nothing, or does not divide so many inputs."""
        if not 0 <= self.share < 1:
            raise InputError(f"sparsify: a share of {self.share} goes: give one from 0 below 1")
        if self.groups is None:
            return
        n, m = self.groups
        if not 0 < n <= m or inputs % m or COMPARED % m:
            raise InputError(f"sparsify: {n} of {m} stay of {inputs} inputs: groups divide them, and {COMPARED}")


def sparsify(weight: ArrayLike, sparsity: Sparsity, gram: ArrayLike | Gram | None = None) -> RealArray:
    """W (n, p) with zeros where entries go. An entry costs W_ij² / U_ii², U upper with UᵀU = H⁻¹; input
    after input what goes is made up for by the inputs that follow, W_i: -= U_i: W_ij / U_ii. O(n³ + n² p). Raises
    InputError for groups that do not fit."""
    w, g = check_matrix(weight, "weight").copy(), metric(gram, len(weight))  # type: ignore[arg-type]
    sparsity.check(len(w))
    root = np.asarray(np.linalg.cholesky(inverse(g)).T, np.float64)
    block = len(w) if g.ndim == 1 else COMPARED
    for start in range(0, len(w), block):
        rows = slice(start, start + block)
        lost = sparsify_block(w[rows], root[rows, rows], sparsity)
        if g.ndim == 2:
            w[start + block :] -= root[rows, start + block :].T @ lost
    return w


def sparsify_block(w: RealArray, root: RealArray, sparsity: Sparsity) -> RealArray:
    """Some inputs of W (b, p), in place; what each lost, over U_ii (b, p): inputs behind the block make up for it."""
    diagonal = np.diagonal(root)[:, None]
    gone = None if sparsity.groups else mark_least(np.square(w / diagonal), sparsity.share)
    step = sparsity.groups[1] if sparsity.groups else 1
    lost = np.zeros_like(w)
    for i in range(len(w)):
        if sparsity.groups and i % step == 0:
            group = mark_in_groups(np.square(w[i : i + step] / diagonal[i : i + step]), sparsity.groups[0])
        mask = group[i % step] if gone is None else gone[i]
        lost[i] = np.where(mask, w[i], 0) / root[i, i]
        w[i:] -= np.outer(root[i, i:], lost[i])
        w[i][mask] = 0
    return lost


def mark_least(costs: RealArray, share: float) -> NDArray[np.bool_]:
    """Where the least costs lie, so many of all."""
    count, gone = round(share * costs.size), np.zeros(costs.size, bool)
    gone[np.argsort(costs, axis=None, kind="stable")[:count]] = True
    return gone.reshape(costs.shape)


def mark_in_groups(costs: RealArray, kept: int) -> NDArray[np.bool_]:
    """Where the least costs of each column (m, p) lie: all but so many."""
    gone = np.zeros(costs.shape, bool)
    np.put_along_axis(gone, np.argsort(costs, axis=0, kind="stable")[: len(costs) - kept], True, 0)
    return gone


if __name__ == "__main__":
    command.run_parts(measure_spectra, measure_sparsity)
