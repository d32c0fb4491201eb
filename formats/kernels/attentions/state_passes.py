"""Linear attention as a recurrence (Katharopoulos et al. 2020, eq. 16 to 20): a head keeps a state of d × e numbers, to
which each row adds its key times its value, and which its query reads; decays multiply the state first.

An item is bands of columns of heads of a sequence. A tile of rows passes each line of the state once, in registers: a
line is multiplied by the decay of a row, gets its key times its value, and is added to the row's result, one row after
another. So the bits of a row depend on the rows before it in its sequence alone, whatever tile it is in; no logarithm
of a decay is taken, and a decay of 0 begins anew."""

import numpy as np

from formats.host.threads import threads
from formats.kernels.attentions.heads import PLACES, Layout, check_heads, heads_of, sequences, served
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import longs, record
from formats.kernels.engine.native import Context, Intrinsic, Signature, Typing, Values, intrinsic, ir, njit, types
from formats.kernels.engine.pool import POOL
from formats.kernels.simd.arithmetic import keep
from formats.kernels.simd.vectors import (
    FLOAT,
    LANES,
    MANY_REGISTERS,
    Vectors,
    add_outer,
    ask,
    closed,
    fetch,
    load_vector,
    multiply_add,
    pointer_at,
    put,
    splat,
    store_tile,
    zeros,
)

__all__ = ["recurrent"]

# a: decays of rows, 0 if there are none; a_col: numbers between those of two columns; bands: those of a head; share:
# those of an item; groups: items of a sequence; whole: rows read the state behind the last row; the rest as in heads.py
STATE_RECORD = np.dtype(
    [*PLACES, *words("a a_row a_head a_col starts T S h d e room apart q_of k_of v_of a_of bands share groups whole")]
)
PASSED_ROWS = 4 if MANY_REGISTERS else 2
STATE_COLUMNS = 2 * LANES  # columns of a state that are passed together
ROWS_A_PASS = 4 * PASSED_ROWS  # rows that pass all bands of an item before the next rows do
MOST_STATES = 1 << 17  # numbers of the states of an item: more would fill a cache
MIN_ITEM_WORK = 1 << 18  # multiply-adds that are worth an item
__borders__ = (PASSED_ROWS,)


