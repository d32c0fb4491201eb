"""Axes by name, and strategies by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from formats.core.errors import InputError, suggest_name
from opmatrix.parallel.axes.axis_strategy import AxisStrategy
from opmatrix.parallel.axes.context_axis import CONTEXT
from opmatrix.parallel.axes.data_axis import DATA
from opmatrix.parallel.axes.expert_axis import EXPERT
from opmatrix.parallel.axes.parallel_axis import AxisOption, MeshChoices, ParallelAxis
from opmatrix.parallel.axes.pipeline_axis import PIPELINE
from opmatrix.parallel.axes.tensor_axis import TENSOR

PRESENT_AXES = DATA, TENSOR, PIPELINE, CONTEXT, EXPERT
AXES: Mapping[str, ParallelAxis] = {axis.name: axis for axis in PRESENT_AXES}
OFFLOAD = AxisOption(
    "offload", int, 0, "offloaded to the host: 1 optimiser state, 2 also gradients, 3 also weights", run=False
)


def farthest_first(axes: Iterable[ParallelAxis]) -> list[ParallelAxis]:
    """Return axes in the order of a mesh: ranks of the last one are neighbours."""
    return sorted(axes, key=lambda axis: axis.place)


# ---- options


def mesh_options() -> list[AxisOption]:
    """Return the options of a mesh: the ranks of each axis, further options of each axis, those that are not run."""
    ranks = [axis.ranks_option for axis in AXES.values()]
    more = [option for axis in AXES.values() for option in axis.options]
    return [*ranks, *(option for option in more if option.run), *(option for option in more if not option.run), OFFLOAD]


def mesh_choices(**chosen: object) -> MeshChoices:
    """Return the values of all options of a mesh, by default the usual ones. Raises InputError for an unknown name."""
    usual = {option.name: option.usual for option in mesh_options()}
    for name in chosen:
        if name not in usual:
            raise InputError(f"mesh: {name}: {suggest_name(name, usual)}it is one of {', '.join(usual)}")
    return usual | chosen


# ---- strategies

BY_HAND = AxisStrategy("by-hand", by_hand=True)  # of any axis
DECLARED = [strategy for axis in AXES.values() for strategy in axis.strategies]
STRATEGIES = {  # strategies of values before those of layers
    strategy.name: strategy
    for strategy in (*sorted(DECLARED, key=lambda strategy: strategy.layers), BY_HAND)
    if not strategy.experts
}
EXPERT_STRATEGIES = {strategy.name: strategy for strategy in DECLARED if strategy.experts}


def strategy_named(name: str) -> AxisStrategy:
    """Return the strategy of a name. Raises InputError for an unknown name."""
    known = STRATEGIES | EXPERT_STRATEGIES
    if name in known:
        return known[name]
    raise InputError(f"strategy {name!r}: there is none of this name: {', '.join(known)}")


# ---- axes of a plan

PLANNED_AXES = [axis for axis in AXES.values() if axis.planned]
DEVICE_AXES = [axis for axis in PLANNED_AXES if not axis.folded]  # each device has a place on each of them
COPYING_AXES = [axis.name for axis in farthest_first(DEVICE_AXES) if axis.strategies[0].copies_weights]
TOKEN_AXES = [axis.name for axis in DEVICE_AXES if axis.name in COPYING_AXES and axis.strategies[0].home == "rows"]
FOLDED_AXES = [axis.name for axis in PLANNED_AXES if axis.folded]


def axis_orders() -> tuple[tuple[str, ...], ...]:
    """Return the orders in which a plan lays axes out, the nearest first. The usual one is the first; an axis that may
    be anywhere moves nearer, but the nearest axis stays, since its ranks meet in every layer."""
    orders = [[axis.name for axis in reversed(farthest_first(DEVICE_AXES))]]
    for axis in DEVICE_AXES:
        if axis.anywhere:
            others = [name for name in orders[0] if name != axis.name]
            orders += [[*others[:at], axis.name, *others[at:]] for at in range(len(others) - 1, 0, -1)]
    return tuple(map(tuple, orders))


ORDERS = axis_orders()
PRINTED = (*ORDERS[1], *FOLDED_AXES)  # axes as a plan prints them: stages before ranks that share a batch
