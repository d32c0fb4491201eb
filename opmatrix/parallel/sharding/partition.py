"""`partition`: a model on a mesh. The split determines the formulas of the operations, communication, stored and held
numbers of each rank, exact for any sharding, and the steps that virtual ranks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

import sympy

from formats.core.errors import InputError
from opmatrix import body
from opmatrix.algebra.batch.batch_sizes import BatchSizes, Dims
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize, S, Shape, Space, T
from opmatrix.algebra.term import Operator
from opmatrix.models import promised
from opmatrix.models.config import Settings
from opmatrix.parallel.sharding.axis_states import piece
from opmatrix.parallel.sharding.carrying import asked_of
from opmatrix.parallel.sharding.cost_formulas import Booked, Crossing, add_up, gathers
from opmatrix.parallel.sharding.factor_chain import Factor, chain, cut_stages
from opmatrix.parallel.sharding.haloed import FromRelation
from opmatrix.parallel.sharding.mesh import HOST, Mesh
from opmatrix.parallel.sharding.placement import local
from opmatrix.parallel.sharding.spreading import Split, SplitOptions


@dataclass(frozen=True)
class FactorGroup:
    """Factors of one stage that are split alike."""

    split: Split  # split of one of the factors
    booked: Booked  # its formulas
    own: tuple[Data, ...]  # its arrays
    arrays: tuple[tuple[Data, ...], ...]  # arrays of every factor

    @property
    def count(self) -> int:
        """The number of factors."""
        return len(self.arrays)

    def distinct(self, data: Data) -> set[str]:
        """Return the keys of the arrays at one array's position in all factors; a shared array counts once."""
        source = data.cut_of or data
        at = self.own.index(source.base or source)
        return {arrays[at].key for arrays in self.arrays}

    @cached_property
    def flops(self) -> sympy.Expr:
        """The operations of one factor on a rank."""
        return add_up(self.booked.flops(at) for at in range(len(self.split.steps)))

    @cached_property
    def crossings(self) -> list[Crossing]:
        """The communication of one factor."""
        return [*self.booked.crossings()]

    @cached_property
    def held(self) -> list[sympy.Expr]:
        """The counts of numbers that a rank holds at a time, equal formulas once."""
        return [*dict.fromkeys(self.booked.held())]

    @cached_property
    def stored(self) -> list[LiveSize]:
        """The numbers that a rank stores of each array."""
        return [dims.numbers for _, dims in self.booked.stored().values()]


