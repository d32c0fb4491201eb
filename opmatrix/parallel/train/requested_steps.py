"""A step of training: its request, and the partition, the order and the sums that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.parallel.ranks.virtual import assembled
from opmatrix.parallel.schedules.named import (
    RUN_BY_RANKS,
    USUAL_SCHEDULE,
    ChunkedSchedule,
    pipeline_kind,
    spell_schedules,
)
from opmatrix.parallel.schedules.tasks import Task
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.parallel.train.learned_arrays import Bucket, buckets_of, learned_arrays
from opmatrix.parallel.train.stage_chunks import StageChunk, stage_chunks


class TrainAsked(NamedTuple):
    """The request for a step of training."""

    rate: float = 1e-3  # learning rate of Adam
    schedule: str = USUAL_SCHEDULE.name  # name of the pipeline schedule
    micro_batches: int = 1  # micro-batches of a step
    keep: str = "units"  # checkpoint policy: the values saved for backward
    dropout: float = 0  # share of entries that layers drop
    seed: int = 0  # seed by which dropped entries are drawn

    @property
    def kind(self) -> ChunkedSchedule:
        """The schedule by its name, with its number of chunks."""
        return pipeline_kind(self.schedule)


USUAL = TrainAsked()


def check_train_asked(asked: TrainAsked) -> None:
    """Raise InputError for a schedule that ranks do not run, for an invalid rate, and for dropping all entries."""
    if not asked.kind.schedule.runs:
        raise InputError(
            f"schedule {asked.schedule}: ranks run {spell_schedules(RUN_BY_RANKS)}; others are only simulated "
            "(partition --train)"
        )
    if not 0 < asked.rate < float("inf"):
        raise InputError(f"rate {asked.rate:g}: more than 0, such as 0.001")
    if not 0 <= asked.dropout < 1:
        raise InputError(f"dropout {asked.dropout:g}: from 0 to below 1, such as 0.1")


@dataclass(frozen=True)
class TrainPlan:
    """A partition of a model whose result is a loss a row, for micro-batches of its sizes. Each stage of the partition
    is a virtual stage, called a leg here: with an interleaved schedule a rank has several."""

    plan: Partition
    asked: TrainAsked = USUAL

    def __post_init__(self) -> None:
        check_train_asked(self.asked)
        chunks = self.asked.kind.chunks
        if chunks > 1 and (self.legs % chunks or self.stages < 2):
            raise InputError(
                f"schedule {self.asked.schedule}: {self.legs} virtual stages: give a "
                f"multiple of {chunks}, on at least two ranks: give --pp 2"
            )

    @property
    def legs(self) -> int:
        """The number of virtual stages: the stages of the partition."""
        return len(self.plan.stages)

    @property
    def stages(self) -> int:
        """The stages of the pipeline, each of which has as many virtual stages as the schedule has chunks."""
        return self.legs // self.asked.kind.chunks

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh of the ranks. The mesh of the partition has a stage for each virtual stage."""
        mesh, along = self.plan.mesh, self.plan.mesh.stages
        return replace(mesh, axes=tuple(replace(axis, ranks=self.stages) if axis is along else axis for axis in mesh))

    def legs_of(self, stage: int) -> range:
        """Return the virtual stages of a stage: every `stages`-th one."""
        return range(stage, self.legs, self.stages)

    @cached_property
    def by_leg(self) -> list[list[StageChunk]]:
        """The chunks of each virtual stage, forward and backward."""
        return [stage_chunks(self.plan, leg, self.asked.keep, self.asked.dropout) for leg in range(self.legs)]

    @cached_property
    def chunks(self) -> dict[int, list[StageChunk]]:
        """The chunks of every stage, one virtual stage after the other; any of them may share arrays."""
        return {
            stage: [chunk for leg in self.legs_of(stage) for chunk in self.by_leg[leg]] for stage in range(self.stages)
        }

    def chunk_numbers(self, leg: int) -> range:
        """Return the chunks of a virtual stage, by their numbers on its stage."""
        first = sum(len(self.by_leg[other]) for other in range(leg % self.stages, leg, self.stages))
        return range(first, first + len(self.by_leg[leg]))

    @cached_property
    def buckets(self) -> dict[int, list[Bucket]]:
        """The buckets of the arrays that each stage trains."""
        return {stage: buckets_of(self.plan, arrays) for stage, arrays in learned_arrays(self.chunks).items()}

    @cached_property
    def order(self) -> list[list[Task]]:
        """The tasks of each stage; their chunks are virtual stages."""
        return self.asked.kind.tasks(self.stages, self.asked.micro_batches).order

    @property
    def rows(self) -> int:
        """The rows of a whole batch, each of which has a loss."""
        return int(self.plan.sizes.sequences) * self.asked.micro_batches * int(self.plan.sizes.tokens)

    def feeds(self, whole: Feed) -> list[Feed]:
        """Return the micro-batches of a batch, one after the other."""
        n = int(self.plan.sizes.sequences)
        return [
            Feed(
                whole.x[lo : lo + n],
                {name: array[lo : lo + n] for name, array in whole.fields.items()},
                {name: array[lo : lo + n] for name, array in whole.inputs.items()},
                whole.relations,
                whole.even,
            )
            for lo in range(0, n * self.asked.micro_batches, n)
        ]

    def losses(self, results: Mapping[Coordinates, Numeric]) -> Numeric:
        """Return the loss of each row of each micro-batch, from the parts of the ranks of the last stage."""
        chunk, mesh = self.by_leg[-1][-1], self.plan.mesh.flat
        ends = {
            self.plan.flat(place): part for place, part in results.items() if self.plan.stage(place) == self.stages - 1
        }
        return np.stack(
            [
                assembled(chunk.steps[chunk.out], {place: part[m] for place, part in ends.items()}, mesh)
                for m in range(self.asked.micro_batches)
            ]
        )
