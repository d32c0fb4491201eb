"""Text that ranks generate together: a prompt, then a row a sequence and step, with keys and values of earlier rows in
caches on the ranks that have their heads and layers. The next token is the one with the largest score, which is sent to
all ranks."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.batch.relations import Sparse
from opmatrix.algebra.data import Data, Numeric
from opmatrix.algebra.positions.patterns import Pattern, parse
from opmatrix.algebra.term import Operator
from opmatrix.inference.cached import CAUSAL
from opmatrix.parallel.ranks.ranks import Held, Message, Meter, Rank
from opmatrix.parallel.ranks.virtual import drive, rank, with_mesh_axes
from opmatrix.parallel.sharding.axis_states import Cut
from opmatrix.parallel.sharding.block_mask import visibility
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition, partition
from opmatrix.parallel.sharding.placement import Coordinates, found_at
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.sharding.spreading import Split

NextTokens: TypeAlias = NDArray[np.int64]
ONE_ROW = 10**9  # step numbers of single rows, apart from those of prompts
TELLING = 95_000  # step numbers of tokens, apart from those of values
UNKNOWN = -1  # the token of a sequence that other ranks have


class CachedRank(Rank):
    """A rank whose attention sees rows of earlier steps: its keys and values are appended to caches."""

    caches: dict[tuple[int, int], Numeric]
    factor = 0
    past = 0

    def product(self, step: RankStep, u: Numeric | Sparse, v: Numeric) -> Held:
        """Append keys or values to the caches, and multiply by all rows so far."""
        over, where = step.more
        at = next(k for k, other in enumerate(self.steps) if other is step)
        if step.where is not None:
            v = self.appended(at, v, -1)
        elif over is monoids.softmax:
            assert not isinstance(u, Sparse)
            v = self.appended(at, v, -2)
            self.meter.flops += 2 * int(np.prod(u.shape)) * v.shape[-1]
            merge = over.product if over.closed is None else over.closed
            return np.asarray(merge(u, v, self.from_past(where, u.shape)), np.float64)
        return super().product(step, u, v)

    def appended(self, at: int, new: Numeric, axis: int) -> Numeric:
        """Append keys or values to their cache, and return all rows so far."""
        key = self.factor, at
        self.caches[key] = np.concatenate([self.caches[key], new], axis) if key in self.caches else new
        return self.caches[key]

    def from_past(self, where: Pattern, shape: Sequence[int]) -> Numeric:
        """Return which of the rows so far the new rows see."""
        return visibility(where, np.arange(self.past, self.past + shape[-2]), np.arange(shape[-1]))


@dataclass(frozen=True)
class DecodePlan:
    """A model with the head of its vocabulary on a mesh, for prompts of some sequences of one length."""

    model: Operator
    mesh: Mesh
    sequences: int  # number of prompts
    prompt: int  # tokens of each prompt
    stages: Sequence[int] | None = None  # layers of each pipeline stage

    def __post_init__(self) -> None:
        for axis in self.mesh:
            if axis.strategy.home not in (None, "batch") or axis.strategy.experts:
                raise InputError(
                    f"mesh: {axis.name}: a step has one row a sequence, which {axis.strategy.name} would shard: "
                    "use data, tensor or pipeline"
                )
        if self.model.out.cols != self.model.into.cols:
            raise InputError(
                f"decode: the model gives {self.model.out.cols} features and scores no vocabulary of "
                f"{self.model.into.cols}: give one with a head, such as GPT-2 or LLaMA"
            )
        for factor in self.plans[0].chain:
            for node in factor.term.walk():
                if node.kind.name == "product" and node.args[2] is monoids.softmax:
                    check_causal(node.args[3])

    @cached_property
    def plans(self) -> tuple[Partition, Partition]:
        """The partitions: one for prompts, one for a row of each sequence."""
        prompt, row = (
            partition(self.model, self.mesh, BatchSizes(self.sequences, rows), stages=self.stages)
            for rows in (self.prompt, 1)
        )
        return prompt, row

    @cached_property
    def splits(self) -> tuple[dict[int, Split], dict[int, Split]]:
        """The splits of all factors, for the prompt and for one row."""
        prompt, row = ({at: plan.split_of(at) for at in range(len(plan.chain))} for plan in self.plans)
        return prompt, row


def check_causal(where: Pattern) -> None:
    """Raise InputError for attention to later rows."""
    if where.within and where.reach == parse(CAUSAL).reach:
        return
    raise InputError(f"decode: attention where {where} reads later rows: only {CAUSAL!r} has caches")


class DecodingRank:
    """One rank with its caches; `step` is a generator that returns the next token of each sequence."""

    def __init__(self, decode: DecodePlan, place: Coordinates) -> None:
        self.decode, self.place = decode, place
        self.caches: dict[tuple[int, int], Numeric] = {}
        self.stored: dict[Any, Data] = {}
        self.past = 0

    def step(self, ids: NextTokens, meter: Meter) -> Generator[Message, Any, NextTokens]:
        """Return the tokens behind some new rows, for each sequence; UNKNOWN for sequences of other ranks."""
        later = int(self.past > 0)
        plan, splits = self.decode.plans[later], self.decode.splits[later]
        at = self.past + np.arange(ids.shape[1])
        feed = Feed(ids, {"positions": np.broadcast_to(at, ids.shape)})
        running = self.whole(plan, splits, feed, meter)
        value = None
        while True:
            try:
                message = running.send(value)
            except StopIteration as end:
                self.past += ids.shape[1]
                tokens: NextTokens = end.value
                return tokens
            value = yield message._replace(at=message.at + later * ONE_ROW)

    def whole(
        self, plan: Partition, splits: Mapping[int, Split], feed: Feed, meter: Meter
    ) -> Generator[Message, Any, NextTokens]:
        """Run new rows through the stage of this rank, and return the tokens with the largest scores of the last
        stage."""
        value = yield from rank(plan, self.place, partial(self.factors, plan, splits, feed), meter)
        last, flat = len(plan.chain) - 1, plan.flat(self.place)
        step = splits[last].steps[splits[last].out]
        tokens = np.zeros(0)
        if plan.stage(self.place) == len(plan.stages) - 1:
            scores = value[:, :, -1:]
            for k, state in reversed(step.placement.cuts):
                if not isinstance(state, Cut) or state.role != "cols":
                    continue
                scores = yield Message(
                    "all_gather",
                    plan.mesh.index(plan.mesh.flat.axes[k].name),
                    (scores,),
                    TELLING,
                    None,
                    state,
                    units=int(state.units),
                )
            tokens = scores[:, 0, 0].argmax(-1).astype(np.float64)
        if plan.mesh.stages is not None:
            tokens = yield Message(
                "all_gather", plan.mesh.index(plan.mesh.stages.name), (tokens,), TELLING + 1, None, Cut("batch", 1)
            )
        known = np.full(self.decode.sequences, UNKNOWN)
        known[slice(*found_at(step.dims, step.placement, plan.mesh.flat, flat).get("batch", (0, len(known))))] = tokens
        return known

    def factors(
        self,
        plan: Partition,
        splits: Mapping[int, Split],
        feed: Feed,
        place: Coordinates,
        meter: Meter,
        value: Numeric | None,
    ) -> Generator[Message, Any, Numeric]:
        """Run the factors of the stage, one after the other, over caches."""
        for at in range(*plan.cuts[plan.stage(place)]):
            one = CachedRank(splits[at], plan.flat(place), feed, meter, value, self.stored)
            one.caches, one.factor, one.past = self.caches, at, self.past
            value = yield from with_mesh_axes(one.run(), plan, at)
        assert value is not None
        return value


def known_tokens(each: Sequence[NextTokens]) -> NextTokens:
    """Return the tokens of all sequences, from the tokens that each rank knows."""
    tokens: NextTokens = np.max(np.stack(each), 0)
    return tokens


def decode_virtual(decode: DecodePlan, ids: NextTokens, count: int) -> NextTokens:
    """Generate `count` tokens behind each prompt, with all ranks in this process."""
    ranks = {place: DecodingRank(decode, place) for place in decode.mesh.places()}
    tokens, new = list[NextTokens](), ids
    for _ in range(count):
        meters = {place: Meter() for place in ranks}
        told = drive({place: one.step(new, meters[place]) for place, one in ranks.items()}, decode.mesh, meters)
        tokens.append(known_tokens([*told.values()]))
        new = tokens[-1][:, None]
    return np.stack(tokens, 1)
