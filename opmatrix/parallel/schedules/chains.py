"""Orders of pipelines whose stages are a chain: all forward first, one forward one backward, several chunks a stage,
gradients of weights put off."""
from __future__ import annotations

from collections.abc import Iterator

from opmatrix.parallel.schedules.tasks import Task, TaskGraph, alone, in_a_row


def forward_first(stages: int, micro_batches: int) -> TaskGraph:
    """GPipe: all forward passes, then all backward passes (Huang et al. 2019, section 2.3)."""
    each = range(micro_batches)
    slots = [alone([*(Task("F", i, s) for i in each), *(Task("B", i, s) for i in each)]) for s in range(stages)]
    return TaskGraph("gpipe", slots, range(stages), in_a_row(stages))


def one_by_one(stages: int, micro_batches: int) -> TaskGraph:
    """1F1B: a stage begins with as many forward passes as there are stages from it on, then a backward pass follows
    each (Narayanan et al. 2019, PipeDream, section 3.2; flushed: Narayanan et al. 2021, section 2.2)."""
    slots = [alone([*alternating(s, stages - s, micro_batches)]) for s in range(stages)]
    return TaskGraph("1f1b", slots, range(stages), in_a_row(stages))


def alternating(chunk: int, ahead: int, micro_batches: int) -> Iterator[Task]:
    """So many forward passes ahead, then backward and forward in turns, then what is left."""
    ahead = min(ahead, micro_batches)
    yield from (Task("F", i, chunk) for i in range(ahead))
    for i in range(micro_batches):
        yield Task("B", i, chunk)
        if ahead + i < micro_batches: yield Task("F", ahead + i, chunk)


def interleaved(stages: int, micro_batches: int, chunks: int) -> TaskGraph:
    """Each stage has several chunks, and chunk k of stage s is the (k p + s)th of the chain. Micro-batches go through
    in groups of as many as there are stages (Narayanan et al. 2021, section 2.2, figure 4)."""
    slots = []
    for s in range(stages):
        ahead = min(2 * (stages - s - 1) + (chunks - 1) * stages + 1, micro_batches * chunks)
        forward = [*in_groups("F", s, stages, micro_batches, chunks)]
        backward = [*in_groups("B", s, stages, micro_batches, chunks)]
        tasks = forward[:ahead]
        for k, task in enumerate(backward): tasks += [task, *forward[ahead + k:ahead + k + 1]]
        slots.append(alone(tasks))
    return TaskGraph(f"interleaved:{chunks}", slots, [k % stages for k in range(stages * chunks)],
                     in_a_row(stages * chunks))


def in_groups(kind: str, stage: int, stages: int, micro_batches: int, chunks: int) -> Iterator[Task]:
    """Passes of a stage, group by group, and in a group chunk by chunk: the last chunk first where they go backward."""
    for group in range(0, micro_batches, stages):
        for k in range(chunks):
            chunk = k if kind == "F" else chunks - 1 - k
            for i in range(group, group + stages): yield Task("F" if kind == "F" else "B", i, chunk * stages + stage)


def deferred(stages: int, micro_batches: int) -> TaskGraph:
    """ZB-H1: as 1F1B, but stage s computes gradients of weights s micro-batches later, when it would wait, so that no
    stage holds more than the first (Qi et al. 2023, section 2.2)."""
    slots = []
    for s in range(stages):
        tasks: list[Task] = []
        for task in alternating(s, stages - s, micro_batches):
            tasks.append(task)
            if task.kind == "B" and task.micro >= s: tasks.append(Task("W", task.micro - s, s))
        tasks += [Task("W", i, s) for i in range(max(0, micro_batches - s), micro_batches)]
        slots.append(alone(tasks))
    return TaskGraph("zb-h1", slots, range(stages), in_a_row(stages))
