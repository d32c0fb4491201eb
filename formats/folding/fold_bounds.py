"""What a product over a monoid means, in float64, and how far float32 may be from that, in the kernel's own order."""
from collections.abc import Sequence
from typing import Any

import numpy as np

from formats.folding.fold_plan import ARRAY, Folding, FoldPlan, Operand, ScoreLeaf
from formats.rowwise.scalar_functions import HALF_UNIT, VANISHED
from formats.rowwise.scalar_graphs import NumberPair, bound_graph

Part = tuple[slice, Any]                                    # rows of a sequence, and who of them sees whom, or None


def bound_fold(plan: FoldPlan, values: Sequence[Any], arrays: Sequence[Any], parts: Sequence[Part]) -> NumberPair:
    """The rows of each part, (rows, heads, columns), and how far off a kernel may be."""
    found = [bound_part(plan, values, arrays, *part) for part in parts]
    return np.concatenate([y for y, _ in found]), np.concatenate([e for _, e in found])


def bound_part(plan: FoldPlan, values: Sequence[Any], arrays: Sequence[Any], rows: slice, seen: Any) -> NumberPair:
    """The rows of one sequence."""
    def read(each: Operand) -> Any:
        """(heads, rows, columns) of an operand, one head a head of the result; of an array as it is."""
        if each.kind == ARRAY: whole = np.asarray(arrays[each.number], np.float64).reshape(each.heads, -1, each.cols)
        else: whole = np.asarray(values[each.number], np.float64)[rows].reshape(-1, each.heads, each.cols).swapaxes(0, 1)
        return np.repeat(whole, plan.heads // each.heads, 0)
    leaves = [bound_leaf(leaf, [*map(read, leaf.operands)]) for leaf in plan.leaves]
    [score] = bound_graph(plan.score, *leaves)
    right = read(plan.right)
    shape = plan.heads, rows.stop - rows.start, right.shape[1]
    s, e = (np.broadcast_to(each, shape) for each in score)
    first = rows.start if plan.masked else 0
    y, off = merge_keys(plan.folding, s[..., None], e[..., None], right[:, None], seen, 2, first)
    return y.swapaxes(0, 1), off.swapaxes(0, 1)


def bound_leaf(leaf: ScoreLeaf, given: list[Any]) -> NumberPair:
    """(heads, queries, keys), either of which may be one for all."""
    x = given[0]
    match leaf.kind:
        case "key": return exactly_given(x.swapaxes(1, 2))
        case "row" | "query" | "head": return exactly_given(x)
    assert leaf.inner is not None
    k = given[1]
    if leaf.inner.ordinary:
        size, depth = abs(x) @ abs(k).swapaxes(1, 2), x.shape[-1] + 1
        return x @ k.swapaxes(1, 2), depth * HALF_UNIT * 1.01 * size + depth * VANISHED
    s, w = x[:, :, None, :, None], k[:, None, :, :, None]
    y, e = merge_keys(leaf.inner, s, np.zeros_like(s), w, None, 3)
    return y[..., 0], e[..., 0]


def exactly_given(x: Any) -> NumberPair: return x, np.zeros(x.shape)


def merge_keys(folding: Folding, s: Any, e: Any, w: Any, seen: Any, axis: int, first: int = 0) -> NumberPair:
    """Pairs merged along an axis, in order, and finished; columns are the last axis, those of a pair side by side. The
    first has the index `first`."""
    shape = np.broadcast_shapes(s.shape, w.shape)
    one = (*shape[:axis], *shape[axis + 1:])
    held: list[NumberPair] = [(np.full(one, unit), np.zeros(one)) for unit in folding.unit]
    for k in range(shape[axis]):
        def at(a: Any, k: int = k) -> Any: return a.take(k if a.shape[axis] > 1 else 0, axis)
        index = np.full(one, float(first + k)), np.zeros(one)
        lifted = bound_graph(folding.lift, (at(s), at(e)), (at(w), np.zeros_like(at(w))), index)
        fresh = bound_graph(folding.merge, *held, *lifted)
        if seen is None: held = fresh
        else:
            here = seen[:, k, None]
            held = [(np.where(here, y, z), np.where(here, d, f)) for (y, d), (z, f) in zip(fresh, held, strict=True)]
    found = [np.stack([np.broadcast_to(each[part], one) for each in bound_graph(folding.finish, *held)], -1)
             for part in (0, 1)]
    y, off = (each.reshape(*each.shape[:-2], -1) for each in found)
    return y, off
