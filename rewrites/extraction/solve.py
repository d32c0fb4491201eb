"""Extraction from end to end: index, greedy incumbent, presolve, search, and a walk from the roots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from math import inf
from time import perf_counter

from rewrites.extraction import greedy, landmarks
from rewrites.extraction.bounding import Found, optimise
from rewrites.extraction.indexed import Criteria, IndexedGraph, index
from rewrites.extraction.presolve import presolve, prune
from rewrites.extraction.problem import Extraction, Infeasible, Node, Problem, check_problem, order


def extract(
    problem: Problem,
    *,
    memory: float | None = None,
    error: float | None = None,
    weights: tuple[float, float, float] = (1, 0, 0),
    families: Callable[[Hashable], Iterable[str]] | None = None,
    time_limit: float = 10.0,
    gap: float = 1e-6,
    forbidden: Iterable[Node] = (),
) -> Extraction:
    """Return the cheapest program: minimise weights . (time, memory, error), each chosen node counted once, within the
    budgets.

    `memory` and `error` (squared) bound the sums over the chosen nodes; None is no budget. `families` names, for a
    class, the weight leaves that its value is derived from: hints for cuts that never change the answer. After
    `time_limit` seconds the best program so far is returned with its proved bound. `forbidden` nodes are left out.

    Raises Infeasible if no program exists, TimeoutError if none that fits was found in time, ValueError for a cost that
    is negative or not a number."""
    start = perf_counter()
    check_problem(problem)
    budgets = [b for b in (memory, error) if b is not None]
    whole, names = index(problem, measure(problem, weights, memory is not None, error is not None), forbidden)
    if (graph := prune(whole, budgets)) is None:
        raise uncovered(problem, memory, error, forbidden)
    best = solve(graph, budgets, start + time_limit, gap, find_leaves(problem, families))
    if best.cost == inf:
        budget = f"memory {memory} and squared error {error}"
        raise (
            Infeasible(f"no program fits {budget}")
            if best.bound == inf
            else TimeoutError(f"no program that fits {budget} was found in {time_limit} s")
        )
    nodes = order(choose_nodes(problem, whole, names, best.nodes), problem.roots)
    totals = sum(n.time for n in nodes), sum(n.memory for n in nodes), sum(n.error for n in nodes)
    cost = sum(w * t for w, t in zip(weights, totals, strict=True))
    bound = min(best.bound, cost)
    left = (cost - bound) / cost if cost else 0.0
    return Extraction(
        nodes,
        {n.cls: n for n in nodes},
        *totals,
        cost,
        bound,
        left,
        max(best.greedy, cost),
        perf_counter() - start,
        left <= gap * (1 + 1e-6),
    )


def find_leaves(problem: Problem, families: Callable[[Hashable], Iterable[str]] | None) -> dict[int, tuple[str, ...]]:
    """Return the weight leaves that the class of each node is derived from, where there are any."""
    return (
        {}
        if families is None
        else {i: leaf for i, node in enumerate(problem.nodes) if (leaf := tuple(families(node.cls) or ()))}
    )


def solve(
    graph: IndexedGraph,
    budgets: Sequence[float],
    until: float,
    gap: float,
    families: Mapping[int, Collection[str]],
    known: float = inf,
) -> Found:
    """Return the best program of a pruned graph. If another program costs `known`, one that costs no less may be
    returned, and the bound holds for the cheaper of the two."""
    first = solve_greedy(graph, budgets) if known == inf else Found([], inf, 0.0, inf)
    floor = landmarks.bound_by_landmarks(graph, graph.price, landmarks.QUICK)
    graph = drop_costlier(graph, floor, min(first.cost, known))
    best = (
        optimise(presolve(graph, budgets, until), budgets, until, gap, families=families, known=known)
        if perf_counter() < until
        else first._replace(bound=floor.value)
    )
    greedy = min(first.cost, best.greedy) if budgets else first.cost
    if first.cost < best.cost or not best.nodes:
        best = best._replace(nodes=first.nodes, cost=first.cost)
    return best._replace(bound=min(max(best.bound, floor.value), best.cost, known), greedy=greedy)


def measure(problem: Problem, weights: tuple[float, float, float], memory: bool, error: bool) -> list[Criteria]:
    """Return the cost of each node, and its use of each budget."""
    return [
        (weights[0] * n.time + weights[1] * n.memory + weights[2] * n.error, *[n.memory] * memory, *[n.error] * error)
        for n in problem.nodes
    ]


def drop_costlier(graph: IndexedGraph, floor: landmarks.LandmarkBound, cost: float) -> IndexedGraph:
    """Drop the nodes that no program below a cost uses."""
    if cost == inf:
        return graph
    detours = landmarks.detours(graph, floor.spare)
    return graph.keep(i for i, detour in enumerate(detours) if floor.value + detour < cost)


def choose_nodes(
    problem: Problem, whole: IndexedGraph, names: Sequence[Hashable], chosen: Iterable[int]
) -> dict[Hashable, Node]:
    """Return the node of each class that is derived from chosen nodes."""
    position = {origin: i for i, (origin,) in enumerate(whole.origin)}
    derived = whole.derive(position[origin] for origin in chosen)
    return {names[c]: problem.nodes[whole.origin[i][0]] for c, i in derived.items()}


def solve_greedy(graph: IndexedGraph, budgets: Sequence[float]) -> Found:
    """Return the better of greedy DAG and greedy tree extraction, if it meets the budgets; its cost is infinite if
    not."""
    best = Found([], inf, 0.0, inf)
    for choice in (greedy.dag(graph, graph.price), greedy.trees(graph, graph.price)[0]):
        nodes = graph.walk(choice)
        cost, *spent = graph.total(nodes)
        if cost < best.cost and all(s <= b for s, b in zip(spent, budgets, strict=True)):
            best = Found([o for i in nodes for o in graph.origin[i]], cost, 0.0, cost)
    return best


def uncovered(problem: Problem, memory: float | None, error: float | None, forbidden: Iterable[Node]) -> Infeasible:
    """Return the error with the reason why no program covers the roots: a class without members, only cycles, or nodes
    that are over a budget alone."""
    whole, names = index(problem, [()] * len(problem.nodes), forbidden)
    have = whole.derive(range(len(whole.cls)))
    missing = [names[c] for c in whole.roots if c not in have]
    if not missing:
        return Infeasible(
            f"no program of nodes that fit memory {memory} and squared error {error} each covers the roots"
        )
    members = whole.members[names.index(missing[0])]
    why = (
        "all its nodes depend on themselves or on a class without a program"
        if members
        else "it has no node that may be chosen"
    )
    return Infeasible(f"no program covers root {missing[0]!r}: {why}")
