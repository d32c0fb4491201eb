"""Attention in three kernels: scores, softmax, values. In one: attending.py.

An item is a tile of queries of one head of one sequence. A query sees the keys from so many positions behind it to so
many before it; a row without keys gives zeros. Heads may share: with fewer heads of q, k or v than of the others, each
serves a group."""
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
# first[s]: query tiles before sequence s; before[s]: scores (of one head) before it; p: flat scores; q_of: how many
# heads
# one of q serves; behind, ahead: the keys that a query sees; tile: how many keys pass by at a time
ATTENTION = np.dtype([*PLACES, *words("starts first before S h d e multiply room apart p q_of k_of v_of behind ahead "
                                      "tile"), *BY_DISTANCE, ("scale", "f8")])
QUERIES, KEYS, ALL = 128, 256, 2 ** 40
__borders__ = QUERIES, KEYS
MAX_ROWS = 2 ** 31                                       # of a batch: fewer, so that the square of a length is an int64
FLOAT32_MAX = float(np.finfo(np.float32).max)
f4 = np.float32


@njit(**HELPER)
def turn_keys(source, step, rows, columns, target, across):
    """target (columns, rows) = the transpose of source (rows, columns); bytes between rows."""
    even, full = rows // 16 * 16, columns // 16 * 16
    for i in range(0, even, 16):
        for j in range(0, full, 16): turn(source + i * step + 4 * j, step, target + j * across + 4 * i, across)
    for i in range(rows):
        row = floats(source + i * step, columns)
        for j in range(full if i < even else 0, columns): floats(target + j * across, rows)[i] = row[j]


@njit(**HELPER)
def part(c, item):
    """(sequence's start, its length, head, first query, end of queries, sequence) of an item."""
    first, starts = longs(c.first, c.S + 1), longs(c.starts, c.S + 1)
    block, head = item // c.h, item % c.h
    low, high = 0, c.S
    while high - low > 1:
        middle = (low + high) // 2
        if first[middle] <= block: low = middle
        else: high = middle
    query = (block - first[low]) * QUERIES
    length = starts[low + 1] - starts[low]
    return starts[low], length, head, query, min(query + QUERIES, length), low


@njit(**HELPER)
def copy_rows(source, step, rows, columns, target, across):
    """target (rows, columns) = source; bytes between rows."""
    full = columns // 16 * 16
    for i in range(rows):
        row, copy = source + i * step, target + i * across
        for j in range(0, full, 16): keep(get(row + 4 * j, None), copy + 4 * j, None)
        if full < columns: keep(get(row + 4 * full, columns - full), copy + 4 * full, columns - full)


