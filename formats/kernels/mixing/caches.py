"""Attention over cached keys and values, which lie in pages; a page knows the page before it.

A row's slot is where its own key and value lie: it sees what is in its page up to there, and all of the pages before.
So the keys of a sequence need not lie together, sequences may share the pages that they begin with, and a causal
pattern needs no positions. Rows that follow one another, as those of a prompt, are queries that meet a page
together."""
import struct
from math import gcd

import numpy as np

from formats.core.arrays import as_contiguous, places, separate
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import floats, longs, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.products.transposing import turn_in
from formats.kernels.simd.arithmetic import keep
from formats.kernels.simd.maths import ONE
from formats.kernels.simd.vectors import zeros
from formats.machine.threads import threads

from .attending import HIDDEN, LINE, LOG2_E, LOWEST, PIECES, QUERIES, scale_lines, score_all, softened, weigh_all
from .heads import PLACES, Layout, check_heads, check_scale, copy_rows, heads_of, sequences, served

__all__ = ["append", "attention_cached"]

PAGE = 16                                                    # rows of a page
COPIED_ROWS = 64                                             # rows of an item that are copied
KEYS_AT_ONCE = 8 * PAGE                                      # that queries meet at once
__borders__ = PAGE, KEYS_AT_ONCE
# before: of each page the page before it, -1 for none; starts: where there are some, a row is the last of a sequence;
# together: heads that
# share keys and values; rows: of an item; the rest as in heads.py
CACHED = np.dtype([*PLACES, *words("slots before starts T h d e room apart q_of k_of v_of together rows"),
                   ("scale", "f8")])
# x (T, heads, cols) to the rows of out that slots name
APPEND = np.dtype(words("x x_row x_head out out_row out_head slots T heads cols"))
f4 = np.float32


@Kernel.of(3, rare=True)
def append_rows(item, worker, arguments):
    """Rows of x to their slots."""
    c = record(arguments, APPEND)
    slots = longs(c.slots, c.T)
    for row in range(item * COPIED_ROWS, min((item + 1) * COPIED_ROWS, c.T)):
        copy_rows(c.x + 4 * row * c.x_row, 4 * c.x_head, c.heads, c.cols, c.out + 4 * slots[row] * c.out_row,
                  4 * c.out_head)


@njit(**HELPER)
def hide_later(s, keys, behind, rows):
    """Minus infinity where a row does not see a key yet: the last key lies so many rows behind the last query's own."""
    for j in range(keys):
        line = floats(s + j * LINE, QUERIES)
        for i in range(max(0, min(rows - keys + j - behind, rows))): line[i] = HIDDEN


