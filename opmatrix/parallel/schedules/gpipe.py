"""GPipe: all forward passes, then all backward passes (Huang et al. 2019, section 2.3)."""

from __future__ import annotations

from opmatrix.parallel.schedules.closed_forms import rounds
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.parallel.schedules.tasks import Task, TaskGraph, alone, in_a_row


def forward_first(stages: int, micro_batches: int, chunks: int = 1) -> TaskGraph:
    """Return the passes of GPipe."""
    indices = range(micro_batches)
    slots = [alone([*(Task("F", i, s) for i in indices), *(Task("B", i, s) for i in indices)]) for s in range(stages)]
    return TaskGraph("gpipe", slots, range(stages), in_a_row(stages))


GPIPE = PipelineSchedule(
    "gpipe",
    "all forward passes, then all backward passes (Huang et al. 2019)",
    forward_first,
    bubble=rounds,
    held=lambda s, p, m, v: m,
)
