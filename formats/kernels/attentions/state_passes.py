"""Linear attention as a recurrence (Katharopoulos et al. 2020, eq. 16 to 20): a head keeps a state of d × e numbers, to
which each row adds its key times its value, and which its query reads; decays multiply the state first.

An item is bands of columns of heads of a sequence. A tile of rows passes each line of the state once, in registers: a
line is multiplied by the decay of a row, gets its key times its value, and is added to the row's result, one row after
another. So the bits of a row depend on the rows before it in its sequence alone, whatever tile it is in; no logarithm
of a decay is taken, and a decay of 0 begins anew. New rows of a sequence go on from its state, and leave another."""

from typing import NamedTuple

import numpy as np

from formats.core.arrays import as_contiguous, places, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import PLACES, Layout, check_heads, copy_rows, heads_of, sequences, served
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

__all__ = ["leave_states", "recurrent"]

# a: decays of rows, 0 if there are none; a_col: numbers between those of two columns; bands: those of a head; share:
# those of an item; groups: items of a sequence; whole: rows read the state behind the last row; z: states of sequences,
# 0 if all begin empty; sources: of each row the state before the rows; targets: of each row the state that takes what
# is behind it, or 0; the rest as in heads.py
STATE_RECORD = np.dtype(
    [
        *PLACES,
        *words("a a_row a_head a_col starts T S h d e room apart q_of k_of v_of a_of bands share groups whole"),
        *words("z z_row z_head sources targets"),
    ]
)
PASSED_ROWS = 4 if MANY_REGISTERS else 2
STATE_COLUMNS = 2 * LANES  # columns of a state that are passed together
ENTER_AND_READ, READ_ALONE, ENTER_ALONE = range(
    3
)  # rows enter the state and are read, or are read alone, or enter alone
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
    decays; q: None leaves the sums as they are."""

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
            key, query = number(k, k_row, r), None if asks == types.none else number(q, q_row, r)
            for v in range(sums.across):
                at = r * sums.across + v
                state[v] = multiply_add(builder, key, builder.extract_value(rows, at), state[v])
                if query is not None:
                    new.append(multiply_add(builder, query, state[v], builder.extract_value(tile, at)))
        for v in range(sums.across):
            put(builder, state[v], line, 64 * v)
        return closed(builder, new) if new else tile

    asks = q
    return sums(sums, values, *[types.int64] * 3, q, types.int64, a, types.int64), code


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
def enter_rows(none, c, state, k, a, v, lanes):
    """Pass a tile of rows through the state."""
    values = fetch(none, v, 4 * c.v_row, lanes)
    for i in range(c.d):
        line = state + 4 * STATE_COLUMNS * i
        if c.a:
            pass_line(none, values, line, k + 4 * i, 4 * c.k_row, None, 0, a + 4 * i * c.a_col, 4 * c.a_row)
        else:
            pass_line(none, values, line, k + 4 * i, 4 * c.k_row, None, 0, None, 0)


@njit(**HELPER)
def read_state(none, c, state, q, o, lanes):
    """Store what a tile of queries reads of the state as it is."""
    sums = none
    for i in range(c.d):
        sums = add_outer(sums, q + 4 * i, 4 * c.q_row, state + 4 * STATE_COLUMNS * i, None)
    store_tile(sums, o, 4 * c.o_row, lanes)


@njit(**HELPER)
def pass_tile(none, c, state, row, band, lanes, doing):
    """Pass a tile of rows of a band of columns from `row` on; `doing`: ENTER_AND_READ, READ_ALONE or ENTER_ALONE."""
    head, left = band // c.bands, STATE_COLUMNS * (band % c.bands)
    q = c.q + 4 * (row * c.q_row + head // c.q_of * c.q_head)
    k = c.k + 4 * (row * c.k_row + head // c.k_of * c.k_head)
    a = c.a + 4 * (row * c.a_row + head // c.a_of * c.a_head)
    v = c.v + 4 * (row * c.v_row + head // c.v_of * c.v_head + left)
    o = c.o + 4 * (row * c.o_row + head * c.o_head + left)
    if doing == READ_ALONE:
        read_state(none, c, state, q, o, lanes)
    elif doing == ENTER_ALONE:
        enter_rows(none, c, state, k, a, v, lanes)
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
        k = c.k + 4 * (head // c.k_of * c.k_head)
        ask_rows(k + 4 * low * c.k_row, 4 * c.k_row, high - low, 4 * c.d)
        if c.q:
            q = c.q + 4 * (head // c.q_of * c.q_head)
            ask_rows(q + 4 * low * c.q_row, 4 * c.q_row, high - low, 4 * c.d)
    ask_rows(v + 4 * low * c.v_row, 4 * c.v_row, high - low, 4 * STATE_COLUMNS)
    if c.o:
        ask_rows(o + 4 * low * c.o_row, 4 * c.o_row, high - low, 4 * STATE_COLUMNS)


@njit(**HELPER)
def pass_tiles(many, one, c, state, low, high, band, lanes, doing):
    """Pass rows of a band: tiles of rows, then single ones. `many` and `one`: tiles of zeros, as wide as the band."""
    row = low
    while row + PASSED_ROWS <= high:
        ask_chunk(c, row + ROWS_A_PASS, min(row + ROWS_A_PASS + PASSED_ROWS, c.T), band)
        pass_tile(many, c, state, row, band, lanes, doing)
        row += PASSED_ROWS
    while row < high:
        pass_tile(one, c, state, row, band, lanes, doing)
        row += 1


@njit(**HELPER)
def band_columns(c, band):
    """Return the columns of a band."""
    return min(STATE_COLUMNS, c.e - STATE_COLUMNS * (band % c.bands))


@njit(**HELPER)
def pass_bands(c, room, low, high, first, last, doing):
    """Pass rows through the bands of an item."""
    for band in range(first, last):
        state, columns = room + 4 * STATE_COLUMNS * c.d * (band - first), band_columns(c, band)
        if columns > LANES:
            pass_tiles(zeros(PASSED_ROWS, 2), zeros(1, 2), c, state, low, high, band, columns - LANES, doing)
        else:
            pass_tiles(zeros(PASSED_ROWS, 1), zeros(1, 1), c, state, low, high, band, columns, doing)


@njit(**HELPER)
def held_band(c, state, band):
    """Return the address of a band's columns in a held state."""
    return c.z + 4 * (state * c.z_row + band // c.bands * c.z_head + STATE_COLUMNS * (band % c.bands))


@njit(**HELPER)
def load_bands(c, room, source, first, last):
    """Take the bands of an item from a held state."""
    for band in range(first, last):
        state, place = room + 4 * STATE_COLUMNS * c.d * (band - first), held_band(c, source, band)
        copy_rows(place, 4 * c.e, c.d, band_columns(c, band), state, 4 * STATE_COLUMNS)


@njit(**HELPER)
def store_bands(c, room, target, first, last):
    """Leave the bands of an item in a held state."""
    for band in range(first, last):
        state, place = room + 4 * STATE_COLUMNS * c.d * (band - first), held_band(c, target, band)
        copy_rows(state, 4 * STATE_COLUMNS, c.d, band_columns(c, band), place, 4 * c.e)


@njit(**HELPER)
def chunk_end(c, low, end):
    """Return the end of rows from `low` on that bands pass in turn: none but the last of them leaves its state."""
    high = min(low + ROWS_A_PASS, end)
    if c.targets:
        targets = longs(c.targets, c.T)
        for row in range(low, high):
            if targets[row]:
                return row + 1
    return high


@njit(**HELPER)
def pass_chunks(c, room, start, end, first, last, doing):
    """Pass the rows of a sequence through the bands of an item, chunk by chunk: rows are read as they lie in memory."""
    low = start
    while low < end:
        high = chunk_end(c, low, end)
        pass_bands(c, room, low, high, first, last, doing)
        if c.targets and longs(c.targets, c.T)[high - 1]:
            store_bands(c, room, longs(c.targets, c.T)[high - 1], first, last)
        low = high


@Kernel
def pass_item(item, worker, arguments):
    """Pass a sequence through the states of some bands of its heads, empty ones or those of its rows before."""
    c = record(arguments, STATE_RECORD)
    starts, room = longs(c.starts, c.S + 1), c.room + worker * c.apart
    sequence, group = item // c.groups, item % c.groups
    start, end = starts[sequence], starts[sequence + 1]
    first, last = group * c.share, min((group + 1) * c.share, c.h * c.bands)
    for line in range(room, room + 4 * STATE_COLUMNS * c.d * c.share, 64):
        keep(zeros(1, 1), line, None)
    if c.z and start < end and longs(c.sources, c.T)[start]:
        load_bands(c, room, longs(c.sources, c.T)[start], first, last)
    pass_chunks(c, room, start, end, first, last, ENTER_AND_READ if c.q else ENTER_ALONE)
    if c.whole:
        pass_chunks(c, room, start, end, first, last, READ_ALONE)


def share_bands(bands: int, width: int, work: int, sequences: int, workers: int) -> int:
    """Return the bands of an item: those that fit a cache with their states, `width` numbers each; fewer where few
    sequences, whose multiply-adds are `work`, leave workers without one."""
    wanted = min(-(-workers // sequences), work // MIN_ITEM_WORK)
    groups = max(wanted, -(-bands * width // MOST_STATES), 1)
    return -(-bands // groups)


HeldStates = tuple[np.ndarray, np.ndarray]  # states (states, heads, d · e); of each row that before these rows, 0: none


class Passed(NamedTuple):
    """Arrays by their names in a record: q and out are None where rows only enter the states."""

    q: np.ndarray | None
    k: np.ndarray
    v: np.ndarray
    out: np.ndarray | None
    decays: np.ndarray | None = None


def launch_passes(
    passed: Passed,
    heads: int,
    starts: np.ndarray | Layout,
    whole: bool = False,
    held: HeldStates | None = None,
    targets: np.ndarray | None = None,
) -> None:
    """Launch the kernel over all sequences and bands. ValueError for arrays that do not fit."""
    q, k, v, out, decays = passed
    d, e = k.shape[2], v.shape[2]
    if decays is not None and decays.shape[2] not in (1, d):
        raise ValueError(f"decays: {decays.shape[2]} columns, where 1 or {d} are needed")
    batch = sequences(starts)
    T, S, serves, lies = int(batch.starts[-1]), len(batch.starts) - 1, list[int](), list[int]()
    for name, view in (("q", q), ("k", k), ("v", v), ("decays", decays)):
        serves.append(served(name, view, heads))
        lies += heads_of(name, view, T, heads // serves[-1])
    *lies, a, a_row, a_head = lies
    lies += heads_of("out", out, T, heads)
    z, *rows = locate_held(held, targets, T, (heads, d * e))
    a_col = int(decays is not None and decays.shape[2] > 1)
    bands, workers = -(-e // STATE_COLUMNS), threads()
    if not T or not S:
        return
    share = share_bands(heads * bands, STATE_COLUMNS * d, T * heads * d * e, S, workers)
    groups = -(-heads * bands // share)
    with POOL.lock:
        room = ROOM.reserve(4 * STATE_COLUMNS * d * share, workers)
        sizes = T, S, heads, d, e, *room, *serves, bands, share, groups, whole
        record = filled(*lies, a, a_row, a_head, a_col, address(batch.starts), *sizes, *z, *map(address, rows))
        launch(workers, (pass_item, record, S * groups))


def locate_held(
    held: HeldStates | None, targets: np.ndarray | None, rows: int, shape: tuple[int, int]
) -> tuple[tuple[int, int, int], np.ndarray | None, np.ndarray | None]:
    """Return the address and steps of held states of (heads, numbers), and the columns of rows that name them.
    ValueError for states of another shape, IndexError for a state outside."""
    if held is None:
        return (0, 0, 0), None, None
    states, sources = held
    if states.shape[1:] != shape:
        raise ValueError(f"states: {states.shape[1:]} is not {shape}: heads, and numbers of each")
    columns = dict(sources=sources) | ({} if targets is None else dict(targets=targets))
    for name, column in columns.items():
        places(name, column, rows, len(states))
    named = {name: as_contiguous(name, column, np.int64) for name, column in columns.items()}
    return heads_of("states", states, len(states), shape[0]), named["sources"], named.get("targets")


def recurrent(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    decays: np.ndarray | None = None,
    whole: bool = False,
    held: HeldStates | None = None,
) -> np.ndarray:
    """out (T, h, e): row t is the sum over the rows s of its sequence up to t of (q[t] · k[s]) v[s]; of all rows of its
    sequence if `whole`. Decays (T, ·, 1 or d) multiply what rows before theirs have added, in all columns of k or each
    in its own. `held`: the states that sequences begin with.

    q, k (T, ·, d) and v (T, ·, e) are views with any steps between rows and heads, each of as many heads as out or of a
    divisor; starts (S + 1) are the rows at which sequences begin, and T. ValueError for arrays that do not fit."""
    check_heads(out, q=q, k=k, v=v, **({} if decays is None else {"decays": decays}))
    heads, e = out.shape[1:]
    for name, width, wanted in (("k", k.shape[2], q.shape[2]), ("out", e, v.shape[2])):
        if width != wanted:
            raise ValueError(f"{name}: {width} columns, where {wanted} are needed")
    launch_passes(Passed(q, k, v, out, decays), heads, starts, whole, held)
    return out


def leave_states(
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    held: HeldStates,
    targets: np.ndarray,
    decays: np.ndarray | None = None,
) -> np.ndarray:
    """Write states (states, h, d · e) behind rows of k and v, which go on from those that `held` names: where
    targets[t] (T) is not 0, that state takes what is behind row t. Operands are those of `recurrent`. ValueError for
    arrays that do not fit, IndexError for a state outside."""
    states, sources = held
    writable("states", states)
    separate(states, k=k, v=v, sources=sources, targets=targets, **({} if decays is None else {"decays": decays}))
    if states.ndim != 3 or k.ndim != 3 or v.ndim != 3:
        raise ValueError(f"states, k and v: expected three axes, got {states.shape}, {k.shape} and {v.shape}")
    launch_passes(Passed(None, k, v, None, decays), states.shape[1], starts, False, held, targets)
    return states
