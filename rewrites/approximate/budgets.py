"""The cheapest program of a whole model within budgets of error and memory. A linear program over columns prices the
budgets; each part answers with its cheapest program at these prices (Dantzig and Wolfe 1960). The answers of all parts
to one price prove a bound for every program (Geoffrion 1974)."""

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

SEEDS = 3  # rounds of one part a structure before all parts are solved
PRICING_ROUNDS = 40  # most rounds of pricing columns of known shapes
SLACK = 1e-4  # relative difference of the relaxation and its bound
UNITS: tuple[DualPrice, ...] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def within(space: SearchSpace, methods: Methods, **budgets: Any) -> Structure:
    """Return the cheapest program of a space within budgets: see Budgets.within."""
    return Budgets(space, methods).within(**budgets)


def link_stages(stages: Sequence[PartProblem]) -> dict[Shared, float]:
    """Return the contents that several parts may read, with their bytes. Each stage gets the shared contents that it
    offers, with its share."""
    counted = users((stage.number, stage.lowering, stage.problem) for stage in stages)
    sizes: dict[Shared, float] = {}
    for stage in stages:
        for node in stage.problem.nodes:
            if (content := find_shared(stage.lowering, node.cls)) is not None and counted[content] > 1:
                stage.shared[node.cls], sizes[content] = (content, 1 / counted[content]), node.memory
    return sizes


class Budgets:
    """The programs of a space, where `methods` gives the representations of each use of a weight. Searches share the
    shapes of programs that they find."""

    def __init__(self, space: SearchSpace, methods: Methods) -> None:
        self.space, self.pool, self.seeded = space, dict[Hashable, dict[Hashable, ProgramShape]](), set[DualPrice]()
        self.stages = [
            PartProblem(
                number,
                (before, after),
                space.problem(number, before, after, methods),
                space.lowering(number, before),
                space.span(number),
            )
            for number, before, after in space.ways()
        ]
        self.sizes = link_stages(self.stages)

    def within(
        self,
        error: float | None = None,
        memory: float | None = None,
        weights: DualPrice = (1, 0, 0),
        time_limit: float = 10.0,
        gap: float = 1e-3,
    ) -> Structure:
        """Return the cheapest program, by weights of seconds, bytes and squared error, whose squared errors add to at
        most `error` and whose weights take at most `memory` bytes; every program costs at least its `bound`. Stops at a
        relative `gap` (infinite: without a proof), or at the time limit with the best so far. Raises Infeasible if no
        program was found within the budgets."""
        start = time.perf_counter()
        limits = {criterion: limit for criterion, limit in ((2, error), (1, memory)) if limit is not None}
        search = Budgeted(self.stages, weights, limits, start + time_limit, self.pool, self.sizes)
        search.run(gap, 0 if weights in self.seeded else 1 if self.seeded else SEEDS)
        self.seeded.add(weights)
        if search.best is None:
            raise Infeasible(
                f"no program within squared error {error} and {memory} bytes of weights: the closest is "
                f"over by {search.over:.3g} of a budget"
            )
        chosen = [self.stages[column.stage].extraction(column, weights) for column in search.best]
        route = [(self.stages[column.stage].number, self.stages[column.stage].pair) for column in search.best]
        return self.space.structure(
            route, chosen, search.bound, inf, {"within": time.perf_counter() - start}, search.master.cost(search.best)
        )


