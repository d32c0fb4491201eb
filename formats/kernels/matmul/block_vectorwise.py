"""x @ W for W of sparse tiles, r inputs by c outputs, stored by columns of tiles; W is not made dense.

If c is a multiple of 16, a row of a tile is a vector. Strips of tokens are transposed, so that the numbers that
multiply it are contiguous, and sums of tokens by outputs are written as rows. Other tiles are multiplied as in
csr_nm.py, tokens contiguous."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Function, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import floats, pointer, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.csr_nm import NEAR, SPARSE, choose_tokens, launch_sparse
from formats.kernels.matmul.linear import ENOUGH, LINEAR, MAX_ITEM_ROWS, check_product, linear_stages, tile, typed
from formats.kernels.matmul.transposing import turn_in
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.kernels.simd.vectors import AHEAD, MANY_REGISTERS, add_outer, plus, prefetch, store_tile, zeros

__all__ = ["product_block", "product_vectorwise"]

# ptr: 0 if every column of tiles has `held` of them; chunk: tokens transposed at once; depth: lines of a transposed
# strip; once: outputs whose tiles stay in cache for all strips of a chunk
BLOCKS = np.dtype(words("ptr held idx val r c chunk depth once"))
TALL = 24  # tokens of a strip; 16, 8 or 1 if that is enough
__borders__ = ENOUGH, MAX_ITEM_ROWS, TALL
f4, i8 = np.float32, np.int64


@njit(**HELPER)
def tile_sums(none, c, idx, val, low, high, r, x, tokens, out, step):
    """Compute sums of tokens by outputs, as many as the tile of sums has, over tiles low..high: x is (depth, tokens),
    rows of a tile are c apart."""
    sums = none
    for b in range(low, high):
        factors, row = x + 4 * i8(idx[b]) * r * tokens, val + 4 * b * r * c
        for _ in range(r):
            prefetch(sums, row + AHEAD)
            sums = add_outer(sums, factors, 4, row, None)
            factors += 4 * tokens
            row += 4 * c
    store_tile(sums, out, step, None)


@njit(**HELPER)
def row_sums(none, c, idx, val, low, high, r, x, out):
    """Run `tile_sums` for one token: even and odd inputs have separate sums, as an addition takes four cycles."""
    even, odd = none, none
    for b in range(low, high):
        factors, row = x + 4 * i8(idx[b]) * r, val + 4 * b * r * c
        for _ in range(r // 2):
            prefetch(even, row + AHEAD)
            prefetch(even, row + AHEAD + 4 * c)
            even = add_outer(even, factors, 4, row, None)
            odd = add_outer(odd, factors + 4, 4, row + 4 * c, None)
            factors += 8
            row += 8 * c
        if r % 2:
            even = add_outer(even, factors, 4, row, None)
    store_tile(plus(even, odd), out, 0, None)


@njit(**HELPER)
def tile_column(w, idx, low, high, x, tokens, out, step):
    """Multiply a column of tiles for a strip of tokens: as many outputs at once as there are vectors in c, as many
    tokens as sums fit."""
    c, r = w.c, w.r
    for j in range(0, c, 64 if c % 64 == 0 else 32 if c % 32 == 0 else 16):
        val, to = w.val + 4 * j, out + 4 * j
        if tokens == 1:
            if c % 64 == 0:
                row_sums(zeros(1, 4), c, idx, val, low, high, r, x, to)
            elif c % 32 == 0:
                row_sums(zeros(1, 2), c, idx, val, low, high, r, x, to)
            else:
                row_sums(zeros(1, 1), c, idx, val, low, high, r, x, to)
        elif c % 64 == 0 and MANY_REGISTERS:
            for t in range(0, tokens, 4):
                tile_sums(zeros(4, 4), c, idx, val, low, high, r, x + 4 * t, tokens, to + t * step, step)
        elif c % 32 == 0 and MANY_REGISTERS:
            for t in range(0, tokens, 8):
                tile_sums(zeros(8, 2), c, idx, val, low, high, r, x + 4 * t, tokens, to + t * step, step)
        elif tokens == TALL and MANY_REGISTERS:
            tile_sums(zeros(24, 1), c, idx, val, low, high, r, x, tokens, to, step)
        elif tokens == 16 and MANY_REGISTERS:
            tile_sums(zeros(16, 1), c, idx, val, low, high, r, x, tokens, to, step)
        else:
            for v in range(0, 64 if c % 64 == 0 else 32 if c % 32 == 0 else 16, 16):
                for t in range(0, tokens, 4):
                    tile_sums(
                        zeros(4, 1), c, idx, val + 4 * v, low, high, r, x + 4 * t, tokens, to + 4 * v + t * step, step
                    )


@Kernel
def block_strips(item, worker, arguments):
    """Transpose strips of tokens, and multiply a column of tiles at a time; then apply the epilogue."""
    c = record(arguments, LINEAR)
    w = record(c.w, BLOCKS)
    low, high, left, right = tile(c, item)
    spare = c.room + worker * c.apart  # room for outputs beyond the edge of out
    x = spare + 4 * TALL * w.c
    for first in range(low, high, w.chunk):
        count = min(w.chunk, high - first)
        for t in range(0, count, TALL):
            here = min(TALL, count - t)
            turn_in(c.x + 4 * (first + t) * c.along, 4 * c.along, here, c.n, x + 4 * t * w.depth, tall(here), w.depth)
        for begin in range(left, right, w.once):
            for t in range(0, count, TALL):
                here, out = min(TALL, count - t), c.out + 4 * (first + t) * c.step
                for start in range(begin, min(begin + w.once, right), w.c):
                    block_column(c, w, start, x + 4 * t * w.depth, here, out + 4 * start, spare)
    finish_block(c.after, low, high, left, right)
    if right - left == c.p:
        finish_rows(c.after, low, high)


@njit(**HELPER)
def block_column(c, w, start, x, count, out, spare):
    """Multiply the column of tiles that begins at output `start`, for a strip of `count` tokens."""
    j, ptr, idx = start // w.c, pointer(w.ptr, np.uint32), pointer(w.idx, np.uint32)
    low, high = (i8(ptr[j]), i8(ptr[j + 1])) if w.ptr else (j * w.held, (j + 1) * w.held)
    tokens, width = tall(count), min(w.c, c.p - start)
    if tokens == count and width == w.c:
        tile_column(w, idx, low, high, x, tokens, out, 4 * c.step)
    else:
        tile_column(w, idx, low, high, x, tokens, spare, 4 * w.c)
        for t in range(count):
            found, kept = floats(spare + 4 * t * w.c, width), floats(out + 4 * t * c.step, width)
            for i in range(width):
                kept[i] = found[i]


@njit(**HELPER)
def tall(count):
    """Return the tokens of the smallest strip that holds `count`."""
    return TALL if count > 16 else 16 if count > 8 else 8 if count > 1 else 1


# ---- tiles of other widths


@njit(**HELPER)
def block_strip(none, w, ptr, idx, column, j, tokens, x, y):
    """Compute outputs j.. of a column of blocks, as many as the sums have, for their tokens."""
    sums, along = none, 4 * tokens
    for b in range(i8(ptr[column]), i8(ptr[column + 1])):
        factors, at = w.val + 4 * (b * w.r * w.c + j), x + i8(idx[b]) * w.r * along
        for _ in range(w.r):
            sums = add_outer(sums, factors, 4, at, None)
            factors += 4 * w.c
            at += along
    store_tile(sums, y + j * along, along, None)


@Function.of(6)
def block_columns(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous; tiles of r inputs by c outputs, in strips of 8 and of 1
    outputs."""
    w = record(weight, SPARSE)
    ptr, idx = pointer(w.ptr, np.uint32), pointer(w.idx, np.uint32)
    for column in range(start // w.c, (start + width + w.c - 1) // w.c):
        to = y + 4 * (column * w.c - start) * tokens
        for t in range(0, tokens, 16):
            at, j = x + 4 * t, 0
            while j + 8 <= w.c:
                block_strip(zeros(8, 1), w, ptr, idx, column, j, tokens, at, to + 4 * t)
                j += 8
            while j < w.c:
                block_strip(zeros(1, 1), w, ptr, idx, column, j, tokens, at, to + 4 * t)
                j += 1


# ---- from Python


def product_block(
    x: np.ndarray, ptr: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; W consists of tiles of r inputs by c outputs.

    val: float32 (blocks, r, c); ptr: uint32, block columns + 1; idx: uint32, the block row of every block. Tiles that
    reach over the edge of W are padded with zeros."""
    arrays = typed("ptr", ptr, np.uint32), typed("idx", idx, np.uint32), typed("val", val, f4, axes=3)
    check_product(x, None, None, out, ptr=ptr, idx=idx, val=val)
    _, r, c = val.shape
    if min(r, c) < 1:
        raise ValueError(f"block: tiles of {r} by {c}: both must be 1 or more")
    if len(ptr) - 1 != -(-out.shape[1] // c) or not ptr[-1] == len(idx) == len(val):
        raise ValueError(
            f"block: ptr of {len(ptr)} ending at {ptr[-1]}, idx of {len(idx)} and val of {val.shape} "
            f"do not make {out.shape[1]} columns"
        )
    if c % 16:
        return launch_sparse(x, arrays, out, epilogue, (block_columns, None), (r, c), c, r)
    return launch_blocks(x, arrays, out, epilogue, (r, c))


def launch_blocks(
    x: np.ndarray,
    weights: tuple[np.ndarray | int, np.ndarray, np.ndarray],
    out: np.ndarray,
    epilogue: Epilogue | None,
    tile: tuple[int, int],
) -> np.ndarray:
    """Launch a product. weights: ptr, or the number of tiles of every column of them; idx; val. tile: r inputs by c
    outputs, c a multiple of 16."""
    ptr, idx, val = weights
    (T, n), (r, c), counted = x.shape, tile, isinstance(ptr, int)
    depth = -(-(-(-n // r) * r) // 16) * 16
    chunk = choose_tokens(val.nbytes, depth, TALL)
    once = max(NEAR * out.shape[1] // (val.nbytes * c + 1), 1) * c
    fields = 0 if counted else address(ptr), ptr if counted else 0, address(idx), address(val), r, c, chunk, depth, once
    weight, after, workers = filled(*fields), epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * (min(chunk, -(-T // TALL) * TALL) * depth + TALL * c), workers)
        launch(workers, *linear_stages(block_strips, x, address(weight), out, after, workers, room, unit=c))
    return out


def product_vectorwise(
    x: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; tile i of W, c outputs wide, has the rows val[i] for the inputs
    idx[i].

    idx: uint32 (tiles, kept), val: float32 (tiles, kept, c), c a multiple of 16."""
    arrays = typed("idx", idx, np.uint32, axes=2).shape[1], idx, typed("val", val, f4, axes=3)
    check_product(x, None, None, out, idx=idx, val=val)
    if idx.shape != val.shape[:2] or not val.size or val.shape[2] % 16 or len(idx) != -(-out.shape[1] // val.shape[2]):
        raise ValueError(f"vectorwise: idx {idx.shape} and val {val.shape} do not make {out.shape[1]} columns")
    return launch_blocks(x, arrays, out, epilogue, (1, val.shape[2]))
