"""A pipeline in time: a task begins when its stage is free and its inputs have arrived; a value is held from its
forward pass until the last pass that reads it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from formats.core.errors import InputError
from opmatrix.display.timeline import Bar
from opmatrix.parallel.schedules.closed_forms import least
from opmatrix.parallel.schedules.tasks import Slot, Task, TaskGraph

Sends: TypeAlias = "Mapping[tuple[int, int], Any] | float"  # seconds of a send from one stage to another

TaskSeconds: TypeAlias = Any  # numbers of any type that adds and compares


class ChunkWork(NamedTuple):
    """Seconds and bytes of a chunk for one micro-batch, as numbers of any type that adds and compares."""

    forward: TaskSeconds  # seconds of forward
    backward: TaskSeconds  # seconds of backward of its input
    gradients: TaskSeconds = 0  # seconds of the gradients of its weights
    kept: Any = 1  # bytes saved from forward to backward
    kept_for_gradients: Any = 1  # the part of them that gradients of weights read
    room: Any = 0  # bytes of a backward pass while it runs
    crossing: TaskSeconds = 0  # the part of forward in which values cross links
    crossing_back: TaskSeconds = 0  # the same of backward

    def seconds(self, task: Task, deferred: bool) -> TaskSeconds:
        """Return the seconds of a task; unless gradients of weights are deferred, backward includes them."""
        match task.kind:
            case "F":
                return self.forward
            case "B":
                return self.backward if deferred else self.backward + self.gradients
        return self.gradients

    def crossing_of(self, task: Task) -> TaskSeconds:
        """Return the part of a task's seconds in which values cross links."""
        match task.kind:
            case "F":
                return self.crossing
            case "B":
                return self.crossing_back
        return 0


@dataclass(frozen=True)
class Simulated:
    """The times of each task, and the load and memory of each stage."""

    graph: TaskGraph
    begins: Mapping[Task, Any]  # time at which each task begins
    ends: Mapping[Task, Any]  # time at which each task ends
    busy: Sequence[Any]  # seconds of work of each stage
    last: Sequence[Any]  # end of the last task of each stage
    peaks: Sequence[Any]  # bytes that each stage holds at most

    @property
    def seconds(self) -> Any:
        """The end of the last task of all stages."""
        return max(self.last)

    @property
    def idle(self) -> list[Any]:
        """Seconds that each stage waits."""
        return [self.seconds - seconds for seconds in self.busy]

    @property
    def bubble(self) -> float:
        """The share of the time that a stage waits, on average."""
        return float(sum(self.idle)) / (len(self.busy) * float(self.seconds)) if self.seconds else 0.0


def simulate(
    graph: TaskGraph,
    works: Sequence[ChunkWork],
    links: Sends = 0,
    state: Sequence[Any] | None = None,
    *,
    latest: Callable[[Iterable[Any]], Any] = max,
) -> Simulated:
    """Simulate the tasks of a pipeline, given the seconds of each chunk and of sends between stages. Sends within a
    stage take no time, and no stage waits to send. `state`: bytes that a stage holds all the time. `latest` returns the
    largest of times. Raises InputError for a deadlock, and names the tasks that wait and their missing inputs."""
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
            took = slot_seconds(graph, works, slot)
            free[stage], busy[stage] = begin + took, busy[stage] + took
            for task in slot:
                begins[task], ends[task] = begin, free[stage]
                ready += waiting.pop(task, ())
            place += 1
        heads[stage] = place
    check_ended(graph, heads, ends)
    return Simulated(graph, begins, ends, busy, free, held_at_most(graph, works, state))


def slot_seconds(graph: TaskGraph, works: Sequence[ChunkWork], slot: Slot) -> TaskSeconds:
    """Return the seconds of a slot. Of two passes that run at once each computes while values of the other cross links
    (DeepSeek-AI 2024, DeepSeek-V3, figure 4), so both take what they compute or what crosses, whichever is more."""
    took = sum(works[task.chunk].seconds(task, task[1:] in graph.deferred) for task in slot)
    crossing = sum(works[task.chunk].crossing_of(task) for task in slot) if len(slot) > 1 else 0
    return took - hidden_seconds(took, crossing) if crossing else took


def hidden_seconds(took: TaskSeconds, crossing: TaskSeconds) -> TaskSeconds:
    """Return the seconds that are hidden of passes that run at once, of whose seconds a part crosses links."""
    return least(crossing, took - crossing)


def sending(graph: TaskGraph, need: Task, stage: int, links: Sends) -> TaskSeconds:
    """Return the seconds until the result of a task is on a stage."""
    source = graph.places[need.chunk]
    if source == stage:
        return 0
    return links.get((source, stage), 0) if isinstance(links, Mapping) else links


def check_ended(graph: TaskGraph, heads: Sequence[int], ends: Mapping[Task, Any]) -> None:
    """Raise InputError if stages are deadlocked."""
    stuck = []
    for stage, place in enumerate(heads):
        if place == len(graph.slots[stage]):
            continue
        task, need = next(
            (task, need) for task in graph.slots[stage][place] for need in graph.needs(task) if need not in ends
        )
        stuck.append(f"stage {stage} waits with {task} for {need} on stage {graph.places[need.chunk]}")
    if stuck:
        raise InputError(f"{graph.name}: deadlock: {', '.join(stuck)}: order the awaited tasks first")


def held_at_most(graph: TaskGraph, works: Sequence[ChunkWork], state: Sequence[Any] | None) -> list[Any]:
    """Return the bytes that each stage holds at most. They follow from its order alone, since a stage runs one slot at
    a time."""
    peaks = []
    for stage, slots in enumerate(graph.slots):
        held = most = 0 if state is None else state[stage]
        for slot in slots:
            held += sum(works[task.chunk].kept for task in slot if task.kind == "F")
            most = max(most, held + sum(works[task.chunk].room for task in slot if task.kind == "B"))
            for task in slot:
                work, later = works[task.chunk], task[1:] in graph.deferred
                if task.kind == "B":
                    held -= work.kept - work.kept_for_gradients if later else work.kept
                elif task.kind == "W":
                    held -= work.kept_for_gradients
        peaks.append(most)
    return peaks


class BubbleSplit(NamedTuple):
    """Seconds that a stage waits, on average, by cause. Their sum is the whole wait of a stage."""

    ramp: Any  # the wait with equal stages and free sends
    imbalance: Any  # added by unequal stages
    send: Any  # added by sends


def split_bubble(graph: TaskGraph, works: Sequence[ChunkWork], links: Sends = 0) -> BubbleSplit:
    """Split the waits of stages by cause. The pipeline is simulated as it is, without sends, and with equal stages,
    too."""
    actual, unsent = simulate(graph, works, links), simulate(graph, works)
    equal = simulate(graph, [balanced(works)] * len(works))
    return BubbleSplit(equal.seconds - equal.busy[0], unsent.seconds - equal.seconds, actual.seconds - unsent.seconds)


def balanced(works: Sequence[ChunkWork]) -> ChunkWork:
    """Return the mean work of a chunk."""
    return ChunkWork(*(sum(column) / len(works) for column in zip(*works, strict=True)))


def bars_of(ran: Simulated) -> list[Bar]:
    """Return the tasks of a pipeline as bars, a lane for each stage. Of two tasks that run at once the later one is
    drawn over the other."""
    return [
        Bar(stage, ran.begins[task], ran.ends[task], task.kind, str(task))
        for stage, slots in enumerate(ran.graph.slots)
        for slot in slots
        for task in slot
    ]
