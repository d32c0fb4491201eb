"""A step of training in time: what chunks of a pipeline take on a machine of a data sheet, forward and backward, in the
order of a schedule; what stages hold; gradients that are summed beside the last backward pass. Rates are full, so times
are lower bounds, and nothing but sums of gradients overlaps."""
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
BUCKET = 25 * 2 ** 20                                       # bytes (Li et al. 2020, PyTorch Distributed, section 3.2.3)


class StatePolicy(NamedTuple):
    """Bytes a parameter of gradients and of the optimiser, beside its weight of two."""
    gradient: float
    optimiser: float
    said: str


STATES = {
    "16": StatePolicy(2, 12, "gradients as weights; a copy of weights and two moments in float32"),
    "18": StatePolicy(4, 12, "gradients in float32; a copy of weights and two moments in float32"),
    "20": StatePolicy(6, 12, "gradients as weights and in float32; a copy of weights and two moments in float32")}


def exposed(total: sympy.Expr, bucket: float, window: sympy.Expr, rate: sympy.Expr, wait: sympy.Expr) -> sympy.Expr:
    """Seconds that sums of gradients take beyond the backward pass beside which they run. Gradients of `total` bytes
    become known evenly over `window` seconds; n buckets of them are summed one after the other, each from when it is
    known, in `wait` seconds and `rate` a byte: Max(one, all of them − window (n − 1) / n)."""
    n = sympy.ceiling(sympy.sympify(total) / bucket)
    if n.is_number and n == 0: return sympy.Integer(0)
    one = wait + rate * total / n
    return sympy.Max(one, n * one - window * (n - 1) / n)


