"""The cheapest program of a whole model within budgets of error and memory. A linear program over columns prices the
budgets, each part answers with the program that is cheapest at these prices (Dantzig and Wolfe 1960), and what all
parts answer to one price proves a bound for every program (Geoffrion 1974)."""
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

from rewrites.approximate.columns import (
    NO_LINKS,
    Column,
    Dual,
    DualPrice,
    Links,
    Master,
    PartProblem,
    ProgramShape,
    Shared,
)
from rewrites.extraction import Infeasible
from rewrites.lowering.representations import Methods
from rewrites.lowering.sharing import find_shared, users
from rewrites.search.search import SearchSpace, Structure, lowest

SEEDS = 3                                                   # rounds of one part a structure before all are asked
PRICING_ROUNDS = 40                                         # of pricing out columns of shapes that are known
SLACK = 1e-4                                                # relative, between the relaxation and its bound
UNITS: tuple[DualPrice, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def within(space: SearchSpace, methods: Methods, **budgets: Any) -> Structure:
    """The cheapest program of a space within budgets: see Budgets.within."""
    return Budgets(space, methods).within(**budgets)


def link_stages(stages: Sequence[PartProblem]) -> dict[Shared, float]:
    """What several parts may read, with its bytes; every stage is told what of it it offers, and its share."""
    counted = users((stage.number, stage.lowering, stage.problem) for stage in stages)
    sizes: dict[Shared, float] = {}
    for stage in stages:
        for node in stage.problem.nodes:
            if (content := find_shared(stage.lowering, node.cls)) is not None and counted[content] > 1:
                stage.shared[node.cls], sizes[content] = (content, 1 / counted[content]), node.memory
    return sizes


class Budgets:
    """The programs of a space where `methods` gives what each use of a weight may be stored by. Searches share the
    shapes of programs that they find."""

    def __init__(self, space: SearchSpace, methods: Methods) -> None:
        self.space, self.pool, self.seeded = space, dict[Hashable, dict[Hashable, ProgramShape]](), set[DualPrice]()
        self.stages = [PartProblem(number, (before, after), space.problem(number, before, after, methods),
                                   space.lowering(number, before), space.span(number))
                       for number, before, after in space.ways()]
        self.sizes = link_stages(self.stages)

    def within(self, error: float | None = None, memory: float | None = None, weights: DualPrice = (1, 0, 0),
               time_limit: float = 10.0, gap: float = 1e-3) -> Structure:
        """The cheapest program, by weights of seconds, bytes and squared error, whose squared errors add to at most
        `error` and whose weights take at most `memory` bytes; every program costs at least its `bound`. Stops at a
        relative `gap` (infinite: nothing is proved), or at the time limit with the best so far. Raises Infeasible where
        no program was found within the budgets."""
        start = time.perf_counter()
        limits = {criterion: limit for criterion, limit in ((2, error), (1, memory)) if limit is not None}
        found = Budgeted(self.stages, weights, limits, start + time_limit, self.pool, self.sizes)
        found.run(gap, 0 if weights in self.seeded else 1 if self.seeded else SEEDS)
        self.seeded.add(weights)
        if found.best is None:
            raise Infeasible(f"no program within squared error {error} and {memory} bytes of weights: the closest is "
                             f"over by {found.over:.3g} of a budget")
        chosen = [self.stages[column.stage].extraction(column, weights) for column in found.best]
        route = [(self.stages[column.stage].number, self.stages[column.stage].pair) for column in found.best]
        return self.space.structure(route, chosen, found.bound, inf,
                                    {"within": time.perf_counter() - start}, found.master.cost(found.best))


@dataclass
class Budgeted:
    """A search within budgets. Parts of equal structure share the shapes of programs that are known."""

    stages: list[PartProblem]
    weights: DualPrice
    limits: dict[int, float]                                # criterion -> budget
    until: float
    pool: dict[Hashable, dict[Hashable, ProgramShape]]
    sizes: Mapping[Shared, float] = field(default_factory=dict)
    best: list[Column] | None = None
    bound: float = -inf
    over: float = 0.0

    @property
    def most(self) -> float:
        """The error of any one method: what is more is over budget alone. Infinite is none at all."""
        return self.limits.get(2, sys.float_info.max)

    def run(self, gap: float, seeds: int = SEEDS) -> None:
        """One stage of each structure is asked until prices settle, then all of them until the bound meets the best."""
        first = [*{stage.key: at for at, stage in enumerate(self.stages)}.values()]
        if seeds:
            self.ask(self.weights, first)
        self.master = Master(self.stages, self.weights, self.limits, self.scale, self.most, self.sizes)
        for _ in range(seeds):
            self.ask((dual := self.filled()).price, first, dual.links)
        while True:
            dual = self.filled()
            self.over = dual.over
            self.improve(dual)
            proved = dual.value - self.bound <= SLACK * dual.value   # of the relaxation; what is left is whole numbers
            if proved or self.closed(gap) or gap == inf or time.perf_counter() > self.until:
                return
            self.bound = max(self.bound, self.least(dual.price, dual.links))

    @property
    def scale(self) -> float:
        """About what a whole program costs."""
        costs: dict[int, float] = {}
        for column in self.columns(self.weights):
            stage, cost = self.stages[column.stage], float(column.spent @ self.weights)
            if not stage.own_errors: costs[stage.number] = min(cost, costs.get(stage.number, inf))
        return sum(costs.values()) or 1.0

    def closed(self, gap: float) -> bool:
        return (cost := self.master.cost(self.best)) - self.bound <= gap * cost < inf

    def ask(self, price: DualPrice, ats: Sequence[int], links: Links = NO_LINKS) -> dict[int, float]:
        """The least that each of these stages costs at these prices; what it answers joins the pool."""
        least = {}
        for at in ats:
            known = self.pool.setdefault(self.stages[at].key, {})
            with suppress(Infeasible):
                shape, least[at] = self.stages[at].answer(price, self.most, max(0.05, self.until - time.perf_counter()),
                                                          links, known.values())
                if shape is not None: known.setdefault(shape.key, shape)
        return least

    def least(self, price: DualPrice, links: Links = NO_LINKS) -> float:
        """What no program within the budgets can cost less than, by what every stage answers to these prices. What is
        shared costs its bytes less what parts pay for it."""
        answers: dict[int, dict[tuple[str, str], float]] = {stage.number: {} for stage in self.stages}
        for at, least in self.ask(price, range(len(self.stages)), links).items():
            answers[self.stages[at].number][self.stages[at].pair] = least
        paid = sum((price[criterion] - self.weights[criterion]) * limit for criterion, limit in self.limits.items())
        over = sum(min(0.0, price[1] * size - sum(paid for (_, other), paid in links.items() if other == content))
                   for content, size in self.sizes.items())
        spans, numbers = {stage.number: stage.span for stage in self.stages}, sorted(answers)
        return lowest([answers[number] for number in numbers], [spans[number] for number in numbers]) - paid + over

    def filled(self) -> Dual:
        """The relaxation over every column that the known shapes make: priced out until none would lower it, or so
        often; it is of all columns there are then."""
        for price in UNITS:
            for column in self.columns(price):
                self.master.add(column)
        dual = self.master.relax()
        for _ in range(PRICING_ROUNDS):
            better = [column for column in self.columns(dual.price, dual.links)
                      if self.master.reduced(column, dual) < -1e-7]
            if not sum([self.master.add(column) for column in better]):
                break
            dual = self.master.relax()
        return dual

    def columns(self, price: DualPrice, links: Links = NO_LINKS) -> Iterator[Column]:
        """Every known shape of every stage, with the methods that are cheapest at these prices."""
        for at, stage in enumerate(self.stages):
            for shape in self.pool.get(stage.key, {}).values():
                yield stage.column(at, shape, price, self.most, links)

    def improve(self, dual: Dual) -> None:
        """A better program of whole columns, and with the methods of all its weights chosen anew; where columns fit no
        budget together, the methods alone may."""
        path = self.master.integer(0.5)
        others = [each for each in (path, self.best, self.master.rounded(dual)) if each]
        for tried in (path, *(self.master.reassign_methods(each, 0.5) for each in others)):
            if self.master.cost(tried, self.master.preferred) < self.master.cost(self.best, self.master.preferred):
                self.best = tried
