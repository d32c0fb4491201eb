"""A step of training as text: formulas of each stage, what they are at numbers, how stages wait, seconds on a
machine."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sympy

from formats.machine.datasheets import BYTES
from opmatrix.display.tables import table
from opmatrix.display.timeline import write_timeline
from opmatrix.parallel.cost.formulas import Formulas, busiest
from opmatrix.parallel.cost.overview import shorten
from opmatrix.parallel.cost.step_costs import TrainingStep
from opmatrix.parallel.cost.step_time import StatePolicy, TrainedPipeline
from opmatrix.parallel.schedules.named import ChunkedSchedule, waiting
from opmatrix.parallel.schedules.simulated import bars_of
from opmatrix.parallel.sharding.cost_formulas import Crossing, add_up


@dataclass(frozen=True)
class StepOverview:
    """What is printed of a step of training: `step` by formulas, and `exact` at numbers where there are some."""
    step: TrainingStep
    kind: ChunkedSchedule
    micro_batches: int
    number: str
    state: StatePolicy
    recompute: str
    exact: TrainedPipeline | None = None

    def text(self) -> str:
        parts = [self.heading(), *(self.chunk(at) for at in sorted({*self.step.plan.like}))]
        if self.exact is not None: parts += [self.stages(self.exact)]
        if self.exact is not None and self.exact.sheet is not None: parts.append(self.seconds(self.exact))
        return "\n\n".join(parts)

    def heading(self) -> str:
        p = len(self.step.plan.stages) // self.kind.chunks
        share = self.state.gradient + self.state.optimiser + 2
        return (f"a step of training: {self.micro_batches} micro-batches of b sequences, {self.kind}, recompute "
                f"{self.recompute}\n{share:g} bytes a parameter: {self.state.said}\n"
                f"each of {p} equal stages waits {waiting(str(self.kind), p, self.micro_batches)} beside "
                f"{self.micro_batches}*(F + B + W): F forward, B backward of the input, W gradients of weights")

    def chunk(self, at: int) -> str:
        """The formulas of one micro-batch through a chunk, forward, again and backward."""
        exact = None if self.exact is None else self.exact.step
        rows = []
        for (name, unit, e), (_, _, own) in zip(self.formulas(self.step, at), self.formulas(exact or self.step, at),
                                                strict=True):
            rows.append([name, str(e), *([] if exact is None else [shorten(float(own), unit)])])
        stages = [str(k + 1) for k, first in enumerate(self.step.plan.like) if first == at]
        what = "chunk" if self.kind.chunks > 1 else "stage"
        head = f"{what}s {stages[0]} to {stages[-1]}" if len(stages) > 1 else f"{what} {stages[0]}"
        return table(rows, [f"{head}, a micro-batch", "formula", *([] if exact is None else ["in numbers"])], (0, 1))

    def formulas(self, step: TrainingStep, at: int) -> Iterator[tuple[str, str, sympy.Expr]]:
        """Operations, what is kept, what crosses backward, and sums of gradients, with their units."""
        flops = step.flops(at)
        yield "operations forward", "flop", busiest(flops["forward"])
        yield "operations again", "flop", busiest(flops["again"])
        yield "operations backward", "flop", busiest(flops["backward"])
        for unit, size in step.kept(at, BYTES[self.number]).items(): yield f"kept, {unit}", "B", busiest(size)
        yield "kept in all", "B", busiest(add_up(step.kept(at, BYTES[self.number]).values()))
        own = Formulas(step.plan, at, BYTES[self.number])
        for name, size in summed((count, each, own.bytes_of(each)) for count, each in step.crossings(at)):
            yield f"backward, {name}", "B", size
        width = sympy.nsimplify(min(self.state.gradient, 4))
        sums = ((count, each, own.weight_size if each.op == "all_gather" else width)
                for count, each in step.gradients(at))
        for name, size in summed(sums): yield f"once a step, {name}", "B", size

    def stages(self, exact: TrainedPipeline) -> str:
        """What stages hold, and how they wait."""
        ran = exact.ran
        rows = [[f"stage {k + 1}", shorten(exact.states[k], "B"), shorten(float(ran.peaks[k] - exact.states[k]), "B"),
                 shorten(float(ran.peaks[k]), "B"), f"{100 * float(ran.idle[k] / ran.seconds):.1f} %"]
                for k in range(exact.stages)]
        wait = exact.bubble
        shares = ", ".join(f"{name} {100 * float(each / ran.seconds):.1f} %" for name, each in
                           zip(("ramp", "imbalance", "send"), wait, strict=True))
        by = "seconds" if exact.sheet is not None else "operations, since no machine is given"
        return "\n".join([table(rows, ["in a step", "state", "values at most", "peak", "waits"], (0,)),
                          f"waits of a stage on the mean, by {by}: {shares}"])

    def seconds(self, exact: TrainedPipeline) -> str:
        """Seconds of a step, and what a rank of each stage sends by level."""
        sheet = exact.machine
        rows = []
        for k in range(exact.stages):
            moved = exact.moved_bytes(k)
            summed_, gathered = exact.summing(k)
            own = [float(exact.ran.busy[k]), summed_, gathered, exact.optimiser_seconds(k)]
            rows.append([f"stage {k + 1}", *(f"{1e3 * each:.4g}" for each in own),
                         *(shorten(each, "B") for each in moved.values())])
        header = ["ms at least", "passes", "gradients, not hidden", "new weights gathered", "optimiser",
                  *(f"sent on {link.name}" for link in exact.timing.links)]
        return "\n".join([f"{sheet.name}, from its data sheet: lower bounds, sums of gradients beside backward, "
                          "nothing else overlaps, nothing was run", "", table(rows, header, (0,)),
                          f"a step takes at least {exact.step_seconds:.4g} s, of which the pipeline "
                          f"{float(exact.ran.seconds):.4g} s"])

    def draw(self, path: Path) -> Path:
        """The timeline of a step, as .svg or .json. Needs numbers."""
        assert self.exact is not None
        ran = self.exact.ran
        lanes = [f"stage {k + 1}" for k in range(self.exact.stages)]
        return write_timeline(path, bars_of(ran), lanes, f"{self.step.plan.name}, {self.kind}, {self.micro_batches} "
                                                         "micro-batches")


def summed(each: Iterator[tuple[int, Crossing, sympy.Expr]]) -> Iterator[tuple[str, sympy.Expr]]:
    """Payload bytes by operation and axis."""
    found: dict[str, sympy.Expr] = {}
    for count, crossing, size in each:
        found[crossing.name] = found.get(crossing.name, sympy.Integer(0)) + count * size * crossing.payload
    yield from ((name, busiest(e)) for name, e in found.items())
