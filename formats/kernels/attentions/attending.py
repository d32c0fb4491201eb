"""Attention over the softmax carrier (m, l, o) in one pass (Dao et al. 2022, algorithm 1), queries side by side.

Scores are transposed: a line holds one key against up to 48 queries. So maxima and masses are sums of lines, no vector
is reduced across its lanes, and keys and values are read as they are stored. Keys are processed in tiles; tiles that no
query sees are skipped. A query sees the keys within a reach behind it and ahead of it, or the keys that a mask of
positions holds by blocks (formats/storage/masks.py); a row without keys gives zeros."""

import struct
from typing import TYPE_CHECKING

import numpy as np

from formats.core.arrays import separate
from formats.host.threads import threads
from formats.kernels.attentions.biased import BY_DISTANCE, LOG2_E, begin_line, lay_lines, strip_bytes, table_of
from formats.kernels.attentions.heads import (
    EVERY,
    KEYS,
    PLACES,
    Layout,
    Reach,
    blank,
    check_cap,
    check_heads,
    check_scale,
    clipped,
    copy_rows,
    heads_of,
    margins_of,
    sequences,
    served,
)
from formats.kernels.attentions.masked import neighbours
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import RECORDING, ROOM, address, filled, launch, words
from formats.kernels.engine.memory import floats, longs, pointer, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.transposing import turn_in
from formats.kernels.simd.arithmetic import get, keep, larger, smaller
from formats.kernels.simd.maths import ONE, exp2, reciprocal, tanh_of
from formats.kernels.simd.vectors import (
    MANY_REGISTERS,
    add_outer,
    count_vectors,
    fetch,
    plus,
    span,
    store_tile,
    times_rows,
    zeros,
)

if TYPE_CHECKING:
    from formats.storage.masks import Mask

__all__ = ["attention"]

# items: number of items; ptr to block: a mask's arrays and its block, 0 without a mask; margin: as in `share_lines`, 0
# for none; cap: as in `cap_lines`, 0 for none; the rest as in heads.py
ATTEND = np.dtype(
    [
        *PLACES,
        *words("starts before S h d e room apart q_of k_of v_of behind ahead tile items ptr idx edge bits block"),
        *BY_DISTANCE,
        *words("margin"),
        ("scale", "f8"),
        ("cap", "f8"),
    ]
)
QUERIES = 48  # most queries of a unit, a tile of one head
NO_MASK = 0, 0, 0, 0, 0
LINE = 4 * QUERIES
MAX_ITEM_WORK, MIN_ITEM_WORK, PIECES = 1 << 22, 1 << 16, 4  # multiply-adds of an item: at most, at least; items
# of a thread
TILE_ROWS, TILE_VECTORS = (8, 2) if MANY_REGISTERS else (6, 1)
FEW_VECTORS = 4  # tiles of so few vectors do not keep the adders busy
PACKED = 1024  # most keys whose values are copied to be contiguous
__borders__ = QUERIES, PACKED
f4, i8 = np.float32, np.int64
LOWEST, HIDDEN = f4(-3e38), f4(-np.inf)


@njit(**HELPER)
def scored(none, k, along, turned, depth, s, bias):
    """Compute lines of scores: a tile of keys against transposed queries, added to lines of a bias if there is one.
    Tiles of few vectors keep two sums each, as an addition takes four cycles."""
    sums, others, pairs = none, none, depth // 2 if count_vectors(none) <= FEW_VECTORS else 0
    if bias:
        sums = fetch(none, bias, -4, None)
    for _ in range(pairs):
        sums, others = add_outer(sums, k, along, turned, None), add_outer(others, k + 4, along, turned + LINE, None)
        k += 8
        turned += 2 * LINE
    for _ in range(depth - 2 * pairs):
        sums = add_outer(sums, k, along, turned, None)
        k += 4
        turned += LINE
    store_tile(plus(sums, others) if count_vectors(none) <= FEW_VECTORS else sums, s, LINE, None)


