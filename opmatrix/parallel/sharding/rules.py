"""Split rules of each operation, on one axis at a time: the states that its operands need, that of its result and that
of its stored numbers. A rule reads the declarations of an operator (entrywise, diagonal, its numbers), never its
name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch_sizes import Role
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.oracles import reduced
from opmatrix.algebra.shapes import divides
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Partial, mergeable
from opmatrix.parallel.sharding.carrying import divisible
from opmatrix.parallel.sharding.mesh import Axis
from opmatrix.parallel.sharding.placement import pass_rule, role_of
from opmatrix.parallel.sharding.redistribute import TURNED_ROLES, Ground, RankStep, Ruling, SplitRule, heads_for_rows
from opmatrix.parallel.sharding.relating import picked_rows, related_product

RULES: dict[str, SplitRule] = {}
PASSES_SHIFT: dict[Role | None, str] = {
    "batch": "sequences",
    "heads": "heads",
    "cols": "columns",
}  # what is sharded -> the rule of a shift, and of rows from the last on


def rule(*ops: str) -> Callable[[SplitRule], SplitRule]:
    """Declare the split rule of operations."""

    def enter(f: SplitRule) -> SplitRule:
        """Register the split rule of these operations."""
        for op in ops:
            RULES[op] = f
        return f

    return enter


def states_on(split: Ground, k: int, args: Sequence[int]) -> list[AxisState]:
    """Return the states of operands on an axis."""
    return [split.steps[a].placement.on(k) for a in args]


@rule("act")
def act(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split x @ A. Rows, sequences and heads pass. Columns pass a diagonal A, and a matrix whose rows are sharded
    merges them."""
    matrix, state = line.more[0], split.merged_on(k, args[0])
    if isinstance(state, Cut) and state.role == "heads":
        return [state], state, state if is_stacked(matrix) else None, "heads"
    asked = split.asked.get(at) if axis.strategy.weights or axis.strategy.by_hand else None
    if isinstance(state, Cut) and state.role == "cols" and asked != "columns":
        if matrix.entrywise or matrix.diagonal:
            return [state], state, state, "columns"
        if merges_columns(matrix, axis, asked):
            stored = Cut("rows", state.units) if contracts(matrix) else None
            return [state], Partial(reduced(matrix)[1]), stored, "rows of a matrix"
        home = split.home(k, args[0])
        return [home], home, None, pass_rule(home)
    if contracts(matrix) and not is_stacked(matrix):
        ruling = cut_weight(split, axis, at, split.steps[args[0]], asked)
        if ruling is not None:
            return ruling
    return [state], state, None, pass_rule(state)


def is_stacked(matrix: Operator) -> bool:
    """True if a weight has a matrix for each head."""
    return contracts(matrix) and len(matrix.args[0].shape) == 3


def merges_columns(matrix: Operator, axis: Axis, asked: str | None) -> bool:
    """True if a matrix merges sharded columns, with its rows sharded alike."""
    if not mergeable(reduced(matrix)[1]) or not divisible(matrix) or asked == "whole":
        return False
    return axis.strategy.cuts_weights or not contracts(matrix)


def cut_weight(split: Ground, axis: Axis, at: int, x: RankStep, asked: str | None) -> Ruling | None:
    """Split x @ W by rows or by columns of W; None if W stays whole. Raises InputError for a table with fewer rows than
    the axis has ranks."""
    if axis.strategy.vocabulary and x.op == "input" and x.selects:
        if isinstance(x.dims.cols, int) and isinstance(axis.ranks, int) and x.dims.cols < axis.ranks:
            raise InputError(
                f"mesh: {axis.name} has {axis.ranks} ranks and the table has {x.dims.cols} rows: at "
                f"most {x.dims.cols} ranks"
            )
        return [Cut("cols", x.dims.cols)], Partial(monoids.sum), Cut("rows", x.dims.cols), "rows of a table"
    if asked == "rows":
        return [Cut("cols", x.dims.cols)], Partial(monoids.sum), Cut("rows", x.dims.cols), "rows of a matrix"
    if asked == "columns" or (asked is None and columns_cut(split, axis, at)):
        cut = heads_fit(split, at, axis)
        return [None], cut, cut, "columns of a matrix"
    return None


