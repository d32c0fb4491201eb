"""Programs of a whole model as paths over columns: a column is one program of a part between two border states, with a
method for each of its weights. A linear program over the columns there are prices the budgets."""
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

DualPrice = tuple[float, float, float]                      # of a second, a byte, a unit of squared error
Shared = Hashable                                           # what several parts may read (rewrites/lowering/sharing.py)
Links = Mapping[tuple[int, Shared], float]                  # the dual price that a part pays for it
NO_LINKS: Links = MappingProxyType({})
ANSWER_GAP = 1e-5                                           # of a part's answer to a price, relative
PENALTY = 1e3                                               # times what all costs: price of going over a whole budget


@dataclass(frozen=True, eq=False)
class ProgramShape:
    """A program of a part before its methods are chosen: its kernels and rows, and the uses of weights. Parts of equal
    structure share it."""

    fixed: tuple[Node, ...]
    uses: tuple[Use, ...]

    @property
    def key(self) -> Hashable:
        return self.uses, tuple((node.cls, node.children, node.time) for node in self.fixed)


class Column(NamedTuple):
    """A program of a part between two states."""

    stage: int
    spent: np.ndarray                                       # seconds, bytes, squared error; without what is shared
    shape: ProgramShape
    methods: tuple[int, ...]                                # which offer each use takes
    shared: frozenset[Shared] = frozenset()


@dataclass
class PartProblem:
    """A part between two border states, or a substitution for the parts of its span: its problem, what each use of a
    weight may be stored by, and what of that other parts may read, too, with this part's equal share."""

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
        """What programs have the same shape: the structure and the states."""
        return id(self.lowering.like or self.lowering), self.pair

    @cached_property
    def repriced(self) -> Repriced:
        """The problem, once it is known what parts share (`shared`): seconds, bytes of its own, squared error, and
        each thing that is shared."""
        def taken(node: Node) -> tuple[float, ...]:
            content, _ = self.shared.get(node.cls, (None, 1.0))
            own = node.memory if content is None else 0.0
            return node.time, own, node.error, *(float(content == each) for each in self.rents)
        return Repriced(self.problem, [*map(taken, self.problem.nodes)], self.lowering.leaves)

    @cached_property
    def rents(self) -> dict[Shared, float]:
        """What of this part others may read, with the bytes of this part's equal share."""
        bytes_of = {node.cls: node.memory for node in self.problem.nodes if node.cls in self.shared}
        return {content: share * bytes_of[cls] for cls, (content, share) in self.shared.items()}

    def rent(self, content: Shared, price: DualPrice, links: Links) -> float:
        """What this part pays for what others may read: its link's dual price, or an equal share where there is
        none."""
        return links.get((self.number, content), price[1] * self.rents[content])

    def answer(self, price: DualPrice, most: float, time_limit: float, links: Links = NO_LINKS,
               shapes: Iterable[ProgramShape] = ()) -> tuple[ProgramShape | None, float]:
        """The shape of the cheapest program at these prices, none where one of the shapes that are known has it; and
        its bound. Raises Infeasible where no program leads from one state to the other."""
        known = [float(column.spent @ price) + sum(self.rent(content, price, links) for content in column.shared)
                 for column in (self.column(0, shape, price, most, links) for shape in shapes)
                 if self.worst(column) <= most]
        prices = *price, *(self.rent(content, price, links) for content in self.rents)
        found = self.repriced.cheapest(prices, most, min(known, default=inf), time_limit, ANSWER_GAP)
        return self.shape(found.nodes) if found.nodes else None, found.bound

    def worst(self, column: Column) -> float:
        """The largest error of its methods."""
        _, offers = self.table(column.shape)
        return float(offers[range(len(column.methods)), list(column.methods), 2].max(initial=0.0))

    def shape(self, nodes: Iterable[Node]) -> ProgramShape:
        """Its kernels and rows, and its uses."""
        return ProgramShape(tuple(node for node in nodes if not isinstance(node.cls, (Use, Stored))),
                            tuple(node.cls for node in nodes if isinstance(node.cls, Use)))

    def fixed(self, shape: ProgramShape) -> list[Node]:
        """The kernels and rows of a shape with this part's own errors: a substitution's is of what it is given."""
        return [self.own_errors.get(node.cls, node) for node in shape.fixed]

    def table(self, shape: ProgramShape) -> tuple[np.ndarray, np.ndarray]:
        """What the kernels spend, and what each offer of each use does: uses x offers x 3, infinite where there is
        none; of what is shared no bytes."""
        if shape not in self.tables:
            fixed = np.array([(n.time, 0.0 if n.cls in self.shared else n.memory, n.error)
                              for n in self.fixed(shape)]).sum(0)
            offers = np.full((len(shape.uses), max((len(self.offers[u]) for u in shape.uses), default=1), 3), inf)
            for row, use in zip(offers, shape.uses, strict=True):
                row[:len(self.offers[use])] = [(u.time, 0.0 if s.cls in self.shared else s.memory, u.error)
                                               for u, s in self.offers[use]]
            self.tables[shape] = fixed, offers
        return self.tables[shape]

    def column(self, at: int, shape: ProgramShape, price: DualPrice, most: float,
               links: Links = NO_LINKS) -> Column:
        """The program of this shape with the methods that are cheapest at these prices, each with an error of at most
        `most`."""
        _, offers = self.table(shape)
        costs = np.where(offers[..., 2] <= most, np.nan_to_num(offers, posinf=0.0) @ price, inf)
        for row, use in zip(costs, shape.uses, strict=True) if self.shared else ():
            for method, (_, stored) in enumerate(self.offers[use]):
                if stored.cls in self.shared: row[method] += self.rent(self.shared[stored.cls][0], price, links)
        return self.made(at, shape, tuple(np.argmin(costs, axis=1).tolist()))

    def made(self, at: int, shape: ProgramShape, methods: tuple[int, ...]) -> Column:
        fixed, offers = self.table(shape)
        spent = fixed + offers[range(len(methods)), list(methods)].sum(0)
        if len({use.weight for use in shape.uses}) < len(shape.uses):       # what two uses read is stored once
            read = {s.cls: s.memory for _, s in map(self.offer, shape.uses, methods) if s.cls not in self.shared}
            spent[1] = fixed[1] + sum(read.values())
        return Column(at, spent, shape, methods, self.given(shape).union(*map(self.reads, shape.uses, methods)))

    def offer(self, use: Use, method: int) -> tuple[Node, Node]: return self.offers[use][method]

    def given(self, shape: ProgramShape) -> frozenset[Shared]:
        """What a shape reads that is shared, whatever its methods."""
        return frozenset(self.shared[node.cls][0] for node in shape.fixed if node.cls in self.shared)

    def reads(self, use: Use, method: int) -> frozenset[Shared]:
        """What an offer reads that is shared."""
        of = self.shared.get(self.offers[use][method][1].cls)
        return frozenset() if of is None else frozenset([of[0]])

    def extraction(self, column: Column, weights: DualPrice) -> Extraction:
        """A column as an extraction: the nodes that it stands for."""
        offers = [self.offers[use][method] for use, method in zip(column.shape.uses, column.methods, strict=True)]
        choice = {node.cls: node for node in (*self.fixed(column.shape), *(node for offer in offers for node in offer))}
        nodes = order(choice, self.problem.roots)
        time, memory, error = (sum(getattr(node, name) for node in nodes) for name in ("time", "memory", "error"))
        cost = float(np.dot((time, memory, error), weights))
        return Extraction(nodes, {n.cls: n for n in nodes}, time, memory, error, cost, 0.0, 1.0, inf, 0.0, False)


