"""How a product with a relation is split, and rows that one picks. Where rows of what comes out are cut as rows that come
in, a rank needs the rows that its entries name: its halo."""
from __future__ import annotations

from collections.abc import Sequence

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.patterns import everyone
from opmatrix.relations import Relation
from opmatrix.split.cuts import AxisState, Cut, Needed, Partial
from opmatrix.split.moving import Ground
from opmatrix.split.placement import role_of
from opmatrix.split.traced import Operation

Demands = tuple[list[AxisState], AxisState, AxisState, str]


def related_product(split: Ground, k: int, line: Operation, args: Sequence[int]) -> Demands:
    """R · v of a relation R: rows of R with the rows that they name, or a part of the sum from the rows that are
    here."""
    over, where = line.more
    relation: Relation = split.steps[args[0]].more[0]
    if where is not everyone:
        raise InputError(f"partition: relation {relation} under pattern {where}: leave out entries in the relation, "
                         "where=everyone")
    v, out = held_on(split, k, args[1]), output_home(split, k, line)
    match role_of(v):
        case "batch" | "heads": return [v, v], v, None, "sequences" if role_of(v) == "batch" else "heads"
        case "cols": return [None, v], v, None, "columns of the product"
        case "rows" if role_of(out) == "rows":
            if (state := halo_of(split, k, args[1], relation)) is not None: return [out, state], out, None, "halo"
            if whole_anyway(split, args[1]): return [out, None], out, None, "rows"
        case "rows" if over.plain() or (over.width == 1 and outermost(split, k, args[1])):
            return [Cut("cols", v.units), v], Partial(over), None, "contraction"         # type: ignore[union-attr]
        case None if role_of(out) == "rows" and not rows_cut(split, args[1]): return [out, None], out, None, "rows"
    return [None, None], None, None, ""


def picked_rows(split: Ground, k: int, line: Operation, args: Sequence[int]) -> Demands:
    """Rows that a relation picks: where they lie, each rank those that it has and zeros for others; or they come to
    the rows that are wanted."""
    own, out = held_on(split, k, args[0]), output_home(split, k, line)
    if role_of(own) != "rows": return [own], own, None, ""
    if role_of(out) != "rows": return [own], Partial(monoids.sum), None, "rows that are picked"
    state = halo_of(split, k, args[0], line.more[0])
    return [state], out if state else None, None, "halo" if state else ""


def held_on(split: Ground, k: int, at: int) -> AxisState:
    """How a value lies on an axis, merged where it is a part of a sum."""
    own = split.steps[at].placement.on(k)
    return split.home(k, at) if isinstance(own, Partial) else own


def output_home(split: Ground, k: int, line: Operation) -> AxisState:
    return split.home_of(k, split.sizes.dims(line.shape, line.level))


def rows_cut(split: Ground, at: int) -> list[int]:
    """The axes that cut the rows of a value, the outermost first."""
    return [k for k, state in split.steps[at].placement.cuts if role_of(state) == "rows"]


def outermost(split: Ground, k: int, at: int) -> bool: return rows_cut(split, at)[:1] in ([k], [])


def whole_anyway(split: Ground, at: int) -> bool:
    """Whether a rank can have all of a value without anything being sent."""
    return split.free(at) or split.is_known(at)


def halo_of(split: Ground, k: int, at: int, relation: Relation) -> Needed | None:
    """The state of a value of which a rank has the rows that its entries name. None where an axis outside cuts its
    rows, too, or where nothing need be sent."""
    if whole_anyway(split, at) or not outermost(split, k, at): return None
    return Needed(relation, split.steps[at].dims.rows)
