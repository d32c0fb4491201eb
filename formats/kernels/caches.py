"""Attention over cached keys and values, which lie in pages; a page knows the page before it.

A row's slot is where its own key and value lie: it sees what is in its page up to there, and all of the pages before. So the
keys of a sequence need not lie together, sequences may share the pages that they begin with, and a causal pattern needs no positions."""
import struct
from math import gcd

import numpy as np

from ..arrays import plain, separate
from ..threads import threads
from .arithmetic import keep
from .attending import LINE, LOG2_E, LOWEST, PIECES, QUERIES, scaled, score_all, softened, weigh_all
from .compiled import HELPER, Kernel
from .heads import PLACES, check_heads, copy_rows, finite, heads_of, served
from .launch import ROOM, address, filled, launch, words
from .maths import ONE
from .memory import longs, record
from .native import njit
from .pool import POOL
from .turning import turn_in
from .vectors import zeros

PAGE = 16                                                    # rows of a page
CHUNK = 64                                                   # rows of an item that are copied
# before: of each page the page before it, -1 for none; together: heads of a unit, which share keys and values; the rest as in heads.py
CACHED = np.dtype([*PLACES, *words("slots before h d e room apart q_of k_of v_of together units items"), ("scale", "f8")])
# x (T, heads, cols) to the rows of out that slots name
APPEND = np.dtype(words("x x_row x_head out out_row out_head slots T heads cols"))
f4 = np.float32


@Kernel
def append_rows(item, worker, arguments):
    """Rows of x to their slots."""
    c = record(arguments, APPEND)
    slots = longs(c.slots, c.T)
    for row in range(item * CHUNK, min((item + 1) * CHUNK, c.T)):
        copy_rows(c.x + 4 * row * c.x_row, 4 * c.x_head, c.heads, c.cols, c.out + 4 * slots[row] * c.out_row, 4 * c.out_head)