@intrinsic
def pass_line(
    typing: Typing,
    sums: Vectors,
    values: Vectors,
    line: types.Type,
    k: types.Type,
    k_row: types.Type,
    q: types.Type,
    q_row: types.Type,
    a: types.Type,
    a_row: types.Type,
) -> Intrinsic:
    """Return sums + (a number of q for each row) times (the line of the state at `line` as it is behind that row),
    which is stored behind the last row; k, q, a: addresses of one number a row, steps in bytes; a: None for no
    decays."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, operands: Values) -> ir.Value:
        tile, rows, line, k, k_row, q, q_row, decay, a_row = operands

        def number(start: ir.Value, apart: ir.Value, r: int) -> ir.Value:
            """Load the number of a row into all lanes."""
            at = builder.add(start, builder.mul(apart, apart.type(r)))
            return splat(builder, builder.load(pointer_at(builder, at, 0, FLOAT)))

        state, new = [load_vector(builder, line, 64 * v) for v in range(sums.across)], list[ir.Value]()
        for r in range(sums.rows):
            if a != types.none:
                factor = number(decay, a_row, r)
                state = [builder.fmul(factor, vector) for vector in state]
            key, query = number(k, k_row, r), number(q, q_row, r)
            for v in range(sums.across):
                at = r * sums.across + v
                state[v] = multiply_add(builder, key, builder.extract_value(rows, at), state[v])
                new.append(multiply_add(builder, query, state[v], builder.extract_value(tile, at)))
        for v in range(sums.across):
            put(builder, state[v], line, 64 * v)
        return closed(builder, new)

    return sums(sums, values, *[types.int64] * 5, a, types.int64), code


@njit(**HELPER)
def pass_rows(none, c, state, q, k, a, v, o, lanes):
    """Pass a tile of rows through the state, and store what its queries read of it."""
    sums, values = none, fetch(none, v, 4 * c.v_row, lanes)
    for i in range(c.d):
        line = state + 4 * STATE_COLUMNS * i
        if c.a:
            sums = pass_line(
                sums, values, line, k + 4 * i, 4 * c.k_row, q + 4 * i, 4 * c.q_row, a + 4 * i * c.a_col, 4 * c.a_row
            )
        else:
            sums = pass_line(sums, values, line, k + 4 * i, 4 * c.k_row, q + 4 * i, 4 * c.q_row, None, 0)
    store_tile(sums, o, 4 * c.o_row, lanes)


@njit(**HELPER)
def read_state(none, c, state, q, o, lanes):
    """Store what a tile of queries reads of the state as it is."""
    sums = none
    for i in range(c.d):
        sums = add_outer(sums, q + 4 * i, 4 * c.q_row, state + 4 * STATE_COLUMNS * i, None)
    store_tile(sums, o, 4 * c.o_row, lanes)


@njit(**HELPER)
def pass_tile(none, c, state, row, band, lanes, again):
    """Pass a tile of rows of a band of columns from `row` on; `again`: their queries read the state as it is."""
    head, left = band // c.bands, STATE_COLUMNS * (band % c.bands)
    q = c.q + 4 * (row * c.q_row + head // c.q_of * c.q_head)
    k = c.k + 4 * (row * c.k_row + head // c.k_of * c.k_head)
    a = c.a + 4 * (row * c.a_row + head // c.a_of * c.a_head)
    v = c.v + 4 * (row * c.v_row + head // c.v_of * c.v_head + left)
    o = c.o + 4 * (row * c.o_row + head * c.o_head + left)
    if again:
        read_state(none, c, state, q, o, lanes)
    else:
        pass_rows(none, c, state, q, k, a, v, o, lanes)


@njit(**HELPER)
def ask_rows(start, step, rows, size):
    """Prefetch rows of so many bytes each: rows of one head are too far apart to be foreseen."""
    for row in range(rows):
        for line in range(0, size, 64):
            ask(zeros(1, 1), start + row * step, line)


@njit(**HELPER)
def ask_chunk(c, low, high, band):
    """Prefetch what a band of some rows reads and writes."""
    head, left = band // c.bands, STATE_COLUMNS * (band % c.bands)
    v, o = c.v + 4 * (head // c.v_of * c.v_head + left), c.o + 4 * (head * c.o_head + left)
    if left == 0:
        q, k = c.q + 4 * (head // c.q_of * c.q_head), c.k + 4 * (head // c.k_of * c.k_head)
        ask_rows(q + 4 * low * c.q_row, 4 * c.q_row, high - low, 4 * c.d)
        ask_rows(k + 4 * low * c.k_row, 4 * c.k_row, high - low, 4 * c.d)
    ask_rows(v + 4 * low * c.v_row, 4 * c.v_row, high - low, 4 * STATE_COLUMNS)
    ask_rows(o + 4 * low * c.o_row, 4 * c.o_row, high - low, 4 * STATE_COLUMNS)


@njit(**HELPER)
def pass_tiles(many, one, c, state, low, high, band, lanes, again):
    """Pass rows of a band: tiles of rows, then single ones. `many` and `one`: tiles of zeros, as wide as the band."""
    row = low
    while row + PASSED_ROWS <= high:
        ask_chunk(c, row + ROWS_A_PASS, min(row + ROWS_A_PASS + PASSED_ROWS, c.T), band)
        pass_tile(many, c, state, row, band, lanes, again)
        row += PASSED_ROWS
    while row < high:
        pass_tile(one, c, state, row, band, lanes, again)
        row += 1


@njit(**HELPER)
def pass_chunks(c, room, start, end, first, last, again):
    """Pass the rows of a sequence through the bands of an item, chunk by chunk: rows are read as they lie in memory."""
    for low in range(start, end, ROWS_A_PASS):
        high = min(low + ROWS_A_PASS, end)
        for band in range(first, last):
            state = room + 4 * STATE_COLUMNS * c.d * (band - first)
            columns = min(STATE_COLUMNS, c.e - STATE_COLUMNS * (band % c.bands))
            if columns > LANES:
                pass_tiles(zeros(PASSED_ROWS, 2), zeros(1, 2), c, state, low, high, band, columns - LANES, again)
            else:
                pass_tiles(zeros(PASSED_ROWS, 1), zeros(1, 1), c, state, low, high, band, columns, again)


@Kernel
def pass_bands(item, worker, arguments):
    """Pass a sequence through empty states of some bands of its heads."""
    c = record(arguments, STATE_RECORD)
    starts, room, sequence, group = (
        longs(c.starts, c.S + 1),
        c.room + worker * c.apart,
        item // c.groups,
        item % c.groups,
    )
    first, last = group * c.share, min((group + 1) * c.share, c.h * c.bands)
    for line in range(room, room + 4 * STATE_COLUMNS * c.d * c.share, 64):
        keep(zeros(1, 1), line, None)
    pass_chunks(c, room, starts[sequence], starts[sequence + 1], first, last, 0)
    if c.whole:
        pass_chunks(c, room, starts[sequence], starts[sequence + 1], first, last, 1)


def share_bands(bands: int, width: int, work: int, sequences: int, workers: int) -> int:
    """Return the bands of an item: those that fit a cache with their states, `width` numbers each; fewer where few
    sequences, whose multiply-adds are `work`, leave workers without one."""
    wanted = min(-(-workers // sequences), work // MIN_ITEM_WORK)
    groups = max(wanted, -(-bands * width // MOST_STATES), 1)
    return -(-bands // groups)


def recurrent(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    decays: np.ndarray | None = None,
    whole: bool = False,
) -> np.ndarray:
    """out (T, h, e): row t is the sum over the rows s of its sequence up to t of (q[t] · k[s]) v[s]; of all rows of its
    sequence if `whole`. Decays (T, ·, 1 or d) multiply what rows before theirs have added, in all columns of k or each
    in its own.

    q, k (T, ·, d) and v (T, ·, e) are views with any steps between rows and heads, each of as many heads as out or of a
    divisor; starts (S + 1) are the rows at which sequences begin, and T. ValueError for arrays that do not fit."""
    check_heads(out, q=q, k=k, v=v, **({} if decays is None else {"decays": decays}))
    (heads, e), d = out.shape[1:], q.shape[2]
    for name, width, wanted in (("k", k.shape[2], d), ("out", e, v.shape[2])):
        if width != wanted:
            raise ValueError(f"{name}: {width} columns, where {wanted} are needed")
    if decays is not None and decays.shape[2] not in (1, d):
        raise ValueError(f"decays: {decays.shape[2]} columns, where 1 or {d} are needed")
    batch = sequences(starts)
    T, S, serves, places = int(batch.starts[-1]), len(batch.starts) - 1, list[int](), list[int]()
    for name, view in (("q", q), ("k", k), ("v", v), ("decays", decays)):
        serves.append(served(name, view, heads))
        places += heads_of(name, view, T, heads // serves[-1])
    *places, a, a_row, a_head = places
    places += heads_of("out", out, T, heads)
    a_col = int(decays is not None and decays.shape[2] > 1)
    bands, workers = -(-e // STATE_COLUMNS), threads()
    if not T or not S:
        return out
    share = share_bands(heads * bands, STATE_COLUMNS * d, T * heads * d * e, S, workers)
    groups = -(-heads * bands // share)
    with POOL.lock:
        room = ROOM.reserve(4 * STATE_COLUMNS * d * share, workers)
        sizes = T, S, heads, d, e, *room, *serves, bands, share, groups, whole
        record = filled(*places, a, a_row, a_head, a_col, address(batch.starts), *sizes)
        launch(workers, (pass_bands, record, S * groups))
    return out
