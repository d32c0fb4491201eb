"""The derivation of a prediction: every constant, every number of a data sheet and every formula, line by line, each
with its value. The formulas are those that predicted, traced while they ran; the lines add up to the prediction."""

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
LONGEST = 100  # letters of a formula before its parts get their own lines


class ExplainedLine(NamedTuple):
    """A name with its formula and value."""

    name: str
    formula: str  # empty for a given number
    value: float
    source: str = ""  # where a given number is from


class Explained(NamedTuple):
    """The explanation of a strategy."""

    strategy: str
    given: tuple[ExplainedLine, ...]  # given numbers, by name
    lines: tuple[ExplainedLine, ...]  # formulas in order, at last `seconds` and `bytes`
    source: str  # source of the data sheet
    fitted: str  # source of the constants

    def __str__(self) -> str:
        inputs = table(
            [[line.name, f"{line.value:.8g}", line.source] for line in self.given], ["given", "", "from"], (0, 2)
        )
        lines = [f"{line.name} = {line.formula} = {line.value:.8g}" for line in self.lines]
        sources = [f"constants: {self.fitted}", f"data sheet: {self.source}"]
        return "\n".join([f"{self.strategy}, explained:", "", inputs, "", *sources, "", *lines])


def explain_choice(plan: StrategyPlan, choice: PlanChoice) -> Explained:
    """Explain the prediction of a strategy: all numbers and formulas that it used."""
    question = plan.question
    constants, fitted = question.constants or load_constants(), "given"
    if question.constants is None:
        fitted = json.loads(CONSTANTS_FILE.read_text("utf-8"))["source"]
    values: dict[str, tuple[float, str]] = {
        **{name: (float(choice.sizes[name]), "the strategy") for name in SIZE_NAMES},
        "batch": (float(question.batch), "--batch"),
        "seq": (float(question.seq), "--seq"),
        **{name: (value, "constants") for name, value in constants._asdict().items()},
        **dict(sheet_numbers(question.machine)),
    }
    tape = Tape(*values)
    prediction = question.predicted_on(
        named_sheet(question.machine, tape.columns),
        choice.form,
        {name: tape.columns[name] for name in SIZE_NAMES},
        tape.columns["batch"],
        tape.columns["seq"],
        Constants._make(tape.columns[name] for name in Constants._fields),
    )
    parts = {
        **{f"seconds of {name}": part for name, part in prediction.seconds.items()},
        "seconds": prediction.step_seconds,
        **{f"bytes of {name}": part for name, part in prediction.memory.items()},
        "bytes": prediction.driver,
    }
    written = Written(tape, {name: value for name, (value, _) in values.items()}, parts)
    inputs = tuple(
        ExplainedLine(name, "", value, source) for name, (value, source) in values.items() if name in written.used
    )
    return Explained(str(choice), inputs, tuple(written.lines), question.machine.source, fitted)


def sheet_numbers(sheet: Datasheet) -> Iterator[tuple[str, tuple[float, str]]]:
    """Yield the numbers of a data sheet that a prediction may use, by names that formulas can have."""
    for kind, rate in sheet.matrix.items():
        yield f"{kind}_rate", (rate, "data sheet: operations a second of products")
    for kind, rate in sheet.vector.items():
        yield f"{kind}_vector", (rate, "data sheet: operations a second of vectors")
    yield "memory_bytes", (sheet.memory[-1][1], f"data sheet: {sheet.memory[-1][0]}")
    if sheet.watts is not None:
        yield "watts", (sheet.watts, "data sheet: of a device under load")
    yield "cores", (float(sheet.cores), "data sheet")
    if sheet.processors < inf:
        yield "processors", (sheet.processors, "data sheet: throughput of all devices over one")
    yield "memory_bandwidth", (sheet.memory[-1][2], f"data sheet: {sheet.memory[-1][0]}, bytes a second")
    for at, link in enumerate(sheet.links, 1):
        yield f"link{at}_bandwidth", (link.bandwidth, f"data sheet: {link.name}, bytes a second")
        yield f"link{at}_latency", (link.latency, f"data sheet: {link.name}, seconds")


def named_sheet(sheet: Datasheet, names: Mapping[str, Any]) -> Datasheet:
    """Return a data sheet whose numbers are columns of a tape, by their names. They are not checked, as they are no
    numbers."""
    named = replace(sheet)
    *near, (memory, _, _) = sheet.memory
    links = tuple(
        link._replace(bandwidth=names[f"link{at}_bandwidth"], latency=names[f"link{at}_latency"])
        for at, link in enumerate(sheet.links, 1)
    )
    for field, value in (
        ("matrix", {kind: names[f"{kind}_rate"] for kind in sheet.matrix}),
        ("vector", {kind: names[f"{kind}_vector"] for kind in sheet.vector}),
        ("memory", (*near, (memory, names["memory_bytes"], names["memory_bandwidth"]))),
        ("links", links),
        ("cores", names["cores"]),
        ("watts", names.get("watts")),
        ("processors", names.get("processors", inf)),
    ):
        object.__setattr__(named, field, value)
    return named


class Written:
    """A tape as lines. A long expression, and one that is read several times, has a line of its own; all others are
    written in place."""

    def __init__(self, tape: Tape, values: Mapping[str, float], parts: Mapping[str, Any]) -> None:
        self.tape, self.lines, self.used = tape, list[ExplainedLine](), set[str]()
        self.texts: dict[int, str] = {}
        everywhere = [TracedColumn(tape, at) for at, node in enumerate(tape.nodes) if node[0] in UFUNCS]
        out = np.empty((len(everywhere), 1))
        CompiledTape(tape, everywhere)({name: np.array([value]) for name, value in values.items()}, out)
        self.values = {column.at: float(value) for column, value in zip(everywhere, out[:, 0], strict=True)}
        self.reads = Counter(at for node in tape.nodes if node[0] in UFUNCS for at in {*node[1:]})
        for name, part in parts.items():
            self.add(name, part)

    def add(self, name: str, part: Any) -> None:
        """Append a part, after the lines that it reads."""
        if type(part) is not TracedColumn:
            self.lines.append(ExplainedLine(name, repr(float(part)), float(part)))
        else:
            self.lines.append(ExplainedLine(name, self.text(part.at), self.value(part.at)))

    def value(self, at: int) -> float:
        """Return the value of an operation of the tape; NaN if it has none."""
        return self.values[at] if at in self.values else float("nan")

    def text(self, at: int) -> str:
        """Return the text of a place in a formula."""
        if at in self.texts:
            return self.texts[at]
        op, *args = self.tape.nodes[at]
        if op == "column":
            self.used.add(args[0])
            return str(args[0])
        if op == "number":
            return f"{args[0]:.17g}"
        operands = [self.text(arg) for arg in args]
        between, name = WRITTEN_BETWEEN.get(op), WRITTEN_AS.get(op, op)
        text = f"({f' {between} '.join(operands)})" if between else f"{name}({', '.join(operands)})"
        if self.reads[at] > 1 or len(text) > LONGEST:
            name = f"x{len(self.lines)}"
            self.lines.append(ExplainedLine(name, text, self.values[at]))
            text = name
        self.texts[at] = text
        return text
