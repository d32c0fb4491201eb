"""Virtual ranks that run forward and backward: the same steps as those of the formulas, in float64, with gradients
summed over the ranks that have parts of them. Operations and communication are counted at the arrays."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import sympy

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.positions.visibility import shares_of
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator
from opmatrix.autodiff.checkpoint_policy import Keep
from opmatrix.autodiff.line_readings import COTANGENT
from opmatrix.autodiff.pullback import assembled_gradients, pullback
from opmatrix.parallel.cost.step_costs import BACKWARD, BackwardBooked, GradientBucket
from opmatrix.parallel.ranks.ranks import Held, Message, Meter, Rank, count_held
from opmatrix.parallel.ranks.virtual import assembled, drive
from opmatrix.parallel.sharding.axis_states import Cut, bounds, piece
from opmatrix.parallel.sharding.carrier_pieces import Carriers
from opmatrix.parallel.sharding.cost_formulas import CROSSED, Crossing, add_up
from opmatrix.parallel.sharding.feeds import Feed, OneHot
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.placement import Coordinates, Placement, copy_holders
from opmatrix.parallel.sharding.redistribute import RankStep, last_reads
from opmatrix.parallel.train.backward_split import BackwardSplit
from opmatrix.parallel.train.moe_gradients import ExpertGradients

REDUCTIONS = 1_000_000  # step numbers of gradients, apart from those of values


@dataclass(frozen=True)
class RanBackward:
    """The result of a forward and backward run."""

    value: Numeric  # the output
    gradients: Mapping[str, Numeric]  # gradients of whole arrays, by name
    meters: Mapping[Coordinates, Meter]  # counts of each rank, without sums of gradients
    summed: Mapping[Coordinates, Meter]  # counts of the sums of gradients
    booked: BackwardBooked  # the formulas

    @cached_property
    def sent(self) -> tuple[list[Crossing], list[Crossing]]:
        """The communication by the formulas: of values and weights, and of sums of gradients."""
        booked = self.booked
        return [*booked.fetched(), *booked.crossings_of("forward", *BACKWARD)], [*booked.reductions()]

    @cached_property
    def held(self) -> list[sympy.Expr]:
        """The counts of numbers that a rank holds at a time, forward and backward."""
        return self.booked.held_both_ways()

    @cached_property
    def flops(self) -> sympy.Expr:
        """The operations of forward and backward on a rank."""
        return self.booked.flops_of("forward", *BACKWARD)

    def foreseen(self, place: Coordinates) -> tuple[Meter, Meter]:
        """Return the counts of a rank by the formulas: all but sums of gradients, and sums of gradients. They equal
        `meters` and `summed`."""
        mesh, whole = self.booked.mesh, [dims.numbers for _, dims in self.booked.stored().values()]
        here = {axis.at: sympy.Integer(r) for axis, r in zip(mesh.axes, place, strict=True)}

        def at(e: LiveSize) -> int:
            """Evaluate a formula at the rank's place."""
            return int(sympy.sympify(e).xreplace(here))

        parts = whole
        for axis in mesh.storing(3):
            parts = [piece(size, axis.ranks, axis.at) for size in parts]
        values = Meter(
            at(self.flops), max(map(at, self.held)), at(add_up(parts)), at(add_up(whole)) if mesh.storing(3) else 0
        )
        sums = Meter()
        for meter, crossings in zip((values, sums), self.sent, strict=True):
            for crossing in crossings:
                meter.sent((crossing.op, crossing.axis), *(at(getattr(crossing, what)) for what in CROSSED))
        return values, sums


