"""The amount to remove from each layer: of all ways to remove a given count of numbers, the one that changes the output
least.

Each pair alone is left fewer and fewer groups. Their losses are measured, fitted to the model as it is and with the
rest of it run for each; or all are predicted by one pullback: an input x_j of a weight with the cotangent ḡ_j changes
the output by -x_j ḡ_j where it is removed (Molchanov et al. 2017, arXiv:1611.06440, for the score; here signs over the
output, and sums over the rows of a sentence before squares). A prediction does not see corrections of the weights that
are left: units that are there twice go for nothing, which only a measurement finds. Squared changes of different pairs
add up, so the choice of pairs is a small 0/1 program."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple, cast

import numpy as np

from formats import Format
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import apply_factor, entered, factors
from opmatrix.algebra.term import Operator, substitute
from opmatrix.runtime.cotangents import PulledStep, call_pullback
from opmatrix.runtime.program import Program
from rewrites.approximate.block_errors import pulled_steps, relative_change, residual_stream
from rewrites.approximate.predicted_errors import OutputProbe
from rewrites.approximate.removing import WHAT, Level, every_coupled, fit_removals
from rewrites.approximate.structured import CoupledWeights, coupled_weights

STEPS = tuple(step / 8 for step in range(1, 8))  # shares of a pair's groups that are removed on trial
SHARES = 0.2, 0.35, 0.45, 0.525, 0.6, 0.7  # shares of all numbers that the last steps remove
ORACLE = 4  # time of a pass of the oracle, in trials by kernels


class Loss(NamedTuple):
    """The loss of a pair alone with `left` groups left: the numbers removed from the model, and the squared relative
    change of its output."""

    left: int
    gone: int
    error: float


class Curve(NamedTuple):
    """The losses of a pair, step by step; the first keeps all of it."""

    what: str
    groups: int
    losses: tuple[Loss, ...]


def count_trials(model: Operator) -> int:
    """Return the approximate number of passes by kernels that the curves of a model take."""
    return ORACLE * len(STEPS) * len(every_coupled(model))


def curves(model: Operator, what: Sequence[str], fit: Batch, judged: Batch) -> Iterator[Curve]:
    """Yield the curve of each pair of a model, in order; a single point for a pair that is to stay. Fitted to one
    batch, measured on another one."""
    every = [*factors(model)]
    stream, x = residual_stream([[factor] for factor in every], judged), entered(model, fit, dtype=np.float32)
    for number, factor in enumerate(every):
        for pair in coupled_weights(factor):
            losses = [Loss(pair.groups, 0, 0.0)]
            lefts = fewer_groups(pair) if pair.what in what else []
            for removal, bias, cut in fit_removals(pair, lefts, apply_factor(pair.before, x).array) if lefts else ():
                node = pair.cut(removal.left, removal.weight, bias)
                behind = [substitute(factor, {pair.node: node}), *every[number + 1 :]]
                off = relative_change(behind, stream[number], stream[-1])
                losses.append(Loss(cut.left, count_numbers(pair.node) - count_numbers(node), off**2))
            yield Curve(pair.what, pair.groups, tuple(losses))
        x = apply_factor(factor, x)


def predict_curves(model: Operator, what: Sequence[str], probe: OutputProbe, notes: list[str]) -> list[Curve]:
    """Return the curve of each pair of a model, in order, predicted by one pullback through a program of it; an empty
    list, and a note, where a pair to be removed is read by no step with a cotangent. Groups are ranked by the losses of
    each alone on every other sentence; the loss of the first ones together is that on the further sentences."""
    every = every_coupled(model)
    wanted = {number: pair for number, pair in enumerate(every) if pair.what in what}
    readers, known = find_readers(probe.program, wanted), dict[int, Curve]()
    for pulled in pulled_steps(probe, readers, notes):
        pair = every[readers[pulled.step]]
        known[readers[pulled.step]] = Curve(pair.what, pair.groups, tuple(predict_losses(pair, probe, pulled)))
    if len(known) < len(wanted):
        notes.append(f"{len(wanted) - len(known)} weights that lose inputs have no cotangent: all losses are measured")
        return []
    whole = [Curve(pair.what, pair.groups, (Loss(pair.groups, 0, 0.0),)) for pair in every]
    return [known.get(number, curve) for number, curve in enumerate(whole)]


def find_readers(program: Program, pairs: Mapping[int, CoupledWeights]) -> dict[int, int]:
    """Return the steps that multiply by the weights of pairs, each with the number of its pair. Pairs whose weight is
    in no step as it is in the model are left out."""
    readers, left = dict[int, int](), dict(pairs)
    for at, step in enumerate(program.steps):
        stored = program.constants.get(step.operands.get("weight", ""))
        if not isinstance(stored, Format):
            continue
        alike = [number for number, pair in left.items() if pair.weight.shape == stored.shape]
        matrix = stored.unpack() if alike else np.zeros(0)
        for number in alike:
            numbers = np.asarray(left[number].weight.array, np.float32)
            if np.array_equal(matrix[0], numbers[0]) and np.array_equal(matrix, numbers):
                readers[at] = number
                del left[number]
                break
    return readers


def predict_losses(pair: CoupledWeights, probe: OutputProbe, pulled: PulledStep) -> Iterator[Loss]:
    """Yield the losses of a pair at the step that multiplies by its weight, the first of no loss."""
    errors = {left: 0.0 for left in fewer_groups(pair)}
    for ranks in (0, 1):
        ranking = np.arange(len(probe.batch)) % 2 == ranks
        changes = changes_by_group(pair, probe, pulled, ranking)
        order = np.square(changes[:, ranking]).sum((0, 1)).argsort()
        for left in errors:
            together = changes[:, ~ranking][:, :, order[: pair.groups - left]].sum(-1)
            errors[left] += probe.relative(together) ** 2
    yield Loss(pair.groups, 0, 0.0)
    for left, error in errors.items():
        yield Loss(left, count_gone(pair, left), error)


def changes_by_group(pair: CoupledWeights, probe: OutputProbe, pulled: PulledStep, chosen: np.ndarray) -> np.ndarray:
    """Return the change of the output by each group of a pair alone where it is removed, for each direction and
    sentence, (K, S, groups). If there is a bias it takes the mean of what is removed, over the `chosen` sentences."""
    x = cast("np.ndarray", pulled.arguments["x"])
    cotangents = call_pullback(pulled.call, pulled.arguments, probe.batch, pulled.cotangents, pair.weight.label)["x"]
    shift = 0.0 if pair.bias is None else mean_of_sentences(x, probe, pulled, chosen)
    rows = probe.by_sentence(pulled, cotangents * (shift - x))
    return cast("np.ndarray", rows.reshape(*rows.shape[:2], pair.groups, pair.group).sum(-1, dtype=np.float64))


def mean_of_sentences(x: np.ndarray, probe: OutputProbe, pulled: PulledStep, chosen: np.ndarray) -> np.ndarray:
    """Return the mean of the rows of some sentences."""
    [sums], [counts] = (probe.by_sentence(pulled, rows[None]) for rows in (x, np.ones(len(x))))
    return np.asarray(sums[chosen].sum(0) / counts[chosen].sum(), x.dtype)


def count_gone(pair: CoupledWeights, left: int) -> int:
    """Return the numbers that a model loses where a pair has `left` groups left."""
    rows = np.arange(left * pair.group)
    bias = None if pair.bias is None else pair.bias.array
    return count_numbers(pair.node) - count_numbers(pair.cut(rows, pair.weight.array[rows], bias))


def fewer_groups(pair: CoupledWeights) -> list[int]:
    """Return the numbers of groups to leave of a pair, falling."""
    return [left for left in dict.fromkeys(Level(step, step).left(pair) for step in STEPS) if left < pair.groups]


def count_numbers(term: Operator) -> int:
    """Return the number of numbers in the weights of a term."""
    return sum(prod(leaf.args[0].shape) for leaf in term.walk() if leaf.kind.name == "weight")


def levels(found: Sequence[Curve], what: Sequence[str], shares: Sequence[float] = ()) -> list[Level]:
    """Return the levels at which these shares of all removable numbers are removed, each at the least cost. Raises
    InputError where no number can be removed."""
    most = check_removable(found, what)
    solved = (cheapest_level(found, share * most) for share in shares or SHARES)
    return [*dict.fromkeys(solved)]


def check_removable(every_curve: Sequence[Curve], what: Sequence[str]) -> int:
    """Return the most numbers that can be removed. Raises InputError where there are none."""
    most = sum(curve.losses[-1].gone for curve in every_curve)
    if not most:
        raise InputError(f"--remove {','.join(what)}: the model has none to remove: leave the option out")
    return most


def cheapest_level(found: Sequence[Curve], least: float) -> Level:
    """Return the level that removes at least `least` numbers at the smallest sum of errors."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    every = [(at, loss) for at, curve in enumerate(found) for loss in curve.losses]
    one = np.array([[at == other for other, _ in every] for at in range(len(found))], float)
    gone, errors = np.array([[loss.gone, loss.error] for _, loss in every], float).T
    result = milp(
        errors,
        constraints=[LinearConstraint(one, 1, 1), LinearConstraint(gone / least, 1, np.inf)],
        integrality=np.ones(len(every)),
        bounds=Bounds(0, 1),
    )
    return level_of(found, [loss.left for (_, loss), taken in zip(every, result.x, strict=True) if taken > 0.5])


