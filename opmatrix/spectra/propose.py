"""Which approximations of a weight are worth proposing: those the cost repays and no other one beats."""
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from formats import FORMATS, FormatError
from formats.core.errors import InputError
from formats.core.sizes import T
from formats.storage.format import Format
from opmatrix.spectra.gram import Gram, gram_diagonal, low_rank_errors, metric, output_energy
from opmatrix.spectra.measures import RealArray, check_matrix, elbow

Parameters = dict[str, int | float]                         # of a format, by name
PriceFunction = Callable[[str, Parameters, int, int], tuple[float, float]]
ROUNDING_ERROR = 1e-6                                       # smaller relative errors are float32 rounding


@dataclass(frozen=True)
class Limits:
    """What to propose: nothing whose predicted relative output error exceeds `error`; ranks (multiples of `multiple`,
    for the kernels' sake) and densities where that error crosses one of `levels`; only what saves the share `saving` of
    dense's seconds or bytes; at most `most` for one weight; no numbers of fewer bits than `narrowest`."""
    error: float = 0.5
    levels: Sequence[float] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5)
    multiple: int = 8
    saving: float = 0.05
    most: int = 8
    narrowest: int = 1


@dataclass(frozen=True)
class Candidate:
    """A format, its options, and the metric it is fitted in: plain, wanda (column norms of X) or whitened (G)."""
    method: str
    parameters: Parameters
    fit: str = "plain"

    def __str__(self) -> str:
        return f"{self.method}({', '.join(f'{key}={value}' for key, value in self.parameters.items())})"

    def options(self, gram: Gram | ArrayLike | None, n: int) -> dict[str, int | float | RealArray]:
        """The options of the format's `fit` and `approximate`: the parameters, and the metric."""
        if self.fit == "plain": return dict(self.parameters)
        g = metric(gram, n)
        if self.fit == "wanda": return self.parameters | {"scale": np.sqrt(gram_diagonal(g))}
        return self.parameters | {"weight": g if g.ndim == 2 else np.diag(g)}

    def approximate(self, weight: ArrayLike, gram: Gram | ArrayLike | None = None) -> Format:
        """The stored approximation, an instance of the format. Raises FormatError where the format cannot hold it."""
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
    """A candidate that is not proposed, and why."""
    reason: str = ""


@dataclass(frozen=True)
class Failed(Rejected):
    """A candidate that ends in an error which no format declares."""


@dataclass(frozen=True)
class Proposals(Sequence[Proposal]):
    """What is proposed, by rising error, and what is not; it prints as a table."""
    kept: tuple[Proposal, ...]
    rejected: tuple[Rejected, ...] = ()

    def __len__(self) -> int: return len(self.kept)
    def __getitem__(self, index: Any) -> Any: return self.kept[index]

    def rows(self) -> list[tuple[str, ...]]:
        """Method, fit, error, bytes, flops of one row; or the reason."""
        return [(str(each), each.fit, f"{100 * each.predicted_error:.3g} %", f"{each.stored_bytes:,} bytes",
                 f"{each.flops:,} flops") for each in self.kept] + \
               [(str(each), each.fit, f"no: {each.reason}") for each in self.rejected]

    def __repr__(self) -> str:
        return "\n".join(f"{candidate:<34}  {fit:<8}" + "".join(f"  {cell:>16}" for cell in rest)
                         for candidate, fit, *rest in self.rows())

    def _repr_html_(self) -> str:
        return "<table>" + "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
                                   for row in self.rows()) + "</table>"


def count_declared(method: str, parameters: Parameters, n: int, p: int) -> tuple[int, int]:
    """Flops for one row, and bytes, of a weight (n, p) without zeros: what its format declares."""
    sizes = FORMATS[method].expected(n, p, **parameters)
    return int(FORMATS[method].flops.subs(sizes).subs(T, 1)), int(FORMATS[method].bytes.subs(sizes))


def propose(weight: ArrayLike, gram: Gram | ArrayLike | None = None, limits: Limits = Limits(),
            price: PriceFunction = count_declared, formats: Collection[str] = FORMATS.keys()) -> Proposals:
    """The approximations of W (n, p) that are worth a place in the graph, for activations whose Gram is G.

    Candidates are ranks and densities at the knees of the spectra, and the other formats' own choices, of `formats`.
    Asked in turn:
    does the price (seconds or any other effort, and bytes) repay it against dense; is its error within the limit; is no
    other one at least as good in error, effort and bytes; is it among the `most` that push the front of error against
    effort and that of error against bytes furthest. Deterministic."""
    w = check_matrix(weight, "weight")
    g = metric(gram, len(w))
    ranked = any("rank" in FORMATS[name].parameters for name in formats)
    errors = low_rank_errors(w, g) if ranked else np.zeros(1)
    dense = min(price("dense", {}, *w.shape), price("packed", {}, *w.shape))
    weighed = Weighed(w, g, errors, output_energy(w, g), limits)
    judged: list[Proposal | Rejected] = []
    for each in propose_formats(weighed, gram is not None, formats):
        judged.append(judge_candidate(each, weighed, limits, price, dense, judged))
    rejected = [each for each in judged if isinstance(each, Rejected)]
    front, worse = split_dominated([each for each in judged if isinstance(each, Proposal)])
    kept, spare = furthest(front, dense, limits)
    kept.sort(key=lambda each: (each.predicted_error, str(each)))
    return Proposals(tuple(kept), (*rejected, *worse, *spare))


