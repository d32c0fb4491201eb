"""The cost of a step of training on a partition, layer by layer: operations forward, recomputed and backward;
collectives of backward; values saved for each micro-batch; gradient sums over ranks. All are formulas of the same
lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import sympy

from formats.core.errors import InputError
from opmatrix.algebra.shapes import LiveSize
from opmatrix.autodiff.checkpoint_policy import DROPOUT_MASK, NAMED_POLICIES, Keep
from opmatrix.autodiff.pullback import PassPhase, pullback
from opmatrix.autodiff.vjp_rules import teaches
from opmatrix.parallel.cost.formulas import busiest
from opmatrix.parallel.sharding.axis_states import Cut, piece
from opmatrix.parallel.sharding.cost_formulas import NONE, Booked, Crossing, add_up, all_reduced, gathers, stored_dims
from opmatrix.parallel.sharding.factor_chain import joined, layers
from opmatrix.parallel.sharding.mesh import Axis
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import local
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.train.backward_split import BackwardSplit
from opmatrix.parallel.train.moe_gradients import BACK, back_flops, expert_copies

BACKWARD: tuple[PassPhase, ...] = ("kept", "again", "backward")
GradientBucket: TypeAlias = tuple[tuple[int, ...], tuple[tuple[int, Cut], ...], tuple[tuple[int, int], ...]]


class BackwardBooked(Booked):
    """The cost formulas of forward and backward steps."""

    split: BackwardSplit

    def __init__(self, split: BackwardSplit) -> None:
        super().__init__(split.steps, split.mesh, split.out)
        self.split = split

    def flops(self, at: int) -> sympy.Expr:
        """Return the operations of a step. An "outer" step multiplies rows and sums over all of them; token ids
        multiply nothing."""
        step = self.steps[at]
        if step.op == BACK:
            return self.asked.came(at) * back_flops(step, self.expert_widths(step))
        if step.op != "outer":
            return super().flops(at)
        if self.steps[step.args[0]].selects:
            return NONE
        u, dims = self.held_dims[step.args[0]], self.held_dims[at]
        return sympy.sympify(2 * u.batch * u.rows * dims.heads * dims.rows * dims.cols)

    def numbers(self, at: int) -> sympy.Expr:
        """Count the numbers that a rank holds of a value; of a backward step of experts all its parts."""
        step = self.steps[at]
        if step.op != BACK:
            return super().numbers(at)
        stacks = [
            (inner.more[0].args[0], inner.stored)
            for inner in step.more[3]
            if inner.op == "act" and teaches(inner.more[0]) is not None
        ]
        return add_up(
            [
                *map(self.numbers, step.args[:2]),
                *(local(stored_dims(data), stored, self.mesh).numbers for data, stored in stacks),
            ]
        )

    def expert_widths(self, step: RankStep) -> list[LiveSize]:
        """Return the columns that a rank has of each value within an expert."""
        return [local(inner.dims, inner.placement, self.mesh).cols for inner in step.more[3]]

    def crossing(self, at: int) -> Crossing | None:
        """Return the collective of a step, None where it has none. A backward step of experts sends rows with
        cotangents and gates to the experts, and receives gradients of rows and gates."""
        step = self.steps[at]
        axis = self.asked.axis(at) if step.op == BACK else None
        if axis is None:
            return None if step.op == BACK else super().crossing(at)
        x, _, g = (self.held_dims[a].cols for a in step.args)
        there, back = self.asked.sent(at) * (x + g + 1), self.asked.came(at) * (x + 1)
        stays = (there + self.asked.load * self.asked.sent(at) * (x + 1)) / axis.ranks
        return Crossing(
            "all_to_all",
            axis.name,
            there + back,
            there + back - stays,
            there + back,
            2 * (sympy.sympify(axis.ranks) - 1),
            sympy.Integer(2),
        )

    def held_both_ways(self) -> list[sympy.Expr]:
        """Return the numbers held while each step of forward and backward runs. Gradients are held until all steps have
        run."""
        asked = (self.split.places[line] for line in self.split.pulled.gradients.values())
        return [*dict.fromkeys(self.held(asked))]

    def fetched(self) -> Iterator[Crossing]:
        """Yield the collectives that gather sharded weights, all at once, before any step runs."""
        yield from gathers([dims.numbers for _, dims in self.stored().values()], self.mesh.storing(3))

    def flops_of(self, *phases: PassPhase) -> sympy.Expr:
        """Return the operations of the steps of some phases."""
        return add_up(self.flops(at) for at, phase in enumerate(self.split.step_phases) if phase in phases)

    def crossings_of(self, *phases: PassPhase) -> Iterator[Crossing]:
        """Yield the collectives of the steps of some phases."""
        for at, phase in enumerate(self.split.step_phases):
            if phase in phases and (crossing := self.crossing(at)) is not None:
                yield crossing

    def kept(self, number: float = 2, mask: float = 1) -> dict[str, sympy.Expr]:
        """Return the bytes that a rank saves for backward, by unit."""
        pulled, sizes = self.split.pulled, dict[str, sympy.Expr]()
        values = {line: (pulled.kept[at], number) for at, line in pulled.pull.kept.items() if at in pulled.kept}
        values |= {line: (DROPOUT_MASK, mask) for line in pulled.masks}
        for line, (unit, size) in values.items():
            held = self.numbers(self.split.places[line])
            sizes[unit] = sizes.get(unit, NONE) + sympy.nsimplify(size) * held
        return sizes

    def buckets(self) -> dict[GradientBucket, sympy.Expr]:
        """Group the numbers of gradients into buckets, each summed at once. The key of a bucket: the axes on which its
        gradients are partial, the axes on which the ranks with one copy of a head must sum (each with its shards), and
        the replicas of experts."""
        totals: dict[GradientBucket, sympy.Expr] = {}
        for line in self.split.pulled.gradients.values():
            at = self.split.places[line]
            lies = self.steps[at].placement
            key = lies.partial, lies.copied, expert_copies(self.mesh, lies)
            totals[key] = totals.get(key, NONE) + self.held_dims[at].numbers
        return totals

    def reductions(self) -> Iterator[Crossing]:
        """Yield the collectives that sum gradients over ranks. Where an axis shards the optimiser state it is a
        reduce-scatter, and the new weights are gathered afterwards, unless weights are sharded, too."""
        for (parts, copied, experts), numbers in self.buckets().items():
            for k, state in copied:
                yield among_copies(self.mesh.axes[k], state, numbers)
            for k in parts:
                yield from self.reduced(k, numbers)
            for k, count in experts:
                yield from among_experts(self.mesh.axes[k], count, numbers)

    def reduced(self, k: int, numbers: sympy.Expr) -> Iterator[Crossing]:
        """Yield the collectives of the sum of a bucket over an axis."""
        axis = self.mesh.axes[k]
        if not axis.strategy.stored:
            yield summed_whole(axis, numbers, axis.ranks, axis.at)
            return
        yield summed_in_pieces(axis, numbers, axis.ranks, axis.at)
        if axis.strategy.stored < 3:
            yield from gathers([numbers], [axis])


def summed_whole(axis: Axis, numbers: sympy.Expr, ranks: LiveSize, at: LiveSize) -> Crossing:
    """Return the all-reduce of gradients among `ranks` ranks of an axis; the rank `at` merges one piece."""
    part = sympy.sympify(piece(numbers, ranks, at))
    return all_reduced(axis.name, numbers, part, ranks)._replace(of="weights")


def summed_in_pieces(axis: Axis, numbers: sympy.Expr, ranks: LiveSize, at: LiveSize) -> Crossing:
    """Return the reduce-scatter of gradients among `ranks` ranks of an axis."""
    part = sympy.sympify(piece(numbers, ranks, at))
    return Crossing(
        "reduce_scatter",
        axis.name,
        numbers,
        numbers - part,
        numbers,
        sympy.sympify(ranks) - 1,
        sympy.Integer(1),
        "weights",
    )


def pieces_gathered(axis: Axis, whole: sympy.Expr, ranks: LiveSize, at: LiveSize) -> Crossing:
    """Return the all-gather of new weights that are sharded over `ranks` ranks of an axis."""
    part = sympy.sympify(piece(whole, ranks, at))
    return Crossing(
        "all_gather", axis.name, part, whole - part, whole, sympy.sympify(ranks) - 1, sympy.Integer(1), "weights"
    )


def place_among_copies(axis: Axis, count: int) -> sympy.Expr:
    """Return the index of the replica of experts, of `count`, that a rank of an axis has: neighbours have different
    experts."""
    apart = axis.count // count
    return (axis.at - sympy.Mod(axis.at, apart)) / apart


def among_experts(axis: Axis, count: int, numbers: sympy.Expr) -> Iterator[Crossing]:
    """Yield the collectives that sum gradients over the replicas of experts; sharded where an axis shards their
    state."""
    at = place_among_copies(axis, count)
    if not axis.strategy.stored:
        yield summed_whole(axis, numbers, count, at)
        return
    yield summed_in_pieces(axis, numbers, count, at)
    yield pieces_gathered(axis, numbers, count, at)


def among_copies(axis: Axis, state: Cut, numbers: sympy.Expr) -> Crossing:
    """Return the all-reduce of the gradients that ranks with the same copy give it."""
    n = sympy.sympify(axis.ranks) / state.units
    return summed_whole(axis, numbers, n, sympy.Mod(axis.at, n))


@dataclass(frozen=True)
class Chunk:
    """Equal layers, or the operations before or behind them: their formulas and their count."""

    booked: BackwardBooked
    count: int

    @cached_property
    def forward_flops(self) -> sympy.Expr:
        """The operations of a forward pass through one of the layers."""
        return self.booked.flops_of("forward")

    @cached_property
    def backward_flops(self) -> sympy.Expr:
        """The operations of a backward pass through one of the layers, without recomputation."""
        return self.booked.flops_of("kept", "backward")

    @cached_property
    def again_flops(self) -> sympy.Expr:
        """The operations that backward recomputes in one of the layers."""
        return self.booked.flops_of("again")


@dataclass(frozen=True)
class TrainingStep:
    """Formulas of one micro-batch, forward and backward, for a rank of a stage, by its coordinates."""

    plan: Partition
    stages: Sequence[Sequence[Chunk]]

    def kept(self, stage: int = 0, number: float = 2, mask: float = 1) -> dict[str, sympy.Expr]:
        """Return the bytes that a rank saves between forward and backward of a micro-batch, by unit."""
        sizes: dict[str, sympy.Expr] = {}
        for chunk in self.stages[stage]:
            for unit, size in chunk.booked.kept(number, mask).items():
                sizes[unit] = sizes.get(unit, NONE) + chunk.count * size
        return sizes

    def flops(self, stage: int = 0) -> dict[str, sympy.Expr]:
        """Return the operations of forward, "again" (recomputation) and backward."""
        return {
            name: add_up(chunk.count * getattr(chunk, f"{name}_flops") for chunk in self.stages[stage])
            for name in ("forward", "again", "backward")
        }

    def crossings(self, stage: int = 0) -> Iterator[tuple[int, Crossing]]:
        """Yield the collectives of backward and of recomputation, each with its count, and the sends to the stage
        before."""
        for chunk in self.stages[stage]:
            for crossing in chunk.booked.crossings_of(*BACKWARD):
                yield chunk.count, crossing
        for count, crossing in self.plan.crossings(stage):
            if crossing.of == "weights":
                yield count, crossing  # stored sharded: they are gathered again
        for crossing in self.plan.handing(stage - 1):
            yield 1, crossing

    def gradients(self, stage: int = 0) -> Iterator[tuple[int, Crossing]]:
        """Yield the collectives of gradient sums, once a step, each with its count."""
        for chunk in self.stages[stage]:
            for crossing in chunk.booked.reductions():
                yield chunk.count, crossing


def training_step(
    plan: Partition, keep: Keep | Sequence[Keep] = "units", dropout: float = 0, sizes: Mapping[str, int] | None = None
) -> TrainingStep:
    """Build the formulas of a step of training on a partition. `keep`: a checkpoint policy for all layers, or a list of
    one for each layer; values that it does not save are recomputed. Raises InputError for an unknown policy, for a list
    of another length than the layers, and for a model without a backward pass."""
    bounds = layers(plan.chain)
    policies = [keep] * len(bounds) if isinstance(keep, str) or not by_layer(keep) else [*keep]
    if len(policies) != len(bounds):
        raise InputError(f"keep: {len(policies)} policies for {len(bounds)} layers: give one, or one for each layer")
    known: dict[Any, BackwardBooked] = {}
    stages: list[list[Chunk]] = []
    for start, end in plan.cuts:
        groups: dict[Any, int] = {}
        for lo, hi in spans(start, end, bounds):
            layer = next((n for n, (a, _) in enumerate(bounds) if a == lo), None)
            policy: Any = policies[layer] if layer is not None else "units"
            last, split = hi == len(plan.chain), plan.splits[lo]
            key = (tuple(factor.signature for factor in plan.chain[lo:hi]), split.x, split.selects, last, str(policy))
            if key not in known:
                known[key] = BackwardBooked(
                    split_both_ways(plan, lo, hi, policy, dropout if layer is not None else 0, sizes)
                )
            groups[key] = groups.get(key, 0) + 1
        stages.append([Chunk(known[key], count) for key, count in groups.items()])
    return TrainingStep(plan, stages)


def split_both_ways(
    plan: Partition, lo: int, hi: int, keep: Keep, dropout: float = 0, sizes: Mapping[str, int] | None = None
) -> BackwardSplit:
    """Split consecutive factors of a partition, forward and backward. Raises InputError for a factor without a backward
    pass."""
    known = plan.splits[lo]
    term = joined(plan.chain[lo:hi]).term if hi > lo + 1 else plan.chain[lo].term
    pulled = pullback(
        term,
        keep=keep,
        dropout=dropout,
        tokens=known.selects,
        x=known.x,
        sizes=sizes,
        routed=plan.mesh.sends_to_experts,
    )
    return BackwardSplit(
        pulled, known.mesh, plan.sizes, selects=known.selects, cuts=known.cuts, last=hi == len(plan.chain)
    )


def by_layer(keep: Any) -> bool:
    """True if a list has one policy for each layer, False if it names the units of one policy."""
    return isinstance(keep, list | tuple) and all(
        not isinstance(policy, str) or policy in NAMED_POLICIES for policy in keep
    )


def spans(start: int, end: int, found: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first factor and the end of each chunk of a stage: layers, and single factors before and behind
    them."""
    at, ends = start, dict(found)
    while at < end:
        stop = min(ends.get(at, at + 1), end)
        yield at, stop
        at = stop


def busiest_kept(step: TrainingStep, stage: int, number: float = 2) -> LiveSize:
    """Return the bytes that the busiest rank of a stage saves for one micro-batch."""
    return busiest(add_up(step.kept(stage, number).values()))
