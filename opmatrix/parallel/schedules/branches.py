"""Pipelines whose stages are a graph: branches run side by side, and a stage joins them (Jeon et al. 2024, GraphPipe,
section 5; Xhebraj et al. 2024, JaxPP, section 3)."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.schedules.one_f_one_b import alternating
from opmatrix.parallel.schedules.tasks import TaskGraph, alone


def branching(reads: Mapping[str, Sequence[str]], micro_batches: int) -> TaskGraph:
    """1F1B on a graph of stages, each with the stages whose values it reads: a stage begins with as many forward passes
    as there are stages on the longest way from it to an end, so branches are no deeper than they are long. Stages keep
    the order in which they are given. Raises InputError for a stage that there is not, and for a circle."""
    names = [*reads]
    for name, sources in reads.items():
        for source in sources:
            if source in reads: continue
            raise InputError(f"{name} reads {source}: {suggest_name(source, names)}stages are {', '.join(names)}")
    ahead = heights(reads)
    at = {name: k for k, name in enumerate(names)}
    slots = [alone([*alternating(k, ahead[name], micro_batches)]) for k, name in enumerate(names)]
    return TaskGraph("branches", slots, range(len(names)), [[at[source] for source in reads[name]] for name in names])


def heights(reads: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Stages on the longest way from each to an end, itself included. Raises InputError for a circle."""
    readers = {name: [each for each, sources in reads.items() if name in sources] for name in reads}
    under_way: list[str] = []

    @cache
    def height(name: str) -> int:
        if name in under_way:
            circle = [*under_way[under_way.index(name):], name]
            raise InputError(f"{' is read by '.join(circle)}: a pipeline is a graph without circles")
        under_way.append(name)
        found = 1 + max(map(height, readers[name]), default=0)
        under_way.pop()
        return found
    return {name: height(name) for name in reads}
