"""Proposals of approximations of a weight: those that repay their cost and that no other one beats."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from formats import FORMATS, FormatError
from formats.core.errors import InputError
from formats.core.sizes import T
from formats.storage.format import Format
from opmatrix.spectra.gram import Gram, gram_diagonal, low_rank_errors, metric, output_energy
from opmatrix.spectra.measures import RealArray, check_matrix, elbow

Parameters = dict[str, int | float]  # parameters of a format, by name
PriceFunction = Callable[[str, Parameters, int, int], tuple[float, float]]
ROUNDING_ERROR = 1e-6  # smaller relative errors are float32 rounding
SAMPLED_BLOCK = 64  # neighbouring columns of a sample


@dataclass(frozen=True)
class Limits:
    """Limits of the proposals: the predicted relative output error is at most `error`; ranks (multiples of `multiple`,
    for the kernels' sake) and densities are those where that error crosses one of `levels`; a proposal saves the share
    `saving` of dense's seconds or bytes; there are at most `most` for one weight; numbers have no fewer bits than
    `narrowest`. Errors by fits are those of blocks of columns with about `sampled` numbers; ranks are of all
    columns."""

    error: float = 0.5
    levels: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
    multiple: int = 8
    saving: float = 0.05
    most: int = 8
    narrowest: int = 1
    sampled: float = inf


@dataclass(frozen=True)
class Candidate:
    """A format, its options, and the metric it is fitted in: plain, wanda (column norms of X) or whitened (G)."""

    method: str
    parameters: Parameters
    fit: str = "plain"

    def __str__(self) -> str:
        return f"{self.method}({', '.join(f'{key}={value}' for key, value in self.parameters.items())})"

    def options(self, gram: Gram | ArrayLike | None, n: int) -> dict[str, int | float | RealArray]:
        """Return the options of the format's `fit` and `approximate`: the parameters, and the metric."""
        if self.fit == "plain":
            return dict(self.parameters)
        g = metric(gram, n)
        if self.fit == "wanda":
            return self.parameters | {"scale": np.sqrt(gram_diagonal(g))}
        return self.parameters | {"weight": g if g.ndim == 2 else np.diag(g)}

    def approximate(self, weight: ArrayLike, gram: Gram | ArrayLike | None = None) -> Format:
        """Return the stored approximation, an instance of the format. Raises FormatError where the format cannot hold
        it."""
        return FORMATS[self.method].approximate(weight, **self.options(gram, np.shape(weight)[0]))


@dataclass(frozen=True)
class Proposal(Candidate):
    """A candidate worth trying: predicted relative output error, stored bytes, flops for one row, and its price."""

    predicted_error: float = 0.0
    stored_bytes: int = 0
    flops: int = 0
    price: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Rejected(Candidate):
    """A candidate that is not proposed, and the reason."""

    reason: str = ""


@dataclass(frozen=True)
class Failed(Rejected):
    """A candidate that ends in an error which no format declares."""


@dataclass(frozen=True)
class Proposals(Sequence[Proposal]):
    """The proposals, by rising error, and the rejected candidates; it prints as a table."""

    kept: tuple[Proposal, ...]
    rejected: tuple[Rejected, ...] = ()

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: Any) -> Any:
        return self.kept[index]

    def rows(self) -> list[tuple[str, ...]]:
        """Return method, fit, error, bytes, flops of one row; or the reason."""
        return [
            (
                str(proposal),
                proposal.fit,
                f"{100 * proposal.predicted_error:.3g} %",
                f"{proposal.stored_bytes:,} bytes",
                f"{proposal.flops:,} flops",
            )
            for proposal in self.kept
        ] + [(str(candidate), candidate.fit, f"no: {candidate.reason}") for candidate in self.rejected]

    def __repr__(self) -> str:
        return "\n".join(
            f"{candidate:<34}  {fit:<8}" + "".join(f"  {cell:>16}" for cell in rest)
            for candidate, fit, *rest in self.rows()
        )

    def _repr_html_(self) -> str:
        return (
            "<table>"
            + "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self.rows())
            + "</table>"
        )


def count_declared(method: str, parameters: Parameters, n: int, p: int) -> tuple[int, int]:
    """Count flops for one row, and bytes, of a weight (n, p) without zeros, as its format declares."""
    return count_once(method, tuple(parameters.items()), n, p)


