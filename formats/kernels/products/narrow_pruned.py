"""x @ W for bytes of which one or two of every four inputs are kept: their places are bits, so a vector of fours is 8 bytes of bits and
16 or 32 of numbers. One row meets vectors as they are expanded; for more a panel is expanded into scratch, once an item."""
from typing import Any

import numpy as np

from formats.core.layout import PANEL
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import WORD, record
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.engine.pool import POOL
from formats.kernels.engine.vectors import AHEAD, FEATURES, LANE, VECTOR, WIDE, ask_line, function, place, put, read
from formats.kernels.engine.words import BYTE, SHORT, WORDS, add_fours, constant, everywhere
from formats.kernels.rows.following import epilogue_record
from formats.machine.threads import threads

from .linear import LINEAR, check_product, linear_stages, split, tile, typed
from .narrow_vectors import BAND, by_panels, round_rows, scales_at
from .tiles import at, repeated, settled, vector_fours

# idx: bits of the places; depth, group, groups, span: as for dense bytes; kept: numbers of every four
PRUNED = np.dtype(words("w scale depth group groups span idx kept"))
EXPANDS = "+avx512vbmi2" in FEATURES                         # an instruction that puts bytes where bits are set
BITS, LINE = 8, 64                                           # bytes of the places of a vector, and of the vector
FEW = 1, 2                                                   # numbers of every four that are kept
MIDDLE = 128                                                 # what was added to W: the byte of what is not kept


def expanded(builder, bits, numbers, kept):
    """16 words of which so many bytes each are at an address, by the 64 bits at another; the other bytes are MIDDLE."""
    if EXPANDS:
        bytes_, mask = ir.VectorType(BYTE, 4 * WIDE), ir.VectorType(ir.IntType(1), 4 * WIDE)
        packed = ir.VectorType(BYTE, kept * WIDE)
        found = builder.load(place(builder, numbers, 0, packed))
        found.align = 1
        lanes = [i if i < kept * WIDE else kept * WIDE for i in range(4 * WIDE)]
        found = builder.shuffle_vector(found, ir.Constant(packed, None), ir.Constant(ir.VectorType(LANE, 4 * WIDE), lanes))
        where = builder.load(place(builder, bits, 0, ir.IntType(64)))
        where.align = 1
        expand = function(builder, "llvm.x86.avx512.mask.expand.v64i8", bytes_, bytes_, bytes_, mask)
        middle = ir.Constant(bytes_, [MIDDLE] * 4 * WIDE)
        return builder.bitcast(builder.call(expand, [found, middle, builder.bitcast(where, mask)]), WORDS)
    each = ir.VectorType((BYTE, SHORT)[kept - 1], WIDE)
    found = builder.load(place(builder, numbers, 0, each))
    found.align = 1
    found = builder.zext(found, WORDS)
    halves = [everywhere(builder, builder.load(place(builder, bits, offset, LANE))) for offset in (0, 4)]
    where = builder.shuffle_vector(*halves, ir.Constant(WORDS, [i if i < 8 else WIDE + i for i in range(WIDE)]))
    where = builder.and_(builder.lshr(where, ir.Constant(WORDS, [4 * (i % 8) for i in range(WIDE)])), constant(15))
    all_ = constant(MIDDLE * 0x01010101)
    for k in range(kept):
        places = sum(([i for i in range(4) if four >> i & 1] + [0, 0])[k] << 2 * four for four in range(16))
        to = builder.and_(builder.lshr(constant(places), builder.mul(where, constant(2))), constant(3))
        byte = builder.xor(builder.and_(builder.lshr(found, constant(8 * k)), constant(255)), constant(MIDDLE))
        all_ = builder.xor(all_, builder.shl(byte, builder.mul(to, constant(8))))
    return all_


def one_row(kept: int, across: int) -> Any:
    """An intrinsic: sums of a row by 16 outputs times across, of so many words; panels of 16 outputs lie one after another, bits and
    numbers apart."""
    @intrinsic
    def sums(typing, x, w, idx, words, y, bias, residual, less, factors, scales):
        def code(context, builder, signature, values):
            x, w, idx, words, y, bias, residual, less, factors, scales = values
            def step(_, values):
                x, w, idx, *totals = values
                factor = everywhere(builder, builder.load(place(builder, x, 0, LANE)))
                for v in range(across):
                    bits = at(builder, idx, builder.mul(words, WORD(BITS)), v)
                    numbers = at(builder, w, builder.mul(words, WORD(WIDE * kept)), v)
                    for each in (bits, numbers): ask_line(builder, builder.add(each, WORD(AHEAD)))
                    totals[v] = add_fours(builder, totals[v], factor, expanded(builder, bits, numbers, kept))
                return [builder.add(x, WORD(4)), builder.add(w, WORD(WIDE * kept)), builder.add(idx, WORD(BITS)), *totals]
            _, _, _, *found = repeated(builder, words, [x, w, idx, *[ir.Constant(VECTOR, None)] * across], step)
            for v, number in enumerate(settled(builder, found, None, across, less, WORD(4), factors, scales)):
                for more in (bias, residual): number = builder.fadd(number, read(builder, more, 64 * v))
                put(builder, number, y, 64 * v)
            return context.get_dummy_value()
        return types.void(*[types.int64] * 10), code
    return sums