@njit(**HELPER)
def cached_unit(c, room, row, head):
    """One row's queries of a few heads, page by page, the last one first."""
    deep, wide, count = (c.d + 15) // 16 * 16, (c.together + 15) // 16 * 16, c.together
    q, o = c.q + 4 * (row * c.q_row + head // c.q_of * c.q_head), c.o + 4 * (row * c.o_row + head * c.o_head)
    k, v = c.k + 4 * (head // c.k_of * c.k_head), c.v + 4 * (head // c.v_of * c.v_head)
    tops, masses, fades, shares, turned = room, room + LINE, room + 2 * LINE, room + 3 * LINE, room + 4 * LINE
    s = turned + deep * LINE
    turn_in(q, 4 * c.q_head, count, c.d, turned, QUERIES, deep)
    scaled(turned, c.d, wide, LINE, f4(c.scale))
    for g in range(0, 4 * wide, 64):
        keep(zeros(1, 1) + LOWEST, tops + g, None)
        keep(zeros(1, 1) + ONE, shares + g, None)
    slot, fresh = longs(c.slots + 8 * row, 1)[0], True
    page, keys = slot // PAGE, slot % PAGE + 1
    while page >= 0:
        first, before = page * PAGE, longs(c.before + 8 * page, 1)[0]
        score_all(k + 4 * first * c.k_row, 4 * c.k_row, keys, turned, c.d, s, wide)
        for g in range(0, 4 * wide, 64): softened(s + g, keys, tops + g, masses + g, fades + g, shares + g, fresh, before < 0)
        weigh_all(count, c.e, s, keys, v + 4 * first * c.v_row, 4 * c.v_row, o, 4 * c.o_head, fresh, fades, shares)
        page, keys, fresh = before, PAGE, False


@Kernel
def attend_cached(item, worker, arguments):
    """softmax(scale q kᵀ) v for an item's units: heads that share keys and values, row after row."""
    c = record(arguments, CACHED)
    for unit in range(c.units * item // c.items, c.units * (item + 1) // c.items):
        each = c.h // c.together
        cached_unit(c, c.room + worker * c.apart, unit // each, unit % each * c.together)


def places(name: str, array: np.ndarray, count: int, least: int, limit: int) -> np.ndarray:
    """So many whole numbers as words. ValueError for anything else, IndexError for one below the least, or not below the limit."""
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: expected {count} whole numbers, got {array.dtype} of shape {array.shape}")
    if array.size and not least <= (low := array.min()) <= (high := array.max()) < limit:
        raise IndexError(f"{name}: {low if low < least else high} is outside {least} to {limit - 1}")
    return plain(name, array, np.int64)


def endless(before: np.ndarray) -> bool:
    """Whether some page has no first page before it: twice as many steps at a time."""
    for _ in range(len(before).bit_length()): before = np.where(before < 0, before, before[before])
    return bool((before >= 0).any())


def append(x: np.ndarray, slots: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out[slots] = x: (T, heads, cols) to rows of a cache (C, heads, cols). Slots are all different. IndexError where one is outside."""
    check_heads(out, x=x)
    T, (heads, cols) = len(x), out.shape[1:]
    slots = places("slots", slots, T, 0, len(out))
    separate(out, slots=slots)
    if x.shape[2] != cols: raise ValueError(f"x and out: widths {x.shape[2]} and {cols} differ")
    record = filled(*heads_of("x", x, T, heads), *heads_of("out", out, len(out), heads), address(slots), T, heads, cols)
    launch(threads(), (append_rows, record, -(-T // CHUNK)))
    return out


def attention_cached(q: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray, before: np.ndarray, out: np.ndarray,
                     scale: float = 1.0) -> np.ndarray:
    """out (T, h, e) = softmax(scale q kᵀ) v of each row, over what its sequence has cached up to the row's own slot.

    q (T, ·, d) are rows, k (C, ·, d) and v (C, ·, e) caches, in views as for `attention`; slots (T) say where a row's own key lies;
    before (C / PAGE) are the pages before, -1 before the first. IndexError where one is outside, ValueError where they lead nowhere."""
    check_heads(out, q=q, k=k, v=v)
    (heads, e), d, T = out.shape[1:], q.shape[2], len(out)
    if k.shape[2] != d: raise ValueError(f"q and k: widths {d} and {k.shape[2]} differ")
    if v.shape[2] != e: raise ValueError(f"v and out: widths {v.shape[2]} and {e} differ")
    if len(k) != len(v): raise ValueError(f"k and v: caches of {len(k)} and {len(v)} rows")
    if len(k) % PAGE: raise ValueError(f"k and v: caches of {len(k)} rows, which are no pages of {PAGE}")
    slots, before = places("slots", slots, T, 0, len(k)), places("before", before, pages := len(k) // PAGE, -1, pages)
    separate(out, slots=slots, before=before)
    if endless(before): raise ValueError("before: it leads from a page back to the page itself")
    serves = [served(name, view, heads) for name, view in zip("qkv", (q, k, v), strict=True)]
    views = zip(("q", "k", "v", "out"), (q, k, v, out), (T, len(k), len(k), T), (*serves, 1), strict=True)
    lies = [number for name, view, rows, many in views for number in heads_of(name, view, rows, heads // many)]
    shared = gcd(*serves[1:]) if serves[0] == 1 else 1
    together = max(each for each in range(1, min(shared, QUERIES) + 1) if shared % each == 0)
    units, workers = T * heads // together, threads()
    items = min(units, PIECES * workers) if workers > 1 else 1
    factor, = struct.unpack("q", struct.pack("d", finite(scale * LOG2_E)))
    with POOL.lock:
        reserved = ROOM.reserve(LINE * (4 + -(-d // 16) * 16 + PAGE), workers)
        fields = *lies, address(slots), address(before), heads, d, e, *reserved, *serves, together, units, items, factor
        launch(workers, (attend_cached, filled(*fields), items))
    return out
