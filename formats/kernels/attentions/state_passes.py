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
from formats.kernels.attentions.heads import Layout, check_heads, copy_rows, heads_of, sequences, served
from formats.kernels.attentions.state_lines import (
    ENTER_ALONE,
    ENTER_AND_READ,
    MIN_ITEM_WORK,
    MOST_STATES,
    PASSED_ROWS,
    READ_ALONE,
    ROWS_A_PASS,
    STATE_COLUMNS,
    STATE_RECORD,
    corrections,
    enter_rows,
    pass_rows,
    read_state,
)
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch
from formats.kernels.engine.memory import longs, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.simd.arithmetic import keep
from formats.kernels.simd.vectors import LANES, ask, fetch, zeros

__all__ = ["leave_states", "recurrent"]

__borders__ = (PASSED_ROWS,)


@njit(**HELPER)
def places_of(c, row, band):
    """Return the addresses of a row's numbers for a band: of q, k, decays, v and the result."""
    head, left = band // c.bands, STATE_COLUMNS * (band % c.bands)
    q = c.q + 4 * (row * c.q_row + head // c.q_of * c.q_head)
    k = c.k + 4 * (row * c.k_row + head // c.k_of * c.k_head)
    a = c.a + 4 * (row * c.a_row + head // c.a_of * c.a_head)
    v = c.v + 4 * (row * c.v_row + head // c.v_of * c.v_head + left)
    o = c.o + 4 * (row * c.o_row + head * c.o_head + left)
    return q, k, a, v, o


@njit(**HELPER)
def pass_tile(none, c, state, row, band, lanes, doing):
    """Pass a tile of rows of a band of columns from `row` on; `doing`: ENTER_AND_READ, READ_ALONE or ENTER_ALONE."""
    q, k, a, v, o = places_of(c, row, band)
    if doing == READ_ALONE:
        read_state(none, c, state, q, o, lanes)
    elif doing == ENTER_ALONE:
        enter_rows(none, c, state, k, a, fetch(none, v, 4 * c.v_row, lanes))
    else:
        pass_rows(none, c, state, q, k, a, fetch(none, v, 4 * c.v_row, lanes), o, lanes)


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
def pass_corrected(one, c, state, low, high, band, lanes, doing):
    """Pass rows of a band by the delta rule."""
    for row in range(low, high):
        if (row - low) % PASSED_ROWS == 0:
            ask_chunk(c, row + ROWS_A_PASS, min(row + ROWS_A_PASS + PASSED_ROWS, c.T), band)
        q, k, a, v, o = places_of(c, row, band)
        b = c.b + 4 * (row * c.b_row + band // c.bands // c.b_of * c.b_head)
        added = corrections(one, c, state, k, a, v, b, lanes)
        if doing == ENTER_ALONE:
            enter_rows(one, c, state, k, a, added)
        else:
            pass_rows(one, c, state, q, k, a, added, o, lanes)


@njit(**HELPER)
def pass_tiles(many, one, c, state, low, high, band, lanes, doing):
    """Pass rows of a band: tiles of rows, then single ones. `many` and `one`: tiles of zeros, as wide as the band."""
    row = low
    if c.b and doing != READ_ALONE:
        pass_corrected(one, c, state, low, high, band, lanes, doing)
        row = high
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
        if c.targets:
            target = longs(c.targets, c.T)[high - 1]
            if target:
                store_bands(c, room, target, first, last)
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
    betas: np.ndarray | None = None


def launch_passes(
    passed: Passed,
    heads: int,
    starts: np.ndarray | Layout,
    whole: bool = False,
    held: HeldStates | None = None,
    targets: np.ndarray | None = None,
) -> None:
    """Launch the kernel over all sequences and bands. ValueError for arrays that do not fit."""
    q, k, v, out, decays, betas = passed
    d, e = k.shape[2], v.shape[2]
    if decays is not None and decays.shape[2] not in (1, d):
        raise ValueError(f"decays: {decays.shape[2]} columns, where 1 or {d} are needed")
    if betas is not None and betas.shape[2] != 1:
        raise ValueError(f"betas: {betas.shape[2]} columns, where 1 is needed")
    batch = sequences(starts)
    T, S, serves, lies = int(batch.starts[-1]), len(batch.starts) - 1, list[int](), list[int]()
    for name, view in (("q", q), ("k", k), ("v", v), ("decays", decays), ("betas", betas)):
        serves.append(served(name, view, heads))
        lies += heads_of(name, view, T, heads // serves[-1])
    lies[9:9] = heads_of("out", out, T, heads)  # behind three steps of each of q, k and v, as PLACES has it
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
        record = filled(*lies, a_col, address(batch.starts), *sizes, *z, *map(address, rows))
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


def present(**arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the arrays that are there, by name."""
    return {name: array for name, array in arrays.items() if array is not None}


def recurrent(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    out: np.ndarray,
    decays: np.ndarray | None = None,
    whole: bool = False,
    held: HeldStates | None = None,
    betas: np.ndarray | None = None,
) -> np.ndarray:
    """out (T, h, e): row t is the sum over the rows s of its sequence up to t of (q[t] · k[s]) v[s]; of all rows of its
    sequence if `whole`. Decays (T, ·, 1 or d) multiply what rows before theirs have added, in all columns of k or each
    in its own. `held`: the states that sequences begin with. Betas (T, ·, 1), the delta rule: a row adds its beta times
    the difference of its value and what its key reads of the decayed state, in place of its value.

    q, k (T, ·, d) and v (T, ·, e) are views with any steps between rows and heads, each of as many heads as out or of a
    divisor; starts (S + 1) are the rows at which sequences begin, and T. ValueError for arrays that do not fit."""
    check_heads(out, q=q, k=k, v=v, **present(decays=decays, betas=betas))
    heads, e = out.shape[1:]
    for name, width, wanted in (("k", k.shape[2], q.shape[2]), ("out", e, v.shape[2])):
        if width != wanted:
            raise ValueError(f"{name}: {width} columns, where {wanted} are needed")
    launch_passes(Passed(q, k, v, out, decays, betas), heads, starts, whole, held)
    return out


def leave_states(
    k: np.ndarray,
    v: np.ndarray,
    starts: np.ndarray | Layout,
    held: HeldStates,
    targets: np.ndarray,
    decays: np.ndarray | None = None,
    betas: np.ndarray | None = None,
) -> np.ndarray:
    """Write states (states, h, d · e) behind rows of k and v, which go on from those that `held` names: where
    targets[t] (T) is not 0, that state takes what is behind row t. Operands are those of `recurrent`. ValueError for
    arrays that do not fit, IndexError for a state outside."""
    states, sources = held
    writable("states", states)
    separate(states, k=k, v=v, sources=sources, targets=targets, **present(decays=decays, betas=betas))
    if states.ndim != 3 or k.ndim != 3 or v.ndim != 3:
        raise ValueError(f"states, k and v: expected three axes, got {states.shape}, {k.shape} and {v.shape}")
    launch_passes(Passed(None, k, v, None, decays, betas), states.shape[1], starts, False, held, targets)
    return states
