"""The exact search: saturate each signature once, extract each pair of border states, join them by a shortest path."""
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from opmatrix.data import Data
from opmatrix.program import Program
from opmatrix.term import Operator
from rewrites.emit import Emitter, Value
from rewrites.extraction import Extraction, Infeasible, extract
from rewrites.fit import Fitter
from rewrites.law import Law
from rewrites.layers import FULL, Explorer, Part, parts, states
from rewrites.lower import EXACT, Lowering, Method, Use
from rewrites.price import Machine, Prices
from rewrites.representations import Representable, content

Methods = Callable[[Lowering, Use], Sequence[Method]]
TIE = 1e-15                                                 # seconds a byte: of equally fast programs the smaller one


def exactly(lowering: Lowering, use: Use) -> Sequence[Method]:
    """Weights are stored as they are."""
    return EXACT


@dataclass
class Structure:
    """One program for every part, with the states between them. `time` in seconds, `memory` in stored bytes."""

    lowerings: list[Lowering]
    extractions: list[Extraction]
    path: list[tuple[str, str]]
    parts: list[Part]
    time: float
    bound: float
    greedy: float
    seconds: dict[str, float] = field(default_factory=dict)
    nodes: int = 0
    classes: int = 0
    cut: list[str] = field(default_factory=list)
    fired: frozenset[str] = frozenset()

    @property
    def gap(self) -> float:
        return (self.time - self.bound) / self.time if self.time else 0.0

    @property
    def memory(self) -> float:
        return sum(extraction.memory for extraction in self.extractions)

    def program(self, meta: dict[str, Any],
                decide: Callable[[int, Use, Method], Method] = lambda number, use, method: method,
                fitted: dict[Any, Any] | None = None, fitter: Fitter | None = None) -> tuple[Program, Emitter]:
        """The program that runs, and where its constants come from."""
        emitter = Emitter({} if fitted is None else fitted, fitter or Fitter())
        handed: dict[int, Value] = {}
        result = Value({}, 1)                               # nothing is handed on yet
        chosen = zip(self.lowerings, self.extractions, self.parts, strict=True)
        for number, (lowering, extraction, part) in enumerate(chosen):
            named = lowering.graph.named
            if part.border is not None:
                handed = {named[part.border]: result}
            emitter.emit(lowering, extraction.nodes, number, handed, decide)
            result = emitter.values[named[part.roots[self.path[number][1]]]]
        return Program(emitter.steps, emitter.constants, emitter.rows(result), meta), emitter


def search(model: Operator, laws: Sequence[Law], machine: Machine, rows: int, pairs: int, *, fusion: bool = True,
           methods: Methods | None = None, time_limit: float = 10.0,
           along: Sequence[tuple[str, str]] | None = None) -> Structure:
    """The cheapest program of a model for a workload of `rows` tokens and `pairs` (sum of squared lengths). `methods`
    are the representations that a weight may be stored in: by default every one that holds it exactly. With `along`,
    the cheapest that hands on these border states."""
    start = time.perf_counter()
    methods = Representable() if methods is None else methods
    explorer, prices, found = Explorer(laws), Prices(machine, rows, pairs), parts(model)
    seconds = {"flatten": time.perf_counter() - start}
    solved: dict[Any, Extraction | None] = {}
    best: dict[int, dict[tuple[str, str], tuple[Lowering, Extraction]]] = {}
    lowerings = {(number, before): Lowering(explorer.graph(part), part.template, prices, fusion)
                 for number, by_state in enumerate(found) for before, part in by_state.items()
                 if along is None or along[number][0] == before}
    for number, before, after in states(found):
        if along is not None and along[number] != (before, after):
            continue
        part, lowering = found[number][before], lowerings[number, before]
        key = (part.template.text, after, sizes(part), content(part.template))
        if key not in solved:
            start = time.perf_counter()
            solved[key] = solve(lowering, part, after, methods, time_limit)
            seconds["extract"] = seconds.get("extract", 0.0) + time.perf_counter() - start
        if (extraction := solved[key]) is not None:
            best.setdefault(number, {})[before, after] = (lowering, extraction)
    path = shortest([{pair: found[1].cost for pair, found in best.get(n, {}).items()} for n in range(len(found))])
    chosen = [best[n][pair] for n, pair in enumerate(path)]
    bound = lowest([{pair: e.bound for pair, (_, e) in best[n].items()} for n in range(len(found))])
    graphs = explorer.graphs.values()
    fired = frozenset(name.removesuffix(" backwards") for g in graphs for name, count in g.matches.items() if count)
    fastest = sum(e.time for _, e in chosen)
    return Structure([low for low, _ in chosen], [e for _, e in chosen], path,
                     [found[n][pair[0]] for n, pair in enumerate(path)],
                     fastest, min(bound, fastest), sum(e.greedy for _, e in chosen),
                     seconds | explorer.seconds(),
                     sum(len(g.nodes) for g in graphs), sum(len(g.members) for g in graphs),
                     [cut for g in graphs for cut in g.cut],
                     fired)


def sizes(part: Part) -> tuple[Any, ...]:
    """What a price depends on beside the signature."""
    return tuple(value.shape if isinstance(value, Data) else value for value in part.template.values.values())


def solve(lowering: Lowering, part: Part, after: str, methods: Methods, time_limit: float) -> Extraction | None:
    """The cheapest program of a part between two states; None where no program leads from one to the other."""
    named = lowering.graph.named
    given = [named[part.border]] if part.border else []
    problem = lowering.problem([named[part.roots[after]]], given, methods)
    try:
        return extract(problem, weights=(1, TIE, 0), families=lowering.leaves, time_limit=time_limit)
    except Infeasible:
        return None


def shortest(stages: Sequence[dict[tuple[str, str], float]]) -> list[tuple[str, str]]:
    """The cheapest chain of (state before, state after) through all stages, from and to the full state."""
    reached: dict[str, tuple[float, list[tuple[str, str]]]] = {FULL: (0.0, [])}
    for number, stage in enumerate(stages):
        after: dict[str, tuple[float, list[tuple[str, str]]]] = {}
        for (before, behind), cost in stage.items():
            total = reached.get(before, (inf, []))[0] + cost
            if total < after.get(behind, (inf, []))[0]:
                after[behind] = (total, [*reached[before][1], (before, behind)])
        if not after:
            raise Infeasible(f"part {number} of the model has no program: no kernel computes one of its operators")
        reached = after
    return reached[FULL][1]


def lowest(stages: Sequence[dict[tuple[str, str], float]]) -> float:
    """The cost of that chain."""
    return sum(stage[pair] for stage, pair in zip(stages, shortest(stages), strict=True))
