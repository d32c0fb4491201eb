"""Schedules by name, as `1f1b` or `interleaved:2`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.schedules.dualpipe import DUALPIPE
from opmatrix.parallel.schedules.gpipe import GPIPE
from opmatrix.parallel.schedules.interleaved import INTERLEAVED
from opmatrix.parallel.schedules.one_f_one_b import ONE_F_ONE_B
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.parallel.schedules.tasks import TaskGraph
from opmatrix.parallel.schedules.zero_bubble import ZB_H1

USUAL_SCHEDULE = ONE_F_ONE_B  # the default schedule
SCHEDULES: Mapping[str, PipelineSchedule] = {
    schedule.name: schedule for schedule in (USUAL_SCHEDULE, GPIPE, INTERLEAVED, ZB_H1, DUALPIPE)
}
PLANNED = [schedule.name for schedule in SCHEDULES.values() if schedule.planned]  # those that `plan` tries
MOST_TASKS = 2_000_000  # tasks of a pipeline, to bound the time of a simulation


class ChunkedSchedule(NamedTuple):
    """A schedule with its number of virtual stages (chunks) a stage."""

    schedule: PipelineSchedule
    chunks: int = 1

    def __str__(self) -> str:
        return f"{self.name}:{self.chunks}" if self.schedule.chunked else self.name

    @property
    def name(self) -> str:
        """The name of the schedule, without its number of chunks."""
        return self.schedule.name

    def tasks(self, stages: int, micro_batches: int) -> TaskGraph:
        """Return the passes of each stage. Raises InputError for numbers of stages and micro-batches without an
        order."""
        for noun, number in (("stages", stages), ("micro-batches", micro_batches)):
            if number < 1:
                raise InputError(f"{self}: {number} {noun}: at least 1")
        if stages * micro_batches * self.chunks * 3 > MOST_TASKS:
            raise InputError(
                f"{self}: {micro_batches} micro-batches on {stages} stages of {self.chunks} chunks: at "
                f"most {MOST_TASKS // 3} passes are run in time"
            )
        if complaint := self.schedule.illegal(stages, micro_batches):
            raise InputError(f"{self}: {micro_batches} micro-batches on {stages} stages: {complaint}")
        return self.schedule.tasks(stages, micro_batches, self.chunks)

    def check_layers(self, layers: int, stages: int) -> None:
        """Raise InputError if the layers do not divide evenly over the chunks."""
        if self.chunks == 1 or layers % (stages * self.chunks) == 0:
            return
        raise InputError(
            f"{self}: {layers} layers on {stages} stages of {self.chunks} chunks: {stages * self.chunks} "
            f"chunks must divide the layers"
        )


def pipeline_kind(text: str) -> ChunkedSchedule:
    """Return the schedule of a name. Raises InputError for an unknown name, and for an illegal number of chunks."""
    name, colon, number = text.partition(":")
    if name not in SCHEDULES:
        known = ", ".join(entry.spelled for entry in SCHEDULES.values())
        raise InputError(f"schedule {text}: {suggest_name(name, SCHEDULES)}it is one of {known}")
    schedule = SCHEDULES[name]
    if not schedule.chunked:
        if colon:
            raise InputError(f"schedule {text}: {name} has no chunks to number: give {name}")
        return ChunkedSchedule(schedule)
    if not number.isdigit() or not 1 <= int(number) <= 1000:
        raise InputError(f"schedule {text}: give the chunks of a stage as a number from 1 on, such as {name}:2")
    return ChunkedSchedule(schedule, int(number))


def pipeline_tasks(schedule: str, stages: int, micro_batches: int) -> TaskGraph:
    """Return the tasks of a pipeline, in the order of each stage. Raises InputError for an unknown schedule, and for
    numbers of stages and micro-batches without an order."""
    return pipeline_kind(schedule).tasks(stages, micro_batches)


def waiting(schedule: str, p: Any = "p", m: Any = "m", **passes: Any) -> Any:
    """Return the seconds that each of p equal stages waits, as a closed form; names stand for values without a
    number."""
    import sympy

    kind = pipeline_kind(schedule)
    numbers = [
        sympy.Symbol(number, positive=True) if isinstance(number, str) else number
        for number in (p, m, kind.chunks, *(passes.get(name, name) for name in "FBW"))
    ]
    return kind.schedule.bubble(*numbers)


def spell_schedules(schedules: Mapping[str, PipelineSchedule] = SCHEDULES) -> str:
    """Return the names of schedules as text: `1f1b, gpipe, interleaved:V, zb-h1 or dualpipe`."""
    *names, last = (schedule.spelled for schedule in schedules.values())
    return f"{', '.join(names)} or {last}"


RUN_BY_RANKS = {name: schedule for name, schedule in SCHEDULES.items() if schedule.runs}
