"""Attention in three kernels: scores, softmax, values. In one: attending.py.

An item is a tile of queries of one head of one sequence. A query sees the keys within a reach behind it and ahead of
it; a row without keys gives zeros. Heads may be shared: if q, k or v have fewer heads than the others, each serves a
group."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from formats.core.arrays import separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.biased import BY_DISTANCE, column_of, table_of
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, launch, make_record, words
from formats.kernels.engine.memory import floats, longs, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.gemm import gemm, multiply
from formats.kernels.simd.arithmetic import get, keep
from formats.kernels.simd.maths import exponentials, largest
from formats.kernels.simd.vectors import turn

__all__ = ["scores", "softmax", "values"]

# q (T, h, d), k (T, h, d), v (T, h, e), out (T, h, e): address, step between rows, step between heads, in numbers
PLACES = words("q q_row q_head k k_row k_head v v_row v_head o o_row o_head")
# first[s]: query tiles before sequence s; before[s]: scores (of one head) before it; p: flat scores; q_of: heads served
# by one head of q; behind, ahead: the reach of a query, in keys; tile: keys processed at a time
ATTENTION = np.dtype(
    [
        *PLACES,
        *words("starts first before S h d e multiply room apart p q_of k_of v_of behind ahead tile"),
        *BY_DISTANCE,
        ("scale", "f8"),
    ]
)
QUERIES, KEYS, ALL = 128, 256, 2**40
__borders__ = QUERIES, KEYS
NO_TABLES = 0, 0, 0, 0
MAX_ROWS = 2**31  # a batch has fewer rows: a length squared is an int64
FLOAT32_MAX = float(np.finfo(np.float32).max)
f4 = np.float32


@njit(**HELPER)
def turn_keys(source, step, rows, columns, target, across):
    """target (columns, rows) = the transpose of source (rows, columns); step and across: bytes between rows."""
    even, full = rows // 16 * 16, columns // 16 * 16
    for i in range(0, even, 16):
        for j in range(0, full, 16):
            turn(source + i * step + 4 * j, step, target + j * across + 4 * i, across)
    for i in range(rows):
        row = floats(source + i * step, columns)
        for j in range(full if i < even else 0, columns):
            floats(target + j * across, rows)[i] = row[j]


@njit(**HELPER)
def part(c, item):
    """Return (sequence's start, its length, head, first query, end of queries, sequence) of an item."""
    first, starts = longs(c.first, c.S + 1), longs(c.starts, c.S + 1)
    block, head = item // c.h, item % c.h
    low, high = 0, c.S
    while high - low > 1:
        middle = (low + high) // 2
        if first[middle] <= block:
            low = middle
        else:
            high = middle
    query = (block - first[low]) * QUERIES
    length = starts[low + 1] - starts[low]
    return starts[low], length, head, query, min(query + QUERIES, length), low


@njit(**HELPER)
def copy_rows(source, step, rows, columns, target, across):
    """target (rows, columns) = source; step and across: bytes between rows."""
    full = columns // 16 * 16
    for i in range(rows):
        row, copy = source + i * step, target + i * across
        for j in range(0, full, 16):
            keep(get(row + 4 * j, None), copy + 4 * j, None)
        if full < columns:
            keep(get(row + 4 * full, columns - full), copy + 4 * full, columns - full)


@njit(**HELPER)
def scores_of(c, q, rows, key, keys, head, turned, target, step):
    """target (rows, keys) = q kᵀ for a range of keys of a head; the keys are transposed first."""
    k = c.k + 4 * (key * c.k_row + head // c.k_of * c.k_head)
    turn_keys(k, 4 * c.k_row, keys, c.d, turned, 4 * c.tile)
    multiply(c.multiply, rows, keys, c.d, q, 4 * c.q_row, turned, 4 * c.tile, target, step, 1)


@njit(**HELPER)
def seen(c, query, key, keys):
    """Return (from, to) of the keys from `key` on that a query sees; none if `to` is not larger than `from`."""
    low, high = max(0, query - c.behind - key), min(keys, query + c.ahead + 1 - key)
    return min(low, keys), max(high, 0)


@njit(**HELPER)
def blank(s, low, high, count):
    """Write zeros before `low` and from `high` on, in a row of `count` numbers."""
    for j in range(low):
        s[j] = 0
    for j in range(max(low, high), count):
        s[j] = 0


@njit(**HELPER)
def flat_offset(c, sequence, head, low, length):
    """Return the bytes before row `low` of a head's scores, in the flat array of all sequences and heads."""
    return 4 * (c.h * longs(c.before, c.S + 1)[sequence] + (head * length + low) * length)


@Kernel
def score(item, worker, arguments):
    """Compute scale q kᵀ + bias of a tile of queries, stored at p: for each sequence (heads, length, length)."""
    c = record(arguments, ATTENTION)
    start, length, head, low, high, sequence = part(c, item)
    p, room = c.p + flat_offset(c, sequence, head, low, length), c.room + worker * c.apart
    q = c.q + 4 * ((start + low) * c.q_row + head // c.q_of * c.q_head)
    for key in range(0, length, c.tile):
        keys = min(c.tile, length - key)
        scores_of(c, q, high - low, start + key, keys, head, room, p + 4 * key, 4 * length)
    if c.scale != 1:
        for i in range(high - low):
            s = floats(p + 4 * i * length, length)
            for j in range(length):
                s[j] *= f4(c.scale)
    if c.table:
        bias = floats(c.table + 4 * head * c.table_head, 2 * c.most + 1)
        for i in range(high - low):
            s = floats(p + 4 * i * length, length)
            for j in range(length):
                s[j] += bias[column_of(c.most, low + i - j)]


@Kernel
def share_row(item, worker, arguments):
    """Compute softmax over the scores that each row of a tile sees, from q to p (flat; in one layout); zeros
    elsewhere."""
    c = record(arguments, ATTENTION)
    _, length, head, low, high, sequence = part(c, item)
    offset = flat_offset(c, sequence, head, low, length)
    for i in range(high - low):
        x, y = floats(c.q + offset + 4 * i * length, length), floats(c.p + offset + 4 * i * length, length)
        for j in range(length):
            y[j] = x[j]
        left, right = seen(c, low + i, 0, length)
        blank(y, left, right, length)
        if left >= right:
            continue
        at, count = c.p + offset + 4 * (i * length + left), right - left
        mass = f4(1) / exponentials(at, count, f4(1), largest(at, count, f4(1)))
        for j in range(left, right):
            y[j] *= mass


@Kernel
def weigh(item, worker, arguments):
    """Compute p v of a tile of rows of p."""
    c = record(arguments, ATTENTION)
    start, length, head, low, high, sequence = part(c, item)
    multiply(
        c.multiply,
        high - low,
        c.e,
        length,
        c.p + flat_offset(c, sequence, head, low, length),
        4 * length,
        c.v + 4 * (start * c.v_row + head // c.v_of * c.v_head),
        4 * c.v_row,
        c.o + 4 * ((start + low) * c.o_row + head * c.o_head),
        4 * c.o_row,
        1,
    )


Reach = tuple[int, int]  # keys behind a query that it sees, and ahead of it
EVERY: Reach = (ALL, ALL)


def clipped(reach: Reach) -> Reach:
    """Return a reach with both sides limited to ALL."""
    behind, ahead = (max(-ALL, min(keys, ALL)) for keys in reach)
    return behind, ahead


def heads_of(
    name: str, array: np.ndarray | None, rows: int, heads: int, number: type[np.generic] = f4
) -> tuple[int, int, int]:
    """Return (address, step between rows, step between heads) of a (rows, heads, width) view, contiguous within a
    head."""
    if array is None:
        return 0, 0, 0
    if array.dtype != number or array.ndim != 3 or array.shape[:2] != (rows, heads):
        wanted = f"{np.dtype(number)} of shape ({rows}, {heads}, width)"
        raise ValueError(f"{name}: expected {wanted}, got {array.dtype} of {array.shape}")
    size = array.itemsize
    if not array.flags.aligned or (array.size > 1 and array.shape[2] > 1 and array.strides[2] != size):
        raise ValueError(
            f"{name}: a head's numbers must be contiguous, heads begin at multiples of {size} bytes; got "
            f"strides of {array.strides} bytes"
        )
    return address(array), array.strides[0] // size, array.strides[1] // size


def check_heads(out: np.ndarray, **read: np.ndarray) -> None:
    """Check the arguments of kernels of heads: all have three axes, out is writable, and does not overlap the arrays
    that are read. ValueError names the array that does not fit."""
    for name, array in (*read.items(), ("out", out)):
        if array.ndim != 3:
            raise ValueError(f"{name}: expected three axes, got shape {array.shape}")
    writable("out", out)
    separate(out, **read)


def check_scale(scale: float) -> float:
    """Return a scale of scores; ValueError if it is no finite float32."""
    if abs(scale) <= FLOAT32_MAX:
        return scale
    raise ValueError(f"scale: {scale} is not a finite float32")


def check_cap(cap: float, bias: np.ndarray | None) -> float:
    """Return the cap of scores, 0 for none. ValueError for one that is no finite float32 above 0, or beside a bias."""
    if cap and (not 0 < cap <= FLOAT32_MAX or bias is not None):
        raise ValueError(f"cap: {cap}: give a finite float32 above 0, without a bias, or 0 for none")
    return cap


def margins_of(margin: np.ndarray | None, heads: int) -> int:
    """Return the address of the numbers of heads, 0 for none. ValueError unless they are a contiguous float32 for each
    head."""
    if margin is not None and (margin.dtype != np.float32 or margin.shape != (heads,) or not margin.flags.c_contiguous):
        raise ValueError(f"margin: {margin.dtype} of {margin.shape}: give float32 of {heads}, one for each head")
    return address(margin)


class Layout(NamedTuple):
    """The places of the sequences of a batch: row offsets, and the scores of one head before each sequence."""

    starts: np.ndarray
    before: np.ndarray


@lru_cache(64)
def layout(starts: bytes) -> Layout:
    """Return the layout of the sequences that begin at these rows (int64); cached, as every layer needs it."""
    rows = np.frombuffer(starts, np.int64).copy()  # the address of a writable array is found sooner
    lengths = np.diff(rows)
    if not rows.size or rows[0] != 0 or (lengths < 0).any():
        raise ValueError(f"starts: must rise from 0, got {rows}")
    if rows[-1] >= MAX_ROWS:
        raise ValueError(f"starts: {rows[-1]} rows: give fewer than {MAX_ROWS}")
    return Layout(rows, sums(lengths**2))


def sequences(starts: ArrayLike | Layout) -> Layout:
    """Return the layout of integers that rise from 0; a layout as it is. ValueError for other arguments."""
    if isinstance(starts, Layout):
        return starts
    array = np.asarray(starts)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"starts: expected a row of whole numbers, got {array.dtype} of shape {array.shape}")
    return layout(array.astype(np.int64).tobytes())


def sums(counts: np.ndarray) -> np.ndarray:
    """Exclusive prefix sums, and the total at the end."""
    return np.concatenate(([0], np.cumsum(counts)))


def served(name: str, array: np.ndarray | None, heads: int) -> int:
    """Return how many of `heads` heads are served by one head of a (rows, its heads, width) view."""
    if heads < 1:
        raise ValueError(f"out: it has {heads} heads")
    array_heads = heads if array is None or array.ndim != 3 else array.shape[1]
    if array_heads < 1 or heads % array_heads:
        raise ValueError(f"{name}: its {array_heads} heads do not divide {heads}")
    return heads // array_heads


def run_heads(
    kernel: Kernel,
    starts: np.ndarray,
    heads: int,
    views: dict[str, np.ndarray | None],
    scale: float = 1.0,
    flat: np.ndarray | None = None,
    source: np.ndarray | None = None,
    room: int = 0,
    reach: Reach = EVERY,
    tile: int = KEYS,
    tables: tuple[int, int, int, int] = NO_TABLES,
) -> None:
    """Launch a kernel over all tiles of queries of all heads of all sequences. `tables`: the fields BY_DISTANCE."""
    batch = sequences(starts)
    first = sums(-(-np.diff(batch.starts) // QUERIES))
    T, S, count = int(batch.starts[-1]), len(batch.starts) - 1, heads * int(batch.before[-1])
    for array in (flat, source):
        if array is None:
            continue
        if array.dtype != f4 or not (array.flags.c_contiguous and array.flags.aligned) or array.size != count:
            raise ValueError(
                f"scores: expected {count} contiguous float32 at multiples of 4 bytes, got {array.dtype} "
                f"of {array.shape} with strides of {array.strides} bytes"
            )
    serves = [served(name, views.get(name), heads) for name in "qkv"]
    places = [
        number
        for name, many in zip("qkvo", (*serves, 1), strict=True)
        for number in heads_of(name, views.get(name), T, heads // many)
    ]
    if source is not None:
        places[0] = address(source)
    q, k, v, o = (0 if (view := views.get(name)) is None else view.shape[2] for name in "qkvo")
    if q != k:
        raise ValueError(f"q and k: widths {q} and {k} differ")
    if v != o:
        raise ValueError(f"v and out: widths {v} and {o} differ")
    workers = threads()
    with POOL.lock:
        reserved = ROOM.reserve(room, workers) if room else (0, 0)
        values = (
            *places,
            *map(address, (batch.starts, first, batch.before)),
            S,
            heads,
            q,
            v,
            gemm.address,
            *reserved,
            address(flat),
            *serves,
            *clipped(reach),
            tile,
            *tables,
            check_scale(scale),
        )
        launch(workers, (kernel, make_record([values], ATTENTION), int(first[-1]) * heads))


def scores(
    q: np.ndarray,
    k: np.ndarray,
    starts: np.ndarray,
    out: np.ndarray,
    scale: float = 1.0,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """out: flat, for each sequence (h, length, length): scale q kᵀ + bias, a table by distance (biased.py); h is the
    largest number of heads among q, k and the bias."""
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q and k: expected three axes each, got shapes {q.shape} and {k.shape}")
    writable("out", out)
    separate(out, q=q, k=k, **({} if bias is None else {"bias": bias}))
    heads = max(q.shape[1], k.shape[1], 1 if bias is None or bias.ndim != 2 else len(bias))
    tables = (*table_of(bias, heads), 0)
    run_heads(score, starts, heads, dict(q=q, k=k), scale, out, room=4 * KEYS * q.shape[2], tables=tables)
    return out


def softmax(x: np.ndarray, starts: np.ndarray, heads: int, out: np.ndarray, reach: Reach = EVERY) -> np.ndarray:
    """Compute softmax over the keys that each query sees of flat scores, zeros elsewhere; out may be x."""
    if heads < 1:
        raise ValueError(f"softmax: {heads} heads: give 1 or more")
    writable("out", out)
    separate(out, over=True, x=x)
    run_heads(share_row, starts, heads, {}, 1.0, out, x, reach=reach)
    return out


def values(p: np.ndarray, v: np.ndarray, starts: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out (T, h, e) = p v, p flat as softmax leaves it; v may have fewer heads."""
    check_heads(out, v=v)
    separate(out, p=p)
    run_heads(weigh, starts, out.shape[1], dict(v=v, o=out), 1.0, p)
    return out
