"""Attention over cached keys and values, which are stored in pages; a page knows the page before it.

A row's slot is the place of its own key and value: the row sees its page up to there, and all of the pages before. So
the keys of a sequence need not be contiguous, sequences may share the pages that they begin with, and a causal pattern
needs no positions. Consecutive rows, as those of a prompt, are queries that meet a page together; if there are few
rows, workers share the keys of one. With a window a row sees only the keys of its last positions; pages behind it may
belong to another sequence, so positions are given, and pages are not counted. The sums are those of chunks.py, so the
result does not depend on how rows are grouped. A cache is float32 or bfloat16; a row of it is rounded when it is
appended, and widened when it is read."""

from math import gcd

import numpy as np

from formats.core.arrays import as_contiguous, places, separate
from formats.host.threads import threads
from formats.kernels.attentions.attending import LINE, PIECES, QUERIES, doubles_as_words, scaled_by
from formats.kernels.attentions.biased import BY_DISTANCE, strip_bytes, table_of
from formats.kernels.attentions.chunks import (
    CHUNK,
    STRANDS,
    Unit,
    add_strand,
    count_pages,
    merge_sums,
    share_sums,
    turn_queries,
)
from formats.kernels.attentions.heads import (
    PLACES,
    Layout,
    check_heads,
    copy_rows,
    heads_of,
    margins_of,
    sequences,
    served,
)
from formats.kernels.attentions.key_lanes import KEYS_AT_ONCE, PAGE, TURNED_KEYS
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import longs, record, shorts
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.rounding import keep_halves
from formats.kernels.simd.arithmetic import get

__all__ = ["append", "attention_cached"]

COPIED_ROWS = 64  # rows of an item that are copied
ROOM_LINES = 8  # lines of a worker's room: two carriers, fades, gains,
# shares, pages
FARTHEST = 2**40  # positions: farther than any sequence is long
__borders__ = PAGE, QUERIES, KEYS_AT_ONCE, CHUNK, STRANDS * CHUNK
# before: the page before each page, -1 for none; starts: if given, a row is the last of a sequence; behind: keys
# behind itself that a row sees; positions: of rows, if pages may be missing;
# together: heads that share keys and values; rows: of an item; halves: 1 for bfloat16; own: bytes of a worker's room,
# the carriers of strands follow it in the first worker's room, `carrier` bytes each; the rest as in heads.py
CACHED = np.dtype(
    [
        *PLACES,
        *words(
            "slots before starts T h d e room apart q_of k_of v_of together rows halves own carrier behind positions"
        ),
        *BY_DISTANCE,
        *words("margin"),
        ("scale", "f8"),
        ("cap", "f8"),
    ]
)
# x (T, heads, cols) is copied to the rows of out that slots name
APPEND = np.dtype(words("x x_row x_head out out_row out_head slots T heads cols halves room apart"))
f4 = np.float32


@njit(**HELPER)
def round_row(x, columns, target, room):
    """Store a row as bfloat16; a partial vector passes through the room."""
    full = columns // 16 * 16
    for k in range(0, full, 16):
        keep_halves(get(x + 4 * k, None), target + 2 * k)
    if full < columns:
        keep_halves(get(x + 4 * full, columns - full), room)
        given, kept = shorts(room, 16), shorts(target + 2 * full, columns - full)
        for i in range(columns - full):
            kept[i] = given[i]


@Kernel.of(3, rare=True)
def append_rows(item, worker, arguments):
    """Store rows of x at their slots."""
    c = record(arguments, APPEND)
    slots = longs(c.slots, c.T)
    for row in range(item * COPIED_ROWS, min((item + 1) * COPIED_ROWS, c.T)):
        if c.halves:
            for head in range(c.heads):
                round_row(
                    c.x + 4 * (row * c.x_row + head * c.x_head),
                    c.cols,
                    c.out + 2 * (slots[row] * c.out_row + head * c.out_head),
                    c.room + worker * c.apart,
                )
        else:
            copy_rows(
                c.x + 4 * row * c.x_row,
                4 * c.x_head,
                c.heads,
                c.cols,
                c.out + 4 * slots[row] * c.out_row,
                4 * c.out_head,
            )


