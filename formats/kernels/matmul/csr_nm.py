"""x @ W for sparse W stored by output column (csr, n:m): W is not made dense.

Strips of tokens are transposed so that tokens run along the contiguous axis. Then a nonzero is one number times a row
of tokens, added to sums that stay in registers; finished columns are transposed back. A single token needs no
transposing: a column is a dot product with the entries of x that it names."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.host.threads import threads
from formats.kernels.engine.compiled import FAST, HELPER, Function, Kernel, calling
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import floats, pointer, record
from formats.kernels.engine.native import carray, njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.linear import ENOUGH, LINEAR, MAX_ITEM_ROWS, check_product, linear_stages, tile, typed
from formats.kernels.matmul.transposing import turn_in, turn_out
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.kernels.simd.vectors import AHEAD, add_outer, plus, prefetch, store_tile, zeros

__all__ = ["product_csr", "product_nm"]

# columns: the function of the format, single: its function for one token; r, c: sizes of the format; chunk: tokens
# transposed at once; depth: lines of a transposed strip; once: columns computed before they are transposed back
SPARSE = np.dtype(words("columns single ptr idx val r c chunk depth p once"))
ROOMY = 1 << 20  # bytes for transposed tokens: half of an L2
NEAR = 1 << 19  # bytes of a weight that stay in cache
STRIP = 32  # tokens of a strip; 16 if that is enough
__borders__ = ENOUGH, MAX_ITEM_ROWS, STRIP
BLOCK_COLUMNS = 64  # columns computed before they are transposed back
f4, i8 = np.float32, np.int64
columns, single = calling(6), calling(5)


@Kernel
def sparse(item, worker, arguments):
    """Transpose strips of tokens, multiply a range of columns at a time, transpose back; then apply the epilogue."""
    c = record(arguments, LINEAR)
    w = record(c.w, SPARSE)
    low, high, left, right = tile(c, item)
    if high - low == 1 and w.single:
        single(w.single, c.w, left, right - left, c.x + 4 * low * c.along, c.out + 4 * (low * c.step + left))
    else:
        y = c.room + worker * c.apart
        x = y + 4 * w.once * STRIP
        for first in range(low, high, w.chunk):
            multiply_chunk(c, w, first, min(w.chunk, high - first), left, right, x, y)
    finish_block(c.after, low, high, left, right)
    if right - left == c.p:
        finish_rows(c.after, low, high)


@njit(**HELPER)
def multiply_chunk(c, w, first, count, left, right, x, y):
    """Compute columns left..right of `count` rows of out; a column's numbers are read from a near cache for all strips
    but one."""
    for t in range(0, count, STRIP):
        here = min(STRIP, count - t)
        turn_in(
            c.x + 4 * (first + t) * c.along, 4 * c.along, here, c.n, x + 4 * t * w.depth, strip_width(here), w.depth
        )
    for start in range(left, right, w.once):
        width = min(w.once, right - start)
        for t in range(0, count, STRIP):
            here, out = min(STRIP, count - t), c.out + 4 * ((first + t) * c.step + start)
            for row in range(here):
                prefetch(zeros(1, 4), out + 4 * row * c.step)
            columns(w.columns, c.w, start, width, strip_width(here), x + 4 * t * w.depth, y)
            turn_out(y, strip_width(here), width, out, 4 * c.step, here)


@njit(**HELPER)
def strip_width(count):
    """Return the tokens of the smallest strip that holds `count`."""
    return STRIP if count > 16 else 16


# ---- csr


@njit(**HELPER)
def csr_column(none, idx, val, k, end, x, along, y):
    """Compute one column for a strip of tokens: four separate sums, whatever the strip, as an addition takes four
    cycles."""
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
    store_tile(plus(plus(one, two), plus(three, four)), y, 0, None)


@njit(**HELPER)
def csr_range(w, idx, start, width, tokens, x, y):
    """Compute a range of columns for the tokens of a strip."""
    ptr, along = carray(pointer(w.ptr, np.uint32), w.p + 1), 4 * tokens
    for j in range(width):
        k, end = i8(ptr[start + j]), i8(ptr[start + j + 1])
        if tokens == STRIP:
            csr_column(zeros(1, 2), idx, w.val, k, end, x, along, y + j * along)
        else:
            csr_column(zeros(1, 1), idx, w.val, k, end, x, along, y + j * along)


@njit(fastmath=FAST, **HELPER)
def csr_dots(w, idx, idx_bytes, start, width, x, y):
    """Compute a range of columns for one token."""
    ptr, val = carray(pointer(w.ptr, np.uint32), w.p + 1), pointer(w.val, np.float32)
    for j in range(width):
        k, end, total = i8(ptr[start + j]), i8(ptr[start + j + 1]), f4(0)
        while k < end:
            for i in range(0, 1024, 256):
                prefetch(zeros(1, 4), w.val + 4 * k + AHEAD + i)
            for i in range(0, 256 * idx_bytes, 256):
                prefetch(zeros(1, 4), w.idx + idx_bytes * k + AHEAD + i)
            stop = min(k + 256, end)
            for i in range(k, stop):
                total += val[i] * x[i8(idx[i])]
            k = stop
        y[j] = total


@Function.of(6)
def csr_wide(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous; idx in 32 bits."""
    w = record(weight, SPARSE)
    csr_range(w, pointer(w.idx, np.uint32), start, width, tokens, x, y)


