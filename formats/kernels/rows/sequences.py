"""Reductions of the rows of sequences, and of rows that a sparse relation joins. Sums are float64 for sequences, as
there are few of them. Also attention of one query for each sequence."""

import numpy as np

from formats.core.arrays import as_contiguous, readable, separate, writable
from formats.core.reductions import HOW
from formats.host.threads import threads
from formats.kernels.attentions.biased import BY_DISTANCE, column_of, table_of
from formats.kernels.attentions.heads import (
    EVERY,
    Layout,
    Reach,
    check_cap,
    check_heads,
    check_scale,
    clipped,
    heads_of,
    margins_of,
    sequences,
    served,
)
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, launch, make_record, step, words
from formats.kernels.engine.memory import floats, longs, record, view_as
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.rows.following import combine
from formats.kernels.simd.arithmetic import get, keep
from formats.kernels.simd.maths import exponentials, fade, largest, tanh_of

__all__ = ["attend_once", "hand_rows", "link_rows", "pool_rows"]

FIRST, LAST, SUM, MEAN, MAX, BY_ROOT, BY_PLACE = range(len(HOW))
# out (S, p) from x (T, p), for sequences that begin at starts, `each` for an item; unit: 1 scales to length one
POOLED = np.dtype([*words("x along out step starts S p how unit each room apart"), ("least", "f8")])
# out (R, p): row i joins the rows at[starts[i]:starts[i + 1]] of x, times numbers
LINKED = np.dtype(words("x along out step starts at numbers R p how each"))
# as in heads.py; q and out have a row a sequence, whose query is its first or last token
ONCE = np.dtype(
    [
        *words(
            "q q_row q_head k k_row k_head v v_row v_head o o_row o_head starts S h d e last behind ahead "
            "q_of k_of v_of room apart"
        ),
        *BY_DISTANCE,
        *words("margin"),
        ("scale", "f8"),
        ("cap", "f8"),
    ]
)
doubles = view_as(np.float64)
f4 = np.float32


@njit(**HELPER)
def gather_sum(c, total, low, high):
    """Sum rows low to high into total, each times its weight."""
    for j in range(c.p):
        total[j] = 0
    for row in range(low, high):
        x, weight = floats(c.x + 4 * row * c.along, c.p), np.float64(row - low + 1 if c.how == BY_PLACE else 1)
        for j in range(c.p):
            total[j] += weight * x[j]
    count = np.float64(high - low)
    by = (
        count
        if c.how == MEAN
        else np.sqrt(count)
        if c.how == BY_ROOT
        else count * (count + 1) / 2
        if c.how == BY_PLACE
        else 1.0
    )
    for j in range(c.p):
        total[j] /= by


@njit(**HELPER)
def gather_largest(c, total, low, high):
    """Write the largest number of each column into total."""
    for row in range(low, high):
        x = floats(c.x + 4 * row * c.along, c.p)
        for j in range(c.p):
            total[j] = np.float64(x[j]) if row == low or not x[j] <= total[j] else total[j]


@Kernel
def pooled(item, worker, arguments):
    """Pool some sequences, or single rows if no starts are given; outputs of sequences without rows are left
    unchanged."""
    c = record(arguments, POOLED)
    total = doubles(c.room + worker * c.apart, c.p)
    for s in range(item * c.each, min((item + 1) * c.each, c.S)):
        low, high = s, s + 1
        if c.starts:
            bounds = longs(c.starts + 8 * s, 2)
            low, high = bounds[0], bounds[1]
        if low == high:
            continue
        if c.how == FIRST:
            high = low + 1
        if c.how == LAST:
            low = high - 1
        if c.how <= LAST or c.how == MAX:
            gather_largest(c, total, low, high)
        else:
            gather_sum(c, total, low, high)
        by = np.float64(1)
        if c.unit:
            square = np.float64(0)
            for j in range(c.p):
                square += total[j] * total[j]
            by = 1 / np.sqrt(square + c.least)
        y = floats(c.out + 4 * s * c.step, c.p)
        for j in range(c.p):
            y[j] = total[j] * by


@Kernel
def linked(item, worker, arguments):
    """Reduce some rows of a relation; a row without entries is 0, and -inf for the maximum."""
    c = record(arguments, LINKED)
    for i in range(item * c.each, min((item + 1) * c.each, c.R)):
        bounds, y = longs(c.starts + 8 * i, 2), floats(c.out + 4 * i * c.step, c.p)
        count = bounds[1] - bounds[0]
        at, weights = longs(c.at + 8 * bounds[0], count), floats(c.numbers + 4 * bounds[0], count)
        for j in range(c.p):
            y[j] = f4(-np.inf) if c.how == MAX else f4(0)
        for k in range(count):
            x, weight = floats(c.x + 4 * at[k] * c.along, c.p), weights[k]
            if c.how == MAX:
                for j in range(c.p):
                    y[j] = max(y[j], weight * x[j])
            else:
                for j in range(c.p):
                    y[j] += weight * x[j]
        if c.how == MEAN and count:
            by = f4(1) / f4(count)
            for j in range(c.p):
                y[j] *= by


