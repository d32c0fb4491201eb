"""What a step of training costs a partition, layer by layer: operations forward, again and backward, what crosses
backward, what is kept for each micro-batch, how gradients are summed over ranks. All are formulas of the same lines."""
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
    """The formulas of forward and backward steps."""
    split: BackwardSplit

    def __init__(self, split: BackwardSplit) -> None:
        super().__init__(split.steps, split.mesh, split.out)
        self.split = split

    def flops(self, at: int) -> sympy.Expr:
        """Products of rows that are summed over all rows, too; ids of tokens multiply nothing."""
        step = self.steps[at]
        if step.op == BACK: return self.asked.came(at) * back_flops(step, self.expert_widths(step))
        if step.op != "outer": return super().flops(at)
        if self.steps[step.args[0]].selects: return NONE
        u, own = self.held_dims[step.args[0]], self.held_dims[at]
        return sympy.sympify(2 * u.batch * u.rows * own.heads * own.rows * own.cols)

    def numbers(self, at: int) -> sympy.Expr:
        """Numbers that a rank holds of a value; of what comes back through experts all parts."""
        step = self.steps[at]
        if step.op != BACK: return super().numbers(at)
        stacks = [(each.more[0].args[0], each.stored) for each in step.more[3]
                  if each.op == "act" and teaches(each.more[0]) is not None]
        return add_up([*map(self.numbers, step.args[:2]),
                       *(local(stored_dims(data), stored, self.mesh).numbers for data, stored in stacks)])

    def expert_widths(self, step: RankStep) -> list[LiveSize]:
        """Columns that a rank has of each value within an expert."""
        return [local(each.dims, each.placement, self.mesh).cols for each in step.more[3]]

    def crossing(self, at: int) -> Crossing | None:
        """Rows with cotangents and gates to experts, and what they find for rows and gates back."""
        step = self.steps[at]
        axis = self.asked.axis(at) if step.op == BACK else None
        if axis is None: return None if step.op == BACK else super().crossing(at)
        x, _, g = (self.held_dims[a].cols for a in step.args)
        there, back = self.asked.sent(at) * (x + g + 1), self.asked.came(at) * (x + 1)
        stays = (there + self.asked.load * self.asked.sent(at) * (x + 1)) / axis.ranks
        return Crossing("all_to_all", axis.name, there + back, there + back - stays, there + back,
                        2 * (sympy.sympify(axis.ranks) - 1), sympy.Integer(2))

    def held_both_ways(self) -> list[sympy.Expr]:
        """Numbers that are held while each step of forward and backward runs, gradients until all have run."""
        asked = (self.split.places[line] for line in self.split.pulled.gradients.values())
        return [*dict.fromkeys(self.held(asked))]

    def fetched(self) -> Iterator[Crossing]:
        """How weights that are stored in pieces become whole, all at once, before anything runs."""
        yield from gathers([dims.numbers for _, dims in self.stored().values()], self.mesh.storing(3))

    def flops_of(self, *phases: PassPhase) -> sympy.Expr:
        """Operations of the steps of some phases."""
        return add_up(self.flops(at) for at, phase in enumerate(self.split.step_phases) if phase in phases)

    def crossings_of(self, *phases: PassPhase) -> Iterator[Crossing]:
        """What crosses in the steps of some phases."""
        for at, phase in enumerate(self.split.step_phases):
            if phase in phases and (found := self.crossing(at)) is not None: yield found

    def kept(self, number: float = 2, mask: float = 1) -> dict[str, sympy.Expr]:
        """Bytes that a rank keeps for backward, by unit."""
        pulled, found = self.split.pulled, dict[str, sympy.Expr]()
        values = {line: (pulled.kept[at], number) for at, line in pulled.pull.kept.items() if at in pulled.kept}
        values |= {line: (DROPOUT_MASK, mask) for line in pulled.masks}
        for line, (unit, size) in values.items():
            held = self.numbers(self.split.places[line])
            found[unit] = found.get(unit, NONE) + sympy.nsimplify(size) * held
        return found

    def buckets(self) -> dict[GradientBucket, sympy.Expr]:
        """Numbers of gradients by the axes over which ranks have parts of them, by how those are cut over which
        several have what their heads give to a copy, and by copies of experts: each bucket is summed at once."""
        found: dict[GradientBucket, sympy.Expr] = {}
        for line in self.split.pulled.gradients.values():
            at = self.split.places[line]
            lies = self.steps[at].placement
            key = lies.partial, lies.copied, expert_copies(self.mesh, lies)
            found[key] = found.get(key, NONE) + self.held_dims[at].numbers
        return found

    def reductions(self) -> Iterator[Crossing]:
        """How gradients are summed over ranks: as pieces where an axis stores the optimiser's state once, whose new
        weights are then gathered, unless weights are stored in pieces, too."""
        for (parts, copied, experts), numbers in self.buckets().items():
            for k, state in copied: yield among_copies(self.mesh.axes[k], state, numbers)
            for k in parts: yield from self.reduced(k, numbers)
            for k, count in experts: yield from among_experts(self.mesh.axes[k], count, numbers)

    def reduced(self, k: int, numbers: sympy.Expr) -> Iterator[Crossing]:
        """The sum of a bucket over an axis."""
        axis = self.mesh.axes[k]
        if not axis.strategy.stored:
            yield summed_whole(axis, numbers, axis.ranks, axis.at)
            return
        yield summed_in_pieces(axis, numbers, axis.ranks, axis.at)
        if axis.strategy.stored < 3: yield from gathers([numbers], [axis])