@njit(**HELPER)
def cached_unit(c, room, row, head, rows):
    """The queries of so many rows of a sequence up to this one, of one head; of a single row those of a few heads.
    Pages from the last one back, those at once that lie in turn."""
    count, across, beside = c.together, 4 * c.q_head, 4 * c.o_head
    if rows > 1: count, across, beside = rows, 4 * c.q_row, 4 * c.o_row
    deep, wide, low = (c.d + 15) // 16 * 16, (count + 15) // 16 * 16, row - rows + 1
    q, o = c.q + 4 * (low * c.q_row + head // c.q_of * c.q_head), c.o + 4 * (low * c.o_row + head * c.o_head)
    k, v = c.k + 4 * (head // c.k_of * c.k_head), c.v + 4 * (head // c.v_of * c.v_head)
    tops, masses, fades, shares, turned = room, room + LINE, room + 2 * LINE, room + 3 * LINE, room + 4 * LINE
    s = turned + deep * LINE
    turn_in(q, across, count, c.d, turned, QUERIES, deep)
    scale_lines(turned, c.d, wide, LINE, f4(c.scale))
    for g in range(0, 4 * wide, 64):
        keep(zeros(1, 1) + LOWEST, tops + g, None)
        keep(zeros(1, 1) + ONE, shares + g, None)
    slot, fresh, behind = longs(c.slots + 8 * (longs(c.starts + 8 * row, 2)[1] - 1 if c.starts else row), 1)[0], True, 0
    page, keys = slot // PAGE, slot % PAGE + 1
    while page >= 0:
        before = longs(c.before + 8 * page, 1)[0]
        while before >= 0 and before == page - 1 and keys + PAGE <= KEYS_AT_ONCE:
            page, keys = before, keys + PAGE
            before = longs(c.before + 8 * page, 1)[0]
        first = page * PAGE
        score_all(k + 4 * first * c.k_row, 4 * c.k_row, keys, turned, c.d, s, wide)
        if behind < rows - 1: hide_later(s, keys, behind, rows)
        for g in range(0, 4 * wide, 64):
            softened(s + g, keys, tops + g, masses + g, fades + g, shares + g, fresh, before < 0)
        weigh_all(count, c.e, s, keys, v + 4 * first * c.v_row, 4 * c.v_row, o, beside, fresh, fades, shares)
        page, keys, fresh, behind = before, PAGE, False, behind + keys


@njit(**HELPER)
def follows(c, row):
    """Whether the row behind this one is the next of its sequence: its slot is the next of the page, or the first of
    the page that follows."""
    if c.starts: return False
    pair = longs(c.slots + 8 * row, 2)
    if pair[1] % PAGE: return pair[1] == pair[0] + 1
    return pair[0] % PAGE == PAGE - 1 and longs(c.before + 8 * (pair[1] // PAGE), 1)[0] == pair[0] // PAGE


@Kernel.of(3, rare=True)
def attend_cached(item, worker, arguments):
    """softmax(scale q kᵀ) v of what begins in an item, a few rows, of heads that share keys and values. Rows that
    follow one another in their sequence meet its pages together, as many at once whatever the items are: sums are the
    same on any number of threads."""
    c = record(arguments, CACHED)
    each, room = c.h // c.together, c.room + worker * c.apart
    row, high, head = item // each * c.rows, min((item // each + 1) * c.rows, c.T), item % each * c.together
    first = row
    while first > 0 and follows(c, first - 1): first -= 1
    while row < high:
        if row > first and not follows(c, row - 1): first = row
        if (row - first) % QUERIES:                          # of what begins in an item before
            row += 1
            continue
        last = row
        while last + 1 < c.T and last + 1 - row < QUERIES and follows(c, last): last += 1
        if last == row:
            if not c.starts or longs(c.starts + 8 * row, 2)[0] < longs(c.starts + 8 * row, 2)[1]:
                cached_unit(c, room, row, head, 1)
        else:
            for own in range(head, head + c.together): cached_unit(c, room, last, own, last - row + 1)
        row = last + 1


def as_words(name: str, array: np.ndarray, count: int, limit: int, least: int = 0) -> np.ndarray:
    """So many whole numbers as words; raises as `places` does."""
    places(name, array, count, limit, least)
    return as_contiguous(name, array, np.int64)


def endless(before: np.ndarray) -> bool:
    """Whether some page has no first page before it: twice as many steps at a time."""
    for _ in range(len(before).bit_length()): before = np.where(before < 0, before, before[before])
    return bool((before >= 0).any())


def append(x: np.ndarray, slots: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out[slots] = x: (T, heads, cols) to rows of a cache (C, heads, cols). Slots are all different. IndexError where
    one is outside."""
    check_heads(out, x=x)
    T, (heads, cols) = len(x), out.shape[1:]
    slots = as_words("slots", slots, T, len(out))
    separate(out, slots=slots)
    if x.shape[2] != cols: raise ValueError(f"x and out: widths {x.shape[2]} and {cols} differ")
    record = filled(*heads_of("x", x, T, heads), *heads_of("out", out, len(out), heads), address(slots), T, heads, cols)
    launch(threads(), (append_rows, record, -(-T // COPIED_ROWS)))
    return out


def attention_cached(q: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray, before: np.ndarray,
                     out: np.ndarray, scale: float = 1.0, starts: np.ndarray | Layout | None = None) -> np.ndarray:
    """out (T, h, e) = softmax(scale q kᵀ) v of each row, over what its sequence has cached up to the row's own slot.

    q (T, ·, d) are rows, k (C, ·, d) and v (C, ·, e) caches, in views as for `attention`; slots (T) say where a row's
    own key lies; before (C / PAGE) are the pages before, -1 before the first. With starts, q and out have a row for the
    last of each sequence, slots are those of all rows. IndexError where one is outside, ValueError where they lead
    nowhere."""
    check_heads(out, q=q, k=k, v=v)
    (heads, e), d, T = out.shape[1:], q.shape[2], len(out)
    if k.shape[2] != d: raise ValueError(f"q and k: widths {d} and {k.shape[2]} differ")
    if v.shape[2] != e: raise ValueError(f"v and out: widths {v.shape[2]} and {e} differ")
    if len(k) != len(v): raise ValueError(f"k and v: caches of {len(k)} and {len(v)} rows")
    if len(k) % PAGE: raise ValueError(f"k and v: caches of {len(k)} rows, which are no pages of {PAGE}")
    batch = None if starts is None else sequences(starts)
    if batch and len(batch.starts) <= T:
        raise ValueError(f"attention: {len(batch.starts) - 1} sequences, but {T} rows of out")
    slots = as_words("slots", slots, int(batch.starts[-1]) if batch else T, len(k))
    before = as_words("before", before, count := len(k) // PAGE, count, -1)
    separate(out, slots=slots, before=before)
    if endless(before): raise ValueError("before: it leads from a page back to the page itself")
    serves = [served(name, view, heads) for name, view in zip("qkv", (q, k, v), strict=True)]
    views = zip(("q", "k", "v", "out"), (q, k, v, out), (T, len(k), len(k), T), (*serves, 1), strict=True)
    lies = [number for name, view, rows, many in views for number in heads_of(name, view, rows, heads // many)]
    shared = gcd(*serves[1:]) if serves[0] == 1 else 1
    together = max(each for each in range(1, min(shared, QUERIES) + 1) if shared % each == 0)
    groups, workers = heads // together, threads()
    rows = max(1, min(QUERIES, -(-T * groups // (PIECES * workers))))
    factor, = struct.unpack("q", struct.pack("d", check_scale(scale * LOG2_E)))
    with POOL.lock:
        reserved = ROOM.reserve(LINE * (4 + -(-d // 16) * 16 + KEYS_AT_ONCE), workers)
        pages = address(slots), address(before), address(batch and batch.starts)
        fields = *lies, *pages, T, heads, d, e, *reserved, *serves, together, rows, factor
        launch(workers, (attend_cached, filled(*fields), -(-T // rows) * groups))
    return out
