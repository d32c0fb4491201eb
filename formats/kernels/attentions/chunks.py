"""Attention of rows over a cache, in chunks of 256 keys counted from the first token of their sequence.

A row may see only its last keys, those of a window. Pages wholly behind the windows of all rows are not read, and a
skipped chunk leaves a carrier as it is.

The carrier (m, l, o) of softmax is summed separately for every eighth chunk, a *strand*, from the last chunk back;
strands are merged in ascending order. So the order of every sum follows from positions alone: it does not depend on the
pages that a sequence was given, on how many rows meet a page together, or on which worker computes which strand. A
score is summed column by column, an output key by key, in any tile of registers; a key that a row does not see yet adds
zero."""

from typing import NamedTuple

import numpy as np

from formats.kernels.attentions.attending import (
    HIDDEN,
    LINE,
    LOWEST,
    QUERIES,
    cap_lines,
    carry,
    highest_lines,
    scale_lines,
    share_beside,
    share_lines,
)
from formats.kernels.attentions.biased import add_lines, add_rows, lay_lines
from formats.kernels.attentions.key_lanes import (
    KEYS_AT_ONCE,
    ROW,
    TURNED_KEYS,
    score_turned,
    soften_heads,
    turn_page,
    widen_rows,
)
from formats.kernels.attentions.key_lanes import PAGE as PAGE
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import floats, longs
from formats.kernels.engine.native import njit
from formats.kernels.matmul.transposing import turn_in
from formats.kernels.simd.arithmetic import fused, get, keep, larger
from formats.kernels.simd.maths import ONE, exp2, reciprocal
from formats.kernels.simd.vectors import MANY_REGISTERS, add_outer, fetch, span, store_tile, times_rows, zeros

CHUNK = 256  # keys of a chunk
STRANDS = 8  # separate sums, one for every eighth chunk
LEAST_HEADS = 12  # heads of a row whose scores are lines
FADED, BEGUN = 1, 2  # an output holds sums to be faded, or to be continued
f4 = np.float32


class Unit(NamedTuple):
    """Queries that meet keys together, as lines of `wide` numbers: rows of one head, or one row of a few heads; and the
    addresses of a worker's scratch for them."""

    rows: int
    many: int
    wide: int
    turned: int
    s: int
    keys: int
    widened: int
    pages: int
    fades: int
    shares: int
    strip: int


# ---- a tile of keys


@njit(**HELPER)
def score_tile(none, k, along, turned, depth, s):
    """Compute lines of scores of a few keys against transposed queries."""
    sums = none
    for _ in range(depth):
        sums = add_outer(sums, k, along, turned, None)
        k += 4
        turned += LINE
    store_tile(sums, s, LINE, None)


@njit(**HELPER)
def score_pages(k, along, keys, turned, depth, s, wide):
    """Compute lines of scores of whole pages of keys."""
    for key in range(0, keys, PAGE):
        at, line = k + key * along, s + key * LINE
        if not MANY_REGISTERS:
            for g in range(0, 4 * wide, 64):
                for few in range(0, PAGE, 4):
                    score_tile(zeros(4, 1), at + few * along, along, turned + g, depth, line + few * LINE + g)
        elif wide == 16:
            score_tile(zeros(16, 1), at, along, turned, depth, line)
        elif wide == 32:
            score_tile(zeros(8, 2), at, along, turned, depth, line)
            score_tile(zeros(8, 2), at + 8 * along, along, turned, depth, line + 8 * LINE)
        else:
            score_tile(zeros(8, 3), at, along, turned, depth, line)
            score_tile(zeros(8, 3), at + 8 * along, along, turned, depth, line + 8 * LINE)


@njit(**HELPER)
def sum_fourth(at):
    """Sum every fourth line of a page, in the order in which halves of a vector are added."""
    return (get(at, None) + get(at + 8 * LINE, None)) + (get(at + 4 * LINE, None) + get(at + 12 * LINE, None))


@njit(**HELPER)
def soften_lines(s, keys, tops, masses, fades, shares, fresh):
    """Run `soften_heads` for 16 queries: a vector of each of `keys` lines."""
    whole = s + (keys + PAGE - 1) // PAGE * PAGE * LINE
    for at in range(s + keys * LINE, whole, LINE):
        keep(zeros(1, 1) + HIDDEN, at, None)
    old = get(tops, None)
    top, mass = highest_lines(s, keys, old), zeros(1, 1)
    for page in range(s, whole, PAGE * LINE):
        for at in range(page, page + PAGE * LINE, LINE):
            keep(exp2(get(at, None) - top), at, None)
        mass = mass + (
            (sum_fourth(page) + sum_fourth(page + 2 * LINE)) + (sum_fourth(page + LINE) + sum_fourth(page + 3 * LINE))
        )
    carry(old, top, mass, tops, masses, fades, shares, fresh, False)


