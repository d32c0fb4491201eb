"""Programs of a whole model as paths over columns: a column is one program of a part between two border states, with a
method for each of its weights. A linear program over the known columns prices the budgets."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rewrites.egraph.borders import FULL
from rewrites.extraction import Extraction, Infeasible, Node, Problem, Repriced, order
from rewrites.lowering.lower import Lowering, Stored, Use
from rewrites.search.search import TIE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.optimize import LinearConstraint
    from scipy.sparse import csr_array

DualPrice = tuple[float, float, float]  # price of a second, a byte, a unit of squared error
Shared = Hashable  # content that parts share (rewrites/lowering/sharing.py)
Links = Mapping[tuple[int, Shared], float]  # the dual price that a part pays for a content
NO_LINKS: Links = MappingProxyType({})
ANSWER_GAP = 1e-5  # relative gap of a part's answer to a price
PENALTY = 1e3  # price of exceeding a whole budget, in units of `scale`


@dataclass(frozen=True, eq=False)
class ProgramShape:
    """A program of a part before its methods are chosen: its kernels and rows, and the uses of weights. Parts of equal
    structure share it."""

    fixed: tuple[Node, ...]
    uses: tuple[Use, ...]

    @property
    def key(self) -> Hashable:
        """A key that is equal for shapes of equal costs: the uses, and the kernels without their labels."""
        return self.uses, tuple((node.cls, node.children, node.time) for node in self.fixed)


class Column(NamedTuple):
    """A program of a part between two states."""

    stage: int
    spent: np.ndarray  # seconds, bytes, squared error; without shared contents
    shape: ProgramShape
    methods: tuple[int, ...]  # number of the offer that each use takes
    shared: frozenset[Shared] = frozenset()


@dataclass
class PartProblem:
    """A part between two border states, or a substitution for the parts of its span: its problem, the representations
    that each use of a weight offers, and the contents that other parts may read, too, with this part's equal share."""

    number: int
    pair: tuple[str, str]
    problem: Problem
    lowering: Lowering
    span: tuple[int, int]
    offers: dict[Use, list[tuple[Node, Node]]] = field(default_factory=dict)
    tables: dict[ProgramShape, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    shared: dict[Hashable, tuple[Shared, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stored: dict[Hashable, Node] = {node.cls: node for node in self.problem.nodes if isinstance(node.cls, Stored)}
        for node in self.problem.nodes:
            if isinstance(node.cls, Use):
                self.offers.setdefault(node.cls, []).append((node, stored[node.children[0]]))
        self.rest = [node for node in self.problem.nodes if not isinstance(node.cls, (Use, Stored))]
        self.own_errors = {node.cls: node for node in self.rest if node.error}

    @property
    def key(self) -> Hashable:
        """The structure and the states: parts with equal keys have programs of the same shapes."""
        return id(self.lowering.like or self.lowering), self.pair

    @cached_property
    def repriced(self) -> Repriced:
        """The problem with one cost column each for seconds, own bytes, squared error, and every shared content. Read
        it only after `shared` is complete."""

        def taken(node: Node) -> tuple[float, ...]:
            """Return the costs of a node: seconds, own bytes, error, and a 1 for the shared content that it stores."""
            content, _ = self.shared.get(node.cls, (None, 1.0))
            memory = node.memory if content is None else 0.0
            return node.time, memory, node.error, *(float(content == shared) for shared in self.rents)

        return Repriced(self.problem, [*map(taken, self.problem.nodes)], self.lowering.leaves)

    @cached_property
    def rents(self) -> dict[Shared, float]:
        """The contents of this part that others may read, with the bytes of this part's equal share."""
        bytes_of = {node.cls: node.memory for node in self.problem.nodes if node.cls in self.shared}
        return {content: share * bytes_of[cls] for cls, (content, share) in self.shared.items()}

    def rent(self, content: Shared, price: DualPrice, links: Links) -> float:
        """Return the price that this part pays for a shared content: its link's dual price, or an equal share of the
        bytes where there is no link."""
        return links.get((self.number, content), price[1] * self.rents[content])

    def answer(
        self,
        price: DualPrice,
        most: float,
        time_limit: float,
        links: Links = NO_LINKS,
        shapes: Iterable[ProgramShape] = (),
    ) -> tuple[ProgramShape | None, float]:
        """Return the shape of the cheapest program at these prices, or None if a known shape has it, and its bound.
        Raises Infeasible if no program leads from one state to the other."""
        known = [
            float(column.spent @ price) + sum(self.rent(content, price, links) for content in column.shared)
            for column in (self.column(0, shape, price, most, links) for shape in shapes)
            if self.worst(column) <= most
        ]
        prices = *price, *(self.rent(content, price, links) for content in self.rents)
        extraction = self.repriced.cheapest(prices, most, min(known, default=inf), time_limit, ANSWER_GAP)
        return self.shape(extraction.nodes) if extraction.nodes else None, extraction.bound

    def worst(self, column: Column) -> float:
        """Return the largest error of a column's methods."""
        _, offers = self.table(column.shape)
        return float(offers[range(len(column.methods)), list(column.methods), 2].max(initial=0.0))

    def shape(self, nodes: Iterable[Node]) -> ProgramShape:
        """Return the shape of a program: its kernels and rows, and its uses."""
        return ProgramShape(
            tuple(node for node in nodes if not isinstance(node.cls, (Use, Stored))),
            tuple(node.cls for node in nodes if isinstance(node.cls, Use)),
        )

    def fixed(self, shape: ProgramShape) -> list[Node]:
        """Return the kernels and rows of a shape with this part's own errors: a substitution's error depends on its
        input."""
        return [self.own_errors.get(node.cls, node) for node in shape.fixed]

    def table(self, shape: ProgramShape) -> tuple[np.ndarray, np.ndarray]:
        """Return the costs of the kernels, and of each offer of each use: uses x offers x 3, infinite where there is no
        such offer. Shared contents have no bytes here."""
        if shape not in self.tables:
            fixed = np.array(
                [(n.time, 0.0 if n.cls in self.shared else n.memory, n.error) for n in self.fixed(shape)]
            ).sum(0)
            offers = np.full((len(shape.uses), max((len(self.offers[u]) for u in shape.uses), default=1), 3), inf)
            for row, use in zip(offers, shape.uses, strict=True):
                row[: len(self.offers[use])] = [
                    (u.time, 0.0 if s.cls in self.shared else s.memory, u.error) for u, s in self.offers[use]
                ]
            self.tables[shape] = fixed, offers
        return self.tables[shape]

    def column(self, at: int, shape: ProgramShape, price: DualPrice, most: float, links: Links = NO_LINKS) -> Column:
        """Return the program of this shape with the methods that are cheapest at these prices, each with an error of at
        most `most`."""
        _, offers = self.table(shape)
        costs = np.where(offers[..., 2] <= most, np.nan_to_num(offers, posinf=0.0) @ price, inf)
        for row, use in zip(costs, shape.uses, strict=True) if self.shared else ():
            for method, (_, stored) in enumerate(self.offers[use]):
                if stored.cls in self.shared:
                    row[method] += self.rent(self.shared[stored.cls][0], price, links)
        return self.made(at, shape, tuple(np.argmin(costs, axis=1).tolist()))

    def made(self, at: int, shape: ProgramShape, methods: tuple[int, ...]) -> Column:
        """Make the column of a shape with these methods; a weight that several uses read is stored once."""
        fixed, offers = self.table(shape)
        spent = fixed + offers[range(len(methods)), list(methods)].sum(0)
        if len({use.weight for use in shape.uses}) < len(shape.uses):  # a weight that two uses read is stored once
            read = {s.cls: s.memory for _, s in map(self.offer, shape.uses, methods) if s.cls not in self.shared}
            spent[1] = fixed[1] + sum(read.values())
        return Column(at, spent, shape, methods, self.given(shape).union(*map(self.reads, shape.uses, methods)))

    def offer(self, use: Use, method: int) -> tuple[Node, Node]:
        """Return the nodes of a use with a method: the call, and the stored weight."""
        return self.offers[use][method]

    def given(self, shape: ProgramShape) -> frozenset[Shared]:
        """Return the shared contents that a shape reads with any methods."""
        return frozenset(self.shared[node.cls][0] for node in shape.fixed if node.cls in self.shared)

    def reads(self, use: Use, method: int) -> frozenset[Shared]:
        """Return the shared contents that an offer reads."""
        of = self.shared.get(self.offers[use][method][1].cls)
        return frozenset() if of is None else frozenset([of[0]])

    def extraction(self, column: Column, weights: DualPrice) -> Extraction:
        """Return a column as an extraction of its nodes."""
        offers = [self.offers[use][method] for use, method in zip(column.shape.uses, column.methods, strict=True)]
        choice = {node.cls: node for node in (*self.fixed(column.shape), *(node for offer in offers for node in offer))}
        nodes = order(choice, self.problem.roots)
        time, memory, error = (sum(getattr(node, name) for node in nodes) for name in ("time", "memory", "error"))
        cost = float(np.dot((time, memory, error), weights))
        return Extraction(nodes, {n.cls: n for n in nodes}, time, memory, error, cost, 0.0, 1.0, inf, 0.0, False)


class Dual(NamedTuple):
    """A solution of the linear program over columns: its value, the amount over budget, the prices of seconds, bytes
    and error, the dual value of each border row, the share of each column, and the payments of parts for shared
    contents."""

    value: float
    over: float
    price: DualPrice
    worth: np.ndarray
    shares: np.ndarray
    links: Links = NO_LINKS


@dataclass
class Master:
    """The program over columns: one path through the border states, within the budgets. Each shared content has a
    variable of its own, and a row for each part: it is stored if the part reads it."""

    stages: Sequence[PartProblem]
    weights: DualPrice
    limits: dict[int, float]  # criterion -> budget
    scale: float
    most: float  # largest error of one method
    sizes: Mapping[Shared, float] = field(default_factory=dict)  # bytes of shared contents
    columns: list[Column] = field(default_factory=list)
    seen: set[Hashable] = field(default_factory=set)

    def __post_init__(self) -> None:
        last = max(stage.span[1] for stage in self.stages)
        self.rows: dict[tuple[int, str], int] = {(-1, FULL): 0}
        for stage in self.stages:
            if stage.span[1] < last:
                self.rows.setdefault((stage.span[1], stage.pair[1]), len(self.rows))
            if stage.span[0]:
                self.rows.setdefault((stage.span[0] - 1, stage.pair[0]), len(self.rows))
        links = dict.fromkeys((stage.number, content) for stage in self.stages for content, _ in stage.shared.values())
        self.links = {link: row for row, link in enumerate(links)}

    @property
    def beside(self) -> int:
        """Number of variables beside the columns: shared contents, then the excess over each budget."""
        return len(self.sizes) + len(self.limits)

    def linked(self, readers: Sequence[tuple[int, frozenset[Shared]]], spare: int) -> "csr_array":
        """Return the rows by which a part (number) reads only stored contents. The variables are the readers, the
        shared contents, and `spare` others."""
        from scipy.sparse import csr_array

        at = {content: len(readers) + i for i, content in enumerate(self.sizes)}
        entries = [
            (self.links[number, content], i, 1.0) for i, (number, every) in enumerate(readers) for content in every
        ]
        entries += [(row, at[content], -1.0) for (_, content), row in self.links.items()]
        rows, cols, signs = zip(*entries, strict=True)
        return csr_array((signs, (rows, cols)), shape=(len(self.links), len(readers) + len(self.sizes) + spare))

    def readers(self) -> list[tuple[int, frozenset[Shared]]]:
        """Return the part of each column, and the shared contents that it reads."""
        return [(self.stages[column.stage].number, column.shared) for column in self.columns]

    def ends(self, stage: int) -> tuple[int | None, int | None]:
        """Return the rows that a column of this stage leaves and reaches."""
        (first, last), (before, after) = self.stages[stage].span, self.stages[stage].pair
        return self.rows.get((first - 1, before)), self.rows.get((last, after))

    def add(self, column: Column) -> bool:
        """Add a column; False if an equal one is already there."""
        key = column.stage, column.shape, column.methods
        new = key not in self.seen
        if new:
            self.seen.add(key)
            self.columns.append(column)
        return new

    def flow(self) -> tuple["csr_array", np.ndarray]:
        """Return the rows by which each border state is left as often as it is reached, and the model is entered
        once."""
        from scipy.sparse import csr_array

        entries = [
            (row, at, sign)
            for at, column in enumerate(self.columns)
            for row, sign in zip(self.ends(column.stage), (-1.0, 1.0), strict=True)
            if row is not None
        ]
        rows, cols, signs = zip(*entries, strict=True)
        needed = np.zeros(len(self.rows))
        needed[0] = -1.0
        return csr_array((signs, (rows, cols)), shape=(len(self.rows), len(self.columns) + self.beside)), needed

    @property
    def preferred(self) -> DualPrice:
        """Weights by which programs are chosen: among those of equal cost, the one with fewer bytes. Bounds use
        `weights` alone."""
        return self.weights[0], self.weights[1] + TIE, self.weights[2]

    def costs(self, weights: DualPrice) -> tuple[np.ndarray, np.ndarray]:
        """Return the cost of each column, in units of `scale`, and its use of each budget, as a share. The excess over
        a budget has a penalty."""
        spent = np.array([column.spent for column in self.columns])
        shares = np.array([spent[:, criterion] / (limit or 1.0) for criterion, limit in self.limits.items()])
        extra, held = len(self.limits), np.array([*self.sizes.values()])
        taken = np.array([held * (criterion == 1) / (limit or 1.0) for criterion, limit in self.limits.items()])
        return (
            np.r_[spent @ weights / self.scale, held * weights[1] / self.scale, np.full(extra, PENALTY)],
            np.hstack([shares.reshape(extra, len(self.columns)), taken.reshape(extra, len(held)), -np.eye(extra)]),
        )

    def relax(self) -> Dual:
        """Solve the linear program over the known columns; return its cost and dual prices. Raises Infeasible if no
        path leads through the model."""
        from scipy.optimize import linprog

        cost, spent = self.costs(self.weights)
        flow, needed = self.flow()
        most: csr_array | None = spent if self.limits else None
        ends = np.ones(len(spent)) if self.limits else None
        if self.links:
            from scipy.sparse import vstack

            most, ends = (
                vstack([*([spent] if self.limits else []), self.linked(self.readers(), len(self.limits))]),
                np.r_[np.ones(len(self.limits)), np.zeros(len(self.links))],
            )
        solution = linprog(cost, A_ub=most, b_ub=ends, A_eq=flow, b_eq=needed, bounds=(0, None), method="highs")
        if solution.x is None:
            raise Infeasible("no choice of columns covers the whole model")
        links = {
            link: max(0.0, -solution.ineqlin.marginals[len(self.limits) + row]) * self.scale
            for link, row in self.links.items()
        }
        price = list(self.weights)
        for (criterion, limit), marginal in zip(self.limits.items(), solution.ineqlin.marginals, strict=False):
            price[criterion] += max(0.0, -marginal) * self.scale / (limit or 1.0)
        used, over = len(self.columns), len(self.columns) + len(self.sizes)
        return Dual(
            solution.fun * self.scale,
            float(solution.x[over:].sum()),
            (price[0], price[1], price[2]),
            solution.eqlin.marginals * self.scale,
            solution.x[:used],
            links,
        )

    def reduced(self, column: Column, dual: Dual) -> float:
        """Return the reduced cost of a column: the change of the relaxation's value for one more of it, as a share of
        `scale`."""
        left, reached = self.ends(column.stage)
        worth = (dual.worth[reached] if reached is not None else 0.0) - (dual.worth[left] if left is not None else 0.0)
        paid = sum(dual.links[self.stages[column.stage].number, content] for content in column.shared)
        return float(column.spent @ dual.price + paid - worth) / self.scale

    def integer(self, time_limit: float) -> list[Column] | None:
        """Return the cheapest path within the budgets over the known columns; None if none was found."""
        from scipy.optimize import LinearConstraint

        cost, spent = self.costs(self.preferred)
        flow, needed = self.flow()
        whole = np.r_[np.ones(len(self.columns)), np.zeros(self.beside)]
        most = np.r_[np.ones(len(self.columns) + len(self.sizes)), np.zeros(len(self.limits))]
        rules = [LinearConstraint(flow, needed, needed)]
        rules += [LinearConstraint(spent, -np.inf, 1.0)] if self.limits else []
        rules += self.link_rules(self.readers(), len(self.limits))
        if (shares := solve_whole(cost, rules, whole, (0, most), time_limit)) is None:
            return None
        chosen = [column for column, share in zip(self.columns, shares, strict=False) if share > 0.5]
        return sorted(chosen, key=lambda column: self.stages[column.stage].span)

    def rounded(self, dual: Dual) -> list[Column]:
        """Return the path that takes the largest share at every border state, whatever its cost."""
        by_row: dict[int | None, list[tuple[float, int]]] = {}
        for at, (column, share) in enumerate(zip(self.columns, dual.shares, strict=True)):
            by_row.setdefault(self.ends(column.stage)[0], []).append((float(share), at))
        path, row = list[Column](), self.rows.get((-1, FULL))
        while row is not None:
            path.append(self.columns[max(by_row[row])[1]])
            row = self.ends(path[-1].stage)[1]
        return path

    def reassign_methods(self, path: Sequence[Column], time_limit: float) -> list[Column] | None:
        """Return the shapes of a path with the cheapest methods within the budgets: a knapsack over all uses at once.
        None if none was found."""
        from scipy.optimize import LinearConstraint

        stages = [self.stages[column.stage] for column in path]
        tables = [stage.table(column.shape) for stage, column in zip(stages, path, strict=True)]
        offers = list_offers([table for _, table in tables], self.most)
        if not offers:
            return list(path)
        spent = np.array([*(offer.spent for offer in offers), *((0.0, size, 0.0) for size in self.sizes.values())])
        fixed = np.sum([table[0] for table in tables], axis=0)
        reads = (
            [(stages[at].number, stages[at].reads(path[at].shape.uses[use], method)) for at, use, method, _ in offers]
            if self.links
            else []
        )
        rules = [LinearConstraint(choose_one(offers, len(spent)), 1.0, 1.0), *self.link_rules(reads, 0)]
        rules += self.budget_rules(spent, fixed)
        there = frozenset().union(*(stage.given(column.shape) for stage, column in zip(stages, path, strict=True)))
        least = np.r_[np.zeros(len(offers)), [float(content in there) for content in self.sizes]]
        whole = np.r_[np.ones(len(offers)), np.zeros(len(self.sizes))]
        cost = spent @ self.preferred / self.scale
        if (shares := solve_whole(cost, rules, whole, (least, 1), time_limit)) is None:
            return None
        taken = [offer for offer, share in zip(offers, shares, strict=False) if share > 0.5]
        return [
            stage.made(column.stage, column.shape, tuple(offer.method for offer in taken if offer.at == at))
            for at, (stage, column) in enumerate(zip(stages, path, strict=True))
        ]

    def budget_rules(self, spent: np.ndarray, fixed: np.ndarray) -> "list[LinearConstraint]":
        """Return the constraints that costs of variables, beside fixed ones, are within the budgets."""
        from scipy.optimize import LinearConstraint

        return [
            LinearConstraint(spent[:, [criterion]].T / (limit or 1.0), -np.inf, 1.0 - fixed[criterion] / (limit or 1.0))
            for criterion, limit in self.limits.items()
        ]

    def link_rules(self, readers: Sequence[tuple[int, frozenset[Shared]]], spare: int) -> "list[LinearConstraint]":
        """Return the constraint that readers read only stored contents; an empty list where no content is shared."""
        from scipy.optimize import LinearConstraint

        return [LinearConstraint(self.linked(readers, spare), -np.inf, 0.0)] if self.links else []

    def cost(self, path: Sequence[Column] | None, weights: DualPrice | None = None) -> float:
        """Return the cost of a path; infinite where it is over a budget."""
        if path is None:
            return inf
        spent = np.sum([column.spent for column in path], axis=0)
        spent[1] += sum(self.sizes[content] for content in frozenset().union(*(column.shared for column in path)))
        within = all(spent[criterion] <= limit * (1 + 1e-9) for criterion, limit in self.limits.items())
        return float(spent @ (weights or self.weights)) if within else inf


class Offer(NamedTuple):
    """A representation that a use of a weight in a column of a path may have, with its costs."""

    at: int
    use: int
    method: int
    spent: np.ndarray


def list_offers(tables: Sequence[np.ndarray], most: float) -> list[Offer]:
    """Return the representations that the uses of a path may have, from tables of their costs, uses x offers x 3: with
    an error of `most` at most."""
    return [
        Offer(at, use, method, spent)
        for at, table in enumerate(tables)
        for use, row in enumerate(table)
        for method, spent in enumerate(row)
        if spent[2] <= most
    ]


def choose_one(offers: Sequence[Offer], variables: int) -> "csr_array":
    """Return a row for each use, with a 1 for each of its offers, which are the first of `variables` variables."""
    from scipy.sparse import csr_array

    row = {key: number for number, key in enumerate(dict.fromkeys(offer[:2] for offer in offers))}
    return csr_array(
        (np.ones(len(offers)), ([row[offer[:2]] for offer in offers], range(len(offers)))), shape=(len(row), variables)
    )


def solve_whole(
    cost: np.ndarray,
    rules: "Sequence[LinearConstraint]",
    whole: np.ndarray,
    bounds: "tuple[ArrayLike, ArrayLike]",
    time_limit: float,
) -> np.ndarray | None:
    """Return the cheapest values of variables between their bounds, integers where `whole` is 1; None if no solution
    was found."""
    from scipy.optimize import Bounds, milp

    values: np.ndarray | None = milp(
        cost,
        constraints=rules,
        integrality=whole,
        bounds=Bounds(*bounds),
        options=dict(time_limit=time_limit, mip_rel_gap=1e-4),
    ).x
    return values
