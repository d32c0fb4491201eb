"""Extraction: index, presolve, search, and a walk from the roots."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import inf
from time import perf_counter

from .graph import index
from .presolve import presolve
from .problem import Extraction, Infeasible, Node, Problem, check, order
from .search import optimise


def extract(problem: Problem, *, memory: float | None = None, error: float | None = None,
            weights: tuple[float, float, float] = (1, 0, 0),
            families: Callable[[Hashable], Iterable[str]] | None = None,
            time_limit: float = 10.0, gap: float = 1e-6, forbidden: Iterable[Node] = ()) -> Extraction:
    """The cheapest program: minimise weights . (time, memory, error), each chosen node counted once, within the
    budgets.

    `memory` and `error` (squared) bound the sums over the chosen nodes. `families` names, for a class, the weight
    leaves that its value is derived from: hints for cuts that never change the answer. After `time_limit` seconds the
    best program so far is returned with its proved bound. Raises Infeasible if no program exists, TimeoutError if none
    was found in time, ValueError for a cost that is negative.
    """
    start = perf_counter()
    check(problem)
    budgets = [b for b in (memory, error) if b is not None]
    criteria = [(weights[0] * n.time + weights[1] * n.memory + weights[2] * n.error,
                 *([n.memory] if memory is not None else []), *([n.error] if error is not None else []))
                for n in problem.nodes]
    whole, names = index(problem, criteria, forbidden)
    graph = presolve(whole, budgets)
    if graph is None:
        raise Infeasible("no program covers the roots")
    found = optimise(graph, budgets, start + time_limit, gap)
    if found.cost == inf:
        budget = f"memory {memory} and squared error {error}"
        raise (Infeasible(f"no program fits {budget}") if found.bound == inf else
               TimeoutError(f"no program that fits {budget} was found in {time_limit} s"))
    chosen = whole.derive(found.nodes)
    nodes = order({names[c]: problem.nodes[whole.origin[i][0]] for c, i in chosen.items()}, problem.roots)
    time, memory, error = (sum(getattr(n, name) for n in nodes) for name in ("time", "memory", "error"))
    cost = sum(w * t for w, t in zip(weights, (time, memory, error), strict=True))
    bound = min(found.bound, cost)
    left = (cost - bound) / cost if cost else 0.0
    return Extraction(nodes, {n.cls: n for n in nodes}, time, memory, error, cost, bound, left, max(found.greedy, cost),
                      perf_counter() - start, left <= gap * 1.01)