@njit(**HELPER)
def last_slot(c, row):
    """Return the slot of a row, or of the last row of a sequence; -1 for a sequence without rows."""
    if not c.starts:
        return longs(c.slots + 8 * row, 1)[0]
    pair = longs(c.starts + 8 * row, 2)
    return longs(c.slots + 8 * (pair[1] - 1), 1)[0] if pair[0] < pair[1] else -1


@njit(**HELPER)
def length_of(c, row, slot):
    """Count the keys of a row's sequence up to the row, or up to the last row of a sequence; `slot` is the slot of that
    row."""
    if not c.positions:
        return (count_pages(c.before, slot // PAGE) - 1) * PAGE + slot % PAGE + 1
    last = longs(c.starts + 8 * row, 2)[1] - 1 if c.starts else row
    return longs(c.positions + 8 * last, 1)[0] + 1


@njit(**HELPER)
def begin_unit(c, room, row, head, rows):
    """Prepare the queries of `rows` rows up to `row`, of one head, or those of a row and the heads that share keys.
    Return the unit, the address of the outputs, and the bytes between two of them."""
    count, across, beside = c.together, 4 * c.q_head, 4 * c.o_head
    if rows > 1:
        count, across, beside = rows, 4 * c.q_row, 4 * c.o_row
    low, wide, deep = row - rows + 1, (count + 15) // 16 * 16, (c.d + 15) // 16 * 16
    turned = room + ROOM_LINES * LINE
    s = turned + deep * LINE
    keys = s + KEYS_AT_ONCE * LINE
    widened = keys + 4 * TURNED_KEYS * deep
    u = Unit(
        rows, count, wide, turned, s, keys, widened, room + 7 * LINE, room + 4 * LINE, room + 5 * LINE, room + c.strip
    )
    turn_queries(c, c.q + 4 * (low * c.q_row + head // c.q_of * c.q_head), across, count, turned, wide)
    return u, c.o + 4 * (low * c.o_row + head * c.o_head), beside


@njit(**HELPER)
def attend_unit_cached(c, room, row, head, rows):
    """Compute the outputs of a unit: strand after strand."""
    u, o, beside = begin_unit(c, room, row, head, rows)
    slot, step = last_slot(c, row), (c.e + 15) // 16 * 64
    length = length_of(c, row, slot)
    more, last = room + c.own - QUERIES * step, min((length - 1) // CHUNK, STRANDS - 1)
    add_strand(c, u, head, slot, length, 0, room, room + LINE, o, beside)
    for strand in range(1, last + 1):
        add_strand(c, u, head, slot, length, strand, room + 2 * LINE, room + 3 * LINE, more, step)
        merge_sums(
            u.many,
            u.wide,
            c.e,
            room,
            room + LINE,
            o,
            beside,
            room + 2 * LINE,
            room + 3 * LINE,
            more,
            step,
            u.fades,
            room + 6 * LINE,
        )
    share_sums(c, head, rows == 1, u.many, u.wide, room, room + LINE, o, beside, u.shares)


@njit(**HELPER)
def follows(c, row):
    """True if the row behind this one is the next of its sequence: its slot is the next of the page, or the first of
    the next page."""
    if c.starts:
        return False
    pair = longs(c.slots + 8 * row, 2)
    if pair[1] % PAGE:
        return pair[1] == pair[0] + 1
    return pair[0] % PAGE == PAGE - 1 and longs(c.before + 8 * (pair[1] // PAGE), 1)[0] == pair[0] // PAGE


@Kernel.of(3, rare=True)
def attend_cached(item, worker, arguments):
    """Compute softmax(scale q kᵀ) v of an item's rows, for heads that share keys and values. Consecutive rows of a
    sequence meet its pages together."""
    c = record(arguments, CACHED)
    each, room = c.h // c.together, c.room + worker * c.apart
    row, high, head = item // each * c.rows, min((item // each + 1) * c.rows, c.T), item % each * c.together
    while row < high:
        last = row
        while last + 1 < high and last + 1 - row < QUERIES and follows(c, last):
            last += 1
        if last > row:
            for own in range(head, head + c.together):
                attend_unit_cached(c, room, last, own, last - row + 1)
        elif last_slot(c, row) >= 0:
            attend_unit_cached(c, room, row, head, 1)
        row = last + 1


@Kernel.of(3, rare=True)
def attend_strands(item, worker, arguments):
    """Compute the carrier of one strand of a row, for heads that share keys and values."""
    c = record(arguments, CACHED)
    each, unit, strand = c.h // c.together, item // STRANDS, item % STRANDS
    row, head, slot = unit // each, unit % each * c.together, last_slot(c, unit // each)
    if slot < 0:
        return
    length = length_of(c, unit // each, slot)
    if strand * CHUNK >= length:
        return
    u, o, beside = begin_unit(c, c.room + worker * c.apart, row, head, 1)
    tops = c.room + c.own + item * c.carrier
    if strand:
        o, beside = tops + 2 * LINE, (c.e + 15) // 16 * 64
    add_strand(c, u, head, slot, length, strand, tops, tops + LINE, o, beside)


@Kernel.of(3, rare=True)
def merge_strands(item, worker, arguments):
    """Compute the outputs of a row, for heads that share keys and values: its strands are merged in ascending order."""
    c = record(arguments, CACHED)
    each, room = c.h // c.together, c.room + worker * c.apart
    row, head, slot = item // each, item % each * c.together, last_slot(c, item // each)
    if slot < 0:
        return
    length = length_of(c, row, slot)
    o, wide = c.o + 4 * (row * c.o_row + head * c.o_head), (c.together + 15) // 16 * 16
    tops, step = c.room + c.own + item * STRANDS * c.carrier, (c.e + 15) // 16 * 64
    for strand in range(1, min((length - 1) // CHUNK, STRANDS - 1) + 1):
        more = tops + strand * c.carrier
        merge_sums(
            c.together,
            wide,
            c.e,
            tops,
            tops + LINE,
            o,
            4 * c.o_head,
            more,
            more + LINE,
            more + 2 * LINE,
            step,
            room,
            room + LINE,
        )
    share_sums(c, head, True, c.together, wide, tops, tops + LINE, o, 4 * c.o_head, room)


def as_words(name: str, array: np.ndarray, count: int, limit: int, least: int = 0) -> np.ndarray:
    """Return `count` integers as words; raises as `places` does."""
    places(name, array, count, limit, least)
    return as_contiguous(name, array, np.int64)


def endless(before: np.ndarray) -> bool:
    """True if the pages before some page form a loop: twice as many steps are followed at a time."""
    for _ in range(len(before).bit_length()):
        before = np.where(before < 0, before, before[before])
    return bool((before >= 0).any())


def is_halves(name: str, cache: np.ndarray) -> bool:
    """True if a cache is bfloat16, whose bits are uint16. ValueError if it is neither bfloat16 nor float32."""
    if cache.dtype in (np.uint16, f4):
        return bool(cache.dtype == np.uint16)
    raise ValueError(f"{name}: a cache is float32, or bfloat16 as uint16; this is {cache.dtype}")


def append(x: np.ndarray, slots: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out[slots] = x: (T, heads, cols) to rows of a cache (C, heads, cols), rounded if that is bfloat16. Slots are all
    different. IndexError for a slot outside."""
    check_heads(out, x=x)
    T, (heads, cols) = len(x), out.shape[1:]
    slots, halves = as_words("slots", slots, T, len(out)), is_halves("out", out)
    separate(out, slots=slots)
    if x.shape[2] != cols:
        raise ValueError(f"x and out: widths {x.shape[2]} and {cols} differ")
    lies = *heads_of("x", x, T, heads), *heads_of("out", out, len(out), heads, out.dtype.type)
    workers = threads()
    with POOL.lock:
        room = ROOM.reserve(64, workers)
        record = filled(*lies, address(slots), T, heads, cols, halves, *room)
        launch(workers, (append_rows, record, -(-T // COPIED_ROWS)))
    return out


def attention_cached(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    slots: np.ndarray,
    before: np.ndarray,
    out: np.ndarray,
    scale: float = 1.0,
    starts: np.ndarray | Layout | None = None,
    bias: np.ndarray | None = None,
    behind: int | None = None,
    positions: np.ndarray | None = None,
    cap: float = 0.0,
    margin: np.ndarray | None = None,
) -> np.ndarray:
    """out (T, h, e) = softmax(scale q kᵀ + bias) v of each row, over the keys that its sequence has cached up to the
    row's own slot.

    q (T, ·, d) are rows, k (C, ·, d) and v (C, ·, e) caches, in views as for `attention`, both float32 or both bfloat16
    as uint16; slots (T) are the places of the rows' own keys; before (C / PAGE) are the pages before, -1 before the
    first. With starts, q and out have a row for the last token of each sequence, and slots are those of all rows. A
    bias is a table by distance, see biased.py; with a cap above 0 scores are cap tanh(scale q kᵀ); with margins (h)
    a row sees one more key, as in `attention`. A row sees `behind` keys behind itself, all if that is None;
    otherwise positions (T) give the number of keys that its sequence has had before it, as pages that no row sees
    any more may be missing. IndexError for a slot outside, ValueError for pages that lead in a circle."""
    check_heads(out, q=q, k=k, v=v)
    (heads, e), d, T, halves = out.shape[1:], q.shape[2], len(out), is_halves("k", k)
    if k.shape[2] != d:
        raise ValueError(f"q and k: widths {d} and {k.shape[2]} differ")
    if v.shape[2] != e:
        raise ValueError(f"v and out: widths {v.shape[2]} and {e} differ")
    if len(k) != len(v):
        raise ValueError(f"k and v: their caches have {len(k)} and {len(v)} rows, which must be equal")
    if is_halves("v", v) != halves:
        raise ValueError(f"k and v: their caches are {k.dtype} and {v.dtype}, which must be one type")
    if len(k) % PAGE:
        raise ValueError(f"k and v: caches of {len(k)} rows, which is not a multiple of a page, {PAGE}")
    batch = None if starts is None else sequences(starts)
    if batch and len(batch.starts) <= T:
        raise ValueError(f"attention: {len(batch.starts) - 1} sequences, but out has {T} rows")
    slots = as_words("slots", slots, int(batch.starts[-1]) if batch else T, len(k))
    before = as_words("before", before, count := len(k) // PAGE, count, -1)
    separate(out, slots=slots, before=before)
    if behind is not None:
        if behind < 0 or positions is None:
            raise ValueError(f"behind: {behind} keys: give 0 or more, together with positions")
        positions = as_words("positions", positions, len(slots), FARTHEST)
        separate(out, positions=positions)
    if endless(before):
        raise ValueError("before: the links between pages form a cycle")
    serves = [served(name, view, heads) for name, view in zip("qkv", (q, k, v), strict=True)]
    views = zip(
        ("q", "k", "v", "out"),
        (q, k, v, out),
        (T, len(k), len(k), T),
        (*serves, 1),
        (f4, k.dtype.type, v.dtype.type, f4),
        strict=True,
    )
    lies = [
        number for name, view, rows, many, kind in views for number in heads_of(name, view, rows, heads // many, kind)
    ]
    shared = gcd(*serves[1:]) if serves[0] == 1 else 1
    together = max(divisor for divisor in range(1, min(shared, QUERIES) + 1) if shared % divisor == 0)
    units, workers, step = T * (heads // together), threads(), -(-e // 16) * 64
    apart = workers > 1 and units < PIECES * workers  # too few units for all workers: they share a unit's keys
    rows = 1 if apart else QUERIES if workers == 1 else max(1, min(QUERIES, -(-units // (PIECES * workers))))
    deep = -(-d // 16) * 16
    strip = LINE * (ROOM_LINES + deep + KEYS_AT_ONCE) + 4 * TURNED_KEYS * deep + halves * 4 * PAGE * max(d, e)
    table, strip, carrier = table_of(bias, heads), -(-strip // 64) * 64, 2 * LINE + together * step
    if bias is not None:
        separate(out, bias=bias)
    worker_bytes = strip + (0 if bias is None else strip_bytes(KEYS_AT_ONCE, QUERIES)) + QUERIES * step
    factors = doubles_as_words(*scaled_by(scale, cap, bias))
    with POOL.lock:
        reserved = ROOM.reserve(worker_bytes + apart * units * STRANDS * carrier, workers)
        pages = address(slots), address(before), address(batch and batch.starts)
        window = (FARTHEST, 0) if behind is None else (min(behind, FARTHEST), address(positions))
        fields = (
            *lies,
            *pages,
            T,
            heads,
            d,
            e,
            *reserved,
            *serves,
            together,
            rows,
            halves,
            worker_bytes,
            carrier,
            *window,
            *table,
            strip,
            margins_of(margin, heads),
            *factors,
        )
        launch_record = filled(*fields)
        if apart:
            launch(workers, (attend_strands, launch_record, units * STRANDS), (merge_strands, launch_record, units))
        else:
            launch(workers, (attend_cached, launch_record, -(-T // rows) * (heads // together)))
    return out
