"""Programs of a whole model as paths over columns: a column is one program of a part between two border states, with a
method for each of its weights. A linear program over the columns there are prices the budgets."""
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import numpy as np

from rewrites.borders import FULL
from rewrites.extraction import Extraction, Infeasible, Node, Problem, extract, order
from rewrites.lower import Lowering, Stored, Use

Price = tuple[float, float, float]                          # of a second, a byte, a unit of squared error
PENALTY = 1e3                                               # times what all costs: price of going over a whole budget


@dataclass(frozen=True, eq=False)
class Shape:
    """A program of a part before its methods are chosen: its kernels and rows, and the uses of weights. Parts of equal
    structure share it."""

    fixed: tuple[Node, ...]
    uses: tuple[Use, ...]

    @property
    def key(self) -> Any:
        return self.uses, tuple((node.cls, node.children, node.time) for node in self.fixed)


class Column(NamedTuple):
    """A program of a part between two states."""

    stage: int
    spent: np.ndarray                                       # seconds, bytes, squared error
    shape: Shape
    methods: tuple[int, ...]                                # which offer each use takes


@dataclass
class Stage:
    """A part between two border states: its problem, and what each use of a weight may be stored by."""

    number: int
    pair: tuple[str, str]
    problem: Problem
    lowering: Lowering
    offers: dict[Use, list[tuple[Node, Node]]] = field(default_factory=dict)
    tables: dict[Shape, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stored: dict[Any, Node] = {node.cls: node for node in self.problem.nodes if isinstance(node.cls, Stored)}
        for node in self.problem.nodes:
            if isinstance(node.cls, Use):
                self.offers.setdefault(node.cls, []).append((node, stored[node.children[0]]))
        self.rest = [node for node in self.problem.nodes if not isinstance(node.cls, (Use, Stored))]

    @property
    def key(self) -> Any:
        """What programs have the same shape: the structure and the states."""
        return id(self.lowering.like or self.lowering), self.pair

    def reduced(self, price: Price, most: float) -> Problem:
        """The problem with the offers alone that may be the cheapest at these prices: with an error of at most `most`, and less
        costly than any that takes fewer bytes."""
        nodes, kept = list(self.rest), dict[Any, Node]()
        for offers in self.offers.values():
            least = inf
            by_size = sorted((price[1] * s.memory, price[0] * u.time + price[2] * u.error, at)
                             for at, (u, s) in enumerate(offers) if u.error <= most)
            for _, cost, at in by_size:
                if cost < least:
                    least, (use, stored) = cost, offers[at]
                    nodes.append(use)
                    kept[stored.cls] = stored
        return Problem([*nodes, *kept.values()], self.problem.roots)

    def answer(self, price: Price, most: float, time_limit: float) -> Extraction:
        """The cheapest program at these prices, with its bound. Raises Infeasible where no program leads from one state to
        the other."""
        return extract(self.reduced(price, most), weights=price, families=self.lowering.leaves, time_limit=time_limit, gap=1e-5)

    def shape(self, extraction: Extraction) -> Shape:
        return Shape(tuple(node for node in extraction.nodes if not isinstance(node.cls, (Use, Stored))),
                     tuple(node.cls for node in extraction.nodes if isinstance(node.cls, Use)))

    def table(self, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
        """What the kernels spend, and what each offer of each use does: uses x offers x 3, infinite where there is none."""
        if shape not in self.tables:
            fixed = np.array([(n.time, n.memory, n.error) for n in shape.fixed]).sum(0)
            offers = np.full((len(shape.uses), max((len(self.offers[u]) for u in shape.uses), default=1), 3), inf)
            for row, use in zip(offers, shape.uses, strict=True):
                row[:len(self.offers[use])] = [(u.time, s.memory, u.error) for u, s in self.offers[use]]
            self.tables[shape] = fixed, offers
        return self.tables[shape]

    def column(self, at: int, shape: Shape, price: Price, most: float) -> Column:
        """The program of this shape with the methods that are cheapest at these prices, each with an error of at most `most`."""
        _, offers = self.table(shape)
        costs = np.where(offers[..., 2] <= most, np.nan_to_num(offers, posinf=0.0) @ price, inf)
        return self.made(at, shape, tuple(np.argmin(costs, axis=1).tolist()))

    def made(self, at: int, shape: Shape, methods: tuple[int, ...]) -> Column:
        fixed, offers = self.table(shape)
        return Column(at, fixed + offers[range(len(methods)), list(methods)].sum(0), shape, methods)

    def extraction(self, column: Column, weights: Price) -> Extraction:
        """A column as an extraction: the nodes that it stands for."""
        offers = [self.offers[use][method] for use, method in zip(column.shape.uses, column.methods, strict=True)]
        choice = {node.cls: node for node in (*column.shape.fixed, *(node for offer in offers for node in offer))}
        nodes = order(choice, self.problem.roots)
        time, memory, error = (sum(getattr(node, name) for node in nodes) for name in ("time", "memory", "error"))
        cost = float(np.dot((time, memory, error), weights))
        return Extraction(nodes, {n.cls: n for n in nodes}, time, memory, error, cost, 0.0, 1.0, inf, 0.0, False)


class Dual(NamedTuple):
    """A solution of the linear program over columns: its value, how much it is over budget, the prices of what is spent,
    what a row of the border is worth, and the share of each column."""

    value: float
    over: float
    price: Price
    worth: np.ndarray
    shares: np.ndarray


@dataclass
class Master:
    """The program over columns: one path through the border states, within the budgets."""

    stages: Sequence[Stage]
    weights: Price
    limits: dict[int, float]                                # criterion -> budget
    scale: float
    most: float                                             # error of one method
    columns: list[Column] = field(default_factory=list)
    seen: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        last = max(stage.number for stage in self.stages)
        self.rows: dict[tuple[int, str], int] = {(-1, FULL): 0}
        for stage in self.stages:
            if stage.number < last:
                self.rows.setdefault((stage.number, stage.pair[1]), len(self.rows))
            if stage.number:
                self.rows.setdefault((stage.number - 1, stage.pair[0]), len(self.rows))

    def ends(self, stage: int) -> tuple[int | None, int | None]:
        """The rows that a column of this stage leaves and reaches."""
        number, (before, after) = self.stages[stage].number, self.stages[stage].pair
        return self.rows.get((number - 1, before)), self.rows.get((number, after))

    def add(self, column: Column) -> bool:
        """Whether it is new."""
        key = column.stage, column.shape, column.methods
        new = key not in self.seen
        if new:
            self.seen.add(key)
            self.columns.append(column)
        return new

    def flow(self) -> tuple[Any, np.ndarray]:
        """Each border state is left as often as it is reached; the model is entered once."""
        from scipy.sparse import csr_array
        entries = [(row, at, sign) for at, column in enumerate(self.columns)
                   for row, sign in zip(self.ends(column.stage), (-1.0, 1.0), strict=True) if row is not None]
        rows, cols, signs = zip(*entries, strict=True)
        needed = np.zeros(len(self.rows))
        needed[0] = -1.0
        return csr_array((signs, (rows, cols)), shape=(len(self.rows), len(self.columns) + len(self.limits))), needed

    def costs(self) -> tuple[np.ndarray, np.ndarray]:
        """What each column costs and spends of each budget, in units of the whole; over a budget there is a penalty."""
        spent = np.array([column.spent for column in self.columns])
        shares = np.array([spent[:, criterion] / (limit or 1.0) for criterion, limit in self.limits.items()])
        extra = len(self.limits)
        return (np.r_[spent @ self.weights / self.scale, np.full(extra, PENALTY)],
                np.hstack([shares.reshape(extra, len(self.columns)), -np.eye(extra)]))

    def relax(self) -> Dual:
        from scipy.optimize import linprog
        cost, spent = self.costs()
        flow, needed = self.flow()
        found = linprog(cost, A_ub=spent if self.limits else None, b_ub=np.ones(len(spent)) if self.limits else None,
                        A_eq=flow, b_eq=needed, bounds=(0, None), method="highs")
        if found.x is None:
            raise Infeasible("no program leads through the whole model")
        price = list(self.weights)
        for (criterion, limit), marginal in zip(self.limits.items(), found.ineqlin.marginals, strict=False):
            price[criterion] += max(0.0, -marginal) * self.scale / (limit or 1.0)
        own = len(self.columns)
        return Dual(found.fun * self.scale, float(found.x[own:].sum()), (price[0], price[1], price[2]),
                    found.eqlin.marginals * self.scale, found.x[:own])

    def reduced(self, column: Column, dual: Dual) -> float:
        """What one more of it would add to the value of the relaxation, as a share of the whole."""
        left, reached = self.ends(column.stage)
        worth = (dual.worth[reached] if reached is not None else 0.0) - (dual.worth[left] if left is not None else 0.0)
        return float(column.spent @ dual.price - worth) / self.scale

    def integer(self, time_limit: float) -> list[Column] | None:
        """The cheapest path within the budgets over the columns there are; none where there is none."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        cost, spent = self.costs()
        flow, needed = self.flow()
        over = np.r_[np.full(len(self.columns), 1.0), np.zeros(len(self.limits))]
        rules = [LinearConstraint(flow, needed, needed)]
        rules += [LinearConstraint(spent, -np.inf, 1.0)] if self.limits else []
        found = milp(cost, constraints=rules, integrality=over, bounds=Bounds(0, over),
                     options=dict(time_limit=time_limit, mip_rel_gap=1e-4))
        if found.x is None:
            return None
        chosen = [column for column, share in zip(self.columns, found.x, strict=False) if share > 0.5]
        return sorted(chosen, key=lambda column: self.stages[column.stage].number)

    def rounded(self, dual: Dual) -> list[Column]:
        """The path that takes the largest share at every border state, whatever it spends."""
        by_row: dict[int | None, list[tuple[float, int]]] = {}
        for at, (column, share) in enumerate(zip(self.columns, dual.shares, strict=True)):
            by_row.setdefault(self.ends(column.stage)[0], []).append((float(share), at))
        path, row = list[Column](), self.rows.get((-1, FULL))
        while row is not None:
            path.append(self.columns[max(by_row[row])[1]])
            row = self.ends(path[-1].stage)[1]
        return path

    def polished(self, path: Sequence[Column], time_limit: float) -> list[Column] | None:
        """The same shapes with the cheapest methods within the budgets: a knapsack over every use at once."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array
        tables = [self.stages[column.stage].table(column.shape) for column in path]
        offers = [(at, use, method, spent) for at, (_, table) in enumerate(tables) for use, row in enumerate(table)
                  for method, spent in enumerate(row) if spent[2] <= self.most]
        if not offers:
            return list(path)
        one = {key: row for row, key in enumerate(dict.fromkeys(offer[:2] for offer in offers))}
        spent = np.array([offer[3] for offer in offers])
        fixed = np.sum([table[0] for table in tables], axis=0)
        choose = csr_array((np.ones(len(offers)), ([one[offer[:2]] for offer in offers], range(len(offers)))))
        rules = [LinearConstraint(choose, 1.0, 1.0)]
        rules += [LinearConstraint(spent[:, [criterion]].T / (limit or 1.0), -np.inf, 1.0 - fixed[criterion] / (limit or 1.0))
                  for criterion, limit in self.limits.items()]
        found = milp(spent @ self.weights / self.scale, constraints=rules, integrality=np.ones(len(offers)), bounds=Bounds(0, 1),
                     options=dict(time_limit=time_limit, mip_rel_gap=1e-4))
        if found.x is None:
            return None
        taken: list[list[int]] = [[] for _ in path]
        for (at, _, method, _), share in zip(offers, found.x, strict=True):
            if share > 0.5:
                taken[at].append(method)
        return [self.stages[column.stage].made(column.stage, column.shape, tuple(methods))
                for column, methods in zip(path, taken, strict=True)]

    def cost(self, path: Sequence[Column] | None) -> float:
        """What a path costs; infinite where it is over a budget."""
        if path is None:
            return inf
        spent = np.sum([column.spent for column in path], axis=0)
        within = all(spent[criterion] <= limit * (1 + 1e-9) for criterion, limit in self.limits.items())
        return float(spent @ self.weights) if within else inf
