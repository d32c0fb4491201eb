"""Counts of ranks beside the formulas: operations, and payload on the wire by collective and axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import sympy

from opmatrix.parallel.cost.train_formulas import step_crossings, step_flops, step_peak
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.sharding.cost_formulas import NONE, Crossing
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.placement import Coordinates
from opmatrix.parallel.train.requested_steps import TrainPlan

StageCrossings: TypeAlias = Callable[[int], Iterable[tuple[int, Crossing]]]  # times and crossings of a stage
NUMBER_BYTES = 8  # bytes of a float64


class Tally(NamedTuple):
    """A count over all ranks, beside its formula."""

    name: str  # name of the count
    unit: str  # its unit
    counted: int  # sum or maximum of the counts of ranks
    formula: int  # the same of the formulas
    differs: Coordinates | None  # first rank whose count is not equal, if any

    @property
    def holds(self) -> bool:
        """True if the count of every rank equals its formula."""
        return self.differs is None


def tallies(plan: Partition, meters: Mapping[Coordinates, Meter]) -> list[Tally]:
    """Compare operations, payload, bytes on the wire, messages, stored numbers and the largest peak, rank by rank."""
    uneven = plan.mesh.sends_to_experts
    rows = [
        compare(
            "operations",
            "flop",
            {p: m.flops for p, m in meters.items()},
            {p: value_on(plan, plan.flops(plan.stage(p)), p) for p in meters},
            uneven=uneven,
        ),
        *crossing_tallies(plan, meters, plan.crossings, len(plan.stages), uneven),
    ]
    rows.append(
        compare(
            "weights stored",
            "B",
            {p: NUMBER_BYTES * m.stored for p, m in meters.items()},
            {p: NUMBER_BYTES * value_on(plan, plan.state(plan.stage(p), weights=1), p) for p in meters},
        )
    )
    if not uneven:
        rows.append(
            compare(
                "values held at most",
                "B",
                {p: NUMBER_BYTES * m.peak for p, m in meters.items()},
                {p: NUMBER_BYTES * plan.peak(p) for p in meters},
                max,
            )
        )
    return rows


def train_tallies(train: TrainPlan, meters: Mapping[Coordinates, Meter], even: bool = False) -> list[Tally]:
    """Compare operations, payload, bytes on the wire, messages and the largest peak of a step of training, rank by
    rank. If rows are routed to experts by their gates, and not in turn (`even`), counts that follow the gates are
    compared in total, and peaks are not."""
    plan, uneven = train.plan, train.mesh.sends_to_experts and not even
    flops = [step_flops(train, stage) for stage in range(train.stages)]
    expected = {p: value_on(plan, flops[plan.stage(p)], p) for p in meters}
    rows = [
        compare("operations", "flop", {p: m.flops for p, m in meters.items()}, expected, uneven=uneven),
        *crossing_tallies(plan, meters, lambda stage: step_crossings(train, stage), train.stages, uneven),
    ]
    if not uneven:
        rows.append(
            compare(
                "values and gradients held at most",
                "B",
                {p: NUMBER_BYTES * m.peak for p, m in meters.items()},
                {p: NUMBER_BYTES * step_peak(train, p) for p in meters},
                max,
            )
        )
    return rows


def crossing_tallies(
    plan: Partition, meters: Mapping[Coordinates, Meter], crossings: StageCrossings, stages: int, uneven: bool = False
) -> Iterator[Tally]:
    """Yield the comparison of communication, by operation, axis and table."""
    formulas = [[*crossings(stage)] for stage in range(stages)]
    for table, factor, unit in (("payload", NUMBER_BYTES, "B"), ("wire", NUMBER_BYTES, "B"), ("messages", 1, "")):
        counted = {p: getattr(m, table) for p, m in meters.items()}
        expected = {p: counts_on(plan, formulas[plan.stage(p)], p, table) for p in meters}
        for key in sorted({key for numbers in (*counted.values(), *expected.values()) for key in numbers}):
            op, axis = key
            yield compare(
                f"{op} over {axis}, {table}",
                unit,
                {p: factor * numbers.get(key, 0) for p, numbers in counted.items()},
                {p: factor * numbers.get(key, NONE) for p, numbers in expected.items()},
                uneven=uneven and plan.mesh.experts is not None and axis == plan.mesh.experts.name,
            )


def compare(
    name: str,
    unit: str,
    counted: Mapping[Coordinates, int],
    said: Mapping[Coordinates, sympy.Expr | int],
    over: object = sum,
    uneven: bool = False,
) -> Tally:
    """Add the counts of ranks up, or take the largest, and compare each. `uneven` counts follow the mean of ranks, so
    only their total equals the formulas."""
    assert callable(over)
    total, formula = over(counted.values()), over(said.values())
    differs = next((place for place in counted if counted[place] != said[place]), None)
    return Tally(name, unit, total, int(formula), None if uneven and total == formula else differs)


def value_on(plan: Partition, formula: sympy.Expr, place: Coordinates) -> sympy.Expr:
    """Evaluate a formula at the place of a rank."""
    return plan.on(sympy.sympify(formula), place)


def counts_on(
    plan: Partition, crossings: Iterable[tuple[int, Crossing]], place: Coordinates, table: str
) -> dict[tuple[str, str], sympy.Expr]:
    """Return the communication of a rank by the formulas of its stage, in numbers, by operation and axis."""
    counts: dict[tuple[str, str], sympy.Expr] = {}
    for times, crossing in crossings:
        key = crossing.op, crossing.axis
        counts[key] = counts.get(key, NONE) + times * value_on(plan, getattr(crossing, table), place)
    return counts


def unlike_said(found: Sequence[Tally]) -> Iterator[Tally]:
    """Yield the counts that differ from their formulas, except bytes on the wire. Carriers of several components are
    sharded by whole rows, so the formula of their bytes on the wire is a bound, which rows that do not divide miss."""
    return (tally for tally in found if not tally.holds and not tally.name.endswith(", wire"))
