"""The meaning of rows merged in order in float64, and a bound on the error of float32, in the kernel's own order."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.kernels.generated.folding.scan_text import ScanPlan
from formats.kernels.generated.rowwise.row_bounds import bound_rows
from formats.kernels.generated.rowwise.scalar_graphs import NumberPair, bound_graph

ScanReals: TypeAlias = NDArray[np.float64]


def bound_scan(
    plan: ScanPlan,
    values: Sequence[ScanReals],
    arrays: Sequence[ScanReals],
    parts: Sequence[slice],
    begun: Mapping[int, ScanReals] = MappingProxyType({}),
) -> NumberPair:
    """Return the rows of all sequences, (rows, heads, columns), and a bound on the error of a kernel. `parts`: the rows
    of each sequence; `begun`: the result (heads, columns) before its rows, by the number of a sequence that has had
    some."""
    count = max((part.stop for part in parts), default=0)
    shape = count, plan.heads, plan.cols
    sides = [bound_rows(side, values, arrays, count) for side in (plan.left, plan.right)]
    pairs = [(np.broadcast_to(y, shape), np.broadcast_to(e, shape)) for y, e in sides]
    found, off = np.zeros((2, *shape))
    for number, part in enumerate(parts):
        found[part], off[part] = bound_sequence(plan, [(y[part], e[part]) for y, e in pairs], begun.get(number))
    return found, off


def bound_sequence(plan: ScanPlan, sides: Sequence[NumberPair], begun: ScanReals | None = None) -> NumberPair:
    """Return the rows of one sequence, with their error bounds, after the result `begun`."""
    folding, shape = plan.folding, sides[0][0].shape
    none = np.zeros(shape[1:])
    held: list[NumberPair] = [(none + unit, none) for unit in folding.unit]
    if begun is not None:
        held[int(folding.finish.outputs[0].value)] = begun, none
    found, off = np.zeros((2, *shape))
    for t in range(shape[0]):
        lifted = bound_graph(folding.lift, *((y[t], e[t]) for y, e in sides), (none, none))
        held = bound_graph(folding.merge, *held, *lifted)
        [(found[t], off[t])] = bound_graph(folding.finish, *held)
    if plan.whole:
        found[:], off[:] = found[-1:], off[-1:]
    return found, off
