"""Tiles of sums of narrow numbers in vector registers: rows of words of x against panels of words of W.

One generator makes them all, loops included, so that sums never pass through memory. A sum is one chain along the depth
in any tile, so its bits do not depend on the tile. A product of words takes up to six cycles and two begin in each (Zen
5), so at least twelve sums must be in flight."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import WORD
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.simd.vectors import (
    AHEAD,
    FLOAT,
    LANE,
    MANY_REGISTERS,
    VECTOR,
    ask_line,
    load_vector,
    multiply_add,
    pointer_at,
    put,
    splat,
)
from formats.kernels.simd.words import WORDS, add_fours, add_pairs, everywhere, nibbles

# (rows, vectors) from large to small: each takes the rows that the one before leaves. Of 32 registers 24 hold sums, two
# W, one x; of 16 registers, half as wide, a vector takes two, and widening takes some. With groups of depths, the sums
# of a group and the totals are both in registers
TILES = ((12, 2), (4, 4), (2, 4), (1, 4)) if MANY_REGISTERS else ((4, 1), (2, 1), (1, 2), (1, 1))
GROUPED = ((6, 2), (3, 4), (2, 4), (1, 4)) if MANY_REGISTERS else ((3, 1), (2, 1), (1, 2), (1, 1))
TALLEST_TILE = TILES[0][0]
ARGUMENTS = 17


class TileKind(NamedTuple):
    """The arithmetic of a tile. `add`: adds a product of words; `deep`: words along the depth in a vector of W, which
    `split` takes apart; `whole`: sums are integers, and are settled, once for each group of depths if there are
    `groups`; `sums`: bias and residual are added."""

    add: Callable[..., ir.Value]
    deep: int = 1
    split: Callable[[ir.IRBuilder, ir.Value], Sequence[ir.Value]] = lambda builder, vector: [vector]
    whole: bool = False
    groups: bool = False
    sums: bool = True


ATTENDED, PAIRS = TileKind(add_pairs, sums=False), TileKind(add_pairs)
FOURS, GROUPED_FOURS = TileKind(add_fours, whole=True), TileKind(add_fours, whole=True, groups=True)
GROUPED_EIGHTS = TileKind(add_fours, 2, nibbles, whole=True, groups=True)


def offset_by(builder, base, apart, count):
    """Return the address count times apart bytes after another."""
    return builder.add(base, builder.mul(apart, WORD(count)))


def emit_loop(builder, count, values, body):
    """Return the values after count rounds, at least one, of values = body(index, values)."""
    before, loop, done = builder.basic_block, builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    index, *held = (builder.phi(value.type) for value in (WORD(0), *values))
    after = [builder.add(index, WORD(1)), *body(index, held)]
    for phi, first, following in zip((index, *held), (WORD(0), *values), after, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(following, builder.basic_block)
    builder.cbranch(builder.icmp_signed("<", after[0], count), loop, done)
    builder.position_at_end(done)
    return after[1:]


def accumulate(builder, kind, rows, across, x, along, w, apart, beside, steps):
    """Return (x and w after `steps` words of depth, sums by rows). A tile of one row waits for memory, so it
    prefetches."""

    def step(_, values):
        x, w, *sums = values
        starts = [offset_by(builder, w, beside, v) for v in range(across)]
        if rows == 1:
            for start in starts:
                ask_line(builder, builder.add(start, WORD(AHEAD)))
        loaded = [builder.bitcast(load_vector(builder, start), WORDS) for start in starts]
        for i, vectors in enumerate(zip(*(kind.split(builder, v) for v in loaded), strict=True)):
            for r in range(rows):
                factor = everywhere(
                    builder, builder.load(pointer_at(builder, offset_by(builder, x, along, r), 4 * i, LANE))
                )
                for v, vector in enumerate(vectors):
                    sums[r * across + v] = kind.add(builder, sums[r * across + v], factor, vector)
        return [builder.add(x, WORD(4 * kind.deep)), builder.add(w, apart), *sums]

    x, w, *sums = emit_loop(
        builder, builder.udiv(steps, WORD(kind.deep)), [x, w, *[ir.Constant(VECTOR, None)] * (rows * across)], step
    )
    return x, w, sums


def joined_sums(builder, sums):
    """Return the sum of the integers whose bits some vectors hold."""
    whole = [builder.bitcast(vector, WORDS) for vector in sums]
    return builder.bitcast(reduce(builder.add, whole), VECTOR)


def settle_sums(builder, sums, numbers, across, less, apart, factors, scales):
    """Convert integer sums to float32: minus an int32 of each row, apart bytes from each other, times a factor of the
    row and scales of the columns; plus numbers, if given."""
    scale, new = [load_vector(builder, scales, 64 * v) for v in range(across)], []
    for i, vector in enumerate(sums):
        off = everywhere(
            builder, builder.load(pointer_at(builder, offset_by(builder, less, apart, i // across), 0, LANE))
        )
        factor = splat(builder, builder.load(pointer_at(builder, factors, 4 * (i // across), FLOAT)))
        number = builder.sitofp(builder.sub(builder.bitcast(vector, WORDS), off), VECTOR)
        by = builder.fmul(scale[i % across], factor)
        new.append(multiply_add(builder, number, by, numbers[i]) if numbers else builder.fmul(number, by))
    return new


def make_tile(kind: TileKind, rows: int, across: int) -> Callable[..., None]:
    """Build an intrinsic: a tile of sums. Rows of x are along bytes apart; 16 columns of W are contiguous at each
    depth, the next depth apart, the next 16 columns beside; steps: words of depth. Sums go to y, step bytes a row, plus
    a bias, plus a residual, further bytes a row. Integer sums are settled, see `settle_sums`; scales of groups are
    pitch bytes apart, a group has `group` words."""

    @intrinsic
    def tile(
        typing,
        x,
        along,
        w,
        apart,
        beside,
        steps,
        y,
        step,
        bias,
        residual,
        further,
        less,
        factors,
        scales,
        pitch,
        groups,
        group,
    ):
        def code(context, builder, signature, values):
            (
                x,
                along,
                w,
                apart,
                beside,
                steps,
                y,
                step,
                bias,
                residual,
                further,
                less,
                factors,
                scales,
                pitch,
                groups,
                group,
            ) = values

            def one_group(g, values):
                x, w, *numbers = values
                left = builder.sub(steps, builder.mul(g, group))
                words = builder.select(builder.icmp_signed("<", left, group), left, group)
                x, w, sums = accumulate(builder, kind, rows, across, x, along, w, apart, beside, words)
                off, apart_rows = builder.add(less, builder.mul(g, WORD(4))), builder.mul(groups, WORD(4))
                scale = builder.add(scales, builder.mul(g, pitch))
                return [x, w, *settle_sums(builder, sums, numbers, across, off, apart_rows, factors, scale)]

            if kind.groups:
                _, _, *sums = emit_loop(
                    builder, groups, [x, w, *[ir.Constant(VECTOR, None)] * (rows * across)], one_group
                )
            else:
                _, _, sums = accumulate(builder, kind, rows, across, x, along, w, apart, beside, steps)
            if kind.whole and not kind.groups:
                sums = settle_sums(builder, sums, None, across, less, WORD(4), factors, scales)
            for i, each in enumerate(sums):
                r, v = divmod(i, across)
                if kind.sums:
                    each = builder.fadd(each, load_vector(builder, bias, 64 * v))
                    each = builder.fadd(each, load_vector(builder, offset_by(builder, residual, further, r), 64 * v))
                put(builder, each, offset_by(builder, y, step, r), 64 * v)
            return context.get_dummy_value()

        return types.void(*[types.int64] * ARGUMENTS), code

    return tile


def by_bands(kind: TileKind, high: int, across: int) -> Callable[..., int]:
    """Build a function: as many tiles as fit, rows by vectors, from a row on, and single vectors where a tile is wider
    than the remaining columns of a panel, a multiple of 16; it returns the first row that is left. after: bias,
    residual, bytes between its rows; how: integers to subtract from sums, factors of rows, scales of columns, bytes
    between those of groups, groups, words of a group."""
    wide, single, width = make_tile(kind, high, across), make_tile(kind, high, 1), 16 * across

    @njit(**HELPER)
    def bands(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how):
        bias, residual, further = after
        less, factors, scales, pitch, groups, group = how
        column, left = 0, row + (rows - row) // high * high
        while column < columns:
            first, many = w + column // 16 * beside, column + width <= columns
            for i in range(row, left, high):
                at, to = x + i * along, y + i * step + 4 * column
                more, off = residual + i * further + 4 * column, less + 4 * i * groups
                if many:
                    wide(
                        at,
                        along,
                        first,
                        apart,
                        beside,
                        steps,
                        to,
                        step,
                        bias + 4 * column,
                        more,
                        further,
                        off,
                        factors + 4 * i,
                        scales + 4 * column,
                        pitch,
                        groups,
                        group,
                    )
                else:
                    single(
                        at,
                        along,
                        first,
                        apart,
                        beside,
                        steps,
                        to,
                        step,
                        bias + 4 * column,
                        more,
                        further,
                        off,
                        factors + 4 * i,
                        scales + 4 * column,
                        pitch,
                        groups,
                        group,
                    )
            column += width if many else 16
        return left

    return bands


def by_vectors(kind: TileKind, tiles: tuple[tuple[int, int], ...] = TILES) -> Callable[..., None]:
    """Build a function that multiplies the rows from `row` on by a panel, by tiles from large to small."""
    first, second, third, last = (by_bands(kind, *tile) for tile in tiles)

    @njit(**HELPER)
    def multiply(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how):
        row = first(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
        row = second(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
        row = third(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)
        last(row, rows, columns, x, along, w, apart, beside, steps, y, step, after, how)

    return multiply


attended_pairs, vector_pairs, vector_fours = map(by_vectors, (ATTENDED, PAIRS, FOURS))
grouped_fours, grouped_eights = (by_vectors(kind, GROUPED) for kind in (GROUPED_FOURS, GROUPED_EIGHTS))