@njit(**HELPER)
def weighted(none, p, keys, v, across, o, step, fresh, fades, shares, lanes):
    """Update rows of outputs: the stored rows times fades (unless fresh), plus p v; then times shares. p is (keys,
    queries). A tile of keys is summed by itself: one sum over all keys would round as often as there are keys."""
    sums, others, pairs = none, none, keys // 2 if count_vectors(none) <= FEW_VECTORS else 0
    for _ in range(pairs):
        sums, others = add_outer(sums, p, 4, v, lanes), add_outer(others, p + LINE, 4, v + across, lanes)
        p += 2 * LINE
        v += 2 * across
    for _ in range(keys - 2 * pairs):
        sums = add_outer(sums, p, 4, v, lanes)
        p += LINE
        v += across
    if count_vectors(none) <= FEW_VECTORS:
        sums = plus(sums, others)
    if not fresh:
        sums = plus(times_rows(fetch(none, o, step, lanes), fades), sums)
    store_tile(times_rows(sums, shares), o, step, lanes)


@njit(**HELPER)
def scored_by(most, four, k, along, keys, turned, depth, s, bias):
    """Compute the scores of all keys: large tiles, then small ones; the last one overlaps the one before rather than be
    cut."""
    key, large = 0, count_vectors(most) * 16 // span(most)
    while key + large <= keys:
        scored(most, k + key * along, along, turned, depth, s + key * LINE, begin_line(bias, key, 0))
        key += large
    while key < keys:
        key = min(key, keys - 4)
        scored(four, k + key * along, along, turned, depth, s + key * LINE, begin_line(bias, key, 0))
        key += 4


@njit(**HELPER)
def score_all(k, along, keys, turned, depth, s, wide, bias):
    """Compute s (keys, wide) = k times transposed queries, plus lines of a bias, by tiles of registers."""
    if keys < 4:
        for key in range(keys):
            for g in range(0, 4 * wide, 64):
                scored(
                    zeros(1, 1), k + key * along, along, turned + g, depth, s + key * LINE + g, begin_line(bias, key, g)
                )
    elif not MANY_REGISTERS:
        for g in range(0, 4 * wide, 64):
            scored_by(zeros(6, 1), zeros(4, 1), k, along, keys, turned + g, depth, s + g, begin_line(bias, 0, g))
    elif wide == 48:
        scored_by(zeros(8, 3), zeros(4, 3), k, along, keys, turned, depth, s, bias)
    elif wide == 32:
        scored_by(zeros(12, 2), zeros(4, 2), k, along, keys, turned, depth, s, bias)
    else:
        scored_by(zeros(16, 1), zeros(4, 1), k, along, keys, turned, depth, s, bias)


@njit(**HELPER)
def weighted_band(wide, narrow, row, columns, p, keys, v, across, o, step, fresh, fades, shares):
    """Run `weighted` on all columns of some rows: wide tiles while they fit, then narrow ones, the last one cut."""
    p, o, fades, shares, left = p + 4 * row, o + row * step, fades + 4 * row, shares + 4 * row, 0
    while left + span(wide) <= columns:
        weighted(wide, p, keys, v + 4 * left, across, o + 4 * left, step, fresh, fades, shares, None)
        left += span(wide)
    while left < columns:
        weighted(
            narrow, p, keys, v + 4 * left, across, o + 4 * left, step, fresh, fades, shares, min(16, columns - left)
        )
        left += 16


