"""A pipeline in time: a task begins when its stage is free and what it reads has come; a value is held from its forward
pass until the last pass that reads it."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from formats.core.errors import InputError
from opmatrix.display.timeline import Bar
from opmatrix.parallel.schedules.tasks import Task, TaskGraph

Sends: TypeAlias = "Mapping[tuple[int, int], Any] | float"  # seconds of a send from a stage to another


class ChunkWork(NamedTuple):
    """What a chunk takes for one micro-batch. Seconds: forward, backward of its input, gradients of its weights. Bytes:
    kept from forward to backward; the part of them that gradients of weights read; room of a backward while it runs.
    Numbers of any type that adds and compares."""
    forward: Any
    backward: Any
    gradients: Any = 0
    kept: Any = 1
    kept_for_gradients: Any = 1
    room: Any = 0

    def seconds(self, task: Task, deferred: bool) -> Any:
        match task.kind:
            case "F": return self.forward
            case "B": return self.backward if deferred else self.backward + self.gradients
        return self.gradients


@dataclass(frozen=True)
class Simulated:
    """When each task ran, and by stage: seconds of work, the end of the last task, bytes held at most."""
    graph: TaskGraph
    begins: Mapping[Task, Any]
    ends: Mapping[Task, Any]
    busy: Sequence[Any]
    last: Sequence[Any]
    peaks: Sequence[Any]

    @property
    def seconds(self) -> Any: return max(self.last)

    @property
    def idle(self) -> list[Any]:
        """Seconds that each stage waits."""
        return [self.seconds - each for each in self.busy]

    @property
    def bubble(self) -> float:
        """The part of the time that a stage waits, on the mean."""
        return float(sum(self.idle)) / (len(self.busy) * float(self.seconds)) if self.seconds else 0.0


def simulate(graph: TaskGraph, works: Sequence[ChunkWork], links: Sends = 0, state: Sequence[Any] | None = None, *,
             latest: Callable[[Iterable[Any]], Any] = max) -> Simulated:
    """Runs the tasks of a pipeline in time, for what each chunk takes and what sends take between stages; within a
    stage they take nothing, and no stage waits to send. `state`: bytes that a stage holds all the time. `latest` is the
    largest of times. Raises InputError for an order that cannot end, with who waits for what."""
    heads, free = [0] * graph.stages, [0] * graph.stages
    begins: dict[Task, Any] = {}
    ends: dict[Task, Any] = {}
    busy: list[Any] = [0] * graph.stages
    waiting: dict[Task, list[int]] = defaultdict(list)
    ready = [*range(graph.stages)]
    while ready:
        stage = ready.pop()
        slots, place = graph.slots[stage], heads[stage]
        while place < len(slots):
            slot = slots[place]
            before = [need for task in slot for need in graph.needs(task) if need not in slot]
            missing = next((need for need in before if need not in ends), None)
            if missing is not None:
                waiting[missing].append(stage)
                break
            begin = latest([free[stage], *(ends[need] + sending(graph, need, stage, links) for need in before)])
            took = sum(works[task.chunk].seconds(task, task[1:] in graph.deferred) for task in slot)
            free[stage], busy[stage] = begin + took, busy[stage] + took
            for task in slot:
                begins[task], ends[task] = begin, free[stage]
                ready += waiting.pop(task, ())
            place += 1
        heads[stage] = place
    check_ended(graph, heads, ends)
    return Simulated(graph, begins, ends, busy, free, held_at_most(graph, works, state))


def sending(graph: TaskGraph, need: Task, stage: int, links: Sends) -> Any:
    """Seconds until what a task made is on a stage."""
    source = graph.places[need.chunk]
    if source == stage: return 0
    return links.get((source, stage), 0) if isinstance(links, Mapping) else links


def check_ended(graph: TaskGraph, heads: Sequence[int], ends: Mapping[Task, Any]) -> None:
    """Raises InputError where stages wait for ever."""
    stuck = []
    for stage, place in enumerate(heads):
        if place == len(graph.slots[stage]): continue
        task, need = next((task, need) for task in graph.slots[stage][place] for need in graph.needs(task)
                          if need not in ends)
        stuck.append(f"stage {stage} waits with {task} for {need} on stage {graph.places[need.chunk]}")
    if stuck: raise InputError(f"{graph.name}: it cannot end: {', '.join(stuck)}: put what is waited for first")


def held_at_most(graph: TaskGraph, works: Sequence[ChunkWork], state: Sequence[Any] | None) -> list[Any]:
    """Bytes that each stage holds at most. They follow from its order alone, since a stage runs one slot at a time."""
    peaks = []
    for stage, slots in enumerate(graph.slots):
        held = most = 0 if state is None else state[stage]
        for slot in slots:
            held += sum(works[task.chunk].kept for task in slot if task.kind == "F")
            most = max(most, held + sum(works[task.chunk].room for task in slot if task.kind == "B"))
            for task in slot:
                work, later = works[task.chunk], task[1:] in graph.deferred
                if task.kind == "B": held -= work.kept - work.kept_for_gradients if later else work.kept
                elif task.kind == "W": held -= work.kept_for_gradients
        peaks.append(most)
    return peaks


class BubbleSplit(NamedTuple):
    """Seconds that a stage waits, on the mean, by cause. Ramp: what is left where all stages take as long and sends
    take nothing. Imbalance: what unequal stages add; send: what sends add then. Their sum is all that a stage waits."""
    ramp: Any
    imbalance: Any
    send: Any


def split_bubble(graph: TaskGraph, works: Sequence[ChunkWork], links: Sends = 0) -> BubbleSplit:
    """Why stages wait: the pipeline is run as it is, without sends, and with equal stages, too."""
    own, unsent = simulate(graph, works, links), simulate(graph, works)
    equal = simulate(graph, [balanced(works)] * len(works))
    return BubbleSplit(equal.seconds - equal.busy[0], unsent.seconds - equal.seconds, own.seconds - unsent.seconds)


def balanced(works: Sequence[ChunkWork]) -> ChunkWork:
    """What a chunk takes on the mean."""
    return ChunkWork(*(sum(each) / len(works) for each in zip(*works, strict=True)))


def bars_of(ran: Simulated) -> list[Bar]:
    """The tasks of a pipeline as bars, a lane for each stage; the later of two that ran at once is drawn over."""
    return [Bar(stage, ran.begins[task], ran.ends[task], task.kind, str(task))
            for stage, slots in enumerate(ran.graph.slots) for slot in slots for task in slot]