@lru_cache(4096)
def count_once(method: str, parameters: tuple[tuple[str, int | float], ...], n: int, p: int) -> tuple[int, int]:
    """Count flops for one row, and bytes: see `count_declared`. Layers have weights of the same shapes."""
    sizes = FORMATS[method].expected(n, p, **dict(parameters))
    return int(FORMATS[method].flops.subs(sizes).subs(T, 1)), int(FORMATS[method].bytes.subs(sizes))


def propose(
    weight: ArrayLike,
    gram: Gram | ArrayLike | None = None,
    limits: Limits = Limits(),
    price: PriceFunction = count_declared,
    formats: Collection[str] = FORMATS.keys(),
) -> Proposals:
    """Propose the approximations of W (n, p) that are worth a place in the graph, for activations whose Gram is G.

    Candidates are ranks and densities at the knees of the spectra, and the other formats' own choices, of `formats`.
    Tested in turn: does the price (seconds or any other effort, and bytes) repay it against dense; is its error within
    the limit; is no other one at least as good in error, effort and bytes; is it among the `most` that push the front
    of error against effort and that of error against bytes furthest. Deterministic."""
    w = check_matrix(weight, "weight")
    g = metric(gram, len(w))
    ranked = any("rank" in FORMATS[name].parameters for name in formats)
    errors = low_rank_errors(w, g) if ranked else np.zeros(1)
    dense = min(price("dense", {}, *w.shape), price("packed", {}, *w.shape))
    some = sample_columns(w, limits.sampled)
    weighed = Weighed(some, g, errors, output_energy(some, g), limits, w.shape[1])
    judged: list[Proposal | Rejected] = []
    for candidate in propose_formats(weighed, gram is not None, formats):
        judged.append(judge_candidate(candidate, weighed, limits, price, dense, judged))
    rejected = [candidate for candidate in judged if isinstance(candidate, Rejected)]
    front, worse = split_dominated([proposal for proposal in judged if isinstance(proposal, Proposal)])
    chosen, spare = furthest(front, dense, limits)
    chosen.sort(key=lambda each: (each.predicted_error, str(each)))
    return Proposals(tuple(chosen), (*rejected, *worse, *spare))


