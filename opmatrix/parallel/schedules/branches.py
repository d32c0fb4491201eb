"""Pipelines whose stages are a graph: branches run side by side, and a later stage joins them (Jeon et al. 2024,
GraphPipe, section 5; Xhebraj et al. 2024, JaxPP, section 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.schedules.one_f_one_b import alternating
from opmatrix.parallel.schedules.tasks import TaskGraph, alone


def branching(reads: Mapping[str, Sequence[str]], micro_batches: int) -> TaskGraph:
    """Return 1F1B on a graph of stages; `reads`: each stage with the stages whose values it reads. A stage begins with
    as many forward passes as there are stages on its longest path to an end, so the depth of a branch is its length.
    Stages keep the order in which they are given. Raises InputError for an unknown stage, and for a cycle."""
    names = [*reads]
    for name, sources in reads.items():
        for source in sources:
            if source in reads:
                continue
            raise InputError(f"{name} reads {source}: {suggest_name(source, names)}stages are {', '.join(names)}")
    ahead = heights(reads)
    at = {name: k for k, name in enumerate(names)}
    slots = [alone([*alternating(k, ahead[name], micro_batches)]) for k, name in enumerate(names)]
    return TaskGraph("branches", slots, range(len(names)), [[at[source] for source in reads[name]] for name in names])


def heights(reads: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Count the stages on the longest path from each stage to an end, itself included. Raises InputError for a
    cycle."""
    readers = {name: [reader for reader, sources in reads.items() if name in sources] for name in reads}
    under_way: list[str] = []

    @cache
    def height(name: str) -> int:
        """Count the stages from this one to the farthest end. Raises InputError for a cycle, naming it."""
        if name in under_way:
            circle = [*under_way[under_way.index(name) :], name]
            raise InputError(f"{' is read by '.join(circle)}: a pipeline is a graph without circles")
        under_way.append(name)
        stages = 1 + max(map(height, readers[name]), default=0)
        under_way.pop()
        return stages

    return {name: height(name) for name in reads}
