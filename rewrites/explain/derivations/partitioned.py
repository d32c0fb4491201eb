"""The derivation of a model on a mesh: step by step the rule that shards a value, its equation, and the collective.
Factors that are sharded alike are printed once, and so are runs of steps that keep the sharding."""

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
HEADED = {("act", "heads"), ("split", "heads"), ("join", "heads"), ("repeat", "heads")}  # these keep sharded heads


@dataclass(frozen=True)
class PartitionStep:
    """One application of a rule on axes of a mesh: its equation, the matrix or value that it is applied to, the
    collective, and the number of steps in a run."""

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
        line = f"{self.kind.upper()} {', '.join(self.axes)}: {name}{named}: {self.says}"
        return f"{line}: {self.crosses}" if self.crosses else line


@dataclass(frozen=True)
class PartitionPart:
    """Factors of a model that are sharded alike, by their numbers from 1 on, and the steps of one of them."""

    factors: tuple[int, ...]
    steps: tuple[PartitionStep, ...]

    def title(self, count: int) -> str:
        """Return the heading of the factors: the first, and the others that are split alike."""
        first, *others = self.factors
        alike = f", and alike {runs(others)}" if others else ""
        return f"factor {first} of {count}{alike}"


@dataclass(frozen=True)
class PartitionDerivation:
    """The steps from a model to the program of each rank of a mesh. Prints as text."""

    name: str
    count: int
    between: tuple[PartitionStep, ...]
    parts: tuple[PartitionPart, ...]

    @property
    def steps(self) -> Iterator[PartitionStep]:
        """All steps in order, those of equal factors once."""
        yield from self.between
        for part in self.parts:
            yield from part.steps

    def __str__(self) -> str:
        lines = [f"{self.name}: {sum(1 for _ in self.steps)} steps", *map(str, self.between)]
        for part in self.parts:
            lines += [part.title(self.count), *(f"  {step}" for step in part.steps)]
        return "\n".join(lines)


def derivation_of(plan: Partition) -> PartitionDerivation:
    """Return the derivation of a partition: its stages, its sharded weights, and the steps of its factors."""
    groups: dict[int, list[int]] = {}
    for at, split in plan.splits.items():
        groups.setdefault(id(split), []).append(at)
    parts = tuple(
        PartitionPart(tuple(at + 1 for at in members), tuple(steps_of(plan.splits[members[0]])))
        for members in groups.values()
    )
    return PartitionDerivation(plan.name, len(plan.chain), tuple(between_stages(plan)), parts)


def between_stages(plan: Partition) -> Iterator[PartitionStep]:
    """Yield the steps of a plan outside of its factors: stages of layers, and weights sharded over an axis."""
    rule = "stage", "stages"
    for stage, (lo, hi) in enumerate(plan.cuts if plan.mesh.stages else ()):
        sent = next((spelled(crossing) for _, crossing in plan.crossings(stage) if crossing.of == "stage"), "")
        yield PartitionStep(
            rule,
            (plan.mesh.stages.name,),  # type: ignore[union-attr]
            statement(rule),
            f"stage {stage + 1}: factors {runs(range(lo + 1, hi + 1))}",
            sent,
        )
    for axis in plan.mesh.storing(3):
        stored = sum(
            (
                count * crossing.whole
                for stage in range(len(plan.stages))
                for count, crossing in plan.crossings(stage)
                if crossing.of == "weights" and crossing.axis == axis.name
            ),
            sympy.Integer(0),
        )
        yield PartitionStep(
            ("move", "all_gather"),
            (axis.name,),
            statement(("move", "all_gather")),
            "stored weights",
            f"all-gather over {axis.name} of {spell(stored)} numbers in all stages",
        )


def steps_of(split: Split) -> Iterator[PartitionStep]:
    """Yield the steps of one factor. Steps that keep the sharding are merged into one a run, with their number."""
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
    """Return the axes of each rule of a step, in their order."""
    axes_of: dict[str, tuple[str, ...]] = {}
    for k, rule in sorted(step.rules):
        axes_of[rule] = (*axes_of.get(rule, ()), split.mesh.axes[k].name)
    return axes_of


def said(passed: dict[tuple[str, RuleKey, tuple[str, ...]], int]) -> Iterator[PartitionStep]:
    """Yield a run of steps that keep the sharding, one for each equation."""
    counts: dict[tuple[str, tuple[str, ...]], tuple[RuleKey, int]] = {}
    for (_, key, axes), count in passed.items():
        says = statement(key)
        first, before = counts.get((says, axes), (key, 0))
        counts[says, axes] = first, before + count
    for (says, axes), (key, count) in counts.items():
        yield PartitionStep(key, axes, says, times=count)


def merged_over(split: Split, step: RankStep) -> type[Monoid]:
    """Return the monoid over which a step merges parts, or makes them."""
    states = [*step.more[1:2]] if step.op == "move" else [state for _, state in step.placement.cuts]
    if step.op == "ring":
        return step.more[2]  # type: ignore[no-any-return]
    return next((state.over for state in states if isinstance(state, Partial)), monoids.sum)


def name_of_step(step: RankStep) -> str:
    """Return the name of the stored matrix of a step, or of its product."""
    if step.op == "act":
        return next((str(data) for data in step.more[0].args if isinstance(data, Data)), "")
    if step.op == "answer":
        return ", ".join(dict.fromkeys(str(data) for _, data, _ in stored_arrays([step])))
    if step.op in ("product", "ring"):
        over, where = step.more[-2:]
        return f"{over.__name__} where {where}"
    return ""


def spelled(crossing: Crossing) -> str:
    """Describe a collective in numbers of the busiest rank: the size of the value that a group makes, and the numbers
    that leave the rank."""
    return (
        f"{crossing.op.replace('_', '-')} over {crossing.axis} of {spell(crossing.whole)} numbers, "
        f"{spell(crossing.wire)} on the wire"
    )


def spell(e: sympy.Expr) -> str:
    """Write a formula of the busiest rank with `·` and `^`."""
    return str(sympy.factor_terms(busiest(e))).replace("**", "^").replace("*", "·")


def runs(numbers: Sequence[int]) -> str:
    """Return numbers in ascending order as text, neighbours as a range."""
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in groups)