def expanding(kept: int) -> Any:
    """An intrinsic: so many vectors to an address."""
    @intrinsic
    def expand(typing, w, idx, count, to):
        def code(context, builder, signature, values):
            w, idx, count, to = values
            def step(_, values):
                w, idx, to = values
                put(builder, builder.bitcast(expanded(builder, idx, w, kept), VECTOR), to)
                return [builder.add(w, WORD(WIDE * kept)), builder.add(idx, WORD(BITS)), builder.add(to, WORD(LINE))]
            repeated(builder, count, [w, idx, to], step)
            return context.get_dummy_value()
        return types.void(*[types.int64] * 4), code
    return expand


def by_kept(kept: int) -> Any:
    """Functions: a row against a panel, and the panel to scratch."""
    wide, narrow, expand = one_row(kept, PANEL // WIDE), one_row(kept, 1), expanding(kept)

    @njit(**HELPER)
    def single(x, val, idx, words, columns, y, bias, residual, less, factors, scales):
        if columns == PANEL: wide(x, val, idx, words, y, bias, residual, less, factors, scales)
        else:
            for j in range(0, columns, WIDE):
                narrow(x, val + kept * words * j, idx + words * j // 2, words, y + 4 * j, bias + 4 * j, residual + 4 * j, less, factors,
                       scales + 4 * j)
    return single, expand


(single_one, expand_one), (single_two, expand_two) = map(by_kept, FEW)


@njit(**HELPER)
def multiply(row, rows, columns, x, along, first, apart, beside, weights, y, step, after, how):
    """Rows against a panel, as `by_panels` asks for it, which adds the outputs before to where W begins."""
    bias, residual, _ = after
    less, factors, scales, _, _, scratch = how
    w = record(weights, PRUNED)
    words, start = w.depth // 4, first - w.w
    val, idx = w.w + w.kept * words * start, w.idx + words * start // 2
    if rows == 1:
        if w.kept == 1: single_one(x, val, idx, words, columns, y, bias, residual, less, factors, scales)
        else: single_two(x, val, idx, words, columns, y, bias, residual, less, factors, scales)
        return
    if row == 0:
        if w.kept == 1: expand_one(val, idx, words * columns // WIDE, scratch)
        else: expand_two(val, idx, words * columns // WIDE, scratch)
    vector_fours(row, rows, columns, x, along, scratch, LINE, LINE * words, words, y, step, after, how)


@Kernel
def pruned_bytes(item, worker, arguments):
    """Rows to bytes; then panel after panel."""
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
    far = round_rows(c, w, low, rows, x, scales, lifts, totals, MIDDLE, 1)
    by_panels(multiply, scales_at, c, w, item, x, 1, c.w, (totals, scales, w.scale, 4 * c.p, 1, scratch), far, lifts, block, edge)


def product_pruned_bytes(x: np.ndarray, bits: np.ndarray, w: np.ndarray, scale: np.ndarray, kept: int, out: np.ndarray,
                         epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; of every four inputs an output keeps one or two.

    bits: uint8, eight for every 16 outputs and four inputs: a bit is set for what is kept, inputs of an output side by side; w: uint8,
    what is kept of W / scale + 128, in the same order: panels of 16 outputs, of all inputs, filled up to 64; scale: float32 (p).
    Each row of x is rounded to 255 steps, sums are exact."""
    arrays = {"bits": typed("bits", bits, np.uint8), "w": typed("w", w, np.uint8), "scale": typed("scale", scale, np.float32)}
    check_product(x, None, len(scale), out, **arrays)
    (T, n), p = x.shape, len(scale)
    depth, columns = -(-n // 64) * 64, -(-p // WIDE) * WIDE
    if kept not in FEW or (8 * bits.size, 4 * w.size) != (depth * columns, kept * depth * columns):
        raise ValueError(f"bits of {bits.size} and w of {w.size} do not make panels of {depth} by {columns} with {kept} of every four")
    weight = filled(address(w), address(scale), depth, depth, 1, span := depth + 64, address(bits), kept)
    after, workers = epilogue_record(epilogue, out, rough=True), threads()
    rows, _ = split(T, p, workers, PANEL)
    with POOL.lock:
        room = ROOM.reserve(rows * (span + 12) + 4 * PANEL * (BAND + 2) + PANEL * depth + 64, workers)
        launch(workers, *linear_stages(pruned_bytes, x, address(weight), out, after, workers, room, unit=PANEL))
    return out
