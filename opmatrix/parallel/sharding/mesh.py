"""A mesh of ranks: axes, each with a name, a number of ranks and a strategy. The records of `opmatrix.parallel.axes`
declare axes and strategies; the communication follows from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from math import gcd, inf, prod

import sympy

from formats.core.errors import InputError
from opmatrix.algebra.shapes import LiveSize, size
from opmatrix.parallel.axes.axis_strategy import AxisStrategy, meet
from opmatrix.parallel.axes.known_axes import AXES, farthest_first, mesh_choices, strategy_named
from opmatrix.parallel.sharding.axis_states import Coordinate

HOST = "host"  # axis name of transfers to and from the host


@dataclass(frozen=True)
class Axis:
    """Ranks that split a model by one strategy. If the number of ranks is a symbol, it is taken to divide all sizes."""

    name: str
    ranks: LiveSize
    strategy: AxisStrategy

    @property
    def at(self) -> Coordinate:
        """The coordinate of a rank on the axis."""
        return Coordinate(f"r_{self.name}", integer=True, nonnegative=True)

    @property
    def count(self) -> int:
        """The number of ranks. Raises InputError if it is a symbol."""
        if isinstance(self.ranks, int):
            return self.ranks
        raise InputError(f"mesh: axis {self.name} has {self.ranks} ranks, a name: a number is needed here")


@dataclass(frozen=True)
class Mesh:
    """Axes, the outermost first: ranks of the last one are neighbours. A mesh of one rank splits nothing.

    Offloaded state is in the memory of each device's host, by the stages of ZeRO (Ren et al. 2021, ZeRO-Offload): 1 the
    optimiser, 2 gradients, too, 3 weights, too, each fetched where it is read.

    An axis of experts adds no ranks: it factors the ranks of the axes that shard sequences and tokens once more (Liu et
    al. 2025, MoE Parallel Folding). Each group of neighbours, of the size of the axis, has all experts; the other
    groups have copies of them. The axis is the last, and a rank's coordinate on it follows from the others. With nodes
    a row goes to a node once, however many of its experts are there, and on from there (DeepSeek-AI 2024, section
    3.2.2). Raises InputError for an invalid number of ranks, for two axes that split the same thing, for an unknown
    ZeRO stage, and for experts that do not fit the other axes."""

    axes: tuple[Axis, ...] = ()  # the outermost first
    offload: int = 0  # ZeRO stage of the state on the host; 0 for none
    load: LiveSize | float = 1  # rows of the busiest expert rank, relative to the mean
    node: int = 0  # neighbours of the axis of experts in a node; 0: no nodes
    visits: int = 0  # nodes that a row goes to; 0: as many as possible

    @classmethod
    def of(cls, **axes: tuple[LiveSize | str, str | AxisStrategy]) -> Mesh:
        """Build a mesh of axes by name: `Mesh.of(dp=(2, "data"), tp=(4, "tensor"))` has the ranks and the strategy of
        each."""
        built = []
        for name, (ranks, strategy) in axes.items():
            if isinstance(ranks, str) and ranks.isidentifier():
                ranks = size(ranks)
            if isinstance(ranks, bool) or (
                not isinstance(ranks, sympy.Expr) and (not isinstance(ranks, int) or ranks < 1)
            ):
                raise InputError(f"mesh: axis {name} has {ranks!r} ranks: give a whole number from 1 on, or a name")
            resolved = strategy_named(strategy) if isinstance(strategy, str) else strategy
            if ranks == 1:
                resolved = AxisStrategy(resolved.name, layers=resolved.layers, experts=resolved.experts)
            built.append(Axis(name, ranks, resolved))
        return cls(tuple(built))

    def __post_init__(self) -> None:
        if self.offload not in range(4):
            raise InputError(f"offload {self.offload}: 1 the optimiser, 2 gradients, too, 3 weights, too, or 0")
        object.__setattr__(self, "axes", tuple(sorted(self.axes, key=lambda axis: axis.strategy.experts is not None)))
        for number, axis in enumerate(self.axes):
            twin = next(
                (
                    other
                    for other in self.axes[:number]
                    if 1 not in (other.ranks, axis.ranks) and meet(other.strategy, axis.strategy)
                ),
                None,
            )
            if twin is not None:
                by = axis.strategy.name
                if by != twin.strategy.name:
                    by = f"what {twin.strategy.name} and {by} have in common"
                raise InputError(
                    f"mesh: axes {twin.name} and {axis.name} both split by {by}: make them one axis, of "
                    "as many ranks as both"
                )
        self.check_experts()

    def check_experts(self) -> None:
        """Raise InputError for expert ranks that the other axes do not have, and for an invalid load."""
        if not isinstance(self.load, sympy.Expr) and (isinstance(self.load, bool) or not 1 <= self.load < inf):
            raise InputError(f"load {self.load}: times the mean that the busiest has: a number from 1 on, or a name")
        if self.experts is None or self.experts.ranks == 1:
            if self.node or self.visits:
                raise InputError(f"node {self.node}: of no ranks of experts: give ep")
            return
        if not self.node and self.visits:
            raise InputError(f"visits {self.visits}: of no nodes: give node")
        if self.node and (self.node < 1 or self.experts.count % self.node):
            raise InputError(
                f"node {self.node}: {self.experts.name} has {self.experts.ranks} ranks, of which as many "
                f"lie in each node: a divisor of {self.experts.ranks}"
            )
        if self.node and not 0 <= self.visits <= self.nodes:
            raise InputError(f"visits {self.visits}: there are {self.nodes} nodes: from 1 to {self.nodes}")
        within, names = [self.axes[k].ranks for k in self.folded], [self.axes[k].name for k in self.folded]
        if not within:
            raise InputError(
                f"mesh: {self.experts.name} has {self.experts.ranks} ranks, and no axis cuts sequences or "
                "tokens, over which experts lie: give data or context as many ranks, such as "
                f"dp={self.experts.ranks}"
            )
        if not all(isinstance(n, int) for n in (*within, self.experts.ranks)):
            return
        if prod(within) % self.experts.count:
            raise InputError(
                f"mesh: {self.experts.name} has {self.experts.ranks} ranks, and {' × '.join(names)}, over "
                f"which experts lie, {prod(within)}: the nearest that divides is "
                f"{nearest_divisor(prod(within), self.experts.count)}"
            )

    @property
    def ranks(self) -> LiveSize:
        """The number of ranks: the product over all axes but that of experts."""
        return prod((axis.ranks for axis in self.devices), start=1)

    @property
    def devices(self) -> tuple[Axis, ...]:
        """The axes that count ranks: all but the axis of experts."""
        return tuple(axis for axis in self.axes if axis.strategy.experts is None)

    @cached_property
    def experts(self) -> Axis | None:
        """The axis over which experts are placed; None if there is none."""
        return next((axis for axis in self.axes if axis.strategy.experts), None)

    @property
    def sends_to_experts(self) -> bool:
        """True if experts are on several ranks, so that rows move to them."""
        return self.experts is not None and self.experts.ranks != 1

    @property
    def nodes(self) -> int:
        """The number of nodes of the expert ranks, each of which a row visits at most once; 1 if rows go to experts
        directly."""
        return self.experts.count // self.node if self.experts is not None and self.node else 1

    def visited(self, asked: LiveSize) -> LiveSize:
        """Return the number of nodes that a row visits if it is routed to `asked` experts. Raises InputError if it is
        not routed to equally many on each node."""
        if self.nodes == 1:
            return 1
        if not isinstance(asked, int):
            raise InputError(f"node {self.node}: a row asks {asked} experts: give a number")
        count = self.visits or nearest_divisor(asked, self.nodes)
        if asked % count:
            raise InputError(
                f"visits {count}: a row asks {asked} experts, as many on each node: give a divisor of {asked}"
            )
        return count

    @cached_property
    def folded(self) -> tuple[int, ...]:
        """The numbers of the axes over whose ranks experts are placed: axes that shard sequences and tokens, and for
        whole experts also axes that shard weights."""
        if self.experts is None:
            return ()
        whole = self.experts.strategy.experts == "whole"
        return tuple(k for k, axis in enumerate(self.axes) if (whole if axis.strategy.weights else axis.strategy.home))

    def copies(self, axis: Axis) -> LiveSize:
        """Return the number of ranks of an axis that have copies of an expert. Neighbours have different experts, so
        the last axes have no copies. Raises InputError if experts end within an axis and go on beyond it."""
        if self.experts is None or axis not in [self.axes[k] for k in self.folded]:
            return axis.ranks
        left, by_axis = self.experts.count, dict[str, int]()
        for other in (self.axes[k] for k in reversed(self.folded)):
            shared = gcd(left, other.count)
            if left // shared > 1 and shared < other.count:
                raise InputError(
                    f"mesh: {self.experts.name} has {self.experts.ranks} ranks, which end within "
                    f"{other.name} and go on beyond it: give a multiple of {other.count}, or a divisor"
                )
            left, by_axis[other.name] = left // shared, other.count // shared
        return by_axis[axis.name]

    def storing(self, level: int) -> list[Axis]:
        """Return the axes over which the state of a ZeRO stage is stored once: 1 optimiser, 2 gradients, 3 weights. The
        nearest axis shards first, so transfers between far ranks are pieces of those between near ranks."""
        return [axis for axis in reversed(self.axes) if axis.strategy.stored >= level]

    def __iter__(self) -> Iterator[Axis]:
        return iter(self.axes)

    def __len__(self) -> int:
        return len(self.axes)

    def index(self, name: str) -> int:
        """Return the number of an axis by its name."""
        return next(k for k, axis in enumerate(self.axes) if axis.name == name)

    @property
    def flat(self) -> Mesh:
        """The mesh without its pipeline axes, which split layers and no value."""
        return replace(self, axes=tuple(axis for axis in self.axes if not axis.strategy.layers))

    @property
    def stages(self) -> Axis | None:
        """The axis of pipeline stages; None if there is none."""
        return next((axis for axis in self.axes if axis.strategy.layers), None)

    def places(self) -> Iterator[tuple[int, ...]]:
        """Return the coordinates of every rank, the last axis fastest; the coordinate on the axis of experts follows
        from the others. Raises InputError if a number of ranks is a symbol."""
        return map(self.located, product(*(range(axis.count) for axis in self.devices)))

    def located(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """Return the coordinates of a rank including that on the axis of experts, which follows from the others."""
        on_devices = place[: len(self.devices)]
        return on_devices if self.experts is None else (*on_devices, self.number(on_devices) % self.experts.count)

    def number(self, place: tuple[int, ...]) -> int:
        """Return the number of a rank among those over which experts are placed, the last axis fastest."""
        total = 0
        for k in self.folded:
            total = total * self.axes[k].count + place[k]
        return total

    def group(self, place: tuple[int, ...], axis: int) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that meet on an axis, in order: ranks that differ in one coordinate alone, or ranks that
        together have all experts."""
        if self.experts is None or self.axes[axis] is not self.experts:
            return tuple(self.located((*place[:axis], r, *place[axis + 1 :])) for r in range(self.axes[axis].count))
        first = self.number(place) - place[axis]
        return tuple(self.placed(place, first + r) for r in range(self.experts.count))

    def placed(self, place: tuple[int, ...], number: int) -> tuple[int, ...]:
        """Return the rank that has a number among those over which experts are placed, and the other coordinates of a
        place."""
        coordinates = [*place]
        for k in reversed(self.folded):
            number, coordinates[k] = divmod(number, self.axes[k].count)
        return self.located(tuple(coordinates))