@njit(**HELPER)
def weigh_all(rows, columns, p, keys, v, across, o, step, fresh, fades, shares):
    """Compute the outputs of all rows: large tiles, then small ones; the last one overlaps the one before if outputs
    are overwritten."""
    row = 0
    while row + TILE_ROWS <= rows:
        weighted_band(
            zeros(TILE_ROWS, TILE_VECTORS),
            zeros(TILE_ROWS, 1),
            row,
            columns,
            p,
            keys,
            v,
            across,
            o,
            step,
            fresh,
            fades,
            shares,
        )
        row += TILE_ROWS
    while row + 4 <= rows or (row < rows and fresh and rows >= 4):
        row = min(row, rows - 4)
        weighted_band(
            zeros(4, TILE_VECTORS), zeros(4, 1), row, columns, p, keys, v, across, o, step, fresh, fades, shares
        )
        row += 4
    while row < rows:
        weighted_band(
            zeros(1, TILE_VECTORS), zeros(1, 1), row, columns, p, keys, v, across, o, step, fresh, fades, shares
        )
        row += 1


@njit(**HELPER)
def highest_lines(s, keys, top):
    """Return the larger of top and of the vectors at the beginning of `keys` lines."""
    a, b, c, d = top, top, top, top
    whole = keys // 4 * 4
    for at in range(s, s + whole * LINE, 4 * LINE):
        a, b = larger(a, get(at, None)), larger(b, get(at + LINE, None))
        c, d = larger(c, get(at + 2 * LINE, None)), larger(d, get(at + 3 * LINE, None))
    for at in range(s + whole * LINE, s + keys * LINE, LINE):
        a = larger(a, get(at, None))
    return larger(larger(a, b), larger(c, d))


@njit(**HELPER)
def softened(s, keys, tops, masses, fades, shares, first, last):
    """Turn scores of 16 queries (a vector of each of `keys` lines) into powers of two of their distance to the maximum
    so far. fades: the factors of earlier sums; shares: 1, or one over the mass after the last keys."""
    old = get(tops, None)
    top = highest_lines(s, keys, old)
    mass = zeros(1, 1)
    for at in range(s, s + keys * LINE, LINE):
        e = exp2(get(at, None) - top)
        keep(e, at, None)
        mass = mass + e
    carry(old, top, mass, tops, masses, fades, shares, first, last)


@njit(forceinline=True, **HELPER)
def carry(old, top, mass, tops, masses, fades, shares, first, last):
    """Merge the mass carried under the maximum `old` with a mass under `top`."""
    if not first:
        fade = exp2(old - top)
        keep(fade, fades, None)
        mass = mass + get(masses, None) * fade
    keep(top, tops, None)
    keep(mass, masses, None)
    if last:
        keep(reciprocal(mass), shares, None)


@njit(forceinline=True, **HELPER)
def share_beside(top, mass, margin):
    """Return one over a mass under `top` and that of one more key, a sink, whose score is less the margin, and whose
    value is zero."""
    sink = larger(smaller(margin * f4(-LOG2_E), f4(-LOWEST)), f4(LOWEST))
    peak = larger(top, sink)
    fade = exp2(top - peak)
    return fade * reciprocal(mass * fade + exp2(sink - peak))


@njit(**HELPER)
def share_lines(tops, masses, shares, wide, margin):
    """Write the shares of `wide` queries of a head, the address of whose margin is given, beside its sink."""
    same = zeros(1, 1) + floats(margin, 1)[0]
    for g in range(0, 4 * wide, 64):
        keep(share_beside(get(tops + g, None), get(masses + g, None), same), shares + g, None)


@njit(**HELPER)
def scale_lines(y, lines, wide, step, factor):
    """Multiply the first `wide` numbers of each of `lines` lines by a factor."""
    for at in range(y, y + lines * step, step):
        for g in range(at, at + 4 * wide, 64):
            keep(get(g, None) * factor, g, None)


@njit(**HELPER)
def cap_lines(s, lines, wide, step, cap):
    """Replace the first `wide` scores of each of `lines` lines by cap tanh score; `step`: bytes between lines."""
    for at in range(s, s + lines * step, step):
        for g in range(at, at + 4 * wide, 64):
            keep(tanh_of(get(g, None)) * cap, g, None)