@dataclass(frozen=True, eq=False)
class Weighed:
    """A weight (n, p), its metric G, the output error of its best rank 0 … k, and its whole output energy ‖X W‖²."""
    weight: RealArray
    gram: RealArray
    errors: RealArray
    energy: float
    limits: Limits

    @property
    def squares(self) -> RealArray:
        """Squared column norms of its inputs."""
        return gram_diagonal(self.gram)

    @property
    def shape(self) -> tuple[int, int]:
        n, p = self.weight.shape
        return n, p

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
        """The ranks worth proposing."""
        return ranks(self.errors, self.limits)

    def densities(self, tile: tuple[int, int] | None = None) -> list[float]:
        """The densities worth proposing, of numbers or of tiles."""
        if tile is None: return densities(self.lost, self.limits)
        return densities(curve(tile_energy(entry_energy(self.weight, self.gram), tile)), self.limits)

    def least(self, each: Candidate) -> float:
        """What its error is not below, known before it is fitted: a format that is told norms leaves out all but the
        entries that its flops count, so it loses as much as the least of so many. 0 for others, and where G is no
        diagonal."""
        form = FORMATS[each.method]
        if form.metric() != "wanda" or "rank" in form.parameters or self.gram.ndim == 2: return 0.0
        dropped = max(0, self.weight.size - -(-count_declared(each.method, each.parameters, *self.shape)[0] // 2))
        return float(np.sqrt(self.lost[dropped])) * (1 - ROUNDING_ERROR)

    def error(self, each: Candidate) -> float:
        """Predicted relative output error. Raises FormatError where the format cannot hold the weight."""
        form = FORMATS[each.method]
        if (known := form.predicted(self, **each.parameters)) is not None: return known
        fitted = form.fit(self.weight, **each.options(self.gram, len(self.weight)))
        lost = output_energy(self.weight - fitted, self.gram) / self.energy if self.energy else 0.0
        return float(np.hypot(np.sqrt(lost), form.rounding(self, **each.parameters)))


def propose_formats(weighed: Weighed, seen: bool, formats: Collection[str]) -> Iterator[Candidate]:
    """Every proposed format that is not plain, of numbers wide enough, with the options by which it proposes itself;
    fitted in the metric of the activations where the format's `fit` takes one and activations were seen."""
    for method, format in FORMATS.items():
        if method not in formats or format.plain or not format.proposed: continue
        if format.narrowest() < weighed.limits.narrowest: continue
        for parameters in format.proposed_by(weighed):
            yield Candidate(method, parameters, format.metric() if seen else "plain")


def entry_energy(w: RealArray, g: RealArray) -> RealArray:
    """G_ii W_ij²: what dropping an entry loses of the output, were the columns of X orthogonal."""
    return gram_diagonal(g)[:, None] * w ** 2


def tile_energy(energy: RealArray, tile: tuple[int, int]) -> RealArray:
    """The sums of an energy (n, p) over tiles of r inputs by c outputs, those at the edges included."""
    down, across = (np.arange(0, size, step) for size, step in zip(energy.shape, tile, strict=True))
    return np.asarray(np.add.reduceat(np.add.reduceat(energy, down, 0), across, 1).ravel())


def ranks(errors: RealArray, limits: Limits) -> list[int]:
    """Ranks at which the output error of the best rank crosses a level, and at its knee; rounded up to the multiple."""
    at = [int(np.argmax(errors <= level)) for level in limits.levels] + [elbow(errors ** 2)]
    up = {-(-rank // limits.multiple) * limits.multiple for rank in at}
    return sorted(rank for rank in up if 0 < rank < len(errors) - 1)


def curve(energy: RealArray) -> RealArray:
    """Shares of some energies (n,) that are lost with the 0, 1, 2 … n smallest; zeros where there is none."""
    lost = np.zeros(len(energy) + 1)
    np.cumsum(np.sort(energy), out=lost[1:])
    if lost[-1] > 0: lost /= lost[-1]
    return lost


def densities(lost: RealArray, limits: Limits) -> list[float]:
    """Shares kept where what is lost, smallest first, crosses a level of error, and at its knee; in whole percent."""
    if lost[-1] <= 0: return []
    dropped = [int(np.searchsorted(lost, level ** 2, side="right")) - 1 for level in limits.levels]
    dropped.append(len(lost) - 1 - elbow(lost[::-1]))
    kept = {int(np.ceil(100 * (1 - count / (len(lost) - 1)))) for count in dropped}
    return sorted(percent / 100 for percent in kept if 0 < percent < 100)


def judge_candidate(each: Candidate, weighed: Weighed, limits: Limits, price: PriceFunction, dense: tuple[float, float],
                    before: Sequence[Proposal | Rejected] = ()) -> Proposal | Rejected:
    """A candidate with its price and predicted error, or the reason why not; what is not repaid is never fitted, nor
    what one that was judged `before` is sure to beat."""
    shape = weighed.weight.shape
    asked = price(each.method, each.parameters, *shape)
    if not all(np.isfinite(asked)) or min(asked) < 0:
        raise InputError(f"propose: the price of {each} is {asked}; it must be two numbers that are not negative")
    if all(paid > (1 - limits.saving) * whole for paid, whole in zip(asked, dense, strict=True)):
        share = (f"{paid / whole:.2f} x its {what}" if whole else f"{paid:g} against no {what}"
                 for paid, whole, what in zip(asked, dense, ("effort", "bytes"), strict=True))
        return rejected(each, f"not repaid: against dense {', '.join(share)}")
    if (least := weighed.least(each)) > limits.error:
        return rejected(each, f"error {100 * least:.3g} % or more is over the limit {100 * limits.error:.3g} %")
    for other in before:
        if isinstance(other, Proposal) and other.predicted_error < least and all(a <= b for a, b in zip(
            other.price, asked, strict=True)):
            return beaten(each, other)
    try: error = weighed.error(each)
    except FormatError as complaint: return rejected(each, str(complaint))
    except Exception as failure: return fail(each, f"{type(failure).__name__}: {failure}")
    if np.isnan(error): return fail(each, "what it makes of the weight is not finite")
    if error > limits.error:
        return rejected(each, f"error {100 * error:.3g} % is over the limit {100 * limits.error:.3g} %")
    flops, stored = count_declared(each.method, each.parameters, *shape)
    return Proposal(each.method, each.parameters, each.fit, error, stored, flops, asked)


def fail(each: Candidate, reason: str) -> Failed:
    """The candidate with what went wrong."""
    return Failed(each.method, each.parameters, each.fit, reason)


def rejected(each: Candidate, reason: str) -> Rejected:
    """The candidate with the reason."""
    return Rejected(each.method, each.parameters, each.fit, reason)


def split_dominated(found: Sequence[Proposal]) -> tuple[list[Proposal], list[Rejected]]:
    """Proposals that no other equals or beats in error, effort and bytes at once (of equal ones the first stays)."""
    front: list[Proposal] = []
    lost: list[Rejected] = []
    worth = [(each.predicted_error, *each.price) for each in found]
    for i, each in enumerate(found):
        by = [other for j, other in enumerate(found) if all(a <= b for a, b in zip(worth[j], worth[i], strict=True))
              and (worth[j] != worth[i] or j < i)]
        if by: lost.append(beaten(each, by[0]))
        else: front.append(each)
    return front, lost


def beaten(each: Candidate, by: Candidate) -> Rejected:
    return rejected(each, f"beaten by {by} in error, effort and bytes")


def furthest(front: Sequence[Proposal], dense: tuple[float, float],
             limits: Limits) -> tuple[list[Proposal], list[Rejected]]:
    """At most `limits.most`, one after the other the one that adds most to the area under both fronts."""
    kept: list[Proposal] = []
    left = list(front)
    while left and len(kept) < limits.most:
        best = max(left, key=lambda each: area([*kept, each], dense, limits))
        kept.append(best)
        left.remove(best)
    return kept, [rejected(each, f"adds least to the front; {limits.most} are kept") for each in left]


def area(points: Sequence[Proposal], dense: tuple[float, float], limits: Limits) -> float:
    """What is saved of dense's effort, plus of its bytes, at an error, summed over the logarithm of the error."""
    rising = sorted(points, key=lambda each: each.predicted_error)
    steps = np.log([max(each.predicted_error, ROUNDING_ERROR) for each in rising] + [max(limits.error, ROUNDING_ERROR)])
    paid = np.array([each.price for each in rising]) / np.maximum(dense, np.finfo(float).tiny)
    saved = np.maximum.accumulate(1 - np.minimum(paid, 1), axis=0).sum(1)
    return float((np.diff(steps) * saved).sum())
