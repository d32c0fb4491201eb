"""x @ W for W of sparse tiles of bytes, 64 inputs by 16 outputs: 16 words of depth, each a vector of fours (words.py).

A column of tiles meets tiles of rows of x. Its sums stay in registers from tile to tile; each tile selects 64 bytes of
a row. Rows are rounded as for dense bytes; the contribution of the 128 in W, which depends on the tiles of a column, is
subtracted at its end."""

from collections.abc import Callable

import numpy as np

from formats.core.epilogue import Epilogue
from formats.core.layout import PANEL
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import WORD, ints_at, pointer, record
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.linear import (
    ENOUGH,
    LINEAR,
    MAX_ITEM_ROWS,
    check_product,
    linear_stages,
    split_work,
    tile,
    typed,
)
from formats.kernels.matmul.narrow_matrix import BAND as MATRIX_BAND
from formats.kernels.matmul.narrow_vectors import BAND, by_panels, round_rows, scales_at
from formats.kernels.matmul.rounding import as_words
from formats.kernels.matmul.tiles import emit_loop, joined_sums, offset_by, settle_sums
from formats.kernels.rows.following import epilogue_record
from formats.kernels.simd.arithmetic import VECTOR16, get, keep
from formats.kernels.simd.vectors import (
    AHEAD,
    LANE,
    MANY_REGISTERS,
    VECTOR,
    ask_line,
    closed,
    load_vector,
    pointer_at,
    put,
)
from formats.kernels.simd.words import WORDS, add_fours, everywhere

__all__ = ["product_byte_blocks"]
__borders__ = ENOUGH, MAX_ITEM_ROWS, BAND, MATRIX_BAND

TILE_INPUTS, TILE_OUTPUTS = 64, 16  # inputs and outputs of a tile
TILE_BYTES, LINE_BYTES = TILE_INPUTS * TILE_OUTPUTS, 64  # bytes of a tile, and of one of its words
# the fields of dense bytes, with groups of 64 inputs; ptr, idx: tiles by columns; blank: a tile of zeros, and its index
BLOCKED = np.dtype(words("w scale depth group groups span ptr idx blank"))
HIGH, LOW = (24, 8) if MANY_REGISTERS else (4, 2)  # rows of a tile of sums: 24 of 32 registers hold sums
STEP = 4  # words that a loop takes at a time
f4, i8 = np.float32, np.int64