@dataclass
class Budgeted:
    """A search within budgets. Parts of equal structure share the known shapes of programs."""

    stages: list[PartProblem]
    weights: DualPrice
    limits: dict[int, float]  # criterion -> budget
    until: float
    pool: dict[Hashable, dict[Hashable, ProgramShape]]
    sizes: Mapping[Shared, float] = field(default_factory=dict)
    best: list[Column] | None = None
    bound: float = -inf
    over: float = 0.0

    @property
    def most(self) -> float:
        """Largest error of any one method: a larger one is over budget alone. It is finite even without an error
        budget."""
        return self.limits.get(2, sys.float_info.max)

    def run(self, gap: float, seeds: int = SEEDS) -> None:
        """Solve one stage of each structure until prices settle, then all stages until the bound meets the best."""
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
            proved = dual.value - self.bound <= SLACK * dual.value  # relaxation solved; the rest is integrality
            if proved or self.closed(gap) or gap == inf or time.perf_counter() > self.until:
                return
            self.bound = max(self.bound, self.least(dual.price, dual.links))

    @property
    def scale(self) -> float:
        """Approximate cost of a whole program."""
        costs: dict[int, float] = {}
        for column in self.columns(self.weights):
            stage, cost = self.stages[column.stage], float(column.spent @ self.weights)
            if not stage.own_errors:
                costs[stage.number] = min(cost, costs.get(stage.number, inf))
        return sum(costs.values()) or 1.0

    def closed(self, gap: float) -> bool:
        """True if the best program costs at most the bound and the allowed gap above it."""
        return (cost := self.master.cost(self.best)) - self.bound <= gap * cost < inf

    def ask(self, price: DualPrice, ats: Sequence[int], links: Links = NO_LINKS) -> dict[int, float]:
        """Return the least cost of each of these stages at these prices; the shapes that they answer with join the
        pool."""
        least = {}
        for at in ats:
            known = self.pool.setdefault(self.stages[at].key, {})
            with suppress(Infeasible):
                shape, least[at] = self.stages[at].answer(
                    price, self.most, max(0.05, self.until - time.perf_counter()), links, known.values()
                )
                if shape is not None:
                    known.setdefault(shape.key, shape)
        return least

    def least(self, price: DualPrice, links: Links = NO_LINKS) -> float:
        """Return a lower bound of the cost of every program within the budgets, from the answers of every stage to
        these prices. Shared contents cost their bytes less the payments of the parts."""
        answers: dict[int, dict[tuple[str, str], float]] = {stage.number: {} for stage in self.stages}
        for at, least in self.ask(price, range(len(self.stages)), links).items():
            answers[self.stages[at].number][self.stages[at].pair] = least
        paid = sum((price[criterion] - self.weights[criterion]) * limit for criterion, limit in self.limits.items())
        over = sum(
            min(0.0, price[1] * size - sum(paid for (_, other), paid in links.items() if other == content))
            for content, size in self.sizes.items()
        )
        spans, numbers = {stage.number: stage.span for stage in self.stages}, sorted(answers)
        return lowest([answers[number] for number in numbers], [spans[number] for number in numbers]) - paid + over

    def filled(self) -> Dual:
        """Return the relaxation over all columns of the known shapes, after `PRICING_ROUNDS` rounds of pricing or when
        no column would lower it. It covers the columns of the last round."""
        for price in UNITS:
            for column in self.columns(price):
                self.master.add(column)
        dual = self.master.relax()
        for _ in range(PRICING_ROUNDS):
            better = [
                column for column in self.columns(dual.price, dual.links) if self.master.reduced(column, dual) < -1e-7
            ]
            if not sum([self.master.add(column) for column in better]):
                break
            dual = self.master.relax()
        return dual

    def columns(self, price: DualPrice, links: Links = NO_LINKS) -> Iterator[Column]:
        """Yield every known shape of every stage, with the methods that are cheapest at these prices."""
        for at, stage in enumerate(self.stages):
            for shape in self.pool.get(stage.key, {}).values():
                yield stage.column(at, shape, price, self.most, links)

    def improve(self, dual: Dual) -> None:
        """Update the best program: from whole columns, or with the methods of all its weights chosen again. The latter
        can fit the budgets where no path of columns does."""
        path = self.master.integer(0.5)
        others = [columns for columns in (path, self.best, self.master.rounded(dual)) if columns]
        for tried in (path, *(self.master.reassign_methods(columns, 0.5) for columns in others)):
            if self.master.cost(tried, self.master.preferred) < self.master.cost(self.best, self.master.preferred):
                self.best = tried
