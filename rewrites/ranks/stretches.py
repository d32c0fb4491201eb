"""The steps of a stage as stretches: the computation of a rank between two collectives, which is one term. A
collective, a ring, or a step that is no term of rows of tokens is an item of its own between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from opmatrix.algebra.nodes import weight
from opmatrix.parallel.sharding.axis_states import Cut, Partial
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.moe_dispatch import ASKED
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.sharding.spreading import replaced

APART = (
    "move",
    "ring",
    "slice",
    "pick",
    "shift",
    "related",
    "entered",
    "symbol",
    *ASKED,
)  # operations outside of stretches
StepGroups: TypeAlias = dict[tuple[int, object], list[int]]  # borders before, sharding of rows -> steps of terms


class Stretch(NamedTuple):
    """Steps that are one term: the steps it computes, the steps whose values it reads, and the steps whose values
    others read."""

    steps: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class StageSteps:
    """The steps of all factors of a stage, one after the other. `factor` is the factor of each step, `entry` the step
    that a factor begins with, `out` the step that computes the result of the stage."""

    steps: Sequence[RankStep]
    factor: Sequence[int]
    entry: dict[int, int]
    out: int
    mesh: Mesh

    @classmethod
    def of(cls, plan: Partition, stage: int) -> StageSteps:
        """Return the steps of a stage of a partition, with the arrays of each of its factors."""
        lo, hi = plan.cuts[stage]
        steps, factor, entry, out = list[RankStep](), list[int](), dict[int, int](), -1
        for at in range(lo, hi):
            split, place = plan.split_of(at, routed=plan.mesh.experts is not None), dict[int, int]()
            for k, step in enumerate(split.steps):
                if step.op == "input" and at > lo:
                    place[k] = entry[at] = out
                    continue
                place[k] = len(steps)
                steps.append(step._replace(args=tuple(place[a] for a in step.args), more=replaced(step, place)))
                factor.append(at)
            out = place[split.out]
        return cls(steps, factor, entry, out, plan.mesh.flat)

    @cached_property
    def tokens(self) -> list[tuple[bool, bool]]:
        """For each value, (rows are tokens, columns are tokens). It is derived from the operations, as there may be as
        many columns as tokens."""
        by_step: list[tuple[bool, bool]] = []
        for step in self.steps:
            taken = [by_step[a] for a in step.args]
            match step.op:
                case "input" | "given":
                    by_step.append((True, False))
                case "by_distance":
                    by_step.append((True, True))
                case "act" if not taken:
                    by_step.append((False, False))
                case "act":
                    by_step.append((taken[0][0], taken[0][1] and step.more[0].entrywise))
                case "turn":
                    by_step.append(taken[0][::-1])
                case "product" | "ring":
                    by_step.append((taken[0][0], taken[1 if step.op == "product" else 2][1]))
                case _:
                    by_step.append((any(rows for rows, _ in taken), any(cols for _, cols in taken)))
        return by_step

    def row_cut(self, at: int) -> tuple[tuple[int, bool], ...]:
        """Return the axes that shard the sequences and tokens of a value, whether these are its rows or its columns;
        each with True if it shards sequences."""
        role = "rows" if self.tokens[at][0] else "cols"
        return tuple(
            (k, state.role == "batch")
            for k, state in self.steps[at].placement.cuts
            if isinstance(state, Cut) and state.role in ("batch", role)
        )

    @cached_property
    def known(self) -> list[bool]:
        """For each value, True if it is computed from constants and fields of the batch alone, such as the angles of
        positions."""
        by_step: list[bool] = []
        for step in self.steps:
            if step.op == "given":
                by_step.append(not has_cut_columns(step))
            elif step.op == "by_distance":
                by_step.append(not has_cut_tokens(step))
            else:
                by_step.append(step.op in ("act", "add", "mul") and all(by_step[a] for a in step.args))
        return by_step

    @cached_property
    def inlined(self) -> list[bool]:
        """For each step, True if each stretch that reads it computes it for itself: known values, one-hot rows, and
        transposed values, which have no row for each token and so enter no program."""
        return [
            known or step.op == "turn" or (step.op == "input" and step.selects)
            for known, step in zip(self.known, self.steps, strict=True)
        ]

    def reads(self, at: int) -> Iterator[int]:
        """Yield the steps that a step reads; for an inlined one, the steps that it reads in turn."""
        for arg in self.steps[at].args:
            if self.inlined[arg]:
                yield from self.reads(arg)
            else:
                yield arg

    def is_term(self, at: int) -> bool:
        """True if a step is an operation of terms, on rows that a rank holds."""
        step = self.steps[at]
        if step.op in APART or step.op == "input":
            return False
        if step.op == "by_distance" and has_cut_tokens(step):
            return False
        if any(isinstance(s, Partial) and not s.over.plain() for _, s in step.placement.cuts):
            return False
        chosen = [operand for operand in (self.steps[a] for a in step.args) if operand.selects]
        if chosen and not (step.op == "act" and step.more[0].kind is weight):
            return False
        if any(operand.op == "given" and has_cut_columns(operand) for operand in chosen):
            return False
        return step.op != "product" or self.is_alike(at)

    def is_alike(self, at: int) -> bool:
        """True if both operands of a product have the same rows, and rows that attend to one another are on this rank.
        A program has all sequences as its rows, so a product that contracts tokens must be within sequences."""
        step = self.steps[at]
        u, v = step.args
        if self.tokens[u][1]:
            where = step.more[1]
            if not where.within or where.relation is not None or not all(batch for _, batch in self.row_cut(u)):
                return False
        return self.tokens[u][0] and self.row_cut(u) == self.row_cut(v)

    def enters(self, at: int) -> bool:
        """True if a value may enter or leave a program: it has a row for each token of each sequence, and its columns
        are no tokens."""
        return self.tokens[at] == (True, False)


def has_cut_columns(step: RankStep) -> bool:
    """True if some axis shards the columns of a step's value."""
    return any(isinstance(s, Cut) and s.role == "cols" for _, s in step.placement.cuts)