@dataclass(frozen=True)
class TrainedPipeline:
    """A step of training of a partition whose sizes are numbers, each chunk of the pipeline a stage of it. `sheet`: the
    machine, without which operations stand for seconds. `bucket`: bytes of gradients that are summed at once."""
    step: TrainingStep
    kind: ChunkedSchedule
    micro_batches: int
    number: str = "bf16"
    storage: Storage = "bf16"
    state: StatePolicy = STATES["16"]
    crossing: Mapping[str, float] = field(default_factory=dict)
    bucket: float = BUCKET
    sheet: Datasheet | None = None

    @property
    def machine(self) -> Datasheet:
        """Raises InputError where none was given."""
        if self.sheet is not None: return self.sheet
        raise InputError("training: seconds need a machine: give its data sheet")

    @property
    def stages(self) -> int: return len(self.step.plan.stages) // self.kind.chunks

    @cached_property
    def graph(self) -> TaskGraph: return self.kind.tasks(self.stages, self.micro_batches)

    @property
    def positions(self) -> list[int]:
        """Which stage of the partition each chunk is: chunks of a second way are met from the other end."""
        p = self.stages
        if self.kind.schedule.chains == 2: return [*range(p), *reversed(range(p))]
        return [*range(len(self.step.plan.stages))]

    def chunks_of(self, stage: int) -> list[int]:
        """The stages of the partition that a stage of the pipeline has."""
        return [at for at, place in zip(self.positions, self.graph.places, strict=True) if place == stage]

    def formulas(self, at: int) -> Formulas:
        return Formulas(self.step.plan, at, BYTES[self.number], self.storage, crossing=self.crossing)

    @cached_property
    def states(self) -> list[float]:
        """Bytes of weights, gradients and optimiser that the busiest rank of each stage has on its device."""
        offload = self.step.plan.mesh.offload
        gradient, optimiser = self.state.gradient * (offload < 2), self.state.optimiser * (offload < 1)

        def stored(at: int) -> float:
            more = busiest(self.step.plan.state(at, 0, gradient, optimiser))
            return numbered((self.formulas(at).weights if offload < 3 else sympy.Integer(0)) + more)
        own = self.by_chunk(stored)
        return [sum(own[at] for at in self.chunks_of(stage)) for stage in range(self.stages)]

    @cached_property
    def kept(self) -> list[float]:
        """Bytes that each chunk keeps for a micro-batch."""
        return self.by_chunk(lambda at: numbered(busiest(add_up(self.step.kept(at, BYTES[self.number]).values()))))

    def by_chunk(self, found: Callable[[int], PerChunk]) -> list[PerChunk]:
        """Something of each stage of the partition, found once for those that are alike."""
        like = self.step.plan.like
        known = {at: found(at) for at in {*like}}
        return [known[at] for at in like]

    @cached_property
    def room(self) -> list[float]:
        """Bytes beside what is kept that a chunk holds at most while its layers run backward, one after the other."""
        size = BYTES[self.number]

        def beside(at: int) -> float:
            return max([0.0, *(size * max(map(numbered, map(busiest, {*chunk.booked.held()})), default=0)
                               - numbered(busiest(add_up(chunk.booked.kept(size).values())))
                               for chunk in self.step.stages[at])])
        return self.by_chunk(beside)

    @cached_property
    def works(self) -> list[ChunkWork]:
        """What each chunk of the pipeline takes and keeps; without a machine the operations stand for the seconds. What
        gradients of weights read is taken to be all that is kept."""
        takes = self.by_chunk(self.operations if self.sheet is None else self.seconds)
        own = [ChunkWork(*each, kept, kept, room)
               for each, kept, room in zip(takes, self.kept, self.room, strict=True)]
        return [own[at] for at in self.positions]

    def operations(self, at: int) -> tuple[float, float, float]:
        """Operations of a chunk forward, backward with what is computed again, and of gradients of weights."""
        forward = back = weights = sympy.Integer(0)
        for chunk in self.step.stages[at]:
            own = add_up(chunk.booked.flops(k) for k in gradient_steps(chunk.booked))
            forward += chunk.count * chunk.forward_flops
            back += chunk.count * (chunk.again_flops + chunk.backward_flops - own)
            weights += chunk.count * own
        return numbered(busiest(forward)), numbered(busiest(back)), numbered(busiest(weights))

    def seconds(self, at: int) -> tuple[float, float, float]:
        """Seconds of a chunk forward, backward with what is computed again, and of gradients of weights."""
        timing, formulas = self.timing, self.formulas(at)
        forward = timing.computation(at, formulas) + self.crossing_seconds(
            timing, formulas, ((n, each) for n, each in self.step.plan.crossings(at) if each.of != "stage"))
        back = self.crossing_seconds(timing, formulas,
                                     ((n, each) for n, each in self.step.crossings(at) if each.of != "stage"))
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
        return Timing(self.step.plan, self.machine, self.number, self.storage, self.crossing)

    def computed(self, booked: BackwardBooked, steps: Iterable[int], formulas: Formulas) -> sympy.Expr:
        """Each product takes what its operations or its bytes take; scores stay where they are computed."""
        found, sheet = sympy.Integer(0), self.machine
        for at in steps:
            step = booked.steps[at]
            work = busiest(booked.flops(at))
            if work == 0: continue
            touched = [k for k in [*step.args, at] if not booked.steps[k].dims.rows == booked.steps[k].dims.cols != 1]
            size = BYTES[self.number] * busiest(add_up(map(booked.numbers, touched)))
            size += formulas.weight_size * add_up(
                busiest(sympy.sympify(local(stored_dims(data), step.stored, booked.mesh).numbers))
                for _, data, _ in stored_arrays([step]))
            found += sympy.Max(work / sheet.product_rate(self.number)[0], size / sheet.memory[-1][2])
        return found

    @staticmethod
    def crossing_seconds(timing: Timing, formulas: Formulas, each: Iterable[tuple[int, Crossing]]) -> sympy.Expr:
        return add_up(count * (moved + waits) for count, crossing in each
                      for _, moved, waits in timing.levels(crossing, formulas.bytes_of(crossing)))

    @cached_property
    def links(self) -> dict[tuple[int, int], float]:
        """Seconds of a send between stages, forward and backward; none without a machine."""
        found: dict[tuple[int, int], float] = {}
        if self.sheet is None: return found
        for chunk, sources in enumerate(self.graph.reads):
            for source in sources:
                at = min(self.positions[source], self.positions[chunk])
                sent = [(n, each) for n, each in self.step.plan.crossings(at) if each.of == "stage"]
                seconds = numbered(self.crossing_seconds(self.timing, self.formulas(at), sent))
                one, other = self.graph.places[source], self.graph.places[chunk]
                found[one, other] = found[other, one] = max(seconds, found.get((one, other), 0.0))
        return found

    def moved_bytes(self, stage: int) -> dict[str, float]:
        """Bytes that a rank of a stage sends in a step, by the levels of links."""
        timing = self.timing
        found = {link.name: 0.0 for link in timing.links}
        rates = {link.name: link.bandwidth for link in timing.links}
        for at in self.chunks_of(stage):
            formulas = self.formulas(at)
            for times, crossing in self.sent_by(at):
                size = formulas.bytes_of(crossing)
                for name, moved, _ in timing.levels(crossing, size):
                    found[name] += numbered(times * moved * rates[name])
        return found

    def sent_by(self, at: int) -> Iterator[tuple[int, Crossing]]:
        """What a chunk sends in a step, and how often."""
        share = self.micro_batches // self.kind.schedule.chains
        for sources in (self.step.plan.crossings(at), self.step.crossings(at)):
            yield from ((share * count, each) for count, each in sources)
        yield from self.step.gradients(at)

    @cached_property
    def ran(self) -> Simulated:
        """The pipeline in time, on a machine or in operations."""
        return simulate(self.graph, self.works, self.links, self.states)

    @cached_property
    def bubble(self) -> BubbleSplit: return split_bubble(self.graph, self.works, self.links)

    def summing(self, stage: int) -> tuple[float, float]:
        """Seconds of a stage after its last backward pass: of sums of gradients that nothing hides, and of new weights
        that are gathered."""
        timing = self.timing
        after = together = size = steps = 0.0
        for at in self.chunks_of(stage):
            for count, crossing in self.step.gradients(at):
                gathered = crossing.op == "all_gather"
                own = self.formulas(at).weight_size if gathered else sympy.nsimplify(min(self.state.gradient, 4))
                each = [*timing.levels(crossing, own)]
                moved = numbered(count * add_up(moved for _, moved, _ in each))
                waits = numbered(add_up(waits for _, _, waits in each))
                if gathered: after += moved + waits
                else:
                    together += moved
                    size = max(size, 0.0) + numbered(count * own * busiest(crossing.payload))
                    steps = max(steps, waits)
        if size == 0: return 0.0, after
        window = sum(self.works[k].backward + self.works[k].gradients for k, place in enumerate(self.graph.places)
                     if place == stage)
        return float(exposed(size, self.bucket, window, together / size, steps)), after

    def optimiser_seconds(self, stage: int) -> float:
        """Seconds in which a stage reads gradients and the optimiser's state, and writes that and weights."""
        if self.step.plan.mesh.offload: return 0.0
        size = sum(numbered(busiest(self.step.plan.state(at, 0, self.state.gradient, 2 * self.state.optimiser + 2)))
                   for at in self.chunks_of(stage))
        return size / self.machine.memory[-1][2]

    @cached_property
    def step_seconds(self) -> float:
        """Seconds of a step: until the last stage has its new weights."""
        return max(float(self.ran.last[stage]) + sum(self.summing(stage)) + self.optimiser_seconds(stage)
                   for stage in range(self.stages))


def gradient_steps(booked: BackwardBooked) -> Iterator[int]:
    """The steps of backward that multiply rows and sum over them: gradients of weights."""
    return (at for at, step in enumerate(booked.steps)
            if step.op == "outer" and booked.split.step_phases[at] != "forward")


def numbered(e: sympy.Expr | float) -> float:
    """An expression as a number. Raises InputError for one that has names of sizes."""
    if isinstance(e, sympy.Expr) and e.free_symbols:
        names = sorted(map(str, e.free_symbols))
        raise InputError(f"training: {', '.join(names)}: sizes without a number: give --batch and --tokens")
    return float(e)
