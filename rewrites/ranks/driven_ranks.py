"""Ranks that run their programs: generators as virtual ranks are, in float32, with collectives between programs. What
stands alone is interpreted; what ZeRO stores once is taken to be gathered already."""
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
    """One rank of a stage: its programs, and between them what crosses."""
    def __init__(self, programs: RankPrograms, place: Coordinates, feed: Feed, meter: Meter, start: Numeric | None,
                 watch: OnProgram) -> None:
        stage = programs.stages[programs.plan.stage(place)]
        super().__init__(stage, programs.plan.flat(place))
        self.stage, self.items, self.feed, self.meter, self.start = stage, programs.items[place], feed, meter, start
        self.watch = watch

    def narrowed(self, step: RankStep) -> Operator: return self.matrix(step)

    def run(self) -> Generator[Message, Any, Numeric]:
        """Runs all items; the result is what this rank holds of it."""
        lasts = {self.out: len(self.items)}
        for number, item in enumerate(self.items):
            for at in self.taken(item): lasts[at] = max(number, lasts.get(at, 0))
        for number, item in enumerate(self.items):
            if isinstance(item, StretchProgram): self.values |= self.computed(item)
            else: self.values[item] = rounded((yield from self.alone(item)))
            for done in [at for at in self.values if lasts.get(at, 0) <= number]: del self.values[done]
        return self.array(self.out)

    def taken(self, item: StretchProgram | int) -> Sequence[int]:
        """The steps whose values an item reads."""
        if isinstance(item, int): return [*self.stage.reads(item), *self.stage.steps[item].args]
        return [*item.model.inputs.values()]

    def computed(self, item: StretchProgram) -> dict[int, Held]:
        """What a program gives at what this rank has."""
        count, rows = item.model.size
        self.watch(item, batch := self.batch(item))
        found = item.program.run_all(batch)
        made: dict[int, Held] = {}
        for name, at in item.model.gives.items():
            h, columns = self.extent(at, "heads"), self.extent(at, "cols")
            made[at] = found[name].reshape(count, rows, h, columns).swapaxes(1, 2)
        return made

    def batch(self, item: StretchProgram) -> Batch:
        """What a program reads: tokens that this rank has rows of, and values as rows."""
        model, window = item.model, (slice(*item.model.sequences), slice(*item.model.rows))
        by_tokens = self.feed.x.ndim == 2                   # else x is numbers, and no program reads a token
        tokens = self.feed.ids("tokens")[window] if by_tokens else np.zeros(model.size, np.int64)
        if model.ids is not None:
            lo, hi = model.ids
            tokens = np.where((tokens >= lo) & (tokens < hi), tokens - lo, hi - lo)
        inputs = {name: self.array(at).swapaxes(1, 2).reshape(tokens.size, -1) for name, at in model.inputs.items()}
        return batch_of(model, tokens, self.feed.ids("kinds")[window], inputs)

    def alone(self, at: int) -> Generator[Message, Any, Held]:
        """What crosses, and what is interpreted; operands that every stretch has for itself are made for it."""
        step = self.steps[at]
        for arg in step.args: self.require(arg)
        if step.op == "move": return (yield self.message(at, step))     # type: ignore[no-any-return]
        if step.op in WAITING: return (yield from getattr(self, step.op)(at, step))[0]  # type: ignore[no-any-return]
        return self.interpreted(step)

    def interpreted(self, step: RankStep) -> Held:
        found: Held = getattr(self, step.op)(step, *(self.values[a] for a in step.args))
        return found

    def require(self, at: int) -> None:
        """Makes a value that is inlined in programs, and what it is made of."""
        if at in self.values: return
        for arg in self.steps[at].args: self.require(arg)
        self.values[at] = self.interpreted(self.steps[at])


def rounded(held: Held) -> Held:
    """Numbers as programs have them; a carrier stays as it is until it is merged."""
    return held.astype(np.float32) if isinstance(held, np.ndarray) else held


def run_programs(programs: RankPrograms, feed: Feed, watch: OnProgram = lambda item, batch: None) -> Ran:
    """Runs every rank of a partition by its programs at a batch of the sizes that they were made for; meters count what
    crosses. `watch` is told every program with what it reads, before it runs. Raises InputError for a batch of other
    sizes and for positions of one's own, and Stuck for ranks that wait for ever."""
    plan = programs.plan
    if feed.x.shape[:2] != (wanted := (plan.sizes.sequences, plan.sizes.tokens)):
        raise InputError(f"batch: {feed.x.shape[0]} sequences of {feed.x.shape[1]} tokens: these programs are for "
                         f"{wanted[0]} of {wanted[1]}")
    if "positions" in feed.fields:
        raise InputError("positions: programs of ranks count them from 0 in each sequence: leave them out of the feed")
    def body(place: Coordinates, meter: Meter, start: Numeric | None) -> Generator[Message, Any, Numeric]:
        one = ProgramRank(programs, place, feed, meter, start, watch)
        return with_mesh_axes(one.run(), plan, plan.cuts[plan.stage(place)][0])
    last = programs.stages[-1]
    return run_ranks(plan, body, last.steps[last.out])
