"""Greedy extraction: each class takes its cheapest node, by tree cost or by the cost of the set of nodes below it."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf

import numpy as np

from rewrites.extraction.indexed import ClassChoice, IndexedGraph, bits, union


def trees(graph: IndexedGraph, price: Sequence[float]) -> tuple[ClassChoice, list[float]]:
    """Return the cheapest tree of every class and its cost, shared work counted each time (Knuth 1977, a generalised
    Dijkstra)."""
    cls, users = graph.cls, graph.users
    missing, value = [len(kids) for kids in graph.kids], list(price)
    heap = sorted((value[i], i) for i in range(len(value)) if not missing[i])
    choice: ClassChoice = {}
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


def dag(graph: IndexedGraph, price: Sequence[float]) -> ClassChoice:
    """Choose for each class the node whose *set* of nodes below is cheapest: the usual greedy DAG extraction.

    A set costs no less than any set in it, so the cheapest remaining node settles its class, as among trees. Sets of
    classes are integers, one bit a class."""
    missing, below, total = [len(kids) for kids in graph.kids], [0] * graph.classes, [0.0] * graph.classes
    paid, choice = np.zeros(graph.classes), ClassChoice()
    heap = sorted((price[i], i) for i, kids in enumerate(graph.kids) if not kids)
    while heap:
        cost, i = heappop(heap)
        c = graph.cls[i]
        if c in choice:
            continue
        choice[c], total[c], paid[c] = i, cost, price[i]
        below[c] = union(below, graph.kids[i]) | 1 << c
        for j in graph.users[c]:
            missing[j] -= 1
            if not missing[j] and graph.cls[j] not in choice:
                first = max(graph.kids[j], key=total.__getitem__)
                rest = union(below, graph.kids[j]) & ~below[first] if len(graph.kids[j]) > 1 else 0
                heappush(heap, (price[j] + total[first] + sum_over(rest, paid), j))
    return choice


def sum_over(classes: int, paid: np.ndarray) -> float:
    """Return the sum over a set of classes."""
    if classes.bit_count() < 50:
        return float(sum(map(paid.item, bits(classes))))
    inside = np.frombuffer(classes.to_bytes(len(paid) // 8 + 1, "little"), dtype=np.uint8)
    return float(paid[np.unpackbits(inside, count=len(paid), bitorder="little").view(bool)].sum())
