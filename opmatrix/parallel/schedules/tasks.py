"""The tasks of a pipeline: for each stage the order of the forward, backward and weight-gradient passes of each
micro-batch, and the values that it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

Pass: TypeAlias = Literal["F", "B", "W"]  # forward, backward, gradients of weights


class Task(NamedTuple):
    """One pass of a micro-batch through a chunk. A chunk is a virtual stage: layers that a stage runs without a stop
    between."""

    kind: Pass
    micro: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro} of chunk {self.chunk}"


Slot: TypeAlias = tuple[Task, ...]  # tasks that run at once, as one


@dataclass(frozen=True)
class TaskGraph:
    """The slots of each stage, in order, and the dependencies of chunks."""

    name: str
    slots: Sequence[Sequence[Slot]]
    places: Sequence[int]  # the stage of each chunk
    reads: Sequence[Sequence[int]]  # for each chunk, the chunks whose values it reads

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.slots)

    @property
    def order(self) -> list[list[Task]]:
        """The tasks of each stage, one after the other."""
        return [[task for slot in slots for task in slot] for slots in self.slots]

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each chunk, the chunks that read its value."""
        readers: list[list[int]] = [[] for _ in self.places]
        for chunk, sources in enumerate(self.reads):
            for source in sources:
                readers[source].append(chunk)
        return readers

    @cached_property
    def depths(self) -> list[int]:
        """For each chunk, how many chunks its values have gone through."""
        depths: list[int] = []
        for chunk, _ in enumerate(self.places):
            depth, at = 0, chunk
            while self.reads[at]:
                depth, at = depth + 1, self.reads[at][0]
            depths.append(depth)
        return depths

    @cached_property
    def deferred(self) -> set[tuple[int, int]]:
        """Pairs of a micro-batch and a chunk whose gradients of weights are tasks of their own; for all others B
        computes them, too."""
        return {(task.micro, task.chunk) for slots in self.slots for slot in slots for task in slot if task.kind == "W"}

    @cached_property
    def micro_batches(self) -> int:
        """The number of micro-batches that some task belongs to."""
        return len({task.micro for slots in self.slots for slot in slots for task in slot})

    def needs(self, task: Task) -> Iterator[Task]:
        """Yield the tasks that must end before a task begins."""
        kind, micro, chunk = task
        match kind:
            case "F":
                yield from (Task("F", micro, source) for source in self.reads[chunk])
            case "B":
                yield Task("F", micro, chunk)
                yield from (Task("B", micro, reader) for reader in self.readers[chunk])
            case "W":
                yield Task("B", micro, chunk)


def in_a_row(chunks: int) -> list[list[int]]:
    """Return the reads of a chain: each chunk reads the one before it."""
    return [[chunk - 1] if chunk else [] for chunk in range(chunks)]


def alone(tasks: Sequence[Task]) -> list[Slot]:
    """Return a slot for each task."""
    return [(task,) for task in tasks]
