"""How much goes from which layer: of all ways to let so many numbers go, the one that costs the output least.

Each pair alone is left fewer and fewer groups, fitted to the model as it is, and the change of the output is measured
from there on. Changes of different pairs add up as squares do, so which go together is a small 0/1 program."""
from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import apply_factor, entered, factors
from opmatrix.algebra.term import Operator, substitute
from rewrites.approximate.block_errors import relative_change, residual_stream
from rewrites.approximate.removing import WHAT, Level, every_coupled, fit_removals
from rewrites.approximate.structured import CoupledWeights, coupled_weights

STEPS = tuple(step / 8 for step in range(1, 8))             # shares of a pair's groups that are tried
SHARES = 0.2, 0.35, 0.45, 0.525, 0.6, 0.7                  # of all numbers that the last step of each pair lets go
ORACLE = 4                                                  # of a trial by kernels: what a pass of the oracle takes


class Loss(NamedTuple):
    """What a pair alone costs with so many groups left: numbers that the model stores no more, and the squared
    relative change of its output."""

    left: int
    gone: int
    error: float


class Curve(NamedTuple):
    """What a pair costs, step by step; the first keeps all of it."""

    what: str
    groups: int
    losses: tuple[Loss, ...]


def count_trials(model: Operator) -> int:
    """How many passes by kernels, about, the curves of a model take."""
    return ORACLE * len(STEPS) * len(every_coupled(model))


def curves(model: Operator, what: Sequence[str], fit: Batch, judged: Batch) -> Iterator[Curve]:
    """The curve of each pair of a model, in order; flat for what is to stay. Fitted to one batch, measured on another
    one."""
    every = [*factors(model)]
    stream, x = residual_stream([[factor] for factor in every], judged), entered(model, fit, dtype=np.float32)
    for number, factor in enumerate(every):
        for pair in coupled_weights(factor):
            losses = [Loss(pair.groups, 0, 0.0)]
            lefts = fewer_groups(pair) if pair.what in what else []
            for removal, bias, cut in fit_removals(pair, lefts, apply_factor(pair.before, x).array) if lefts else ():
                node = pair.cut(removal.left, removal.weight, bias)
                behind = [substitute(factor, {pair.node: node}), *every[number + 1:]]
                off = relative_change(behind, stream[number], stream[-1])
                losses.append(Loss(cut.left, count_numbers(pair.node) - count_numbers(node), off ** 2))
            yield Curve(pair.what, pair.groups, tuple(losses))
        x = apply_factor(factor, x)


def fewer_groups(pair: CoupledWeights) -> list[int]:
    """How many groups are left of a pair, falling."""
    return [left for left in dict.fromkeys(Level(step, step).left(pair) for step in STEPS) if left < pair.groups]


def count_numbers(term: Operator) -> int:
    """How many numbers the weights of a term have."""
    return sum(prod(each.args[0].shape) for each in term.walk() if each.kind.name == "weight")


def levels(found: Sequence[Curve], what: Sequence[str], shares: Sequence[float] = ()) -> list[Level]:
    """Levels at which these shares of all that could go do, each at the least cost. Raises InputError where nothing
    could."""
    most = sum(curve.losses[-1].gone for curve in found)
    if not most: raise InputError(f"--remove {','.join(what)}: the model has none that could go: leave the option out")
    made = (cheapest_level(found, share * most) for share in shares or SHARES)
    return [*dict.fromkeys(made)]


def cheapest_level(found: Sequence[Curve], least: float) -> Level:
    """The level at which at least so many numbers go and the errors add to least."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    every = [(at, loss) for at, curve in enumerate(found) for loss in curve.losses]
    one = np.array([[at == own for own, _ in every] for at in range(len(found))], float)
    gone, errors = np.array([[loss.gone, loss.error] for _, loss in every], float).T
    result = milp(errors, constraints=[LinearConstraint(one, 1, 1), LinearConstraint(gone / least, 1, np.inf)],
                  integrality=np.ones(len(every)), bounds=Bounds(0, 1))
    kept = [loss.left for (_, loss), taken in zip(every, result.x, strict=True) if taken > 0.5]
    units, heads = (share_gone(found, kept, what) for what in WHAT)
    return Level(units, heads, tuple(kept))


def share_gone(found: Sequence[Curve], kept: Sequence[int], what: str) -> float:
    """The share of all groups of a kind that goes."""
    groups = [(curve.groups, left) for curve, left in zip(found, kept, strict=True) if curve.what == what]
    total = sum(count for count, _ in groups)
    return sum(count - left for count, left in groups) / total if total else 0.0
