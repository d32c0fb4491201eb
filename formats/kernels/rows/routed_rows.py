"""Rows in the order of the experts that they are routed to, and back. Each row names a few of many matrices by nonzero
gate numbers; the result is the sum of its products with them, times those numbers."""

import numpy as np

from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import words
from formats.kernels.engine.memory import floats, longs, record
from formats.kernels.engine.native import njit
from formats.kernels.rows.following import combine
from formats.kernels.simd.arithmetic import get, keep
from formats.kernels.simd.maths import ZERO
from formats.kernels.simd.vectors import zeros

# gate (T, E): each row has at most `most` numbers that are not zero. which, slots (T, most): the matrices that a row
# names, then NONE, and the places of its copies; order: the row of each place; starts, fills (E + 1): the first place
# of each matrix; tiles: their number, then (matrix, first place, end) of each, `rows` places at most; ordered: rows of
# x in places; parts (places, q): their products with the matrices; chunk: rows of x that an item copies, or sums
ROUTED = np.dtype(
    words(
        "x along T n gate gate_row E most rows which slots order starts fills tiles ordered parts q "
        "out step residual across chunk"
    )
)
NONE, TOO_MANY = -1, -2
TILE_WORDS = 3


def count_tiles(places: int, matrices: int, rows: int) -> int:
    """Return the largest number of tiles of `rows` rows: each named matrix has one tile that is not full."""
    return places // rows + min(matrices, places)


def count_words(T: int, most: int, matrices: int, rows: int) -> list[int]:
    """Return the words of which, slots, order, starts, fills, tiles."""
    places = T * most
    return [places, places, places, matrices + 1, matrices, 1 + TILE_WORDS * count_tiles(places, matrices, rows)]


@njit(**HELPER)
def name_matrices(c, row):
    """Record the matrices that a row names. A row that names too many is marked, and has no place."""
    gate, which, found = floats(c.gate + 4 * row * c.gate_row, c.E), longs(c.which + 8 * row * c.most, c.most), 0
    for e in range(c.E):
        if gate[e] != 0:
            if found < c.most:
                which[found] = e
            found += 1
    for i in range(found if found <= c.most else 0, c.most):
        which[i] = NONE
    if found > c.most:
        which[0] = TOO_MANY


@njit(**HELPER)
def lay_tiles(c, starts):
    """Write the tiles of each matrix, in order."""
    count = 0
    for e in range(c.E):
        for low in range(starts[e], starts[e + 1], c.rows):
            tile = longs(c.tiles + 8 * (1 + TILE_WORDS * count), TILE_WORDS)
            tile[0], tile[1], tile[2] = e, low, min(low + c.rows, starts[e + 1])
            count += 1
    longs(c.tiles, 1)[0] = count


@Kernel
def place_rows(item, worker, arguments):
    """Assign places, by matrix and then by row, and write their tiles."""
    c = record(arguments, ROUTED)
    places = c.T * c.most
    starts, fills, which = longs(c.starts, c.E + 1), longs(c.fills, c.E), longs(c.which, places)
    slots, order = longs(c.slots, places), longs(c.order, places)
    for e in range(c.E + 1):
        starts[e] = 0
    for row in range(c.T):
        name_matrices(c, row)
    for i in range(places):
        if which[i] >= 0:
            starts[which[i] + 1] += 1
    for e in range(c.E):
        fills[e] = starts[e]
        starts[e + 1] += starts[e]
    for i in range(places):
        e = which[i]
        if e < 0:
            continue
        slots[i] = fills[e]
        order[fills[e]] = i // c.most
        fills[e] += 1
    lay_tiles(c, starts)


@Kernel
def order_rows(item, worker, arguments):
    """Copy some rows to their places."""
    c = record(arguments, ROUTED)
    which, slots = longs(c.which, c.T * c.most), longs(c.slots, c.T * c.most)
    for row in range(item * c.chunk, min((item + 1) * c.chunk, c.T)):
        for i in range(row * c.most, (row + 1) * c.most):
            if which[i] >= 0:
                combine(c.x + 4 * row * c.along, c.ordered + 4 * slots[i] * c.n, c.n, 0, 0, 0)


@njit(forceinline=True, **HELPER)
def sum_vector(c, row, at, lanes):
    """Sum 16 columns of a row: the products with its matrices in ascending order, and the residual."""
    which, slots = longs(c.which + 8 * row * c.most, c.most), longs(c.slots + 8 * row * c.most, c.most)
    gate, total = floats(c.gate + 4 * row * c.gate_row, c.E), zeros(1, 1)
    for i in range(c.most):
        if which[i] < 0:
            break
        total = total + get(c.parts + 4 * (slots[i] * c.q + at), lanes) * gate[which[i]]
    if c.residual:
        total = total + get(c.residual + 4 * (row * c.across + at), lanes)
    if which[0] == TOO_MANY:
        total = zeros(1, 1) / ZERO
    keep(total, c.out + 4 * (row * c.step + at), lanes)


@Kernel
def sum_parts(item, worker, arguments):
    """Compute some rows of the result; a row that names too many matrices becomes NaN."""
    c = record(arguments, ROUTED)
    full = c.q // 16 * 16
    for row in range(item * c.chunk, min((item + 1) * c.chunk, c.T)):
        for at in range(0, full, 16):
            sum_vector(c, row, at, None)
        if full < c.q:
            sum_vector(c, row, full, c.q - full)
