"""Models with fewer hidden units and heads. They are removed layer by layer, on the activations of the layers already
reduced, and the remaining weights are corrected for it (opmatrix/spectra/removal.py). The text needs no labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import matmul
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import apply_factor, dense, entered, factors
from opmatrix.algebra.term import Operator, substitute
from opmatrix.spectra.gram import Gram
from opmatrix.spectra.measures import RealArray
from opmatrix.spectra.removal import Removal, removals
from rewrites.approximate.structured import HEADS, UNITS, CoupledWeights, coupled_weights
from rewrites.verify.differences import difference
from rewrites.verify.failure import VerificationError
from rewrites.verify.programs import EQUAL

PANEL_COLUMNS = 64  # columns that kernels take at once
WHAT = UNITS, HEADS
METRICS = "gram", "diagonal", "none"  # OBS, Wanda, magnitudes


class Level(NamedTuple):
    """The shares of hidden units and of heads that are removed: equal for every layer, unless `kept` has the number of
    groups that each pair of the model keeps."""

    units: float = 0.0
    heads: float = 0.0
    kept: tuple[int, ...] = ()

    def left(self, pair: CoupledWeights) -> int:
        """Return the number of groups of a pair's columns to keep: for units a multiple of the columns that kernels
        take at once, or of a quarter of the groups."""
        share, count = (self.units if pair.what == UNITS else self.heads), pair.groups
        step = min(PANEL_COLUMNS, max(1, count // 4)) if pair.what == UNITS else 1
        return min(count, max(step, step * round(count * (1 - share) / step)))

    def lefts(self, every: Sequence[CoupledWeights]) -> list[int]:
        """Return the number of groups that each pair of a model keeps."""
        return [*self.kept] or [self.left(pair) for pair in every]

    def __str__(self) -> str:
        return ", ".join(f"{100 * share:.3g} % of {what}" for what, share in zip(WHAT, self[:2], strict=True) if share)


class RemovedGroups(NamedTuple):
    """A removal before one weight: `left` of `groups` groups remain, and the output of that weight changes by `error`,
    relative, on the rows that it was fitted to. `singular` if these rows do not span its inputs."""

    weight: str
    what: str
    left: int
    groups: int
    error: float
    singular: bool

    def __str__(self) -> str:
        damped = "; the covariance of its inputs is singular, so it was damped" if self.singular else ""
        return f"{self.weight}: {self.left} of {self.groups} {self.what} left, off by {100 * self.error:.3g} %{damped}"


@dataclass(frozen=True)
class Removed:
    """A smaller model. `zeroed` is the same one at its old sizes, where weights have rows of zeros instead: both are
    equal exactly."""

    level: Level
    model: Operator
    zeroed: Operator
    cuts: tuple[RemovedGroups, ...]
    rows: int
    metric: str = field(default="gram")

    @property
    def name(self) -> str:
        """The name of the smaller model, by its level."""
        return f"less {self.level}"

    def checked(self, batch: Batch) -> float:
        """Return the relative difference of both models in float64. Raises VerificationError if it is above
        rounding."""
        off = difference(dense(self.model, batch), dense(self.zeroed, batch))
        if off <= EQUAL:
            return off
        raise VerificationError(
            3, self.name, "the smaller model differs from the one with rows of zeros", difference=off
        )

    def described(self) -> dict[str, object]:
        """Return the removal as JSON."""
        return {
            "level": self.level._asdict(),
            "tokens": self.rows,
            "metric": self.metric,
            "cuts": [cut._asdict() for cut in self.cuts],
        }

    def told(self) -> str:
        """Return the steps that lead to it, as text before the steps of a program's derivation."""
        return "\n".join(
            [
                f"removal: {self.level}, fitted to {self.rows} tokens layer by layer; {len(self.cuts)} "
                "approximations, each of one weight by rows of\nzeros; then columns are chosen before what "
                "treats them alike, exactly",
                *(f"  {cut}" for cut in self.cuts),
            ]
        )