@njit(**HELPER)
def scores_of(c, q, rows, key, keys, head, turned, target, step):
    """target (rows, keys) = q kᵀ for a range of keys of a head; the keys are turned first."""
    k = c.k + 4 * (key * c.k_row + head // c.k_of * c.k_head)
    turn_keys(k, 4 * c.k_row, keys, c.d, turned, 4 * c.tile)
    multiply(c.multiply, rows, keys, c.d, q, 4 * c.q_row, turned, 4 * c.tile, target, step, 1)


@njit(**HELPER)
def seen(c, query, key, keys):
    """(from, to): which of the keys that begin at key a query sees; none where to is not behind from."""
    low, high = max(0, query - c.behind - key), min(keys, query + c.ahead + 1 - key)
    return min(low, keys), max(high, 0)


@njit(**HELPER)
def blank(s, low, high, count):
    """Zeros before low and from high on, in a row of so many numbers."""
    for j in range(low): s[j] = 0
    for j in range(max(low, high), count): s[j] = 0


@njit(**HELPER)
def flat_offset(c, sequence, head, low, length):
    """Bytes before row low of a head's scores, in the flat array of all sequences and heads."""
    return 4 * (c.h * longs(c.before, c.S + 1)[sequence] + (head * length + low) * length)


@Kernel
def score(item, worker, arguments):
    """scale q kᵀ + bias of a tile of queries, stored at p: for each sequence (heads, length, length)."""
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
            for j in range(length): s[j] *= f4(c.scale)
    if c.table:
        bias = floats(c.table + 4 * head * c.table_head, 2 * c.most + 1)
        for i in range(high - low):
            s = floats(p + 4 * i * length, length)
            for j in range(length): s[j] += bias[column_of(c.most, low + i - j)]


@Kernel
def share_row(item, worker, arguments):
    """Softmax of what a tile of rows of scores sees, from q to p (flat; the same layout); zeros elsewhere."""
    c = record(arguments, ATTENTION)
    _, length, head, low, high, sequence = part(c, item)
    offset = flat_offset(c, sequence, head, low, length)
    for i in range(high - low):
        x, y = floats(c.q + offset + 4 * i * length, length), floats(c.p + offset + 4 * i * length, length)
        for j in range(length): y[j] = x[j]
        left, right = seen(c, low + i, 0, length)
        blank(y, left, right, length)
        if left >= right: continue
        at, count = c.p + offset + 4 * (i * length + left), right - left
        mass = f4(1) / exponentials(at, count, f4(1), largest(at, count, f4(1)))
        for j in range(left, right): y[j] *= mass


@Kernel
def weigh(item, worker, arguments):
    """p v of a tile of rows of p."""
    c = record(arguments, ATTENTION)
    start, length, head, low, high, sequence = part(c, item)
    multiply(c.multiply, high - low, c.e, length, c.p + flat_offset(c, sequence, head, low, length), 4 * length,
             c.v + 4 * (start * c.v_row + head // c.v_of * c.v_head), 4 * c.v_row,
             c.o + 4 * ((start + low) * c.o_row + head * c.o_head), 4 * c.o_row, 1)


Reach = tuple[int, int]                                      # keys behind a query that it sees, and ahead of it
EVERY: Reach = (ALL, ALL)


def clipped(reach: Reach) -> Reach:
    """A reach of which nothing is farther away than ALL."""
    behind, ahead = (max(-ALL, min(keys, ALL)) for keys in reach)
    return behind, ahead


def heads_of(name: str, array: np.ndarray | None, rows: int, heads: int,
             number: type[np.generic] = f4) -> tuple[int, int, int]:
    """(address, step between rows, step between heads) of a (rows, heads, width) view, contiguous within a head."""
    if array is None: return 0, 0, 0
    if array.dtype != number or array.ndim != 3 or array.shape[:2] != (rows, heads):
        wanted = f"{np.dtype(number)} of shape ({rows}, {heads}, width)"
        raise ValueError(f"{name}: expected {wanted}, got {array.dtype} of {array.shape}")
    size = array.itemsize
    if not array.flags.aligned or (array.size > 1 and array.shape[2] > 1 and array.strides[2] != size):
        raise ValueError(f"{name}: a head's numbers must be contiguous, heads begin at multiples of {size} bytes; got "
                         f"strides of {array.strides} bytes")
    return address(array), array.strides[0] // size, array.strides[1] // size


def check_heads(out: np.ndarray, **read: np.ndarray) -> None:
    """The door of kernels of heads: all have three axes, out may be written to, and lies apart from what is read.
    ValueError names what does not fit."""
    for name, array in (*read.items(), ("out", out)):
        if array.ndim != 3: raise ValueError(f"{name}: expected three axes, got shape {array.shape}")
    writable("out", out)
    separate(out, **read)


def check_scale(scale: float) -> float:
    """A scale of scores; ValueError if it is no float32."""
    if abs(scale) <= FLOAT32_MAX: return scale
    raise ValueError(f"scale: {scale} is no finite float32")


class Layout(NamedTuple):
    """Where the sequences of a batch lie: row offsets, scores of one head before each."""
    starts: np.ndarray
    before: np.ndarray


@lru_cache(64)
def layout(starts: bytes) -> Layout:
    """The layout of the sequences that begin at these rows (int64); remembered, as every layer asks for it."""
    rows = np.frombuffer(starts, np.int64).copy()             # an address is found sooner where it may be written to
    lengths = np.diff(rows)
    if not rows.size or rows[0] != 0 or (lengths < 0).any(): raise ValueError(f"starts: must rise from 0, got {rows}")
    if rows[-1] >= MAX_ROWS: raise ValueError(f"starts: {rows[-1]} rows, where fewer than {MAX_ROWS} are possible")
    return Layout(rows, sums(lengths ** 2))


def sequences(starts: ArrayLike | Layout) -> Layout:
    """The layout of whole numbers that rise from 0; a layout as it is. ValueError for any others."""
    if isinstance(starts, Layout): return starts
    given = np.asarray(starts)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ValueError(f"starts: expected a row of whole numbers, got {given.dtype} of shape {given.shape}")
    return layout(given.astype(np.int64).tobytes())


def sums(counts: np.ndarray) -> np.ndarray:
    """What comes before each, and all."""
    return np.concatenate(([0], np.cumsum(counts)))


def served(name: str, array: np.ndarray | None, heads: int) -> int:
    """How many of so many heads one head of a (rows, its heads, width) view serves."""
    if heads < 1: raise ValueError(f"out: it has {heads} heads")
    own = heads if array is None or array.ndim != 3 else array.shape[1]
    if own < 1 or heads % own: raise ValueError(f"{name}: its {own} heads do not divide {heads}")
    return heads // own


def run_heads(kernel: Kernel, starts: np.ndarray, heads: int, views: dict[str, np.ndarray | None], scale: float = 1.0,
              flat: np.ndarray | None = None, source: np.ndarray | None = None, room: int = 0,
              reach: Reach = EVERY, tile: int = KEYS, bias: np.ndarray | None = None) -> None:
    """Launch a kernel over all tiles of queries of all heads of all sequences."""
    batch = sequences(starts)
    first = sums(-(-np.diff(batch.starts) // QUERIES))
    T, S, count = int(batch.starts[-1]), len(batch.starts) - 1, heads * int(batch.before[-1])
    for array in (flat, source):
        if array is None: continue
        if array.dtype != f4 or not (array.flags.c_contiguous and array.flags.aligned) or array.size != count:
            raise ValueError(f"scores: expected {count} contiguous float32 at multiples of 4 bytes, got {array.dtype} "
                             f"of {array.shape} with strides of {array.strides} bytes")
    serves = [served(name, views.get(name), heads) for name in "qkv"]
    places = [number for name, many in zip("qkvo", (*serves, 1), strict=True)
              for number in heads_of(name, views.get(name), T, heads // many)]
    if source is not None: places[0] = address(source)
    q, k, v, o = (0 if (view := views.get(name)) is None else view.shape[2] for name in "qkvo")
    if q != k: raise ValueError(f"q and k: widths {q} and {k} differ")
    if v != o: raise ValueError(f"v and out: widths {v} and {o} differ")
    table, workers = table_of(bias, heads), threads()
    with POOL.lock:
        reserved = ROOM.reserve(room, workers) if room else (0, 0)
        values = (*places, *map(address, (batch.starts, first, batch.before)), S, heads, q, v, gemm.address,
                  *reserved, address(flat), *serves, *clipped(reach), tile, *table, 0, check_scale(scale))
        launch(workers, (kernel, make_record([values], ATTENTION), int(first[-1]) * heads))


def scores(q: np.ndarray, k: np.ndarray, starts: np.ndarray, out: np.ndarray, scale: float = 1.0,
           bias: np.ndarray | None = None) -> np.ndarray:
    """out: flat, for each sequence (h, length, length): scale q kᵀ + bias, a table by distance (biased.py); h is the
    largest number of heads of these."""
    if q.ndim != 3 or k.ndim != 3:
        raise ValueError(f"q and k: expected three axes each, got shapes {q.shape} and {k.shape}")
    writable("out", out)
    separate(out, q=q, k=k, **({} if bias is None else {"bias": bias}))
    heads = max(q.shape[1], k.shape[1], 1 if bias is None or bias.ndim != 2 else len(bias))
    run_heads(score, starts, heads, dict(q=q, k=k), scale, out, room=4 * KEYS * q.shape[2], bias=bias)
    return out


def softmax(x: np.ndarray, starts: np.ndarray, heads: int, out: np.ndarray, reach: Reach = EVERY) -> np.ndarray:
    """Softmax along the keys of flat scores that each query sees, zeros elsewhere; out may be x."""
    if heads < 1: raise ValueError(f"softmax: {heads} heads")
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
