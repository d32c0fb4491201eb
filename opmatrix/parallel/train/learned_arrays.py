"""The arrays that the ranks of a stage train: how their gradients are summed, and in which pieces the optimiser,
gradients and weights are stored. Arrays that are placed alike form one bucket, whose numbers are sent together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.data import Data
from opmatrix.autodiff.pullback import name_of_array
from opmatrix.parallel.sharding.axis_states import Cut, Partial
from opmatrix.parallel.sharding.cost_formulas import StoredKey, stored_dims, stored_key
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Placement
from opmatrix.parallel.train.moe_gradients import expert_copies
from opmatrix.parallel.train.stage_chunks import StageChunk


class GradientUse(NamedTuple):
    """A gradient that a chunk gives of an array."""

    chunk: int  # number of the chunk in its stage
    line: int  # line of the gradient
    turned: bool  # the gradient is that of the transposed array
    partial: tuple[int, ...]  # axes over which ranks have parts


@dataclass(frozen=True)
class LearnedArray:
    """An array as a stage stores it, and the gradients of it."""

    key: StoredKey  # key of the array, and its placement
    data: Data  # the array
    uses: tuple[GradientUse, ...]  # the gradients that chunks give of it
    stages: tuple[int, ...]  # stages that train it, if several do

    @property
    def name(self) -> str:
        """The name of the array in files."""
        return name_of_array(self.data)

    @property
    def chunks(self) -> tuple[int, ...]:
        """The chunks that use the array, each once."""
        return tuple(dict.fromkeys(use.chunk for use in self.uses))

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes over which some gradient is a part; a gradient that is whole there counts on the first rank
        alone."""
        return tuple(sorted({k for use in self.uses for k in use.partial}))

    @property
    def dims(self) -> Dims:
        """The sizes of the whole array."""
        return stored_dims(self.data)


@dataclass(frozen=True)
class Bucket:
    """Arrays whose gradients are sent together. Gradients of experts are summed, and stored in pieces, only among ranks
    with copies of the same expert."""

    number: int  # number of the bucket in its stage
    arrays: tuple[LearnedArray, ...]  # arrays of the bucket
    summed: tuple[int, ...]  # axes over which gradients are summed whole
    pieces: tuple[int, ...]  # axes that store the optimiser once; stored ones first
    stored: tuple[int, ...]  # axes that store the weights once, too
    stages: tuple[int, ...]  # stages among which gradients are summed, too
    copied: tuple[tuple[int, Cut], ...] = ()  # states of axes on which ranks hold copies
    expert_copies: tuple[tuple[int, int], ...] = ()  # number of copies of experts, by axis

    @cached_property
    def chunks(self) -> frozenset[int]:
        """The chunks that use an array of the bucket."""
        return frozenset(k for array in self.arrays for k in array.chunks)


def placed_gradients(chunk: StageChunk, number: int) -> Iterator[tuple[StoredKey, Data, GradientUse]]:
    """Yield the gradients of a chunk, with the storage keys of their arrays. Raises InputError if a gradient is placed
    otherwise than its array."""
    for data, line in chunk.split.pulled.gradients.items():
        lies = chunk.steps[chunk.split.places[line]].placement
        cuts = Placement(tuple((k, state) for k, state in lies.cuts if not isinstance(state, Partial)))
        base, key = data.base or data, stored_key(data, cuts)
        known = chunk.split.stored_as.get(base.key)
        if known is not None and {*known.cuts} != {*key[1].cuts}:
            raise InputError(
                f"training: {base}: its placement is {placement_words(known, chunk)}, that of its gradient "
                f"{placement_words(key[1], chunk)}: shard it in another way"
            )
        yield (base.key, known or key[1]), base, GradientUse(number, line, data.base is not None, lies.partial)


def placement_words(placement: Placement, chunk: StageChunk) -> str:
    """Write a placement in words: each state and its axis, or `whole`."""
    return ", ".join(f"{state} over {chunk.split.mesh.axes[k].name}" for k, state in placement.cuts) or "whole"


def learned_arrays(stages: Mapping[int, Sequence[StageChunk]]) -> dict[int, list[LearnedArray]]:
    """Return the arrays that each stage trains, from the chunks of all stages, any of which may share arrays. Raises
    InputError for an array with two placements."""
    by_stage: dict[int, dict[StoredKey, tuple[Data, list[GradientUse]]]] = {at: {} for at in stages}
    for at, chunks in stages.items():
        for number, chunk in enumerate(chunks):
            for key, data, use in placed_gradients(chunk, number):
                by_stage[at].setdefault(key, (data, []))[1].append(use)
    learned: dict[int, list[LearnedArray]] = {at: [] for at in stages}
    for at, arrays in by_stage.items():
        for key, (data, uses) in arrays.items():
            sharing = tuple(other for other, keys in by_stage.items() if key in keys)
            learned[at].append(LearnedArray(key, data, tuple(uses), sharing if len(sharing) > 1 else ()))
    check_alike([array for arrays in learned.values() for array in arrays])
    return learned


def check_alike(found: Sequence[LearnedArray]) -> None:
    """Raise InputError for an array with two placements, or a part of which belongs to another array, too."""
    lies: dict[str, StoredKey] = {}
    for array in found:
        if lies.setdefault(array.key[0], array.key) != array.key:
            raise InputError(f"training: {array.name}: it has two placements: shard both uses alike")


def buckets_of(plan: Partition, arrays: Sequence[LearnedArray]) -> list[Bucket]:
    """Group the arrays of a stage by chunk and by the placement of their gradients; arrays that several chunks read are
    a bucket apart."""
    groups: dict[tuple[object, ...], list[LearnedArray]] = {}
    mesh = plan.mesh.flat
    for array in arrays:
        key = array.chunks, array.partial, array.stages, array.key[1].copied, expert_copies(mesh, array.key[1])
        groups.setdefault(key, []).append(array)
    axes, buckets = mesh.axes, list[Bucket]()
    for number, members in enumerate(groups.values()):
        copies = expert_copies(mesh, members[0].key[1])
        parts = *members[0].partial, *(k for k, _ in copies)
        pieces = sorted((k for k in parts if axes[k].strategy.stored), key=lambda k: (axes[k].strategy.stored < 3, k))
        stored = tuple(k for k in pieces if axes[k].strategy.stored > 2 and not copies)  # rows come to whole experts
        buckets.append(
            Bucket(
                number,
                tuple(members),
                tuple(k for k in parts if k not in pieces),
                tuple(pieces),
                stored,
                members[0].stages,
                members[0].key[1].copied,
                copies,
            )
        )
    return buckets
