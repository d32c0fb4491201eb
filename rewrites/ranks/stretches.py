"""The steps of a stage as stretches: what a rank computes between two crossings, which is one term. What crosses, goes
round in a ring, or is no term of rows of tokens stands alone between them."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from opmatrix.algebra.nodes import weight
from opmatrix.parallel.sharding.axis_states import Cut, Partial
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.moe_dispatch import ASKED
from opmatrix.parallel.sharding.partition import Partition
from opmatrix.parallel.sharding.redistribute import RankStep
from opmatrix.parallel.sharding.spreading import replaced

APART = "move", "ring", "slice", "pick", "related", "entered", "symbol", *ASKED     # of no stretch


class Stretch(NamedTuple):
    """Steps that are one term: those that it computes, what it takes of other steps, what others take of it."""
    steps: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class StageSteps:
    """The steps of all factors of a stage, one after the other: `factor` says of which each is, `entry` which step a
    factor begins with, `out` which gives what the stage gives."""
    steps: Sequence[RankStep]
    factor: Sequence[int]
    entry: dict[int, int]
    out: int
    mesh: Mesh

    @classmethod
    def of(cls, plan: Partition, stage: int) -> StageSteps:
        """What a stage of a partition does, with the arrays of each of its factors."""
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
        """Whether rows, and columns, of each value are tokens: read off what operations do, as there may be as many
        columns as tokens."""
        found: list[tuple[bool, bool]] = []
        for step in self.steps:
            taken = [found[a] for a in step.args]
            match step.op:
                case "input" | "given": found.append((True, False))
                case "by_distance": found.append((True, True))
                case "act" if not taken: found.append((False, False))
                case "act": found.append((taken[0][0], taken[0][1] and step.more[0].entrywise))
                case "turn": found.append(taken[0][::-1])
                case "product" | "ring": found.append((taken[0][0], taken[1 if step.op == "product" else 2][1]))
                case _: found.append((any(rows for rows, _ in taken), any(cols for _, cols in taken)))
        return found

    def row_cut(self, at: int) -> tuple[tuple[int, bool], ...]:
        """The axes that cut sequences and tokens of a value, be these its rows or its columns; whether sequences."""
        role = "rows" if self.tokens[at][0] else "cols"
        return tuple((k, state.role == "batch") for k, state in self.steps[at].placement.cuts
                     if isinstance(state, Cut) and state.role in ("batch", role))

    @cached_property
    def known(self) -> list[bool]:
        """Whether a value is made of constants and fields of the batch alone, as angles of positions are."""
        found: list[bool] = []
        for step in self.steps:
            if step.op == "given": found.append(not has_cut_columns(step))
            elif step.op == "by_distance": found.append(not has_cut_tokens(step))
            else: found.append(step.op in ("act", "add", "mul") and all(found[a] for a in step.args))
        return found

    @cached_property
    def inlined(self) -> list[bool]:
        """Whether each stretch that reads a step has it for itself: what is known, one-hot rows, and turned values,
        which have no row for each token and so enter no program."""
        return [known or step.op == "turn" or (step.op == "input" and step.selects)
                for known, step in zip(self.known, self.steps, strict=True)]

    def reads(self, at: int) -> Iterator[int]:
        """The steps that a step takes; of one that is inlined, those behind it."""
        for arg in self.steps[at].args:
            if self.inlined[arg]: yield from self.reads(arg)
            else: yield arg

    def is_term(self, at: int) -> bool:
        """Whether a step is an operation of terms, on rows that a rank has."""
        step = self.steps[at]
        if step.op in APART or step.op == "input": return False
        if step.op == "by_distance" and has_cut_tokens(step): return False
        if any(isinstance(s, Partial) and not s.over.plain() for _, s in step.placement.cuts): return False
        chosen = [each for each in (self.steps[a] for a in step.args) if each.selects]
        if chosen and not (step.op == "act" and step.more[0].kind is weight): return False
        if any(each.op == "given" and has_cut_columns(each) for each in chosen): return False
        return step.op != "product" or self.is_alike(at)

    def is_alike(self, at: int) -> bool:
        """Whether both operands of a product have the same rows, and those that see each other are all here. A program
        has all sequences as its rows, so a product that contracts tokens must be within them."""
        step = self.steps[at]
        u, v = step.args
        if self.tokens[u][1]:
            where = step.more[1]
            if not where.within or where.relation is not None or not all(batch for _, batch in self.row_cut(u)):
                return False
        return self.tokens[u][0] and self.row_cut(u) == self.row_cut(v)

    def enters(self, at: int) -> bool:
        """Whether a value may cross the border of a program: a row for each token of each sequence, of columns."""
        return self.tokens[at] == (True, False)


def has_cut_columns(step: RankStep) -> bool:
    return any(isinstance(s, Cut) and s.role == "cols" for _, s in step.placement.cuts)


def has_cut_tokens(step: RankStep) -> bool:
    """Whether a rank has numbers of some pairs of tokens alone."""
    return any(isinstance(s, Cut) and s.role in ("rows", "cols") for _, s in step.placement.cuts)


def divide(stage: StageSteps) -> list[Stretch | int]:
    """A stage as stretches, and steps that stand alone, in an order in which they may run."""
    every = [at for at in range(len(stage.steps)) if not stage.inlined[at]]
    alone = {at for at in every if not stage.is_term(at)}
    while True:
        depth, groups = deepen(stage, every, alone)
        home = {at: key for key, members in groups.items() for at in members}
        edges = [(arg, at) for at in every for arg in stage.reads(at) if not stage.enters(arg)]
        apart = {end for arg, at in edges if home.get(arg) != home.get(at) for end in (arg, at) if end in home}
        if not apart: break
        alone |= apart                                      # what cannot be handed on is computed where it is read
    readers: dict[int, list[int]] = {}
    for at in every:
        for arg in stage.reads(at): readers.setdefault(arg, []).append(at)
    made: list[tuple[int, int, Stretch | int]] = [(depth[at], at, at) for at in alone]
    for (level, _), members in groups.items():
        own = {*members}
        inputs = sorted({arg for at in members for arg in stage.reads(at)} - own)
        outputs = [at for at in members if at == stage.out or any(r not in own for r in readers.get(at, ()))]
        if outputs: made.append((level, members[0], Stretch(tuple(members), tuple(inputs), tuple(outputs))))
    return [each for _, _, each in sorted(made, key=lambda each: each[:2])]


def deepen(stage: StageSteps, every: Sequence[int],
           alone: set[int]) -> tuple[dict[int, int], dict[tuple[int, object], list[int]]]:
    """How many borders lie before each step, and the steps of terms by that and by how rows are cut."""
    depth, groups = dict[int, int](), dict[tuple[int, object], list[int]]()
    for at in every:
        cut = stage.row_cut(at)
        def behind(arg: int, at: int = at, cut: object = cut) -> int:
            joined = at not in alone and arg not in alone and stage.row_cut(arg) == cut
            return depth[arg] + (not joined)
        depth[at] = max((behind(arg) for arg in stage.reads(at)), default=0)
        if at not in alone: groups.setdefault((depth[at], cut), []).append(at)
    return depth, groups
