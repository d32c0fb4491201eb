"""1F1B: a stage begins with as many forward passes as there are stages from it to the last, then a backward pass
follows each (Narayanan et al. 2019, PipeDream, section 3.2; flushed: Narayanan et al. 2021, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator

from opmatrix.parallel.schedules.closed_forms import least, rounds
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.parallel.schedules.tasks import Task, TaskGraph, alone, in_a_row


def one_by_one(stages: int, micro_batches: int, chunks: int = 1) -> TaskGraph:
    """Return the passes of 1F1B."""
    slots = [alone([*alternating(s, stages - s, micro_batches)]) for s in range(stages)]
    return TaskGraph("1f1b", slots, range(stages), in_a_row(stages))


def alternating(chunk: int, ahead: int, micro_batches: int) -> Iterator[Task]:
    """Yield `ahead` forward passes, then backward and forward passes in turns, then the remaining backward passes."""
    ahead = min(ahead, micro_batches)
    yield from (Task("F", i, chunk) for i in range(ahead))
    for i in range(micro_batches):
        yield Task("B", i, chunk)
        if ahead + i < micro_batches:
            yield Task("F", ahead + i, chunk)


ONE_F_ONE_B = PipelineSchedule(
    "1f1b",
    "one forward pass, one backward pass in turns (Narayanan et al. 2021)",
    one_by_one,
    bubble=rounds,
    held=lambda s, p, m, v: least(m, p - s),
)
