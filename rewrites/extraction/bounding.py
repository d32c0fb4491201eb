"""The search for one part of a problem: greedy, landmark bounds, relaxation with cuts, 0/1 program, neighbourhoods.

Every stage ends with a proof, or with a better program, a better bound, or a smaller graph: a node that cannot be in
any program cheaper than the best so far is dropped, and the rest is presolved again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, gcd, inf
from operator import itemgetter, mul
from random import Random
from time import perf_counter
from types import MappingProxyType
from typing import NamedTuple

from rewrites.extraction import cuts, greedy, landmarks
from rewrites.extraction.anneal import anneal
from rewrites.extraction.exact import CoveringProgram
from rewrites.extraction.indexed import IndexedGraph, find_components
from rewrites.extraction.presolve import presolve

ANNEALED_NODES = 1000  # fewest nodes for which annealing is worth its time
ULP = 1e-9  # relative difference below which costs are equal


class Found(NamedTuple):
    """The best program as nodes of the original graph, its cost, the proved bound, and the cost of the greedy
    program."""

    nodes: list[int]
    cost: float
    bound: float
    greedy: float


def optimise(
    graph: IndexedGraph | None,
    budgets: Sequence[float],
    until: float,
    gap: float,
    deep: bool = True,
    families: Mapping[int, Collection[str]] = MappingProxyType({}),
    known: float = inf,
) -> Found:
    """Return the best program of a presolved graph: its independent parts, small ones first, share the time.

    Budgets tie the parts together: then the graph is searched as a whole. If there is only one part, programs that cost
    `known` or more are not searched for, so there may be no nodes."""
    total = Found([], 0.0, 0.0, 0.0)
    if graph is None:
        return Found([], inf, inf, inf)
    if budgets:
        return Search(graph, budgets, until, gap, deep, families, known).run()
    parts = sorted(find_components(graph), key=lambda part: len(part.cls))
    left = sum(len(part.cls) for part in parts)
    for part in parts:
        if len(part.cls) == part.classes:  # no choice
            cost = sum(part.price)
            one = Found([o for origin in part.origin for o in origin], cost, cost, cost)
        else:
            now = perf_counter()
            one = Search(
                part,
                (),
                now + (until - now) * len(part.cls) / left,
                gap,
                deep,
                families,
                known if len(parts) == 1 else inf,
            ).run()
        left -= len(part.cls)
        total = Found(
            total.nodes + one.nodes, total.cost + one.cost, total.bound + one.bound, total.greedy + one.greedy
        )
    return total


class Search:
    """The search for the best program of one graph; `floor` is the least cost of a program outside the remaining part
    of it."""

    def __init__(
        self,
        graph: IndexedGraph,
        budgets: Sequence[float],
        until: float,
        gap: float,
        deep: bool,
        families: Mapping[int, Collection[str]] = MappingProxyType({}),
        known: float = inf,
    ) -> None:
        self.budgets, self.until, self.gap, self.deep = budgets, until, gap, deep
        self.families = families
        self.random = Random(len(graph.cls))
        self.best: list[int] = []
        self.sizes = dict(area=100, core=200, cross=100)  # sizes of neighbourhoods
        self.cost, self.floor, self.greedy = known, inf, inf
        whole = all(p.is_integer() for p in graph.price)
        self.grain = float(gcd(*map(int, graph.price))) if whole else 0.0  # costs are multiples of it
        self.enter(graph)

    def enter(self, graph: IndexedGraph) -> None:
        """Continue the search in this graph."""
        self.graph, self.bound = graph, 0.0
        self.duals: list[landmarks.LandmarkBound] = []
        self.detours: list[list[float]] = []
        self.rows: CoveringProgram | None = None
        self.tried: set[cuts.CuttingPlane] = set()
        self.elite: dict[frozenset[int], float] = {}  # the best programs so far

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - perf_counter()

    @property
    def proved(self) -> float:
        """The bound; if all costs are multiples of a number, rounded up to one."""
        bound = min(self.bound, self.floor, self.cost)
        return min(ceil(bound / self.grain - 1e-6) * self.grain, self.cost) if self.grain and bound < inf else bound

    @property
    def done(self) -> bool:
        """True if the best solution is proved within the gap, or no time is left."""
        return self.proved >= self.cost * (1 - self.gap) or self.left <= 0

    def run(self) -> Found:
        """Run greedy programs, then bounds, relaxation and improvement, from the start again when the graph has
        shrunk."""
        self.first()
        self.greedy = self.cost
        self.learn(landmarks.bound_by_landmarks(self.graph, self.graph.price, landmarks.QUICK))
        while not self.done and (self.cheap() or self.walked() or self.relaxed(self.left / 3) or self.improved()):
            if not self.budgets and len(find_components(self.graph)) > 1:
                part = optimise(self.graph, (), self.until, self.gap, self.deep, self.families)
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
        self.elite[frozenset(chosen)] = cost
        if cost >= self.cost * (1 - ULP) or any(s > b * (1 + ULP) for s, b in zip(spent, self.budgets, strict=True)):
            return False
        self.best = [o for i in chosen for o in self.graph.origin[i]]
        self.cost = cost
        return True

    def guide(self, price: Sequence[float]) -> None:
        """Offer the greedy program at these prices."""
        self.offer(greedy.trees(self.graph, price)[0].values())

    def scatter(self, price: Sequence[float], seconds: float, most: int = 1000) -> None:
        """Offer greedy programs at these prices with noise."""
        stop = perf_counter() + seconds
        for _ in range(most):
            if self.done or perf_counter() > stop:
                break
            noise = self.random.choice((0.2, 0.6, 1.5))
            noisy = [p * (1 + noise * self.random.random()) for p in price]
            self.offer(
                (
                    greedy.dag(self.graph, noisy) if self.random.random() < 0.7 else greedy.trees(self.graph, noisy)[0]
                ).values()
            )
        self.elite = dict(sorted(self.elite.items(), key=itemgetter(1))[:20])

    def first(self) -> None:
        """Offer greedy programs: by trees, by sets, and at prices that charge for the budgets until they are met."""
        for price in self.charged():
            before = self.cost
            self.guide(price)
            self.offer(greedy.dag(self.graph, price).values())
            if before < inf and self.cost == before:
                break

    def charged(self) -> Iterator[list[float]]:
        """Yield the prices themselves, then with rising charges for the budgeted resources."""
        yield self.graph.price
        if self.budgets and self.cost == inf:
            size = len(self.graph.cls)
            typical = sum(self.graph.price) / (size or 1)
            for step in range(-6, 8):
                charge = [1.0, *(typical * 4.0**step * size / (b or 1.0) for b in self.budgets)]
                yield [sum(map(mul, charge, cost)) for cost in self.graph.cost]

    def learn(self, dual: landmarks.LandmarkBound) -> None:
        """Store a bound; the latest few are enough."""
        self.bound = max(self.bound, dual.value)
        self.duals = [*self.duals, dual][-6:]
        self.detours = [*self.detours, landmarks.detours(self.graph, dual.spare)][-6:]

    def shrunk(self) -> bool:
        """Drop the nodes that no better program uses. True if that made a much smaller graph."""
        better = self.cost - 0.999 * self.grain if self.grain else self.cost * (1 - ULP)
        keep = set(range(len(self.graph.cls)))
        for dual, detour in zip(self.duals, self.detours, strict=True):
            keep = {i for i in keep if dual.value + detour[i] < better}
        if len(keep) > 0.9 * len(self.graph.cls):
            return False
        self.floor = min(self.floor, self.cost)
        small = presolve(self.graph.keep(sorted(keep)), self.budgets, self.until)
        if small is None:
            self.bound = inf
            return False
        self.enter(small)
        return True

    def cheap(self) -> bool:
        """Compute landmark bounds, quick ones first, and offer the programs that they guide to. True if the graph
        shrank."""
        if self.duals and self.shrunk():
            return True
        for steps in (30, 10, 3, 1):
            began = perf_counter()
            dual = landmarks.bound_by_landmarks(self.graph, self.graph.price, steps, until=began + self.left / 10)
            self.learn(dual)
            self.guide([s + 1e-3 * p for s, p in zip(dual.spare, self.graph.price, strict=True)])
            if self.shrunk():
                return True
            if self.done or perf_counter() - began > 0.1 * self.left:
                break
        for price in (self.graph.price, self.mixed(dual.spare)):
            self.scatter(price, self.left / 40, len(self.graph.cls) // 10)
        return self.shrunk()

    def mixed(self, spare: Sequence[float]) -> list[float]:
        """Return prices that prefer the nodes which a bound finds cheap."""
        return [s + 0.1 * p for s, p in zip(spare, self.graph.price, strict=True)]

    def walked(self, share: float = 0.1) -> bool:
        """Anneal the best program, where the graph is large. True if the graph shrank."""
        size = len(self.graph.cls)
        if self.deep and not self.budgets and size > ANNEALED_NODES:
            self.offer(anneal(self.graph, self.now(), self.random, min(share * self.left, size / 5000)))
        return self.shrunk()

    def now(self) -> set[int]:
        """Return the nodes of the best program that are left in the graph."""
        best = set(self.best)
        return {i for i, origin in enumerate(self.graph.origin) if best.issuperset(origin)}

    @property
    def program(self) -> CoveringProgram:
        """The rows of the graph with the landmarks so far; those of the best bound are in use from the start."""
        if self.rows is None:
            self.rows = CoveringProgram(self.graph, self.budgets)
            for k, dual in enumerate(sorted(self.duals, key=lambda dual: -dual.value)):
                for landmark in dual.landmarks:
                    self.rows.cut(landmark, age=-1 if k else 0)
            for nodes in self.family_cuts():
                self.rows.cut(nodes)
        return self.rows

    def relaxed(self, seconds: float) -> bool:
        """Cut the linear relaxation until that stops helping. True if the graph shrank."""
        if self.budgets and len(self.graph.cls) < 200:
            return False  # the 0/1 program is as quick
        values: list[float] = []
        stop = perf_counter() + seconds
        while not self.done and perf_counter() < stop:
            relaxation = self.program.relax(stop - perf_counter())
            if relaxation is None:
                break
            x = relaxation.x.tolist()
            price = [p * (1.001 - q) for p, q in zip(self.graph.price, x, strict=True)]
            self.guide(price)
            self.scatter(price, seconds / 40, len(self.graph.cls) // 100)
            self.learn(landmarks.LandmarkBound(relaxation.value, relaxation.spare.tolist(), []))
            if self.shrunk():
                return True
            values.append(relaxation.value)
            if len(values) > 6 and values[-1] - values[-6] < 0.02 * (self.cost - values[-1]):
                break
            if self.program.wake(relaxation.x) > 50:
                continue
            fresh = {*cuts.thresholds(self.graph, x), *cuts.flows(self.graph, x, self.random)} - self.tried
            if not fresh and not self.program.wake(relaxation.x):
                break
            self.tried |= fresh
            for landmark, c in fresh:
                self.program.cut(landmark, c)
        return False

    def family_cuts(self) -> Iterator[list[int]]:
        """Yield, for each leaf that every program uses, the nodes whose classes derive from it: one of them is
        chosen."""
        of: dict[str, list[int]] = defaultdict(list)
        for i, origin in enumerate(self.graph.origin):
            for leaf in {leaf for o in origin for leaf in self.families.get(o, ())}:
                of[leaf].append(i)
        for nodes in of.values():
            others = set(range(len(self.graph.cls))).difference(nodes)
            if not self.graph.roots <= self.graph.derive(sorted(others)).keys():
                yield nodes

    def improved(self) -> bool:
        """Run the 0/1 program, and neighbourhoods of the best program. True if the graph shrank: start again."""
        small = len(self.graph.cls) < 800
        if small or not self.deep:
            self.integral(self.left * (0.6 if self.deep else 1))
        while self.deep and not self.done:
            if self.walked(0.2):
                return True
            self.neighbours(self.left / 3)
            if self.shrunk():
                return True
            if not small and not self.done:
                if self.relaxed(self.left / 3):
                    return True
                if len(self.graph.cls) < 5000:
                    self.integral(self.left / 3)
        return False

    def integral(self, seconds: float) -> None:
        """Solve the 0/1 program; cycles in its answers are cut, and it is solved again."""
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
                self.program.strict = 1e4  # over a budget by the solver's tolerance
            for landmark, c in missing:
                self.program.cut(landmark, c)

    def neighbours(self, seconds: float) -> None:
        """Solve exactly the problems in which the best program may change in one neighbourhood alone; sizes follow the
        time."""
        stop = perf_counter() + seconds
        graph = replace(self.graph, origin=[(i,) for i in range(len(self.graph.cls))])
        while not self.done and perf_counter() < stop:
            now = self.now()
            choice = greedy.trees(graph, [p * (1e-6 if i in now else 1) for i, p in enumerate(graph.price)])[0]
            kind = self.random.choice((self.area, self.core, self.cross))
            size = self.sizes[kind.__name__]
            began = perf_counter()
            keep = now | kind(now, size)
            todo = [*graph.roots, *(k for i in keep for k in graph.kids[i])]
            keep.update(choice[c] for c in graph.below(todo, choice))
            small = presolve(graph.keep(sorted(keep)), self.budgets)
            answer = optimise(small, self.budgets, min(stop, began + seconds / 5), self.gap, deep=False)
            self.offer(answer.nodes)
            quick = perf_counter() - began < seconds / 25
            self.sizes[kind.__name__] = min(len(graph.cls), int(size * 1.3) + 1) if quick else max(20, size * 2 // 3)

    def core(self, now: set[int], size: int) -> set[int]:
        """Return about `size` nodes that add least to one of the bounds."""
        spare = [min(d, self.cost) for d in self.random.choice(self.detours)]
        noise = max(spare) * 0.02
        key = [s + noise * self.random.random() for s in spare]
        return set(sorted(range(len(key)), key=key.__getitem__)[:size])

    def cross(self, now: set[int], size: int) -> set[int]:
        """Return the nodes of some of the best programs."""
        self.scatter(self.mixed(self.random.choice(self.duals).spare), 0.2, 10)
        programs = list(self.elite)
        return set().union(*self.random.sample(programs, min(len(programs), 1 + size // 50)))

    def area(self, now: set[int], size: int) -> set[int]:
        """Return about `size` nodes, those of classes around a random one of the chosen nodes, over children and
        users."""
        graph = self.graph
        start = graph.cls[self.random.choice(sorted(now))] if now else self.random.randrange(graph.classes)
        seen, queue = {start}, [start]
        out: set[int] = set()
        for c in queue:
            if len(out) >= size:
                break
            out.update(graph.members[c])
            near = [k for i in graph.members[c] for k in graph.kids[i]] + [graph.cls[i] for i in graph.users[c]]
            self.random.shuffle(near)
            for k in near:
                if k not in seen:
                    seen.add(k)
                    queue.append(k)
        return out
