"""A step of training as text: formulas of each stage, their values, the waits of stages, seconds on a machine."""

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
    """The printed text of a step of training."""

    step: TrainingStep  # the step as formulas
    kind: ChunkedSchedule
    micro_batches: int
    number: str  # number type of values
    state: StatePolicy
    recompute: str
    exact: TrainedPipeline | None = None  # the step at numbers, where they are given

    def text(self) -> str:
        """Return the whole text: heading, formulas of each kind of virtual stage, values and seconds where there are
        numbers."""
        parts = [self.heading(), *(self.chunk(at) for at in sorted({*self.step.plan.like}))]
        if self.exact is not None:
            parts += [self.stages(self.exact)]
        if self.exact is not None and self.exact.sheet is not None:
            parts.append(self.seconds(self.exact))
        return "\n\n".join(parts)

    def heading(self) -> str:
        """Return the heading: micro-batches, schedule, recomputation, bytes a parameter, and the wait of each stage."""
        p = len(self.step.plan.stages) // self.kind.chunks
        share = self.state.gradient + self.state.optimiser + 2
        return (
            f"a step of training: {self.micro_batches} micro-batches of b sequences, {self.kind}, recompute "
            f"{self.recompute}\n{share:g} bytes a parameter: {self.state.said}\n"
            f"each of {p} equal stages waits {waiting(str(self.kind), p, self.micro_batches)} beside "
            f"{self.micro_batches}*(F + B + W): F forward, B backward of the input, W gradients of weights"
        )

    def chunk(self, at: int) -> str:
        """Return the formulas of one micro-batch through a virtual stage: forward, recomputed and backward."""
        exact = None if self.exact is None else self.exact.step
        rows = []
        for (name, unit, e), (_, _, value) in zip(
            self.formulas(self.step, at), self.formulas(exact or self.step, at), strict=True
        ):
            rows.append([name, str(e), *([] if exact is None else [shorten(float(value), unit)])])
        stages = [str(k + 1) for k, first in enumerate(self.step.plan.like) if first == at]
        what = "chunk" if self.kind.chunks > 1 else "stage"
        head = f"{what}s {stages[0]} to {stages[-1]}" if len(stages) > 1 else f"{what} {stages[0]}"
        return table(rows, [f"{head}, a micro-batch", "formula", *([] if exact is None else ["in numbers"])], (0, 1))

    def formulas(self, step: TrainingStep, at: int) -> Iterator[tuple[str, str, sympy.Expr]]:
        """Yield the names, units and formulas of operations, saved values, collectives of backward, and gradient
        sums."""
        flops = step.flops(at)
        yield "operations forward", "flop", busiest(flops["forward"])
        yield "operations again", "flop", busiest(flops["again"])
        yield "operations backward", "flop", busiest(flops["backward"])
        for unit, size in step.kept(at, BYTES[self.number]).items():
            yield f"kept, {unit}", "B", busiest(size)
        yield "kept in all", "B", busiest(add_up(step.kept(at, BYTES[self.number]).values()))
        formulas = Formulas(step.plan, at, BYTES[self.number])
        for name, size in summed(
            (count, crossing, formulas.bytes_of(crossing)) for count, crossing in step.crossings(at)
        ):
            yield f"backward, {name}", "B", size
        width = sympy.nsimplify(min(self.state.gradient, 4))
        sums = (
            (count, crossing, formulas.weight_size if crossing.op == "all_gather" else width)
            for count, crossing in step.gradients(at)
        )
        for name, size in summed(sums):
            yield f"once a step, {name}", "B", size

    def stages(self, exact: TrainedPipeline) -> str:
        """Return the memory of stages, and their waits."""
        ran = exact.ran
        rows = [
            [
                f"stage {k + 1}",
                shorten(exact.states[k], "B"),
                shorten(float(ran.peaks[k] - exact.states[k]), "B"),
                shorten(float(ran.peaks[k]), "B"),
                f"{100 * float(ran.idle[k] / ran.seconds):.1f} %",
            ]
            for k in range(exact.stages)
        ]
        wait = exact.bubble
        shares = ", ".join(
            f"{name} {100 * float(seconds / ran.seconds):.1f} %"
            for name, seconds in zip(("ramp", "imbalance", "send"), wait, strict=True)
        )
        by = "seconds" if exact.sheet is not None else "operations, since no machine is given"
        return "\n".join(
            [
                table(rows, ["in a step", "state", "values at most", "peak", "waits"], (0,)),
                f"waits of a stage on the mean, by {by}: {shares}",
            ]
        )

    def seconds(self, exact: TrainedPipeline) -> str:
        """Return the seconds of a step, and the bytes that a rank of each stage sends by level."""
        sheet = exact.machine
        rows = []
        for k in range(exact.stages):
            moved = exact.moved_bytes(k)
            summed_, gathered = exact.summing(k)
            spent = [float(exact.ran.busy[k]), summed_, gathered, exact.optimiser_seconds(k)]
            rows.append(
                [
                    f"stage {k + 1}",
                    *(f"{1e3 * seconds:.4g}" for seconds in spent),
                    *(shorten(size, "B") for size in moved.values()),
                ]
            )
        header = [
            "ms at least",
            "passes",
            "gradients, not hidden",
            "new weights gathered",
            "optimiser",
            *(f"sent on {link.name}" for link in exact.timing.links),
        ]
        return "\n".join(
            [
                f"{sheet.name}, from its data sheet: lower bounds, sums of gradients beside backward, "
                "nothing else overlaps, nothing was run",
                "",
                table(rows, header, (0,)),
                f"a step takes at least {exact.step_seconds:.4g} s, of which the pipeline "
                f"{float(exact.ran.seconds):.4g} s",
            ]
        )

    def draw(self, path: Path) -> Path:
        """Draw the timeline of a step, as .svg or .json. It needs numbers for all sizes."""
        assert self.exact is not None
        ran = self.exact.ran
        lanes = [f"stage {k + 1}" for k in range(self.exact.stages)]
        return write_timeline(
            path, bars_of(ran), lanes, f"{self.step.plan.name}, {self.kind}, {self.micro_batches} micro-batches"
        )


def summed(each: Iterator[tuple[int, Crossing, sympy.Expr]]) -> Iterator[tuple[str, sympy.Expr]]:
    """Sum payload bytes by operation and axis."""
    totals: dict[str, sympy.Expr] = {}
    for count, crossing, size in each:
        totals[crossing.name] = totals.get(crossing.name, sympy.Integer(0)) + count * size * crossing.payload
    yield from ((name, busiest(e)) for name, e in totals.items())
