"""One micro-batch through one chunk on one rank: forward, and later backward, with the saved values held between."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, NamedTuple

import numpy as np

from opmatrix.algebra.data import Data, Numeric
from opmatrix.autodiff.line_readings import COTANGENT
from opmatrix.parallel.ranks.ranks import WAITING, Held, Message, Meter, count_held
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.train.backward_ranks import BackwardRank
from opmatrix.parallel.train.drop_masks import DropMasks
from opmatrix.parallel.train.moe_gradients import BACK
from opmatrix.parallel.train.stage_chunks import Lives, StageChunk

NO_NUMBERS = np.zeros(0)


class WentBack(NamedTuple):
    """The result of a backward pass through a chunk."""

    cotangent: Numeric  # cotangent of the chunk's input; empty for tokens
    gradients: dict[int, Numeric]  # the rank's part of each gradient, by line


class HeldNumbers:
    """The numbers of values and gradients that a rank holds, over all of its passes in flight; the meter records the
    peak."""

    def __init__(self, meter: Meter) -> None:
        self.meter, self.now = meter, 0

    def change(self, more: int) -> None:
        """Add to the numbers that are held now; a negative count releases some."""
        self.now += more

    def look(self, beside: int = 0) -> None:
        """Raise the recorded peak to the numbers held now, and `beside` more."""
        self.meter.peak = max(self.meter.peak, self.now + beside)


class ChunkPass(BackwardRank):
    """The pass of a rank through a chunk. `arrays`: the numbers that are present now; `sizes`: the numbers of each
    value."""

    def __init__(
        self,
        chunk: StageChunk,
        place: Coordinates,
        feed: Feed,
        held: HeldNumbers,
        arrays: dict[Any, Data],
        start: Numeric | None,
        masks: DropMasks,
    ) -> None:
        super().__init__(chunk.split, place, feed, held.meter, NO_NUMBERS, arrays)
        self.chunk, self.start, self.held, self.masks = chunk, start, held, masks
        self.sizes: dict[int, int] = {}

    def ahead(self) -> Generator[Message, Any, Numeric]:
        """Run forward, and return the rank's part of the result."""
        yield from self.walk(self.chunk.there)
        result = self.array(self.chunk.out)
        if self.chunk.out not in self.chunk.saved:
            self.forget([self.chunk.out])
        return result

    def forget(self, values: Iterable[int]) -> None:
        """Drop values, and release their numbers."""
        for at in values:
            self.values.pop(at, None)
            self.held.change(-self.sizes.pop(at, 0))

    def end(self) -> None:
        """Release all values of this pass."""
        self.forget([*self.sizes])

    def back(self, cotangent: Numeric | float) -> Generator[Message, Any, WentBack]:
        """Run backward from the cotangent of the result, or from one number for all of its entries."""
        self.cotangent = np.asarray(cotangent)
        yield from self.walk(self.chunk.back)
        of_input = NO_NUMBERS if self.chunk.cotangent is None else self.array(self.chunk.cotangent)
        return WentBack(of_input, {line: self.array(at) for line, at in self.chunk.gradients.items()})

    def walk(self, way: Lives) -> Generator[Message, Any, None]:
        """Run some steps; behind each of them some values are released."""
        for at, gone in way:
            step, room = self.steps[at], 0
            if step.op == "move":
                self.values[at] = yield self.message(at, step)
            elif step.op == "kept":
                self.values[at] = self.values[step.args[0]]
                if step.args[0] in gone:
                    self.forget([step.args[0]])  # it is that value, and no copy
            elif step.op in (*WAITING, BACK):
                self.values[at], room = yield from getattr(self, step.op)(at, step)
            else:
                self.values[at] = getattr(self, step.op)(step, *self.operands(step))
            self.sizes[at] = count_held(self.values[at])
            self.held.change(self.sizes[at])
            self.held.look(room)
            self.forget(gone)

    def entered(self, step: RankStep) -> Held:
        """Return an input; a cotangent is the part that the rank has of it already."""
        if step.more[0].name != COTANGENT:
            return super().entered(step)
        shape = tuple(part.stop - part.start for part in self.window(step.dims, step.placement))
        return np.broadcast_to(self.cotangent, shape)

    def dropped(self, step: RankStep, x: Numeric) -> Held:
        """Apply a mask that is drawn, not given."""
        name, rate = step.more
        mask = self.masks.drawn(name, rate, step.dims, self.window(step.dims, step.placement))
        return np.asarray(x * mask / (1 - rate))
