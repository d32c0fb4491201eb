"""The derivation of a model on a mesh: step by step which rule splits what, by which equation, and what crosses.
Factors that are split alike are said once, and so are runs of steps that pass on what is cut."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import sympy

from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.parallel.cost.formulas import busiest
from opmatrix.parallel.sharding.axis_states import Partial
from opmatrix.parallel.sharding.cost_formulas import Booked, Crossing, stored_arrays
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.sharding.spreading import Split
from rewrites.laws.law import PARTITION
from rewrites.laws.splitting import RuleKey, key_of, statement

PASSING = {"rows one by one", "entry by entry", "turned", "side by side", "columns", "slice"}
HEADED = {("act", "heads"), ("split", "heads"), ("join", "heads"), ("repeat", "heads")}     # pass heads on, too


@dataclass(frozen=True)
class PartitionStep:
    """One application of a rule on axes of a mesh: the equation that it is, to what it is applied, what crosses, and
    to how many steps in a row."""
    rule: RuleKey
    axes: tuple[str, ...]
    says: str
    what: str = ""
    crosses: str = ""
    times: int = 1
    kind = PARTITION

    def __str__(self) -> str:
        name = self.rule[1].replace("_", "-")
        named = f" ({self.what})" if self.what else f" ({self.times} steps)" if self.times > 1 else ""
        said = f"{self.kind.upper()} {', '.join(self.axes)}: {name}{named}: {self.says}"
        return f"{said}: {self.crosses}" if self.crosses else said


@dataclass(frozen=True)
class PartitionPart:
    """Factors of a model that are split alike, by their numbers from 1 on, and the steps of one of them."""
    factors: tuple[int, ...]
    steps: tuple[PartitionStep, ...]

    def title(self, count: int) -> str:
        first, *others = self.factors
        alike = f", and alike {runs(others)}" if others else ""
        return f"factor {first} of {count}{alike}"


@dataclass(frozen=True)
class PartitionDerivation:
    """The steps from a model to what each rank of a mesh does. Prints as text."""
    name: str
    count: int
    between: tuple[PartitionStep, ...]
    parts: tuple[PartitionPart, ...]

    @property
    def steps(self) -> Iterator[PartitionStep]:
        """All of them, in order, those of equal factors once."""
        yield from self.between
        for part in self.parts: yield from part.steps

    def __str__(self) -> str:
        lines = [f"{self.name}: {sum(1 for _ in self.steps)} steps", *map(str, self.between)]
        for part in self.parts: lines += [part.title(self.count), *(f"  {step}" for step in part.steps)]
        return "\n".join(lines)


def derivation_of(plan: Partition) -> PartitionDerivation:
    """The derivation of a partition: its stages, what is stored in pieces, and the steps of its factors."""
    groups: dict[int, list[int]] = {}
    for at, split in plan.splits.items(): groups.setdefault(id(split), []).append(at)
    parts = tuple(PartitionPart(tuple(at + 1 for at in own), tuple(steps_of(plan.splits[own[0]])))
                  for own in groups.values())
    return PartitionDerivation(plan.name, len(plan.chain), tuple(between_stages(plan)), parts)


def between_stages(plan: Partition) -> Iterator[PartitionStep]:
    """What a plan does beside its factors: ranks that have some layers, weights that are stored once over an axis."""
    rule = "stage", "stages"
    for stage, (lo, hi) in enumerate(plan.cuts if plan.mesh.stages else ()):
        sent = next((spelled(each) for _, each in plan.crossings(stage) if each.of == "stage"), "")
        yield PartitionStep(rule, (plan.mesh.stages.name,), statement(rule),        # type: ignore[union-attr]
                            f"stage {stage + 1}: factors {runs(range(lo + 1, hi + 1))}", sent)
    for axis in plan.mesh.storing(3):
        kept = sum((count * each.whole for stage in range(len(plan.stages)) for count, each in plan.crossings(stage)
                    if each.of == "weights" and each.axis == axis.name), sympy.Integer(0))
        yield PartitionStep(("move", "all_gather"), (axis.name,), statement(("move", "all_gather")), "stored weights",
                            f"all-gather over {axis.name} of {spell(kept)} numbers in all stages")


def steps_of(split: Split) -> Iterator[PartitionStep]:
    """The steps of one factor. Those that pass on what is cut are said once a run, with their number."""
    booked = Booked(split.steps, split.mesh, split.out)
    passed: dict[tuple[str, RuleKey, tuple[str, ...]], int] = {}
    for at, step in enumerate(split.steps):
        for rule, axes in by_rule(split, step).items():
            key = key_of(step.op, rule)
            if rule in PASSING or key in HEADED:
                passed[rule, key, axes] = passed.get((rule, key, axes), 0) + 1
                continue
            yield from said(passed)
            passed = {}
            crossed = booked.crossing(at)
            sent = spelled(crossed) if crossed and crossed.axis in axes else ""
            yield PartitionStep(key, axes, statement(key, merged_over(split, step)), name_of_step(step), sent)
    yield from said(passed)


def by_rule(split: Split, step: RankStep) -> dict[str, tuple[str, ...]]:
    """The axes of each rule of a step, in their order."""
    found: dict[str, tuple[str, ...]] = {}
    for k, rule in sorted(step.rules): found[rule] = (*found.get(rule, ()), split.mesh.axes[k].name)
    return found


def said(passed: dict[tuple[str, RuleKey, tuple[str, ...]], int]) -> Iterator[PartitionStep]:
    """A run of steps that pass on what is cut, one for each equation."""
    counts: dict[tuple[str, tuple[str, ...]], tuple[RuleKey, int]] = {}
    for (_, key, axes), count in passed.items():
        says = statement(key)
        first, before = counts.get((says, axes), (key, 0))
        counts[says, axes] = first, before + count
    for (says, axes), (key, count) in counts.items(): yield PartitionStep(key, axes, says, times=count)


def merged_over(split: Split, step: RankStep) -> type[Monoid]:
    """The monoid over which a step merges parts, or makes them."""
    states = [*step.more[1:2]] if step.op == "move" else [state for _, state in step.placement.cuts]
    if step.op == "ring": return step.more[2]                # type: ignore[no-any-return]
    return next((state.over for state in states if isinstance(state, Partial)), monoids.sum)


def name_of_step(step: RankStep) -> str:
    """The stored matrix of a step, or its product."""
    if step.op == "act": return next((str(each) for each in step.more[0].args if isinstance(each, Data)), "")
    if step.op == "answer":
        return ", ".join(dict.fromkeys(str(data) for _, data, _ in stored_arrays([step])))
    if step.op in ("product", "ring"):
        over, where = step.more[-2:]
        return f"{over.__name__} where {where}"
    return ""


def spelled(crossing: Crossing) -> str:
    """What crosses, in numbers of the busiest rank: the value that a group makes, and what leaves the rank for it."""
    return (f"{crossing.op.replace('_', '-')} over {crossing.axis} of {spell(crossing.whole)} numbers, "
            f"{spell(crossing.wire)} on the wire")


def spell(e: sympy.Expr) -> str: return str(sympy.factor_terms(busiest(e))).replace("**", "^").replace("*", "·")


def runs(numbers: Sequence[int]) -> str:
    """Numbers in ascending order, neighbours as a range."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1: found[-1].append(number)
        else: found.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in found)
