"""Models with fewer hidden units and heads: removed layer by layer, on the activations of what is already smaller,
with what is left corrected for it (opmatrix/spectra/removal.py), from text that nobody labelled."""
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

PANEL_COLUMNS = 64                                          # columns that kernels take at once
WHAT = UNITS, HEADS
METRICS = "gram", "diagonal", "none"                        # OBS, Wanda, magnitudes


class Level(NamedTuple):
    """The shares of hidden units and of heads that go: the same of every layer, but where `kept` says how many groups
    each pair of the model keeps."""

    units: float = 0.0
    heads: float = 0.0
    kept: tuple[int, ...] = ()

    def left(self, pair: CoupledWeights) -> int:
        """How many groups of a pair's columns stay: of units a multiple of what kernels take at once, or of a quarter
        of them."""
        share, count = (self.units if pair.what == UNITS else self.heads), pair.groups
        step = min(PANEL_COLUMNS, max(1, count // 4)) if pair.what == UNITS else 1
        return min(count, max(step, step * round(count * (1 - share) / step)))

    def lefts(self, every: Sequence[CoupledWeights]) -> list[int]:
        """How many groups each pair of a model keeps."""
        return [*self.kept] or [self.left(pair) for pair in every]

    def __str__(self) -> str:
        return ", ".join(f"{100 * share:.3g} % of {what}" for what, share in zip(WHAT, self[:2], strict=True)
                         if share)


class RemovedGroups(NamedTuple):
    """What was removed before one weight: so many groups are left of so many, and the output of that weight changes
    by `error`, relative, on the rows that it was fitted to; `singular` where these leave directions of its inputs
    out."""

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
    """A smaller model; `zeroed` is the same one at its old sizes, where weights have rows of zeros instead: both are
    equal exactly."""

    level: Level
    model: Operator
    zeroed: Operator
    cuts: tuple[RemovedGroups, ...]
    rows: int
    metric: str = field(default="gram")

    @property
    def name(self) -> str: return f"less {self.level}"

    def checked(self, batch: Batch) -> float:
        """How far both are apart in float64, relative. Raises VerificationError where they are not one operator."""
        off = difference(dense(self.model, batch), dense(self.zeroed, batch))
        if off <= EQUAL: return off
        raise VerificationError(3, self.name, "the smaller model is not the one with rows of zeros", difference=off)

    def described(self) -> dict[str, object]:
        """As JSON."""
        return {"level": self.level._asdict(), "tokens": self.rows, "metric": self.metric,
                "cuts": [cut._asdict() for cut in self.cuts]}

    def told(self) -> str:
        """The steps that lead to it, as they stand before those of a program's derivation."""
        return "\n".join([f"removal: {self.level}, fitted to {self.rows} tokens layer by layer; {len(self.cuts)} "
                          "approximations, each of one weight by rows of\nzeros; then columns are chosen before what "
                          "treats them alike, exactly",
                          *(f"  {cut}" for cut in self.cuts)])


def remove_groups(model: Operator, level: Level, batch: Batch, metric: str = METRICS[0]) -> Removed:
    """The model with as much removed as a level says, fitted to the rows of a batch. Raises InputError where a weight
    has more inputs than there are rows."""
    x = entered(model, batch, dtype=np.float32)
    small, zeroed, cuts = list[Operator](), list[Operator](), list[RemovedGroups]()
    lefts = iter(level.lefts(every_coupled(model)))
    for factor in factors(model):
        whole = factor
        for at in range(sum(1 for _ in coupled_weights(factor))):
            pair, twin = ([*coupled_weights(each)][at] for each in (factor, whole))
            if (left := next(lefts)) == pair.groups: continue
            rows = apply_factor(pair.before, x).array
            found, bias, cut = next(fit_removals(pair, [left], rows, metric))
            factor = substitute(factor, {pair.node: pair.cut(found.left, found.weight, bias)})
            whole = substitute(whole, {twin.node: twin.zeroed(found.whole(rows.shape[1]), bias)})
            cuts.append(cut)
        small.append(factor)
        zeroed.append(whole)
        x = apply_factor(factor, x)
    return Removed(level, reduce(matmul, small), reduce(matmul, zeroed), tuple(cuts), batch.rows, metric)


def fit_removals(pair: CoupledWeights, lefts: Sequence[int], rows: np.ndarray,
                 metric: str = METRICS[0]) -> Iterator[tuple[Removal, RealArray | None, RemovedGroups]]:
    """The weight of a pair with so many groups of inputs left, falling, fitted to what it reads, (rows, n), and its
    bias. What is lost on average goes to the bias, if there is one, so that OBS has to keep the rest alone: its metric
    is the covariance then."""
    name, n = pair.weight.label, rows.shape[1]
    if len(rows) < n:
        raise InputError(f"--calibrate: {len(rows)} tokens say too little of the {n} inputs of {name}: give a text of "
                         f"{n} tokens or more")
    gram = Gram.of(rows, f"what {name} reads")
    whole = gram.matrix if pair.bias is None else gram.covariance
    metrics = {"gram": whole, "diagonal": np.diagonal(gram.matrix), "none": None}
    counts, damped = [pair.groups - left for left in lefts], singular(whole)
    for left, found in zip(lefts, removals(pair.weight.array, counts, metrics[metric], pair.group), strict=True):
        bias = None if pair.bias is None else np.asarray(pair.bias.array, np.float64)
        if bias is not None and metric == "gram":
            bias = bias + gram.total / gram.rows @ (pair.weight.array - found.whole(n))
        yield found, bias, RemovedGroups(name, pair.what, left, pair.groups, found.error, damped)


def singular(gram: np.ndarray) -> bool:
    """Whether some direction has less than a 1e-8th of the mean energy, which is rounding."""
    try: np.linalg.cholesky(gram - 1e-8 * np.trace(gram) / len(gram) * np.eye(len(gram)))
    except np.linalg.LinAlgError: return True
    return False


def check_removal(what: Sequence[str], file: object) -> None:
    """Raises InputError for what is nothing of which models consist, and for a file to fit where nothing is removed."""
    for name in what:
        if name not in WHAT: raise InputError(f"--remove {name}: it is one of {', '.join(WHAT)}, or both with a comma")
    if file is not None and not what:
        raise InputError(f"--calibrate {file}: it fits what is left by --remove: give that, too")


def every_coupled(model: Operator) -> list[CoupledWeights]:
    """The coupled weights of a whole model, in order."""
    return [pair for factor in factors(model) for pair in coupled_weights(factor)]
