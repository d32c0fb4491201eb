"""Schedules by name, as `1f1b` or `interleaved:2`."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.schedules.dualpipe import DUALPIPE
from opmatrix.parallel.schedules.gpipe import GPIPE
from opmatrix.parallel.schedules.interleaved import INTERLEAVED
from opmatrix.parallel.schedules.one_f_one_b import ONE_F_ONE_B
from opmatrix.parallel.schedules.schedule import Schedule
from opmatrix.parallel.schedules.tasks import TaskGraph
from opmatrix.parallel.schedules.zero_bubble import ZB_H1

USUAL_SCHEDULE = ONE_F_ONE_B                                # where none is asked for
SCHEDULES: Mapping[str, Schedule] = {each.name: each for each in (
    USUAL_SCHEDULE, GPIPE, INTERLEAVED, ZB_H1, DUALPIPE)}
MOST_TASKS = 2_000_000                                      # of a pipeline, so that nobody waits long


class ChunkedSchedule(NamedTuple):
    """A schedule with its number of chunks a stage."""
    schedule: Schedule
    chunks: int = 1

    def __str__(self) -> str: return f"{self.name}:{self.chunks}" if self.schedule.chunked else self.name

    @property
    def name(self) -> str: return self.schedule.name

    def tasks(self, stages: int, micro_batches: int) -> TaskGraph:
        """The passes of each stage. Raises InputError for numbers that the schedule has no order of."""
        for noun, number in (("stages", stages), ("micro-batches", micro_batches)):
            if number < 1: raise InputError(f"{self}: {number} {noun}: at least 1")
        if stages * micro_batches * self.chunks * 3 > MOST_TASKS:
            raise InputError(f"{self}: {micro_batches} micro-batches on {stages} stages of {self.chunks} chunks: at "
                             f"most {MOST_TASKS // 3} passes are run in time")
        if complaint := self.schedule.illegal(stages, micro_batches):
            raise InputError(f"{self}: {micro_batches} micro-batches on {stages} stages: {complaint}")
        return self.schedule.tasks(stages, micro_batches, self.chunks)

    def check_layers(self, layers: int, stages: int) -> None:
        """Raises InputError for chunks that do not have as many layers each."""
        if self.chunks == 1 or layers % (stages * self.chunks) == 0: return
        raise InputError(f"{self}: {layers} layers on {stages} stages of {self.chunks} chunks: {stages * self.chunks} "
                         f"chunks must divide the layers")


def pipeline_kind(text: str) -> ChunkedSchedule:
    """The schedule of a name. Raises InputError for an unknown name, and for a number of chunks that is none."""
    name, colon, number = text.partition(":")
    if name not in SCHEDULES:
        known = ", ".join(each.spelled for each in SCHEDULES.values())
        raise InputError(f"schedule {text}: {suggest_name(name, SCHEDULES)}it is one of {known}")
    schedule = SCHEDULES[name]
    if not schedule.chunked:
        if colon: raise InputError(f"schedule {text}: {name} has no chunks to number: give {name}")
        return ChunkedSchedule(schedule)
    if not number.isdigit() or not 1 <= int(number) <= 1000:
        raise InputError(f"schedule {text}: give the chunks of a stage as a number from 1 on, such as {name}:2")
    return ChunkedSchedule(schedule, int(number))


def pipeline_tasks(schedule: str, stages: int, micro_batches: int) -> TaskGraph:
    """The tasks of a pipeline, in the order of each stage. Raises InputError for an unknown schedule, and for numbers
    that it has no order of."""
    return pipeline_kind(schedule).tasks(stages, micro_batches)


def waiting(schedule: str, p: Any = "p", m: Any = "m", **passes: Any) -> Any:
    """The seconds that each of p equal stages waits, as a closed form; names stand for what has no number."""
    import sympy
    kind = pipeline_kind(schedule)
    own = [sympy.Symbol(each, positive=True) if isinstance(each, str) else each
           for each in (p, m, kind.chunks, *(passes.get(name, name) for name in "FBW"))]
    return kind.schedule.bubble(*own)


def spelled(schedules: Mapping[str, Schedule] = SCHEDULES) -> str:
    """Schedules as text: `1f1b, gpipe, interleaved:V, zb-h1 or dualpipe`."""
    *names, last = (each.spelled for each in schedules.values())
    return f"{', '.join(names)} or {last}"


RUN_BY_RANKS = {name: each for name, each in SCHEDULES.items() if each.runs}