def nearest_divisor(number: int, wish: int) -> int:
    """Return the largest divisor of a number that is at most `wish`."""
    return max(d for d in range(1, min(number, wish) + 1) if number % d == 0)


def usual_mesh(*ranks: int | None, **chosen: object) -> Mesh:
    """Build a mesh of axes with their usual names; axes of one rank are left out. `ranks`: numbers of ranks in the
    order of `AXES`, of `dp`, `tp`, `pp` and `cp` first. They may be given by name, too, as may all other options that
    axes declare (`mesh_options`), such as `ep`, `zero`, `context` and `sequence`. Raises InputError for an unknown
    name, and for values that do not fit together."""
    if len(ranks) > len(AXES):
        raise InputError(f"mesh: {len(ranks)} numbers of ranks: at most {len(AXES)}, of {', '.join(AXES)}")
    choices = mesh_choices(**dict(zip(AXES, ranks, strict=False)), **chosen)
    for axis in AXES.values():
        if complaint := axis.illegal(choices):
            raise InputError(complaint)
    laid = {name: one for axis in farthest_first(AXES.values()) for name, one in axis.axes(choices).items()}
    mesh = Mesh.of(**{name: one for name, one in laid.items() if one[0] != 1})
    return replace(mesh, **{field.name: choices[field.name] for field in fields(Mesh) if field.name in choices})
