"""x @ W for bytes of which one or two of every four inputs are kept. Their places are bits, so a vector of fours is 8
bytes of bits and 16 or 32 of numbers. One row meets vectors as they are expanded; for more rows a panel is expanded
into scratch, once an item."""

from collections.abc import Callable

import numpy as np

from formats.core.epilogue import Epilogue
from formats.core.layout import PANEL
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import WORD, record
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
from formats.kernels.matmul.tiles import emit_loop, joined_sums, settle_sums, vector_fours
from formats.kernels.rows.following import epilogue_record
from formats.kernels.simd.vectors import (
    AHEAD,
    FEATURES,
    LANE,
    LANES,
    VECTOR,
    ask_line,
    llvm_function,
    load_vector,
    pointer_at,
    put,
)
from formats.kernels.simd.words import BYTE, SHORT, WORDS, add_fours, everywhere, words_of

__all__ = ["product_pruned_bytes"]
__borders__ = ENOUGH, MAX_ITEM_ROWS, BAND, MATRIX_BAND

# idx: bits of the places; depth, group, groups, span: as for dense bytes; kept: numbers kept of every four
PRUNED = np.dtype(words("w scale depth group groups span idx kept"))
EXPANDS = "+avx512vbmi2" in FEATURES  # an instruction that puts bytes where bits are set
PLACE_BYTES, LINE_BYTES = 8, 64  # bytes of the places of a vector, and of the vector
STEP, CHAINS = 8, 4  # words of a row at a time, whose places fill a cache line; sums of a row
FEW = 1, 2  # numbers of every four that are kept
OFFSET = 128  # added to W; so it is the byte of inputs not kept


def expanded(builder, bits, numbers, kept):
    """Return 16 words: their kept bytes are at an address, in the order of the 64 bits at another; the other bytes are
    OFFSET."""
    if EXPANDS:
        bytes_, mask = ir.VectorType(BYTE, 4 * LANES), ir.VectorType(ir.IntType(1), 4 * LANES)
        packed = ir.VectorType(BYTE, kept * LANES)
        stored = builder.load(pointer_at(builder, numbers, 0, packed))
        stored.align = 1
        lanes = [i if i < kept * LANES else kept * LANES for i in range(4 * LANES)]
        stored = builder.shuffle_vector(
            stored, ir.Constant(packed, None), ir.Constant(ir.VectorType(LANE, 4 * LANES), lanes)
        )
        where = builder.load(pointer_at(builder, bits, 0, ir.IntType(64)))
        where.align = 1
        expand = llvm_function(builder, "llvm.x86.avx512.mask.expand.v64i8", bytes_, bytes_, bytes_, mask)
        middle = ir.Constant(bytes_, [OFFSET] * 4 * LANES)
        return builder.bitcast(builder.call(expand, [stored, middle, builder.bitcast(where, mask)]), WORDS)
    kind = ir.VectorType((BYTE, SHORT)[kept - 1], LANES)
    stored = builder.load(pointer_at(builder, numbers, 0, kind))
    stored.align = 1
    stored = builder.zext(stored, WORDS)
    halves = [everywhere(builder, builder.load(pointer_at(builder, bits, offset, LANE))) for offset in (0, 4)]
    where = builder.shuffle_vector(*halves, ir.Constant(WORDS, [i if i < 8 else LANES + i for i in range(LANES)]))
    where = builder.and_(builder.lshr(where, ir.Constant(WORDS, [4 * (i % 8) for i in range(LANES)])), words_of(15))
    all_ = words_of(OFFSET * 0x01010101)
    for k in range(kept):
        places = sum(([i for i in range(4) if four >> i & 1] + [0, 0])[k] << 2 * four for four in range(16))
        to = builder.and_(builder.lshr(words_of(places), builder.mul(where, words_of(2))), words_of(3))
        byte = builder.xor(builder.and_(builder.lshr(stored, words_of(8 * k)), words_of(255)), words_of(OFFSET))
        all_ = builder.xor(all_, builder.shl(byte, builder.mul(to, words_of(8))))
    return all_


def one_row(kept: int) -> Callable[..., None]:
    """Build an intrinsic: sums of a row by 16 outputs, over `words` words, whole steps. Panels of 16 outputs follow one
    another, bits and numbers apart, so that both are read in the order of memory."""

    @intrinsic
    def sums(typing, x, w, idx, words, y, bias, residual, less, factors, scales):
        def code(context, builder, signature, values):
            x, w, idx, words, y, bias, residual, less, factors, scales = values

            def step(_, values):
                x, w, idx, *totals = values
                for start, bytes_ in ((idx, PLACE_BYTES * STEP), (w, LANES * kept * STEP)):
                    for line in range(0, bytes_, LINE_BYTES):
                        ask_line(builder, builder.add(start, WORD(AHEAD + line)))
                for i in range(STEP):
                    bits, numbers = builder.add(idx, WORD(PLACE_BYTES * i)), builder.add(w, WORD(LANES * kept * i))
                    factor = everywhere(builder, builder.load(pointer_at(builder, x, 4 * i, LANE)))
                    totals[i % CHAINS] = add_fours(
                        builder, totals[i % CHAINS], factor, expanded(builder, bits, numbers, kept)
                    )
                return [
                    builder.add(x, WORD(4 * STEP)),
                    builder.add(w, WORD(LANES * kept * STEP)),
                    builder.add(idx, WORD(PLACE_BYTES * STEP)),
                    *totals,
                ]

            _, _, _, *found = emit_loop(
                builder, builder.udiv(words, WORD(STEP)), [x, w, idx, *[ir.Constant(VECTOR, None)] * CHAINS], step
            )
            [number] = settle_sums(builder, [joined_sums(builder, found)], None, 1, less, WORD(4), factors, scales)
            for more in (bias, residual):
                number = builder.fadd(number, load_vector(builder, more))
            put(builder, number, y)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), code

    return sums


