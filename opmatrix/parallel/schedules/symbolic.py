"""The makespan of a pipeline as an expression: the longest of the paths through its tasks. Stages are of at most four
kinds, so a path is a count of the passes of each kind, and paths that are never the only longest are left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import sympy
from numpy.typing import NDArray

from formats.core.errors import InputError
from opmatrix.parallel.schedules.simulated import ChunkWork, simulate
from opmatrix.parallel.schedules.tasks import TaskGraph
from opmatrix.parallel.sharding.axis_states import Largest

KINDS = 4  # kinds of stages, at most: first, two bodies, last
HANDFUL = 32  # paths, at most, that need no linear program
COMPARED = 64  # paths that are compared with each other at once


class Ways:
    """Paths to a moment, a row each: how often each pass of each kind of stage is on the path."""

    def __init__(self, rows: NDArray[np.int64]) -> None:
        self.rows = rows

    def __add__(self, other: Any) -> Ways:
        if isinstance(other, Ways):
            return Ways(self.rows + other.rows)
        return self if other == 0 else NotImplemented

    __radd__ = __add__


def longest(each: Iterable[Any]) -> Ways:
    """Return the paths that may be the longest. Zero, where a task may begin at once, is never longer."""
    groups = [way.rows for way in each if isinstance(way, Ways)]
    if not groups:
        return Ways(np.zeros((1, 1), np.int64))
    rows = np.unique(np.concatenate([rows for rows in groups if rows.any()] or groups[:1]), axis=0)
    while len(rows) > 1:
        fewer = np.concatenate([corners(rows[at : at + COMPARED]) for at in range(0, len(rows), COMPARED)])
        if len(fewer) == len(rows):
            break
        rows = fewer
    return Ways(vertices(rows) if len(rows) > HANDFUL else rows)


def vertices(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that no weighted mean of others reaches in every column: each is the longest at some costs."""
    from scipy.optimize import linprog

    needed = rows
    for row in rows:
        others = needed[(needed != row).any(1)]
        if not len(others):
            break
        solution = linprog(np.zeros(len(others)), A_ub=-others.T, b_ub=-row, A_eq=np.ones((1, len(others))), b_eq=[1])
        if solution.status == 0:
            needed = others
    return needed


def corners(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows that the mean of no two others reaches in every column. A path that such a mean reaches is never
    the longest. A row that is not reached stays, whatever else is left out."""
    left, right = np.triu_indices(len(rows))
    sums = rows[left] + rows[right]
    over = (sums[None] >= 2 * rows[:, None]).all(2)
    index = np.arange(len(rows))[:, None]
    reached: NDArray[np.bool_] = (over & (left != index) & (right != index)).any(1)
    return np.compress(~reached, rows, axis=0)


def span(graph: TaskGraph, kinds: Sequence[str]) -> sympy.Expr:
    """Return the makespan of a pipeline, given the kind of each chunk in chunk order: the largest of sums of F_kind,
    B_kind and W_kind. Sends take no time. Raises InputError for more than four kinds."""
    names = [*dict.fromkeys(kinds)]
    if len(names) > KINDS:
        raise InputError(
            f"pipeline: {len(names)} kinds of stages, {', '.join(names)}: at most {KINDS}; give costs as numbers"
        )
    passes = "FBW" if graph.deferred else "FB"
    symbols = [sympy.Symbol(f"{kind}_{name}", positive=True) for name in names for kind in passes]
    one = np.eye(len(symbols), dtype=np.int64)[:, None]
    works = [ChunkWork(*(Ways(one[names.index(name) * len(passes) + k]) for k in range(len(passes)))) for name in kinds]
    ran = simulate(graph, works, latest=longest)
    rows = vertices(longest(ran.last).rows)
    return Largest(*(sum(int(n) * symbol for n, symbol in zip(row, symbols, strict=True)) for row in rows))