@dataclass(frozen=True, eq=False)
class Weighed:
    """Columns W (n, q) of a weight, `columns` of which there are in all (0: q), the metric G, the output error of the
    weight's best rank 0 … k, and the output energy ‖X W‖²."""

    weight: RealArray
    gram: RealArray
    errors: RealArray
    energy: float
    limits: Limits
    columns: int = 0

    @property
    def squares(self) -> RealArray:
        """Squared column norms of its inputs."""
        return gram_diagonal(self.gram)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of these columns: (inputs, outputs)."""
        n, q = self.weight.shape
        return n, q

    @property
    def whole_shape(self) -> tuple[int, int]:
        """The shape of the weight: (inputs, outputs)."""
        n, q = self.shape
        return n, self.columns or q

    @cached_property
    def lost(self) -> RealArray:
        """The share of the energy that is lost with the 0, 1, 2 … entries that matter least, where columns of X are
        orthogonal."""
        return curve(entry_energy(self.weight, self.gram).ravel())

    @cached_property
    def shares(self) -> RealArray:
        """The share of the output's energy that each number holds, were the columns of X orthogonal."""
        energy = entry_energy(self.weight, self.gram)
        return energy / (energy.sum() or 1)

    def ranks(self) -> list[int]:
        """Return the ranks worth proposing."""
        return ranks(self.errors, self.limits)

    def densities(self, tile: tuple[int, int] | None = None) -> list[float]:
        """Return the densities worth proposing, of numbers or of tiles."""
        if tile is None:
            return densities(self.lost, self.limits)
        return densities(curve(tile_energy(entry_energy(self.weight, self.gram), tile)), self.limits)

    def least(self, each: Candidate) -> float:
        """Return a lower bound of its error, known before it is fitted: a format that is fitted by column norms leaves
        out all but the entries that its flops count, so it loses at least the energy of that many smallest entries. 0
        for other formats, and where G is no diagonal."""
        form = FORMATS[each.method]
        if form.metric() != "wanda" or "rank" in form.parameters or self.gram.ndim == 2:
            return 0.0
        dropped = max(0, self.weight.size - -(-count_declared(each.method, each.parameters, *self.shape)[0] // 2))
        return float(np.sqrt(self.lost[dropped])) * (1 - ROUNDING_ERROR)

    def error(self, each: Candidate) -> float:
        """Return the predicted relative output error. Raises FormatError where the format cannot hold the weight."""
        form = FORMATS[each.method]
        if (known := form.predicted(self, **each.parameters)) is not None:
            return known
        fitted = form.fit(self.weight, **each.options(self.gram, len(self.weight)))
        lost = output_energy(self.weight - fitted, self.gram) / self.energy if self.energy else 0.0
        return float(np.hypot(np.sqrt(lost), form.rounding(self, **each.parameters)))


def propose_formats(weighed: Weighed, seen: bool, formats: Collection[str]) -> Iterator[Candidate]:
    """Yield every proposed format that is not plain, of numbers wide enough, with the options by which it proposes
    itself; fitted in the metric of the activations where the format's `fit` takes one and activations were seen."""
    for method, format in FORMATS.items():
        if method not in formats or format.plain or not format.proposed:
            continue
        if format.narrowest() < weighed.limits.narrowest:
            continue
        for parameters in format.proposed_by(weighed):
            yield Candidate(method, parameters, format.metric() if seen else "plain")


def sample_columns(weight: RealArray, numbers: float) -> RealArray:
    """Return blocks of SAMPLED_BLOCK columns of a weight (n, p), evenly apart, with about this many numbers; the weight
    where it has no more. Formats keep tiles and scales of neighbouring columns."""
    n, p = weight.shape
    blocks = p // SAMPLED_BLOCK
    if weight.size <= numbers or (count := max(1, round(numbers / (n * SAMPLED_BLOCK)))) >= blocks:
        return weight
    starts = SAMPLED_BLOCK * (np.arange(count) * blocks // count)
    return weight[:, (starts[:, None] + np.arange(SAMPLED_BLOCK)).ravel()]


def entry_energy(w: RealArray, g: RealArray) -> RealArray:
    """Compute G_ii W_ij²: the loss of the output when an entry is dropped, were the columns of X orthogonal."""
    return gram_diagonal(g)[:, None] * w**2


def tile_energy(energy: RealArray, tile: tuple[int, int]) -> RealArray:
    """Return the sums of an energy (n, p) over tiles of r inputs by c outputs, those at the edges included."""
    down, across = (np.arange(0, size, step) for size, step in zip(energy.shape, tile, strict=True))
    return np.asarray(np.add.reduceat(np.add.reduceat(energy, down, 0), across, 1).ravel())


def ranks(errors: RealArray, limits: Limits) -> list[int]:
    """Return the ranks at which the output error of the best rank crosses a level, and at its knee; rounded up to the
    multiple."""
    at = [int(np.argmax(errors <= level)) for level in limits.levels] + [elbow(errors**2)]
    up = {-(-rank // limits.multiple) * limits.multiple for rank in at}
    return sorted(rank for rank in up if 0 < rank < len(errors) - 1)


def curve(energy: RealArray) -> RealArray:
    """Return the shares of some energies (n,) that are lost with the 0, 1, 2 … n smallest; zeros where there is no
    energy."""
    lost = np.zeros(len(energy) + 1)
    np.cumsum(np.sort(energy), out=lost[1:])
    if lost[-1] > 0:
        lost /= lost[-1]
    return lost


def densities(lost: RealArray, limits: Limits) -> list[float]:
    """Return the shares kept where the loss, smallest entries first, crosses a level of error, and at its knee; in
    whole percent."""
    if lost[-1] <= 0:
        return []
    dropped = [int(np.searchsorted(lost, level**2, side="right")) - 1 for level in limits.levels]
    dropped.append(len(lost) - 1 - elbow(lost[::-1]))
    percents = {int(np.ceil(100 * (1 - count / (len(lost) - 1)))) for count in dropped}
    return sorted(percent / 100 for percent in percents if 0 < percent < 100)


def judge_candidate(
    each: Candidate,
    weighed: Weighed,
    limits: Limits,
    price: PriceFunction,
    dense: tuple[float, float],
    before: Sequence[Proposal | Rejected] = (),
) -> Proposal | Rejected:
    """Return a candidate with its price and predicted error, or the reason for its rejection. A candidate that is not
    repaid is never fitted, nor one that a proposal judged `before` is sure to beat."""
    shape = weighed.whole_shape
    asked = price(each.method, each.parameters, *shape)
    if not all(np.isfinite(asked)) or min(asked) < 0:
        raise InputError(f"propose: the price of {each} is {asked}; it must be two numbers that are not negative")
    if all(paid > (1 - limits.saving) * whole for paid, whole in zip(asked, dense, strict=True)):
        share = (
            f"{paid / whole:.2f} x its {what}" if whole else f"{paid:g} against no {what}"
            for paid, whole, what in zip(asked, dense, ("effort", "bytes"), strict=True)
        )
        return rejected(each, f"not repaid: against dense {', '.join(share)}")
    if (least := weighed.least(each)) > limits.error:
        return rejected(each, f"error {100 * least:.3g} % or more is over the limit {100 * limits.error:.3g} %")
    for other in before:
        if (
            isinstance(other, Proposal)
            and other.predicted_error < least
            and all(a <= b for a, b in zip(other.price, asked, strict=True))
        ):
            return beaten(each, other)
    try:
        error = weighed.error(each)
    except FormatError as complaint:
        return rejected(each, str(complaint))
    except Exception as failure:
        return fail(each, f"{type(failure).__name__}: {failure}")
    if np.isnan(error):
        return fail(each, "the approximated weight is not finite")
    if error > limits.error:
        return rejected(each, f"error {100 * error:.3g} % is over the limit {100 * limits.error:.3g} %")
    flops, stored = count_declared(each.method, each.parameters, *shape)
    return Proposal(each.method, each.parameters, each.fit, error, stored, flops, asked)


def fail(each: Candidate, reason: str) -> Failed:
    """Return the candidate with its error."""
    return Failed(each.method, each.parameters, each.fit, reason)


def rejected(each: Candidate, reason: str) -> Rejected:
    """Return the candidate with the reason."""
    return Rejected(each.method, each.parameters, each.fit, reason)


def split_dominated(found: Sequence[Proposal]) -> tuple[list[Proposal], list[Rejected]]:
    """Split proposals into those that no other equals or beats in error, effort and bytes at once (of equal ones the
    first stays), and the beaten ones."""
    front: list[Proposal] = []
    lost: list[Rejected] = []
    worth = [(proposal.predicted_error, *proposal.price) for proposal in found]
    for i, proposal in enumerate(found):
        by = [
            other
            for j, other in enumerate(found)
            if all(a <= b for a, b in zip(worth[j], worth[i], strict=True)) and (worth[j] != worth[i] or j < i)
        ]
        if by:
            lost.append(beaten(proposal, by[0]))
        else:
            front.append(proposal)
    return front, lost


def beaten(each: Candidate, by: Candidate) -> Rejected:
    """Return a rejection that names the better candidate."""
    return rejected(each, f"beaten by {by} in error, effort and bytes")


def furthest(
    front: Sequence[Proposal], dense: tuple[float, float], limits: Limits
) -> tuple[list[Proposal], list[Rejected]]:
    """Choose at most `limits.most` proposals, each time the one that adds most to the area under both fronts."""
    chosen: list[Proposal] = []
    left = list(front)
    while left and len(chosen) < limits.most:
        best = max(left, key=lambda each: area([*chosen, each], dense, limits))
        chosen.append(best)
        left.remove(best)
    return chosen, [rejected(proposal, f"adds least to the front; {limits.most} are kept") for proposal in left]


def area(points: Sequence[Proposal], dense: tuple[float, float], limits: Limits) -> float:
    """Return the share of dense's effort, plus that of its bytes, that is saved at an error, summed over the logarithm
    of the error."""
    rising = sorted(points, key=lambda each: each.predicted_error)
    steps = np.log(
        [max(proposal.predicted_error, ROUNDING_ERROR) for proposal in rising] + [max(limits.error, ROUNDING_ERROR)]
    )
    paid = np.array([proposal.price for proposal in rising]) / np.maximum(dense, np.finfo(float).tiny)
    saved = np.maximum.accumulate(1 - np.minimum(paid, 1), axis=0).sum(1)
    return float((np.diff(steps) * saved).sum())
