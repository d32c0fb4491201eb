"""Landmarks: sets of nodes, of which every program uses at least one. They bound the cost, and cut the linear
relaxation.

Extraction is delete-free planning: a class is a fact, a node an action that derives it from its children. A *zone* is a
set of classes around a root; the first class of it to be derived takes a node without children in it, so those nodes
are a landmark."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from time import perf_counter
from typing import NamedTuple

from rewrites.extraction.indexed import IndexedGraph


class LandmarkBound(NamedTuple):
    """A bound: every program costs at least `value`, and every one that uses node i at least `value + spare[i]`."""

    value: float
    spare: list[float]
    landmarks: list[list[int]]


class Levels:
    """The level of a class: the least over its nodes of price + the *highest* child, kept true as prices fall (h-max).

    Node n is the goal, its children are the roots; class `source` is below the nodes without children."""

    def __init__(self, graph: IndexedGraph, price: Sequence[float]) -> None:
        n, self.source, self.goal = len(graph.cls), graph.classes, graph.classes + 1
        self.kids = [tuple(kids) or (self.source,) for kids in graph.kids] + [tuple(graph.roots)]
        self.cls, self.price = [*graph.cls, self.goal], [*price, 0.0]
        self.members = [*graph.members, [], [n]]
        self.users = [list(users) for users in graph.users] + [[i for i, kids in enumerate(graph.kids) if not kids], []]
        for c in graph.roots:
            self.users[c].append(n)
        self.level = [inf] * (n + 2)
        self.highest = [-1] * (n + 1)  # for each node, the child with the highest level
        missing = [len(kids) for kids in self.kids]
        self.level[self.source] = 0.0
        heap, done = [(0.0, self.source)], [False] * (self.goal + 1)
        level, highest, cls, price = self.level, self.highest, self.cls, self.price  # for a hot loop
        while heap:
            _, c = heappop(heap)
            if not done[c]:
                done[c] = True
                for i in self.users[c]:
                    missing[i] -= 1
                    if not missing[i]:
                        highest[i] = c
                        if (lowered := level[c] + price[i]) < level[cls[i]]:
                            level[cls[i]] = lowered
                            heappush(heap, (lowered, cls[i]))

    def lower(self, node: int, heap: list[tuple[float, int]]) -> None:
        """Lower the class of a node to the level that the node gives it."""
        level, c = self.level[self.highest[node]] + self.price[node], self.cls[node]
        if level < self.level[c]:
            self.level[c] = level
            heappush(heap, (level, c))

    def settle(self, heap: list[tuple[float, int]]) -> None:
        """Pass lowered classes on to the nodes above them."""
        level, highest, kids, cls, price = self.level, self.highest, self.kids, self.cls, self.price
        while heap:
            value, c = heappop(heap)
            if value <= level[c]:
                for i in self.users[c]:
                    if highest[i] == c:
                        highest[i] = top = max(kids[i], key=level.__getitem__) if len(kids[i]) > 1 else c
                        if (lowered := level[top] + price[i]) < level[cls[i]]:
                            level[cls[i]] = lowered
                            heappush(heap, (lowered, cls[i]))


class Zone:
    """A zone that grows from the goal, and its entrances: the nodes into it that have no child in it.

    The sum paid for all entrances so far is one number, `offset`; `inside[i]` is the price of entrance i plus the
    offset at which it came in."""

    def __init__(self, levels: Levels, tiny: float) -> None:
        self.levels, self.tiny, self.offset = levels, tiny, 0.0
        self.classes: set[int] = set()
        self.inside: dict[int, float] = {}
        self.heap: list[tuple[float, int]] = []
        self.touched: list[int] = []

    def grow(self, c: int) -> bool:
        """Add class c and all classes from which it follows at no price through highest children. False at the
        source."""
        levels, classes, inside, todo = self.levels, self.classes, self.inside, [c]
        source, users, members, kids = levels.source, levels.users, levels.members, levels.kids
        highest, price = levels.highest, levels.price
        while todo:
            c = todo.pop()
            if c == source:
                return False
            if c in classes:
                continue
            classes.add(c)
            for i in users[c]:
                if i in inside:
                    self.leave(i)
            for i in members[c]:
                if highest[i] < 0:
                    continue
                if classes.isdisjoint(kids[i]):
                    inside[i] = price[i] + self.offset
                    heappush(self.heap, (inside[i], i))
                elif price[i] <= self.tiny:
                    todo.append(highest[i])
        return True

    def leave(self, i: int) -> None:
        """Remove entrance i, and store the rest of its price."""
        self.levels.price[i] = max(0.0, self.inside.pop(i) - self.offset)
        self.touched.append(i)

    def cheapest(self) -> int:
        """Return the entrance with the lowest price."""
        while self.inside.get(self.heap[0][1]) != self.heap[0][0]:
            heappop(self.heap)
        return self.heap[0][1]


QUICK = 10**9  # steps of the quickest bound


def bound_by_landmarks(
    graph: IndexedGraph, price: Sequence[float], steps: int = 10, most: int = QUICK, until: float = inf
) -> LandmarkBound:
    """Return landmark cuts (LM-cut: Helmert, Domshlak 2009): pay for the cheapest entrance of a zone, let the zone grow
    through it.

    Levels are repaired after `steps` payments: one gives the best bound and is slow, very many are quick. At the time
    `until` the rest is paid in many steps at once."""
    levels, value = Levels(graph, price), 0.0
    tiny = 1e-12 * max(price, default=0.0)
    landmarks: list[list[int]] = []
    while levels.level[levels.goal] > tiny and len(landmarks) < most:
        if perf_counter() > until:
            steps = QUICK
        zone, paid = Zone(levels, tiny), 0
        growing = zone.grow(levels.goal)
        while growing:
            i = zone.cheapest()
            pay = zone.inside[i] - zone.offset
            if pay > tiny:
                if paid == steps:
                    break
                paid += 1
                value += pay
                zone.offset = zone.inside[i]
                landmarks.append(list(zone.inside))
            zone.leave(i)
            levels.price[i] = 0.0
            growing = zone.grow(levels.highest[i])
        for i in list(zone.inside):
            zone.leave(i)
        heap: list[tuple[float, int]] = []
        for i in zone.touched:
            levels.lower(i, heap)
        levels.settle(heap)
        if not paid:
            break
    return LandmarkBound(value, levels.price[:-1], landmarks)


def detours(graph: IndexedGraph, spare: Sequence[float]) -> list[float]:
    """Return the least cost at these prices of a program that uses node i: below i, for i itself, and on a way from it
    up to a root."""
    levels = Levels(graph, spare)
    above = [inf] * graph.classes
    heap = [(0.0, c) for c in graph.roots]
    for c in graph.roots:
        above[c] = 0.0
    while heap:
        up, c = heappop(heap)
        if up <= above[c]:
            for i in graph.members[c]:
                for k in graph.kids[i]:
                    if up + spare[i] < above[k]:
                        above[k] = up + spare[i]
                        heappush(heap, (above[k], k))
    return [
        levels.level[levels.highest[i]] + spare[i] + above[c] if levels.highest[i] >= 0 else inf
        for i, c in enumerate(graph.cls)
    ]