def remove_groups(model: Operator, level: Level, batch: Batch, metric: str = METRICS[0]) -> Removed:
    """Return the model reduced to a level, fitted to the rows of a batch. Raises InputError where a weight has more
    inputs than there are rows."""
    x = entered(model, batch, dtype=np.float32)
    small, zeroed, cuts = list[Operator](), list[Operator](), list[RemovedGroups]()
    lefts = iter(level.lefts(every_coupled(model)))
    for factor in factors(model):
        whole = factor
        for at in range(sum(1 for _ in coupled_weights(factor))):
            pair, twin = ([*coupled_weights(term)][at] for term in (factor, whole))
            if (left := next(lefts)) == pair.groups:
                continue
            rows = apply_factor(pair.before, x).array
            removal, bias, cut = next(fit_removals(pair, [left], rows, metric))
            factor = substitute(factor, {pair.node: pair.cut(removal.left, removal.weight, bias)})
            whole = substitute(whole, {twin.node: twin.zeroed(removal.whole(rows.shape[1]), bias)})
            cuts.append(cut)
        small.append(factor)
        zeroed.append(whole)
        x = apply_factor(factor, x)
    return Removed(level, reduce(matmul, small), reduce(matmul, zeroed), tuple(cuts), batch.rows, metric)


def fit_removals(
    pair: CoupledWeights, lefts: Sequence[int], rows: np.ndarray, metric: str = METRICS[0]
) -> Iterator[tuple[Removal, RealArray | None, RemovedGroups]]:
    """Yield the weight of a pair for each number of input groups in `lefts` (falling), fitted to its inputs `rows`,
    (rows, n), and its bias. If there is a bias it takes the mean of the removed part, so OBS fits only the rest: its
    metric is then the covariance."""
    name, n = pair.weight.label, rows.shape[1]
    if len(rows) < n:
        raise InputError(
            f"--calibrate: {len(rows)} tokens are too few for the {n} inputs of {name}: give a text of "
            f"{n} tokens or more"
        )
    gram = Gram.of(rows, f"what {name} reads")
    whole = gram.matrix if pair.bias is None else gram.covariance
    metrics = {"gram": whole, "diagonal": np.diagonal(gram.matrix), "none": None}
    counts, damped = [pair.groups - left for left in lefts], singular(whole)
    for left, removal in zip(lefts, removals(pair.weight.array, counts, metrics[metric], pair.group), strict=True):
        bias = None if pair.bias is None else np.asarray(pair.bias.array, np.float64)
        if bias is not None and metric == "gram":
            bias = bias + gram.total / gram.rows @ (pair.weight.array - removal.whole(n))
        yield removal, bias, RemovedGroups(name, pair.what, left, pair.groups, removal.error, damped)


def singular(gram: np.ndarray) -> bool:
    """True if some direction has less than 1e-8 of the mean energy, which is rounding."""
    try:
        np.linalg.cholesky(gram - 1e-8 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    except np.linalg.LinAlgError:
        return True
    return False


def check_removal(what: Sequence[str], file: object) -> None:
    """Raise InputError for a kind that cannot be removed, and for a file to fit to where no kind is removed."""
    for name in what:
        if name not in WHAT:
            raise InputError(f"--remove {name}: it is one of {', '.join(WHAT)}, or both with a comma")
    if file is not None and not what:
        raise InputError(f"--calibrate {file}: it is used with --remove or --uniform only: give one, too")


def check_fit(model: Operator, what: Sequence[str], file: object, fit: Batch) -> None:
    """Raise InputError, before any search, where no file is given to fit smaller models to and the rows of `fit` are
    too few for the inputs of a weight that would lose some."""
    if file is not None or not what:
        return
    for pair in every_coupled(model):
        n = pair.weight.shape[0]
        if pair.what in what and fit.rows < n:
            raise InputError(
                f"removing {', '.join(what)}: the {fit.rows} tokens of the text are too few to fit the {n} inputs of "
                f"{pair.weight.label}: give --calibrate FILE, lines of {n} tokens or more"
            )


def kinds_removed(what: Sequence[str], uniform: bool) -> Sequence[str]:
    """Return the kinds of removal that are tried: of one size for all layers hidden units, unless others are asked
    for."""
    return what or ((UNITS,) if uniform else ())


def every_coupled(model: Operator) -> list[CoupledWeights]:
    """Return the coupled weights of a whole model, in order."""
    return [pair for factor in factors(model) for pair in coupled_weights(factor)]
