"""A step of training in time: the passes of the virtual stages of a pipeline on a machine of a data sheet, in the order
of a schedule; the memory of stages; gradient sums beside the last backward pass. Rates are full, so times are lower
bounds, and only gradient sums overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import sympy

from formats.core.errors import InputError
from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.parallel.cost.formulas import Formulas, busiest
from opmatrix.parallel.cost.step_costs import BackwardBooked, TrainingStep
from opmatrix.parallel.cost.timing import Timing
from opmatrix.parallel.schedules.named import ChunkedSchedule
from opmatrix.parallel.schedules.simulated import BubbleSplit, ChunkWork, Simulated, simulate, split_bubble
from opmatrix.parallel.schedules.tasks import TaskGraph
from opmatrix.parallel.sharding.cost_formulas import Crossing, add_up, stored_arrays, stored_dims
from opmatrix.parallel.sharding.placement import local
from opmatrix.parallel.sharding.weight_storage import Storage

PerChunk = TypeVar("PerChunk")
BUCKET = 25 * 2**20  # bytes (Li et al. 2020, PyTorch Distributed, section 3.2.3)


class StatePolicy(NamedTuple):
    """Bytes a parameter of gradients and of the optimiser, besides its weight of two bytes."""

    gradient: float
    optimiser: float
    said: str


STATES = {
    "16": StatePolicy(2, 12, "gradients as weights; a copy of weights and two moments in float32"),
    "18": StatePolicy(4, 12, "gradients in float32; a copy of weights and two moments in float32"),
    "20": StatePolicy(6, 12, "gradients as weights and in float32; a copy of weights and two moments in float32"),
}


def exposed(total: sympy.Expr, bucket: float, window: sympy.Expr, rate: sympy.Expr, wait: sympy.Expr) -> sympy.Expr:
    """Return the seconds of gradient sums that last beyond the backward pass beside which they run. Gradients of
    `total` bytes are computed evenly over `window` seconds; n buckets of them are summed one after the other, each from
    when it is complete, in `wait` seconds and `rate` a byte: Max(one, all of them − window (n − 1) / n)."""
    n = sympy.ceiling(sympy.sympify(total) / bucket)
    if n.is_number and n == 0:
        return sympy.Integer(0)
    one = wait + rate * total / n
    return sympy.Max(one, n * one - window * (n - 1) / n)


@dataclass(frozen=True)
class TrainedPipeline:
    """A step of training of a partition whose sizes are numbers. Each virtual stage of the pipeline is a stage of the
    partition."""

    step: TrainingStep
    kind: ChunkedSchedule
    micro_batches: int
    number: str = "bf16"
    storage: Storage = "bf16"
    state: StatePolicy = STATES["16"]  # bytes of gradients and optimiser
    crossing: Mapping[str, float] = field(default_factory=dict)
    bucket: float = BUCKET  # bytes of gradients that are summed at once
    sheet: Datasheet | None = None  # the machine; without it operations stand for seconds

    @property
    def machine(self) -> Datasheet:
        """The data sheet. Raises InputError where none was given."""
        if self.sheet is not None:
            return self.sheet
        raise InputError("training: seconds need a machine: give its data sheet")

    @property
    def stages(self) -> int:
        """The stages of the pipeline, each of which has as many virtual stages as the schedule has chunks."""
        return len(self.step.plan.stages) // self.kind.chunks

    @cached_property
    def graph(self) -> TaskGraph:
        """The tasks of the schedule for these stages and micro-batches."""
        return self.kind.tasks(self.stages, self.micro_batches)

    @property
    def positions(self) -> list[int]:
        """The stage of the partition of each virtual stage. With two chains the second one goes through the stages in
        reverse."""
        p = self.stages
        if self.kind.schedule.chains == 2:
            return [*range(p), *reversed(range(p))]
        return [*range(len(self.step.plan.stages))]

    def chunks_of(self, stage: int) -> list[int]:
        """Return the stages of the partition that a stage of the pipeline has."""
        return [at for at, place in zip(self.positions, self.graph.places, strict=True) if place == stage]

    def formulas(self, at: int) -> Formulas:
        """Return the cost formulas of a virtual stage."""
        return Formulas(self.step.plan, at, BYTES[self.number], self.storage, crossing=self.crossing)

    @cached_property
    def states(self) -> list[float]:
        """Bytes of weights, gradients and optimiser on the device of the busiest rank of each stage."""
        offload = self.step.plan.mesh.offload
        gradient, optimiser = self.state.gradient * (offload < 2), self.state.optimiser * (offload < 1)

        def stored(at: int) -> float:
            """Return the bytes of state of a virtual stage; parts that are offloaded to the host count 0."""
            more = busiest(self.step.plan.state(at, 0, gradient, optimiser))
            return numbered((self.formulas(at).weights if offload < 3 else sympy.Integer(0)) + more)

        sizes = self.by_chunk(stored)
        return [sum(sizes[at] for at in self.chunks_of(stage)) for stage in range(self.stages)]

    @cached_property
    def kept(self) -> list[float]:
        """Bytes that each virtual stage saves for a micro-batch."""
        return self.by_chunk(lambda at: numbered(busiest(add_up(self.step.kept(at, BYTES[self.number]).values()))))

    def by_chunk(self, found: Callable[[int], PerChunk]) -> list[PerChunk]:
        """Return a value for each stage of the partition, computed once for equal stages."""
        like = self.step.plan.like
        known = {at: found(at) for at in {*like}}
        return [known[at] for at in like]

    @cached_property
    def room(self) -> list[float]:
        """Bytes besides the saved values that a virtual stage holds at most while its layers run backward, one after
        the other."""
        size = BYTES[self.number]

        def beside(at: int) -> float:
            """Return the largest excess of a layer's held bytes over its saved ones, 0 at least."""
            return max(
                [
                    0.0,
                    *(
                        size * max(map(numbered, map(busiest, {*chunk.booked.held()})), default=0)
                        - numbered(busiest(add_up(chunk.booked.kept(size).values())))
                        for chunk in self.step.stages[at]
                    ),
                ]
            )

        return self.by_chunk(beside)

    @cached_property
    def works(self) -> list[ChunkWork]:
        """Seconds and saved bytes of each virtual stage; without a machine operations stand for seconds. Gradients of
        weights are taken to read all saved values."""
        takes = self.by_chunk(self.operations if self.sheet is None else self.seconds)
        works = [
            ChunkWork(*passes, saved, saved, room)
            for passes, saved, room in zip(takes, self.kept, self.room, strict=True)
        ]
        return [works[at] for at in self.positions]

    def operations(self, at: int) -> tuple[float, float, float]:
        """Return the operations of a virtual stage: forward, backward with recomputation, and gradients of weights."""
        forward = back = weights = sympy.Integer(0)
        for chunk in self.step.stages[at]:
            learnt = add_up(chunk.booked.flops(k) for k in gradient_steps(chunk.booked))
            forward += chunk.count * chunk.forward_flops
            back += chunk.count * (chunk.again_flops + chunk.backward_flops - learnt)
            weights += chunk.count * learnt
        return numbered(busiest(forward)), numbered(busiest(back)), numbered(busiest(weights))

    def seconds(self, at: int) -> tuple[float, float, float]:
        """Return the seconds of a virtual stage: forward, backward with recomputation, and gradients of weights."""
        timing, formulas = self.timing, self.formulas(at)
        forward = timing.computation(at, formulas) + self.crossing_seconds(
            timing, formulas, ((n, crossing) for n, crossing in self.step.plan.crossings(at) if crossing.of != "stage")
        )
        back = self.crossing_seconds(
            timing, formulas, ((n, crossing) for n, crossing in self.step.crossings(at) if crossing.of != "stage")
        )
        weights = sympy.Integer(0)
        for chunk in self.step.stages[at]:
            late = {*gradient_steps(chunk.booked)}
            phases = chunk.booked.split.step_phases
            rest = [k for k, phase in enumerate(phases) if phase != "forward" and k not in late]
            back += chunk.count * self.computed(chunk.booked, rest, formulas)
            weights += chunk.count * self.computed(chunk.booked, sorted(late), formulas)
        return numbered(forward), numbered(back), numbered(weights)

    @cached_property
    def timing(self) -> Timing:
        """The times of the partition's operations on the machine."""
        return Timing(self.step.plan, self.machine, self.number, self.storage, self.crossing)

    def computed(self, booked: BackwardBooked, steps: Iterable[int], formulas: Formulas) -> sympy.Expr:
        """Return the seconds of products: each takes the time of its operations or of its bytes. Scores are never
        stored."""
        seconds, sheet = sympy.Integer(0), self.machine
        for at in steps:
            step = booked.steps[at]
            work = busiest(booked.flops(at))
            if work == 0:
                continue
            touched = [k for k in [*step.args, at] if not booked.steps[k].dims.rows == booked.steps[k].dims.cols != 1]
            size = BYTES[self.number] * busiest(add_up(map(booked.numbers, touched)))
            size += formulas.weight_size * add_up(
                busiest(sympy.sympify(local(stored_dims(data), step.stored, booked.mesh).numbers))
                for _, data, _ in stored_arrays([step])
            )
            seconds += sympy.Max(work / sheet.product_rate(self.number)[0], size / sheet.memory[-1][2])
        return seconds

    @staticmethod
    def crossing_seconds(timing: Timing, formulas: Formulas, each: Iterable[tuple[int, Crossing]]) -> sympy.Expr:
        """Add the seconds of communication, each crossing as often as it occurs."""
        return add_up(
            count * (moved + waits)
            for count, crossing in each
            for _, moved, waits in timing.levels(crossing, formulas.bytes_of(crossing))
        )

    @cached_property
    def links(self) -> dict[tuple[int, int], float]:
        """Seconds of a send between stages, forward and backward; empty without a machine."""
        sends: dict[tuple[int, int], float] = {}
        if self.sheet is None:
            return sends
        for chunk, sources in enumerate(self.graph.reads):
            for source in sources:
                at = min(self.positions[source], self.positions[chunk])
                sent = [(n, crossing) for n, crossing in self.step.plan.crossings(at) if crossing.of == "stage"]
                seconds = numbered(self.crossing_seconds(self.timing, self.formulas(at), sent))
                one, other = self.graph.places[source], self.graph.places[chunk]
                sends[one, other] = sends[other, one] = max(seconds, sends.get((one, other), 0.0))
        return sends

    def moved_bytes(self, stage: int) -> dict[str, float]:
        """Return the bytes that a rank of a stage sends in a step, by level of links."""
        timing = self.timing
        sizes = {link.name: 0.0 for link in timing.links}
        rates = {link.name: link.bandwidth for link in timing.links}
        for at in self.chunks_of(stage):
            formulas = self.formulas(at)
            for times, crossing in self.sent_by(at):
                size = formulas.bytes_of(crossing)
                for name, moved, _ in timing.levels(crossing, size):
                    sizes[name] += numbered(times * moved * rates[name])
        return sizes

    def sent_by(self, at: int) -> Iterator[tuple[int, Crossing]]:
        """Yield the collectives and sends of a virtual stage in a step, each with its count."""
        share = self.micro_batches // self.kind.schedule.chains
        for sources in (self.step.plan.crossings(at), self.step.crossings(at)):
            yield from ((share * count, crossing) for count, crossing in sources)
        yield from self.step.gradients(at)

    @cached_property
    def ran(self) -> Simulated:
        """The simulated pipeline, in seconds on a machine, else in operations."""
        return simulate(self.graph, self.works, self.links, self.states)

    @cached_property
    def bubble(self) -> BubbleSplit:
        """The idle time of stages, split by its causes."""
        return split_bubble(self.graph, self.works, self.links)

    def summing(self, stage: int) -> tuple[float, float]:
        """Return the seconds of a stage after its last backward pass: of gradient sums that are not overlapped, and of
        gathering new weights."""
        timing = self.timing
        after = together = size = steps = 0.0
        for at in self.chunks_of(stage):
            for count, crossing in self.step.gradients(at):
                gathered = crossing.op == "all_gather"
                width = self.formulas(at).weight_size if gathered else sympy.nsimplify(min(self.state.gradient, 4))
                levels = [*timing.levels(crossing, width)]
                moved = numbered(count * add_up(moved for _, moved, _ in levels))
                waits = numbered(add_up(waits for _, _, waits in levels))
                if gathered:
                    after += moved + waits
                else:
                    together += moved
                    size = max(size, 0.0) + numbered(count * width * busiest(crossing.payload))
                    steps = max(steps, waits)
        if size == 0:
            return 0.0, after
        window = sum(
            self.works[k].backward + self.works[k].gradients
            for k, place in enumerate(self.graph.places)
            if place == stage
        )
        return float(exposed(size, self.bucket, window, together / size, steps)), after

    def optimiser_seconds(self, stage: int) -> float:
        """Return the seconds in which a stage reads gradients and the optimiser state, and writes the state and
        weights."""
        if self.step.plan.mesh.offload:
            return 0.0
        size = sum(
            numbered(busiest(self.step.plan.state(at, 0, self.state.gradient, 2 * self.state.optimiser + 2)))
            for at in self.chunks_of(stage)
        )
        return size / self.machine.memory[-1][2]

    @cached_property
    def step_seconds(self) -> float:
        """Seconds of a step, until the last stage has its new weights."""
        return max(
            float(self.ran.last[stage]) + sum(self.summing(stage)) + self.optimiser_seconds(stage)
            for stage in range(self.stages)
        )


def gradient_steps(booked: BackwardBooked) -> Iterator[int]:
    """Yield the steps of backward that multiply rows and sum over them: gradients of weights."""
    return (
        at for at, step in enumerate(booked.steps) if step.op == "outer" and booked.split.step_phases[at] != "forward"
    )


def numbered(e: sympy.Expr | float) -> float:
    """Return an expression as a number. Raises InputError if names of sizes are left in it."""
    if isinstance(e, sympy.Expr) and e.free_symbols:
        names = sorted(map(str, e.free_symbols))
        raise InputError(f"training: {', '.join(names)}: sizes without a number: give --batch and --tokens")
    return float(e)
