"""The 0/1 program: a variable for each node, order variables inside strongly connected components alone, and cuts.

All rows are coverings, low <= row . x: choosing more nodes than needed is allowed and never pays. Only the integer
solver gets the rows that a class has one node at most, since it finds cliques in them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rewrites.extraction.indexed import IndexedGraph, components

if TYPE_CHECKING:
    from scipy.sparse import csr_array

INTERIOR_NODES = 500  # fewest nodes for which interior points beat the simplex
RESTING, PATIENCE = -1, 5  # age of a row that is not in use; age above which a slack row is rested


class Answer(NamedTuple):
    """The answer of the solver: chosen nodes (None: no solution found), a proved lower bound, and whether it
    finished."""

    nodes: list[int] | None
    bound: float
    finished: bool


class Relaxation(NamedTuple):
    """An optimal solution of the linear relaxation, its value, and a lower bound of the increase for choosing each
    node."""

    x: np.ndarray
    value: float
    spare: np.ndarray


class CoveringProgram:
    """The covering program of a graph, solved by HiGHS.

    Rows are stored in a pool. The relaxation uses those that were violated lately; `age` counts the solutions in which
    a row was slack (RESTING: it is not in use). The 0/1 program takes every row that is not a resting cut."""

    def __init__(self, graph: IndexedGraph, budgets: Sequence[float] = ()) -> None:
        self.graph, self.budgets = graph, budgets
        self.columns: list[int] = []
        self.values: list[float] = []
        self.starts = [0]
        self.low: list[float] = []
        self.age: list[int] = []
        self.extra = 0  # order variables, after the nodes
        self.pace = 4e-8  # seconds of a relaxation over its work
        self.strict = 1.0  # the budgets' unit: the solver's tolerance is absolute
        self.scale = 1e3 / (max(graph.price, default=0.0) or 1.0)
        for nodes in graph.members:
            parents: dict[int, list[int]] = defaultdict(list)
            for i in nodes:
                for k in graph.kids[i]:
                    parents[k].append(i)
            for k, above in parents.items():  # one row for all nodes of a class that need the same child
                self.add(dict.fromkeys(graph.members[k], 1.0) | dict.fromkeys(above, -1.0), 0.0, RESTING)
        self.first = len(self.low)
        for c in graph.roots:
            self.add(dict.fromkeys(graph.members[c], 1.0), 1.0)

    def add(self, row: Mapping[int, float], low: float = 0.0, age: int = 0) -> None:
        """Require low <= row . x."""
        self.columns += row
        self.values += row.values()
        self.starts.append(len(self.columns))
        self.low.append(low)
        self.age.append(age)

    def cut(self, landmark: Iterable[int], c: int | None = None, age: int = 0) -> None:
        """Require one node of a landmark of the roots, or of class c as far as c is used."""
        row = dict.fromkeys(landmark, 1.0)
        if c is None or c in self.graph.roots:
            self.add(row, 1.0, age)
        else:
            count = Counter(row)
            count.subtract(self.graph.members[c])
            self.add({i: float(v) for i, v in count.items() if v}, 0.0, age)

    def order(self) -> None:
        """Add order variables for the classes of cycles: a parent is above the child it uses."""
        graph, n = self.graph, len(self.graph.cls)
        part = components(graph)
        size = Counter(part)
        column = {c: n + i for i, c in enumerate(c for c, s in enumerate(part) if size[s] > 1)}
        parents: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, (c, kids) in enumerate(zip(graph.cls, graph.kids, strict=True)):
            for k in kids:
                if part[k] == part[c]:
                    parents[c, k].append(i)
        for (c, k), above in parents.items():
            step = 1.0 / size[part[c]]
            self.add({column[c]: 1.0, column[k]: -1.0} | dict.fromkeys(above, -1.0 - step), -1.0)
        self.extra = len(column)

    def matrix(self) -> csr_array:
        """Return all rows of the pool."""
        from scipy.sparse import csr_array

        return csr_array(
            (self.values, self.columns, self.starts), shape=(len(self.low), len(self.graph.cls) + self.extra)
        )

    def within(self, rows: csr_array, low: np.ndarray) -> tuple[csr_array, np.ndarray]:
        """Return the rows with those of the budgets, in units of the budget."""
        from scipy.sparse import csr_array, vstack

        if not self.budgets:
            return rows, low
        units = [b / self.strict or 1.0 for b in self.budgets]
        spent = np.zeros((len(units), len(self.graph.cls) + self.extra))
        spent[:, : len(self.graph.cls)] = -np.array([cost[1:] for cost in self.graph.cost]).T / np.array(units)[:, None]
        return (
            vstack([rows, csr_array(spent)], format="csr"),
            np.r_[low, [-b / u for b, u in zip(self.budgets, units, strict=True)]],
        )

    def relax(self, time_limit: float) -> Relaxation | None:
        """Solve the linear relaxation under the rows in use; None if time runs out, or would: interior points do not
        read the clock. Rows that were slack for long are rested."""
        from scipy.optimize import linprog

        use = np.array(self.age) >= 0
        work = (np.diff(self.starts)[use].sum() + 1e4) ** 1.5
        large = len(self.graph.cls) > INTERIOR_NODES
        if large and 3 * self.pace * work > time_limit:
            return None
        rows, low = self.within(self.matrix()[use], np.array(self.low)[use])
        cost = np.r_[self.graph.price, np.zeros(self.extra)] * self.scale
        method, began = "highs-ipm" if large else "highs-ds", perf_counter()
        result = linprog(
            cost, A_ub=-rows, b_ub=-low, bounds=(0, 1), method=method, options=dict(time_limit=max(time_limit, 0.01))
        )
        self.pace = (perf_counter() - began) / work
        if result.x is None or result.status:
            return None
        for row, slack in zip(np.flatnonzero(use).tolist(), (result.slack > 1e-6).tolist(), strict=False):
            older = self.age[row] + 1 if slack else 0
            self.age[row] = RESTING if older > PATIENCE else older
        n = len(self.graph.cls)
        price = np.maximum(-result.ineqlin.marginals, 0.0)  # the bound holds for any solver tolerances
        spare = cost - rows.T @ price
        value = price @ low + np.minimum(spare, 0.0).sum()
        return Relaxation(result.x[:n], value / self.scale, np.maximum(spare[:n], 0.0) / self.scale)

    def wake(self, x: np.ndarray) -> int:
        """Use the resting rows that x violates most, up to half as many entries as are in use; return the number of
        rows."""
        resting, length = np.array(self.age) < 0, np.diff(self.starts)
        short = np.where(resting, np.array(self.low) - self.matrix()[:, : len(x)] @ x, 0.0)
        worst = np.argsort(-short)[: np.count_nonzero(short > 1e-3)]
        most = max(5000, length[~resting].sum() / 2)
        worst = worst[: max(1, np.count_nonzero(np.cumsum(length[worst]) <= most))]
        for row in worst.tolist():
            self.age[row] = 0
        return len(worst)

    def solve(self, time_limit: float, gap: float) -> Answer:
        """Solve the 0/1 program itself; the chosen nodes of an answer may close cycles where there are no order
        variables."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n = len(self.graph.cls)
        use = (np.array(self.age) >= 0) | (np.arange(len(self.low)) < self.first)
        rows, low = self.within(self.matrix()[use], np.array(self.low)[use])
        once = csr_array((np.ones(n), (self.graph.cls, range(n))), shape=(self.graph.classes, n + self.extra))
        cost = np.r_[self.graph.price, np.zeros(self.extra)] * self.scale
        result = milp(
            cost,
            constraints=[LinearConstraint(rows, low, np.inf), LinearConstraint(once, -np.inf, 1.0)],
            integrality=np.r_[np.ones(n), np.zeros(self.extra)],
            bounds=Bounds(0, 1),
            options=dict(time_limit=max(time_limit, 0.01), mip_rel_gap=gap),
        )
        chosen = None if result.x is None else [i for i in range(n) if result.x[i] > 0.5]
        bound = getattr(result, "mip_dual_bound", None)
        return Answer(chosen, 0.0 if bound is None else max(bound, 0.0) / self.scale, result.status in (0, 2))
