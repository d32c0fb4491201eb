"""Virtual ranks that run forward and backward: the same steps that formulas are read off, in float64, with gradients
summed over the ranks that have parts of them. What is computed and handed over is counted at the arrays."""
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

REDUCTIONS = 1_000_000                                      # of gradients, told from the steps of values


@dataclass(frozen=True)
class RanBackward:
    """What came out, the gradients of whole arrays by name, what each rank counted, and the formulas."""
    value: Numeric
    gradients: Mapping[str, Numeric]
    meters: Mapping[Coordinates, Meter]
    summed: Mapping[Coordinates, Meter]
    booked: BackwardBooked

    @cached_property
    def sent(self) -> tuple[list[Crossing], list[Crossing]]:
        """What crosses by the formulas: values and weights, and sums of gradients."""
        booked = self.booked
        return [*booked.fetched(), *booked.crossings_of("forward", *BACKWARD)], [*booked.reductions()]

    @cached_property
    def held(self) -> list[sympy.Expr]: return self.booked.held_both_ways()
    @cached_property
    def flops(self) -> sympy.Expr: return self.booked.flops_of("forward", *BACKWARD)

    def foreseen(self, place: Coordinates) -> tuple[Meter, Meter]:
        """What a rank counts by the formulas: all but sums of gradients, and these. They are equal to `meters` and to
        `summed`."""
        mesh, whole = self.booked.mesh, [dims.numbers for _, dims in self.booked.stored().values()]
        here = {axis.at: sympy.Integer(r) for axis, r in zip(mesh.axes, place, strict=True)}

        def at(e: LiveSize) -> int: return int(sympy.sympify(e).xreplace(here))
        own = whole
        for axis in mesh.storing(3): own = [piece(each, axis.ranks, axis.at) for each in own]
        values = Meter(at(self.flops), max(map(at, self.held)), at(add_up(own)),
                       at(add_up(whole)) if mesh.storing(3) else 0)
        sums = Meter()
        for meter, crossings in zip((values, sums), self.sent, strict=True):
            for each in crossings: meter.sent((each.op, each.axis), *(at(getattr(each, what)) for what in CROSSED))
        return values, sums