@Kernel
def handed(item, worker, arguments):
    """Copy rows of the sequences that have rows to their places; other rows are left unchanged."""
    c = record(arguments, POOLED)
    for s in range(item * c.each, min((item + 1) * c.each, c.S)):
        bounds = longs(c.starts + 8 * s, 2)
        if bounds[0] < bounds[1]:
            combine(c.x + 4 * s * c.along, c.out + 4 * s * c.step, c.p, 0, 0, 0)


@Kernel
def attended_once(item, worker, arguments):
    """Attend with one head of one sequence's query."""
    c = record(arguments, ONCE)
    s, head = item // c.h, item % c.h
    bounds = longs(c.starts + 8 * s, 2)
    length = bounds[1] - bounds[0]
    query = length - 1 if c.last else 0
    low, high = max(0, query - c.behind), min(length, query + c.ahead + 1)
    out = floats(c.o + 4 * (s * c.o_row + head * c.o_head), c.e)
    for j in range(c.e):
        out[j] = 0
    if low >= high:
        return
    at, count = c.room + worker * c.apart, high - low
    share, q = floats(at, count), floats(c.q + 4 * (s * c.q_row + head // c.q_of * c.q_head), c.d)
    first = bounds[0] + low
    for i in range(count):
        k, total = floats(c.k + 4 * ((first + i) * c.k_row + head // c.k_of * c.k_head), c.d), f4(0)
        for j in range(c.d):
            total += q[j] * k[j]
        share[i] = total * f4(c.scale)
    if c.cap > 0:
        for i in range(0, count, 16):
            lanes = min(16, count - i)
            keep(tanh_of(get(at + 4 * i, lanes)) * f4(c.cap), at + 4 * i, lanes)
    if c.table:
        bias = floats(c.table + 4 * head * c.table_head, 2 * c.most + 1)
        for i in range(count):
            share[i] += bias[column_of(c.most, query - low - i)]
    top, sunk = largest(at, count, f4(1)), f4(0)
    if c.margin:
        sink = -floats(c.margin + 4 * head, 1)[0]
        top = max(top, sink)
        sunk = fade(sink, top)
    mass = f4(1) / (exponentials(at, count, f4(1), top) + sunk)
    for i in range(count):
        v, weight = floats(c.v + 4 * ((first + i) * c.v_row + head // c.v_of * c.v_head), c.e), share[i] * mass
        for j in range(c.e):
            out[j] += weight * v[j]


def pool_rows(
    x: np.ndarray, starts: np.ndarray | Layout | None, out: np.ndarray, how: str, unit: float | None = None
) -> np.ndarray:
    """out (S, p): the rows of x (T, p) of each sequence reduced to one, see HOW; with `unit` scaled to length one,
    where `unit` is added to the square of the length. Without starts each row is a sequence. ValueError for arrays that
    do not fit."""
    if how not in HOW:
        raise ValueError(f"pool: {how!r} is unknown: give one of {', '.join(HOW)}")
    p, S = door(x, out), len(out)
    batch = None if starts is None else sequences(starts)
    T, most = (S, S) if batch is None else (int(batch.starts[-1]), len(batch.starts) - 1)
    short = S < most and not isinstance(starts, Layout)  # a recording has room for more sequences
    if x.shape[0] != T or S > most or short:
        raise ValueError(f"pool: {most} sequences of {T} rows, x {x.shape}, out {out.shape}")
    chunk, workers = max(1, -(-S // (4 * threads()))), threads()
    with POOL.lock:
        room = ROOM.reserve(8 * p, workers)
        values = (
            address(x),
            step(x),
            address(out),
            step(out),
            address(batch and batch.starts),
            S,
            p,
            HOW.index(how),
            unit is not None,
            chunk,
            *room,
            unit or 0.0,
        )
        launch(workers, (pooled, make_record([values], POOLED), -(-S // chunk)))
    return out


def hand_rows(x: np.ndarray, starts: np.ndarray | Layout, out: np.ndarray) -> np.ndarray:
    """out (S, p): the rows of x (S, p), except those of sequences without rows, which are left unchanged. ValueError
    for arrays that do not fit."""
    p, S = door(x, out), len(out)
    batch = sequences(starts)
    if len(x) != S or len(batch.starts) <= S:
        raise ValueError(f"hand: {len(batch.starts) - 1} sequences, x {x.shape}, out {out.shape}")
    chunk, workers = max(1, -(-S // (4 * threads()))), threads()
    values = address(x), step(x), address(out), step(out), address(batch.starts), S, p, 0, 0, chunk, 0, 0, 0.0
    launch(workers, (handed, make_record([values], POOLED), -(-S // chunk)))
    return out


def link_rows(
    x: np.ndarray, starts: np.ndarray, at: np.ndarray, weights: np.ndarray, out: np.ndarray, how: str
) -> np.ndarray:
    """out (R, p): row i is the sum, mean or max of the rows at[starts[i]:starts[i + 1]] of x, times weights. ValueError
    for arrays that do not fit, IndexError for a row outside x."""
    if how not in ("sum", "mean", "max"):
        raise ValueError(f"link: {how!r} is unknown: give one of sum, mean, max")
    p = door(x, out)
    if any(array.dtype.kind not in "iu" for array in (starts, at)) or at.ndim != 1 or weights.ndim != 1:
        raise ValueError(
            f"link: starts and at are whole numbers, not {starts.dtype} and {at.dtype}; at {at.shape} and "
            f"weights {weights.shape} have one axis"
        )
    separate(out, starts=starts, at=at, weights=weights)
    starts, at, weights = (
        as_contiguous("starts", starts, np.int64),
        as_contiguous("at", at, np.int64),
        as_contiguous("weights", weights, np.float32),
    )
    if (
        starts.shape != (len(out) + 1,)
        or starts[0] != 0
        or (np.diff(starts) < 0).any()
        or not starts[-1] == len(at) == len(weights)
    ):
        raise ValueError(
            f"link: starts {starts.shape}, at {at.shape} and weights {weights.shape} do not fit {len(out)} rows of out"
        )
    if len(at) and not 0 <= (low := at.min()) <= (high := at.max()) < len(x):
        raise IndexError(f"at: {low if low < 0 else high} is outside 0 to {len(x) - 1}, the rows of x")
    chunk, workers = max(1, -(-len(out) // (8 * threads()))), threads()
    values = (
        address(x),
        step(x),
        address(out),
        step(out),
        address(starts),
        address(at),
        address(weights),
        len(out),
        p,
        HOW.index(how),
        chunk,
    )
    launch(workers, (linked, make_record([values], LINKED), -(-len(out) // chunk)))
    return out


def attend_once(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    scale: float = 1.0,
    last: bool = True,
    reach: Reach = EVERY,
    bias: np.ndarray | None = None,
    cap: float = 0.0,
    margin: np.ndarray | None = None,
) -> np.ndarray:
    """out (S, h, e): attention of one query of each sequence, its last token or its first, q (S, heads, d), to the keys
    and values, k and v (T, heads, ..), that it sees. If q, k or v has fewer heads, each serves a group. A bias is a
    table by distance (attentions/biased.py); with a cap above 0 scores are cap tanh(scale q kᵀ). With margins
    (h) a query sees one more key, whose score is less the head's margin, and whose value is zero."""
    check_heads(out, q=q, k=k, v=v)
    batch, heads = sequences(starts), out.shape[1]
    T, S = int(batch.starts[-1]), len(out)
    if q.shape[2] != k.shape[2]:
        raise ValueError(f"q and k: widths {q.shape[2]} and {k.shape[2]} differ")
    if v.shape[2] != out.shape[2]:
        raise ValueError(f"v and out: widths {v.shape[2]} and {out.shape[2]} differ")
    if len(batch.starts) <= S:
        raise ValueError(f"attention: {len(batch.starts) - 1} sequences, but out has {S} rows")
    serves = [served(name, view, heads) for name, view in (("q", q), ("k", k), ("v", v))]
    places = [
        heads_of(name, view, rows, heads // many)
        for name, view, rows, many in (
            ("q", q, S, serves[0]),
            ("k", k, T, serves[1]),
            ("v", v, T, serves[2]),
            ("out", out, S, 1),
        )
    ]
    if bias is not None:
        separate(out, bias=bias)
    table, workers = table_of(bias, heads), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * T + 64, workers)
        values = (
            *(number for place in places for number in place),
            address(batch.starts),
            S,
            heads,
            q.shape[2],
            v.shape[2],
            last,
            *clipped(reach),
            *serves,
            *room,
            *table,
            0,
            margins_of(margin, heads),
            check_scale(scale),
            check_cap(cap, bias),
        )
        launch(workers, (attended_once, make_record([values], ONCE), S * heads))
    return out


def door(x: np.ndarray, out: np.ndarray) -> int:
    """Return the columns of both. ValueError unless they are float32 rows of equally many columns that do not
    overlap."""
    if x.ndim != 2 or out.ndim != 2 or x.shape[1] != out.shape[1]:
        raise ValueError(f"x {x.shape} and out {out.shape} must have the same columns")
    readable("x", x, x.shape)
    readable("out", out, out.shape)
    writable("out", out)
    separate(out, x=x)
    return int(x.shape[1])