class Dual(NamedTuple):
    """A solution of the linear program over columns: its value, how much it is over budget, the prices of what is
    spent, what a row of the border is worth, the share of each column, and what parts pay for what they share."""

    value: float
    over: float
    price: DualPrice
    worth: np.ndarray
    shares: np.ndarray
    links: Links = NO_LINKS


@dataclass
class Master:
    """The program over columns: one path through the border states, within the budgets. What parts share has a variable
    of its own, and a row for each part: it is there where the part reads it."""

    stages: Sequence[PartProblem]
    weights: DualPrice
    limits: dict[int, float]                                # criterion -> budget
    scale: float
    most: float                                             # error of one method
    sizes: Mapping[Shared, float] = field(default_factory=dict)         # bytes of what parts share
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
        """Variables beside the columns: what is shared, then what is over each budget."""
        return len(self.sizes) + len(self.limits)

    def linked(self, readers: Sequence[tuple[int, frozenset[Shared]]], spare: int) -> "csr_array":
        """A part (number) reads only what is there: readers, then what is shared, then so many spare variables."""
        from scipy.sparse import csr_array
        at = {content: len(readers) + i for i, content in enumerate(self.sizes)}
        entries = [(self.links[number, content], i, 1.0) for i, (number, every) in enumerate(readers)
                   for content in every]
        entries += [(row, at[content], -1.0) for (_, content), row in self.links.items()]
        rows, cols, signs = zip(*entries, strict=True)
        return csr_array((signs, (rows, cols)), shape=(len(self.links), len(readers) + len(self.sizes) + spare))

    def readers(self) -> list[tuple[int, frozenset[Shared]]]:
        return [(self.stages[column.stage].number, column.shared) for column in self.columns]

    def ends(self, stage: int) -> tuple[int | None, int | None]:
        """The rows that a column of this stage leaves and reaches."""
        (first, last), (before, after) = self.stages[stage].span, self.stages[stage].pair
        return self.rows.get((first - 1, before)), self.rows.get((last, after))

    def add(self, column: Column) -> bool:
        """Whether it is new."""
        key = column.stage, column.shape, column.methods
        new = key not in self.seen
        if new:
            self.seen.add(key)
            self.columns.append(column)
        return new

    def flow(self) -> tuple["csr_array", np.ndarray]:
        """Each border state is left as often as it is reached; the model is entered once."""
        from scipy.sparse import csr_array
        entries = [(row, at, sign) for at, column in enumerate(self.columns)
                   for row, sign in zip(self.ends(column.stage), (-1.0, 1.0), strict=True) if row is not None]
        rows, cols, signs = zip(*entries, strict=True)
        needed = np.zeros(len(self.rows))
        needed[0] = -1.0
        return csr_array((signs, (rows, cols)), shape=(len(self.rows), len(self.columns) + self.beside)), needed

    @property
    def preferred(self) -> DualPrice:
        """What programs are chosen by: of those that cost the same, the one that takes fewer bytes. Bounds are of the
        weights alone."""
        return self.weights[0], self.weights[1] + TIE, self.weights[2]

    def costs(self, weights: DualPrice) -> tuple[np.ndarray, np.ndarray]:
        """What each column costs and spends of each budget, in units of the whole; over a budget there is a penalty."""
        spent = np.array([column.spent for column in self.columns])
        shares = np.array([spent[:, criterion] / (limit or 1.0) for criterion, limit in self.limits.items()])
        extra, held = len(self.limits), np.array([*self.sizes.values()])
        taken = np.array([held * (criterion == 1) / (limit or 1.0) for criterion, limit in self.limits.items()])
        return (np.r_[spent @ weights / self.scale, held * weights[1] / self.scale, np.full(extra, PENALTY)],
                np.hstack([shares.reshape(extra, len(self.columns)), taken.reshape(extra, len(held)), -np.eye(extra)]))

    def relax(self) -> Dual:
        from scipy.optimize import linprog
        cost, spent = self.costs(self.weights)
        flow, needed = self.flow()
        most: csr_array | None = spent if self.limits else None
        ends = np.ones(len(spent)) if self.limits else None
        if self.links:
            from scipy.sparse import vstack
            most, ends = vstack([*([spent] if self.limits else []), self.linked(self.readers(), len(self.limits))]), \
                np.r_[np.ones(len(self.limits)), np.zeros(len(self.links))]
        found = linprog(cost, A_ub=most, b_ub=ends, A_eq=flow, b_eq=needed, bounds=(0, None), method="highs")
        if found.x is None: raise Infeasible("no program leads through the whole model")
        links = {link: max(0.0, -found.ineqlin.marginals[len(self.limits) + row]) * self.scale
                 for link, row in self.links.items()}
        price = list(self.weights)
        for (criterion, limit), marginal in zip(self.limits.items(), found.ineqlin.marginals, strict=False):
            price[criterion] += max(0.0, -marginal) * self.scale / (limit or 1.0)
        own, over = len(self.columns), len(self.columns) + len(self.sizes)
        return Dual(found.fun * self.scale, float(found.x[over:].sum()), (price[0], price[1], price[2]),
                    found.eqlin.marginals * self.scale, found.x[:own], links)

    def reduced(self, column: Column, dual: Dual) -> float:
        """What one more of it would add to the value of the relaxation, as a share of the whole."""
        left, reached = self.ends(column.stage)
        worth = (dual.worth[reached] if reached is not None else 0.0) - (dual.worth[left] if left is not None else 0.0)
        paid = sum(dual.links[self.stages[column.stage].number, content] for content in column.shared)
        return float(column.spent @ dual.price + paid - worth) / self.scale

    def integer(self, time_limit: float) -> list[Column] | None:
        """The cheapest path within the budgets over the columns there are; none where there is none."""
        from scipy.optimize import LinearConstraint
        cost, spent = self.costs(self.preferred)
        flow, needed = self.flow()
        whole = np.r_[np.ones(len(self.columns)), np.zeros(self.beside)]
        most = np.r_[np.ones(len(self.columns) + len(self.sizes)), np.zeros(len(self.limits))]
        rules = [LinearConstraint(flow, needed, needed)]
        rules += [LinearConstraint(spent, -np.inf, 1.0)] if self.limits else []
        rules += self.link_rules(self.readers(), len(self.limits))
        if (shares := solve_whole(cost, rules, whole, (0, most), time_limit)) is None: return None
        chosen = [column for column, share in zip(self.columns, shares, strict=False) if share > 0.5]
        return sorted(chosen, key=lambda column: self.stages[column.stage].span)

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

    def reassign_methods(self, path: Sequence[Column], time_limit: float) -> list[Column] | None:
        """The shapes of a path with the cheapest methods within the budgets: a knapsack over every use at once. None
        where there is none."""
        from scipy.optimize import LinearConstraint
        stages = [self.stages[column.stage] for column in path]
        tables = [stage.table(column.shape) for stage, column in zip(stages, path, strict=True)]
        offers = [Offer(at, use, method, spent) for at, (_, table) in enumerate(tables)
                  for use, row in enumerate(table) for method, spent in enumerate(row) if spent[2] <= self.most]
        if not offers: return list(path)
        spent = np.array([*(offer.spent for offer in offers), *((0.0, size, 0.0) for size in self.sizes.values())])
        fixed = np.sum([table[0] for table in tables], axis=0)
        reads = [(stages[at].number, stages[at].reads(path[at].shape.uses[use], method))
                 for at, use, method, _ in offers] if self.links else []
        rules = [LinearConstraint(choose_one(offers, len(spent)), 1.0, 1.0), *self.link_rules(reads, 0)]
        rules += [LinearConstraint(spent[:, [criterion]].T / (limit or 1.0), -np.inf,
                                   1.0 - fixed[criterion] / (limit or 1.0))
                  for criterion, limit in self.limits.items()]
        there = frozenset().union(*(stage.given(column.shape) for stage, column in zip(stages, path, strict=True)))
        least = np.r_[np.zeros(len(offers)), [float(content in there) for content in self.sizes]]
        whole = np.r_[np.ones(len(offers)), np.zeros(len(self.sizes))]
        cost = spent @ self.preferred / self.scale
        if (shares := solve_whole(cost, rules, whole, (least, 1), time_limit)) is None: return None
        taken = [offer for offer, share in zip(offers, shares, strict=False) if share > 0.5]
        return [stage.made(column.stage, column.shape, tuple(each.method for each in taken if each.at == at))
                for at, (stage, column) in enumerate(zip(stages, path, strict=True))]

    def link_rules(self, readers: Sequence[tuple[int, frozenset[Shared]]], spare: int) -> "list[LinearConstraint]":
        """That readers read what is there alone; nothing where nothing is shared."""
        from scipy.optimize import LinearConstraint
        return [LinearConstraint(self.linked(readers, spare), -np.inf, 0.0)] if self.links else []

    def cost(self, path: Sequence[Column] | None, weights: DualPrice | None = None) -> float:
        """What a path costs; infinite where it is over a budget."""
        if path is None:
            return inf
        spent = np.sum([column.spent for column in path], axis=0)
        spent[1] += sum(self.sizes[content] for content in frozenset().union(*(column.shared for column in path)))
        within = all(spent[criterion] <= limit * (1 + 1e-9) for criterion, limit in self.limits.items())
        return float(spent @ (weights or self.weights)) if within else inf


class Offer(NamedTuple):
    """What a use of a weight in a column of a path may be stored by, and what that spends."""

    at: int
    use: int
    method: int
    spent: np.ndarray


def choose_one(offers: Sequence[Offer], variables: int) -> "csr_array":
    """A row for each use, with a 1 for each of its offers, which are the first of so many variables."""
    from scipy.sparse import csr_array
    row = {key: number for number, key in enumerate(dict.fromkeys(offer[:2] for offer in offers))}
    return csr_array((np.ones(len(offers)), ([row[offer[:2]] for offer in offers], range(len(offers)))),
                     shape=(len(row), variables))


def solve_whole(cost: np.ndarray, rules: "Sequence[LinearConstraint]", whole: np.ndarray,
                bounds: "tuple[ArrayLike, ArrayLike]", time_limit: float) -> np.ndarray | None:
    """The cheapest values of variables between their bounds, those that are `whole` in whole numbers; None where none
    was found."""
    from scipy.optimize import Bounds, milp
    found: np.ndarray | None = milp(cost, constraints=rules, integrality=whole, bounds=Bounds(*bounds),
                                    options=dict(time_limit=time_limit, mip_rel_gap=1e-4)).x
    return found
