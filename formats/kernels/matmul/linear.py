"""x @ W with a fused epilogue, for weights stored densely: float32, float16 widened panel by panel, and low rank.

Many rows: an item is a chunk of rows with all columns, so the epilogue finds its rows in cache. Few rows: an item is a
range of columns, so that every thread reads its own part of the weight; a normalisation then follows as a separate
stage."""

import math

import numpy as np

from formats.core.arrays import as_contiguous, readable, separate, writable
from formats.core.epilogue import Epilogue
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, Launch, Record, address, filled, launch, step, temporary, words
from formats.kernels.engine.memory import floats, record, shorts, widen
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.gemm import TILE_ROWS, gemm, multiply
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows

__all__ = ["product_dense", "product_half", "product_lowrank"]

# x (T, n) and out (T, p) with their steps between rows; rows, cols: of an item; w: as the format defines it
LINEAR = np.dtype(words("x along out step T n p rows cols multiply room apart w bytes after"))
f4 = np.float32
BLOCK_DEPTH, BLOCK_COLUMNS = 512, 192  # a block of the weight: 384 KiB, a part of any L2
REUSED = 16  # rows above which a block is copied to be contiguous
ENOUGH = 128  # rows for each thread from which work is split by rows
MAX_ITEM_ROWS = 256  # most rows of an item
__borders__ = ENOUGH, MAX_ITEM_ROWS, REUSED, TILE_ROWS


@njit(**HELPER)
def tile(c, item):
    """Return (low, high, left, right): the rows and columns of an item."""
    across = (c.p + c.cols - 1) // c.cols
    low, left = item // across * c.rows, item % across * c.cols
    return low, min(low + c.rows, c.T), left, min(left + c.cols, c.p)


@njit(**HELPER)
def copy_block(source, target, depth, width, step):
    """Copy a block of float32, step bytes between its rows, to rows of BLOCK_COLUMNS numbers."""
    for i in range(depth):
        stored, kept = floats(source + i * step, width), floats(target + 4 * i * BLOCK_COLUMNS, width)
        for j in range(width):
            kept[j] = stored[j]


@njit(**HELPER)
def widen_block(source, target, depth, width, step):
    """Convert a block of float16 to rows of BLOCK_COLUMNS float32."""
    for i in range(depth):
        stored, kept = shorts(source + i * step, width), floats(target + 4 * i * BLOCK_COLUMNS, width)
        for j in range(width):
            kept[j] = widen(stored[j])


@Kernel
def dense_by_blocks(item, worker, arguments):
    """Multiply by w (n, p) in float32 or float16, by blocks that fit the cache; the epilogue follows block by block."""
    c = record(arguments, LINEAR)
    low, high, left, right = tile(c, item)
    x, out, room = c.x + 4 * low * c.along, c.out + 4 * low * c.step, c.room + worker * c.apart
    for start in range(left, right, BLOCK_COLUMNS):
        width = min(BLOCK_COLUMNS, right - start)
        for top in range(0, c.n, BLOCK_DEPTH):
            depth, w, across = min(BLOCK_DEPTH, c.n - top), c.w + c.bytes * (top * c.p + start), c.bytes * c.p
            if c.bytes == 2:
                widen_block(w, room, depth, width, across)
            elif high - low > REUSED:
                copy_block(w, room, depth, width, across)
            if c.bytes == 2 or high - low > REUSED:
                w, across = room, 4 * BLOCK_COLUMNS
            multiply(
                c.multiply,
                high - low,
                width,
                depth,
                x + 4 * top,
                4 * c.along,
                w,
                across,
                out + 4 * start,
                4 * c.step,
                top == 0,
            )
        finish_block(c.after, low, high, start, start + width)
    if right - left == c.p:
        finish_rows(c.after, low, high)


@Kernel
def settle(item, worker, arguments):
    """Apply normalisation, gain and shift to rows whose columns were computed by different items."""
    c = record(arguments, LINEAR)
    finish_rows(c.after, item * c.rows, min(item * c.rows + c.rows, c.T))


