"""Split rules of products with a relation, of rows that a relation picks, and of attention between the rows of its
entries. If output rows are sharded like input rows, a rank needs the rows that its entries name: its halo."""

from __future__ import annotations

from collections.abc import Sequence

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch_sizes import Dims
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import Shape, space
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Needed, Partial, mergeable
from opmatrix.parallel.sharding.placement import Placement, pass_rule, product_rules, role_of
from opmatrix.parallel.sharding.redistribute import TURNED_ROLES, Ground, RankStep, Ruling, WaitingScores


def related_product(split: Ground, k: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Return the ruling of R · v for a relation R: rows of R with the rows that they name, or a partial sum over the
    local rows."""
    over, where = line.more
    relation: Relation = split.steps[args[0]].more[0]
    if where is not everyone:
        raise InputError(
            f"partition: relation {relation} under pattern {where}: remove the entries from the relation instead, "
            "where=everyone"
        )
    v, out = split.merged_on(k, args[1]), output_home(split, k, line)
    match role_of(v):
        case "batch" | "heads":
            return [v, v], v, None, "sequences" if role_of(v) == "batch" else "heads"
        case "cols":
            return [None, v], v, None, "columns of the product"
        case "rows" if role_of(out) == "rows":
            if (state := halo_of(split, k, args[1], relation)) is not None:
                return [out, state], out, None, "halo"
            if whole_anyway(split, args[1]):
                return [out, None], out, None, "rows"
        case "rows" if mergeable(over):
            return [Cut("cols", v.units), v], Partial(over), None, "contraction"  # type: ignore[union-attr]
        case None if role_of(out) == "rows" and not rows_cut(split, args[1]):
            return [out, None], out, None, "rows"
    return [None, None], None, None, ""


def picked_rows(split: Ground, k: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Return the ruling of rows that a relation picks. Rows are picked where they are, with zeros for rows of other
    ranks, or they are sent to the ranks of the output rows."""
    current, out = split.merged_on(k, args[0]), output_home(split, k, line)
    if role_of(current) != "rows":
        return [current], current, None, "picked rows"
    if role_of(out) != "rows":
        return [current], Partial(monoids.sum), None, "rows that are picked"
    state = halo_of(split, k, args[0], line.more[0])
    return [state], out if state else None, None, "halo" if state else ""


def output_home(split: Ground, k: int, line: Operation) -> AxisState:
    """Return the placement of the result of a line between operators."""
    return split.home_of(k, split.sizes.dims(line.shape, line.level))


def rows_cut(split: Ground, at: int) -> list[int]:
    """Return the axes that shard the rows of a value, the outermost first."""
    return [k for k, state in split.steps[at].placement.cuts if role_of(state) == "rows"]


def outermost(split: Ground, k: int, at: int) -> bool:
    """True if no axis outside this one shards the rows of a value."""
    return rows_cut(split, at)[:1] in ([k], [])


def whole_anyway(split: Ground, at: int) -> bool:
    """True if a rank can have all of a value without communication."""
    return split.free(at) or split.is_known(at)


def halo_of(split: Ground, k: int, at: int, relation: Relation) -> Needed | None:
    """Return the state of a value of which a rank has the rows that its entries name. None if an outer axis shards its
    rows, too, or if no communication is needed."""
    if whole_anyway(split, at) or not outermost(split, k, at):
        return None
    return Needed(relation, split.steps[at].dims.rows)


# Scores that are read at the entries of a relation alone.


def begin_scores(
    split: Ground, held: Sequence[int | WaitingScores], where: Pattern | None, dims: Dims
) -> WaitingScores | None:
    """Return waiting scores if only the entries of a relation are read of them; None if all scores are read."""
    u, v = held
    if where is None or where.relation is None:
        return None
    assert isinstance(u, int) and isinstance(v, int)
    return WaitingScores(-1, u, v, (), dims, where.relation)


def attend_entries(split: Ground, line: Operation, dims: Dims, scores: WaitingScores, values: int) -> int | None:
    """Add the step that computes the scores of entries and merges the values that they name, row by row. Returns None
    if the product is not over the relation of the scores."""
    relation = scores.relation
    if relation is None or line.more[1].relation != relation:
        return None
    args, placement = [scores.queries, turned_back(split, scores.keys), values], Placement()
    for k in range(len(split.mesh)):
        demand = demand_entries(split, k, relation, args, split.home_of(k, dims))
        args = [split.want(a, k, state) for a, state in zip(args, demand, strict=True)]
        placement = placement.but(k, demand[0])
    rows = tuple((k, state) for k, state in placement.cuts if role_of(state) == "rows")
    shape = Shape(1, space(relation.rows), space(relation.cols))
    entries = split.add(
        RankStep(
            "related",
            (),
            (relation,),
            split.sizes.dims(shape),
            Placement(rows),
            rules=tuple((k, "slice") for k, _ in rows),
        )
    )
    taken = [other for _, other in scores.body if isinstance(other, int)]
    return split.add(
        RankStep(
            "among",
            (*args, entries, *taken),
            (relation, scores.body, *line.more),
            dims,
            placement,
            why="halo",
            rules=product_rules(placement, {}, "halo"),
        )
    )


def demand_entries(split: Ground, k: int, relation: Relation, args: Sequence[int], out: AxisState) -> list[AxisState]:
    """Return the states of queries, keys and values on an axis: the same heads or sequences, or keys and values of the
    rows that the entries of the queries name."""
    states = [split.merged_on(k, a) for a in args]
    shared = next((s for s in states if role_of(s) in ("heads", "batch")), None)
    if shared is not None:
        return [shared] * 3
    if role_of(out) != "rows":
        return [None] * 3
    cut = [a for a, s in zip(args[1:], states[1:], strict=True) if role_of(s) == "rows"]
    if not all(outermost(split, k, a) if a in cut else not rows_cut(split, a) for a in args[1:]):
        return [None] * 3
    return [out, *(halo_of(split, k, a, relation) if a in cut else None for a in args[1:])]


def turned_back(split: Ground, at: int) -> int:
    """Return the rows of the keys whose transpose scores read."""
    step = split.steps[at]
    if step.op == "turn":
        return step.args[0]
    dims = step.dims._replace(rows=step.dims.cols, cols=step.dims.rows)
    return split.add(
        RankStep(
            "turn",
            (at,),
            (),
            dims,
            step.placement.turned(TURNED_ROLES),
            rules=tuple((k, "turned") for k, _ in step.placement.cuts),
        )
    )


def compute_scores(split: Ground, scores: WaitingScores) -> int:
    """Add all scores, for a reader of more than entries: of replicated keys and the local rows of queries."""
    args, placement = [scores.queries, scores.keys], Placement()
    for k in range(len(split.mesh)):
        heads = [s for a in args if role_of(s := split.merged_on(k, a)) in ("heads", "batch")]
        rows = split.merged_on(k, args[0]) if role_of(split.merged_on(k, args[0])) == "rows" else None
        demand = [heads[0], heads[0]] if heads else [rows, None]
        args = [split.want(a, k, state) for a, state in zip(args, demand, strict=True)]
        placement = placement.but(k, demand[0])
    return score_rows(split, (args[0], args[1]), scores, placement)


def score_rows(split: Ground, args: tuple[int, int], scores: WaitingScores, placement: Placement) -> int:
    """Add the scores of queries and keys as they are placed, and the operations of the body."""
    at = split.add(
        RankStep(
            "product",
            args,
            (monoids.sum, everyone),
            scores.dims,
            placement,
            why="rows",
            rules=product_rules(placement, {}),
        )
    )
    passed = tuple((k, pass_rule(state)) for k, state in placement.cuts)
    alike = tuple((k, "entry by entry") for k, _ in placement.cuts)
    for op, other in scores.body:
        if isinstance(other, Operator):
            at = split.add(RankStep("act", (at,), (other,), scores.dims, placement, rules=passed))
        else:
            at = split.add(RankStep(op, (at, other), (), scores.dims, placement, rules=alike))
    return at


def check_pattern(line: Operation, left: Operation) -> None:
    """Raise InputError for a pattern between rows that is not supported here."""
    where: Pattern = line.more[1]
    if where is everyone:
        return
    if where.relation is None and "among(" in where.form:
        raise InputError(
            f"partition: {where} joins a relation and another pattern: remove entries from the relation instead, "
            "where=among(relation) alone"
        )
    spaces = ("T", "T") if where.relation is None else (where.relation.rows, where.relation.cols)
    if (actual := tuple(map(str, (left.shape.rows, left.shape.cols)))) != spaces:
        raise InputError(
            f"partition: scores of {' × '.join(actual)} where {where}, which is of {' × '.join(spaces)}: "
            "partition attention between the rows of its pattern"
        )
