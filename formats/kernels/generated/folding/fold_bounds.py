"""The meaning of a product over a monoid in float64, and a bound on the error of float32, in the kernel's own order."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from formats.kernels.generated.folding.fold_plan import OF_ARRAY, Folding, FoldOperand, FoldPlan, ScoreLeaf
from formats.kernels.generated.rowwise.scalar_functions import HALF_UNIT, VANISHED
from formats.kernels.generated.rowwise.scalar_graphs import NumberPair, bound_graph


class FoldPart(NamedTuple):
    """Queries, the rows of one sequence that are their keys, and a mask of which query sees which key; None if all see
    all."""

    queries: Any
    keys: slice
    seen: Any


def bound_fold(plan: FoldPlan, values: Sequence[Any], arrays: Sequence[Any], parts: Sequence[FoldPart]) -> NumberPair:
    """Return the rows of all queries, (rows, heads, columns), and a bound on the error of a kernel."""
    pairs = [bound_part(plan, values, arrays, part) for part in parts]
    return np.concatenate([y for y, _ in pairs]), np.concatenate([e for _, e in pairs])


def bound_part(plan: FoldPlan, values: Sequence[Any], arrays: Sequence[Any], part: FoldPart) -> NumberPair:
    """Return the rows of the queries of one sequence, with their error bounds."""

    def read(each: FoldOperand, rows: Any) -> Any:
        """Return (heads, rows, columns) of an operand, its heads repeated to one for each head of the result; an array
        keeps all its rows."""
        if each.kind == OF_ARRAY:
            whole = np.asarray(arrays[each.number], np.float64).reshape(each.heads, -1, each.cols)
        else:
            whole = np.asarray(values[each.number], np.float64)[rows].reshape(-1, each.heads, each.cols).swapaxes(0, 1)
        return np.repeat(whole, plan.heads // each.heads, 0)

    distances = np.arange(part.keys.start, part.keys.stop) - np.asarray(part.queries)[:, None]
    leaves = [
        bound_leaf(
            leaf,
            read(leaf.left, part.keys if leaf.kind == "key" else part.queries),
            leaf.right and read(leaf.right, part.keys),
            distances,
        )
        for leaf in plan.leaves
    ]
    [score] = bound_graph(plan.score, *leaves)
    right = read(plan.right, part.keys)
    shape = plan.heads, len(part.queries), right.shape[1]
    s, e = (np.broadcast_to(array, shape) for array in score)
    first = part.keys.start if plan.masked else 0
    y, off = merge_keys(plan.folding, s[..., None], e[..., None], right[:, None], part.seen, 2, first)
    return y.swapaxes(0, 1), off.swapaxes(0, 1)


def bound_leaf(leaf: ScoreLeaf, x: Any, k: Any, distances: Any) -> NumberPair:
    """Return the values of a leaf as (heads, queries, keys), with error bounds; queries or keys may be an axis of
    length 1. `distances`: key - query, (queries, keys)."""
    match leaf.kind:
        case "distance":
            most = leaf.left.cols // 2
            return exactly_given(x[:, 0, np.clip(distances, -most, most) + most])
        case "key":
            return exactly_given(x.swapaxes(1, 2))
        case "row" | "query" | "head":
            return exactly_given(x)
    assert leaf.inner is not None
    if leaf.inner.ordinary:
        return sum_columns(x, k)
    s, w = x[:, :, None, :, None], k[:, None, :, :, None]
    y, e = merge_keys(leaf.inner, s, np.zeros_like(s), w, None, 3)
    return y[..., 0], e[..., 0]


def sum_columns(x: Any, k: Any) -> NumberPair:
    """Return products of rows, summed column by column: each product and each sum loses half a unit of itself."""
    y, size = np.zeros((2, *x.shape[:2], k.shape[1]))
    for i in range(x.shape[-1]):
        fresh = x[..., i, None] * k[:, None, :, i]
        y += fresh
        size += abs(fresh) + abs(y)
    return y, HALF_UNIT * 1.01 * size + x.shape[-1] * VANISHED


def exactly_given(x: Any) -> NumberPair:
    return x, np.zeros(x.shape)


def merge_keys(folding: Folding, s: Any, e: Any, w: Any, seen: Any, axis: int, first: int = 0) -> NumberPair:
    """Merge pairs along an axis, in order, and finish them. Columns are the last axis, the numbers of a pair side by
    side. The first pair has the index `first`."""
    shape = np.broadcast_shapes(s.shape, w.shape)
    one = (*shape[:axis], *shape[axis + 1 :])
    held: list[NumberPair] = [(np.full(one, unit), np.zeros(one)) for unit in folding.unit]
    for k in range(shape[axis]):

        def at(a: Any, k: int = k) -> Any:
            return a.take(k if a.shape[axis] > 1 else 0, axis)

        index = np.full(one, float(first + k)), np.zeros(one)
        lifted = bound_graph(folding.lift, (at(s), at(e)), (at(w), np.zeros_like(at(w))), index)
        fresh = bound_graph(folding.merge, *held, *lifted)
        if seen is None:
            held = fresh
        else:
            here = seen[:, k, None]
            held = [(np.where(here, y, z), np.where(here, d, f)) for (y, d), (z, f) in zip(fresh, held, strict=True)]
    return finish_held(folding, held, one)


def finish_held(folding: Folding, held: Sequence[NumberPair], shape: tuple[int, ...]) -> NumberPair:
    """Finish carriers of this shape: the numbers of a column stand side by side."""
    stacked = [
        np.stack([np.broadcast_to(pair[part], shape) for pair in bound_graph(folding.finish, *held)], -1)
        for part in (0, 1)
    ]
    y, off = (array.reshape(*shape[:-1], -1) for array in stacked)
    return y, off


def bound_entries(plan: FoldPlan, value: Any, rows: int, layers: Iterable[tuple[Any, Any, Any]]) -> NumberPair:
    """Return the rows merged from the entries of a sparse matrix, with error bounds, in the order of the entries. Each
    layer (rows, the rows that they name, their numbers) holds the next entry of all rows that have one."""
    folding, cols = plan.folding, plan.right.cols
    x = np.asarray(value, np.float64).reshape(len(value), plan.heads, cols)
    held: list[NumberPair] = [
        (np.full((rows, plan.heads, cols), unit), np.zeros((rows, plan.heads, cols))) for unit in folding.unit
    ]
    for at, named, numbers in layers:
        w, shape = x[named], x[named].shape
        s, index = (np.broadcast_to(np.asarray(array, np.float64)[:, None, None], shape) for array in (numbers, named))
        none = np.zeros(shape)
        lifted = bound_graph(folding.lift, (s, abs(s - np.float32(s).astype(np.float64))), (w, none), (index, none))
        fresh = bound_graph(folding.merge, *((y[at], e[at]) for y, e in held), *lifted)
        for (y, e), (new, off) in zip(held, fresh, strict=True):
            y[at], e[at] = new, off
    return finish_held(folding, held, (rows, plan.heads, cols))
