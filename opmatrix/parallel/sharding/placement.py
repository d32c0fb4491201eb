"""How a value lies on all axes of a mesh: the axes that do not hold it whole, in the order in which they cut it, so a
cut of what is cut already nests."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from opmatrix.algebra.batch.batch_sizes import Dims, Role
from opmatrix.algebra.shapes import LiveSize
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Needed, Partial, piece
from opmatrix.parallel.sharding.haloed import HALO_ROWS, NamedRows
from opmatrix.parallel.sharding.mesh import Mesh

Coordinates: TypeAlias = tuple[int, ...]                    # of a rank, by the axes of a mesh


class Placement(NamedTuple):
    """States by the number of the axis; whole where there is none."""
    cuts: tuple[tuple[int, AxisState], ...] = ()

    def on(self, axis: int) -> AxisState: return next((state for k, state in self.cuts if k == axis), None)

    @property
    def partial(self) -> tuple[int, ...]:
        """The axes over which ranks have parts of a value."""
        return tuple(k for k, state in self.cuts if isinstance(state, Partial))

    @property
    def copied(self) -> tuple[tuple[int, Cut], ...]:
        """How a value is cut over axes of which several ranks have the same piece."""
        return tuple((k, state) for k, state in self.cuts if isinstance(state, Cut) and state.copied)

    def but(self, axis: int, state: AxisState) -> Placement:
        """With that state on an axis: in its place where one of the same dimension was there, else as the innermost."""
        own = self.on(axis)
        if own == state: return self
        if own is not None and state is not None and role_of(own) == role_of(state):
            return Placement(tuple((k, state if k == axis else s) for k, s in self.cuts))
        rest = tuple((k, s) for k, s in self.cuts if k != axis)
        return Placement(rest if state is None else (*rest, (axis, state)))

    def turned(self, roles: dict[Role, Role]) -> Placement:
        """With dimensions exchanged."""
        return Placement(tuple((k, s._replace(role=roles.get(s.role, s.role)) if isinstance(s, Cut) else s)
                               for k, s in self.cuts))
    def inner(self, axis: int) -> list[int]:
        """The axes that cut further what an axis has cut."""
        own = self.on(axis)
        behind = [k for k, _ in self.cuts]
        behind = behind[behind.index(axis) + 1:] if axis in behind else []
        return [k for k in behind if isinstance(own, Cut) and role_of(self.on(k)) == own.role]



def copy_holders(state: Cut, ranks: int, r: int) -> tuple[int, ...]:
    """The ranks that have the copy that one of them has."""
    own = state.bounds(ranks, r, int(state.units))
    return tuple(q for q in range(ranks) if state.bounds(ranks, q, int(state.units)) == own)


def role_of(state: AxisState) -> Role | None: return state.role if isinstance(state, Cut) else None


def pass_rule(state: AxisState) -> str:
    """The rule by which a cut value goes through an operation that leaves that dimension alone."""
    return {"heads": "heads", "cols": "columns"}.get(role_of(state) or "", "rows one by one")


def product_rules(placement: Placement, own: Mapping[int, str], rows: str = "rows") -> tuple[tuple[int, str], ...]:
    """The rules of a product of sequences, heads and rows, by axis; `own` are those of some axes."""
    names = {"batch": "sequences", "heads": "heads"}
    return tuple((k, own.get(k, names.get(role_of(state) or "", rows))) for k, state in placement.cuts)


def local(dims: Dims, placement: Placement, mesh: Mesh) -> Dims:
    """The sizes that a rank holds, by its coordinates as symbols."""
    held: dict[Role, tuple[LiveSize, LiveSize]] = {}        # units there are, and in all
    for k, state in placement.cuts:
        if isinstance(state, Needed):
            dims = dims._replace(rows=NamedRows.at(state.relation, (HALO_ROWS, mesh.axes[k].ranks, mesh.axes[k].at)))
        if not isinstance(state, Cut): continue
        count, whole = held.get(state.role, (state.units, state.units))
        if whole != state.units: count = count * state.units / whole
        own = 1 if state.copied else piece(count, mesh.axes[k].ranks, mesh.axes[k].at)
        held[state.role] = own, state.units
    return dims._replace(**{role: scaled(getattr(dims, role), count, units) for role, (count, units) in held.items()})


def scaled(size: LiveSize, count: LiveSize, units: LiveSize) -> LiveSize:
    """So many of the units that a size has."""
    if all(isinstance(each, int) for each in (size, count, units)): return size * count // units
    return size * count / units


def found_at(dims: Dims, placement: Placement, mesh: Mesh, place: Coordinates) -> dict[Role, tuple[int, int]]:
    """From where to where a rank holds each dimension that is cut."""
    held: dict[Role, tuple[int, int, int]] = {}             # from, to, of so many units
    for k, state in placement.cuts:
        if not isinstance(state, Cut): continue
        units = int(state.units)
        lo, hi, of = held.get(state.role, (0, units, units))
        lo, hi = lo * units // of, hi * units // of
        first, last = state.bounds(int(mesh.axes[k].ranks), place[k], hi - lo)
        held[state.role] = lo + first, lo + last, units
    return {role: (lo * getattr(dims, role) // of, hi * getattr(dims, role) // of)
            for role, (lo, hi, of) in held.items()}

