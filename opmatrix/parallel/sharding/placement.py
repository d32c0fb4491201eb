"""The placement of a value on all axes of a mesh: the axes that do not replicate it, in the order in which they shard
it, so shards of shards nest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from opmatrix.algebra.batch.batch_sizes import Dims, Role
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Needed, Partial, piece
from opmatrix.parallel.sharding.haloed import HALO_ROWS, NamedRows
from opmatrix.parallel.sharding.mesh import Mesh

Coordinates: TypeAlias = tuple[int, ...]  # coordinates of a rank on the axes of a mesh


class Placement(NamedTuple):
    """States by the number of the axis; an axis without a state replicates the value."""

    cuts: tuple[tuple[int, AxisState], ...] = ()

    def on(self, axis: int) -> AxisState:
        """Return the state on an axis; None if it is replicated there."""
        return next((state for k, state in self.cuts if k == axis), None)

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes over which the value is partial."""
        return tuple(k for k, state in self.cuts if isinstance(state, Partial))

    @property
    def copied(self) -> tuple[tuple[int, Cut], ...]:
        """The states of axes on which several ranks hold the same piece."""
        return tuple((k, state) for k, state in self.cuts if isinstance(state, Cut) and state.copied)

    def but(self, axis: int, state: AxisState) -> Placement:
        """Return the placement with a state on an axis: in the same place if the axis sharded the same dimension
        before, else innermost."""
        current = self.on(axis)
        if current == state:
            return self
        if current is not None and state is not None and role_of(current) == role_of(state):
            return Placement(tuple((k, state if k == axis else s) for k, s in self.cuts))
        rest = tuple((k, s) for k, s in self.cuts if k != axis)
        return Placement(rest if state is None else (*rest, (axis, state)))

    def turned(self, roles: dict[Role, Role]) -> Placement:
        """Return the placement with dimensions exchanged."""
        return Placement(
            tuple((k, s._replace(role=roles.get(s.role, s.role)) if isinstance(s, Cut) else s) for k, s in self.cuts)
        )

    def inner(self, axis: int) -> list[int]:
        """Return the axes that shard further the dimension that an axis shards."""
        outer = self.on(axis)
        behind = [k for k, _ in self.cuts]
        behind = behind[behind.index(axis) + 1 :] if axis in behind else []
        return [k for k in behind if isinstance(outer, Cut) and role_of(self.on(k)) == outer.role]


def copy_holders(state: Cut, ranks: int, r: int) -> tuple[int, ...]:
    """Return the ranks that hold the same copy as rank r."""
    held = state.bounds(ranks, r, int(state.units))
    return tuple(q for q in range(ranks) if state.bounds(ranks, q, int(state.units)) == held)


def role_of(state: AxisState) -> Role | None:
    """Return the dimension along which a state shards; None if it does not."""
    return state.role if isinstance(state, Cut) else None


def pass_rule(state: AxisState) -> str:
    """Return the rule by which a sharded value passes an operation that leaves the sharded dimension alone."""
    return {"heads": "heads", "cols": "columns"}.get(role_of(state) or "", "rows one by one")


def product_rules(placement: Placement, own: Mapping[int, str], rows: str = "rows") -> tuple[tuple[int, str], ...]:
    """Return the rules of a product of sequences, heads and rows, by axis; `own` are the rules of some axes."""
    names = {"batch": "sequences", "heads": "heads"}
    return tuple((k, own.get(k, names.get(role_of(state) or "", rows))) for k, state in placement.cuts)


def local(dims: Dims, placement: Placement, mesh: Mesh) -> Dims:
    """Return the sizes that a rank holds, with its coordinates as symbols."""
    held: dict[Role, tuple[LiveSize, LiveSize]] = {}  # units on a rank, and in all
    for k, state in placement.cuts:
        if isinstance(state, Needed):
            dims = dims._replace(rows=NamedRows.at(state.relation, (HALO_ROWS, mesh.axes[k].ranks, mesh.axes[k].at)))
        if not isinstance(state, Cut):
            continue
        count, whole = held.get(state.role, (state.units, state.units))
        if whole != state.units:
            count = count * state.units / whole
        part = 1 if state.copied else piece(count, mesh.axes[k].ranks, mesh.axes[k].at)
        held[state.role] = part, state.units
    return dims._replace(**{role: scaled(getattr(dims, role), count, units) for role, (count, units) in held.items()})


def scaled(size: LiveSize, count: LiveSize, units: LiveSize) -> LiveSize:
    """Return the size of `count` of the `units` that a size has."""
    if all(isinstance(number, int) for number in (size, count, units)):
        return size * count // units
    return size * count / units


def found_at(dims: Dims, placement: Placement, mesh: Mesh, place: Coordinates) -> dict[Role, tuple[int, int]]:
    """Return the range that a rank holds of each sharded dimension."""
    held: dict[Role, tuple[int, int, int]] = {}  # from, to, units in all
    for k, state in placement.cuts:
        if not isinstance(state, Cut):
            continue
        units = int(state.units)
        lo, hi, of = held.get(state.role, (0, units, units))
        lo, hi = lo * units // of, hi * units // of
        first, last = state.bounds(int(mesh.axes[k].ranks), place[k], hi - lo)
        held[state.role] = lo + first, lo + last, units
    return {
        role: (lo * getattr(dims, role) // of, hi * getattr(dims, role) // of) for role, (lo, hi, of) in held.items()
    }
