"""How each operation is split, on one axis at a time: what its operands must be, what comes out, how its numbers are
stored. A rule asks what an operator declares (entrywise, diagonal, its numbers), never for its name."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.oracles import reduced
from opmatrix.algebra.shapes import divides
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Partial, mergeable
from opmatrix.parallel.sharding.carrying import divisible
from opmatrix.parallel.sharding.mesh import Axis
from opmatrix.parallel.sharding.placement import pass_rule, role_of
from opmatrix.parallel.sharding.redistribute import TURNED_ROLES, Ground, Ruling, SplitRule, heads_for_rows
from opmatrix.parallel.sharding.relating import picked_rows, related_product

RULES: dict[str, SplitRule] = {}


def rule(*ops: str) -> Callable[[SplitRule], SplitRule]:
    """Declares how operations are split."""
    def enter(f: SplitRule) -> SplitRule:
        for op in ops: RULES[op] = f
        return f
    return enter


def states_on(split: Ground, k: int, args: Sequence[int]) -> list[AxisState]:
    return [split.steps[a].placement.on(k) for a in args]


@rule("act")
def act(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """x @ A: rows, sequences and heads pass; columns pass what is diagonal, and are merged by a matrix whose rows are
    cut."""
    matrix, x, own = line.more[0], split.steps[args[0]], split.merged_on(k, args[0])
    entrywise = matrix.entrywise or matrix.diagonal
    stack = len(matrix.args[0].shape) == 3 if contracts(matrix) else False
    if isinstance(own, Cut) and own.role == "heads": return [own], own, own if stack else None, "heads"
    asked = split.asked.get(at) if axis.strategy.weights or axis.strategy.by_hand else None
    if isinstance(own, Cut) and own.role == "cols" and asked != "columns":
        if entrywise: return [own], own, own, "columns"
        able = mergeable(reduced(matrix)[1]) and divisible(matrix)
        if able and asked != "whole" and (axis.strategy.cuts_weights or not contracts(matrix)):
            over = reduced(matrix)[1]
            return [own], Partial(over), Cut("rows", own.units) if contracts(matrix) else None, "rows of a matrix"
        home = split.home(k, args[0])
        return [home], home, None, pass_rule(home)
    if contracts(matrix) and not stack:
        if axis.strategy.vocabulary and x.op == "input" and x.selects:
            if isinstance(x.dims.cols, int) and isinstance(axis.ranks, int) and x.dims.cols < axis.ranks:
                raise InputError(f"mesh: {axis.name} has {axis.ranks} ranks and the table has {x.dims.cols} rows: at "
                                 f"most {x.dims.cols} ranks")
            return [Cut("cols", x.dims.cols)], Partial(monoids.sum), Cut("rows", x.dims.cols), "rows of a table"
        if asked == "rows":
            return [Cut("cols", x.dims.cols)], Partial(monoids.sum), Cut("rows", x.dims.cols), "rows of a matrix"
        if asked == "columns" or (asked is None and columns_cut(split, axis, at, line)):
            cut = heads_fit(split, at, axis)
            return [None], cut, cut, "columns of a matrix"
    return [own], own, None, pass_rule(own)


def columns_cut(split: Ground, axis: Axis, at: int, line: Operation) -> bool:
    """Whether a weight is cut by columns: what it gives goes on to another, or it is what scores the vocabulary."""
    strategy = axis.strategy
    if strategy.weights and split.carried.carry[at]: return True
    return strategy.vocabulary and at == len(split.carried.lines) - 1 == 1 and not split.steps[0].selects


def heads_fit(split: Ground, at: int, axis: Axis) -> Cut:
    """How the columns of a weight are cut: between groups that share heads where there are enough of them, else between
    its own heads, of which those that are shared are copied. Raises InputError for ranks that fit neither."""
    grain, n, carried = split.carried.units[at], axis.ranks, split.carried
    units = split.lines[at].shape.cols if grain is None else grain.heads
    if not (isinstance(units, int) and isinstance(n, int)) or n <= units: return Cut("cols", units)
    own = carried.own_heads(at)
    def fits(n: int) -> bool:
        if n <= units or own is None: return n <= units
        return bool(grain and grain.shared and n % units == 0 and (own == units or own % n == 0))
    if own is not None and fits(n): return Cut("cols", own, copied=own == units)
    candidates = (min(units, n - 1), *range(1, min(own or 0, n - 1) + 1))       # ranks may be absurdly many
    fit = max(filter(fits, candidates))
    what = f"{units} " + ("heads" if grain else "columns")
    if grain and grain.shared: what = f"{own} heads in groups of {units}"
    raise InputError(f"mesh: {axis.name} has {n} ranks, and {split.lines[at].more[0]} gives {what}: the nearest that "
                     f"divides is {fit}")


@rule("add", "mul")
def split_pointwise(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Entry by entry: both are cut alike. Two parts of one sum are added as they are."""
    u, v = (None if split.free(a) and any(not split.free(b) for b in args) else state
            for a, state in zip(args, states_on(split, k, args), strict=True))
    if isinstance(u, Partial) and u == v and line.op == "add" and u.over.ordinary: return [u, v], u, None, "sums"
    cuts = [s for s in (u, v) if isinstance(s, Cut)]
    dims = split.sizes.dims(line.shape, line.level)
    home = split.home_of(k, dims)
    if isinstance(u, Partial) or isinstance(v, Partial): target: AxisState = home
    elif cuts and all(each == cuts[0] for each in cuts): target = cuts[0]
    else: target = home if cuts else None
    return [target, target], target, None, "entry by entry"


