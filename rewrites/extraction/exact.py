"""The 0/1 program: a variable for each node, order variables inside strongly connected components alone, and cuts."""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .graph import Graph, components


class Answer(NamedTuple):
    """What the solver says: chosen nodes (None: no solution found), a proved lower bound, and whether it finished."""
    nodes: list[int] | None
    bound: float
    finished: bool


@dataclass
class Rows:
    """Sparse constraint rows, low <= row . x <= high, collected one by one."""
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, entries: Mapping[int, float], low: float = -np.inf, high: float = np.inf) -> None:
        self.columns += entries
        self.values += entries.values()
        self.starts.append(len(self.columns))
        self.low.append(low)
        self.high.append(high)


def cover(rows: Rows, graph: Graph, members: Sequence[Sequence[int]]) -> None:
    """One node of every root, at most one of any other class, and for each class one row per child that its nodes need."""
    for c, nodes in enumerate(members):
        if nodes:
            rows.add(dict.fromkeys(nodes, 1.0), low=float(c in graph.roots), high=1.0)
        users: dict[int, list[int]] = defaultdict(list)
        for i in nodes:
            for k in graph.kids[i]:
                users[k].append(i)
        for k, parents in users.items():
            rows.add(dict.fromkeys(members[k], 1.0) | dict.fromkeys(parents, -1.0), low=0.0)


def ordered(rows: Rows, graph: Graph) -> int:
    """Order variables for the classes of cycles: a parent lies above the child it uses. Returns their number."""
    component = components(graph)
    size: dict[int, int] = defaultdict(int)
    for s in component:
        size[s] += 1
    column = {c: i for i, c in enumerate((c for c, s in enumerate(component) if size[s] > 1), start=len(graph.cls))}
    users: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, (c, kids) in enumerate(zip(graph.cls, graph.kids, strict=True)):
        for k in kids:
            if component[k] == component[c]:
                users[c, k].append(i)
    for (c, k), parents in users.items():
        n = size[component[c]]
        rows.add({column[c]: 1.0, column[k]: -1.0} | dict.fromkeys(parents, -float(n)), low=1.0 - n)
    return len(column)


def solve(graph: Graph, budgets: Sequence[float], time_limit: float, gap: float) -> Answer:
    """Minimise the first criterion with the others within their budgets (HiGHS)."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows, n = Rows(), len(graph.cls)
    cover(rows, graph, graph.members())
    extra = ordered(rows, graph)
    cost = np.array(graph.cost, dtype=float).reshape(n, -1)
    for column, budget in zip(cost.T[1:], budgets, strict=True):
        unit = budget or 1.0
        rows.add({int(i): column[i] / unit for i in column.nonzero()[0]}, high=budget / unit)
    scale = 1e3 / max(cost[:, 0].sum(), 1e-300)
    matrix = csr_array((rows.values, rows.columns, rows.starts), shape=(len(rows.low), n + extra))
    result = milp(np.r_[cost[:, 0] * scale, np.zeros(extra)], constraints=LinearConstraint(matrix, rows.low, rows.high),
                  integrality=np.r_[np.ones(n), np.zeros(extra)], bounds=Bounds(0, np.r_[np.ones(n), np.full(extra, n)]),
                  options=dict(time_limit=max(time_limit, 1e-3), mip_rel_gap=gap))
    chosen = None if result.x is None else [i for i in range(n) if result.x[i] > 0.5]
    bound = getattr(result, "mip_dual_bound", None)
    return Answer(chosen, 0.0 if bound is None else bound / scale, result.status in (0, 2))