def columns_cut(split: Ground, axis: Axis, at: int) -> bool:
    """True if a weight is sharded by columns: its output goes on to another weight, or it scores the vocabulary."""
    strategy = axis.strategy
    if strategy.weights and split.carried.carry[at]:
        return True
    return strategy.vocabulary and at == len(split.carried.lines) - 1 == 1 and not split.steps[0].selects


def heads_fit(split: Ground, at: int, axis: Axis) -> Cut:
    """Return the sharding of a weight's columns: between groups that share heads if there are enough groups, else
    between single heads, with shared heads copied. Raises InputError for a number of ranks that fits neither."""
    grain, n, carried = split.carried.units[at], axis.ranks, split.carried
    units = split.lines[at].shape.cols if grain is None else grain.heads
    if not (isinstance(units, int) and isinstance(n, int)) or n <= units:
        return Cut("cols", units)
    heads = carried.own_heads(at)

    def fits(n: int) -> bool:
        """True if this number of ranks can share the columns."""
        if n <= units or heads is None:
            return n <= units
        return bool(grain and grain.shared and n % units == 0 and (heads == units or heads % n == 0))

    if heads is not None and fits(n):
        return Cut("cols", heads, copied=heads == units)
    candidates = (min(units, n - 1), *range(1, min(heads or 0, n - 1) + 1))  # ranks may be absurdly many
    fit = max(filter(fits, candidates))
    what = f"{units} " + ("heads" if grain else "columns")
    if grain and grain.shared:
        what = f"{heads} heads in groups of {units}"
    raise InputError(
        f"mesh: {axis.name} has {n} ranks, and {split.lines[at].more[0]} gives {what}: the nearest that "
        f"divides is {fit}"
    )