def expanding(kept: int) -> Callable[..., None]:
    """Build an intrinsic that expands `count` vectors to an address."""

    @intrinsic
    def expand(typing, w, idx, count, to):
        def code(context, builder, signature, values):
            w, idx, count, to = values

            def step(_, values):
                w, idx, to = values
                put(builder, builder.bitcast(expanded(builder, idx, w, kept), VECTOR), to)
                return [
                    builder.add(w, WORD(LANES * kept)),
                    builder.add(idx, WORD(PLACE_BYTES)),
                    builder.add(to, WORD(LINE_BYTES)),
                ]

            emit_loop(builder, count, [w, idx, to], step)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), code

    return expand


def by_kept(kept: int) -> tuple[Callable[..., None], ...]:
    """Return functions: a row against a panel, and the expansion of a panel to scratch."""
    some, expand = one_row(kept), expanding(kept)

    @njit(**HELPER)
    def single(x, val, idx, words, columns, y, bias, residual, less, factors, scales):
        for j in range(0, columns, LANES):
            some(
                x,
                val + kept * words * j,
                idx + words * j // 2,
                words,
                y + 4 * j,
                bias + 4 * j,
                residual + 4 * j,
                less,
                factors,
                scales + 4 * j,
            )

    return single, expand


(single_one, expand_one), (single_two, expand_two) = map(by_kept, FEW)


@njit(**HELPER)
def multiply_pruned(row, rows, columns, x, along, first, apart, beside, weights, y, step, after, how):
    """Multiply rows by a panel, with the arguments of `by_panels`, which adds the outputs before to the address of
    W."""
    bias, residual, _ = after
    less, factors, scales, _, _, scratch = how
    w = record(weights, PRUNED)
    words, start = w.depth // 4, first - w.w
    val, idx = w.w + w.kept * words * start, w.idx + words * start // 2
    if rows == 1:
        if w.kept == 1:
            single_one(x, val, idx, words, columns, y, bias, residual, less, factors, scales)
        else:
            single_two(x, val, idx, words, columns, y, bias, residual, less, factors, scales)
        return
    if row == 0:
        if w.kept == 1:
            expand_one(val, idx, words * columns // LANES, scratch)
        else:
            expand_two(val, idx, words * columns // LANES, scratch)
    vector_fours(row, rows, columns, x, along, scratch, LINE_BYTES, LINE_BYTES * words, words, y, step, after, how)


@Kernel
def pruned_bytes(item, worker, arguments):
    """Round rows to bytes; then multiply panel after panel."""
    c = record(arguments, LINEAR)
    w = record(c.w, PRUNED)
    low, high, _, _ = tile(c, item)
    rows, block = high - low, c.room + worker * c.apart
    edge = block + 4 * (BAND + 1) * PANEL
    scratch = edge + 4 * PANEL
    x = scratch + PANEL * w.depth
    scales = x + rows * w.span
    lifts = scales + 4 * rows
    totals = lifts + 4 * rows
    far = round_rows(c, w, low, rows, x, scales, lifts, totals, OFFSET, 1, 0, 0)
    by_panels(
        multiply_pruned,
        scales_at,
        c,
        w,
        item,
        x,
        1,
        c.w,
        (totals, scales, w.scale, 4 * c.p, 1, scratch),
        far,
        lifts,
        block,
        edge,
    )


def product_pruned_bytes(
    x: np.ndarray,
    bits: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    kept: int,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; an output keeps one or two of every four inputs.

    bits: uint8, eight for every 16 outputs and four inputs: a bit is set for each kept input, inputs of an output side
    by side; w: uint8, the kept numbers of W / scale + 128, in the same order: panels of 16 outputs, of all inputs,
    padded to 64; scale: float32 (p). Each row of x is rounded to 255 steps, sums are exact."""
    arrays = {
        "bits": typed("bits", bits, np.uint8),
        "w": typed("w", w, np.uint8),
        "scale": typed("scale", scale, np.float32),
    }
    check_product(x, None, len(scale), out, **arrays)
    (T, n), p = x.shape, len(scale)
    depth, columns = -(-n // 64) * 64, -(-p // LANES) * LANES
    if kept not in FEW or (8 * bits.size, 4 * w.size) != (depth * columns, kept * depth * columns):
        raise ValueError(
            f"bits of {bits.size} and w of {w.size} do not make panels of {depth} by {columns} with "
            f"{kept} of every four"
        )
    weight = filled(address(w), address(scale), depth, depth, 1, span := depth + 64, address(bits), kept)
    after, workers = epilogue_record(epilogue, out, rough=True), threads()
    rows, _ = split_work(T, p, workers, PANEL)
    with POOL.lock:
        room = ROOM.reserve(rows * (span + 12) + 4 * PANEL * (BAND + 2) + PANEL * depth + 64, workers)
        launch(workers, *linear_stages(pruned_bytes, x, address(weight), out, after, workers, room, unit=PANEL))
    return out
