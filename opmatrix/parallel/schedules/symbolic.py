"""How long a pipeline takes, as an expression: the largest of the ways through its tasks. Stages are of at most four
kinds, so a way is how often each kind's pass is on it, and ways that another is never shorter than are left out."""
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

KINDS = 4                                                   # of stages, at most: first, two bodies, last
HANDFUL = 32                                                    # ways that are not worth a linear program
COMPARED = 64                                                  # ways that are compared with each other at once


class Ways:
    """Ways to a moment, a row each: how often each pass of each kind of stage is on it."""
    def __init__(self, rows: NDArray[np.int64]) -> None: self.rows = rows

    def __add__(self, other: Any) -> Ways:
        if isinstance(other, Ways): return Ways(self.rows + other.rows)
        return self if other == 0 else NotImplemented

    __radd__ = __add__


def longest(each: Iterable[Any]) -> Ways:
    """The ways that may be the longest. Zero, where something may begin at once, is never longer."""
    found = [way.rows for way in each if isinstance(way, Ways)]
    if not found: return Ways(np.zeros((1, 1), np.int64))
    rows = np.unique(np.concatenate([rows for rows in found if rows.any()] or found[:1]), axis=0)
    while len(rows) > 1:
        fewer = np.concatenate([corners(rows[at:at + COMPARED]) for at in range(0, len(rows), COMPARED)])
        if len(fewer) == len(rows): break
        rows = fewer
    return Ways(vertices(rows) if len(rows) > HANDFUL else rows)


def vertices(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that no weighted mean of others reaches in every column: each is the longest at some costs."""
    from scipy.optimize import linprog
    kept = rows
    for row in rows:
        others = kept[(kept != row).any(1)]
        if not len(others): break
        found = linprog(np.zeros(len(others)), A_ub=-others.T, b_ub=-row, A_eq=np.ones((1, len(others))), b_eq=[1])
        if found.status == 0: kept = others
    return kept


def corners(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows that the mean of no two others reaches in every column: a way that such a mean reaches is never the longest,
    and what is never reached so stays, whatever else is left out."""
    left, right = np.triu_indices(len(rows))
    sums = rows[left] + rows[right]
    over = (sums[None] >= 2 * rows[:, None]).all(2)
    own = np.arange(len(rows))[:, None]
    reached: NDArray[np.bool_] = (over & (left != own) & (right != own)).any(1)
    return np.compress(~reached, rows, axis=0)


def span(graph: TaskGraph, kinds: Sequence[str]) -> sympy.Expr:
    """How long a pipeline takes whose chunks are of these kinds, in chunk order: the largest of sums of F_kind, B_kind
    and W_kind; sends take nothing. Raises InputError for more than four kinds."""
    names = [*dict.fromkeys(kinds)]
    if len(names) > KINDS:
        raise InputError(f"pipeline: {len(names)} kinds of stages, {', '.join(names)}: at most {KINDS}; give costs as "
                         "numbers")
    passes = "FBW" if graph.deferred else "FB"
    symbols = [sympy.Symbol(f"{kind}_{name}", positive=True) for name in names for kind in passes]
    one = np.eye(len(symbols), dtype=np.int64)[:, None]
    works = [ChunkWork(*(Ways(one[names.index(name) * len(passes) + k]) for k in range(len(passes)))) for name in kinds]
    ran = simulate(graph, works, latest=longest)
    rows = vertices(longest(ran.last).rows)
    return Largest(*(sum(int(n) * symbol for n, symbol in zip(row, symbols, strict=True)) for row in rows))