@rule("keep_top")
def split_keep_top(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Rows one by one, in every head: which numbers are the largest of a row is known where all of its columns are."""
    held = [state for a, state in zip(args, states_on(split, k, args), strict=True) if not split.free(a)]
    [target, *others] = held or [None]
    if role_of(target) == "cols" or isinstance(target, Partial) or any(each != target for each in others):
        target = split.home_of(k, split.sizes.dims(line.shape, line.level))
    return [target, target], target, None, pass_rule(target)


@rule("turn")
def split_turn(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Rows are columns."""
    own = split.merged_on(k, args[0])
    out = own._replace(role=TURNED_ROLES.get(own.role, own.role)) if isinstance(own, Cut) else own
    return [own], out, None, "turned"


@rule("beside")
def split_beside(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Columns side by side are whole; whatever else is cut is so in both."""
    found = states_on(split, k, args)
    kept = next((s for s in found if isinstance(s, Cut) and s.role != "cols"), None)
    return [kept] * 2, kept, None, "side by side"


@rule("split")
def split_heads(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Columns that are cut between heads are heads that are cut."""
    own, h = split.merged_on(k, args[0]), line.more[0]
    if isinstance(own, Cut) and own.role == "cols":
        whole = isinstance(h, int) and isinstance(own.units, int)
        if whole and h % own.units:
            home = split.home(k, args[0])
            return [home], home, None, pass_rule(home)
        return [own], own._replace(role="heads"), None, "heads"
    return [own], own, None, pass_rule(own)


@rule("join")
def split_join(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Heads are columns again."""
    own = split.merged_on(k, args[0])
    if role_of(own) == "cols": own = split.home(k, args[0])
    out = own._replace(role="cols") if isinstance(own, Cut) and own.role == "heads" else own
    return [own], out, None, pass_rule(own)


@rule("repeat")
def split_repeat(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Heads of groups: a rank repeats those that it holds; of one that ranks copy, each takes its share."""
    own, h = split.merged_on(k, args[0]), line.more[0]
    if isinstance(own, Cut) and own.role == "heads" and own.copied: return [own], Cut("heads", h), None, "copied heads"
    return [own], own, None, pass_rule(own)


@rule("total")
def split_total(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """The sum of heads, of which a rank has some."""
    [own] = states_on(split, k, args)
    if isinstance(own, Cut) and own.role == "heads": return [own], Partial(monoids.sum), None, "sum of heads"
    return [own], own, None, pass_rule(own)


@rule("fold")
def split_fold(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """The sum of each group of heads, where a rank has whole groups; of a group that ranks share, each has what its own
    heads give to the copy that it holds, which weights of copied columns take for a part of a sum."""
    own, h = split.merged_on(k, args[0]), line.more[0]
    if isinstance(own, Cut) and own.role == "heads" and not divides(own.units, h):
        if not axis.strategy.cuts_weights: return [home := split.home(k, args[0])], home, None, pass_rule(home)
        return [own], Cut("heads", h, copied=True), None, "copied heads"
    return [own], own, None, pass_rule(own)


@rule("shares")
def split_shares(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Rows one by one, in every head: the sum of a row is known where all of its columns are."""
    own = split.merged_on(k, args[0])
    if role_of(own) == "cols": own = split.home(k, args[0])
    return [own], own, None, pass_rule(own)


@rule("dropped", "kept")
def split_alike(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Entry by entry, however a value is cut."""
    own = split.merged_on(k, args[0])
    return [own], own, None, "entry by entry"


@rule("summed")
def split_summed(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """The sum of all rows, of which a rank has some; columns that attention has cut go home first, as they do for the
    gradients of weights."""
    own = split.merged_on(k, args[0])
    if role_of(own) == "cols" and not axis.strategy.cuts_weights: own = split.home(k, args[0])
    if role_of(own) in ("batch", "rows"): return [own], Partial(monoids.sum), None, "contraction"
    return [own], own, None, pass_rule(own)


@rule("outer")
def split_outer(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Rows of one times rows of the other, summed over all: columns and heads stay cut, rows are a part of a sum."""
    u, v = (split.merged_on(k, a) for a in args)
    if split.steps[args[0]].selects: return outer_of_table(split, k, axis, args, v)
    if not axis.strategy.cuts_weights:                      # columns that attention has cut go home first
        u, v = (split.home(k, a) if role_of(s) == "cols" else s for a, s in zip(args, (u, v), strict=True))
    match role_of(u), role_of(v):
        case ("heads", _) | (_, "heads"): return [cut := u or v, cut], cut, None, "heads"
        case "cols", _:
            assert isinstance(u, Cut)
            return [u, None], u._replace(role="rows"), None, "rows of a matrix"
        case _, "cols": return [None, v], v, None, "columns of a matrix"
        case None, None: return [None, None], None, None, ""
    return [cut := u or v, cut], Partial(monoids.sum), None, "contraction"


def outer_of_table(split: Ground, k: int, axis: Axis, args: Sequence[int], v: AxisState) -> Ruling:
    """Rows of a table that are summed for the ids of rows: those that a rank has, where it is cut by them."""
    rows = split.steps[args[0]].dims.cols
    if axis.strategy.vocabulary and split.steps[args[0]].op == "input":
        return [Cut("cols", rows), None], Cut("rows", rows), None, "rows of a table"
    if role_of(v) in ("batch", "rows"): return [v, v], Partial(monoids.sum), None, "contraction"
    return [None, v], v, None, pass_rule(v)


@rule("pick")
def split_pick(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """Rows of a sequence lie with their sequence; rows that are cut are picked where they are."""
    return picked_rows(split, k, line, args)


@rule("product")
def product(split: Ground, k: int, axis: Axis, at: int, line: Operation, args: Sequence[int]) -> Ruling:
    """u · v over a monoid: where the contracted axis is cut, each rank merges its part, and the carrier is partial."""
    if split.steps[args[0]].op == "related": return related_product(split, k, line, args)
    over = line.more[0]
    u, v = (split.merged_on(k, a) for a in args)
    if not mergeable(over): u, v = (None if role_of(s) == cut else s for s, cut in ((u, "cols"), (v, "rows")))
    known = split.is_known(args[0])
    match role_of(u), role_of(v), axis.strategy.mixing:
        case "batch", _, _: return [u, u if v is not None else None], u, None, "sequences"
        case None, "batch", _: return [v, v], v, None, "sequences"
        case "heads", _, _: return [u, u], u, None, "heads"
        case _, "heads", _: return [v, v], v, None, "heads"
        case "rows", "cols", "heads": return by_heads(split, axis, at, args)
        case "rows", "cols", "keys": return [None, v], v, None, "columns of the product"
        case "rows" | None, "rows", _ if known:
            return [Cut("cols", v.units), v], Partial(over), None, "contraction"    # type: ignore[union-attr]
        case ("rows", None | "rows" | "cols", _): return [u, None], u, None, "rows"
        case None, "cols", _: return [None, v], v, None, "columns of the product"
        case "cols", "rows" | None, _:
            return [u, Cut("rows", u.units)], Partial(over), None, "contraction"    # type: ignore[union-attr]
        case None, "rows", _: return [Cut("cols", v.units), v], Partial(over), None, "contraction"  # type: ignore[union-attr]
        case "cols", "cols", _: return [None, v], v, None, "columns of the product"
    return [None, None], None, None, ""


def by_heads(split: Ground, axis: Axis, at: int, args: Sequence[int]) -> Ruling:
    """Rows that are cut change with heads, so every rank has all rows of some."""
    cut = heads_for_rows(split, axis, args[0], split.carried.grain[at])
    return [cut, cut], cut, None, "heads for rows"
