"""A model as parts with borders between them: one graph for each distinct signature, one small program for each pair of
border states, joined by a shortest path. A state says which buffer is handed on: the full value, or the normed one whose
gain and shift are still pending."""
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import matmul
from typing import Any

from formats.shapes import Shape, T
from opmatrix.operators import I, given, symbol
from opmatrix.term import Operator
from rewrites.egraph import Graph, engine, saturate
from rewrites.flat import factors, flat
from rewrites.law import Law
from rewrites.template import Template

FULL, NORMED = "full", "normed"


@dataclass(frozen=True)
class Part:
    """One part of a model behind one border state: its template, and the class names of its border and its results."""

    template: Template
    border: str | None
    roots: dict[str, str]


def split(model: Operator) -> list[Operator]:
    """The factors of a model, gathered into parts: a part begins where rows are mixed."""
    groups: list[list[Operator]] = [[]]
    for factor in factors(model):
        if not factor.row_wise and groups[-1]:
            groups.append([])
        groups[-1].append(factor)
    return [reduce(matmul, group) for group in groups]


def pending(term: Operator) -> tuple[Operator, Operator] | None:
    """A value n @ (I * g) + b, taken apart: what is normed, and the term that makes it full, over a symbol. A norm n may
    lack its gain or its shift."""
    shift = term.children[1] if term.kind.name == "add" else None
    shift = shift if shift is not None and shift.constant and shift.uniform else None
    inner = term if shift is None else term.children[0]
    gain = inner.children[1] if inner.kind.name == "compose" and diagonal(inner.children[1]) else None
    normed = inner if gain is None else inner.children[0]
    if (gain is None or shift is None) and (gain is shift or normed.kind.name != "mul"):
        return None
    full = border(normed) if gain is None else border(normed) @ gain
    return normed, full if shift is None else full + shift


def diagonal(term: Operator) -> bool:
    return term.kind.name == "mul" and term.children[0] is I and term.children[1].constant


def border(term: Operator) -> Operator:
    """An opaque value as wide as this one."""
    width = int(term.out.cols)
    return symbol("border", Shape(1, T, width), Shape(1, T, width))


def parts(model: Operator) -> list[dict[str, Part]]:
    """Every part of a model, by the state of the border before it."""
    found: list[dict[str, Part]] = []
    before: tuple[Operator, Operator] | None = None
    width: Operator | None = None
    for factor in split(model):
        starts = {FULL: border(width)} if width is not None else {FULL: given("tokens", int(factor.into.cols))}
        if before is not None:
            starts[NORMED] = before[1]
        states = {}
        for state, x in starts.items():
            full = flat(factor, x)
            before_this = pending(full)
            roots = {FULL: full} | ({NORMED: before_this[0]} if before_this else {})
            leaf = next((t for t in full.walk() if t.kind.name == "symbol"), None)
            states[state] = Part(Template.of(roots | ({"border": leaf} if leaf else {}), [leaf] if leaf else []),
                                 "$border" if leaf is not None else None, {name: f"${name}" for name in roots})
        width, before = full, before_this
        found.append(states)
    return found


@dataclass
class Explorer:
    """Saturated graphs by signature, so that layers of equal structure are explored once."""

    laws: Sequence[Law]
    budget: int = 5000
    graphs: dict[str, Graph] = field(default_factory=dict)
    prepared: float = 0.0

    @cached_property
    def engine(self) -> Any:
        """One for all graphs: the rules are read once."""
        start = time.perf_counter()
        made = engine(self.laws)
        self.prepared = time.perf_counter() - start
        return made

    def graph(self, part: Part) -> Graph:
        if part.template.text not in self.graphs:
            self.graphs[part.template.text] = saturate(part.template, self.laws, budget=self.budget, shared=self.engine)
        return self.graphs[part.template.text]

    def seconds(self) -> dict[str, float]:
        """Seconds by phase, over all graphs."""
        total = {"rules": self.prepared}
        for graph in self.graphs.values():
            for phase, taken in graph.seconds.items():
                total[phase] = total.get(phase, 0.0) + taken
        return total


def states(parts: Sequence[dict[str, Part]]) -> Iterator[tuple[int, str, str]]:
    """Every part with every pair of states that it can stand between; the last hands on the full value."""
    for number, by_state in enumerate(parts):
        after: Any = parts[number + 1] if number + 1 < len(parts) else {FULL: None}
        for before, part in by_state.items():
            yield from ((number, before, state) for state in part.roots if state in after)
