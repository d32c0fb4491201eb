"""The meaning of a value of each row in float64, and a bound on the error of float32, merged in the kernel's order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.kernels.generated.rowwise.row_values import ABREAST, Merging, RowValue
from formats.kernels.generated.rowwise.scalar_functions import HALF_UNIT, VANISHED
from formats.kernels.generated.rowwise.scalar_graphs import NumberPair, bound_graph, lost, spread_by

RowsBefore: TypeAlias = Callable[[int, NDArray[np.float64], int], NDArray[np.float64]]


def bound_rows(
    root: RowValue, values: Sequence[Any], arrays: Sequence[Any], rows: int = 1, before: RowsBefore | None = None
) -> NumberPair:
    """Return the numbers of each row, (rows, heads, columns), and a bound on the error of a kernel. `values`: float64
    arrays (rows, columns) or (rows, heads, columns); `arrays`: those that are operands; `rows`: the number of rows if
    there are no values; `before` gives the rows before those of a value, by its number, its rows and the lag."""
    pairs: dict[int, Any] = {}
    for node in root.walk():
        args = [pairs[id(arg)] for arg in node.args]
        if node.op == "shift":
            assert before is not None, "rows before are those of a sequence"
            pairs[id(node)] = certain(before(node.args[0].extra, args[0][0], node.extra))
        else:
            pairs[id(node)] = read_value(node, args, values, arrays)
    y, e = pairs[id(root)]
    shape = len(values[0]) if values else rows, root.heads, root.cols
    return np.broadcast_to(y, shape), np.broadcast_to(e, shape)


def mean_rows(
    root: RowValue, values: Sequence[Any], arrays: Sequence[Any], rows: int = 1, before: RowsBefore | None = None
) -> NDArray[np.float64]:
    """Return the numbers of each row in float64."""
    return np.asarray(bound_rows(root, values, arrays, rows, before)[0], np.float64)


def rows_before(positions: NDArray[np.int64]) -> RowsBefore:
    """Return the function that gives the row `lag` before each row of y (T, heads, columns), zeros where its sequence
    has none. `positions`: those of rows in their sequences, which follow one another."""

    def before(number: int, y: NDArray[np.float64], lag: int) -> NDArray[np.float64]:
        at = np.maximum(np.arange(len(y)) - lag, 0)
        return np.where((positions >= lag)[:, None, None], y[at], 0.0)

    return before


def rows_carried(
    states: Mapping[int, NDArray[np.float64]], ages: NDArray[np.int64], sources: NDArray[np.int64]
) -> RowsBefore:
    """Return the function that gives the row `lag` before each new row of y (T, heads, columns): a new one too, or one
    of the state of its sequence, as CarriedRows holds them."""

    def before(number: int, y: NDArray[np.float64], lag: int) -> NDArray[np.float64]:
        (count, heads, columns), state = y.shape, states[number]
        held = state.reshape(len(state), heads, -1, columns)[sources]
        at = np.where(ages < lag, held.shape[2] + ages - lag, 0)
        earlier = np.take_along_axis(held, at[:, None, None, None], 2)[:, :, 0]
        return np.where((ages >= lag)[:, None, None], y[np.maximum(np.arange(count) - lag, 0)], earlier)

    return before


def read_value(node: RowValue, args: list[Any], values: Sequence[Any], arrays: Sequence[Any]) -> Any:
    """Compute one value from its arguments: a pair (numbers, error bounds), or for a fold one pair for each number of
    the carrier."""

    def each(change: Any) -> NumberPair:
        return change(args[0][0]), change(args[0][1])

    match node.op:
        case "value":
            return certain(heads_second(np.asarray(values[node.extra], np.float64)))
        case "const":
            return certain(np.asarray(arrays[node.extra], np.float64).reshape(1, node.heads, node.cols))
        case "literal":
            return np.full((1, 1, 1), node.extra), np.full((1, 1, 1), lost(node.extra))
        case "index":
            return certain(np.arange(node.cols, dtype=np.float64).reshape(1, 1, -1))
        case "map":
            return spread_by(node.extra, args)
        case "part":
            return args[0][node.extra]
        case "fold":
            return merge_rows(node.extra, node.heads, args)
        case "cols":
            return each(lambda a: whole_columns(a, node.args[0])[..., node.extra : node.extra + node.cols])
        case "split":
            return each(lambda a: whole_columns(a, node.args[0]).reshape(len(a), node.heads, node.cols))
        case "join":
            return each(lambda a: whole_columns(a, node.args[0]).reshape(len(a), 1, node.cols))
        case "wide":
            return each(lambda a: np.broadcast_to(a, (len(a), node.heads, node.cols)))
        case "repeat":
            times = node.heads // node.args[0].heads
            return each(lambda a: np.repeat(whole_columns(a, node.args[0]), times, 1))
        case "beside":
            rows = max(len(y) for y, _ in args)

            def side(at: int) -> Any:
                return np.concatenate(
                    [
                        np.broadcast_to(pair[at], (rows, node.heads, part.cols))
                        for pair, part in zip(args, node.args, strict=True)
                    ],
                    -1,
                )

            return side(0), side(1)
        case "place":
            return each(lambda a: padded(whole_columns(a, node.args[0]), node.extra, node.cols))
        case "total":
            y, e = args[0]
            size = sum_sizes(y, 1)
            off = e.sum(1, keepdims=True)
            return y.sum(1, keepdims=True), off + rounding(y.shape[1], size + off)
        case "times":
            return multiply_pairs(node, args[0], np.asarray(arrays[node.extra[0]], np.float64))
    raise ValueError(f"{node.op}: no such operation")


def certain(y: Any) -> NumberPair:
    return y, np.zeros(y.shape)


def heads_second(y: Any) -> Any:
    return y[:, None] if y.ndim == 2 else y


def sum_sizes(y: Any, axis: int) -> Any:
    return abs(y).sum(axis, keepdims=True)


def rounding(count: int, size: Any) -> Any:
    return count * HALF_UNIT * size * 1.01 + count * VANISHED


def whole_columns(a: Any, node: RowValue) -> Any:
    """Broadcast an array to all heads and columns of its node."""
    return np.broadcast_to(a, (len(a), node.heads, node.cols))


def padded(a: Any, start: int, cols: int) -> Any:
    out = np.zeros((*a.shape[:-1], cols))
    out[..., start : start + a.shape[-1]] = a
    return out


def multiply_pairs(node: RowValue, x: NumberPair, W: Any) -> NumberPair:
    """Multiply rows by a matrix, or by one for each head."""
    y, e = (whole_columns(array, node.args[0])[..., None, :] for array in x)
    w = W.reshape(1, -1, *W.shape[-2:])
    size, error = (np.matmul(array, abs(w))[..., 0, :] for array in (abs(y), e))
    return np.matmul(y, w)[..., 0, :], error + rounding(W.shape[-2] + 1, size + error)


def merge_rows(merging: Merging, heads: int, carriers: Sequence[NumberPair]) -> list[NumberPair]:
    """Merge the carriers of each row: lane by lane and then neighbours if the order is free, else block by block."""
    n, rows = merging.cols, max(len(y) for y, _ in carriers)
    blocks = -(-n // ABREAST)

    def spread_out(a: Any, fill: float) -> Any:
        full = np.full((rows, heads, blocks * ABREAST), fill)
        full[..., :n] = np.broadcast_to(a, (rows, heads, n))
        return full.reshape(rows, heads, blocks, ABREAST)

    parts = [(spread_out(y, unit), spread_out(e, 0.0)) for (y, e), unit in zip(carriers, merging.unit, strict=True)]
    held: list[NumberPair] = [(np.full((1, 1, ABREAST), unit), np.zeros((1, 1, ABREAST))) for unit in merging.unit]
    for k in range(blocks):
        fresh = [(y[:, :, k], e[:, :, k]) for y, e in parts]
        held = bound_graph(merging.merge, *held, *(fresh if merging.commutative else merge_lanes(merging, fresh)))
    if merging.commutative:
        held = merge_lanes(merging, held)
    return [
        (np.broadcast_to(y, (rows, heads, ABREAST))[..., :1], np.broadcast_to(e, (rows, heads, ABREAST))[..., :1])
        for y, e in held
    ]


def merge_lanes(merging: Merging, held: Sequence[NumberPair]) -> list[NumberPair]:
    """Merge neighbours, then pairs of them, and so on, into the first lane."""
    for distance in (1, 2, 4, 8):
        behind = [(np.roll(y, -distance, -1), np.roll(e, -distance, -1)) for y, e in held]
        held = bound_graph(merging.merge, *held, *behind)
    return [*held]
