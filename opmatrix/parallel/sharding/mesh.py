"""A mesh of ranks: axes with a name, a number of ranks and a strategy each. A strategy says how values lie between the
operators, and what is cut; what crosses follows."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import gcd, inf, prod
from typing import Literal, TypeAlias

import sympy

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import Role
from opmatrix.algebra.shapes import LiveSize, size
from opmatrix.parallel.sharding.axis_states import Coordinate

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
    named are cut, and those that follow from them. `experts`: experts lie on it; "cut": an axis by tensor cuts each of
    them further; "whole": none does, and they lie over that axis, too."""
    name: str
    home: Role | None = None
    weights: bool = False
    vocabulary: bool = False
    mixing: Mixing | None = None
    layers: bool = False
    stored: int = 0
    by_hand: bool = False
    experts: Literal["cut", "whole"] | None = None

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

EXPERT_STRATEGIES = {each.name: each for each in (      # of an axis of its own over the ranks of others
    Strategy("experts", experts="cut"),
    Strategy("whole-experts", experts="whole"))}

HOST = "host"                                               # where what is offloaded crosses
CONTEXTS = "ring", "ulysses", "keys", "gathered"


def strategy_named(name: str) -> Strategy:
    """Raises InputError for a strategy that there is not."""
    known = STRATEGIES | EXPERT_STRATEGIES
    if name in known: return known[name]
    raise InputError(f"strategy {name!r}: there is none of this name: {', '.join(known)}")


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
    gradients, too, 3 weights, too, each fetched where it is read.

    An axis of experts adds no ranks: it factors those of the axes that cut sequences and tokens once more (Liu et al.
    2025, MoE Parallel Folding), so many neighbours having all experts, and other such groups copies of them. It is the
    last, and a rank's coordinate on it follows from the others. `load`: how many times as many rows as on the mean the
    busiest rank of experts is sent, where routing is uneven. `node`: so many neighbours of the axis of experts are one
    node, to which a row goes once, however many experts it asks there, and on from there (DeepSeek-AI 2024, section
    3.2.2); `visits`: the nodes that a row goes to, as many as can be without it. Raises InputError for ranks that are
    none, for two axes that split the same thing, for a stage that there is not, for experts that do not fit the other
    axes."""
    axes: tuple[Axis, ...] = ()
    offload: int = 0
    load: LiveSize | float = 1
    node: int = 0
    visits: int = 0

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
            if ranks == 1: found = Strategy(found.name, layers=found.layers, experts=found.experts)
            made.append(Axis(name, ranks, found))
        return cls(tuple(made))

    def __post_init__(self) -> None:
        if self.offload not in range(4):
            raise InputError(f"offload {self.offload}: 1 the optimiser, 2 gradients, too, 3 weights, too, or 0")
        object.__setattr__(self, "axes", tuple(sorted(self.axes, key=lambda axis: axis.strategy.experts is not None)))
        for number, axis in enumerate(self.axes):
            twin = next((each for each in self.axes[:number] if 1 not in (each.ranks, axis.ranks)
                         and meet(each.strategy, axis.strategy)), None)
            if twin is not None:
                by = axis.strategy.name
                if by != twin.strategy.name: by = f"what {twin.strategy.name} and {by} have in common"
                raise InputError(f"mesh: axes {twin.name} and {axis.name} both split by {by}: make them one axis, of "
                                 "as many ranks as both")
        self.check_experts()

    def check_experts(self) -> None:
        """Raises InputError for ranks of experts that other axes have not, and for a load that is none."""
        if not isinstance(self.load, sympy.Expr) and (isinstance(self.load, bool) or not 1 <= self.load < inf):
            raise InputError(f"load {self.load}: times the mean that the busiest has: a number from 1 on, or a name")
        if self.experts is None or self.experts.ranks == 1:
            if self.node or self.visits: raise InputError(f"node {self.node}: of no ranks of experts: give ep")
            return
        if not self.node and self.visits: raise InputError(f"visits {self.visits}: of no nodes: give node")
        if self.node and (self.node < 1 or self.experts.count % self.node):
            raise InputError(f"node {self.node}: {self.experts.name} has {self.experts.ranks} ranks, of which as many "
                             f"lie in each node: a divisor of {self.experts.ranks}")
        if self.node and not 0 <= self.visits <= self.nodes:
            raise InputError(f"visits {self.visits}: there are {self.nodes} nodes: from 1 to {self.nodes}")
        within, names = [self.axes[k].ranks for k in self.folded], [self.axes[k].name for k in self.folded]
        if not within:
            raise InputError(f"mesh: {self.experts.name} has {self.experts.ranks} ranks, and no axis cuts sequences or "
                             "tokens, over which experts lie: give data or context as many ranks, such as "
                             f"dp={self.experts.ranks}")
        if not all(isinstance(n, int) for n in (*within, self.experts.ranks)): return
        if prod(within) % self.experts.count:
            raise InputError(f"mesh: {self.experts.name} has {self.experts.ranks} ranks, and {' × '.join(names)}, over "
                             f"which experts lie, {prod(within)}: the nearest that divides is "
                             f"{nearest_divisor(prod(within), self.experts.count)}")

    @property
    def ranks(self) -> LiveSize: return prod((axis.ranks for axis in self.devices), start=1)

    @property
    def devices(self) -> tuple[Axis, ...]:
        """The axes by which ranks are counted: all but that of experts."""
        return tuple(axis for axis in self.axes if axis.strategy.experts is None)

    @cached_property
    def experts(self) -> Axis | None: return next((axis for axis in self.axes if axis.strategy.experts), None)

    @property
    def sends_to_experts(self) -> bool: return self.experts is not None and self.experts.ranks != 1

    @property
    def nodes(self) -> int:
        """Nodes over which ranks of experts lie, of which rows go to each once; 1 where they go to experts at once."""
        return self.experts.count // self.node if self.experts is not None and self.node else 1

    def visited(self, asked: LiveSize) -> LiveSize:
        """Nodes that a row goes to which asks so many experts. Raises InputError where it does not ask as many on
        each."""
        if self.nodes == 1: return 1
        if not isinstance(asked, int): raise InputError(f"node {self.node}: a row asks {asked} experts: give a number")
        found = self.visits or nearest_divisor(asked, self.nodes)
        if asked % found: raise InputError(f"visits {found}: a row asks {asked} experts, as many on each node: give a "
                                           f"divisor of {asked}")
        return found

    @cached_property
    def folded(self) -> tuple[int, ...]:
        """The axes over whose ranks experts lie, by number: those that cut sequences and tokens, and where experts are
        whole those that cut weights, too."""
        if self.experts is None: return ()
        whole = self.experts.strategy.experts == "whole"
        return tuple(k for k, axis in enumerate(self.axes) if (whole if axis.strategy.weights else axis.strategy.home))

    def copies(self, axis: Axis) -> LiveSize:
        """Over how many ranks of an axis there are copies of an expert: neighbours have different ones, so the axes
        that come last have none. Raises InputError where experts lie across parts of axes."""
        if self.experts is None or axis not in [self.axes[k] for k in self.folded]: return axis.ranks
        left, found = self.experts.count, dict[str, int]()
        for each in (self.axes[k] for k in reversed(self.folded)):
            shared = gcd(left, each.count)
            if left // shared > 1 and shared < each.count:
                raise InputError(f"mesh: {self.experts.name} has {self.experts.ranks} ranks, which end within "
                                 f"{each.name} and go on beyond it: give a multiple of {each.count}, or a divisor")
            left, found[each.name] = left // shared, each.count // shared
        return found[axis.name]

    def storing(self, level: int) -> list[Axis]:
        """The axes over which what a stage of ZeRO names is stored once: 1 optimiser, 2 gradients, 3 weights. The
        nearest cuts first, so what comes from afar is a piece of what is near."""
        return [axis for axis in reversed(self.axes) if axis.strategy.stored >= level]

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
        """The coordinates of every rank, the last axis fastest; on the axis of experts the one that follows from them.
        Raises InputError for ranks that are a name."""
        return map(self.located, product(*(range(axis.count) for axis in self.devices)))

    def located(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """The coordinates of a rank with that on the axis of experts, by those on the others."""
        own = place[:len(self.devices)]
        return own if self.experts is None else (*own, self.number(own) % self.experts.count)

    def number(self, place: tuple[int, ...]) -> int:
        """The number of a rank among those over which experts lie, the last axis fastest."""
        found = 0
        for k in self.folded: found = found * self.axes[k].count + place[k]
        return found

    def group(self, place: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], ...]:
        """The ranks that meet on an axis, in order: those that differ in one coordinate alone, or that have all experts
        together."""
        if self.experts is None or self.axes[axis] is not self.experts:
            return tuple(self.located((*place[:axis], r, *place[axis + 1:])) for r in range(self.axes[axis].count))
        first = self.number(place) - place[axis]
        return tuple(self.placed(place, first + r) for r in range(self.experts.count))

    def placed(self, place: tuple[int, ...], number: int) -> tuple[int, ...]:
        """The rank of a number among those over which experts lie that has the other coordinates of a place."""
        found = [*place]
        for k in reversed(self.folded): number, found[k] = divmod(number, self.axes[k].count)
        return self.located(tuple(found))


def nearest_divisor(number: int, wish: int) -> int:
    """The largest divisor of a number that is at most a wish."""
    return max(d for d in range(1, min(number, wish) + 1) if number % d == 0)


def usual_mesh(dp: int | None = None, tp: int = 1, pp: int = 1, cp: int = 1, *, ep: int = 1, zero: int = 0,
               zero_ranks: int | None = None, offload: int = 0, context: str = "ring", sequence: bool = False,
               vocabulary: bool = False, whole_experts: bool = False, load: float = 1, node: int = 0,
               visits: int = 0) -> Mesh:
    """Axes by their usual names, those of one rank left out: stages `pp` outermost, then data `dp` with its stage of
    ZeRO, context `cp`, and tensor `tp` innermost, between neighbours. `zero_ranks`: so many neighbours of `dp` store
    what ZeRO says once, and other such groups (`copies`) have it again. `sequence`: norms are cut by rows over `tp`;
    `vocabulary`: tables and heads of the vocabulary, too. Experts `ep` lie over dp and cp, and with `whole_experts`
    over tp, which else cuts each; `node` of them are a node, to which a row goes once, to `visits` of these; where dp
    is not given it is as many as they need. Raises InputError for numbers that are none."""
    if dp is None: dp = max(ep, 1) // gcd(max(ep, 1), cp * (tp if whole_experts else 1))
    if ep == 1 and (whole_experts or load != 1):
        raise InputError(f"{'whole experts' if whole_experts else f'load {load}'}: of no ranks of experts: give ep")
    if zero not in range(4): raise InputError(f"zero {zero}: a stage of ZeRO is 0, 1, 2 or 3")
    if zero and dp == 1: raise InputError(f"zero {zero}: it stores state over the ranks of dp, of which there is one")
    within = dp if zero_ranks is None else zero_ranks
    if zero_ranks is not None and not zero: raise InputError(f"zero ranks {zero_ranks}: of no stage of ZeRO: give zero")
    if within < 1 or dp % within: raise InputError(f"zero ranks {within}: they divide dp, {dp}")
    if context not in CONTEXTS: raise InputError(f"context {context!r}: it is one of {', '.join(CONTEXTS)}")
    tensor = ("sequence" if sequence else "tensor") + "-vocabulary" * vocabulary
    axes = dict(pp=(pp, "pipeline"), copies=(dp // within, "data"), dp=(within, f"zero{zero}" if zero else "data"),
                cp=(cp, context), tp=(tp, tensor), ep=(ep, "whole-experts" if whole_experts else "experts"))
    return replace(Mesh.of(**{name: axis for name, axis in axes.items() if axis[0] != 1}), offload=offload, load=load,
                   node=node, visits=visits)


def meet(one: Strategy, other: Strategy) -> bool:
    """Whether two strategies cut the same things, so that a mesh has one of them. What is stored once is gathered level
    by level, so ZeRO may have several axes."""
    alike = one.name == other.name and not one.stored
    return alike or (one.weights and other.weights) or (one.layers and other.layers) or bool(
        one.experts and other.experts) or (
        one.mixing is not None and one.mixing == other.mixing)