def has_cut_tokens(step: RankStep) -> bool:
    """True if a rank holds the numbers of only some pairs of tokens."""
    return any(isinstance(s, Cut) and s.role in ("rows", "cols") for _, s in step.placement.cuts)


def divide(stage: StageSteps) -> list[Stretch | int]:
    """Return a stage as stretches, and steps that are items of their own, in an order in which they may run."""
    every = [at for at in range(len(stage.steps)) if not stage.inlined[at]]
    alone = {at for at in every if not stage.is_term(at)}
    depth, groups = deepen(stage, every, alone)
    while apart := find_torn(stage, every, groups):
        alone |= apart  # a value that cannot be handed on is computed where read
        depth, groups = deepen(stage, every, alone)
    readers: dict[int, list[int]] = {}
    for at in every:
        for arg in stage.reads(at):
            readers.setdefault(arg, []).append(at)
    items: list[tuple[int, int, Stretch | int]] = [(depth[at], at, at) for at in alone]
    for (level, _), members in groups.items():
        stretch = stretch_of(stage, members, readers)
        if stretch.outputs:
            items.append((level, members[0], stretch))
    return [entry for _, _, entry in sorted(items, key=lambda each: each[:2])]


def find_torn(stage: StageSteps, every: Sequence[int], groups: StepGroups) -> set[int]:
    """Return the grouped steps that compute or read a value across groups that may not leave its own."""
    home = {at: key for key, members in groups.items() for at in members}
    edges = [(arg, at) for at in every for arg in stage.reads(at) if not stage.enters(arg)]
    return {end for arg, at in edges if home.get(arg) != home.get(at) for end in (arg, at) if end in home}


def stretch_of(stage: StageSteps, members: Sequence[int], readers: Mapping[int, Sequence[int]]) -> Stretch:
    """Return a group of steps as a stretch, from the steps that read each value."""
    inside = {*members}
    inputs = sorted({arg for at in members for arg in stage.reads(at)} - inside)
    outputs = [at for at in members if at == stage.out or not inside.issuperset(readers.get(at, ()))]
    return Stretch(tuple(members), tuple(inputs), tuple(outputs))


def deepen(stage: StageSteps, every: Sequence[int], alone: set[int]) -> tuple[dict[int, int], StepGroups]:
    """Return the number of borders before each step, and the steps of terms grouped by that number and by the sharding
    of their rows."""
    depth, groups = dict[int, int](), dict[tuple[int, object], list[int]]()
    for at in every:
        cut = stage.row_cut(at)

        def behind(arg: int, at: int = at, cut: object = cut) -> int:
            """Return the borders before a step by way of an operand: one more unless both are terms of one sharding of
            rows."""
            joined = at not in alone and arg not in alone and stage.row_cut(arg) == cut
            return depth[arg] + (not joined)

        depth[at] = max((behind(arg) for arg in stage.reads(at)), default=0)
        if at not in alone:
            groups.setdefault((depth[at], cut), []).append(at)
    return depth, groups
