"""Interleaved 1F1B: each stage has several virtual stages (chunks), and chunk k of stage s is the (k p + s)th of the
chain. Micro-batches go through in groups of p, the number of stages (Narayanan et al. 2021, section 2.2, figure 4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opmatrix.parallel.schedules.closed_forms import least, one_part, rounds
from opmatrix.parallel.schedules.pipeline_schedule import PipelineSchedule
from opmatrix.parallel.schedules.tasks import Pass, Task, TaskGraph, alone, in_a_row


def in_turns(stages: int, micro_batches: int, chunks: int) -> TaskGraph:
    """Return the passes of interleaved 1F1B."""
    slots = []
    for s in range(stages):
        ahead = min(2 * (stages - s - 1) + (chunks - 1) * stages + 1, micro_batches * chunks)
        forward = [*in_groups("F", s, stages, micro_batches, chunks)]
        backward = [*in_groups("B", s, stages, micro_batches, chunks)]
        tasks = forward[:ahead]
        for k, task in enumerate(backward):
            tasks += [task, *forward[ahead + k : ahead + k + 1]]
        slots.append(alone(tasks))
    return TaskGraph(
        f"interleaved:{chunks}", slots, [k % stages for k in range(stages * chunks)], in_a_row(stages * chunks)
    )


def in_groups(kind: Pass, stage: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Task]:
    """Yield the passes of a stage, group by group, and within a group chunk by chunk: the last chunk first for
    backward."""
    for group in range(0, micro_batches, stages):
        for k in range(chunks):
            chunk = k if kind == "F" else chunks - 1 - k
            for i in range(group, group + stages):
                yield Task(kind, i, chunk * stages + stage)


def ahead_held(s: Any, p: Any, m: Any, v: Any) -> Any:
    """Return the micro-batches that a stage holds at most: its forward passes ahead of its backward passes, v of them a
    micro-batch. For the first stage they are p (1 + (p − 1) / (p v)) (Korthikanti et al. 2022, section 4.2.3), or
    all m where these are fewer."""
    return least(m * v, 2 * (p - s - 1) + (v - 1) * p + 1) * one_part(1, v)


def uneven_groups(stages: int, micro_batches: int) -> str:
    """Return the complaint about micro-batches that the stages do not divide; empty where there is none."""
    if micro_batches % stages == 0:
        return ""
    return f"micro-batches run in groups of {stages}: give a multiple of {stages}"


INTERLEAVED = PipelineSchedule(
    "interleaved",
    "1F1B over V chunks a stage (Narayanan et al. 2021)",
    in_turns,
    bubble=rounds,
    held=ahead_held,
    illegal=uneven_groups,
    chunked=True,
)
