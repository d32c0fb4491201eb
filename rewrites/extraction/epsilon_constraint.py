"""The Pareto front of time, memory and error by epsilon constraints: a grid of budgets, one exact extraction for
each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rewrites.extraction.problem import Extraction, Infeasible, Problem
from rewrites.extraction.solve import extract


def front(
    problem: Problem, errors: Sequence[float | None] = (None,), memories: int = 4, **options: Any
) -> list[Extraction]:
    """Return undominated programs, quickest first: for each budget of squared error the quickest program, the smallest,
    and the quickest within `memories` - 1 memory budgets between the two. `options` are those of extract.

    Raises Infeasible if no error budget can be met."""
    points: list[Extraction] = []
    for error in errors:
        try:
            quickest = extract(problem, error=error, **options)
        except Infeasible:
            continue
        least = extract(problem, error=error, **{**options, "weights": (0, 1, 0)}).memory
        step = (quickest.memory - least) / memories
        budgets = [least + j * step for j in range(memories)] if step > 1e-9 * quickest.memory else []
        points.append(quickest)
        points += [extract(problem, error=error, memory=budget, **options) for budget in budgets]
    if not points:
        raise Infeasible(f"no program meets any of the squared errors {list(errors)}")
    return undominated(points)


def undominated(points: Iterable[Extraction]) -> list[Extraction]:
    """Return the points that no other equals or betters in time, memory and error."""
    out: list[Extraction] = []
    for p in sorted(points, key=lambda p: (p.time, p.memory, p.error)):
        if not any(o.time <= p.time and o.memory <= p.memory and o.error <= p.error for o in out):
            out.append(p)
    return out
