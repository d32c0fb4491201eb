"""One micro-batch through one chunk on one rank: forward, and later back, with what backward reads held between."""
from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from opmatrix.algebra.data import Data, Numeric
from opmatrix.partitions.feeds import Feed
from opmatrix.partitions.ranks import WAITING, Held, Message, Meter
from opmatrix.split.moving import RankStep
from opmatrix.split.placement import Coordinates
from opmatrix.stepping.stage_chunks import StageChunk
from opmatrix.training.backward_ranks import BackwardRank
from opmatrix.training.expert_gradients import BACK
from opmatrix.training.line_readings import COTANGENT

NO_NUMBERS = np.zeros(0)


class WentBack(NamedTuple):
    """The cotangent of what a chunk began with, none for tokens, and what this rank has of each gradient, by line."""
    cotangent: Numeric
    gradients: dict[int, Numeric]


class ChunkPass(BackwardRank):
    """A rank in a chunk. `arrays` are the numbers that are there now."""
    def __init__(self, chunk: StageChunk, place: Coordinates, feed: Feed, meter: Meter, arrays: dict[Any, Data],
                 start: Numeric | None) -> None:
        super().__init__(chunk.split, place, feed, meter, NO_NUMBERS, arrays)
        self.chunk, self.start = chunk, start

    def ahead(self) -> Generator[Message, Any, Numeric]:
        """What this rank holds of the result."""
        yield from self.walk(self.chunk.forward, self.chunk.saved | {self.chunk.out})
        found = self.array(self.chunk.out)
        if self.chunk.out not in self.chunk.saved: del self.values[self.chunk.out]
        return found

    def back(self, cotangent: Numeric | float) -> Generator[Message, Any, WentBack]:
        """Back from the cotangent of the result, or from a number that all of its entries are."""
        self.cotangent = np.asarray(cotangent)
        asked = {*self.chunk.gradients.values(), *([] if self.chunk.cotangent is None else [self.chunk.cotangent])}
        yield from self.walk(self.chunk.backward, frozenset(asked))
        own = NO_NUMBERS if self.chunk.cotangent is None else self.array(self.chunk.cotangent)
        return WentBack(own, {line: self.array(at) for line, at in self.chunk.gradients.items()})

    def walk(self, part: Sequence[int], pinned: frozenset[int]) -> Generator[Message, Any, None]:
        """Runs some steps; what none of them reads later goes, but for what is pinned."""
        lasts = {arg: at for at in part for arg in (at, *self.steps[at].args)}
        for at in part:
            step = self.steps[at]
            if step.op == "move": self.values[at] = yield self.message(at, step)
            elif step.op == "kept": self.values[at] = self.values[step.args[0]]
            elif step.op in (*WAITING, BACK): self.values[at], _ = yield from getattr(self, step.op)(at, step)
            else: self.values[at] = getattr(self, step.op)(step, *self.operands(step))
            for done in {at, *step.args}:
                if lasts[done] == at and done not in pinned: self.values.pop(done, None)

    def entered(self, step: RankStep) -> Held:
        """A cotangent is what the rank has of it already."""
        if step.more[0].name != COTANGENT: return super().entered(step)
        own = tuple(each.stop - each.start for each in self.window(step.dims, step.placement))
        return np.broadcast_to(self.cotangent, own)
