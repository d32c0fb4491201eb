"""A partition as text: its mesh, the formulas of the busiest rank of each stage, their values, and the seconds on a
machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import itemgetter

import sympy

from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.display.tables import table
from opmatrix.parallel.cost.formulas import Formulas
from opmatrix.parallel.cost.timing import StageSeconds, Timing
from opmatrix.parallel.sharding.factor_chain import layers
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.weight_storage import Storage

OFFLOADED = {1: "the optimiser", 2: "the optimiser and gradients", 3: "the optimiser, gradients and weights"}
PREFIXES = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class Overview:
    """The printed text of a partition. Without `exact` it has the formulas alone."""

    plan: Partition
    number: str = "bf16"  # number type of values
    storage: Storage = "bf16"
    training: bool = False
    exact: Partition | None = None  # the same partition at numbers, printed beside formulas
    at: Mapping[str, int] = field(default_factory=dict)  # these numbers by name
    sheet: Datasheet | None = None
    crossing: Mapping[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """Return the whole text: the heading, each run of equal stages, and the seconds if there is a machine."""
        parts = [self.heading(), *(self.stage(first, last) for first, last in self.alike())]
        if self.sheet is not None:
            parts.append(self.seconds(self.sheet))
        return "\n\n".join(parts)

    def heading(self) -> str:
        """Return the heading: the mesh, the batch, the number type, the training and the offloaded state."""
        mesh, sizes = self.plan.mesh, self.plan.sizes
        return (
            f"{self.plan.name} on {mesh.ranks} rank{'s' * (mesh.ranks != 1)}: {describe_axes(mesh)}"
            f"{self.experts()}\n"
            f"{sizes.sequences} sequences of {sizes.tokens} tokens, values in {self.number}"
            + self.training * ", trained in mixed precision with Adam"
            + (f"; {OFFLOADED[mesh.offload]} in the memory of the host" if mesh.offload else "")
        )

    def experts(self) -> str:
        """Describe the axes over which experts are sharded, and the load of the busiest rank."""
        mesh = self.plan.mesh
        if mesh.experts is None:
            return ""
        over = " × ".join(mesh.axes[k].name for k in mesh.folded)
        load = "" if mesh.load == 1 else f", the busiest with {mesh.load} times the mean"
        return f"; {mesh.experts.name} {mesh.experts.ranks} ({mesh.experts.strategy.name}) over {over}{load}"

    @cached_property
    def formulas(self) -> list[Formulas]:
        """The formulas of each stage; equal stages share one object."""
        by_stage = {k: self.formulas_of(self.plan, k) for k in {*self.plan.like}}
        return [by_stage[k] for k in self.plan.like]

    def formulas_of(self, plan: Partition, stage: int) -> Formulas:
        """Return the cost formulas of a stage of a partition, in this overview's number types."""
        return Formulas(plan, stage, BYTES[self.number], self.storage, self.training, self.crossing)

    def alike(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last stage of each run of stages with the same formulas."""
        for _, run in groupby(enumerate(self.plan.like), key=itemgetter(1)):
            numbers = [k for k, _ in run]
            yield numbers[0], numbers[-1]

    def stage(self, first: int, last: int) -> str:
        """Return the tables of equal stages: operations and memory of a rank, and its sends."""
        formulas = self.formulas[first]
        numbers = None if self.exact is None else self.formulas_of(self.exact, first).at()
        rows = [[name, str(e), *shown(numbers, [name], unit)] for name, unit, e in formulas.own()]
        beside = [] if numbers is None else [self.point(formulas)]
        text = table(rows, [self.title(first, last), "formula", *beside], (0, 1))
        sent = [
            [
                crossing.name,
                str(crossing.payload),
                str(crossing.wire),
                str(crossing.messages),
                *shown(numbers, [f"{crossing.name}, payload", f"{crossing.name}, wire"], "B"),
            ]
            for crossing in formulas.traffic
        ]
        header = ["a rank sends", "payload, bytes", "on the wire", "messages"]
        more = [] if numbers is None else ["payload " + self.point(formulas), "on the wire"]
        return "\n\n".join([text, *([table(sent, header + more, (0, 1, 2))] if sent else [])])

    def title(self, first: int, last: int) -> str:
        """Name the stages and their layers."""
        if len(self.plan.stages) == 1:
            return "each rank, at most"
        every = layers(self.plan.chain)
        numbers = [k + 1 for k, (lo, _) in enumerate(every) if self.plan.cuts[first][0] <= lo < self.plan.cuts[last][1]]
        name = f"stage {first + 1}" if first == last else f"stages {first + 1} to {last + 1}"
        return f"{name}, layers {numbers[0]} to {numbers[-1]}"

    def point(self, formulas: Formulas) -> str:
        """Name the numbers at which formulas are evaluated."""
        numbers = ", ".join(f"{name} = {self.at[name]}" for name in formulas.sizes if name in self.at)
        return f"at {numbers}" if numbers else "in numbers"

    def seconds(self, sheet: Datasheet) -> str:
        """Return the seconds of each stage on a machine; stages of one batch wait for each other."""
        timing = Timing(self.exact or self.plan, sheet, self.number, self.storage, self.crossing)
        by_stage = {k: timing.stage(k) for k in {*timing.plan.like}}
        stages = [by_stage[k] for k in timing.plan.like]
        if any(stage.seconds.free_symbols for stage in stages):
            lines = [f"stage {k + 1}: {line}" for k, stage in enumerate(stages) for line in expressions(stage)]
        else:
            rows = [[f"stage {k + 1}", *milliseconds(stage)] for k, stage in enumerate(stages)]
            rows += [["all, one after the other", *sums(stages)]] if len(stages) > 1 else []
            levels = [f"{kind} {name}" for kind in ("bytes on", "messages on") for name in stages[0].communication]
            lines = [table(rows, ["ms at least", "computation", *levels, "in all", "supersteps"])]
        return "\n".join(
            [
                f"{sheet.name}, from its data sheet: lower bounds, nothing overlaps, nothing was run",
                f"source: {sheet.source}",
                "",
                *lines,
            ]
        )


def expressions(each: StageSeconds) -> Iterator[str]:
    """Yield lines of formulas of seconds."""
    yield f"computation {sympy.N(each.computation, 4)} s"
    for name, e in each.communication.items():
        yield f"bytes on {name} {sympy.N(e, 4)} s"
    for name, e in each.synchronisation.items():
        yield f"messages on {name} {sympy.N(e, 4)} s"
    yield f"supersteps {each.supersteps}"


def parts_of(each: StageSeconds) -> list[sympy.Expr]:
    """Return the expressions of a row of seconds: computation, bytes and messages by level, the sum."""
    return [each.computation, *each.communication.values(), *each.synchronisation.values(), each.seconds]


def milliseconds(each: StageSeconds) -> list[str]:
    """Return the milliseconds of a stage, and its supersteps."""
    return [*(f"{1e3 * float(e):.4g}" for e in parts_of(each)), str(each.supersteps)]


def sums(found: list[StageSeconds]) -> list[str]:
    """Return the milliseconds of all stages, one after the other."""
    columns = zip(*map(parts_of, found), strict=True)
    return [*(f"{1e3 * float(sum(column)):.4g}" for column in columns), str(sum(stage.supersteps for stage in found))]


def shown(numbers: Mapping[str, float] | None, names: Sequence[str], unit: str) -> list[str]:
    """Return numbers by their names, shortened; an empty list without numbers."""
    return [] if numbers is None else [shorten(numbers[name], unit) if name in numbers else "none" for name in names]


def describe_axes(mesh: Mesh) -> str:
    """Describe the axes of the devices in words."""
    return " × ".join(f"{axis.name} {axis.ranks} ({axis.strategy.name})" for axis in mesh.devices) or "one rank"


def shorten(value: float, unit: str) -> str:
    """Return a number with at most four figures and an SI prefix; without a unit it has no prefix."""
    if not unit:
        return f"{value:g}"
    at = 0
    while abs(value) >= 999.95 and at < len(PREFIXES) - 1:
        value, at = value / 1000, at + 1
    return f"{value:.4g} {PREFIXES[at]}{unit}"
