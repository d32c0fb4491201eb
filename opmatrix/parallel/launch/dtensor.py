"""The placement of each weight on the ranks, as placements of torch's DTensor: Shard(dim) or Replicate() for each axis
of the mesh of a stage. They are text; torch is not used."""

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

PiecesByAxis: TypeAlias = dict[str, list[Bounds]]  # the range of each rank, by the name of the axis


@dataclass(frozen=True)
class PlacedWeight:
    """A stored array with its placement on each axis."""

    name: str  # name of the array
    shape: tuple[LiveSize, ...]  # shape of the whole array
    stage: int  # stage that stores it
    placements: tuple[str, ...]  # placement on each axis of the stage
    flat: tuple[str, ...]  # ZeRO axes: Shard(0) of all remaining numbers, as one row
    pieces: PiecesByAxis  # ranges on axes of unequal parts, unlike torch's
    part_of: tuple[LiveSize, ...] | None = None  # shape of the array that holds it, as for q, k, v

    def json(self) -> dict[str, object]:
        """Return the placement as JSON; entries that are empty are left out."""
        record: dict[str, object] = dict(
            name=self.name, shape=plain(self.shape), stage=self.stage, placements=[*self.placements]
        )
        if self.flat:
            record["flat"] = [*self.flat]
        if self.part_of:
            record["part_of"] = plain(self.part_of)
        if self.pieces:
            record["pieces"] = self.pieces
        return record


def placed_weights(plan: Partition) -> list[PlacedWeight]:
    """Return every array with a name that some stage stores, once a stage, in the order of its factors."""
    weights: dict[object, PlacedWeight] = {}
    for stage, groups in enumerate(plan.stages):
        for group in groups:
            for (_, stored), (data, _) in group.booked.stored().items():
                whole = None if data.cut_of is None else (data.cut_of.base or data.cut_of).shape
                for name in names_of(group, data):
                    one = placed(plan, name, (data.base or data).shape, stage, stored)
                    weights[name, stage, one.placements, one.shape] = replace(one, part_of=whole)
    return [*weights.values()]


def names_of(group: FactorGroup, data: Data) -> list[str]:
    """Return the names of an array of a group in each of its factors that names it; a part has the name of the
    whole."""
    source = data.cut_of or data
    at = group.own.index(source.base or source)
    return [name for arrays in group.arrays if (name := arrays[at].name) is not None]


def placed(plan: Partition, name: str, shape: tuple[LiveSize, ...], stage: int, stored: Placement) -> PlacedWeight:
    """Return the placement of one array."""
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
            if ranges := uneven(state, axis.ranks, shape[dim]):
                pieces[axis.name] = ranges
        else:
            placements.append("Replicate()")
    return PlacedWeight(name, shape, stage, tuple(placements), tuple(flat), pieces)


def plain(sizes: Sequence[LiveSize]) -> list[int | str]:
    """Return sizes as JSON has them: symbols are texts."""
    return [size if isinstance(size, int) else str(size) for size in sizes]


def uneven(state: Cut, ranks: LiveSize, size: LiveSize) -> list[Bounds]:
    """Return the range of each rank, in order, if ranks do not hold equal parts; empty if they do."""
    if not (isinstance(ranks, int) and isinstance(size, int) and isinstance(state.units, int)):
        return []
    unit = size // state.units
    every = [state.bounds(ranks, r, state.units) for r in range(ranks)]
    if not state.copied and state.units % ranks == 0:
        return []
    return [(lo * unit, hi * unit) for lo, hi in every]


def placements_text(plan: Partition) -> str:
    """Return all placements as JSON. `mesh_dim_names` and `mesh_shape` are those of a stage, as `init_device_mesh`
    takes them."""
    axes = plan.mesh.flat.axes
    return json.dumps(
        dict(
            model=plan.name,
            stages=len(plan.stages),
            mesh_dim_names=[axis.name for axis in axes],
            mesh_shape=plain([axis.ranks for axis in axes]),
            weights=[weight.json() for weight in placed_weights(plan)],
        ),
        indent=1,
    )
