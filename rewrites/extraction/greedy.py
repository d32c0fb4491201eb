"""Greedy extraction: each class takes its cheapest node, by tree cost or by the cost of the set of nodes below it."""
from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from .graph import Choice, Graph


def trees(graph: Graph, price: Sequence[float]) -> tuple[Choice, list[float]]:
    """The cheapest tree of every class and its cost, shared work counted each time (Knuth 1977, a generalised Dijkstra)."""
    cls, users = graph.cls, graph.users
    missing, value = [len(kids) for kids in graph.kids], list(price)
    heap = sorted((value[i], i) for i in range(len(value)) if not missing[i])
    choice: Choice = {}
    cheapest = [inf] * graph.classes
    while heap:
        cost, i = heappop(heap)
        c = cls[i]
        if c in choice:
            continue
        choice[c], cheapest[c] = i, cost
        for j in users[c]:
            missing[j] -= 1
            value[j] += cost
            if not missing[j] and cls[j] not in choice:
                heappush(heap, (value[j], j))
    return choice, cheapest


def dag(graph: Graph, price: Sequence[float]) -> Choice:
    """Each class takes the node whose *set* of nodes below is cheapest, to a fixed point: the usual greedy DAG extraction."""
    sets: dict[int, dict[int, float]] = {}
    total: dict[int, float] = {}
    choice: Choice = {}
    todo = dict.fromkeys(i for i, kids in enumerate(graph.kids) if not kids)
    while todo:
        i = next(iter(todo))
        del todo[i]
        c, kids = graph.cls[i], graph.kids[i]
        if any(k not in sets or c in sets[k] for k in kids):
            continue
        below: dict[int, float] = {}
        for k in sorted(kids, key=lambda k: -len(sets[k])):
            below = below | sets[k] if below else dict(sets[k])
        below[c] = price[i]
        cost = sum(below.values())
        if cost < total.get(c, inf) * (1 - 1e-12):
            sets[c], total[c], choice[c] = below, cost, i
            todo.update(dict.fromkeys(graph.users[c]))
    return choice
