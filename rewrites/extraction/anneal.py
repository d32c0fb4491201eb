"""Annealing: a program changes one node at a time. Uses are counted, so a change costs only the nodes that it affects.

Kirkpatrick, Gelatt, Vecchi 1983. For graphs too large for the relaxation it improves most in a second."""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from random import Random
from time import perf_counter

from rewrites.extraction import greedy
from rewrites.extraction.indexed import IndexedGraph

MOVES = 500  # moves between two readings of the clock
ROUND = 20_000  # moves between two calls of settle


class Walk:
    """A program during annealing: a node for every class, used or not, each needing only classes of a lower level."""

    def __init__(self, graph: IndexedGraph, nodes: Iterable[int], random: Random) -> None:
        self.graph, self.random = graph, random
        self.kids = [tuple(kids) for kids in graph.kids]
        self.settle(nodes)
        self.best, self.least = self.nodes(), self.cost

    def nodes(self) -> list[int]:
        """Return the chosen nodes."""
        return self.graph.walk(dict(enumerate(self.choice)))

    def settle(self, nodes: Iterable[int]) -> None:
        """Choose these nodes, and the cheapest trees beside them for all other classes."""
        free = set(nodes)
        choice, _ = greedy.trees(self.graph, [0.0 if i in free else p for i, p in enumerate(self.graph.price)])
        self.choice, self.level = [0] * self.graph.classes, [0] * self.graph.classes
        for c, i in choice.items():  # children first
            self.choice[c], self.level[c] = i, self.above(i)
        chosen = self.graph.walk(choice)
        self.uses = [0] * self.graph.classes
        for c in self.graph.roots:
            self.uses[c] += 1
        for i in chosen:
            for k in self.kids[i]:
                self.uses[k] += 1
        self.used = [self.graph.cls[i] for i in chosen]
        self.listed = set(self.used)
        self.cost = sum(map(self.graph.price.__getitem__, chosen))

    def above(self, node: int) -> int:
        """Return the least level that the class of a node may have."""
        return 1 + max((self.level[k] for k in self.kids[node]), default=0)

    def closes(self, c: int, node: int) -> bool:
        """True if the node needs its own class c. Only classes above the level of c can need it."""
        least = self.level[c]
        todo = [k for k in self.kids[node] if self.level[k] > least]
        seen = set(todo)
        for d in todo:  # grows while it is read
            for k in self.kids[self.choice[d]]:
                if k == c:
                    return True
                if self.level[k] > least and k not in seen:
                    seen.add(k)
                    todo.append(k)
        return False

    def lift(self, c: int) -> None:
        """Raise the levels of a class and of the classes that need it, as far as their chosen nodes require."""
        todo = [c]
        for d in todo:  # grows while it is read
            if (level := self.above(self.choice[d])) > self.level[d]:
                self.level[d] = level
                todo += [self.graph.cls[i] for i in self.graph.users[d] if self.choice[self.graph.cls[i]] == i]

    def take(self, node: int) -> tuple[float, list[int]]:
        """Add a use of a node; return its cost, and the classes that come into use."""
        todo, fresh, cost = [node], [], 0.0
        uses, kids, choice, price = self.uses, self.kids, self.choice, self.graph.price
        for i in todo:  # grows while it is read
            cost += price[i]
            for k in kids[i]:
                uses[k] += 1
                if uses[k] == 1:
                    fresh.append(k)
                    todo.append(choice[k])
        return cost, fresh

    def drop(self, node: int) -> float:
        """Remove a use of a node; return the cost that this saves."""
        todo, saved = [node], 0.0
        uses, kids, choice, price = self.uses, self.kids, self.choice, self.graph.price
        for i in todo:  # grows while it is read
            saved += price[i]
            for k in kids[i]:
                uses[k] -= 1
                if not uses[k]:
                    todo.append(choice[k])
        return saved

    def step(self, heat: float) -> None:
        """Try another node for a class in use; a change that costs more is taken with a chance that falls with its cost
        (Dueck, Scheuer 1990)."""
        draw, used = self.random.random, self.used
        at = int(draw() * len(used))
        c = used[at]
        if not self.uses[c]:  # fell out of use
            used[at] = used[-1]
            used.pop()
            self.listed.discard(c)
            return
        members, old = self.graph.members[c], self.choice[c]
        new = members[int(draw() * len(members))]
        if new == old or self.closes(c, new):
            return
        cost, fresh = self.take(new)
        saved = self.drop(old)
        if cost - saved > -heat * log(1.0 - draw()):
            self.take(old)
            self.drop(new)
            return
        self.choice[c] = new
        self.lift(c)
        self.cost += cost - saved
        used += [k for k in fresh if k not in self.listed]
        self.listed.update(fresh)


def anneal(graph: IndexedGraph, nodes: Iterable[int], random: Random, seconds: float) -> list[int]:
    """Return the best nodes found from these on in `seconds`; heat falls from a typical price to a twentieth."""
    start, walk, moves = perf_counter(), Walk(graph, nodes, random), 0
    typical = walk.cost / (len(walk.used) or 1)
    while walk.used and (part := (perf_counter() - start) / max(seconds, 1e-3)) < 1:
        heat = typical * 0.05**part
        for _ in range(MOVES):
            walk.step(heat)
        moves += MOVES
        if walk.cost < walk.least:
            walk.best, walk.least = walk.nodes(), walk.cost
        if moves % ROUND == 0:
            walk.settle(walk.nodes())
    return walk.best
