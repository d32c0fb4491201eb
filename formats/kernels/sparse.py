"""x @ W for sparse W (csr, block, n:m), stored by output column; nothing is densified.

A tile of tokens is turned so that tokens run along the contiguous axis. Then a nonzero is one number times a row of
tokens, added to sums that stay in registers; finished columns are turned back. The same code serves one token."""
from typing import Any

import numpy as np
from numba import carray, njit

from .compiled import HELPER, Function, Kernel, calling
from .epilogue import epilogue_record, finish_block, finish_rows
from .launch import ROOM, address, launch, words
from .linear import LINEAR, check_product, linear_stages, tile
from .memory import floats, pointer, record
from .pool import POOL
from .vectors import add_outer, plus, turn, write, zeros

# columns: the function for the format; r, c: tile of a block, or N and M; a turned tile of tokens is depth by tokens;
# so many columns are computed at once before they are turned back
SPARSE = np.dtype(words("columns ptr idx val r c tokens depth p once"))
ROOMY = 1 << 20                                              # bytes for a turned tile of tokens: a half of an L2
COLUMNS = 64                                                 # columns computed before they are turned back
f4, i8 = np.float32, np.int64


@njit(**HELPER)
def turn_in(c, first, count, x, tokens, depth):
    """Rows first.. of c.x, turned, at x: (depth, tokens), zero outside (n, count)."""
    across, along = 4 * c.along, 4 * tokens
    source = c.x + first * across
    even, full = count // 16 * 16, c.n // 16 * 16
    for t in range(0, even, 16):
        for k in range(0, full, 16): turn(source + t * across + 4 * k, across, x + k * along + 4 * t, along)
    for k in range(depth):
        turned = floats(x + k * along, tokens)
        for t in range(0 if k >= c.n else even, tokens): turned[t] = 0
    for t in range(count):
        row = floats(source + t * across, c.n)
        for k in range(full if t < even else 0, c.n): floats(x + k * along, tokens)[t] = row[k]


@njit(**HELPER)
def turn_out(c, y, tokens, first, count, start, width):
    """Columns start.. of rows first.. of c.out from y: (width, tokens)."""
    across, along = 4 * c.step, 4 * tokens
    target = c.out + first * across + 4 * start
    even, full = count // 16 * 16, width // 16 * 16
    for t in range(0, even, 16):
        for j in range(0, full, 16): turn(y + j * along + 4 * t, along, target + t * across + 4 * j, across)
    for t in range(count):
        row = floats(target + t * across, width)
        for j in range(full if t < even else 0, width): row[j] = floats(y + j * along, tokens)[t]


