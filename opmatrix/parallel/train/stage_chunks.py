"""A stage as training runs it: its layers, and the factors before and behind them, each with forward and backward steps
over its own arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import sympy

from opmatrix.autodiff.checkpoint_policy import Keep
from opmatrix.parallel.cost.step_costs import BackwardBooked, spans, split_both_ways
from opmatrix.parallel.sharding.cost_formulas import RENAMED, ROOM
from opmatrix.parallel.sharding.factor_chain import layers
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.train.backward_split import BackwardSplit

SizesHeld: TypeAlias = dict[int, int]  # numbers of values by their steps
Lives: TypeAlias = list[tuple[int, list[int]]]  # steps, each with the values that are dead behind it


@dataclass(frozen=True)
class StageChunk:
    """Factors `lo` to `hi`, forward and backward. Steps of forward run first; backward reads some of their values
    later."""

    lo: int
    hi: int
    split: BackwardSplit

    @property
    def steps(self) -> list[RankStep]:
        """The steps of forward and backward."""
        return self.split.steps

    @property
    def out(self) -> int:
        """The step of the result."""
        return self.split.out

    @property
    def cotangent(self) -> int | None:
        """The step of the cotangent of the chunk's input; None for tokens, which have no cotangent."""
        line = self.split.pulled.x
        return None if line is None else self.split.places[line]

    @cached_property
    def forward(self) -> list[int]:
        """The steps that the result and the saved values need."""
        todo = [self.out, *(arg for step in self.steps if step.op == "kept" for arg in step.args)]
        needed = set[int]()
        while todo:
            if (at := todo.pop()) in needed:
                continue
            needed.add(at)
            todo += self.steps[at].args
        return sorted(needed)

    @cached_property
    def backward(self) -> list[int]:
        """All other steps."""
        return sorted({*range(len(self.steps))} - {*self.forward})

    @cached_property
    def saved(self) -> frozenset[int]:
        """The values of forward that backward reads."""
        ahead = {*self.forward}
        return frozenset(a for at in self.backward for a in self.steps[at].args if a in ahead)

    @cached_property
    def gradients(self) -> dict[int, int]:
        """The step of each gradient, by its line."""
        return {line: self.split.places[line] for line in self.split.pulled.gradients.values()}

    @cached_property
    def asked(self) -> frozenset[int]:
        """The values of backward that are requested: gradients, and the cotangent."""
        return frozenset(self.gradients.values()) | ({self.cotangent} if self.cotangent is not None else set())

    @cached_property
    def booked(self) -> BackwardBooked:
        """The cost formulas of the chunk's steps."""
        return BackwardBooked(self.split)

    def lives(self, part: Sequence[int], pinned: frozenset[int]) -> Lives:
        """Return steps with the values that no later one of them reads; pinned values stay."""
        lasts = {arg: at for at in part for arg in (at, *self.steps[at].args)}
        return [
            (at, [done for done in {at, *self.steps[at].args} if lasts[done] == at and done not in pinned])
            for at in part
        ]

    @cached_property
    def there(self) -> Lives:
        """The steps of forward; values that backward reads, and the result, stay."""
        return self.lives(self.forward, self.saved | {self.out})

    @cached_property
    def back(self) -> Lives:
        """The steps of backward; requested values stay."""
        return self.lives(self.backward, self.asked)

    def walked(self, way: Lives, sizes: SizesHeld, size: Callable[[sympy.Expr], int]) -> int:
        """Return the most numbers that are held while some steps run, by the formulas. `sizes`: numbers that are held
        before, updated to those that are held behind the steps. `size`: evaluates a formula on a rank."""
        most, now = 0, sum(sizes.values())
        for at, gone in way:
            step = self.steps[at]
            if step.op in RENAMED and step.args[0] in gone:
                now -= sizes.pop(step.args[0])
            sizes[at] = size(self.booked.numbers(at))
            now += sizes[at]
            most = max(most, now + (size(ROOM[step.op](self.booked, at)) if step.op in ROOM else 0))
            now -= sum(sizes.pop(done, 0) for done in gone)
        return most


def stage_chunks(plan: Partition, stage: int, keep: Keep = "units", dropout: float = 0) -> list[StageChunk]:
    """Return the chunks of a stage, in order. A policy and a rate of dropout are those of layers; factors before and
    behind them save their units, and drop no entries. Raises InputError for an operator that has no pullback."""
    spans_of_layers = layers(plan.chain)
    starts = {lo for lo, _ in spans_of_layers}
    return [
        StageChunk(lo, hi, split_both_ways(plan, lo, hi, *((keep, dropout) if lo in starts else ("units",))))
        for lo, hi in spans(*plan.cuts[stage], spans_of_layers)
    ]