def split_work(rows: int, columns: int, workers: int, unit: int = 1) -> tuple[int, int]:
    """Return (rows, columns) of an item: all columns if there are rows enough for every worker, otherwise all rows.

    A range of columns is a multiple of unit, and of 16 where that is possible."""
    if not rows:
        return 0, columns
    if workers == 1 or rows >= ENOUGH * workers:
        return -(-rows // (workers * -(-rows // (workers * MAX_ITEM_ROWS)))), columns
    unit = math.lcm(unit, 16)
    return rows, min(columns, -(-columns // workers // unit) * unit)


def linear_stages(
    kernel: Kernel,
    x: np.ndarray,
    weight: int,
    out: np.ndarray,
    after: Record | None,
    workers: int,
    room: tuple[int, int] = (0, 0),
    size: int = 4,
    unit: int = 1,
) -> list[Launch]:
    """Return the launches of one product; weight: the address of w (size bytes a number), or of a record that describes
    it; room: scratch for each worker."""
    (T, n), p = x.shape, out.shape[1]
    if not T:
        return []
    rows, cols = split_work(T, p, workers, unit)
    fields = (
        address(x),
        step(x),
        address(out),
        step(out),
        T,
        n,
        p,
        rows,
        cols,
        gemm.address,
        *room,
        weight,
        size,
        address(after),
    )
    stages: list[Launch] = [(kernel, filled(*fields), -(-T // rows) * -(-p // cols))]
    if isinstance(after, np.ndarray) and after["normal"][0] and cols < p:
        few = -(-T // workers)
        stages.append((settle, filled(*fields[:7], few, p, *fields[9:]), -(-T // few)))
    return stages


def check_product(x: np.ndarray, n: int | None, p: int | None, out: np.ndarray, **weights: np.ndarray) -> None:
    """Check the arguments of every product: x (T, n), W (n, p) and out (T, p) fit together, and out does not overlap
    the arrays that are read. n or p is None if the weights do not determine it. ValueError names the array that does
    not fit."""
    if x.ndim != 2 or out.ndim != 2:
        raise ValueError(f"x and out: expected two axes each, got shapes {x.shape} and {out.shape}")
    n, p = x.shape[1] if n is None else n, out.shape[1] if p is None else p
    if n < 1 or p < 1:
        raise ValueError(f"W: expected at least one input and one output, got {n} by {p}")
    readable("x", x, (len(x), n))
    readable("out", out, (len(x), p))
    writable("out", out)
    separate(out, x=x, **weights)


def typed(name: str, array: np.ndarray, *kinds: type, axes: int = 1) -> np.ndarray:
    """Return the array, if it is contiguous, of one of these kinds of number and of `axes` axes; else ValueError."""
    flags = array.flags
    if array.dtype not in kinds or array.ndim != axes or not (flags.c_contiguous and flags.aligned):
        wanted = " or ".join(np.dtype(kind).name for kind in kinds)
        raise ValueError(
            f"{name}: expected contiguous {wanted} of {axes} axes at multiples of its size, got "
            f"{array.dtype} of shape {array.shape} with strides of {array.strides} bytes"
        )
    return array


def product_dense(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w (n, p) in float32, then the epilogue."""
    return product_stored(x, as_contiguous("w", w, f4), out, epilogue)


def product_half(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w (n, p), w stored as float16, then the epilogue; sums are in float32."""
    if w.dtype != np.float16:
        raise ValueError(f"w: expected float16, got {w.dtype}")
    return product_stored(x, as_contiguous("w", w), out, epilogue)


def product_stored(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Epilogue | None) -> np.ndarray:
    """Compute the product with a contiguous weight in its own kind of number."""
    if w.ndim != 2:
        raise ValueError(f"w: expected two axes, got shape {w.shape}")
    check_product(x, *w.shape, out, w=w)
    after, workers = epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * BLOCK_DEPTH * BLOCK_COLUMNS, workers)
        launch(workers, *linear_stages(dense_by_blocks, x, address(w), out, after, workers, room, w.itemsize))
    return out


def check_factors(u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return u and v, if they are (n, r) and (r, p); else ValueError."""
    for name, array in (("u", u), ("v", v)):
        typed(name, array, f4, axes=2)
    if not u.shape[1] == len(v) > 0:
        raise ValueError(f"u and v: expected (n, r) and (r, p), got {u.shape} and {v.shape}")
    return u, v


def product_lowrank(
    x: np.ndarray, u: np.ndarray, v: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = (x (T, n) @ u (n, r)) @ v (r, p), then the epilogue."""
    first, second = check_factors(as_contiguous("u", u, f4), as_contiguous("v", v, f4))
    check_product(x, len(u), v.shape[1], out, u=first, v=second)
    between, after, workers = temporary((x.shape[0], u.shape[1])), epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * BLOCK_DEPTH * BLOCK_COLUMNS, workers)
        launch(
            workers,
            *linear_stages(dense_by_blocks, x, address(first), between, None, workers, room),
            *linear_stages(dense_by_blocks, between, address(second), out, after, workers, room),
        )
    return out