@njit(**HELPER)
def csr_column(none, idx, val, k, end, x, along, y):
    """One column for the tokens of a tile: four sums side by side, as an addition takes four cycles."""
    one, two, three, four = none, none, none, none
    while k + 4 <= end:
        one = add_outer(one, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        two = add_outer(two, val + 4 * k + 4, 0, x + i8(idx[k + 1]) * along, None)
        three = add_outer(three, val + 4 * k + 8, 0, x + i8(idx[k + 2]) * along, None)
        four = add_outer(four, val + 4 * k + 12, 0, x + i8(idx[k + 3]) * along, None)
        k += 4
    while k < end:
        one = add_outer(one, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        k += 1
    write(plus(plus(one, two), plus(three, four)), y, 0, None)


@njit(**HELPER)
def csr_range(w, idx, start, width, x, y):
    """A range of columns for all tokens, as many at a time as sums fit the registers."""
    ptr, along = carray(pointer(w.ptr, np.uint32), w.p + 1), 4 * w.tokens
    for j in range(width):
        k, end, token, target = i8(ptr[start + j]), i8(ptr[start + j + 1]), 0, y + j * along
        while token + 64 <= w.tokens:
            csr_column(zeros(1, 4), idx, w.val, k, end, x + 4 * token, along, target + 4 * token)
            token += 64
        while token < w.tokens:
            csr_column(zeros(1, 1), idx, w.val, k, end, x + 4 * token, along, target + 4 * token)
            token += 16


@Function.of(5)
def csr_wide(weight, start, width, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; idx in 32 bits."""
    w = record(weight, SPARSE)
    csr_range(w, pointer(w.idx, np.uint32), start, width, x, y)


@Function.of(5)
def csr_short(weight, start, width, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; idx in 16 bits."""
    w = record(weight, SPARSE)
    csr_range(w, pointer(w.idx, np.uint16), start, width, x, y)


@njit(**HELPER)
def nm_column(none, idx, val, kept, group, x, along, y):
    """One column of n:m weights: the groups follow one another, so an index has one byte."""
    even, odd = none, none
    for k in range(0, idx.size, kept):
        for i in range(0, kept - 1, 2):
            even = add_outer(even, val + 4 * (k + i), 0, x + i8(idx[k + i]) * along, None)
            odd = add_outer(odd, val + 4 * (k + i) + 4, 0, x + i8(idx[k + i + 1]) * along, None)
        if kept % 2: even = add_outer(even, val + 4 * (k + kept - 1), 0, x + i8(idx[k + kept - 1]) * along, None)
        x += group * along
    write(plus(even, odd), y, 0, None)


@Function.of(5)
def nm_columns(weight, start, width, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; every group of c inputs keeps r."""
    w = record(weight, SPARSE)
    held, along = w.depth // w.c * w.r, 4 * w.tokens
    for j in range(width):
        idx, val = carray(pointer(w.idx + (start + j) * held, np.uint8), held), w.val + 4 * (start + j) * held
        token, target = 0, y + j * along
        while token + 64 <= w.tokens:
            nm_column(zeros(1, 4), idx, val, w.r, w.c, x + 4 * token, along, target + 4 * token)
            token += 64
        while token < w.tokens:
            nm_column(zeros(1, 1), idx, val, w.r, w.c, x + 4 * token, along, target + 4 * token)
            token += 16


@njit(**HELPER)
def block_strip(none, w, ptr, idx, column, j, x, y):
    """Rows j.. of a column of blocks, as many as the sums have, for their tokens."""
    sums, along = none, 4 * w.tokens
    for b in range(i8(ptr[column]), i8(ptr[column + 1])):
        factors, at = w.val + 4 * (b * w.r * w.c + j), x + i8(idx[b]) * w.r * along
        for _ in range(w.r):
            sums = add_outer(sums, factors, 4, at, None)
            factors += 4 * w.c
            at += along
    write(sums, y + j * along, along, None)


@njit(**HELPER)
def block_column(w, ptr, idx, column, x, y):
    """A column of blocks for all tokens: strips of 8, 4 and 1 outputs by 32 tokens."""
    for token in range(0, w.tokens, 32):
        at, to, j = x + 4 * token, y + 4 * token, 0
        while j + 8 <= w.c:
            block_strip(zeros(8, 2), w, ptr, idx, column, j, at, to)
            j += 8
        while j + 4 <= w.c:
            block_strip(zeros(4, 2), w, ptr, idx, column, j, at, to)
            j += 4
        while j < w.c:
            block_strip(zeros(1, 2), w, ptr, idx, column, j, at, to)
            j += 1


@Function.of(5)
def block_columns(weight, start, width, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; tiles of r inputs by c outputs."""
    w = record(weight, SPARSE)
    ptr, idx = pointer(w.ptr, np.uint32), pointer(w.idx, np.uint32)
    for j in range(0, width, w.c): block_column(w, ptr, idx, (start + j) // w.c, x, y + 4 * j * w.tokens)


columns = calling(5)


@Kernel
def sparse(item, worker, arguments):
    """Tiles of tokens: turn, multiply a range of columns at a time, turn back; then the epilogue."""
    c = record(arguments, LINEAR)
    w = record(c.w, SPARSE)
    low, high, left, right = tile(c, item)
    x = c.room + worker * c.apart
    y = x + 4 * w.depth * w.tokens
    for first in range(low, high, w.tokens):
        count = min(w.tokens, high - first)
        turn_in(c, first, count, x, w.tokens, w.depth)
        for start in range(left, right, w.once):
            width = min(w.once, right - start)
            columns(w.columns, c.w, start, width, x, y)
            turn_out(c, y, w.tokens, first, count, start, width)
    finish_block(c.after, low, high, left, right)
    if right - left == c.p: finish_rows(c.after, low, high)


def launch_sparse(x: np.ndarray, weights: tuple[np.ndarray | None, np.ndarray, np.ndarray], out: np.ndarray,
                  epilogue: Any, function: Function, tile: tuple[int, int] = (1, 1)) -> np.ndarray:
    """weights: ptr, idx, val; function: computes columns; tile: of a block, or (N, M)."""
    ptr, idx, val = weights
    (T, n), (r, c), block = x.shape, tile, function is block_columns
    group, least = (r, 32) if block else (c, 16)            # inputs that belong together; tokens of the least strip
    depth = -(-n // group) * group
    tokens = min(-(-T // least) * least, 128 if depth <= ROOMY // 512 else 64)
    once = max(COLUMNS // c, 1) * c if block else COLUMNS
    fields = (function.address, address(ptr), address(idx), address(val), r, c, tokens, depth, out.shape[1], once)
    weight, after = np.array([fields], SPARSE), epilogue_record(epilogue, out)
    with POOL.lock:
        room = ROOM.reserve(4 * tokens * (depth + once))
        launch(*linear_stages(sparse, x, weight.ctypes.data, out, after, room, unit=c if block else 1))
    return out


def product_csr(x: np.ndarray, ptr: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray,
                epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; column j of W has val[ptr[j]:ptr[j + 1]] in the rows idx[same].

    ptr: uint32 (p + 1), idx: uint16 or uint32 (nnz), val: float32 (nnz)."""
    check_product(x, (x.shape[1], len(ptr) - 1), out)
    arrays = typed("ptr", ptr, np.uint32), typed("idx", idx, np.uint16, np.uint32), typed("val", val, f4)
    if not ptr[-1] == len(idx) == len(val):
        raise ValueError(f"csr: ptr ends at {ptr[-1]}, but idx has {len(idx)} and val {len(val)} numbers")
    return launch_sparse(x, arrays, out, epilogue, csr_short if idx.itemsize == 2 else csr_wide)


def product_block(x: np.ndarray, ptr: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray,
                  epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; W consists of tiles of r inputs by c outputs.

    val: float32 (blocks, r, c); ptr: uint32, block columns + 1; idx: uint32, the block row of every block. Tiles that
    reach over the edge of W are padded with zeros."""
    check_product(x, (x.shape[1], out.shape[1]), out)
    arrays = typed("ptr", ptr, np.uint32), typed("idx", idx, np.uint32), typed("val", val, f4)
    _, r, c = val.shape
    if len(ptr) - 1 != -(-out.shape[1] // c) or not ptr[-1] == len(idx) == len(val):
        raise ValueError(f"block: ptr of {len(ptr)} ending at {ptr[-1]}, idx of {len(idx)} and val of {val.shape} "
                         f"do not make {out.shape[1]} columns")
    return launch_sparse(x, arrays, out, epilogue, block_columns, (r, c))


def product_nm(x: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray, group: int = 4,
               epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; of every `group` inputs a column keeps some.

    idx: uint8 (p, kept in all), the place within the group; val: float32 of the same shape."""
    groups = -(-x.shape[1] // group)
    check_product(x, (x.shape[1], len(idx)), out)
    arrays = None, typed("idx", idx, np.uint8), typed("val", val, f4)
    if idx.shape != val.shape or idx.shape[1] % groups:
        raise ValueError(f"nm: idx {idx.shape} and val {val.shape} do not fill {groups} groups of {group} inputs")
    return launch_sparse(x, arrays, out, epilogue, nm_columns, (idx.shape[1] // groups, group))


def typed(name: str, array: np.ndarray, *kinds: type) -> np.ndarray:
    """The array, if it is contiguous and of one of these kinds of number."""
    if array.dtype not in kinds or not array.flags.c_contiguous:
        wanted = " or ".join(np.dtype(kind).name for kind in kinds)
        raise ValueError(f"{name}: expected contiguous {wanted}, got {array.dtype} with strides {array.strides}")
    return array