@njit(**HELPER)
def weigh_tile(none, p, beside, along, keys, v, across, o, step, held, fades, lanes):
    """Update rows of outputs: their stored sums, plus p v; beside and along are the bytes of p between queries and
    keys."""
    sums = none
    if held == FADED:
        sums = times_rows(fetch(none, o, step, lanes), fades)
    elif held:
        sums = fetch(none, o, step, lanes)
    for _ in range(keys):
        sums = add_outer(sums, p, beside, v, lanes)
        p += along
        v += across
    store_tile(sums, o, step, lanes)


@njit(**HELPER)
def weigh_band(broad, narrow, row, columns, p, beside, along, keys, v, across, o, step, held, fades):
    """Run `weigh_tile` on all columns of some rows."""
    p, o, fades, left = p + beside * row, o + row * step, fades + 4 * row, 0
    while left + span(broad) <= columns:
        weigh_tile(broad, p, beside, along, keys, v + 4 * left, across, o + 4 * left, step, held, fades, None)
        left += span(broad)
    while left < columns:
        weigh_tile(
            narrow,
            p,
            beside,
            along,
            keys,
            v + 4 * left,
            across,
            o + 4 * left,
            step,
            held,
            fades,
            min(16, columns - left),
        )
        left += 16


@njit(**HELPER)
def weigh_keys(rows, columns, p, beside, along, keys, v, across, o, step, held, fades):
    """Update the outputs of all rows."""
    row = 0
    if MANY_REGISTERS:
        while row + 16 <= rows:
            weigh_band(
                zeros(16, 1), zeros(16, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades
            )
            row += 16
        while row + 8 <= rows:
            weigh_band(zeros(8, 2), zeros(8, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades)
            row += 8
        while row + 4 <= rows:
            weigh_band(zeros(4, 4), zeros(4, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades)
            row += 4
        if row + 3 == rows:
            weigh_band(zeros(3, 4), zeros(3, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades)
            row += 3
    else:
        while row + 4 <= rows:
            weigh_band(zeros(4, 1), zeros(4, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades)
            row += 4
    while row + 2 <= rows:
        weigh_band(zeros(2, 2), zeros(2, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades)
        row += 2
    while row < rows:
        weigh_band(zeros(1, 4), zeros(1, 1), row, columns, p, beside, along, keys, v, across, o, step, held, fades)
        row += 1


@njit(**HELPER)
def hide_later(s, keys, first, rows):
    """Set scores of keys that a row does not see yet to minus infinity: the first row sees `first` of the keys, each
    further row one more."""
    for j in range(max(first, 0), keys):
        line = floats(s + j * LINE, QUERIES)
        for i in range(min(j - first + 1, rows)):
            line[i] = HIDDEN


@njit(**HELPER)
def hide_earlier(s, keys, first, rows):
    """Set scores of keys behind a row's window to minus infinity: `first` of the keys for the first row, one more for
    each further row."""
    for j in range(min(first + rows - 1, keys)):
        line = floats(s + j * LINE, QUERIES)
        for i in range(max(j - first + 1, 0), rows):
            line[i] = HIDDEN


@njit(**HELPER)
def hide_earlier_of_row(s, keys, first, heads):
    """Set scores of keys behind the window of one row to minus infinity, in each of its heads."""
    for head in range(heads):
        scores = floats(s + head * ROW, KEYS_AT_ONCE)
        for j in range(min(first, keys)):
            scores[j] = HIDDEN


@njit(**HELPER)
def hide_earlier_lines(s, keys, first, wide):
    """Set scores of keys behind the window of one row to minus infinity, in lines of all of its heads."""
    for j in range(min(first, keys)):
        for g in range(0, 4 * wide, 64):
            keep(zeros(1, 1) + HIDDEN, s + j * LINE + g, None)


@njit(**HELPER)
def in_lines(c, u):
    """True if a line of scores has one key against all queries: rows of a head, or so many heads of a row that they
    fill vectors. Keys are read as they are stored, then; a bias of heads differs by line."""
    return u.rows > 1 or (MANY_REGISTERS and u.many >= LEAST_HEADS and not c.table)


# ---- a strand of chunks


@njit(**HELPER)
def count_pages(before, page):
    """Count the pages of a sequence up to one of them."""
    count = 0
    while page >= 0:
        page = longs(before + 8 * page, 1)[0]
        count += 1
    return count


@njit(**HELPER)
def run_of(pages, at, end):
    """Count the pages from one on that are stored consecutively."""
    count = 1
    while at + count < end and pages[at + count] == pages[at] + count:
        count += 1
    return count


@njit(**HELPER)
def score_lines(c, u, k, pages, at, end, keys, head, ahead):
    """Compute lines of scores of the keys of some pages, against rows of a head."""
    size, page = 4 - 2 * c.halves, at
    while page < end:
        count = 1 if c.halves else run_of(pages, page, end)
        lies, along = k + size * pages[page] * PAGE * c.k_row, size * c.k_row
        if c.halves:
            widen_rows(lies, along, PAGE, 0, c.d, u.widened, 4 * c.d)
            lies, along = u.widened, 4 * c.d
        score_pages(lies, along, count * PAGE, u.turned, c.d, u.s + (page - at) * PAGE * LINE, u.wide)
        page += count
    if c.cap > 0:
        cap_lines(u.s, keys, u.wide, LINE, f4(c.cap))
    if c.table:
        add_lines(u.s, LINE, keys, u.wide, lay_lines(c, head, ahead - 1, 0, keys, u.wide, ONE, u.strip))
    if u.rows == 1:
        return hide_earlier_lines(u.s, keys, ahead - 1 - c.behind, u.wide)
    hide_later(u.s, keys, ahead, u.rows)
    hide_earlier(u.s, keys, ahead - 1 - c.behind, u.rows)


@njit(**HELPER)
def score_heads_of_row(c, u, k, pages, at, end, keys, head, ahead):
    """Compute rows of scores of the keys of some pages, against heads of a row: two pages at a time."""
    size = 4 - 2 * c.halves
    for page in range(at, end):
        lies, along, side = k + size * pages[page] * PAGE * c.k_row, size * c.k_row, (page - at) * PAGE % TURNED_KEYS
        turn_page(c.halves, lies, along, c.d, u.keys + 4 * side, u.widened)
        if side or page + 1 == end:
            score_turned(u.turned, u.many, u.keys, c.d, u.s + 4 * ((page - at) * PAGE - side))
    if c.cap > 0:
        cap_lines(u.s, u.many, keys, ROW, f4(c.cap))
    if c.table:
        add_rows(c, u.s, ROW, keys, head, u.many, ahead - 1, u.strip)
    hide_earlier_of_row(u.s, keys, ahead - 1 - c.behind, u.many)


@njit(**HELPER)
def add_tile(c, u, head, at, keys, ahead, fresh, tops, masses, o, beside):
    """Merge the keys of a few pages into the carrier; the first row sees `ahead` of them."""
    pages, end, size = longs(u.pages, CHUNK // PAGE), at + (keys + PAGE - 1) // PAGE, 4 - 2 * c.halves
    k, v = c.k + size * (head // c.k_of * c.k_head), c.v + size * (head // c.v_of * c.v_head)
    lined = in_lines(c, u)
    if not lined:
        score_heads_of_row(c, u, k, pages, at, end, keys, head, ahead)
        soften_heads(u.s, u.many, keys, tops, masses, u.fades, u.shares, fresh)
    else:
        score_lines(c, u, k, pages, at, end, keys, head, ahead)
        for g in range(0, 4 * u.wide, 64):
            soften_lines(u.s + g, keys, tops + g, masses + g, u.fades + g, u.shares + g, fresh)
    apart, along_p = (4, LINE) if lined else (ROW, 4)
    page, held = at, 0 if fresh else FADED
    while page < end:
        count, done = 1 if c.halves else run_of(pages, page, end), (page - at) * PAGE
        lies, along, some = v + size * pages[page] * PAGE * c.v_row, size * c.v_row, min(keys - done, count * PAGE)
        if c.halves:
            widen_rows(lies, along, some, 0, c.e, u.widened, 4 * c.e)
            lies, along = u.widened, 4 * c.e
        weigh_keys(u.many, c.e, u.s + done * along_p, apart, along_p, some, lies, along, o, beside, held, u.fades)
        page, held = page + count, BEGUN


@njit(**HELPER)
def begin_carrier(u, columns, masses, o, beside):
    """Write masses and sums of no key: zeros."""
    for g in range(0, 4 * u.wide, 64):
        keep(zeros(1, 1), masses + g, None)
    for i in range(u.many):
        for j in range(0, columns, 16):
            keep(zeros(1, 1), o + i * beside + 4 * j, min(16, columns - j))


@njit(**HELPER)
def add_strand(c, u, head, slot, length, strand, tops, masses, o, beside):
    """Compute the carrier of a strand for queries. The last query is at this slot, and is the last of `length` keys.
    Pages in which no query sees a key are not read."""
    pages, page, at = longs(u.pages, CHUNK // PAGE), slot // PAGE, (length - 1) // PAGE
    chunk, fresh = (length - 1) // CHUNK, True
    chunk -= (chunk - strand) % STRANDS
    lowest = max(length - u.rows - c.behind, 0) // PAGE
    for g in range(0, 4 * u.wide, 64):
        keep(zeros(1, 1) + LOWEST, tops + g, None)
    while chunk >= lowest // (CHUNK // PAGE):
        first = chunk * (CHUNK // PAGE)
        while at >= max(first, lowest):
            if at < first + CHUNK // PAGE:
                pages[at - first] = page
            page, at = max(longs(c.before + 8 * page, 1)[0], 0), at - 1  # a missing page is read as page 0
        for tile in range(0, CHUNK, KEYS_AT_ONCE):
            begins = max(chunk * CHUNK + tile, lowest * PAGE)
            keys = min(chunk * CHUNK + tile + KEYS_AT_ONCE, length) - begins
            if keys > 0:
                add_tile(
                    c,
                    u,
                    head,
                    (begins - chunk * CHUNK) // PAGE,
                    keys,
                    length - u.rows + 1 - begins,
                    fresh,
                    tops,
                    masses,
                    o,
                    beside,
                )
                fresh = False
        chunk -= STRANDS
    if fresh:
        begin_carrier(u, c.e, masses, o, beside)


@njit(**HELPER)
def merge_sums(count, wide, columns, tops, masses, o, beside, more_tops, more_masses, more, step, fades, gains):
    """Merge one carrier into another."""
    for g in range(0, 4 * wide, 64):
        old, new = get(tops + g, None), get(more_tops + g, None)
        top = larger(old, new)
        fade, gain = exp2(old - top), exp2(new - top)
        keep(fade, fades + g, None)
        keep(gain, gains + g, None)
        keep(top, tops + g, None)
        keep(fused(get(masses + g, None), fade, get(more_masses + g, None) * gain), masses + g, None)
    each_fade, each_gain = floats(fades, count), floats(gains, count)
    for i in range(count):
        kept, added, by, more_by = o + i * beside, more + i * step, each_fade[i], each_gain[i]
        for j in range(0, columns, 16):
            lanes = min(16, columns - j)
            keep(fused(get(kept + 4 * j, lanes), by, get(added + 4 * j, lanes) * more_by), kept + 4 * j, lanes)


@njit(**HELPER)
def share_sums(c, head, by_head, count, wide, tops, masses, o, beside, shares):
    """Divide outputs by their masses, and those of sinks; by_head: each output is that of another head from `head` on,
    else all are of one."""
    if c.margin and not by_head:
        share_lines(tops, masses, shares, wide, c.margin + 4 * head)
    else:
        for g in range(0, 4 * wide, 64):
            if c.margin:
                margins = get(c.margin + 4 * head + g, min(16, count - g // 4))
                keep(share_beside(get(tops + g, None), get(masses + g, None), margins), shares + g, None)
            else:
                keep(reciprocal(get(masses + g, None)), shares + g, None)
    each = floats(shares, count)
    for i in range(count):
        at = o + i * beside
        for j in range(0, c.e, 16):
            lanes = min(16, c.e - j)
            keep(get(at + 4 * j, lanes) * each[i], at + 4 * j, lanes)


@njit(**HELPER)
def turn_queries(c, q, across, count, turned, wide):
    """Transpose queries, and multiply them by the scale."""
    turn_in(q, across, count, c.d, turned, QUERIES, (c.d + 15) // 16 * 16)
    scale_lines(turned, c.d, wide, LINE, f4(c.scale))
