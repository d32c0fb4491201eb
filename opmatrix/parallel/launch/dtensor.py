"""How each weight lies on the ranks, as placements of torch's DTensor: Shard(dim) or Replicate() for each axis of the
mesh of a stage. They are text; torch is not asked."""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from opmatrix.algebra.batch.batch_sizes import Bounds
from opmatrix.algebra.batch.traced import MATRIX_AXES
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import Cut
from opmatrix.parallel.sharding.partition import FactorGroup, Partition
from opmatrix.parallel.sharding.placement import Placement

PiecesByAxis: TypeAlias = dict[str, list[Bounds]]           # from where to where each rank of an axis holds


@dataclass(frozen=True)
class PlacedWeight:
    """A stored array by its name, its shape, and its placement on each axis. `flat`: axes whose Shard(0) is of all
    numbers that are left of it, as one row, which ZeRO stores once. `pieces` of axes where ranks do not hold equal
    parts, which torch would cut otherwise. `part_of`: the shape of the array that it is a part of, as queries, keys and
    values may lie in one."""
    name: str
    shape: tuple[LiveSize, ...]
    stage: int
    placements: tuple[str, ...]
    flat: tuple[str, ...]
    pieces: PiecesByAxis
    part_of: tuple[LiveSize, ...] | None = None

    def json(self) -> dict[str, object]:
        found: dict[str, object] = dict(name=self.name, shape=plain(self.shape), stage=self.stage,
                                        placements=[*self.placements])
        if self.flat: found["flat"] = [*self.flat]
        if self.part_of: found["part_of"] = plain(self.part_of)
        if self.pieces: found["pieces"] = self.pieces
        return found


def placed_weights(plan: Partition) -> list[PlacedWeight]:
    """Every array with a name that some stage stores, once a stage, in the order of its factors."""
    found: dict[object, PlacedWeight] = {}
    for stage, groups in enumerate(plan.stages):
        for group in groups:
            for (_, stored), (data, _) in group.booked.stored().items():
                whole = None if data.cut_of is None else (data.cut_of.base or data.cut_of).shape
                for name in names_of(group, data):
                    one = placed(plan, name, (data.base or data).shape, stage, stored)
                    found[name, stage, one.placements, one.shape] = replace(one, part_of=whole)
    return [*found.values()]


def names_of(group: FactorGroup, data: Data) -> list[str]:
    """What an array of a group is called in each of its factors, where it has a name; a part is called as the whole."""
    source = data.cut_of or data
    at = group.own.index(source.base or source)
    return [name for each in group.arrays if (name := each[at].name) is not None]


def placed(plan: Partition, name: str, shape: tuple[LiveSize, ...], stage: int, stored: Placement) -> PlacedWeight:
    """How one array lies."""
    dims, axes, pieces = dict(MATRIX_AXES), plan.mesh.flat.axes, PiecesByAxis()
    placements, flat = [], []
    for k, axis in enumerate(axes):
        state = stored.on(k)
        if axis.strategy.stored > 2:
            placements.append("Shard(0)")
            flat.append(axis.name)
        elif isinstance(state, Cut) and state.role in dims and len(shape) >= -dims[state.role]:
            dim = len(shape) + dims[state.role]
            placements.append(f"Shard({dim})")
            if own := uneven(state, axis.ranks, shape[dim]): pieces[axis.name] = own
        else: placements.append("Replicate()")
    return PlacedWeight(name, shape, stage, tuple(placements), tuple(flat), pieces)


def plain(sizes: Sequence[LiveSize]) -> list[int | str]:
    """Sizes as JSON has them: names are texts."""
    return [size if isinstance(size, int) else str(size) for size in sizes]


def uneven(state: Cut, ranks: LiveSize, size: LiveSize) -> list[Bounds]:
    """The bounds of each rank where they are not equal parts, one after the other; none where they are."""
    if not (isinstance(ranks, int) and isinstance(size, int) and isinstance(state.units, int)): return []
    unit = size // state.units
    every = [state.bounds(ranks, r, state.units) for r in range(ranks)]
    if not state.copied and state.units % ranks == 0: return []
    return [(lo * unit, hi * unit) for lo, hi in every]


def placements_text(plan: Partition) -> str:
    """All placements as JSON. `mesh_dim_names` and `mesh_shape` are those of a stage, as `init_device_mesh` takes
    them."""
    axes = plan.mesh.flat.axes
    return json.dumps(dict(model=plan.name, stages=len(plan.stages), mesh_dim_names=[axis.name for axis in axes],
                           mesh_shape=plain([axis.ranks for axis in axes]),
                           weights=[each.json() for each in placed_weights(plan)]), indent=1)
