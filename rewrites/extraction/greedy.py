"""Greedy extraction: each class takes its cheapest node, by tree cost or by the cost of the set of nodes below it."""
from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from .graph import Choice, Graph, bits, union


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

    Sets of classes are integers, one bit a class. Classes are visited in the order of their numbers, children mostly
    first, so that few are visited again.
    """
    sets, total = [0] * graph.classes, [inf] * graph.classes
    paid, choice = np.zeros(graph.classes), Choice()
    heap = sorted((c, i) for i, c in enumerate(graph.cls) if not graph.kids[i])
    waiting = {i for _, i in heap}
    while heap:
        c, i = heappop(heap)
        waiting.discard(i)
        kids = graph.kids[i]
        if any(not sets[k] or sets[k] >> c & 1 for k in kids):
            continue
        cost, below, better = price[i], 1 << c, total[c] * (1 - 1e-12)
        if kids:
            first = max(kids, key=total.__getitem__)
            cost += total[first]
            if cost < better and len(kids) > 1:
                rest = union(sets, kids) & ~sets[first]
                cost += weigh(rest, paid)
                below |= rest
            below |= sets[first]
        if cost < better:
            sets[c], total[c], choice[c], paid[c] = below, cost, i, price[i]
            for j in graph.users[c]:
                if j not in waiting:
                    waiting.add(j)
                    heappush(heap, (graph.cls[j], j))
    return choice


def weigh(classes: int, paid: np.ndarray) -> float:
    """The sum over a set of classes."""
    if classes.bit_count() < 50:
        return float(sum(map(paid.item, bits(classes))))
    inside = np.frombuffer(classes.to_bytes(len(paid) // 8 + 1, "little"), dtype=np.uint8)
    return float(paid[np.unpackbits(inside, count=len(paid), bitorder="little").view(bool)].sum())
