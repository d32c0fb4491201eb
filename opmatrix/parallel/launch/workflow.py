"""A plan as a workflow of asynchronous components, in YAML: tasks of ranks, the values that they read and write, and
the tasks that they wait for. A task is a stretch of a factor between messages, or a collective of a group."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import sympy

from opmatrix.parallel.sharding.cost_formulas import Booked
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Coordinates

RankValue: TypeAlias = tuple[int, int, int]  # rank, factor, step
ZERO = sympy.Integer(0)
BATCH = -1  # step number of a batch, whose factor is -1


@dataclass
class FlowTask:
    """A task that some ranks do together."""

    component: str  # name of the component
    ranks: list[int] = field(default_factory=list)  # ranks that do it
    reads: list[RankValue] = field(default_factory=list)  # values that are read
    writes: list[RankValue] = field(default_factory=list)  # values that are written
    flops: sympy.Expr = ZERO  # operations
    payload: sympy.Expr = ZERO  # numbers that are sent


@dataclass(frozen=True)
class Workflow:
    """All tasks of a forward pass, in an order in which they can run."""

    name: str
    axes: Sequence[tuple[str, int]]
    tasks: Sequence[FlowTask]

    def writers(self) -> dict[RankValue, int]:
        """Return the number of the task that writes each value."""
        return {value: number for number, task in enumerate(self.tasks) for value in task.writes}

    def waits(self) -> list[list[int]]:
        """Return for each task the tasks that it waits for."""
        of = self.writers()
        return [sorted({of[value] for value in task.reads if value in of}) for task in self.tasks]

    def yaml(self) -> str:
        """Return the workflow as YAML. Every number is a value, every text a JSON string, so any reader of YAML takes
        it."""
        lines = [
            f"workflow: {json.dumps(self.name)}",
            "mesh:",
            *(f"  {name}: {ranks}" for name, ranks in self.axes),
            "data:",
        ]
        used = sorted({value for task in self.tasks for value in (*task.reads, *task.writes)})
        for value in used:
            lines.append(f"  - {{data: {value_name(value)}, rank: {value[0]}}}")
        lines.append("tasks:")
        for number, (task, after) in enumerate(zip(self.tasks, self.waits(), strict=True)):
            lines += [
                f"  - task: t{number}",
                f"    component: {json.dumps(task.component)}",
                f"    ranks: {task.ranks}",
                f"    reads: [{', '.join(map(value_name, task.reads))}]",
                f"    writes: [{', '.join(map(value_name, task.writes))}]",
                f"    after: [{', '.join(f't{other}' for other in after)}]",
            ]
            for what in ("flops", "payload"):
                if (size := getattr(task, what)) != 0:
                    lines.append(f"    {what}: {written(size)}")
        return "\n".join([*lines, ""])


def value_name(value: RankValue) -> str:
    """Name a value by factor, step and rank; the batch by its rank alone."""
    rank, factor, step = value
    return f"batch_r{rank}" if factor < 0 else f"v{factor}_{step}_r{rank}"


def written(size: sympy.Expr) -> str:
    """Write a size as YAML: a number, or a quoted expression."""
    return str(int(size)) if size.is_Integer else json.dumps(str(size))


class Writing:
    """The tasks of a plan while they are written, rank by rank, factor by factor."""

    def __init__(self, plan: Partition) -> None:
        self.plan, self.tasks, self.shared = plan, list[FlowTask](), dict[tuple[object, ...], FlowTask]()
        self.booked = {id(group.split): group.booked for groups in plan.stages for group in groups}
        self.places = [*plan.mesh.places()]

    def write(self) -> Workflow:
        """Write all factors of all ranks, drop the writes that no task reads, and order the tasks."""
        for factor in range(len(self.plan.chain)):
            booked = self.booked[id(self.plan.splits[factor])]
            for rank, place in enumerate(self.places):
                of_stage = range(*self.plan.cuts[self.plan.stage(place)])
                if factor in of_stage:
                    self.add_factor(rank, place, factor, booked)
        last = len(self.plan.chain) - 1
        used = {value for task in self.tasks for value in task.reads} | {
            (rank, last, self.plan.splits[last].out) for rank in range(len(self.places))
        }
        for task in self.tasks:
            task.writes = [value for value in task.writes if value in used]
        self.tasks = [*ordered(self.tasks)]
        return Workflow(self.plan.name, [(axis.name, axis.count) for axis in self.plan.mesh], self.tasks)

    def entering(self, rank: int, place: Coordinates, factor: int) -> RankValue:
        """Return the value with which a factor begins: the batch, the result of the factor before it, or that of the
        stage before."""
        if factor == 0:
            return rank, -1, BATCH
        split = self.plan.splits[factor - 1]
        value: RankValue = rank, factor - 1, split.out
        if factor != self.plan.cuts[self.plan.stage(place)][0]:
            return value
        along = self.plan.mesh.stages
        assert along is not None
        k = self.plan.mesh.index(along.name)
        giver = self.places.index((*place[:k], place[k] - 1, *place[k + 1 :]))
        sent = self.plan.on(self.plan.handed(self.plan.stage(place) - 1), self.places[giver])
        self.tasks.append(
            FlowTask(f"send over {along.name}", [giver, rank], [(giver, factor - 1, split.out)], [value], payload=sent)
        )
        return value

    def add_factor(self, rank: int, place: Coordinates, factor: int, booked: Booked) -> None:
        """Add the steps of one rank in a factor; a collective is one task of its group."""
        plan, start = self.plan, self.entering(rank, place, factor)
        fetched, now, first = self.weights(rank, place, factor), FlowTask(""), 0
        for at, step in enumerate(booked.steps):
            taken = [start] if step.op == "input" else [(rank, factor, a) for a in step.args]
            crossing = booked.crossing(at)
            if crossing is not None:
                k = plan.mesh.index(crossing.axis)
                name = f"{crossing.op} over {crossing.axis}"
                task = self.together((factor, at, place[:k], place[k + 1 :]), name, rank)
                task.payload += plan.on(crossing.payload, place)
                now = FlowTask("")
            else:
                if not now.ranks:
                    now, first = FlowTask("", [rank], [*fetched]), at
                    self.tasks.append(now)
                task = now
                task.component = f"factor {factor}, steps {first} to {at}"
            task.reads += [value for value in dict.fromkeys(taken) if value not in (*task.writes, *task.reads)]
            task.writes.append((rank, factor, at))
            task.flops += plan.on(booked.flops(at), place)

    def together(self, key: tuple[object, ...], component: str, rank: int) -> FlowTask:
        """Return the task of a group, with a rank added."""
        if key not in self.shared:
            self.shared[key] = FlowTask(component)
            self.tasks.append(self.shared[key])
        self.shared[key].ranks.append(rank)
        return self.shared[key]

    def weights(self, rank: int, place: Coordinates, factor: int) -> list[RankValue]:
        """Return the weights that are gathered, or fetched from the host, before a factor runs."""
        group = next(
            candidate
            for candidate in self.plan.stages[self.plan.stage(place)]
            if candidate.split is self.plan.splits[factor]
        )
        alone = replace(self.plan, stages=[[group]])
        axes, values = [axis.name for axis in self.plan.mesh], list[RankValue]()
        for number, (_, crossing) in enumerate(counted for counted in alone.crossings() if counted[1].of == "weights"):
            k = axes.index(crossing.axis) if crossing.axis in axes else len(axes)
            shared = (place[:k], place[k + 1 :]) if k < len(axes) else (place, ())
            task = self.together(
                ("weights", factor, number, *shared), f"{crossing.op} of weights over {crossing.axis}", rank
            )
            values.append((rank, factor, len(group.split.steps) + number))
            task.writes.append(values[-1])
            task.payload += self.plan.on(crossing.payload, place)
        return values


def ordered(tasks: Sequence[FlowTask]) -> Iterator[FlowTask]:
    """Yield tasks so that each comes after those that it waits for. Raises ValueError if some wait for each other."""
    of = {value: k for k, task in enumerate(tasks) for value in task.writes}
    waits = [{of[value] for value in task.reads if value in of} for task in tasks]
    behind = defaultdict(list)
    for k, awaited in enumerate(waits):
        for other in awaited:
            behind[other].append(k)
    left = [len(awaited) for awaited in waits]
    ready = [k for k, count in enumerate(left) if not count]
    for k in ready:  # the list grows meanwhile
        yield tasks[k]
        for other in behind[k]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    if len(ready) < len(tasks):
        stuck = [task.component for task, count in zip(tasks, left, strict=True) if count]
        raise ValueError(f"workflow: tasks wait for each other: {', '.join(stuck[:4])}")


def workflow_of(plan: Partition) -> Workflow:
    """The tasks of one forward pass of a plan."""
    return Writing(plan).write()
