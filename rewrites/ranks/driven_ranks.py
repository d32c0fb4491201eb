"""Ranks that run their programs: generators like virtual ranks, in float32, with collectives between programs. Steps
outside of stretches are interpreted; arrays that ZeRO shards are taken as gathered already."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.term import Operator
from opmatrix.parallel.ranks.ranks import WAITING, Held, Message, Meter
from opmatrix.parallel.ranks.virtual import Ran, run_ranks, with_mesh_axes
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.parallel.sharding.redistribute import RankStep
from rewrites.ranks.rank_terms import LocalNumbers
from rewrites.ranks.searched_ranks import RankPrograms, StretchProgram, batch_of

OnProgram: TypeAlias = Callable[[StretchProgram, Batch], None]


class ProgramRank(LocalNumbers):
    """One rank of a stage: its programs, and the collectives between them."""

    def __init__(
        self,
        programs: RankPrograms,
        place: Coordinates,
        feed: Feed,
        meter: Meter,
        start: Numeric | None,
        watch: OnProgram,
    ) -> None:
        stage = programs.stages[programs.plan.stage(place)]
        super().__init__(stage, programs.plan.flat(place))
        self.stage, self.items, self.feed, self.meter, self.start = stage, programs.items[place], feed, meter, start
        self.watch = watch

    def narrowed(self, step: RankStep) -> Operator:
        """Return the matrix of a step with the numbers of this rank."""
        return self.matrix(step)

    def run(self) -> Generator[Message, Any, Numeric]:
        """Run all items; the result is this rank's shard of the stage's result."""
        lasts = {self.out: len(self.items)}
        for number, entry in enumerate(self.items):
            for at in self.taken(entry):
                lasts[at] = max(number, lasts.get(at, 0))
        for number, entry in enumerate(self.items):
            if isinstance(entry, StretchProgram):
                self.values |= self.computed(entry)
            else:
                self.values[entry] = rounded((yield from self.alone(entry)))
            for done in [at for at in self.values if lasts.get(at, 0) <= number]:
                del self.values[done]
        return self.array(self.out)

    def taken(self, item: StretchProgram | int) -> Sequence[int]:
        """Return the steps whose values an item reads."""
        if isinstance(item, int):
            return [*self.stage.reads(item), *self.stage.steps[item].args]
        return [*item.model.inputs.values()]

    def computed(self, item: StretchProgram) -> dict[int, Held]:
        """Return the outputs of a program on the values of this rank."""
        count, rows = item.model.size
        self.watch(item, batch := self.batch(item))
        outputs = item.program.run_all(batch)
        by_step: dict[int, Held] = {}
        for name, at in item.model.gives.items():
            h, columns = self.extent(at, "heads"), self.extent(at, "cols")
            by_step[at] = outputs[name].reshape(count, rows, h, columns).swapaxes(1, 2)
        return by_step

    def batch(self, item: StretchProgram) -> Batch:
        """Return the batch of a program: tokens whose rows this rank holds, and values as rows."""
        model, window = item.model, (slice(*item.model.sequences), slice(*item.model.rows))
        by_tokens = self.feed.x.ndim == 2  # else x is numbers, and no program reads a token
        tokens = self.feed.ids("tokens")[window] if by_tokens else np.zeros(model.size, np.int64)
        if model.ids is not None:
            lo, hi = model.ids
            tokens = np.where((tokens >= lo) & (tokens < hi), tokens - lo, hi - lo)
        inputs = {name: self.array(at).swapaxes(1, 2).reshape(tokens.size, -1) for name, at in model.inputs.items()}
        return batch_of(model, tokens, self.feed.ids("kinds")[window], inputs)

    def alone(self, at: int) -> Generator[Message, Any, Held]:
        """Run a collective or an interpreted step. Operands that every stretch computes for itself are computed for
        it."""
        step = self.steps[at]
        for arg in step.args:
            self.require(arg)
        if step.op == "move":
            return (yield self.message(at, step))  # type: ignore[no-any-return]
        if step.op in WAITING:
            return (yield from getattr(self, step.op)(at, step))[0]  # type: ignore[no-any-return]
        return self.interpreted(step)

    def interpreted(self, step: RankStep) -> Held:
        """Compute a step in numpy, by the method of its operation."""
        value: Held = getattr(self, step.op)(step, *(self.values[a] for a in step.args))
        return value

    def require(self, at: int) -> None:
        """Compute a value that is inlined in programs, and its operands."""
        if at in self.values:
            return
        for arg in self.steps[at].args:
            self.require(arg)
        self.values[at] = self.interpreted(self.steps[at])


def rounded(held: Held) -> Held:
    """Round numbers to float32, as programs hold them; a carrier stays as it is until it is merged."""
    return held.astype(np.float32) if isinstance(held, np.ndarray) else held


def run_programs(programs: RankPrograms, feed: Feed, watch: OnProgram = lambda item, batch: None) -> Ran:
    """Run every rank of a partition by its programs, on a batch of the sizes that they were made for; meters count the
    numbers sent. `watch` is called with every program and its batch before it runs. Raises InputError for a batch of
    other sizes and for positions in the feed, and Stuck for ranks that wait for ever."""
    plan = programs.plan
    if feed.x.shape[:2] != (wanted := (plan.sizes.sequences, plan.sizes.tokens)):
        raise InputError(
            f"batch: {feed.x.shape[0]} sequences of {feed.x.shape[1]} tokens: these programs are for "
            f"{wanted[0]} of {wanted[1]}"
        )
    if "positions" in feed.fields:
        raise InputError("positions: programs of ranks count them from 0 in each sequence: leave them out of the feed")

    def body(place: Coordinates, meter: Meter, start: Numeric | None) -> Generator[Message, Any, Numeric]:
        """Return the generator of one rank, with the axes of its messages numbered by the whole mesh."""
        one = ProgramRank(programs, place, feed, meter, start, watch)
        return with_mesh_axes(one.run(), plan, plan.cuts[plan.stage(place)][0])

    last = programs.stages[-1]
    return run_ranks(plan, body, last.steps[last.out])
