"""What ranks counted beside what formulas say: operations, and payload at the wire by collective and axis."""
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

StageCrossings: TypeAlias = Callable[[int], Iterable[tuple[int, Crossing]]]      # how often, and what, of a stage
NUMBER_BYTES = 8                                            # bytes of a float64


class Tally(NamedTuple):
    """One thing that was counted, over all ranks, and by its formula; the first rank where they are not equal."""
    name: str
    unit: str
    counted: int
    formula: int
    differs: Coordinates | None

    @property
    def holds(self) -> bool: return self.differs is None


def tallies(plan: Partition, meters: Mapping[Coordinates, Meter]) -> list[Tally]:
    """Operations, payload, bytes on the wire, messages, stored numbers and the largest peak, rank by rank."""
    uneven = plan.mesh.sends_to_experts
    found = [compare("operations", "flop", {p: m.flops for p, m in meters.items()},
                     {p: value_on(plan, plan.flops(plan.stage(p)), p) for p in meters}, uneven=uneven),
             *crossing_tallies(plan, meters, plan.crossings, len(plan.stages), uneven)]
    found.append(compare("weights stored", "B", {p: NUMBER_BYTES * m.stored for p, m in meters.items()},
                         {p: NUMBER_BYTES * value_on(plan, plan.state(plan.stage(p), weights=1), p) for p in meters}))
    if not uneven:
        found.append(compare("values held at most", "B", {p: NUMBER_BYTES * m.peak for p, m in meters.items()},
                             {p: NUMBER_BYTES * plan.peak(p) for p in meters}, max))
    return found


def train_tallies(train: TrainPlan, meters: Mapping[Coordinates, Meter], even: bool = False) -> list[Tally]:
    """Operations, payload, bytes on the wire, messages and the largest peak of a step of training, rank by rank; where
    rows ask experts, and not in turn (`even`), what follows their gates is compared in all, and peaks are not."""
    plan, uneven = train.plan, train.mesh.sends_to_experts and not even
    flops = [step_flops(train, stage) for stage in range(train.stages)]
    said = {p: value_on(plan, flops[plan.stage(p)], p) for p in meters}
    found = [compare("operations", "flop", {p: m.flops for p, m in meters.items()}, said, uneven=uneven),
             *crossing_tallies(plan, meters, lambda stage: step_crossings(train, stage), train.stages, uneven)]
    if not uneven:
        found.append(compare("values and gradients held at most", "B",
                             {p: NUMBER_BYTES * m.peak for p, m in meters.items()},
                             {p: NUMBER_BYTES * step_peak(train, p) for p in meters}, max))
    return found


def crossing_tallies(plan: Partition, meters: Mapping[Coordinates, Meter],
                     crossings: StageCrossings, stages: int, uneven: bool = False) -> Iterator[Tally]:
    """What crossed, by operation, axis and table."""
    formulas = [[*crossings(stage)] for stage in range(stages)]
    for table, factor, unit in (("payload", NUMBER_BYTES, "B"), ("wire", NUMBER_BYTES, "B"), ("messages", 1, "")):
        counted = {p: getattr(m, table) for p, m in meters.items()}
        said = {p: counts_on(plan, formulas[plan.stage(p)], p, table) for p in meters}
        for key in sorted({key for each in (*counted.values(), *said.values()) for key in each}):
            op, axis = key
            yield compare(f"{op} over {axis}, {table}", unit,
                          {p: factor * each.get(key, 0) for p, each in counted.items()},
                          {p: factor * each.get(key, NONE) for p, each in said.items()},
                          uneven=uneven and plan.mesh.experts is not None and axis == plan.mesh.experts.name)


def compare(name: str, unit: str, counted: Mapping[Coordinates, int], said: Mapping[Coordinates, sympy.Expr | int],
            over: object = sum, uneven: bool = False) -> Tally:
    """Adds ranks up, or takes the largest, and compares each; what is `uneven` is by the mean of ranks, so only all of
    them together are as formulas say."""
    assert callable(over)
    found, formula = over(counted.values()), over(said.values())
    differs = next((place for place in counted if counted[place] != said[place]), None)
    return Tally(name, unit, found, int(formula), None if uneven and found == formula else differs)


def value_on(plan: Partition, formula: sympy.Expr, place: Coordinates) -> sympy.Expr:
    return plan.on(sympy.sympify(formula), place)


def counts_on(plan: Partition, crossings: Iterable[tuple[int, Crossing]], place: Coordinates,
              table: str) -> dict[tuple[str, str], sympy.Expr]:
    """What crosses of a rank by formulas of its stage, in numbers, by operation and axis."""
    found: dict[tuple[str, str], sympy.Expr] = {}
    for times, each in crossings:
        key = each.op, each.axis
        found[key] = found.get(key, NONE) + times * value_on(plan, getattr(each, table), place)
    return found


def unlike_said(found: Sequence[Tally]) -> Iterator[Tally]:
    """What was counted otherwise than its formula says. Carriers of several components are cut by whole rows, so of
    their bytes on the wire the formula is a bound that rows that do not divide miss."""
    return (each for each in found if not each.holds and not each.name.endswith(", wire"))