def summed_whole(axis: Axis, numbers: sympy.Expr, ranks: LiveSize, at: LiveSize) -> Crossing:
    """The sum of gradients among so many ranks of an axis, of which the one `at` merges a piece: all have it whole."""
    own = sympy.sympify(piece(numbers, ranks, at))
    return all_reduced(axis.name, numbers, own, ranks)._replace(of="weights")


def summed_in_pieces(axis: Axis, numbers: sympy.Expr, ranks: LiveSize, at: LiveSize) -> Crossing:
    """The sum of gradients among so many ranks of an axis, of which each has a piece."""
    own = sympy.sympify(piece(numbers, ranks, at))
    return Crossing("reduce_scatter", axis.name, numbers, numbers - own, numbers, sympy.sympify(ranks) - 1,
                    sympy.Integer(1), "weights")


def pieces_gathered(axis: Axis, whole: sympy.Expr, ranks: LiveSize, at: LiveSize) -> Crossing:
    """New weights of which each of so many ranks of an axis has a piece."""
    own = sympy.sympify(piece(whole, ranks, at))
    return Crossing("all_gather", axis.name, own, whole - own, whole, sympy.sympify(ranks) - 1, sympy.Integer(1),
                    "weights")


def place_among_copies(axis: Axis, count: int) -> sympy.Expr:
    """Which of so many copies of experts a rank of an axis has: neighbours have different experts."""
    apart = axis.count // count
    return (axis.at - sympy.Mod(axis.at, apart)) / apart


def among_experts(axis: Axis, count: int, numbers: sympy.Expr) -> Iterator[Crossing]:
    """The sum of what copies of experts learn, once for those whose state an axis stores once."""
    at = place_among_copies(axis, count)
    if not axis.strategy.stored:
        yield summed_whole(axis, numbers, count, at)
        return
    yield summed_in_pieces(axis, numbers, count, at)
    yield pieces_gathered(axis, numbers, count, at)


def among_copies(axis: Axis, state: Cut, numbers: sympy.Expr) -> Crossing:
    """The sum of what ranks that have the same copy give it."""
    n = sympy.sympify(axis.ranks) / state.units
    return summed_whole(axis, numbers, n, sympy.Mod(axis.at, n))


@dataclass(frozen=True)
class Chunk:
    """Layers that are alike, or what stands before or behind them: their formulas, and how many they are."""
    booked: BackwardBooked
    count: int

    @cached_property
    def forward_flops(self) -> sympy.Expr: return self.booked.flops_of("forward")
    @cached_property
    def backward_flops(self) -> sympy.Expr: return self.booked.flops_of("kept", "backward")
    @cached_property
    def again_flops(self) -> sympy.Expr: return self.booked.flops_of("again")