@dataclass(frozen=True)
class Partition:
    """A model on a mesh: groups of factors by stage. Sizes are in numbers, not bytes: see `formulas`."""

    mesh: Mesh
    sizes: BatchSizes  # sizes of the batch
    chain: Sequence[Factor]  # factors, from the input on
    cuts: Sequence[tuple[int, int]]  # first factor and end of each stage
    stages: Sequence[Sequence[FactorGroup]]  # groups of factors of each stage
    name: str = "model"
    splits: Mapping[int, Split] = field(default_factory=dict)  # splits by the index of the factor

    @cached_property
    def like(self) -> list[int]:
        """The first stage with as many of the same factors, and so the same formulas, for each stage."""
        last, known = len(self.stages) - 1, dict[object, int]()
        return [
            known.setdefault((k == last, *((id(group.split), group.count) for group in groups)), k)
            for k, groups in enumerate(self.stages)
        ]

    def stage(self, place: Sequence[int]) -> int:
        """Return the stage of a rank."""
        axis = self.mesh.stages
        return 0 if axis is None else place[self.mesh.index(axis.name)]

    def flat(self, place: Sequence[int]) -> tuple[int, ...]:
        """Return the coordinates of a rank within its stage."""
        return tuple(r for axis, r in zip(self.mesh.axes, place, strict=True) if not axis.strategy.layers)

    def split_of(self, at: int, routed: bool = True) -> Split:
        """Return the split of one factor with its own arrays. If it is `routed`, experts answer only the rows that are
        routed to them."""
        known = self.splits[at]
        return Split(self.chain[at].term, known.mesh, self.sizes, known.options, routed=routed)

    def formulas(self, stage: int = 0, **how: Any) -> Any:
        """Return the formulas of the busiest rank of a stage, as `opmatrix.parallel.cost.formulas.Formulas`. `how`:
        number types, storage of weights, training."""
        return body("parallel.cost.formulas.Formulas")(self, stage, **how)

    def __str__(self) -> str:
        return str(body("parallel.cost.overview.Overview")(self).text())

    def _repr_html_(self) -> str:
        return str(body("display.shown.partition_html")(self))

    def flops(self, stage: int = 0) -> sympy.Expr:
        """Return the multiplications and additions of one batch on a rank of a stage."""
        return add_up(part.count * part.flops for part in self.stages[stage])

    def crossings(self, stage: int = 0) -> Iterator[tuple[int, Crossing]]:
        """Yield the communication of a rank of a stage, each crossing with its number of times."""
        for part in self.stages[stage]:
            for crossing in part.crossings:
                yield part.count, crossing
            arrays = [numbers for numbers in part.stored if not self.by_expert(numbers)]
            experts = add_up(numbers for numbers in part.stored if self.by_expert(numbers))
            for crossing in gathers(arrays, self.mesh.storing(3)):
                yield part.count, crossing
            if part.stored and self.mesh.offload > 2:
                sent = add_up(self.share(numbers, 3) for numbers in arrays) + experts
                yield (
                    part.count,
                    Crossing("fetch", HOST, sent, sent, sent, sympy.Integer(1), sympy.Integer(0), "weights"),
                )
        for crossing in self.handing(stage):
            yield 1, crossing

    def handing(self, stage: int) -> Iterator[Crossing]:
        """Yield the crossing in which a rank of a stage sends to the next stage, or gets back from it. There is none
        behind the last stage, and without stages."""
        along = self.mesh.stages
        if along is None or not 0 <= stage < len(self.stages) - 1:
            return
        sent, one = self.handed(stage), sympy.Integer(1)
        yield Crossing("send", along.name, sent, sent, sent, one, one, "stage")

    def handed(self, stage: int) -> sympy.Expr:
        """Return the numbers that a rank hands to the next stage."""
        split = self.splits[self.cuts[stage][1] - 1]
        return sympy.sympify(local(split.steps[split.out].dims, split.steps[split.out].placement, split.mesh).numbers)

    def weights(self, stage: int = 0) -> list[tuple[Data, Dims, int]]:
        """Return each array that a rank computes with in its stage, its local sizes, and its number of layers. An array
        that two parts read counts once."""
        arrays: dict[Any, tuple[Data, Dims]] = {}
        for group in self.stages[stage]:
            for (key, stored), (data, dims) in group.booked.stored().items():
                for name in group.distinct(data):
                    arrays[name, key if data.cut_of else "", stored] = data, dims
        times = Counter((id(data), dims) for data, dims in arrays.values())
        by_key = {(id(data), dims): (data, dims) for data, dims in arrays.values()}
        return [(*by_key[key], count) for key, count in times.items()]

    def parameters(self, stage: int = 0) -> sympy.Expr:
        """Return the numbers of the weights that a rank computes with."""
        return add_up(count * dims.numbers for _, dims, count in self.weights(stage))

    def state(self, stage: int = 0, weights: float = 2, gradients: float = 0, optimiser: float = 0) -> sympy.Expr:
        """Return the bytes of weights, gradients and optimiser on a rank, given the bytes of each per parameter; in
        mixed precision with Adam 2, 2 and 12 (Rajbhandari et al. 2020, section 3.1). An axis that stores them once
        divides each array."""
        total = sympy.Integer(0)
        for level, size in ((3, weights), (2, gradients), (1, optimiser)):
            for _, dims, count in self.weights(stage) if size else ():
                total += sympy.nsimplify(size) * count * self.share(dims.numbers, level)
        return total

    def share(self, numbers: LiveSize, level: int) -> LiveSize:
        """Return the numbers that a rank stores of an array that a ZeRO stage stores once over its axes. Arrays of
        experts are stored once over the axes of their copies; weights of experts are not, because rows are sent to
        them."""
        for axis in self.mesh.storing(level):
            if not self.by_expert(numbers):
                numbers = piece(numbers, axis.ranks, axis.at)
            elif level < 3:
                numbers = piece(numbers, self.mesh.copies(axis), 0)
        return numbers

    def by_expert(self, numbers: LiveSize) -> bool:
        """True if the numbers are those of an array that ranks share expert by expert."""
        axis = self.mesh.experts
        return axis is not None and axis.at in sympy.sympify(numbers).free_symbols

    def gathered(self, stage: int = 0) -> list[sympy.Expr]:
        """Return the numbers of the weights of each factor that are whole only while it runs, because they are stored
        in pieces or by the host."""
        if not self.mesh.storing(3) and self.mesh.offload < 3:
            return []
        return [
            *dict.fromkeys(
                add_up(size for size in part.stored if self.mesh.offload > 2 or not self.by_expert(size))
                for part in self.stages[stage]
            )
        ]

    def held(self, stage: int = 0) -> list[sympy.Expr]:
        """Return the numbers of values that a rank holds at a time, step by step: the largest is the peak."""
        return [*dict.fromkeys(e for part in self.stages[stage] for e in part.held)]

    def on(self, e: sympy.Expr, place: Sequence[int]) -> sympy.Expr:
        """Return a formula at the coordinates of a rank, with the numbers that the relations of the batch determine."""
        ranks = {axis.at: sympy.Integer(r) for axis, r in zip(self.mesh.axes, place, strict=True)}
        formula = sympy.sympify(e).xreplace(ranks)
        return formula.xreplace({number: self.said(number) for number in formula.atoms(FromRelation)})

    @cached_property
    def counts(self) -> dict[FromRelation, sympy.Expr]:
        """The numbers of relations that were counted so far."""
        return {}  # numbers of relations, counted once

    def said(self, each: FromRelation) -> sympy.Expr:
        """Return the number that the relations of the batch determine; the symbol itself if they do not."""
        if each not in self.counts:
            whole = self.sizes.entries(each.relation) if each.placed else None
            self.counts[each] = each if whole is None else sympy.Integer(each.count(whole))
        return self.counts[each]

    def peak(self, place: Sequence[int]) -> int:
        """Return the most numbers of values that a rank holds at a time. Raises InputError if it depends on a relation
        that the sizes do not give, or on a size that is a symbol."""
        amounts = [self.on(e, place) for e in self.held(self.stage(place))]
        if unknown := sorted({number.relation for e in amounts for number in e.atoms(FromRelation)}):
            raise InputError(
                f"relation {unknown[0]}: the shards of ranks depend on its entries: BatchSizes(.., "
                "relations={name: matrix})"
            )
        if named := sorted({str(symbol) for e in amounts for symbol in e.free_symbols}):
            raise InputError(f"{named[0]}: it is a symbolic size: a peak needs its number")
        return max(map(int, amounts))


