"""What the ranks of a stage learn: arrays, how their gradients are summed, and in which pieces the optimiser, gradients
and weights are stored. Arrays that lie alike are one bucket, whose numbers cross at once."""
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
    """A gradient that a chunk gives of an array: its line, whether it is turned, over which axes ranks have parts."""
    chunk: int
    line: int
    turned: bool
    partial: tuple[int, ...]


@dataclass(frozen=True)
class LearnedArray:
    """An array as a stage stores it, and the gradients of it. `stages` are those that learn it."""
    key: StoredKey
    data: Data
    uses: tuple[GradientUse, ...]
    stages: tuple[int, ...]

    @property
    def name(self) -> str: return name_of_array(self.data)
    @property
    def chunks(self) -> tuple[int, ...]: return tuple(dict.fromkeys(use.chunk for use in self.uses))

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes over which some gradient is a part; one that is whole there counts on the first rank alone."""
        return tuple(sorted({k for use in self.uses for k in use.partial}))

    @property
    def dims(self) -> Dims: return stored_dims(self.data)


@dataclass(frozen=True)
class Bucket:
    """Arrays whose gradients cross together. `summed`: axes over which they are summed whole; `copied`: how those are
    cut of which several ranks of an axis have a copy; `pieces`: axes that store the optimiser once, those that store
    weights once first; `stages`: those among which they are summed, too; `expert_copies`: of experts the axes among
    whose ranks there are so many copies, to which sums and pieces then are confined."""
    number: int
    arrays: tuple[LearnedArray, ...]
    summed: tuple[int, ...]
    pieces: tuple[int, ...]
    stored: tuple[int, ...]
    stages: tuple[int, ...]
    copied: tuple[tuple[int, Cut], ...] = ()
    expert_copies: tuple[tuple[int, int], ...] = ()

    @cached_property
    def chunks(self) -> frozenset[int]: return frozenset(k for each in self.arrays for k in each.chunks)


def placed_gradients(chunk: StageChunk, number: int) -> Iterator[tuple[StoredKey, Data, GradientUse]]:
    """The gradients of a chunk by what their arrays are stored as. Raises InputError where a gradient lies otherwise
    than its array."""
    for data, line in chunk.split.pulled.gradients.items():
        lies = chunk.steps[chunk.split.places[line]].placement
        cuts = Placement(tuple((k, state) for k, state in lies.cuts if not isinstance(state, Partial)))
        base, key = data.base or data, stored_key(data, cuts)
        known = chunk.split.stored_as.get(base.key)
        if known is not None and {*known.cuts} != {*key[1].cuts}:
            raise InputError(f"training: {base}: it lies as {placement_words(known, chunk)}, and its gradient as "
                             f"{placement_words(key[1], chunk)}: cut it otherwise")
        yield (base.key, known or key[1]), base, GradientUse(number, line, data.base is not None, lies.partial)


def placement_words(placement: Placement, chunk: StageChunk) -> str:
    return ", ".join(f"{state} over {chunk.split.mesh.axes[k].name}" for k, state in placement.cuts) or "whole"


def learned_arrays(stages: Mapping[int, Sequence[StageChunk]]) -> dict[int, list[LearnedArray]]:
    """What each stage learns, by the chunks of all: any may share arrays. Raises InputError for an array that lies in
    two ways."""
    by_stage: dict[int, dict[StoredKey, tuple[Data, list[GradientUse]]]] = {at: {} for at in stages}
    for at, chunks in stages.items():
        for number, chunk in enumerate(chunks):
            for key, data, use in placed_gradients(chunk, number):
                by_stage[at].setdefault(key, (data, []))[1].append(use)
    found: dict[int, list[LearnedArray]] = {at: [] for at in stages}
    for at, arrays in by_stage.items():
        for key, (data, uses) in arrays.items():
            sharing = tuple(other for other, own in by_stage.items() if key in own)
            found[at].append(LearnedArray(key, data, tuple(uses), sharing if len(sharing) > 1 else ()))
    check_alike([each for arrays in found.values() for each in arrays])
    return found


def check_alike(found: Sequence[LearnedArray]) -> None:
    """Raises InputError for an array that lies in two ways, or of which a part is another's, too."""
    lies: dict[str, StoredKey] = {}
    for each in found:
        if lies.setdefault(each.key[0], each.key) != each.key:
            raise InputError(f"training: {each.name}: it lies in two ways, and learns in one: cut both alike")


def buckets_of(plan: Partition, arrays: Sequence[LearnedArray]) -> list[Bucket]:
    """The arrays of a stage by chunk and by how their gradients lie; what several chunks read is a bucket apart."""
    found: dict[tuple[object, ...], list[LearnedArray]] = {}
    mesh = plan.mesh.flat
    for each in arrays:
        key = each.chunks, each.partial, each.stages, each.key[1].copied, expert_copies(mesh, each.key[1])
        found.setdefault(key, []).append(each)
    axes, made = mesh.axes, list[Bucket]()
    for number, own in enumerate(found.values()):
        copies = expert_copies(mesh, own[0].key[1])
        parts = *own[0].partial, *(k for k, _ in copies)
        pieces = sorted((k for k in parts if axes[k].strategy.stored), key=lambda k: (axes[k].strategy.stored < 3, k))
        stored = tuple(k for k in pieces if axes[k].strategy.stored > 2 and not copies)     # rows come to whole experts
        made.append(Bucket(number, tuple(own), tuple(k for k in parts if k not in pieces), tuple(pieces), stored,
                           own[0].stages, own[0].key[1].copied, copies))
    return made