class BackwardRank(Rank, ExpertGradients):
    """A rank that runs forward and backward. Sums of gradients are counted apart."""

    def __init__(
        self,
        split: BackwardSplit,
        place: Coordinates,
        feed: Feed,
        meter: Meter,
        cotangent: Numeric,
        kept: dict[Any, Data],
    ) -> None:
        super().__init__(split, place, feed, meter, None, kept)
        self.cotangent = cotangent
        self.asked = {line: split.places[line] for line in split.pulled.gradients.values()}

    def both_ways(self) -> Generator[Message, Any, dict[int, Numeric]]:
        """Run all steps. Return the rank's part of the result, under -1, and of the sum of each gradient, by line."""
        yield from self.fetch()
        lasts = last_reads(self.steps, self.out, *self.asked.values())
        for at, step in enumerate(self.steps):
            if step.op == "move":
                self.values[at] = yield self.message(at, step)
            elif step.op == "kept":
                self.renamed(at, step, lasts)
            else:
                self.values[at] = getattr(self, step.op)(step, *self.operands(step))
            self.meter.peak = max(self.meter.peak, sum(map(count_held, self.values.values())))
            for done in [v for v in self.values if lasts[v] <= at]:
                del self.values[done]
        results = {-1: self.array(self.out)}
        buckets: dict[GradientBucket, list[int]] = {}
        for line, at in self.asked.items():
            lies = self.steps[at].placement
            buckets.setdefault((lies.partial, lies.copied, ()), []).append(line)
        for number, ((parts, copied, _), lines) in enumerate(buckets.items()):
            arrays = [self.array(self.asked[line]) for line in lines]
            flat = np.concatenate([array.ravel() for array in arrays])
            for k, state in copied:
                holders = copy_holders(state, self.mesh.axes[k].count, self.place[k])
                flat = yield Message("all_reduce", k, (flat,), REDUCTIONS + number, monoids.sum, among=holders)
            for k in parts:
                flat = yield from self.reduced(flat, k, REDUCTIONS + number)
            ends = np.cumsum([array.size for array in arrays])[:-1]
            results |= {
                line: part.reshape(array.shape)
                for line, part, array in zip(lines, np.split(flat, ends), arrays, strict=True)
            }
        return results

    def reduced(self, flat: Numeric, k: int, at: int) -> Generator[Message, Any, Numeric]:
        """Sum gradients over an axis. If the axis stores the optimiser's state once, a rank sums a piece, and the
        pieces of the others are gathered. If it stores weights in pieces, too, they are not gathered, and a rank has
        zeros there."""
        axis, whole = self.mesh.axes[k], Cut("batch", flat.size)
        if not axis.strategy.stored:
            total: Numeric = yield Message("all_reduce", k, (flat,), at, monoids.sum)
            return total
        part: Numeric = yield Message("reduce_scatter", k, (flat,), at, monoids.sum, None, whole)
        if axis.strategy.stored < 3:
            gathered: Numeric = yield Message("all_gather", k, (part,), at, None, whole, units=flat.size)
            return gathered
        total = np.zeros_like(flat)
        total[slice(*bounds(flat.size, axis.count, self.place[k]))] = part
        return total

    def renamed(self, at: int, step: RankStep, lasts: Sequence[int]) -> None:
        """Save a value: the saved value is the value itself, and no copy, unless another step reads it later."""
        source = step.args[0]
        self.values[at] = self.values[source]
        if lasts[source] <= at:
            del self.values[source]

    # Operations of backward steps.

    def entered(self, step: RankStep) -> Held:
        """Return the rank's part of the cotangent of the result, or of an input."""
        array = self.cotangent if step.more[0].name == COTANGENT else self.feed.inputs[step.more[0].name]
        return array[self.window(step.dims, step.placement)]

    def summed(self, step: RankStep, x: Numeric) -> Held:
        """Sum over sequences and rows: one row a head is left."""
        return np.asarray(x.sum((0, 2), keepdims=True))

    def outer(self, step: RankStep, u: Numeric | OneHot, g: Numeric) -> Held:
        """Compute the sum over sequences of xᵀ g, and count the operations unless x is one-hot."""
        left = u.rows if isinstance(u, OneHot) else u
        product = np.asarray((left.swapaxes(-1, -2) @ g).sum(0, keepdims=True))
        if not isinstance(u, OneHot):
            self.meter.flops += 2 * product.size * left.shape[0] * left.shape[2]
        return product

    def shares(self, step: RankStep, z: Numeric) -> Held:
        """Compute the softmax of each row over the columns that it sees."""
        where = step.more[0]
        return shares_of(z, None if where.name == "everyone" else self.seen(where, self.steps[step.args[0]]))

    def dropped(self, step: RankStep, x: Numeric) -> Held:
        """Multiply by the rank's part of the mask, and divide by 1 - rate."""
        name, rate = step.more
        mask = np.broadcast_to(self.feed.inputs[name], tuple(map(int, step.dims)))
        return np.asarray(x * mask[self.window(step.dims, step.placement)] / (1 - rate))

    def fold(self, step: RankStep, x: Numeric) -> Held:
        """Sum groups of neighbouring heads to the heads of the result."""
        (b, h, s, c), heads = x.shape, self.heads(step)
        return np.asarray(x.reshape(b, heads, h // heads, s, c).sum(2))


def run_backward(
    term: Operator,
    mesh: Mesh,
    feed: Feed,
    cotangent: Numeric,
    *,
    keep: Keep = "units",
    dropout: float = 0,
    tokens: bool = True,
) -> RanBackward:
    """Run a model of tokens, or of rows of numbers, forward and backward on every rank of a mesh without stages;
    `cotangent` is that of the output, sequences x rows x columns. Raises InputError for a mesh with stages."""
    if mesh.stages is not None:
        raise InputError(f"mesh: {mesh.stages.name}: virtual ranks run one stage forward and back: leave stages out")
    pulled = pullback(term, keep=keep, dropout=dropout, tokens=tokens)
    sizes = BatchSizes(int(feed.x.shape[0]), int(feed.x.shape[1]))
    split = BackwardSplit(pulled, mesh, sizes, selects=tokens)
    meters = {place: Meter() for place in mesh.places()}
    ranks = {place: BackwardRank(split, place, feed, meter, cotangent[:, None], {}) for place, meter in meters.items()}
    summed = {place: Meter() for place in meters}
    results = drive({place: counted_apart(rank, summed[place]) for place, rank in ranks.items()}, mesh, meters)
    by_rank: Mapping[Coordinates, Any] = results
    gradients = {
        line: whole_of_gradient(split.steps[at], {p: parts[line] for p, parts in by_rank.items()}, mesh)
        for line, at in next(iter(ranks.values())).asked.items()
    }
    value = assembled(split.steps[split.out], {p: parts[-1] for p, parts in by_rank.items()}, mesh)
    return RanBackward(value, assembled_gradients(pulled, gradients), meters, summed, BackwardBooked(split))


def counted_apart(rank: BackwardRank, summed: Meter) -> Generator[Message, Any, dict[int, Numeric]]:
    """Run a rank; its sums of gradients are counted in a meter of their own."""
    running, value, meter = rank.both_ways(), None, rank.meter
    while True:
        try:
            message = running.send(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        before = {name: dict(getattr(meter, name)) for name in CROSSED}
        value = yield message
        if message.at < REDUCTIONS:
            continue
        key = message.op, rank.mesh.axes[message.axis].name
        more = [getattr(meter, name)[key] - before[name].get(key, 0) for name in before]
        summed.sent(key, *more)
        for name, table in before.items():
            setattr(meter, name, table)


def whole_of_gradient(step: RankStep, results: Mapping[Coordinates, Carriers], mesh: Mesh) -> Numeric:
    """Return a whole gradient from the parts of ranks: the same on all ranks that share it; a sum if weights are stored
    in pieces."""
    cuts = tuple((k, state) for k, state in step.placement.cuts if isinstance(state, Cut))
    parts = [k for k in step.placement.partial if mesh.axes[k].strategy.stored > 2]
    by_place: dict[Coordinates, Any] = {}
    for place, value in results.items():
        key = tuple(0 if k in parts else r for k, r in enumerate(place))
        by_place[key] = by_place[key] + value if key in by_place else value
    return assembled(step._replace(placement=Placement(cuts)), by_place, mesh)
