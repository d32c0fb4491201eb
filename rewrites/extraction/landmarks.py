"""Landmarks: sets of nodes of which every program uses one. They bound the cost, and cut the linear relaxation.

Extraction is delete-free planning: a class is a fact, a node an action that makes it from its children. A *zone* is a set of
classes around a root; the first class of it to be derived takes a node without children in it, so those nodes are a landmark.
"""
from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from .graph import Graph


class Bound(NamedTuple):
    """No program costs less than `value`, and none that uses node i less than `value + spare[i]`."""
    value: float
    spare: list[float]
    landmarks: list[list[int]]


class Levels:
    """The level of a class: the least over its nodes of price + the *highest* child, kept true as prices fall (h-max).

    Node n is the goal, its children are the roots; class `source` stands below the nodes without children.
    """

    def __init__(self, graph: Graph, price: Sequence[float]) -> None:
        n, self.source, self.goal = len(graph.cls), graph.classes, graph.classes + 1
        self.kids = [tuple(kids) or (self.source,) for kids in graph.kids] + [tuple(graph.roots)]
        self.cls, self.price = [*graph.cls, self.goal], [*price, 0.0]
        self.members = [*graph.members, [], [n]]
        self.users = [list(users) for users in graph.users] + [[i for i, kids in enumerate(graph.kids) if not kids], []]
        for c in graph.roots:
            self.users[c].append(n)
        self.level = [inf] * (n + 2)
        self.highest = [-1] * (n + 1)           # of each node, the child with the highest level
        missing = [len(kids) for kids in self.kids]
        self.level[self.source] = 0.0
        heap, done = [(0.0, self.source)], [False] * (self.goal + 1)
        while heap:
            _, c = heappop(heap)
            if not done[c]:
                done[c] = True
                for i in self.users[c]:
                    missing[i] -= 1
                    if not missing[i]:
                        self.highest[i] = c
                        self.lower(i, heap)

    def lower(self, node: int, heap: list[tuple[float, int]]) -> None:
        """Lower the class of a node to what the node gives it."""
        level, c = self.level[self.highest[node]] + self.price[node], self.cls[node]
        if level < self.level[c]:
            self.level[c] = level
            heappush(heap, (level, c))

    def settle(self, heap: list[tuple[float, int]]) -> None:
        """Pass lowered classes on to the nodes above them."""
        level, highest = self.level, self.highest
        while heap:
            value, c = heappop(heap)
            if value <= level[c]:
                for i in self.users[c]:
                    if highest[i] == c:
                        highest[i] = max(self.kids[i], key=level.__getitem__)
                        self.lower(i, heap)

    def zone(self, tiny: float) -> set[int]:
        """The classes from which the goal follows at no price through highest children."""
        zone, queue = {self.goal}, [self.goal]
        for c in queue:
            for i in self.members[c]:
                k = self.highest[i]
                if self.price[i] <= tiny and k >= 0 and k not in zone:
                    zone.add(k)
                    queue.append(k)
        return zone

    def entrances(self, zone: set[int]) -> list[int]:
        """The nodes that can be the first to derive a class of the zone: their children follow without it."""
        missing = [len(kids) for kids in self.kids]
        out, seen, queue = [], {self.source}, [self.source]
        for c in queue:
            for i in self.users[c]:
                missing[i] -= 1
                if not missing[i]:
                    d = self.cls[i]
                    if d in zone:
                        out.append(i)
                    elif d not in seen:
                        seen.add(d)
                        queue.append(d)
        return out


def bound(graph: Graph, price: Sequence[float], thorough: bool = True, most: int = 10_000) -> Bound:
    """Landmark cuts (LM-cut: Helmert, Domshlak 2009): pay for the cheapest node of a landmark, until the goal is free.

    `thorough` takes smaller landmarks at the price of a pass over the graph for each.
    """
    levels, value = Levels(graph, price), 0.0
    tiny = 1e-12 * max(price, default=0.0)
    landmarks: list[list[int]] = []
    while levels.level[levels.goal] > tiny and len(landmarks) < most:
        zone = levels.zone(tiny)
        if levels.source in zone:
            break
        landmark = levels.entrances(zone) if thorough else [
            i for c in zone for i in levels.members[c] if levels.highest[i] >= 0 and zone.isdisjoint(levels.kids[i])]
        paid = min(levels.price[i] for i in landmark)
        value += paid
        heap: list[tuple[float, int]] = []
        for i in landmark:
            levels.price[i] = max(0.0, levels.price[i] - paid)
            levels.lower(i, heap)
        levels.settle(heap)
        landmarks.append(landmark)
    return Bound(value, levels.price[:-1], landmarks)
