"""A stage as training runs it: its layers, and what stands before and behind them, each with forward and backward steps
over its own arrays."""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from opmatrix.partitions.factor_chain import layers
from opmatrix.partitions.plan import Partition
from opmatrix.split.moving import RankStep
from opmatrix.training.backward_split import BackwardSplit
from opmatrix.training.keeping import Keep
from opmatrix.training.step_costs import BackwardBooked, spans, split_both_ways


@dataclass(frozen=True)
class StageChunk:
    """Factors `lo` to `hi`, forward and back. Steps of forward run first; backward reads some of their values later."""
    lo: int
    hi: int
    split: BackwardSplit

    @property
    def steps(self) -> list[RankStep]: return self.split.steps
    @property
    def out(self) -> int: return self.split.out

    @property
    def cotangent(self) -> int | None:
        """The step of the cotangent of what the chunk begins with; None for tokens, which have none."""
        line = self.split.pulled.x
        return None if line is None else self.split.places[line]

    @cached_property
    def forward(self) -> list[int]:
        """The steps that the result and what is kept take."""
        todo = [self.out, *(arg for step in self.steps if step.op == "kept" for arg in step.args)]
        found = set[int]()
        while todo:
            if (at := todo.pop()) in found: continue
            found.add(at)
            todo += self.steps[at].args
        return sorted(found)

    @cached_property
    def backward(self) -> list[int]:
        """All other steps."""
        return sorted({*range(len(self.steps))} - {*self.forward})

    @cached_property
    def saved(self) -> frozenset[int]:
        """Values of forward that backward reads."""
        own = {*self.forward}
        return frozenset(a for at in self.backward for a in self.steps[at].args if a in own)

    @cached_property
    def gradients(self) -> dict[int, int]:
        """The step of each gradient, by its line."""
        return {line: self.split.places[line] for line in self.split.pulled.gradients.values()}

    @cached_property
    def booked(self) -> BackwardBooked: return BackwardBooked(self.split)


def stage_chunks(plan: Partition, stage: int, keep: Keep = "units") -> list[StageChunk]:
    """The chunks of a stage, in order. Raises InputError for what has no pullback."""
    return [StageChunk(lo, hi, split_both_ways(plan, lo, hi, keep))
            for lo, hi in spans(*plan.cuts[stage], layers(plan.chain))]
