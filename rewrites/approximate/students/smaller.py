"""The student before it is trained: the model with fewer hidden units and heads. How many each layer keeps is chosen by
the losses that one pullback predicts, and what is left is corrected in closed form."""

from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.term import Operator
from opmatrix.runtime.program import Program
from rewrites.approximate.losses import Curve, cheapest_level, predict_curves
from rewrites.approximate.predicted_errors import OutputProbe
from rewrites.approximate.removing import Level, Removed, every_coupled, remove_groups
from rewrites.approximate.structured import HEADS, UNITS

LEAST_KEPT = 1 / 8  # the smallest share of units or heads that losses are known for


class KeptShares(NamedTuple):
    """The shares of hidden units and of heads that a student keeps."""

    units: float = 0.5
    heads: float = 0.5

    def check(self) -> None:
        """Raise InputError for a share that no student has, and for a student as large as the model."""
        for name, share in self._asdict().items():
            if not LEAST_KEPT <= share <= 1:
                raise InputError(f"--{name} {share:g}: a student keeps a share from {LEAST_KEPT} to 1")
        if self.units == self.heads == 1:
            raise InputError("--units 1 --heads 1: the student would be the model: keep a smaller share of either")


def make_smaller(model: Operator, program: Program, kept: KeptShares, fit: Batch, probe: Batch, metric: str) -> Removed:
    """Return the model with these shares of its units and heads, fitted to one batch; `program` computes the model, and
    predicts losses on `probe`. Raises InputError where the model has none to remove, and for too few tokens."""
    pairs = every_coupled(model)
    if not any(pair.what in (UNITS, HEADS) for pair in pairs):
        raise InputError(
            "distil: the model has no hidden units or heads to remove: give a smaller program, --student DIR"
        )
    widest = max(pairs, key=lambda pair: pair.weight.shape[0])
    if fit.rows < widest.weight.shape[0]:
        raise InputError(
            f"--text: {fit.rows} tokens that train are too few for the {widest.weight.shape[0]} inputs of "
            f"{widest.weight.label}: give a longer text"
        )
    curves = predict_curves(model, (UNITS, HEADS), OutputProbe(program, probe), [])
    uniform = Level(1 - kept.units, 1 - kept.heads)
    return remove_groups(model, divide_level(curves, uniform) if curves else uniform, fit, metric)


def divide_level(curves: list[Curve], wanted: Level) -> Level:
    """Return a level that removes the wanted share of each kind, from the layers where it costs least."""
    lefts = [curve.groups for curve in curves]
    for what, share in ((UNITS, wanted.units), (HEADS, wanted.heads)):
        one = [curve if curve.what == what else curve._replace(losses=curve.losses[:1]) for curve in curves]
        least = sum(share * count_removable(curve) for curve in one)
        if not least:
            continue
        level = cheapest_level(one, least)
        lefts = [
            left if curve.what != what else new for curve, left, new in zip(curves, lefts, level.kept, strict=True)
        ]
    return wanted._replace(kept=tuple(lefts))


def count_removable(curve: Curve) -> float:
    """Return the numbers of all groups of a pair; 0 for a pair that stays."""
    last = curve.losses[-1]
    return last.gone * curve.groups / (curve.groups - last.left) if last.gone else 0.0
