"""Low rank and pruning in the metric of both sides against that of inputs alone: the change of the model's output by
each, one weight at a time, on rows that nothing was fitted to; and ranks allocated over all weights at equal bytes.

    python benchmarks/sparsity.py [--model minilm] [--every 4] [--bytes 0.8,0.6] [--seed 1986] [--csv OUT]

Beside it `sparsify`, for benchmarks/quality.py: leaving out single entries of a weight, input after input, what is left
corrected for it, optimal brain surgeon with one inverse for all outputs (SparseGPT: Frantar and Alistarh 2023,
arXiv:2301.00774, algorithm 1).

The metric decides what it is, as in opmatrix/spectra/removal.py: with the whole Gram of the inputs the rest is
corrected; with its diagonal nothing can be, and entries go by Wanda's scores (Sun et al. 2023); without one, by
magnitude."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import median
from unittest.mock import patch

from lib import command
from lib.command import Figure, Parser, concluded, count, listed, say, tabled, takes

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
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
COLUMNS = "method", "way", "weights", "median_error", "median_ratio", "least_ratio", "largest_ratio", "better"
OUTLIER, OWL_SPREAD = 5.0, 0.08  # times the mean score (Yin et al. 2023, arXiv:2310.05175): M, and λ
ALPHA_SPREAD = 0.3  # of the mean, to both sides (Lu et al. 2024, arXiv:2410.10912)


def main() -> None:
    parser = Parser(__doc__)
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
    tabled(given.csv, [COLUMNS, *rows, *allocated])
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
    command.run(main)
