"""`partition`: a model on a mesh. From the split follow the formulas of what each rank computes, sends, stores and holds,
exact for any cut, and the steps that virtual ranks run."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy

from opmatrix.algebra.shapes import Shape
from opmatrix.algebra.term import Operator
from opmatrix.partition.booked import Booked, Crossing
from opmatrix.partition.cuts import piece
from opmatrix.partition.lies import local
from opmatrix.partition.mesh import Axis, Mesh
from opmatrix.partition.spreading import Sizes, Split
from opmatrix.partition.stages import Factor, chain, cut_stages


@dataclass(frozen=True)
class Part:
    """Factors of one stage that are split alike: the split of the first, its formulas, how many there are, and how many
    of these have arrays of their own."""
    split: Split
    booked: Booked
    count: int
    distinct: int
    factors: tuple[int, ...]

    @cached_property
    def flops(self) -> sympy.Expr:
        return sum((self.booked.flops(at) for at in range(len(self.split.steps))), sympy.Integer(0))
    @cached_property
    def crossings(self) -> list[Crossing]: return [*self.booked.crossings()]
    @cached_property
    def held(self) -> list[sympy.Expr]: return [*dict.fromkeys(self.booked.held())]
    @cached_property
    def stored(self) -> sympy.Expr: return sum((e for _, e in self.booked.stored().values()), sympy.Integer(0))


@dataclass(frozen=True)
class Partition:
    """A model on a mesh: parts by stage. Numbers are counted in numbers, not bytes: see `formulas`."""
    mesh: Mesh
    sizes: Sizes
    chain: Sequence[Factor]
    cuts: Sequence[tuple[int, int]]
    stages: Sequence[Sequence[Part]]
    name: str = "model"
    splits: Mapping[int, Split] = field(default_factory=dict)

    def stage(self, place: Sequence[int]) -> int:
        """The stage of a rank."""
        axis = self.mesh.stages
        return 0 if axis is None else place[self.mesh.index(axis.name)]

    def flops(self, stage: int = 0) -> sympy.Expr:
        """Multiplications and additions of one batch on a rank of a stage."""
        return sum((part.count * part.flops for part in self.stages[stage]), sympy.Integer(0))

    def crossings(self, stage: int = 0) -> Iterator[tuple[int, Crossing]]:
        """What crosses, and how often."""
        for part in self.stages[stage]:
            for found in part.crossings: yield part.count, found
            for axis in self.stored_over(3):
                whole = part.stored
                own = piece(whole, axis.ranks, axis.at)
                yield part.count, Crossing("all_gather", axis.name, sympy.sympify(own), whole - own, whole,
                                           sympy.sympify(axis.ranks) - 1, sympy.Integer(1), -1)
        if stage < len(self.stages) - 1:
            sent, axis = self.handed(stage), self.mesh.stages
            assert axis is not None
            yield 1, Crossing("send", axis.name, sent, sent, sent, sympy.Integer(1), sympy.Integer(1), -1)

    def handed(self, stage: int) -> sympy.Expr:
        """Numbers that a rank hands to the next stage."""
        split = self.splits[self.cuts[stage][1] - 1]
        return sympy.sympify(local(split.steps[split.out].dims, split.steps[split.out].lie, split.mesh).numbers)

    def stored_over(self, level: int) -> list[Axis]:
        """The axes over which what a stage of ZeRO names is stored once: 1 optimiser, 2 gradients, 3 weights."""
        return [axis for axis in self.mesh if axis.strategy.stored >= level]

    def parameters(self, stage: int = 0) -> sympy.Expr:
        """Numbers of the weights that a rank computes with, in all parts of its stage; arrays that two parts read are
        counted once."""
        found: dict[Any, sympy.Expr] = {}
        for part in self.stages[stage]:
            for (key, stored), (data, numbers) in part.booked.stored().items():
                shared = (data.base or data).key if part.count == part.distinct == 1 else key
                turned = stored.turned({"rows": "cols", "cols": "rows"}) if data.base is not None else stored
                found.setdefault((shared, turned, None if part.distinct == 1 else part.factors), part.distinct * numbers)
        return sum(found.values(), sympy.Integer(0))

    def state(self, stage: int = 0, weights: float = 2, gradients: float = 0, optimiser: float = 0) -> sympy.Expr:
        """Bytes of weights, gradients and optimiser on a rank, for so many of each a parameter; in mixed precision with
        Adam 2, 2 and 12 (Rajbhandari et al. 2020, section 3.1). An axis that stores them once divides them."""
        found = sympy.Integer(0)
        for level, size in ((3, weights), (2, gradients), (1, optimiser)):
            over = self.parameters(stage)
            for axis in self.stored_over(level): over = piece(over, axis.ranks, axis.at)
            found += sympy.nsimplify(size) * over
        return found

    def held(self, stage: int = 0) -> list[sympy.Expr]:
        """Numbers of values that a rank holds at a time, step by step: the largest is the peak."""
        return [*dict.fromkeys(e for part in self.stages[stage] for e in part.held)]

    def on(self, e: sympy.Expr, place: Sequence[int]) -> sympy.Expr:
        """A formula at the coordinates of a rank."""
        return e.xreplace({axis.at: sympy.Integer(r) for axis, r in zip(self.mesh.axes, place, strict=True)})

    def peak(self, place: Sequence[int]) -> int:
        """The most numbers of values that a rank holds at a time."""
        return max(int(self.on(e, place)) for e in self.held(self.stage(place)))


def partition(model: Operator, mesh: Mesh, sizes: Sizes = Sizes(), *, tokens: bool = True, name: str = "model",
              stages: Sequence[int] | None = None, cuts: Mapping[str, str] | None = None) -> Partition:
    """A model on a mesh, for a batch of those sizes, numbers or symbols. `tokens`: it reads one-hot tokens, else x is
    numbers. `stages`: layers of each stage of a pipeline. `cuts`: how weights are cut, "columns" or "rows", by their
    names; the rest follows. Raises InputError for a mesh that the model does not fit and for operators that no rule
    splits."""
    factors, axis = chain(model), mesh.stages
    bounds = cut_stages(factors, int(axis.ranks) if axis else 1, stages)
    known: dict[tuple[Any, ...], Split] = {}
    splits: dict[int, Split] = {}
    shape = Shape(1, model.into.rows, model.into.cols)
    for at, factor in enumerate(factors):
        first, last = at == 0, at == len(factors) - 1
        key = factor.signature, shape, first, last
        if key not in known:
            known[key] = Split(factor.term, mesh.flat, sizes, selects=tokens and first, x=shape, cuts=cuts, last=last)
        splits[at], shape = known[key], known[key].lines[known[key].result].shape
    made: list[list[Part]] = []
    for lo, hi in bounds:
        groups: dict[int, list[int]] = {}
        for at in range(lo, hi): groups.setdefault(id(splits[at]), []).append(at)
        made.append([part_of(splits[own[0]], own, factors) for own in groups.values()])
    return Partition(mesh, sizes, factors, bounds, made, name, splits)


def part_of(split: Split, own: Sequence[int], factors: Sequence[Factor]) -> Part:
    """Factors that are split alike."""
    return Part(split, Booked(split.steps, split.mesh, split.out), len(own), len({factors[at].arrays for at in own}),
                tuple(own))