@rule("add", "mul")
def split_pointwise(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split an operation entry by entry: both operands are sharded alike. Two parts of one sum are added as they
    are."""
    u, v = (
        None if split.free(a) and any(not split.free(b) for b in args) else state
        for a, state in zip(args, states_on(split, k, args), strict=True)
    )
    if isinstance(u, Partial) and u == v and line.op == "add" and u.over.ordinary:
        return [u, v], u, None, "sums"
    cuts = [s for s in (u, v) if isinstance(s, Cut)]
    dims = split.sizes.dims(line.shape, line.level)
    home = split.home_of(k, dims)
    if isinstance(u, Partial) or isinstance(v, Partial):
        target: AxisState = home
    elif cuts and all(cut == cuts[0] for cut in cuts):
        target = cuts[0]
    else:
        target = home if cuts else None
    return [target, target], target, None, "entry by entry"


@rule("keep_top")
def split_keep_top(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split rows one by one, in every head: the largest numbers of a row are known only with all of its columns."""
    held = [state for a, state in zip(args, states_on(split, k, args), strict=True) if not split.free(a)]
    [target, *others] = held or [None]
    if role_of(target) == "cols" or isinstance(target, Partial) or any(other != target for other in others):
        target = split.home_of(k, split.sizes.dims(line.shape, line.level))
    return [target, target], target, None, pass_rule(target)


@rule("scan")
def split_scan(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split rows merged with those before them: sequences, heads and columns stay sharded, rows of a sequence are
    gathered."""
    held = [state for a, state in zip(args, states_on(split, k, args), strict=True) if not split.free(a)]
    [target, *others] = held or [None]
    kept = ("batch", "heads") if line.more[0].width != 1 else ("batch", "heads", "cols")
    if role_of(target) not in kept or any(other != target for other in others):
        target = split.home_of(k, split.sizes.dims(line.shape, line.level))
        target = target if role_of(target) == "batch" else None
    return [target, target], target, None, "sequences" if role_of(target) == "batch" else pass_rule(target)


@rule("delta_rule")
def split_delta_rule(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split rows that correct a state: sequences and heads stay sharded, all else is gathered; a head that all share is
    whole on every rank."""
    held = [state for a, state in zip(args, states_on(split, k, args), strict=True) if not split.free(a)]
    target = next((state for state in held if role_of(state) in ("batch", "heads")), None)
    if target is None or any(state != target for state in held if role_of(state) is not None):
        target = split.home_of(k, split.sizes.dims(line.shape, line.level))
        target = target if role_of(target) == "batch" else None
    if role_of(target) == "heads":
        return [None if split.steps[a].dims.heads == 1 else target for a in args], target, None, "heads"
    return [target] * len(args), target, None, "sequences" if role_of(target) == "batch" else ""


@rule("turn")
def split_turn(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split a transpose: rows become columns."""
    state = split.merged_on(k, args[0])
    out = state._replace(role=TURNED_ROLES.get(state.role, state.role)) if isinstance(state, Cut) else state
    return [state], out, None, "turned"


@rule("beside")
def split_beside(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split columns side by side: columns are not sharded, other dimensions are sharded alike in both operands."""
    states = states_on(split, k, args)
    shared = next((s for s in states if isinstance(s, Cut) and s.role != "cols"), None)
    return [shared] * 2, shared, None, "side by side"


@rule("split")
def split_heads(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split columns into heads: columns that are sharded between heads become sharded heads."""
    state, h = split.merged_on(k, args[0]), line.more[0]
    if isinstance(state, Cut) and state.role == "cols":
        whole = isinstance(h, int) and isinstance(state.units, int)
        if whole and h % state.units:
            home = split.home(k, args[0])
            return [home], home, None, pass_rule(home)
        return [state], state._replace(role="heads"), None, "heads"
    return [state], state, None, pass_rule(state)


@rule("join")
def split_join(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Join heads into columns: sharded heads become sharded columns."""
    state = split.merged_on(k, args[0])
    if role_of(state) == "cols":
        state = split.home(k, args[0])
    out = state._replace(role="cols") if isinstance(state, Cut) and state.role == "heads" else state
    return [state], out, None, pass_rule(state)


@rule("repeat")
def split_repeat(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Repeat heads for groups: a rank repeats the heads that it holds. Of a head that ranks copy, each rank makes its
    share of the repetitions."""
    state, h = split.merged_on(k, args[0]), line.more[0]
    if isinstance(state, Cut) and state.role == "heads" and state.copied:
        return [state], Cut("heads", h), None, "copied heads"
    return [state], state, None, pass_rule(state)


@rule("total")
def split_total(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Sum over heads: a rank has some of them, so the sum is partial."""
    [state] = states_on(split, k, args)
    if isinstance(state, Cut) and state.role == "heads":
        return [state], Partial(monoids.sum), None, "sum of heads"
    return [state], state, None, pass_rule(state)


@rule("fold")
def split_fold(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Sum each group of heads. Ranks that have whole groups sum them. If ranks share a group, each has the contribution
    of its own heads to its copy; weights of copied columns take it as a part of a sum."""
    state, h = split.merged_on(k, args[0]), line.more[0]
    if isinstance(state, Cut) and state.role == "heads" and not divides(state.units, h):
        if not axis.strategy.cuts_weights:
            return [home := split.home(k, args[0])], home, None, pass_rule(home)
        return [state], Cut("heads", h, copied=True), None, "copied heads"
    return [state], state, None, pass_rule(state)


@rule("shares")
def split_shares(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split rows one by one, in every head: the sum of a row is known only with all of its columns."""
    state = split.merged_on(k, args[0])
    if role_of(state) == "cols":
        state = split.home(k, args[0])
    return [state], state, None, pass_rule(state)


@rule("dropped", "kept")
def split_alike(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split entry by entry, for any sharding."""
    state = split.merged_on(k, args[0])
    return [state], state, None, "entry by entry"


@rule("summed")
def split_summed(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Sum over all rows, of which a rank has some. Columns that attention has sharded are redistributed first, as for
    the gradients of weights."""
    state = split.merged_on(k, args[0])
    if role_of(state) == "cols" and not axis.strategy.cuts_weights:
        state = split.home(k, args[0])
    if role_of(state) in ("batch", "rows"):
        return [state], Partial(monoids.sum), None, "contraction"
    return [state], state, None, pass_rule(state)


@rule("outer")
def split_outer(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split the product of rows with rows, summed over all rows. Columns and heads stay sharded; sharded rows give a
    part of a sum."""
    u, v = (split.merged_on(k, a) for a in args)
    if split.steps[args[0]].selects:
        return outer_of_table(split, k, axis, args, v)
    if not axis.strategy.cuts_weights:  # redistribute columns that attention has sharded
        u, v = (split.home(k, a) if role_of(s) == "cols" else s for a, s in zip(args, (u, v), strict=True))
    match role_of(u), role_of(v):
        case ("heads", _) | (_, "heads"):
            return [cut := u or v, cut], cut, None, "heads"
        case "cols", _:
            assert isinstance(u, Cut)
            return [u, None], u._replace(role="rows"), None, "rows of a matrix"
        case _, "cols":
            return [None, v], v, None, "columns of a matrix"
        case None, None:
            return [None, None], None, None, ""
    return [cut := u or v, cut], Partial(monoids.sum), None, "contraction"


def outer_of_table(split: Ground, k: int, axis: Axis, args: Sequence[int], v: AxisState) -> Ruling:
    """Split rows of a table that are summed by the ids of rows. A table that is sharded by rows sums the rows that a
    rank has."""
    rows = split.steps[args[0]].dims.cols
    if axis.strategy.vocabulary and split.steps[args[0]].op == "input":
        return [Cut("cols", rows), None], Cut("rows", rows), None, "rows of a table"
    if role_of(v) in ("batch", "rows"):
        return [v, v], Partial(monoids.sum), None, "contraction"
    return [None, v], v, None, pass_rule(v)


@rule("pick")
def split_pick(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split picked rows: rows of a sequence stay with their sequence; sharded rows are picked where they are."""
    return picked_rows(split, k, line, args)


@rule("shift", "backwards")
def split_shift(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split rows that are shifted, or turned round: sequences, heads and columns pass. Sharded rows are gathered, as
    the first rows of a rank read the last ones of another."""
    state = split.merged_on(k, args[0])
    if role_of(state) == "rows":
        return [None], None, None, ""
    return [state], state, None, PASSES_SHIFT.get(role_of(state), "")


@rule("product")
def product(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Split u · v over a monoid. If the contracted axis is sharded, each rank merges its part, and the carrier is
    partial."""
    if split.steps[args[0]].op == "related":
        return related_product(split, k, line, args)
    over = line.more[0]
    u, v = (split.merged_on(k, a) for a in args)
    if not mergeable(over):
        u, v = (None if role_of(s) == cut else s for s, cut in ((u, "cols"), (v, "rows")))
    known = split.is_known(args[0])
    match role_of(u), role_of(v), axis.strategy.mixing:
        case "batch", _, _:
            return [u, u if v is not None else None], u, None, "sequences"
        case None, "batch", _:
            return [v, v], v, None, "sequences"
        case "heads", _, _:
            return [u, u], u, None, "heads"
        case _, "heads", _:
            return [v, v], v, None, "heads"
        case "rows", "cols", "heads":
            return by_heads(split, axis, at, args)
        case "rows", "cols", "keys":
            return [None, v], v, None, "columns of the product"
        case "rows" | None, "rows", _ if known:
            return [Cut("cols", v.units), v], Partial(over), None, "contraction"  # type: ignore[union-attr]
        case ("rows", None | "rows" | "cols", _):
            return [u, None], u, None, "rows"
        case None, "cols", _:
            return [None, v], v, None, "columns of the product"
        case "cols", "rows" | None, _:
            return [u, Cut("rows", u.units)], Partial(over), None, "contraction"  # type: ignore[union-attr]
        case None, "rows", _:
            return [Cut("cols", v.units), v], Partial(over), None, "contraction"  # type: ignore[union-attr]
        case "cols", "cols", _:
            return [None, v], v, None, "columns of the product"
    return [None, None], None, None, ""


def by_heads(split: Ground, axis: Axis, at: int, args: Sequence[int]) -> Ruling:
    """Exchange sharded rows for heads, so that every rank has all rows of some heads."""
    cut = heads_for_rows(split, axis, args[0], split.carried.grain[at])
    return [cut, cut], cut, None, "heads for rows"
