"""Lines of the states of linear attention: what one or a few rows do to columns of a state that are passed together.

Without corrections, a line is multiplied by the decay of a row, gets its key times its value, and is added to the row's
result. By the delta rule (Schlag et al. 2021, eq. 24; Yang et al. 2025, eq. 10, gated) a row adds the difference of its
value and what its key reads of the decayed state, times a number of the row: lines are read before they are passed."""

import numpy as np

from formats.kernels.attentions.heads import PLACES
from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.launch import words
from formats.kernels.engine.native import Context, Intrinsic, Signature, Typing, Values, intrinsic, ir, njit, types
from formats.kernels.simd.vectors import (
    FLOAT,
    LANES,
    MANY_REGISTERS,
    Vectors,
    add_outer,
    closed,
    fetch,
    load_vector,
    multiply_add,
    pointer_at,
    put,
    splat,
    store_tile,
)

# a: decays of rows, 0 if there are none; a_col: numbers between those of two columns; bands: those of a head; share:
# those of an item; groups: items of a sequence; whole: rows read the state behind the last row; z: states of sequences,
# 0 if all begin empty; sources: of each row the state before the rows; targets: of each row the state that takes what
# is behind it, or 0; b: what corrections of rows are multiplied by, 0 if there are none; the rest as in heads.py
STATE_RECORD = np.dtype(
    [
        *PLACES,
        *words("a a_row a_head b b_row b_head a_col starts T S h d e room apart q_of k_of v_of a_of b_of"),
        *words("bands share groups whole z z_row z_head sources targets"),
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


def load_number(builder: ir.IRBuilder, at: ir.Value) -> ir.Value:
    """Load a number into all lanes."""
    return splat(builder, builder.load(pointer_at(builder, at, 0, FLOAT)))


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
        tile, rows, line, k, k_row, query_at, q_row, decay, a_row = operands

        def number(start: ir.Value, apart: ir.Value, r: int) -> ir.Value:
            """Load the number of a row into all lanes."""
            return load_number(builder, builder.add(start, builder.mul(apart, apart.type(r))))

        state, new = [load_vector(builder, line, 64 * v) for v in range(sums.across)], list[ir.Value]()
        for r in range(sums.rows):
            if a != types.none:
                factor = number(decay, a_row, r)
                state = [builder.fmul(factor, vector) for vector in state]
            key, query = number(k, k_row, r), None if q == types.none else number(query_at, q_row, r)
            for v in range(sums.across):
                at = r * sums.across + v
                state[v] = multiply_add(builder, key, builder.extract_value(rows, at), state[v])
                if query is not None:
                    new.append(multiply_add(builder, query, state[v], builder.extract_value(tile, at)))
        for v in range(sums.across):
            put(builder, state[v], line, 64 * v)
        return closed(builder, new) if new else tile

    return sums(sums, values, *[types.int64] * 3, q, types.int64, a, types.int64), code


@njit(**HELPER)
def pass_rows(none, c, state, q, k, a, values, o, lanes):
    """Pass a tile of rows that add these values through the state, and store what its queries read of it."""
    sums = none
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
def enter_rows(none, c, state, k, a, values):
    """Pass a tile of rows that add these values through the state."""
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


# ---- the delta rule


@intrinsic
def recall_line(typing: Typing, sums: Vectors, line: types.Type, k: types.Type, a: types.Type) -> Intrinsic:
    """Return sums of one row + the number at `k` times the line at `line`, which is multiplied by the decay at `a`, if
    not None."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, operands: Values) -> ir.Value:
        tile, line, key, decay = operands
        state = [load_vector(builder, line, 64 * v) for v in range(sums.across)]
        if a != types.none:
            factor = load_number(builder, decay)
            state = [builder.fmul(factor, vector) for vector in state]
        many = load_number(builder, key)
        new = [multiply_add(builder, many, x, builder.extract_value(tile, v)) for v, x in enumerate(state)]
        return closed(builder, new)

    return sums(sums, types.int64, types.int64, a), code


@intrinsic
def correct(typing: Typing, values: Vectors, even: Vectors, odd: Vectors, b: types.Type) -> Intrinsic:
    """Return the number at b times (values - (even + odd))."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, operands: Values) -> ir.Value:
        *tiles, at = operands
        parts = [[builder.extract_value(tile, v) for v in range(values.across)] for tile in tiles]
        off = [builder.fsub(x, builder.fadd(y, z)) for x, y, z in zip(*parts, strict=True)]
        return closed(builder, [builder.fmul(load_number(builder, at), x) for x in off])

    return values(values, even, odd, types.int64), code


@njit(**HELPER)
def recall_key(none, c, state, i, k, a, sums):
    """Return sums + what the key of a row reads of line i of the decayed state."""
    line = state + 4 * STATE_COLUMNS * i
    return recall_line(sums, line, k + 4 * i, a + 4 * i * c.a_col) if c.a else recall_line(sums, line, k + 4 * i, None)


@njit(**HELPER)
def corrections(none, c, state, k, a, v, b, lanes):
    """Return what a row adds by the delta rule, with two sums in turn: one would wait for itself."""
    even, odd = none, none
    for i in range(0, c.d - 1, 2):
        even = recall_key(none, c, state, i, k, a, even)
        odd = recall_key(none, c, state, i + 1, k, a, odd)
    if c.d % 2:
        even = recall_key(none, c, state, c.d - 1, k, a, even)
    return correct(fetch(none, v, 4 * c.v_row, lanes), even, odd, b)
