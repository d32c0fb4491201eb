"""A partition as text: its mesh, the formulas of the busiest rank of each stage, what they are at numbers, and what
they take on a machine."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy

from formats.machine.datasheets import BYTES, Datasheet
from opmatrix.display.tables import table
from opmatrix.partitions.formulas import Formulas
from opmatrix.partitions.plan import Partition
from opmatrix.partitions.stages import layers
from opmatrix.partitions.storage import Storage
from opmatrix.partitions.timing import StageSeconds, Timing

UNITS = ("", "k", "M", "G", "T", "P", "E")


@dataclass(frozen=True)
class Overview:
    """What is printed of a partition. `at`: numbers for sizes, by name; without them formulas alone."""
    plan: Partition
    number: str = "bf16"
    storage: Storage = "bf16"
    training: bool = False
    at: Mapping[str, float] | None = None
    sheet: Datasheet | None = None

    def text(self) -> str:
        parts = [self.heading(), *(self.stage(first, last) for first, last in self.alike())]
        if self.sheet is not None: parts.append(self.seconds(self.sheet))
        return "\n\n".join(parts)

    def heading(self) -> str:
        mesh, sizes = self.plan.mesh, self.plan.sizes
        axes = " × ".join(f"{axis.name} {axis.ranks} ({axis.strategy.name})" for axis in mesh) or "one rank"
        return (f"{self.plan.name} on {mesh.ranks} rank{'s' * (mesh.ranks != 1)}: {axes}\n"
                f"{sizes.sequences} sequences of {sizes.tokens} tokens, values in {self.number}"
                + self.training * ", trained in mixed precision with Adam")

    @cached_property
    def formulas(self) -> list[Formulas]:
        """Those of each stage; stages of equal groups have one."""
        known: dict[tuple[object, ...], Formulas] = {}
        last = len(self.plan.stages) - 1
        return [known.setdefault((k == last, *((id(group.split), group.count) for group in groups)),
                                 Formulas(self.plan, k, BYTES[self.number], self.storage, self.training))
                for k, groups in enumerate(self.plan.stages)]

    def alike(self) -> Iterator[tuple[int, int]]:
        """Runs of stages that have the same formulas."""
        found, first = self.formulas, 0
        for k in range(1, len(found) + 1):
            if k == len(found) or found[k] is not found[first]:
                yield first, k - 1
                first = k

    def stage(self, first: int, last: int) -> str:
        """The tables of some equal stages: what a rank does and holds, and what it sends."""
        formulas = self.formulas[first]
        numbers = formulas.at(**self.numbers(formulas)) if self.known(formulas) else {}
        rows = [[name, str(e), *([shorten(numbers[name], unit)] if numbers else [])]
                for name, unit, e in formulas.own()]
        text = table(rows, [self.title(first, last), "formula", *([self.point(formulas)] if numbers else [])], (0, 1))
        sent = [[each.name, str(each.payload), str(each.wire), str(each.messages),
                 *([shorten(numbers[f"{each.name}, {what}"], "B") for what in ("payload", "wire")] if numbers else [])]
                for each in formulas.traffic]
        header = ["a rank sends", "payload, bytes", "on the wire", "messages"]
        more = ["payload " + self.point(formulas), "on the wire"] if numbers else []
        return "\n\n".join([text, *([table(sent, header + more, (0, 1, 2))] if sent else [])])

    def title(self, first: int, last: int) -> str:
        """Which stages, and which layers they have."""
        if len(self.plan.stages) == 1: return "each rank, at most"
        every = layers(self.plan.chain)
        own = [k + 1 for k, (lo, _) in enumerate(every)
               if self.plan.cuts[first][0] <= lo < self.plan.cuts[last][1]]
        name = f"stage {first + 1}" if first == last else f"stages {first + 1} to {last + 1}"
        return f"{name}, layers {own[0]} to {own[-1]}"

    def known(self, formulas: Formulas) -> bool:
        return self.at is not None and all(name in self.at for name in formulas.sizes)

    def numbers(self, formulas: Formulas) -> dict[str, float]:
        return {name: (self.at or {})[name] for name in formulas.sizes}

    def point(self, formulas: Formulas) -> str:
        return "at " + ", ".join(f"{name} = {value:g}" for name, value in self.numbers(formulas).items())

    def seconds(self, sheet: Datasheet) -> str:
        """What each stage takes on a machine; stages of one batch wait for each other."""
        found = [Timing(self.plan, sheet, self.number, self.storage).stage(k) for k in range(len(self.plan.stages))]
        symbols = {s for each in found for s in each.seconds.free_symbols}
        numbers = {s: (self.at or {}).get(str(s)) for s in symbols}
        if None in numbers.values():
            lines = [f"stage {k + 1}: {line}" for k, each in enumerate(found) for line in expressions(each)]
        else:
            rows = [[f"stage {k + 1}", *times(each, numbers)] for k, each in enumerate(found)]
            rows += [["all, one after the other", *sums(found, numbers)]] if len(found) > 1 else []
            levels = [f"{kind} {name}" for kind in ("bytes on", "messages on") for name in found[0].communication]
            lines = [table(rows, ["ms at least", "computation", *levels, "in all", "supersteps"])]
        return "\n".join([f"{sheet.name}, from its data sheet: lower bounds, nothing overlaps, nothing was run",
                          f"source: {sheet.source}", "", *lines])


def expressions(each: StageSeconds) -> Iterator[str]:
    """Lines of formulas of seconds."""
    yield f"computation {sympy.N(each.computation, 4)} s"
    for name, e in each.communication.items(): yield f"bytes on {name} {sympy.N(e, 4)} s"
    for name, e in each.synchronisation.items(): yield f"messages on {name} {sympy.N(e, 4)} s"
    yield f"supersteps {each.supersteps}"


def parts_of(each: StageSeconds) -> list[sympy.Expr]:
    return [each.computation, *each.communication.values(), *each.synchronisation.values(), each.seconds]


def times(each: StageSeconds, numbers: Mapping[sympy.Symbol, float | None]) -> list[str]:
    """Milliseconds of a stage at numbers, and its supersteps."""
    return [*(f"{1e3 * float(e.subs(numbers)):.4g}" for e in parts_of(each)), str(each.supersteps.subs(numbers))]


def sums(found: list[StageSeconds], numbers: Mapping[sympy.Symbol, float | None]) -> list[str]:
    """Milliseconds of all stages, one after the other."""
    columns = zip(*map(parts_of, found), strict=True)
    steps = sum(each.supersteps.subs(numbers) for each in found)
    return [*(f"{1e3 * float(sum(e.subs(numbers) for e in column)):.4g}" for column in columns), str(steps)]


def shorten(value: float, unit: str) -> str:
    """A number with at most four figures and a prefix of the SI; what has no unit as it is."""
    if not unit: return f"{value:g}"
    at = 0
    while abs(value) >= 999.95 and at < len(UNITS) - 1: value, at = value / 1000, at + 1
    return f"{value:.4g} {UNITS[at]}{unit}"