WAYS = "columns", "rows", "whole"


def partition(
    model: Operator | Settings,
    mesh: Mesh,
    sizes: BatchSizes = BatchSizes(),
    *,
    tokens: bool = True,
    name: str = "model",
    stages: Sequence[int] | None = None,
    cuts: Mapping[str, str] | None = None,
) -> Partition:
    """Partition a model over a mesh, for a batch of the given sizes, numbers or symbols. `tokens`: it reads one-hot
    tokens, else x is numbers. `stages`: layers of each stage of a pipeline. `cuts`: how weights are sharded over an
    axis by tensor or by hand, by patterns of their names: "columns", "rows" or "whole"; the rest follows. Raises
    InputError for a mesh that the model does not fit, for a pattern that no weight fits, and for operators that no rule
    splits."""
    model = model if isinstance(model, Operator) else promised(model)
    check_sizes(sizes)
    factors, along = chain(model, cuts), mesh.stages
    check_cuts(factors, cuts or {})
    bounds = cut_stages(factors, along.count if along else 1, stages)
    known: dict[tuple[Any, ...], Split] = {}
    splits: dict[int, Split] = {}
    shape = Shape(1, model.into.rows, model.into.cols)
    for at, factor in enumerate(factors):
        first, last = at == 0, at == len(factors) - 1
        key = factor.signature, shape, first, last, tuple(asked_of(data, cuts or {}) for data in factor.arrays)
        if key not in known:
            known[key] = Split(factor.term, mesh.flat, sizes, SplitOptions(shape, tokens and first, cuts, last))
        splits[at], shape = known[key], known[key].lines[known[key].result].shape
    check_positions(known.values(), sizes.tokens)
    check_asked(mesh, known.values(), name)
    if not any(is_other(line.shape.rows) for split in known.values() for line in split.lines):
        check_batch(mesh, sizes)
    by_stage: list[list[FactorGroup]] = []
    for lo, hi in bounds:
        groups: dict[int, list[int]] = {}
        for at in range(lo, hi):
            groups.setdefault(id(splits[at]), []).append(at)
        by_stage.append([part_of(splits, members, factors) for members in groups.values()])
    return Partition(mesh, sizes, factors, bounds, by_stage, name, splits)


