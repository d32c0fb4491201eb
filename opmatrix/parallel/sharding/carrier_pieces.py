"""Pieces of the arrays that ranks hold: of an array, or of each component of a carrier, along a sharded dimension."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.data import Numeric
from opmatrix.parallel.sharding.axis_states import Cut

Carriers: TypeAlias = tuple[Numeric, ...]


def each_of(x: Numeric | Carriers, change: Callable[[Numeric], Numeric]) -> Numeric | Carriers:
    """Apply a function to an array, or to each component of a carrier."""
    return tuple(map(change, x)) if isinstance(x, tuple) else change(x)


def unit_size(dims: Dims, state: Cut) -> int:
    """Return the size of one unit along the sharded dimension."""
    return int(getattr(dims, state.role)) // int(state.units)


AXES = {"batch": 0, "heads": 1, "rows": 2, "cols": 3}


def cut_piece(x: Numeric, state: Cut, unit: int, n: int, r: int) -> Numeric:
    """Return the piece of a sharded array that rank r of n holds. An array with one entry along the dimension is
    returned whole if a unit has several."""
    axis = AXES[state.role]
    if x.shape[axis] == 1 and unit != 1:
        return x
    lo, hi = state.bounds(n, r, x.shape[axis] // unit)
    return x[(slice(None),) * axis + (slice(lo * unit, hi * unit),)]
