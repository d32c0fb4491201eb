"""x @ W with a fused epilogue, for weights stored densely: float32, float16 widened panel by panel, and low rank.

Many rows: an item is a chunk of rows with all columns, so the epilogue finds its rows in cache. Few rows: an item is a
range of columns, so that every thread reads its own part of the weight; a normalisation then follows as a stage."""
import math
from typing import Any

import numpy as np

from ..threads import threads
from .compiled import HELPER, Kernel
from .epilogue import check_rows, epilogue_record, finish_block, finish_rows
from .gemm import gemm, multiply
from .launch import ROOM, Record, Stage, address, filled, launch, step, temporary, words
from .memory import floats, record, shorts, widen
from .native import njit
from .pool import POOL

# x (T, n) and out (T, p) with their steps between rows; an item has so many rows and columns; w is the format's own
LINEAR = np.dtype(words("x along out step T n p rows cols multiply room apart w bytes after"))
f4 = np.float32
DEEP, WIDE = 512, 192                                        # a block of the weight: 384 KiB, a part of any L2
REUSED = 16                                                  # rows above which a block is copied to be contiguous
ENOUGH = 128                                                 # rows for each thread from which rows are split
CHUNK = 256                                                  # rows of an item, at most


@njit(**HELPER)
def tile(c, item):
    """(low, high, left, right): the rows and columns of an item."""
    across = (c.p + c.cols - 1) // c.cols
    low, left = item // across * c.rows, item % across * c.cols
    return low, min(low + c.rows, c.T), left, min(left + c.cols, c.p)


@njit(**HELPER)
def copy_block(source, target, depth, width, step):
    """A block of float32, step bytes between its rows, to rows of WIDE numbers."""
    for i in range(depth):
        stored, kept = floats(source + i * step, width), floats(target + 4 * i * WIDE, width)
        for j in range(width): kept[j] = stored[j]


@njit(**HELPER)
def widen_block(source, target, depth, width, step):
    """A block of float16 to rows of WIDE float32."""
    for i in range(depth):
        stored, kept = shorts(source + i * step, width), floats(target + 4 * i * WIDE, width)
        for j in range(width): kept[j] = widen(stored[j])


@Kernel
def dense(item, worker, arguments):
    """w (n, p) in float32 or float16, by blocks that fit the cache; the epilogue follows block by block."""
    c = record(arguments, LINEAR)
    low, high, left, right = tile(c, item)
    x, out, room = c.x + 4 * low * c.along, c.out + 4 * low * c.step, c.room + worker * c.apart
    for start in range(left, right, WIDE):
        width = min(WIDE, right - start)
        for top in range(0, c.n, DEEP):
            depth, w, across = min(DEEP, c.n - top), c.w + c.bytes * (top * c.p + start), c.bytes * c.p
            if c.bytes == 2: widen_block(w, room, depth, width, across)
            elif high - low > REUSED: copy_block(w, room, depth, width, across)
            if c.bytes == 2 or high - low > REUSED: w, across = room, 4 * WIDE
            multiply(c.multiply, high - low, width, depth, x + 4 * top, 4 * c.along, w, across, out + 4 * start,
                     4 * c.step, top == 0)
        finish_block(c.after, low, high, start, start + width)
    if right - left == c.p: finish_rows(c.after, low, high)


@Kernel
def settle(item, worker, arguments):
    """Normalisation, gain and shift of rows whose columns were computed apart."""
    c = record(arguments, LINEAR)
    finish_rows(c.after, item * c.rows, min(item * c.rows + c.rows, c.T))


def split(rows: int, columns: int, workers: int, unit: int = 1) -> tuple[int, int]:
    """(rows, columns) of an item: all columns where there are rows enough for every worker, otherwise all rows.

    A range of columns is a multiple of unit, and of 16 where that is possible."""
    if workers == 1 or rows >= ENOUGH * workers:
        return -(-rows // (workers * -(-rows // (workers * CHUNK)))), columns
    unit = math.lcm(unit, 16)
    return rows, min(columns, -(-columns // workers // unit) * unit)


def linear_stages(kernel: Kernel, x: np.ndarray, weight: int, out: np.ndarray, after: Record | None,
                  workers: int, room: tuple[int, int] = (0, 0), size: int = 4, unit: int = 1) -> list[Stage]:
    """The launches of one product; weight: the address of w (size bytes a number), or of a record that describes it; room is for
    so many workers."""
    (T, n), p = x.shape, out.shape[1]
    rows, cols = split(T, p, workers, unit)
    fields = (address(x), step(x), address(out), step(out), T, n, p, rows, cols, gemm.address, *room, weight,
              size, address(after))
    stages: list[Stage] = [(kernel, filled(*fields), -(-T // rows) * -(-p // cols))]
    if isinstance(after, np.ndarray) and after["normal"][0] and cols < p:
        few = -(-T // workers)
        stages.append((settle, filled(*fields[:7], few, p, *fields[9:]), -(-T // few)))
    return stages


def check_product(x: np.ndarray, shape: tuple[int, int], out: np.ndarray) -> None:
    """x (T, n), W (n, p) of this shape and out (T, p) fit together."""
    if x.ndim != 2: raise ValueError(f"x: expected (T, {shape[0]}), got shape {x.shape}")
    check_rows("x", x, (x.shape[0], shape[0]))
    check_rows("out", out, (x.shape[0], shape[1]))


def product_dense(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w (n, p) in float32, then the epilogue."""
    return product_stored(x, np.ascontiguousarray(w, f4), out, epilogue)


def product_half(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w (n, p), w stored as float16, then the epilogue; sums are in float32."""
    if w.dtype != np.float16: raise ValueError(f"w: expected float16, got {w.dtype}")
    return product_stored(x, np.ascontiguousarray(w), out, epilogue)


def product_stored(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Any) -> np.ndarray:
    """The product with a contiguous weight in its own kind of number."""
    check_product(x, w.shape, out)
    after, workers = epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * DEEP * WIDE, workers)
        launch(workers, *linear_stages(dense, x, address(w), out, after, workers, room, w.itemsize))
    return out


def product_lowrank(x: np.ndarray, u: np.ndarray, v: np.ndarray, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = (x (T, n) @ u (n, r)) @ v (r, p), then the epilogue."""
    if u.shape[1:] != v.shape[:1]: raise ValueError(f"u and v: expected (n, r) and (r, p), got {u.shape} and {v.shape}")
    check_product(x, (u.shape[0], v.shape[1]), out)
    first, second = np.ascontiguousarray(u, f4), np.ascontiguousarray(v, f4)
    between, after, workers = temporary((x.shape[0], u.shape[1])), epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * DEEP * WIDE, workers)
        launch(workers, *linear_stages(dense, x, address(first), between, None, workers, room),
               *linear_stages(dense, between, address(second), out, after, workers, room))
    return out
