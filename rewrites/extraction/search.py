"""The search for one part of a problem: greedy, landmark bounds, relaxation with cuts, 0/1 program, neighbourhoods.

Every stage ends with a proof, or with a better program, a better bound, or a smaller graph: a node that cannot be in any
program cheaper than the best so far is dropped, and what is left is presolved again.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil, gcd, inf
from operator import mul
from random import Random
from time import perf_counter
from typing import NamedTuple

from . import cuts, greedy, landmarks
from .exact import Program
from .graph import Graph, split
from .presolve import presolve

ULP = 1e-9                                      # costs closer than this, relatively, are the same


class Found(NamedTuple):
    """The best program as nodes of the original graph, its cost, the proved bound, and what greedy found."""
    nodes: list[int]
    cost: float
    bound: float
    greedy: float


def optimise(graph: Graph | None, budgets: Sequence[float], until: float, gap: float, deep: bool = True) -> Found:
    """The best program of a presolved graph: its independent parts, small ones first, share the time.

    Budgets tie the parts together: then the graph is searched as a whole.
    """
    found = Found([], 0.0, 0.0, 0.0)
    if graph is None:
        return Found([], inf, inf, inf)
    if budgets:
        return Search(graph, budgets, until, gap, deep).run()
    parts = sorted(split(graph), key=lambda part: len(part.cls))
    left = sum(len(part.cls) for part in parts)
    for part in parts:
        if len(part.cls) == part.classes:       # no choice
            cost = sum(part.price)
            one = Found([o for origin in part.origin for o in origin], cost, cost, cost)
        else:
            now = perf_counter()
            one = Search(part, (), now + (until - now) * len(part.cls) / left, gap, deep).run()
        left -= len(part.cls)
        found = Found(found.nodes + one.nodes, found.cost + one.cost, found.bound + one.bound, found.greedy + one.greedy)
    return found


class Search:
    """The best program of one graph; `floor` is the least cost of a program outside the part of it that is left."""

    def __init__(self, graph: Graph, budgets: Sequence[float], until: float, gap: float, deep: bool) -> None:
        self.budgets, self.until, self.gap, self.deep = budgets, until, gap, deep
        self.random = Random(len(graph.cls))
        self.best: list[int] = []
        self.cost, self.floor, self.greedy = inf, inf, inf
        whole = all(p.is_integer() for p in graph.price)
        self.grain = float(gcd(*map(int, graph.price))) if whole else 0.0      # costs are multiples of it
        self.enter(graph)

    def enter(self, graph: Graph) -> None:
        """Search this graph from now on."""
        self.graph, self.bound = graph, 0.0
        self.duals: list[landmarks.Bound] = []
        self.program: Program | None = None
        self.tried: set[cuts.Cut] = set()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - perf_counter()

    @property
    def proved(self) -> float:
        """The bound; costs that are multiples of a number round it up."""
        bound = min(self.bound, self.floor, self.cost)
        return min(ceil(bound / self.grain - 1e-6) * self.grain, self.cost) if self.grain and bound < inf else bound

    @property
    def done(self) -> bool:
        return self.proved >= self.cost * (1 - self.gap) or self.left <= 0

    def run(self) -> Found:
        """Greedy programs; then bounds, relaxation and improvement, from the start again when the graph has shrunk."""
        self.first()
        self.greedy = self.cost
        while not self.done and (self.cheap() or self.relaxed(self.left / 3) or self.improved()):
            if not self.budgets and len(split(self.graph)) > 1:
                part = optimise(self.graph, (), self.until, self.gap, self.deep)
                if part.cost < self.cost * (1 - ULP):
                    self.best, self.cost = part.nodes, part.cost
                self.bound = max(self.bound, part.bound)
                break
        return Found(self.best, self.cost, self.proved, self.greedy)

    def offer(self, nodes: Iterable[int]) -> bool:
        """Take a set of nodes as the new best if it derives the roots, within the budgets, at less cost."""
        choice = self.graph.derive(nodes)
        if not self.graph.roots <= choice.keys():
            return False
        chosen = self.graph.walk(choice)
        cost, *spent = self.graph.total(chosen)
        if cost >= self.cost * (1 - ULP) or any(s > b * (1 + ULP) for s, b in zip(spent, self.budgets, strict=True)):
            return False
        self.best = [o for i in chosen for o in self.graph.origin[i]]
        self.cost = cost
        return True

    def guide(self, price: Sequence[float]) -> None:
        """Offer the greedy program at these prices."""
        self.offer(greedy.trees(self.graph, price)[0].values())

    def first(self) -> None:
        """Greedy programs: by trees, by sets, and at prices that charge for the budgets until they are met."""
        for price in self.charged():
            before = self.cost
            self.guide(price)
            self.offer(greedy.dag(self.graph, price).values())
            if before < inf and self.cost == before:
                break

    def charged(self) -> Iterator[list[float]]:
        """The prices themselves, then with rising charges for the budgeted resources."""
        yield self.graph.price
        if self.budgets and self.cost == inf:
            size = len(self.graph.cls)
            typical = sum(self.graph.price) / (size or 1)
            for step in range(-6, 8):
                charge = [1.0, *(typical * 4.0 ** step * size / (b or 1.0) for b in self.budgets)]
                yield [sum(map(mul, charge, cost)) for cost in self.graph.cost]

    def shrunk(self) -> bool:
        """Drop the nodes that no better program uses. True if that made a much smaller graph."""
        better = self.cost - 0.999 * self.grain if self.grain else self.cost * (1 - ULP)
        keep = set(range(len(self.graph.cls)))
        for dual in self.duals:
            self.bound = max(self.bound, dual.value)
            keep = {i for i in keep if dual.value + dual.spare[i] < better}
        if len(keep) > 0.9 * len(self.graph.cls):
            return False
        self.floor = min(self.floor, self.cost)
        small = presolve(self.graph.keep(sorted(keep)), self.budgets)
        if small is None:
            self.bound = inf
            return False
        self.enter(small)
        return True

    def cheap(self) -> bool:
        """Landmark bounds, quick ones first, and the programs they guide to. True if the graph shrank."""
        if self.duals:
            return self.shrunk()
        for steps in (10 ** 9, 10, 3, 1):
            began = perf_counter()
            dual = landmarks.bound(self.graph, self.graph.price, steps, until=began + self.left / 4)
            self.duals.append(dual)
            self.guide([s + 1e-3 * p for s, p in zip(dual.spare, self.graph.price, strict=True)])
            if self.shrunk():
                return True
            if self.done or perf_counter() - began > 0.02 * self.left:
                break
        return False

    def relaxed(self, seconds: float) -> bool:
        """Cut the linear relaxation until that stops helping. True if the graph shrank."""
        if self.program is None:
            self.program = Program(self.graph, self.budgets)
            for dual in self.duals:
                for landmark in dual.landmarks:
                    self.program.cut(landmark)
        if self.budgets and len(self.graph.cls) < 200:
            return False                        # the 0/1 program is as quick
        values: list[float] = []
        stop = perf_counter() + seconds
        while not self.done and perf_counter() < stop:
            relaxation = self.program.relax(stop - perf_counter())
            if relaxation is None:
                break
            x = relaxation.x.tolist()
            self.guide([p * (1.001 - q) for p, q in zip(self.graph.price, x, strict=True)])
            self.duals = [*self.duals, landmarks.Bound(relaxation.value, relaxation.spare.tolist(), [])][-6:]
            if self.shrunk():
                return True
            values.append(relaxation.value)
            if len(values) > 6 and values[-1] - values[-6] < 0.02 * (self.cost - values[-1]):
                break
            fresh = {*cuts.thresholds(self.graph, x), *cuts.flows(self.graph, x, self.random)} - self.tried
            if not fresh:
                break
            self.tried |= fresh
            for landmark, c in fresh:
                self.program.cut(landmark, c)
        return False

    def improved(self) -> bool:
        """The 0/1 program, and neighbourhoods of the best program. True if the graph shrank: start again."""
        small = len(self.graph.cls) < 800
        if small or not self.deep:
            self.integral(self.left * (0.6 if self.deep else 1))
        while self.deep and not self.done:
            self.neighbours(self.left / 3)
            if self.shrunk():
                return True
            if not small and not self.done:
                if self.relaxed(self.left / 3):
                    return True
                self.integral(self.left / 3)
        return False

    def integral(self, seconds: float) -> None:
        """The 0/1 program; cycles that its answers close are cut, and it is solved again."""
        stop = perf_counter() + seconds
        while not self.done and perf_counter() < stop:
            answer = self.program.solve(stop - perf_counter(), self.gap / 2)
            self.bound = max(self.bound, answer.bound)
            if answer.nodes is None:
                if answer.finished:
                    self.bound = inf
                return
            self.offer(answer.nodes)
            chosen = set(answer.nodes)
            self.guide([p * (1e-3 if i in chosen else 1) for i, p in enumerate(self.graph.price)])
            missing = cuts.cycles(self.graph, answer.nodes)
            if not missing:
                if self.done or not self.budgets or self.program.strict > 1:
                    return
                self.program.strict = 1e4       # over a budget by the solver's tolerance
            for landmark, c in missing:
                self.program.cut(landmark, c)

    def neighbours(self, seconds: float) -> None:
        """Free a few classes around a random one of the best program, hold the others, and solve what is left exactly."""
        stop, size = perf_counter() + seconds, 30
        graph = replace(self.graph, origin=[(i,) for i in range(len(self.graph.cls))])
        place = {o: i for i, origin in enumerate(self.graph.origin) for o in origin}
        while not self.done and perf_counter() < stop:
            now = {place[o] for o in self.best if o in place}
            area = self.area(now, size)
            price = [p * (1e-6 if i in now else 1) for i, p in enumerate(graph.price)]
            hold = now | set(greedy.trees(graph, price)[0].values())
            free = hold.union(*(graph.members[c] for c in area))
            small = presolve(graph.keep(sorted(free)), self.budgets)
            began = perf_counter()
            found = optimise(small, self.budgets, min(stop, began + seconds / 10), self.gap, deep=False)
            self.offer(found.nodes)
            quick = perf_counter() - began < seconds / 50
            size = min(graph.classes, int(size * 1.3) + 1) if quick else max(10, size * 2 // 3)

    def area(self, now: set[int], size: int) -> set[int]:
        """About `size` classes around a random one of the chosen nodes, over children and users."""
        graph = self.graph
        start = graph.cls[self.random.choice(sorted(now))] if now else self.random.randrange(graph.classes)
        area, queue = {start}, [start]
        for c in queue:
            near = [k for i in graph.members[c] for k in graph.kids[i]] + [graph.cls[i] for i in graph.users[c]]
            self.random.shuffle(near)
            for k in near:
                if k not in area and len(area) < size:
                    area.add(k)
                    queue.append(k)
        return area
