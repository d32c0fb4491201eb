"""What a product over a monoid means, in float64, and how far float32 may be from that, in the kernel's own order."""
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from formats.kernels.generated.folding.fold_plan import OF_ARRAY, Folding, FoldOperand, FoldPlan, ScoreLeaf
from formats.kernels.generated.rowwise.scalar_functions import HALF_UNIT, VANISHED
from formats.kernels.generated.rowwise.scalar_graphs import NumberPair, bound_graph


class FoldPart(NamedTuple):
    """Queries, the rows of one sequence that are their keys, and who of them sees whom; None where all see all."""
    queries: Any
    keys: slice
    seen: Any


def bound_fold(plan: FoldPlan, values: Sequence[Any], arrays: Sequence[Any], parts: Sequence[FoldPart]) -> NumberPair:
    """The rows of all queries, (rows, heads, columns), and how far off a kernel may be."""
    found = [bound_part(plan, values, arrays, part) for part in parts]
    return np.concatenate([y for y, _ in found]), np.concatenate([e for _, e in found])


def bound_part(plan: FoldPlan, values: Sequence[Any], arrays: Sequence[Any], part: FoldPart) -> NumberPair:
    """The rows of queries of one sequence."""
    def read(each: FoldOperand, rows: Any) -> Any:
        """(heads, rows, columns) of an operand, one head a head of the result; of an array as it is."""
        if each.kind == OF_ARRAY: whole = np.asarray(arrays[each.number], np.float64).reshape(each.heads, -1, each.cols)
        else:
            whole = np.asarray(values[each.number], np.float64)[rows].reshape(-1, each.heads, each.cols).swapaxes(0, 1)
        return np.repeat(whole, plan.heads // each.heads, 0)
    distances = np.arange(part.keys.start, part.keys.stop) - np.asarray(part.queries)[:, None]
    leaves = [bound_leaf(leaf, read(leaf.left, part.keys if leaf.kind == "key" else part.queries),
                         leaf.right and read(leaf.right, part.keys), distances) for leaf in plan.leaves]
    [score] = bound_graph(plan.score, *leaves)
    right = read(plan.right, part.keys)
    shape = plan.heads, len(part.queries), right.shape[1]
    s, e = (np.broadcast_to(each, shape) for each in score)
    first = part.keys.start if plan.masked else 0
    y, off = merge_keys(plan.folding, s[..., None], e[..., None], right[:, None], part.seen, 2, first)
    return y.swapaxes(0, 1), off.swapaxes(0, 1)


def bound_leaf(leaf: ScoreLeaf, x: Any, k: Any, distances: Any) -> NumberPair:
    """(heads, queries, keys), either of which may be one for all; distances, key - query, of (queries, keys)."""
    match leaf.kind:
        case "distance":
            most = leaf.left.cols // 2
            return exactly_given(x[:, 0, np.clip(distances, -most, most) + most])
        case "key": return exactly_given(x.swapaxes(1, 2))
        case "row" | "query" | "head": return exactly_given(x)
    assert leaf.inner is not None
    if leaf.inner.ordinary: return sum_columns(x, k)
    s, w = x[:, :, None, :, None], k[:, None, :, :, None]
    y, e = merge_keys(leaf.inner, s, np.zeros_like(s), w, None, 3)
    return y[..., 0], e[..., 0]


def sum_columns(x: Any, k: Any) -> NumberPair:
    """Products of rows, summed column by column: each product and each sum loses half a unit of itself."""
    y, size = np.zeros((2, *x.shape[:2], k.shape[1]))
    for i in range(x.shape[-1]):
        fresh = x[..., i, None] * k[:, None, :, i]
        y += fresh
        size += abs(fresh) + abs(y)
    return y, HALF_UNIT * 1.01 * size + x.shape[-1] * VANISHED


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
    return finish_held(folding, held, one)


def finish_held(folding: Folding, held: Sequence[NumberPair], shape: tuple[int, ...]) -> NumberPair:
    """Carriers of this shape, finished: the numbers of a column side by side."""
    found = [np.stack([np.broadcast_to(each[part], shape) for each in bound_graph(folding.finish, *held)], -1)
             for part in (0, 1)]
    y, off = (each.reshape(*shape[:-1], -1) for each in found)
    return y, off


def bound_entries(plan: FoldPlan, value: Any, rows: int, layers: Iterable[tuple[Any, Any, Any]]) -> NumberPair:
    """The rows that are merged of the entries of a sparse matrix, in their order: the first entries of all rows that
    have one, then the second; rows, what they name, numbers."""
    folding, cols = plan.folding, plan.right.cols
    x = np.asarray(value, np.float64).reshape(len(value), plan.heads, cols)
    held: list[NumberPair] = [(np.full((rows, plan.heads, cols), unit), np.zeros((rows, plan.heads, cols)))
                              for unit in folding.unit]
    for at, named, numbers in layers:
        w, shape = x[named], x[named].shape
        s, index = (np.broadcast_to(np.asarray(each, np.float64)[:, None, None], shape) for each in (numbers, named))
        none = np.zeros(shape)
        lifted = bound_graph(folding.lift, (s, abs(s - np.float32(s).astype(np.float64))), (w, none), (index, none))
        fresh = bound_graph(folding.merge, *((y[at], e[at]) for y, e in held), *lifted)
        for (y, e), (new, off) in zip(held, fresh, strict=True): y[at], e[at] = new, off
    return finish_held(folding, held, (rows, plan.heads, cols))
