"""A mesh of ranks: axes with a name, a number of ranks and a strategy each. A strategy says how values lie between the
operators, and what is cut; what crosses follows."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Literal, TypeAlias

import sympy

from formats.core.errors import InputError
from opmatrix.algebra.shapes import LiveSize, size
from opmatrix.split.axis_states import Coordinate, Role

Mixing: TypeAlias = Literal["ring", "heads", "keys", "gathered"]


@dataclass(frozen=True)
class Strategy:
    """How one axis of a mesh splits a model.

    `home`: the dimension along which values between operators are cut, None for whole ones. `weights`: weights are cut
    by columns and rows in turns (Shoeybi et al. 2019). `vocabulary`: tables are cut by rows of tokens, heads of the
    vocabulary by columns. `mixing`: how attention meets rows that are cut: keys go round in a ring (Liu et al. 2023),
    rows change with heads (Jacobs et al. 2023, Ulysses), keys stay and queries come (each rank merges a carrier), keys
    are gathered. `layers`: stages of layers, one after the other. `stored`: what is stored once over the axis: 1
    optimiser, 2 gradients, too, 3 weights, too (Rajbhandari et al. 2020, ZeRO). `by_hand`: only weights that are
    named are cut, and those that follow from them."""
    name: str
    home: Role | None = None
    weights: bool = False
    vocabulary: bool = False
    mixing: Mixing | None = None
    layers: bool = False
    stored: int = 0
    by_hand: bool = False

    @property
    def cuts_weights(self) -> bool: return self.weights or self.vocabulary or self.by_hand


STRATEGIES = {each.name: each for each in (
    Strategy("data", home="batch"),
    Strategy("zero1", home="batch", stored=1),
    Strategy("zero2", home="batch", stored=2),
    Strategy("zero3", home="batch", stored=3),
    Strategy("tensor", weights=True),
    Strategy("tensor-vocabulary", weights=True, vocabulary=True),
    Strategy("sequence", home="rows", weights=True),
    Strategy("sequence-vocabulary", home="rows", weights=True, vocabulary=True),
    Strategy("vocabulary", vocabulary=True),
    Strategy("ring", home="rows", mixing="ring"),
    Strategy("ulysses", home="rows", mixing="heads"),
    Strategy("keys", home="rows", mixing="keys"),
    Strategy("gathered", home="rows", mixing="gathered"),
    Strategy("rows", home="rows", mixing="gathered"),
    Strategy("pipeline", layers=True),
    Strategy("by-hand", by_hand=True))}

HOST = "host"                                               # where what is offloaded crosses
CONTEXTS = "ring", "ulysses", "keys", "gathered"


def strategy_named(name: str) -> Strategy:
    """Raises InputError for a strategy that there is not."""
    if name in STRATEGIES: return STRATEGIES[name]
    raise InputError(f"strategy {name!r}: there is none of this name: {', '.join(STRATEGIES)}")


@dataclass(frozen=True)
class Axis:
    """So many ranks that split a model by one strategy. Where the number is a symbol, sizes are taken to divide."""
    name: str
    ranks: LiveSize
    strategy: Strategy

    @property
    def at(self) -> Coordinate:
        """The coordinate of a rank on the axis."""
        return Coordinate(f"r_{self.name}", integer=True, nonnegative=True)

    @property
    def count(self) -> int:
        """The ranks, where a number is needed. Raises InputError for a name."""
        if isinstance(self.ranks, int): return self.ranks
        raise InputError(f"mesh: axis {self.name} has {self.ranks} ranks, a name: a number is needed here")


@dataclass(frozen=True)
class Mesh:
    """Axes, the outermost first: ranks of the last one are neighbours. One rank splits nothing. `offload`: what lies in
    the memory of each device's host, by the stages of ZeRO (Ren et al. 2021, ZeRO-Offload): 1 the optimiser, 2
    gradients, too, 3 weights, too, each fetched where it is read. Raises InputError for ranks that are none, for two
    axes that split the same thing, and for a stage that there is not."""
    axes: tuple[Axis, ...] = ()
    offload: int = 0

    @classmethod
    def of(cls, **axes: tuple[LiveSize | str, str | Strategy]) -> Mesh:
        """`Mesh.of(dp=(2, "data"), tp=(4, "tensor"))`: the ranks of an axis and its strategy."""
        made = []
        for name, (ranks, strategy) in axes.items():
            if isinstance(ranks, str) and ranks.isidentifier(): ranks = size(ranks)
            if isinstance(ranks, bool) or (not isinstance(ranks, sympy.Expr) and (
                    not isinstance(ranks, int) or ranks < 1)):
                raise InputError(f"mesh: axis {name} has {ranks!r} ranks: give a whole number from 1 on, or a name")
            found = strategy_named(strategy) if isinstance(strategy, str) else strategy
            made.append(Axis(name, ranks, Strategy(found.name, layers=found.layers) if ranks == 1 else found))
        return cls(tuple(made))

    def __post_init__(self) -> None:
        if self.offload not in range(4):
            raise InputError(f"offload {self.offload}: 1 the optimiser, 2 gradients, too, 3 weights, too, or 0")
        for number, axis in enumerate(self.axes):
            twin = next((each for each in self.axes[:number] if 1 not in (each.ranks, axis.ranks)
                         and meet(each.strategy, axis.strategy)), None)
            if twin is not None:
                by = axis.strategy.name
                if by != twin.strategy.name: by = f"what {twin.strategy.name} and {by} have in common"
                raise InputError(f"mesh: axes {twin.name} and {axis.name} both split by {by}: make them one axis, of "
                                 "as many ranks as both")

    @property
    def ranks(self) -> LiveSize: return prod((axis.ranks for axis in self.axes), start=1)
    def __iter__(self) -> Iterator[Axis]: return iter(self.axes)
    def __len__(self) -> int: return len(self.axes)
    def index(self, name: str) -> int: return next(k for k, axis in enumerate(self.axes) if axis.name == name)

    @property
    def flat(self) -> Mesh:
        """Without its axes of stages, which cut layers and no value."""
        return replace(self, axes=tuple(axis for axis in self.axes if not axis.strategy.layers))

    @property
    def stages(self) -> Axis | None: return next((axis for axis in self.axes if axis.strategy.layers), None)

    def places(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of every rank, the last axis fastest. Raises InputError for ranks that are a name."""
        return product(*(range(axis.count) for axis in self.axes))