def tiled(rows: int) -> Callable[..., None]:
    """Build an intrinsic: sums of `rows` rows by 16 outputs over `count` tiles. A single row has a sum for each word of
    a step, as there is no other row to work on meanwhile."""
    chains = STEP if rows == 1 else 1

    @intrinsic
    def sums(typing, x, w, idx, count, y, step, bias, residual, further, less, factors, scales):
        def code(context, builder, signature, values):
            x, w, idx, count, y, step, bias, residual, further, less, factors, scales = values

            def one_tile(b, values):
                w, *totals = values
                named = builder.load(pointer_at(builder, builder.add(idx, builder.mul(b, WORD(4))), 0, LANE))
                begin = builder.add(x, builder.mul(builder.zext(named, WORD), WORD(LINE_BYTES * HIGH)))

                def few_words(_, values):
                    x, w, *totals = values
                    for i in range(STEP):
                        if rows == 1:
                            ask_line(builder, builder.add(w, WORD(AHEAD + LINE_BYTES * i)))
                        vector = builder.bitcast(load_vector(builder, w, LINE_BYTES * i), WORDS)
                        for r in range(rows):
                            factor = everywhere(
                                builder, builder.load(pointer_at(builder, x, LINE_BYTES * r + 4 * i, LANE))
                            )
                            to = r * chains + i % chains
                            totals[to] = add_fours(builder, totals[to], factor, vector)
                    return [builder.add(x, WORD(4 * STEP)), builder.add(w, WORD(LINE_BYTES * STEP)), *totals]

                _, w, *totals = emit_loop(builder, WORD(TILE_INPUTS // 4 // STEP), [begin, w, *totals], few_words)
                return [w, *totals]

            _, *found = emit_loop(builder, count, [w, *[ir.Constant(VECTOR, None)] * (rows * chains)], one_tile)
            joined = [joined_sums(builder, found[r * chains : (r + 1) * chains]) for r in range(rows)]
            each = settle_sums(builder, joined, None, 1, less, WORD(4), factors, scales)
            for r, number in enumerate(each):
                number = builder.fadd(number, load_vector(builder, bias))
                number = builder.fadd(number, load_vector(builder, offset_by(builder, residual, further, r)))
                put(builder, number, offset_by(builder, y, step, r))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), code

    return sums


many, few, single_row = map(tiled, (HIGH, LOW, 1))


@intrinsic
def both(typing, a, b):
    """Add the integers whose bits two vectors hold."""

    def code(context, builder, signature, values):
        a, b = (as_words(builder, builder.extract_value(value, 0)) for value in values)
        return closed(builder, [builder.bitcast(builder.add(a, b), VECTOR)])

    return VECTOR16(VECTOR16, VECTOR16), code


@njit(**HELPER)
def taken_off(idx, count, totals, tall, low, high, less):
    """Compute the contribution of the 128 in `count` tiles to the sums of rows: totals has a line of `tall` rows for
    each 64 inputs."""
    for i in range(low // 16 * 16, high, 16):
        added = get(totals + 4 * (i8(idx[0]) * tall + i), None)
        for b in range(1, count):
            added = both(added, get(totals + 4 * (i8(idx[b]) * tall + i), None))
        keep(added, less + 4 * i, None)


@njit(**HELPER)
def beside(x, row, span):
    """Return the address of a row. The rows of a tile are interleaved, 64 bytes of each in turn, so that one address
    and offsets known to the compiler reach them all."""
    return x + row // HIGH * HIGH * span + row % HIGH * LINE_BYTES


@njit(**HELPER)
def multiply_column(row, rows, x, span, w, idx, count, y, step, after, less, factors, scales):
    """Multiply these rows by a column of tiles, at least one."""
    bias, residual, further = after
    while row + HIGH <= rows:
        many(
            x + row * span,
            w,
            idx,
            count,
            y + row * step,
            step,
            bias,
            residual + row * further,
            further,
            less + 4 * row,
            factors + 4 * row,
            scales,
        )
        row += HIGH
    while row + LOW <= rows:
        few(
            beside(x, row, span),
            w,
            idx,
            count,
            y + row * step,
            step,
            bias,
            residual + row * further,
            further,
            less + 4 * row,
            factors + 4 * row,
            scales,
        )
        row += LOW
    while row < rows:
        single_row(
            beside(x, row, span),
            w,
            idx,
            count,
            y + row * step,
            step,
            bias,
            residual + row * further,
            further,
            less + 4 * row,
            factors + 4 * row,
            scales,
        )
        row += 1


@njit(**HELPER)
def multiply_blocks(row, rows, columns, x, span, first, apart, further_on, weights, y, step, after, how):
    """Multiply rows by columns of tiles, with the arguments of `by_panels`, which adds the first output to the address
    of W."""
    bias, residual, further = after
    totals, factors, scales, _, _, tall = how
    w, less = record(weights, BLOCKED), totals - 4 * tall
    ptr, start = pointer(w.ptr, np.uint32), first - w.w
    for j in range(0, columns, TILE_OUTPUTS):
        low, high = i8(ptr[(start + j) // TILE_OUTPUTS]), i8(ptr[(start + j) // TILE_OUTPUTS + 1])
        idx, val, count = w.idx + 4 * low, w.w + TILE_BYTES * low, high - low
        if not count:
            idx, val, count = w.blank + TILE_BYTES, w.blank, 1
        taken_off(pointer(idx, np.uint32), count, totals, tall, row, rows, less)
        multiply_column(
            row,
            rows,
            x,
            span,
            val,
            idx,
            count,
            y + 4 * j,
            step,
            (bias + 4 * j, residual + 4 * j, further),
            less,
            factors,
            scales + 4 * j,
        )


@Kernel
def byte_blocks(item, worker, arguments):
    """Round rows to bytes, and sum every 64 of them; then multiply panel after panel."""
    c = record(arguments, LINEAR)
    w = record(c.w, BLOCKED)
    low, high, _, _ = tile(c, item)
    rows, groups = high - low, w.groups
    tall = (rows + 15) // 16 * 16
    block = c.room + worker * c.apart
    edge = block + 4 * (BAND + 1) * PANEL
    x = edge + 4 * PANEL
    scales = x + (rows + HIGH - 1) // HIGH * HIGH * w.span
    lifts = scales + 4 * tall
    own = lifts + 4 * tall
    totals = own + 4 * (rows * groups + tall)  # the line before them holds the corrections for the 128
    far = round_rows(c, w, low, rows, x, scales, lifts, own, 128, HIGH, 0, 0)
    for i in range(rows):
        for g in range(groups):
            ints_at(totals + 4 * (g * tall + i), 1)[0] = ints_at(own + 4 * (i * groups + g), 1)[0]
    by_panels(
        multiply_blocks,
        scales_at,
        c,
        w,
        item,
        x,
        1,
        c.w,
        (totals, scales, w.scale, 4 * c.p, 1, tall),
        far,
        lifts,
        block,
        edge,
    )


def product_byte_blocks(
    x: np.ndarray,
    ptr: np.ndarray,
    idx: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; column j of tiles, 16 outputs, has w[ptr[j]:ptr[j + 1]] for the 64
    inputs from 64 idx[same] on.

    ptr: uint32 (p / 16 rounded up, and 1); idx: uint32 (tiles); w: uint8 (tiles, 16, 16, 4), W / scale + 128, words of
    four inputs; scale: float32 (p). Each row of x is rounded to 255 steps, sums are exact."""
    arrays = {
        "ptr": typed("ptr", ptr, np.uint32),
        "idx": typed("idx", idx, np.uint32),
        "w": typed("w", w, np.uint8, axes=4),
        "scale": typed("scale", scale, f4),
    }
    check_product(x, None, len(scale), out, **arrays)
    (T, n), p = x.shape, len(scale)
    if (
        w.shape[1:] != (TILE_INPUTS // 4, TILE_OUTPUTS, 4)
        or len(ptr) - 1 != -(-p // TILE_OUTPUTS)
        or not ptr[-1] == len(idx) == len(w)
    ):
        raise ValueError(
            f"ptr of {len(ptr)} ending at {ptr[-1]}, idx of {len(idx)} and w of {w.shape} do not make {p} "
            f"columns in tiles of {TILE_INPUTS} by {TILE_OUTPUTS}"
        )
    depth = -(-n // TILE_INPUTS) * TILE_INPUTS
    span = depth + 64
    weight = filled(
        address(w),
        address(scale),
        depth,
        TILE_INPUTS,
        depth // TILE_INPUTS,
        span,
        address(ptr),
        address(idx),
        address(BLANK),
    )
    after, workers = epilogue_record(epilogue, out, rough=True), threads()
    rows, _ = split_work(T, p, workers, PANEL)
    tall = -(-rows // 16) * 16
    with POOL.lock:
        room = ROOM.reserve(
            (rows + HIGH) * span + 4 * PANEL * (BAND + 2) + 4 * tall * (3 + 2 * depth // TILE_INPUTS) + 64, workers
        )
        launch(workers, *linear_stages(byte_blocks, x, address(weight), out, after, workers, room, unit=PANEL))
    return out


BLANK = np.append(np.full(TILE_BYTES, 128, np.uint8), np.zeros(4, np.uint8))  # a tile of zeros, and an index