def check_sizes(sizes: BatchSizes) -> None:
    """Raise InputError for sequences or tokens that are neither a whole number from 1 on nor an expression."""
    for what, number in (("sequences", sizes.sequences), ("tokens", sizes.tokens)):
        if isinstance(number, sympy.Expr) or (type(number) is int and number > 0):
            continue
        raise InputError(f"{what} {number!r}: give a whole number from 1 on, or a name")


def check_cuts(factors: Sequence[Factor], cuts: Mapping[str, str]) -> None:
    """Raise InputError for an unknown way to shard, and for a pattern that no weight fits."""
    names = {data.name for factor in factors for data in factor.arrays if data.name and 1 not in (1, *data.shape)[-2:]}
    for pattern, how in cuts.items():
        if how not in WAYS:
            raise InputError(f"cuts: {pattern}: {how!r}: a weight is cut by {', '.join(WAYS)}")
        if not any(fnmatch(name, pattern) for name in names):
            raise InputError(f"cuts: no weight is called {pattern!r}: names are such as {', '.join(sorted(names)[:4])}")


def is_other(rows: LiveSize) -> bool:
    """True if rows are neither tokens nor sequences, and so may be sharded however many tokens and sequences there
    are."""
    return isinstance(rows, Space) and rows not in (T, S)


def check_batch(mesh: Mesh, sizes: BatchSizes) -> None:
    """Raise InputError for ranks that would share one sequence, or one token, if there are no other rows."""
    for axis in () if sizes.spaces else mesh:
        count, what = {"batch": (sizes.sequences, "sequence"), "rows": (sizes.tokens, "token")}.get(
            axis.strategy.home or "", (None, "")
        )
        if count == 1 and isinstance(axis.ranks, int) and axis.ranks > 1:
            raise InputError(f"mesh: {axis.name} has {axis.ranks} ranks and there is 1 {what}: at most 1 rank")


def check_asked(mesh: Mesh, splits: Iterable[Split], name: str) -> None:
    """Raise InputError for ranks of experts if a model has no experts."""
    if mesh.experts is None or mesh.experts.ranks == 1 or any(split.mixtures for split in splits):
        return
    raise InputError(
        f"mesh: {mesh.experts.name} has {mesh.experts.ranks} ranks for experts, and {name} has no experts: "
        f"leave {mesh.experts.name} out"
    )


def check_positions(splits: Iterable[Split], tokens: LiveSize) -> None:
    """Raise InputError for sequences that are longer than the positions of a model."""
    positions = (line for split in splits for line in split.lines if line.op == "given" and line.more[0] == "positions")
    for line in positions:
        last = line.shape.cols
        if isinstance(last, int) and isinstance(tokens, int) and tokens > last:
            raise InputError(f"tokens {tokens}: the model has {last} positions: at most {last} tokens a sequence")


def part_of(splits: Mapping[int, Split], own: Sequence[int], factors: Sequence[Factor]) -> FactorGroup:
    """Return the group of some factors of a stage that are split alike."""
    split = splits[own[0]]
    first = next(at for at, other in splits.items() if other is split)
    return FactorGroup(
        split,
        Booked(split.steps, split.mesh, split.out),
        factors[first].arrays,
        tuple(factors[at].arrays for at in own),
    )