def usual_mesh(dp: int = 1, tp: int = 1, pp: int = 1, cp: int = 1, *, zero: int = 0, zero_ranks: int | None = None,
               offload: int = 0, context: str = "ring", sequence: bool = False, vocabulary: bool = False) -> Mesh:
    """Axes by their usual names, those of one rank left out: stages `pp` outermost, then data `dp` with its stage of
    ZeRO, context `cp`, and tensor `tp` innermost, between neighbours. `zero_ranks`: so many neighbours of `dp` store
    what ZeRO says once, and other such groups (`copies`) have it again. `sequence`: norms are cut by rows over `tp`;
    `vocabulary`: tables and heads of the vocabulary, too. Raises InputError for numbers that are none."""
    if zero not in range(4): raise InputError(f"zero {zero}: a stage of ZeRO is 0, 1, 2 or 3")
    if zero and dp == 1: raise InputError(f"zero {zero}: it stores state over the ranks of dp, of which there is one")
    within = dp if zero_ranks is None else zero_ranks
    if zero_ranks is not None and not zero: raise InputError(f"zero ranks {zero_ranks}: of no stage of ZeRO: give zero")
    if within < 1 or dp % within: raise InputError(f"zero ranks {within}: they divide dp, {dp}")
    if context not in CONTEXTS: raise InputError(f"context {context!r}: it is one of {', '.join(CONTEXTS)}")
    tensor = ("sequence" if sequence else "tensor") + "-vocabulary" * vocabulary
    axes = dict(pp=(pp, "pipeline"), copies=(dp // within, "data"), dp=(within, f"zero{zero}" if zero else "data"),
                cp=(cp, context), tp=(tp, tensor))
    return replace(Mesh.of(**{name: axis for name, axis in axes.items() if axis[0] != 1}), offload=offload)


def meet(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies cut the same things, so that a mesh has one of them. What is stored once is gathered level
    by level, so ZeRO may have several axes."""
    alike = one.name == other.name and not one.stored
    return alike or (one.weights and other.weights) or (one.layers and other.layers) or (
        one.mixing is not None and one.mixing == other.mixing)
