"""A model as parts with borders between them: one graph for each distinct signature, one small program for each pair of
border states, joined by a shortest path. A state is the name of what is handed on: the full value, or a border form of it
(rewrites/compiler/borders.py)."""
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import matmul
from typing import Any

from formats.core.errors import InputError
from opmatrix.operators import given
from opmatrix.patterns import everyone
from opmatrix.shapes import S, T, brief
from opmatrix.term import Operator
from rewrites.compiler.borders import FULL, apart, border
from rewrites.compiler.egraph import Graph, engine, saturate
from rewrites.compiler.flat import factors, flat
from rewrites.compiler.template import Template
from rewrites.law import Law


@dataclass(frozen=True)
class Part:
    """One part of a model behind one border state: its template, and the class names of its border and its results."""

    template: Template
    border: str | None
    roots: dict[str, str]


def split(model: Operator) -> list[Operator]:
    """The factors of a model, gathered into parts: a part begins where rows of tokens are mixed. What is picked of a part belongs to it,
    and all that follows on rows of another space, or in another order, which no border tells."""
    groups: list[list[Operator]] = [[]]
    rows: Any = T
    moved = False
    for factor in factors(model):
        if rows is T and not moved and not factor.selective and groups[-1]:
            groups.append([])
        moved = moved or any(each.kind.name == "pick" and each.args[0].custom for each in factor.walk())
        groups[-1].append(factor)
        rows = rows if factor.out.rows is factor.into.rows else factor.out.rows
        if rows not in (T, S):
            raise InputError(f"{brief(factor)}: it gives rows of space {rows}: programs have rows of tokens, {T}, and sequences, {S}")
    return [reduce(matmul, group) for group in groups]


def parts(model: Operator) -> list[dict[str, Part]]:
    """Every part of a model, by the state of the border before it."""
    found: list[dict[str, Part]] = []
    starts: dict[str, Operator] = {}
    for factor in split(model):
        states, starts = {}, starts or {FULL: given("tokens", int(factor.into.cols))}
        for state, x in starts.items():
            check_order(full := flat(factor, x))
            forms = [*apart(full)]
            roots = {FULL: full} | {name: handed for name, handed, _ in forms}
            leaf = next((t for t in full.walk() if t.kind.name == "symbol"), None)
            states[state] = Part(Template.of(roots | ({"border": leaf} if leaf else {}), [leaf] if leaf else []),
                                 "$border" if leaf is not None else None, {name: f"${name}" for name in roots})
        starts = {FULL: border(full)} | {name: over for name, _, over in forms}
        found.append(states)
    return found


def check_order(full: Operator) -> None:
    """Raises InputError where attention or a rotation reads rows that a relation of the batch put in another order: kernels take row i
    for token i."""
    for node in full.walk():
        seen = node.kind.name == "product" and everyone not in node.args
        if seen or (node.kind.name == "compose" and node.children[1].kind.name == "rotate"):
            picks = (each for child in node.children for each in child.walk() if each.kind.name == "pick" and each.args[0].custom)
            if (moved := next(picks, None)) is not None:
                raise InputError(f"{brief(node)}: it reads the positions of rows that {moved} put in another order: programs have rows of "
                                 "tokens in theirs; pick behind it")


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