class BackwardRank(Rank, ExpertGradients):
    """A rank that goes forward and back. Sums of gradients are counted apart."""
    def __init__(self, split: BackwardSplit, place: Coordinates, feed: Feed, meter: Meter, cotangent: Numeric,
                 kept: dict[Any, Data]) -> None:
        super().__init__(split.steps, split.out, split.mesh, place, feed, meter, None, kept)
        self.cotangent = cotangent
        self.asked = {line: split.places[line] for line in split.pulled.gradients.values()}

    def both_ways(self) -> Generator[Message, Any, dict[int, Numeric]]:
        """Runs all steps: what this rank holds of the result, under -1, and of the sum of each gradient, by line."""
        yield from self.fetch()
        lasts = last_reads(self.steps, self.out, *self.asked.values())
        for at, step in enumerate(self.steps):
            if step.op == "move": self.values[at] = yield self.message(at, step)
            elif step.op == "kept": self.renamed(at, step, lasts)
            else: self.values[at] = getattr(self, step.op)(step, *self.operands(step))
            self.meter.peak = max(self.meter.peak, sum(map(count_held, self.values.values())))
            for done in [v for v in self.values if lasts[v] <= at]: del self.values[done]
        found = {-1: self.array(self.out)}
        buckets: dict[GradientBucket, list[int]] = {}
        for line, at in self.asked.items():
            lies = self.steps[at].placement
            buckets.setdefault((lies.partial, lies.copied, ()), []).append(line)
        for number, ((parts, copied, _), lines) in enumerate(buckets.items()):
            arrays = [self.array(self.asked[line]) for line in lines]
            flat = np.concatenate([each.ravel() for each in arrays])
            for k, state in copied:
                holders = copy_holders(state, self.mesh.axes[k].count, self.place[k])
                flat = yield Message("all_reduce", k, (flat,), REDUCTIONS + number, monoids.sum, among=holders)
            for k in parts: flat = yield from self.reduced(flat, k, REDUCTIONS + number)
            ends = np.cumsum([each.size for each in arrays])[:-1]
            found |= {line: part.reshape(each.shape)
                      for line, part, each in zip(lines, np.split(flat, ends), arrays, strict=True)}
        return found

    def reduced(self, flat: Numeric, k: int, at: int) -> Generator[Message, Any, Numeric]:
        """The sum over an axis; where it stores the optimiser's state once, a piece, and the others' are gathered,
        unless weights are stored in pieces, too: a rank has zeros there then."""
        axis, whole = self.mesh.axes[k], Cut("batch", flat.size)
        if not axis.strategy.stored:
            found: Numeric = yield Message("all_reduce", k, (flat,), at, monoids.sum)
            return found
        own: Numeric = yield Message("reduce_scatter", k, (flat,), at, monoids.sum, None, whole)
        if axis.strategy.stored < 3:
            gathered: Numeric = yield Message("all_gather", k, (own,), at, None, whole, units=flat.size)
            return gathered
        found = np.zeros_like(flat)
        found[slice(*bounds(flat.size, axis.count, self.place[k]))] = own
        return found

    def renamed(self, at: int, step: RankStep, lasts: Sequence[int]) -> None:
        """What is kept is the value itself, and no copy, unless something else reads it later."""
        source = step.args[0]
        self.values[at] = self.values[source]
        if lasts[source] <= at: del self.values[source]

    # What backward steps are made of.

    def entered(self, step: RankStep) -> Held:
        given = self.cotangent if step.more[0].name == COTANGENT else self.feed.inputs[step.more[0].name]
        return given[self.window(step.dims, step.placement)]
    def summed(self, step: RankStep, x: Numeric) -> Held: return np.asarray(x.sum((0, 2), keepdims=True))
    def outer(self, step: RankStep, u: Numeric | OneHot, g: Numeric) -> Held:
        left = u.rows if isinstance(u, OneHot) else u
        found = np.asarray((left.swapaxes(-1, -2) @ g).sum(0, keepdims=True))
        if not isinstance(u, OneHot): self.meter.flops += 2 * found.size * left.shape[0] * left.shape[2]
        return found
    def shares(self, step: RankStep, z: Numeric) -> Held:
        where = step.more[0]
        return shares_of(z, None if where.name == "everyone" else self.seen(where, self.steps[step.args[0]]))
    def dropped(self, step: RankStep, x: Numeric) -> Held:
        name, rate = step.more
        mask = np.broadcast_to(self.feed.inputs[name], tuple(map(int, step.dims)))
        return np.asarray(x * mask[self.window(step.dims, step.placement)] / (1 - rate))
    def fold(self, step: RankStep, x: Numeric) -> Held:
        (b, h, s, c), own = x.shape, self.heads(step)
        return np.asarray(x.reshape(b, own, h // own, s, c).sum(2))


def run_backward(term: Operator, mesh: Mesh, feed: Feed, cotangent: Numeric, *, keep: Keep = "units",
                 dropout: float = 0, tokens: bool = True) -> RanBackward:
    """Runs a model of tokens, or of rows of numbers, forward and back on every rank of a mesh without stages;
    `cotangent` is of what comes out, sequences x rows x columns. Raises InputError for a mesh with stages."""
    if mesh.stages is not None:
        raise InputError(f"mesh: {mesh.stages.name}: virtual ranks run one stage forward and back: leave stages out")
    pulled = pullback(term, keep=keep, dropout=dropout, tokens=tokens)
    sizes = BatchSizes(int(feed.x.shape[0]), int(feed.x.shape[1]))
    split = BackwardSplit(pulled, mesh, sizes, selects=tokens)
    meters = {place: Meter() for place in mesh.places()}
    ranks = {place: BackwardRank(split, place, feed, meter, cotangent[:, None], {}) for place, meter in meters.items()}
    summed = {place: Meter() for place in meters}
    results = drive({place: counted_apart(rank, summed[place]) for place, rank in ranks.items()}, mesh, meters)
    made: Mapping[Coordinates, Any] = results
    found = {line: whole_of_gradient(split.steps[at], {p: each[line] for p, each in made.items()}, mesh)
             for line, at in next(iter(ranks.values())).asked.items()}
    value = assembled(split.steps[split.out], {p: each[-1] for p, each in made.items()}, mesh)
    return RanBackward(value, assembled_gradients(pulled, found), meters, summed, BackwardBooked(split))


def counted_apart(rank: BackwardRank, summed: Meter) -> Generator[Message, Any, dict[int, Numeric]]:
    """What a rank does; sums of gradients are booked in a meter of their own."""
    running, value, own = rank.both_ways(), None, rank.meter
    while True:
        try: message = running.send(value)
        except StopIteration as end: return end.value       # type: ignore[no-any-return]
        before = {name: dict(getattr(own, name)) for name in CROSSED}
        value = yield message
        if message.at < REDUCTIONS: continue
        key = message.op, rank.mesh.axes[message.axis].name
        more = [getattr(own, name)[key] - before[name].get(key, 0) for name in before]
        summed.sent(key, *more)
        for name, table in before.items(): setattr(own, name, table)


def whole_of_gradient(step: RankStep, results: Mapping[Coordinates, Carriers], mesh: Mesh) -> Numeric:
    """A whole gradient of what ranks have: the same on all that share it; where weights are stored in pieces, a sum."""
    cuts = tuple((k, state) for k, state in step.placement.cuts if isinstance(state, Cut))
    parts = [k for k in step.placement.partial if mesh.axes[k].strategy.stored > 2]
    own: dict[Coordinates, Any] = {}
    for place, value in results.items():
        key = tuple(0 if k in parts else r for k, r in enumerate(place))
        own[key] = own[key] + value if key in own else value
    return assembled(step._replace(placement=Placement(cuts)), own, mesh)