@dataclass(frozen=True)
class TrainingStep:
    """Formulas of one micro-batch, forward and backward, of a rank of a stage, by its coordinates."""
    plan: Partition
    stages: Sequence[Sequence[Chunk]]

    def kept(self, stage: int = 0, number: float = 2, mask: float = 1) -> dict[str, sympy.Expr]:
        """Bytes that a rank keeps between forward and backward of a micro-batch, by unit."""
        found: dict[str, sympy.Expr] = {}
        for chunk in self.stages[stage]:
            for unit, size in chunk.booked.kept(number, mask).items():
                found[unit] = found.get(unit, NONE) + chunk.count * size
        return found

    def flops(self, stage: int = 0) -> dict[str, sympy.Expr]:
        """Operations forward, again (what was not kept), and backward."""
        return {name: add_up(chunk.count * getattr(chunk, f"{name}_flops") for chunk in self.stages[stage])
                for name in ("forward", "again", "backward")}

    def crossings(self, stage: int = 0) -> Iterator[tuple[int, Crossing]]:
        """What crosses backward, and what crosses again where forward runs again, and how often; what a stage hands to
        the one before it."""
        for chunk in self.stages[stage]:
            for found in chunk.booked.crossings_of(*BACKWARD): yield chunk.count, found
        for count, found in self.plan.crossings(stage):
            if found.of == "weights": yield count, found    # stored in pieces: they are gathered again
        for found in self.plan.handing(stage - 1): yield 1, found

    def gradients(self, stage: int = 0) -> Iterator[tuple[int, Crossing]]:
        """How gradients are summed over ranks, once a step, and how often."""
        for chunk in self.stages[stage]:
            for found in chunk.booked.reductions(): yield chunk.count, found


def training_step(plan: Partition, keep: Keep | Sequence[Keep] = "units", dropout: float = 0,
                  sizes: Mapping[str, int] | None = None) -> TrainingStep:
    """The formulas of a step of training on a partition. `keep`: a policy for all layers, or a list of one for each
    layer, by which what is not kept is computed again. Raises InputError for a policy that there is not, for as many as
    there are no layers, and for what has no pullback."""
    found = layers(plan.chain)
    policies = [keep] * len(found) if isinstance(keep, str) or not by_layer(keep) else [*keep]
    if len(policies) != len(found):
        raise InputError(f"keep: {len(policies)} policies for {len(found)} layers: give one, or one for each layer")
    known: dict[Any, BackwardBooked] = {}
    made: list[list[Chunk]] = []
    for start, end in plan.cuts:
        groups: dict[Any, int] = {}
        for lo, hi in spans(start, end, found):
            layer = next((n for n, (a, _) in enumerate(found) if a == lo), None)
            policy: Any = policies[layer] if layer is not None else "units"
            last, split = hi == len(plan.chain), plan.splits[lo]
            key = (tuple(each.signature for each in plan.chain[lo:hi]), split.x, split.selects, last, str(policy))
            if key not in known:
                known[key] = BackwardBooked(split_both_ways(plan, lo, hi, policy, dropout if layer is not None else 0,
                                                            sizes))
            groups[key] = groups.get(key, 0) + 1
        made.append([Chunk(known[key], count) for key, count in groups.items()])
    return TrainingStep(plan, made)


def split_both_ways(plan: Partition, lo: int, hi: int, keep: Keep, dropout: float = 0,
                    sizes: Mapping[str, int] | None = None) -> BackwardSplit:
    """Some factors of a partition, one after the other, forward and back. Raises InputError for what has no
    pullback."""
    known = plan.splits[lo]
    term = joined(plan.chain[lo:hi]).term if hi > lo + 1 else plan.chain[lo].term
    pulled = pullback(term, keep=keep, dropout=dropout, tokens=known.selects, x=known.x, sizes=sizes,
                      routed=plan.mesh.sends_to_experts)
    return BackwardSplit(pulled, known.mesh, plan.sizes, selects=known.selects, cuts=known.cuts,
                         last=hi == len(plan.chain))


def by_layer(keep: Any) -> bool:
    """Whether a list is of policies, one a layer, and not of the units of one."""
    return isinstance(keep, list | tuple) and all(not isinstance(each, str) or each in NAMED_POLICIES for each in keep)


def spans(start: int, end: int, found: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """From which factor to which each chunk of a stage is: layers, and single factors before and behind them."""
    at, ends = start, dict(found)
    while at < end:
        stop = min(ends.get(at, at + 1), end)
        yield at, stop
        at = stop


def busiest_kept(step: TrainingStep, stage: int, number: float = 2) -> LiveSize:
    """Bytes that the busiest rank of a stage keeps for one micro-batch."""
    return busiest(add_up(step.kept(stage, number).values()))
