"""ZB-H1: 1F1B in which stage s computes gradients of weights s micro-batches later, when it would wait. So no stage
holds more than the first (Qi et al. 2023, section 2.2)."""

from __future__ import annotations

from typing import Any

from opmatrix.parallel.schedules.closed_forms import least
from opmatrix.parallel.schedules.one_f_one_b import alternating
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.parallel.schedules.tasks import Task, TaskGraph, alone, in_a_row


def deferred(stages: int, micro_batches: int, chunks: int = 1) -> TaskGraph:
    """Return the passes of ZB-H1."""
    slots = []
    for s in range(stages):
        tasks: list[Task] = []
        for task in alternating(s, stages - s, micro_batches):
            tasks.append(task)
            if task.kind == "B" and task.micro >= s:
                tasks.append(Task("W", task.micro - s, s))
        tasks += [Task("W", i, s) for i in range(max(0, micro_batches - s), micro_batches)]
        slots.append(alone(tasks))
    return TaskGraph("zb-h1", slots, range(stages), in_a_row(stages))


def deferred_rounds(p: Any, m: Any, v: Any, F: Any, B: Any, W: Any) -> Any:
    """Return the bubble of ZB-H1. Deferred gradients of weights fill it, one for each micro-batch that waits: (p − 1)(F
    + B − W) remains where W is the shortest pass and there is a micro-batch a stage (Qi et al. 2023, table 2). Where
    another pass is shorter, a stage has only the time of that pass to fill."""
    return (p - 1) * (F + B) - (least(m, p) - 1) * least(F, B, W)


ZB_H1 = PipelineSchedule(
    "zb-h1",
    "1F1B with the gradients of weights in the bubble (Qi et al. 2023)",
    deferred,
    bubble=deferred_rounds,
    held=lambda s, p, m, v: least(m, p),
    weights_apart=True,
)
