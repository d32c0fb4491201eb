"""What a prediction is made of: every constant, every number of a data sheet and every formula, line by line, each with
its value. The formulas are those that predicted, written down while they ran; the lines add up to the prediction."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from formats.machine.datasheets import Datasheet
from opmatrix.display.tables import table
from opmatrix.parallel.cost.constants import CONSTANTS_FILE, Constants, load_constants
from opmatrix.parallel.search.plans import PlanChoice, StrategyPlan
from opmatrix.parallel.search.strategy_search import SIZE_NAMES
from opmatrix.parallel.search.tapes import UFUNCS, CompiledTape, Tape, TracedColumn

WRITTEN_BETWEEN = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
WRITTEN_AS = {"maximum": "max", "minimum": "min"}
LONGEST = 100                                               # letters of a formula, before its parts have own lines


class ExplainedLine(NamedTuple):
    """A name, the formula that it stands for (empty for what is given), its value, and where a given one is from."""
    name: str
    formula: str
    value: float
    source: str = ""


class Explained(NamedTuple):
    """What is given, by name, and lines of formulas in order, of which the last ones are `seconds` and `bytes`."""
    strategy: str
    given: tuple[ExplainedLine, ...]
    lines: tuple[ExplainedLine, ...]
    source: str
    fitted: str

    def __str__(self) -> str:
        given = table([[each.name, f"{each.value:.8g}", each.source] for each in self.given],
                      ["given", "", "from"], (0, 2))
        lines = [f"{each.name} = {each.formula} = {each.value:.8g}" for each in self.lines]
        sources = [f"constants: {self.fitted}", f"data sheet: {self.source}"]
        return "\n".join([f"{self.strategy}, explained:", "", given, "", *sources, "", *lines])


def explain_choice(plan: StrategyPlan, choice: PlanChoice) -> Explained:
    """All that the prediction of a strategy used."""
    own = plan.question
    constants, said = own.constants or load_constants(), "given"
    if own.constants is None: said = json.loads(CONSTANTS_FILE.read_text("utf-8"))["source"]
    values: dict[str, tuple[float, str]] = {
        **{name: (float(choice.sizes[name]), "the strategy") for name in SIZE_NAMES},
        "batch": (float(own.batch), "--batch"), "seq": (float(own.seq), "--seq"),
        **{name: (value, "constants") for name, value in constants._asdict().items()},
        **dict(sheet_numbers(own.machine))}
    tape = Tape(*values)
    made = own.predicted_on(named_sheet(own.machine, tape.columns), choice.form,
                            {name: tape.columns[name] for name in SIZE_NAMES}, tape.columns["batch"],
                            tape.columns["seq"], Constants._make(tape.columns[name] for name in Constants._fields))
    parts = {**{f"seconds of {name}": part for name, part in made.seconds.items()}, "seconds": made.step_seconds,
             **{f"bytes of {name}": part for name, part in made.memory.items()}, "bytes": made.reserved}
    written = Written(tape, {name: value for name, (value, _) in values.items()}, parts)
    given = tuple(ExplainedLine(name, "", value, source) for name, (value, source) in values.items()
                  if name in written.used)
    return Explained(str(choice), given, tuple(written.lines), own.machine.source, said)


def sheet_numbers(sheet: Datasheet) -> Iterator[tuple[str, tuple[float, str]]]:
    """The numbers of a data sheet that a prediction may use, by names that formulas can have."""
    for kind, rate in sheet.matrix.items(): yield f"{kind}_rate", (rate, "data sheet: operations a second of products")
    for kind, rate in sheet.vector.items(): yield f"{kind}_vector", (rate, "data sheet: operations a second of vectors")
    yield "memory_bytes", (sheet.memory[-1][1], f"data sheet: {sheet.memory[-1][0]}")
    yield "cores", (float(sheet.cores), "data sheet")
    if sheet.processors < inf: yield "processors", (sheet.processors, "data sheet: times what one gets done")
    yield "memory_bandwidth", (sheet.memory[-1][2], f"data sheet: {sheet.memory[-1][0]}, bytes a second")
    for at, link in enumerate(sheet.links, 1):
        yield f"link{at}_bandwidth", (link.bandwidth, f"data sheet: {link.name}, bytes a second")
        yield f"link{at}_latency", (link.latency, f"data sheet: {link.name}, seconds")


def named_sheet(sheet: Datasheet, names: Mapping[str, Any]) -> Datasheet:
    """A data sheet whose numbers stand on a tape, by their names; nothing checks them, as they are no numbers."""
    found = replace(sheet)
    *near, (memory, _, _) = sheet.memory
    links = tuple(link._replace(bandwidth=names[f"link{at}_bandwidth"], latency=names[f"link{at}_latency"])
                  for at, link in enumerate(sheet.links, 1))
    for field, value in (("matrix", {kind: names[f"{kind}_rate"] for kind in sheet.matrix}),
                         ("vector", {kind: names[f"{kind}_vector"] for kind in sheet.vector}),
                         ("memory", (*near, (memory, names["memory_bytes"], names["memory_bandwidth"]))),
                         ("links", links), ("cores", names["cores"]),
                         ("processors", names.get("processors", inf))):
        object.__setattr__(found, field, value)
    return found


class Written:
    """A tape as lines: what several read, and what is long, has a line of its own; the rest stands where it is read."""
    def __init__(self, tape: Tape, values: Mapping[str, float], parts: Mapping[str, Any]) -> None:
        self.tape, self.lines, self.used = tape, list[ExplainedLine](), set[str]()
        self.texts: dict[int, str] = {}
        everywhere = [TracedColumn(tape, at) for at, node in enumerate(tape.nodes) if node[0] in UFUNCS]
        out = np.empty((len(everywhere), 1))
        CompiledTape(tape, everywhere)({name: np.array([value]) for name, value in values.items()}, out)
        self.values = {each.at: float(value) for each, value in zip(everywhere, out[:, 0], strict=True)}
        self.reads = Counter(at for node in tape.nodes if node[0] in UFUNCS for at in {*node[1:]})
        for name, part in parts.items(): self.add(name, part)

    def add(self, name: str, part: Any) -> None:
        """A part, with the lines that it reads before it."""
        if type(part) is not TracedColumn: self.lines.append(ExplainedLine(name, repr(float(part)), float(part)))
        else: self.lines.append(ExplainedLine(name, self.text(part.at), self.value(part.at)))

    def value(self, at: int) -> float: return self.values[at] if at in self.values else float("nan")

    def text(self, at: int) -> str:
        """How a place is written where it is read."""
        if at in self.texts: return self.texts[at]
        op, *args = self.tape.nodes[at]
        if op == "column":
            self.used.add(args[0])
            return str(args[0])
        if op == "number": return f"{args[0]:.17g}"
        own = [self.text(each) for each in args]
        between, name = WRITTEN_BETWEEN.get(op), WRITTEN_AS.get(op, op)
        text = f"({f' {between} '.join(own)})" if between else f"{name}({', '.join(own)})"
        if self.reads[at] > 1 or len(text) > LONGEST:
            name = f"x{len(self.lines)}"
            self.lines.append(ExplainedLine(name, text, self.values[at]))
            text = name
        self.texts[at] = text
        return text
