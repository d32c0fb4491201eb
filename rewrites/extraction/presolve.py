"""Presolve: smaller problems with the same optimum."""
from __future__ import annotations

from collections.abc import Sequence

from .graph import Graph


def prune(graph: Graph, budgets: Sequence[float]) -> Graph | None:
    """Productive and reachable nodes alone, no self-loops, none that breaks a budget by itself; None if a root is lost."""
    nodes = [i for i, (c, kids) in enumerate(zip(graph.cls, graph.kids, strict=True))
             if c not in kids and all(x <= b for x, b in zip(graph.cost[i][1:], budgets, strict=True))]
    users: dict[int, list[int]] = {}
    for i in nodes:
        for k in graph.kids[i]:
            users.setdefault(k, []).append(i)
    missing = {i: len(graph.kids[i]) for i in nodes}
    productive: set[int] = set()
    todo = [graph.cls[i] for i in nodes if not missing[i]]
    while todo:
        c = todo.pop()
        if c not in productive:
            productive.add(c)
            for i in users.get(c, ()):
                missing[i] -= 1
                if not missing[i]:
                    todo.append(graph.cls[i])
    if not graph.roots <= productive:
        return None
    nodes = [i for i in nodes if not missing[i]]
    members: dict[int, list[int]] = {}
    for i in nodes:
        members.setdefault(graph.cls[i], []).append(i)
    reached, todo = set(graph.roots), list(graph.roots)
    while todo:
        below = {k for i in members[todo.pop()] for k in graph.kids[i]} - reached
        reached |= below
        todo += below
    return graph.keep(i for i in nodes if graph.cls[i] in reached)