def uniform_levels(every_curve: Sequence[Curve], what: Sequence[str], shares: Sequence[float] = ()) -> list[Level]:
    """Return the levels of one size for all layers at which these shares of all removable numbers, at least, are
    removed, each at the least cost: layers keep as many units, and as many heads. Raises InputError where no number can
    be removed, or layers have no size in common."""
    most = check_removable(every_curve, what)
    kinds = [*dict.fromkeys(curve.what for curve in every_curve)]
    sizes = product(*(common_sizes(every_curve, kind) for kind in kinds))
    every = [take_sizes(every_curve, dict(zip(kinds, lefts, strict=True))) for lefts in sizes]
    solved = list[Sequence[Loss]]()
    for share in shares or SHARES:
        enough = [losses for losses in every if sum(loss.gone for loss in losses) >= max(1, share * most)]
        if enough:
            solved.append(min(enough, key=lambda losses: sum(loss.error for loss in losses)))
    if not solved:
        raise InputError(f"--uniform: layers have no smaller number of {' and '.join(what)} in common: leave it out")
    return [*dict.fromkeys(level_of(every_curve, [loss.left for loss in losses]) for losses in solved)]


def common_sizes(every_curve: Sequence[Curve], what: str) -> list[int]:
    """Return the numbers of groups that each curve of a kind has a loss for."""
    sizes = [{loss.left for loss in curve.losses} for curve in every_curve if curve.what == what]
    return sorted(set[int].intersection(*sizes))


def take_sizes(every_curve: Sequence[Curve], sizes: Mapping[str, int]) -> list[Loss]:
    """Return the loss of each curve with the number of groups of its kind."""
    return [next(loss for loss in curve.losses if loss.left == sizes[curve.what]) for curve in every_curve]


def level_of(every_curve: Sequence[Curve], lefts: Sequence[int]) -> Level:
    """Return the level that leaves so many groups of each curve."""
    units, heads = (share_gone(every_curve, lefts, what) for what in WHAT)
    return Level(units, heads, tuple(lefts))


def share_gone(found: Sequence[Curve], kept: Sequence[int], what: str) -> float:
    """Return the share of all groups of a kind that is removed."""
    groups = [(curve.groups, left) for curve, left in zip(found, kept, strict=True) if curve.what == what]
    total = sum(count for count, _ in groups)
    return sum(count - left for count, left in groups) / total if total else 0.0