@njit(**HELPER)
def hide(c, s, low, key, keys, rows):
    """Set scores of keys that a query does not see to minus infinity, for `rows` queries from `low` on and `keys` keys
    from `key` on."""
    if key >= low + rows - 1 - c.behind and key + keys - 1 <= low + c.ahead:
        return
    for j in range(keys):
        line = floats(s + j * LINE, QUERIES)
        for i in range(max(0, min(key + j - c.ahead - low, rows))):
            line[i] = HIDDEN
        for i in range(max(0, key + j + c.behind + 1 - low), rows):
            line[i] = HIDDEN


@njit(**HELPER)
def hide_bits(c, s, low, b, count, rows):
    """Set scores that the bits of a run of blocks leave out to minus infinity."""
    edge = pointer(c.edge, np.uint32)
    for j in range(count):
        if not edge[b + j]:
            continue
        bits = c.bits + ((i8(edge[b + j]) - 1) * c.block + low % c.block) * c.block // 8
        for i in range(rows):
            words = pointer(bits + i * c.block // 8, np.uint16)
            for g in range(c.block // 16):
                if words[g] == 0xFFFF:
                    continue
                for n in range(16):
                    if not words[g] >> n & 1:
                        floats(s + (j * c.block + 16 * g + n) * LINE, QUERIES)[i] = HIDDEN


@njit(**HELPER)
def held_by(c, low, length):
    """Return (first, end) of the mask's blocks that the queries from `low` on see, within the sequence."""
    ptr, idx = pointer(c.ptr, np.uint32), pointer(c.idx, np.uint32)
    b, end = i8(ptr[low // c.block]), i8(ptr[low // c.block + 1])
    while b < end and i8(idx[end - 1]) * c.block >= length:
        end -= 1
    return b, end


@njit(**HELPER)
def attend_unit(c, room, start, length, head, low, rows, v, across):
    """Attend with some queries of a head of the sequence at `start`, from its row `low` on; `across`: bytes between
    rows of v."""
    deep, wide = (c.d + 15) // 16 * 16, (rows + 15) // 16 * 16
    q, k = (
        c.q + 4 * ((start + low) * c.q_row + head // c.q_of * c.q_head),
        c.k + 4 * (start * c.k_row + head // c.k_of * c.k_head),
    )
    o, turned = c.o + 4 * ((start + low) * c.o_row + head * c.o_head), room + 4 * LINE
    tops, masses, fades, shares, s = room, room + LINE, room + 2 * LINE, room + 3 * LINE, turned + deep * LINE
    at, last = max(0, low - c.behind), min(length, low + rows + c.ahead)
    if c.block:
        at, last = held_by(c, low, length)  # counted in blocks: places in idx
    if at >= last:
        for i in range(rows):
            blank(floats(o + 4 * i * c.o_row, c.e), c.e, c.e, c.e)
        return
    turn_in(q, 4 * c.q_row, rows, c.d, turned, QUERIES, deep)
    scale_lines(turned, c.d, wide, LINE, f4(c.scale))
    for g in range(0, 4 * wide, 64):
        keep(zeros(1, 1) + LOWEST, tops + g, None)
        keep(zeros(1, 1) + ONE, shares + g, None)
    fresh = True
    while at < last:
        key, count = at, min(c.tile, last - at)
        keys = count
        if c.block:
            key, count = i8(pointer(c.idx, np.uint32)[at]) * c.block, neighbours(c, at, last)
            keys = min(count * c.block, length - key)
        bias = lay_lines(c, head, low, key, keys, wide, f4(LOG2_E), room + c.strip)
        score_all(k + 4 * key * c.k_row, 4 * c.k_row, keys, turned, c.d, s, wide, bias)
        if c.cap > 0:
            cap_lines(s, keys, wide, LINE, f4(c.cap))
        if c.block:
            hide_bits(c, s, low, at, count, rows)
        else:
            hide(c, s, low, key, keys, rows)
        at += count
        for g in range(0, 4 * wide, 64):
            softened(s + g, keys, tops + g, masses + g, fades + g, shares + g, fresh, at == last)
        if c.margin and at == last:
            share_lines(tops, masses, shares, wide, c.margin + 4 * head)
        weigh_all(rows, c.e, s, keys, v + key * across, across, o, 4 * c.o_row, fresh, fades, shares)
        fresh = False


def units(length: int, block: int) -> tuple[int, int]:
    """Return the number of units that the queries of a sequence are split into, and the queries of a unit: about equal,
    in whole vectors; with a mask, no unit spans two of its blocks."""
    if block:
        side = 48 if block % 48 == 0 else 32 if block % 32 == 0 else 16
    else:
        tiles = max((length + QUERIES - 1) // QUERIES, 1)
        side = max(((length + tiles - 1) // tiles + 15) // 16 * 16, 16)
    return (length + side - 1) // side, side


cut_units = njit(**HELPER)(units)


@njit(**HELPER)
def find_sequence(starts, before, mark):
    """Return the last sequence that begins at or before a mark of work, which counts scores and rows."""
    low, high = 0, len(starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if before[middle] + QUERIES * starts[middle] <= mark:
            low = middle
        else:
            high = middle
    return low


@njit(**HELPER)
def first_unit(c, starts, before, item):
    """Return (sequence, unit of it) with which an item begins; units are assigned to items by the work before them."""
    end = len(starts) - 1
    if item == c.items:
        return end, 0
    mark = (before[end] + QUERIES * starts[end]) * item // c.items
    s = find_sequence(starts, before, mark)
    length = starts[s + 1] - starts[s]
    done, whole = mark - before[s] - QUERIES * starts[s], length * (length + QUERIES)
    return s, done * (cut_units(length, c.block)[0] * c.h) // whole if whole else 0


@Kernel
def attend(item, worker, arguments):
    """Compute softmax(scale q kᵀ) v for the units of an item: head after head of a sequence, tile after tile of a
    head."""
    c = record(arguments, ATTEND)
    starts, before, room = longs(c.starts, c.S + 1), longs(c.before, c.S + 1), c.room + worker * c.apart
    packed = room + LINE * (4 + (c.d + 15) // 16 * 16 + c.tile)
    s, begin = first_unit(c, starts, before, item)
    end, stop = first_unit(c, starts, before, item + 1)
    done = 0  # rows of values copied so far
    while s < end or begin < stop:
        length = starts[s + 1] - starts[s]
        tiles, apart = cut_units(length, c.block)
        for at in range(begin, tiles * c.h if s < end else stop):
            head, query = at // tiles, at % tiles * apart
            v, across = c.v + 4 * (starts[s] * c.v_row + head // c.v_of * c.v_head), 4 * c.v_row
            if tiles > 1 and length <= PACKED:  # values are read often: copied as far as they are needed
                if at == begin or query == 0:
                    done = 0 if c.block else max(0, query - c.behind)
                upto = length if c.block else min(length, query + apart + c.ahead)
                copy_rows(v + done * across, across, upto - done, c.e, packed + done * 4 * c.e, 4 * c.e)
                v, across, done = packed, 4 * c.e, max(done, upto)
            attend_unit(c, room, starts[s], length, head, query, min(apart, length - query), v, across)
        s, begin = s + 1, 0
        if s > end:
            return


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    scale: float = 1.0,
    reach: Reach = EVERY,
    tile: int = KEYS,
    mask: "Mask | None" = None,
    bias: np.ndarray | None = None,
    cap: float = 0.0,
    margin: np.ndarray | None = None,
) -> np.ndarray:
    """out (T, h, e) = softmax(scale q kᵀ + bias) v within each sequence and head (Dao et al. 2022, algorithm 1).

    q, k (T, ·, d) and v (T, ·, e) are views with any steps between rows and heads, each of as many heads as out or of a
    divisor (Ainslie et al. 2023); starts (S + 1) are the rows at which sequences begin, and T; a query sees reach[0]
    keys behind it and reach[1] ahead; `tile` keys are merged at a time. A mask, if given, says by positions which keys
    a query sees; its arrays must be those of `formats.storage.masks`, live as long as a recording with them, and cover
    every position. A bias is a table by distance, see biased.py. With a cap above 0 scores are cap tanh(scale q kᵀ).
    With margins (h) every query sees one more key, whose score is less the head's margin, and whose value is zero."""
    check_heads(out, q=q, k=k, v=v)
    tile = max(min(tile, max(KEYS, len(q))), mask.block if mask else 1)
    room = LINE * (4 + -(-q.shape[2] // 16) * 16 + tile) + 4 * v.shape[2] * min(PACKED, len(q))
    return run_attention(attend, q, k, v, starts, out, scale, reach, tile, room, mask, bias, cap, margin)


def run_attention(
    kernel: Kernel,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    scale: float,
    reach: Reach,
    tile: int,
    room: int,
    mask: "Mask | None" = None,
    bias: np.ndarray | None = None,
    cap: float = 0.0,
    margin: np.ndarray | None = None,
) -> np.ndarray:
    """Launch a kernel that needs `room` bytes of scratch over all units."""
    if tile < 1:
        raise ValueError(f"attention: a tile of {tile} keys: give 1 or more")
    (heads, e), d = out.shape[1:], q.shape[2]
    if k.shape[2] != d:
        raise ValueError(f"q and k: widths {d} and {k.shape[2]} differ")
    if v.shape[2] != e:
        raise ValueError(f"v and out: widths {v.shape[2]} and {e} differ")
    batch = sequences(starts)
    T, S, serves, places = int(batch.starts[-1]), len(batch.starts) - 1, [], []
    if mask and not RECORDING.get() and (longest := np.diff(batch.starts).max(initial=0)) > min(mask.shape):
        raise ValueError(f"{mask!r}: a sequence has {longest} rows, more than the mask")
    blocks = (*map(address, mask.arrays().values()), mask.block) if mask else NO_MASK
    for name, view in (("q", q), ("k", k), ("v", v)):
        serves.append(served(name, view, heads))
        places += heads_of(name, view, T, heads // serves[-1])
    places += heads_of("out", out, T, heads)
    table, strip = table_of(bias, heads), -(-room // 64) * 64
    if bias is not None:
        separate(out, bias=bias)
    items = pieces(T, S, heads * (d + e), workers := threads())
    factors = doubles_as_words(*scaled_by(scale, cap, bias))
    with POOL.lock:
        reserved = ROOM.reserve(room if bias is None else strip + strip_bytes(tile, QUERIES), workers)
        fields = (
            *places,
            address(batch.starts),
            address(batch.before),
            S,
            heads,
            d,
            e,
            *reserved,
            *serves,
            *clipped(reach),
            tile,
            items,
            *blocks,
            *table,
            strip,
            margins_of(margin, heads),
            *factors,
        )
        launch(workers, (kernel, filled(*fields), items))
    return out


def scaled_by(scale: float, cap: float, bias: np.ndarray | None) -> tuple[float, float]:
    """Return the factor of products q kᵀ and that of their tanh, 0 without a cap, by which powers of two have the
    logarithms of shares. ValueError for a factor that is no finite float32, and for a cap below 0 or beside a bias."""
    if not check_cap(cap, bias):
        return check_scale(scale * LOG2_E), 0.0
    return check_scale(scale), check_scale(cap * LOG2_E)


def doubles_as_words(*numbers: float) -> tuple[int, ...]:
    """Return numbers of float64 as the words of a record."""
    return struct.unpack(f"{len(numbers)}q", struct.pack(f"{len(numbers)}d", *numbers))


def pieces(T: int, S: int, width: int, workers: int) -> int:
    """Return the number of items of about equal work for T rows in S sequences: a few for each worker, if that is worth
    it."""
    work = T * (T // max(S, 1) + QUERIES) * width
    return min(T, max(1, -(-work // MAX_ITEM_WORK), min(PIECES * workers, work // MIN_ITEM_WORK)) if workers > 1 else 1)
