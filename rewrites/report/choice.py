"""The choice of the answer among the programs within the budgets: the measured fastest; among those that the rounds do
not distinguish, the predicted fastest; among those that predictions do not distinguish either, the one with fewest
bytes. Prices that were measured while the machine was busy distinguish no programs.

Rounds are compared in pairs, as a disturbance of one program of a round affects all of it. The interval of a median
ratio is that of the sign test, which assumes no distribution of the noise (David and Nagaraja 2003, Order Statistics,
section 7.1)."""

from collections.abc import Sequence
from math import comb, inf

from rewrites.extraction import Infeasible
from rewrites.metrics.goals import Goal
from rewrites.report.points import Point

ALIKE = 0.03  # relative error of predicted seconds of programs
LEVEL = 0.9  # confidence level of the interval of a ratio
JITTER = 1024  # bytes by which Python's objects differ between runs


def allowed(points: Sequence[Point], asked: Sequence[Goal], memory: float | None) -> list[Point]:
    """Return the verified points that keep the goals and, as measured, the memory; the first of `points` is the exact
    one. Raises Infeasible, which reports the nearest misses."""
    keep = [p for p in points if all(goal.kept(p, points[0]) for goal in asked)]
    small = [p for p in points if memory is None or (p.measured_bytes or 0.0) + JITTER <= memory]
    if not (fitting := [p for p in keep if any(p is one for one in small)]):
        least = (
            f"the least error within the memory is {min(p.stated_error for p in small):.3g}"
            if small
            else "no program fits the memory"
        )
        raise Infeasible(
            f"no program within --memory {(memory or 0) / 1e6:g} and {' and '.join(map(str, asked))}: as "
            "measured, the smallest that keeps them needs "
            f"{min(p.measured_bytes or 0.0 for p in keep) / 1e6:.3g} MB, {least}"
        )
    return fitting


def choose(points: Sequence[Point], trusted: bool = True) -> Point:
    """Return the answer among measured programs, of which there is at least one; the first of equal ones. Unless
    predictions are `trusted`, only bytes decide among the programs that the rounds do not distinguish."""
    fastest = min(points, key=lambda point: point.measured_s or 0.0)
    undecided = [point for point in points if point is fastest or bound_ratio(point, fastest)[0] <= 1]
    if not trusted:
        return min(undecided, key=lambda point: point.measured_bytes or 0.0)
    likely = min(undecided, key=lambda point: point.predicted_s)
    alike = [
        point
        for point in undecided
        if point is likely
        or point.predicted_s <= (1 + ALIKE) * likely.predicted_s
        or bound_ratio(point, likely)[1] <= 1 + ALIKE
    ]
    return min(alike, key=lambda point: point.measured_bytes or 0.0)


def bound_ratio(point: Point, base: Point) -> tuple[float, float]:
    """Return an interval of the median ratio of their seconds in a round; (0, infinity) if there are too few rounds."""
    return middle([a / b for a, b in zip(point.rounds_s, base.rounds_s, strict=True)])


def middle(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median of the distribution of the values with a probability of at least
    `LEVEL`."""
    ordered, count, outside, left_out = sorted(values), len(values), 0.0, 0
    while count and (outside := outside + comb(count, left_out) / 2**count) <= (1 - LEVEL) / 2:
        left_out += 1
    return (ordered[left_out - 1], ordered[-left_out]) if left_out else (0.0, inf)
