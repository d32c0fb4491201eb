"""Tiles of sums of narrow numbers in vector registers: rows of words of x against panels of words of W.

One generator makes them all. A sum is one chain along the depth in whichever tile it is, so its bits depend on no tile. A product
of words takes up to six cycles and two begin in each (Zen 5), so at least twelve sums must be on their way."""
from typing import Any

from .compiled import HELPER
from .native import njit
from .vectors import AHEAD, MANY_REGISTERS, prefetch_apart, write, write_sum, zeros
from .words import dot_eights, dot_fours, dot_pairs, settled

# (rows, vectors) from large to small: each takes what rows the one before leaves. Of 32 registers 24 hold sums, two W, one x; of 16,
# half as wide, a vector takes two, and widening takes some. Groups of depths keep whole sums and what they add up to
TILES = ((12, 2), (4, 4), (2, 4), (1, 4)) if MANY_REGISTERS else ((4, 1), (2, 1), (1, 4), (1, 1))
GROUPED = ((6, 2), (3, 4), (2, 4), (1, 4)) if MANY_REGISTERS else ((3, 1), (2, 1), (1, 2), (1, 1))
ROWS = TILES[0][0]


# ---- one tile: its rows of x along bytes apart, vectors of a panel that hold `deep` words of 16 columns each, the next depth apart,
# the next 16 columns beside, sums to y, step bytes a row. A tile of one row waits for memory, so it asks ahead. Loops stand in each of
# them: a tile that a function gave back would pass through memory

def attended(high: int) -> Any:
    """Pairs of bfloat16, sums as they are."""
    @njit(**HELPER)
    def tile(none, row, column, x, along, w, apart, beside, steps, y, step, after, how):
        sums = none
        x, w = x + row * along, w + column // 16 * beside
        for _ in range(steps):
            sums = dot_pairs(sums, x, along, w, beside)
            x += 4
            w += apart
        write(sums, y + row * step + 4 * column, step, None)
    return tile


def of_halves(high: int) -> Any:
    """Pairs of bfloat16, plus a bias and a residual; after: where these are, and bytes between rows of the residual."""
    ahead = high == 1

    @njit(**HELPER)
    def tile(none, row, column, x, along, w, apart, beside, steps, y, step, after, how):
        sums = none
        x, w = x + row * along, w + column // 16 * beside
        for _ in range(steps):
            if ahead: prefetch_apart(sums, w + AHEAD, beside)
            sums = dot_pairs(sums, x, along, w, beside)
            x += 4
            w += apart
        bias, residual, across = after
        write_sum(sums, y + row * step + 4 * column, step, bias + 4 * column, residual + row * across + 4 * column, across)
    return tile


def of_bytes(high: int) -> Any:
    """The same for bytes in one group of depths. how: what to take off the sums of each row, factors of rows, scales of columns, and
    for groups: bytes between their scales, their number, words of one."""
    ahead = high == 1

    @njit(**HELPER)
    def tile(none, row, column, x, along, w, apart, beside, steps, y, step, after, how):
        less, factors, scales, _, _, _ = how
        sums = none
        x, w = x + row * along, w + column // 16 * beside
        for _ in range(steps):
            if ahead: prefetch_apart(sums, w + AHEAD, beside)
            sums = dot_fours(sums, x, along, w, beside)
            x += 4
            w += apart
        bias, residual, across = after
        write_sum(settled(none, sums, less + 4 * row, 4, factors + 4 * row, scales + 4 * column),
                  y + row * step + 4 * column, step, bias + 4 * column, residual + row * across + 4 * column, across)
    return tile


def of_groups(dot: Any, deep: int) -> Any:
    """A function of high: the same for any number of groups, and for halves of bytes."""
    def tiles(high: int) -> Any:
        ahead = high == 1

        @njit(**HELPER)
        def tile(none, row, column, x, along, w, apart, beside, steps, y, step, after, how):
            less, factors, scales, pitch, groups, group = how
            numbers = none
            x, w, less = x + row * along, w + column // 16 * beside, less + 4 * row * groups
            for g in range(groups):
                sums = none
                for _ in range(min(group, steps - g * group) // deep):
                    if ahead: prefetch_apart(sums, w + AHEAD, beside)
                    sums = dot(sums, x, along, w, beside)
                    x += 4 * deep
                    w += apart
                numbers = settled(numbers, sums, less + 4 * g, 4 * groups, factors + 4 * row, scales + g * pitch + 4 * column)
            bias, residual, across = after
            write_sum(numbers, y + row * step + 4 * column, step, bias + 4 * column, residual + row * across + 4 * column, across)
        return tile
    return tiles


# ---- all tiles

def by_bands(made: Any, high: int, across: int) -> Any:
    """A function: as many tiles as fit, rows by vectors, from a row on, and single vectors where a tile is wider than what is left
    of a panel of so many columns, a multiple of 16; the first row that is left."""
    tile, width = made(high), 16 * across

    @njit(**HELPER)
    def bands(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how):
        column, left = 0, row + (rows - row) // high * high
        while column < columns:
            if column + width <= columns:
                for i in range(row, left, high):
                    tile(zeros(high, across), i, column, x, along, w, apart, beside, steps, y, step, after, how)
                column += width
            else:
                for i in range(row, left, high):
                    tile(zeros(high, 1), i, column, x, along, w, apart, beside, steps, y, step, after, how)
                column += 16
        return left
    return bands


def by_vectors(made: Any, tiles: tuple[tuple[int, int], ...] = TILES) -> Any:
    """A function: the rows from `row` on against a panel, by tiles from large to small."""
    first, second, third, last = (by_bands(made, *tile) for tile in tiles)

    @njit(**HELPER)
    def multiply(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how):
        row = first(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
        row = second(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
        row = third(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
        last(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
    return multiply


attended_pairs, vector_pairs, vector_fours = map(by_vectors, (attended, of_halves, of_bytes))
grouped_fours, grouped_eights = (by_vectors(of_groups(*each), GROUPED) for each in ((dot_fours, 1), (dot_eights, 2)))
