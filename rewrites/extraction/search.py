"""The search for one part of a problem: greedy, landmark bound, relaxation with cuts, 0/1 program, neighbourhoods.

Every stage ends either with a proof or with a better program, a better bound, and a smaller graph: a node that cannot be in
any program cheaper than the best so far is dropped, and what is left is presolved again.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
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
    """The best program of one connected graph; `floor` is what every program outside the graph that is left costs at least."""

    def __init__(self, graph: Graph, budgets: Sequence[float], until: float, gap: float, deep: bool) -> None:
        self.graph, self.budgets, self.until, self.gap, self.deep = graph, budgets, until, gap, deep
        self.random = Random(len(graph.cls))
        self.best: list[int] = []
        self.cost, self.bound, self.floor, self.greedy = inf, 0.0, inf, inf
        self.pool: list[list[int]] = []

    @property
    def proved(self) -> float:
        return min(self.bound, self.floor, self.cost)

    @property
    def done(self) -> bool:
        return self.proved >= self.cost * (1 - self.gap) or perf_counter() >= self.until

    @property
    def left(self) -> float:
        return self.until - perf_counter()

    def offer(self, nodes: Iterable[int]) -> bool:
        """Take a set of nodes as the new best if it derives the roots at less cost."""
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

    def fix(self, value: float, spare: Sequence[float]) -> bool:
        """Drop the nodes that no better program uses. True if the graph was replaced by a much smaller one."""
        self.bound = max(self.bound, value)
        keep = [i for i, s in enumerate(spare) if value + s < self.cost * (1 - ULP)]
        if len(keep) > 0.9 * len(self.graph.cls):
            return False
        self.floor = min(self.floor, self.cost * (1 - ULP))
        small = presolve(self.graph.keep(keep), self.budgets)
        if small is None:
            self.bound = inf
            return False
        self.graph, self.pool = small, []
        return True

    def run(self) -> Found:
        """Greedy, then bound and shrink as long as that helps, then the programs."""
        self.first()
        self.greedy = self.cost
        while not self.done and (self.cheap() or self.programs()):
            if not self.budgets and len(split(self.graph)) > 1:
                part = optimise(self.graph, (), self.until, self.gap, self.deep)
                if part.cost < self.cost * (1 - ULP):
                    self.best, self.cost = part.nodes, part.cost
                self.bound = max(self.bound, part.bound)
                break
        return Found(self.best, self.cost, self.proved, self.greedy)

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
            typical = sum(self.graph.price) / (len(self.graph.cls) or 1)
            for step in range(-6, 8):
                charge = [0.0, *(typical * 4.0 ** step * len(self.graph.cls) / (b or 1.0) for b in self.budgets)]
                yield [cost[0] + sum(map(mul, charge, cost)) for cost in self.graph.cost]

    def cheap(self) -> bool:
        """Landmark bounds and the programs they guide to. True if the graph shrank."""
        for thorough in (True, False):
            dual = landmarks.bound(self.graph, self.graph.price, thorough)
            self.pool += dual.landmarks
            self.guide([s + 1e-3 * p for s, p in zip(dual.spare, self.graph.price, strict=True)])
            if self.fix(dual.value, dual.spare):
                return True
            if self.done:
                return False
        return False

    def programs(self) -> bool:
        """The relaxation with cuts, the 0/1 program and neighbourhoods. True if the graph shrank: start again."""
        program = Program(self.graph, self.budgets)
        for landmark in self.pool:
            program.cut(landmark)
        if self.relaxed(program):
            return True
        if self.deep and len(self.graph.cls) > 1500:
            before = self.cost
            self.neighbours(self.left / 2)
            if self.cost < before:
                return self.cheap()
        if not self.done:
            self.integral(program)
        if self.deep and not self.done:
            self.neighbours(self.left)
        return False

    def relaxed(self, program: Program) -> bool:
        """Cut the relaxation until that stops helping. True if the graph shrank."""
        seen: set[cuts.Cut] = set()
        values: list[float] = []
        stop = perf_counter() + self.left / 3
        while not self.done and perf_counter() < stop:
            relaxation = program.relax(self.left)
            if relaxation is None:
                break
            self.x = x = relaxation.x.tolist()
            self.guide([p * (1.001 - q) for p, q in zip(self.graph.price, x, strict=True)])
            if self.fix(relaxation.value, relaxation.spare.tolist()):
                return True
            values.append(relaxation.value)
            if len(values) > 6 and values[-1] - values[-6] < 0.02 * (self.cost - values[-1]):
                break
            fresh = {*cuts.thresholds(self.graph, x), *cuts.flows(self.graph, x, self.random)} - seen
            if not fresh:
                break
            seen |= fresh
            for landmark, c in fresh:
                program.cut(landmark, c)
        return False

    def integral(self, program: Program) -> None:
        """The 0/1 program; cycles that its answers close are cut, and it is solved again."""
        stop = perf_counter() + (self.left if len(self.graph.cls) < 1000 or not self.deep else self.left / 2)
        while not self.done and perf_counter() < stop:
            answer = program.solve(stop - perf_counter(), self.gap / 2)
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
                if self.done or not self.budgets or program.strict > 1:
                    return
                program.strict = 1e4            # over a budget by the solver's tolerance
            for landmark, c in missing:
                program.cut(landmark, c)

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
            small = presolve(graph.keep(sorted(hold | {i for c in area for i in graph.members[c]})), self.budgets)
            began = perf_counter()
            found = optimise(small, self.budgets, min(stop, began + seconds / 10), self.gap, deep=False)
            self.offer(found.nodes)
            size = min(graph.classes, int(size * 1.3) + 1) if perf_counter() - began < seconds / 50 else max(10, size * 2 // 3)

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
