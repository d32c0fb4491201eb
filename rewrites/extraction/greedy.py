"""Greedy extraction: each class takes its cheapest node, by tree cost or by the cost of the set of nodes below it."""
from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

from .graph import Choice, Graph


def trees(graph: Graph, price: Sequence[float]) -> tuple[Choice, list[float]]:
    """The cheapest tree of every class and its cost, shared work counted each time (Knuth 1977, a generalised
    Dijkstra)."""
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
    """Each class takes the node whose *set* of nodes below is cheapest, to a fixed point: the usual greedy DAG
    extraction.

    Classes are visited in the order of their numbers, children mostly first, so that few are visited again.
    """
    sets: dict[int, dict[int, float]] = {}
    total: dict[int, float] = {}
    choice: Choice = {}
    heap = sorted((c, i) for i, c in enumerate(graph.cls) if not graph.kids[i])
    waiting = {i for _, i in heap}
    while heap:
        c, i = heappop(heap)
        waiting.discard(i)
        kids = sorted(graph.kids[i], key=lambda k: -len(sets.get(k, ())))
        if any(k not in sets or c in sets[k] for k in kids):
            continue
        below = dict(sets[kids[0]]) if kids else {}
        for k in kids[1:]:
            below.update(sets[k])
        below[c] = price[i]
        cost = sum(below.values())
        if cost < total.get(c, inf) * (1 - 1e-12):
            sets[c], total[c], choice[c] = below, cost, i
            for j in graph.users[c]:
                if j not in waiting:
                    waiting.add(j)
                    heappush(heap, (graph.cls[j], j))
    return choice
