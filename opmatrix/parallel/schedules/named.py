"""Orders of pipelines by name, as `1f1b` or `interleaved:2`."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import sympy

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.schedules.bubbles import CLOSED, ClosedForm
from opmatrix.parallel.schedules.chains import deferred, forward_first, interleaved, one_by_one
from opmatrix.parallel.schedules.dualpipe import both_ways
from opmatrix.parallel.schedules.tasks import TaskGraph

MOST_TASKS = 2_000_000                                      # of a pipeline, so that nobody waits long


class PipelineKind(NamedTuple):
    """A way to order a pipeline: its name, chunks a stage, chains of chunks that each stage has a part of."""
    name: str
    chunks: int = 1
    chains: int = 1

    def __str__(self) -> str: return self.name + f":{self.chunks}" * (self.name == "interleaved")

    @property
    def closed(self) -> ClosedForm: return CLOSED[self.name]

    def tasks(self, stages: int, micro_batches: int) -> TaskGraph:
        """What each stage runs. Raises InputError for numbers that the kind has no order of."""
        for what, number in (("stages", stages), ("micro-batches", micro_batches)):
            if number < 1: raise InputError(f"{self}: {number} {what}: at least 1")
        if stages * micro_batches * self.chunks * 3 > MOST_TASKS:
            raise InputError(f"{self}: {micro_batches} micro-batches on {stages} stages of {self.chunks} chunks: at "
                             f"most {MOST_TASKS // 3} passes are run in time")
        if self.name == "interleaved" and micro_batches % stages:
            raise InputError(f"{self}: {micro_batches} micro-batches on {stages} stages: they go through in groups of "
                             f"{stages}: give a multiple of {stages}")
        return MAKERS[self.name](self, stages, micro_batches)

    def check_layers(self, layers: int, stages: int) -> None:
        """Raises InputError for chunks that do not have as many layers each."""
        if self.chunks == 1 or layers % (stages * self.chunks) == 0: return
        raise InputError(f"{self}: {layers} layers on {stages} stages of {self.chunks} chunks: {stages * self.chunks} "
                         f"chunks must divide the layers")


MAKERS: Mapping[str, Callable[[PipelineKind, int, int], TaskGraph]] = {
    "gpipe": lambda kind, p, m: forward_first(p, m),
    "1f1b": lambda kind, p, m: one_by_one(p, m),
    "interleaved": lambda kind, p, m: interleaved(p, m, kind.chunks),
    "zb-h1": lambda kind, p, m: deferred(p, m),
    "dualpipe": lambda kind, p, m: both_ways(p, m)}


def pipeline_kind(text: str) -> PipelineKind:
    """A kind by its name. Raises InputError for one that there is not, and for chunks that are none."""
    name, colon, number = text.partition(":")
    if name not in MAKERS:
        known = ", ".join(each + ":V" * (each == "interleaved") for each in MAKERS)
        raise InputError(f"schedule {text}: {suggest_name(name, MAKERS)}it is one of {known}")
    if name != "interleaved":
        if colon: raise InputError(f"schedule {text}: {name} has no chunks to number: give {name}")
        return PipelineKind(name, chains=2 if name == "dualpipe" else 1)
    if not number.isdigit() or not 1 <= int(number) <= 1000:
        raise InputError(f"schedule {text}: give the chunks of a stage as a number from 1 on, such as interleaved:2")
    return PipelineKind(name, int(number))


def pipeline_tasks(schedule: str, stages: int, micro_batches: int) -> TaskGraph:
    """The tasks of a pipeline, in the order of each stage. Raises InputError for a schedule that there is not, and for
    numbers that it has no order of."""
    return pipeline_kind(schedule).tasks(stages, micro_batches)


def waiting(schedule: str, p: Any = "p", m: Any = "m", **passes: Any) -> Any:
    """The seconds that each of p equal stages waits, as a closed form; names stand for what has no number."""
    kind = pipeline_kind(schedule)
    own = [sympy.Symbol(each, positive=True) if isinstance(each, str) else each
           for each in (p, m, kind.chunks, *(passes.get(name, name) for name in "FBW"))]
    return kind.closed.bubble(*own)