@Function.of(6)
def csr_short(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous; idx in 16 bits."""
    w = record(weight, SPARSE)
    csr_range(w, pointer(w.idx, np.uint16), start, width, tokens, x, y)


@Function.of(5)
def csr_wide_single(weight, start, width, x, y):
    """Compute columns start.. for one token; idx in 32 bits."""
    w = record(weight, SPARSE)
    csr_dots(w, pointer(w.idx, np.uint32), 4, start, width, pointer(x, np.float32), floats(y, width))


@Function.of(5)
def csr_short_single(weight, start, width, x, y):
    """Compute columns start.. for one token; idx in 16 bits."""
    w = record(weight, SPARSE)
    csr_dots(w, pointer(w.idx, np.uint16), 2, start, width, pointer(x, np.float32), floats(y, width))


# ---- n:m


@njit(**HELPER)
def nm_column(none, idx, val, kept, group, x, along, y):
    """Compute one column of n:m weights: an index has one byte, as it is a place within its group."""
    even, odd = none, none
    for k in range(0, idx.size, kept):
        for i in range(0, kept - 1, 2):
            even = add_outer(even, val + 4 * (k + i), 0, x + i8(idx[k + i]) * along, None)
            odd = add_outer(odd, val + 4 * (k + i) + 4, 0, x + i8(idx[k + i + 1]) * along, None)
        if kept % 2:
            even = add_outer(even, val + 4 * (k + kept - 1), 0, x + i8(idx[k + kept - 1]) * along, None)
        x += group * along
    store_tile(plus(even, odd), y, 0, None)


@Function.of(6)
def nm_columns(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous; every group of c inputs keeps r."""
    w = record(weight, SPARSE)
    held, along = w.ptr, 4 * tokens  # held: numbers of a column
    for j in range(width):
        idx, val = carray(pointer(w.idx + (start + j) * held, np.uint8), held), w.val + 4 * (start + j) * held
        if tokens == STRIP:
            nm_column(zeros(1, 2), idx, val, w.r, w.c, x, along, y + j * along)
        else:
            nm_column(zeros(1, 1), idx, val, w.r, w.c, x, along, y + j * along)


@njit(fastmath={"contract"}, **HELPER)
def nm_fours(idx, val, x, groups, group):
    """Compute `nm_dot` where four are kept: one by one, as vectors would be gathered, which takes longer."""
    a, b, c, d = f4(0), f4(0), f4(0), f4(0)
    for g in range(groups):
        at, low = 4 * g, g * group
        a += val[at] * x[low + idx[at]]
        b += val[at + 1] * x[low + idx[at + 1]]
        c += val[at + 2] * x[low + idx[at + 2]]
        d += val[at + 3] * x[low + idx[at + 3]]
    return a + b + (c + d)


@njit(fastmath=FAST, **HELPER)
def nm_dot(idx, val, x, groups, kept, group):
    """Compute one column of n:m weights for one token."""
    total = f4(0)
    if kept == 1:
        for g in range(groups):
            total += val[g] * x[g * group + idx[g]]
    elif kept == 2:
        for g in range(groups):
            total += val[2 * g] * x[g * group + idx[2 * g]] + val[2 * g + 1] * x[g * group + idx[2 * g + 1]]
    elif kept == 4:
        return nm_fours(idx, val, x, groups, group)
    else:
        for g in range(groups):
            for i in range(g * kept, (g + 1) * kept):
                total += val[i] * x[g * group + idx[i]]
    return total


@Function.of(5)
def nm_single(weight, start, width, x, y):
    """Compute columns start.. for one token."""
    w = record(weight, SPARSE)
    held, out = w.ptr, floats(y, width)
    for j in range(width):
        idx, val = pointer(w.idx + (start + j) * held, np.uint8), pointer(w.val + 4 * (start + j) * held, np.float32)
        out[j] = nm_dot(idx, val, pointer(x, np.float32), held // w.r, w.r, w.c)


# ---- from Python


def launch_sparse(
    x: np.ndarray,
    weights: tuple[np.ndarray | int, np.ndarray, np.ndarray],
    out: np.ndarray,
    epilogue: Epilogue | None,
    functions: tuple[Function, Function | None],
    sizes: tuple[int, int] = (1, 1),
    group: int = 1,
    inputs: int = 1,
    columns: int = BLOCK_COLUMNS,
) -> np.ndarray:
    """Launch a product. weights: ptr (or a number), idx, val; functions: for a strip of tokens, and for one token;
    sizes: r and c, as those functions read them; group: columns that belong together, inputs: inputs that belong
    together; columns: columns computed at once."""
    ptr, idx, val = weights
    (T, n), (many, one) = x.shape, functions
    depth = -(-(-(-n // inputs) * inputs) // 16) * 16
    chunk = choose_tokens(idx.nbytes + val.nbytes, depth, STRIP)
    once = max(columns // group, 1) * group
    fields = (
        many.address,
        one.address if one else 0,
        ptr if isinstance(ptr, int) else address(ptr),
        address(idx),
        address(val),
        *sizes,
        chunk,
        depth,
        out.shape[1],
        once,
    )
    weight, after, workers = filled(*fields), epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * (min(chunk, -(-T // STRIP) * STRIP) * depth + (once + 16) * STRIP), workers)
        launch(workers, *linear_stages(sparse, x, address(weight), out, after, workers, room, unit=group))
    return out


def choose_tokens(size: int, depth: int, strip: int) -> int:
    """Return the tokens transposed at once: a strip if the whole weight stays in cache from strip to strip, otherwise
    as many as share one reading of it."""
    return strip if size <= NEAR else max(ROOMY // (4 * depth) // strip, 1) * strip


def product_csr(
    x: np.ndarray, ptr: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; column j of W has val[ptr[j]:ptr[j + 1]] in the rows idx[same].

    ptr: uint32 (p + 1), idx: uint16 or uint32 (nnz), val: float32 (nnz)."""
    arrays = typed("ptr", ptr, np.uint32), typed("idx", idx, np.uint16, np.uint32), typed("val", val, f4)
    check_product(x, None, len(ptr) - 1, out, ptr=ptr, idx=idx, val=val)
    if not ptr[-1] == len(idx) == len(val):
        raise ValueError(f"csr: ptr ends at {ptr[-1]}, but idx has {len(idx)} and val {len(val)} numbers")
    functions = (csr_short, csr_short_single) if idx.itemsize == 2 else (csr_wide, csr_wide_single)
    return launch_sparse(x, arrays, out, epilogue, functions)


def product_nm(
    x: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray, group: int = 4, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; a column keeps some of every `group` inputs.

    idx: uint8 (p, kept in all), the place within the group; val: float32 of the same shape."""
    typed("idx", idx, np.uint8, axes=2)
    check_product(x, None, len(idx), out, idx=idx, val=typed("val", val, f4, axes=2))
    if group < 1:
        raise ValueError(f"nm: groups of {group} inputs: give 1 or more")
    arrays, groups = (idx.shape[1], idx, val), -(-x.shape[1] // group)
    if idx.shape != val.shape or not idx.size or idx.shape[1] % groups:
        raise ValueError(f"nm: idx {idx.shape} and val {val.shape} do not fill {groups} groups of {group} inputs")
    return launch_sparse(x, arrays, out, epilogue, (nm_columns, nm_single), (idx.shape[1] // groups, group))
