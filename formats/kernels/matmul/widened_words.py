"""x @ W for W in words that hold several inputs of an output, in panels of 64 columns. A word holds integers q, which
stand for d q + m with d and m of a group of inputs. This is the common part of block formats, for any words and scales
(`Wording`).

Words are widened to the float32 numbers that they mean: in registers for few rows, where memory sets the pace; for more
rows, a block of a panel into scratch that stays in cache, and is then multiplied as a float32 panel is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from formats.core.block_layout import EXPONENT_PLACE, WORD_BITS
from formats.core.epilogue import Epilogue
from formats.core.layout import PANEL
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, words
from formats.kernels.engine.memory import WIDENS, record, widen_by_integers
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.gemm import multiply
from formats.kernels.matmul.linear import ENOUGH, LINEAR, MAX_ITEM_ROWS, check_product, linear_stages, tile
from formats.kernels.matmul.packed_panels import BLOCK_DEPTH, block_of_panel
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.kernels.simd.vectors import (
    AHEAD,
    FLOAT,
    LANE,
    LANES,
    MANY_REGISTERS,
    VECTOR,
    Vectors,
    add_outer,
    ask_line,
    closed,
    load_vector,
    multiply_add,
    pointer_at,
    put,
    span,
    splat,
    store_tile,
    zeros,
)
from formats.kernels.simd.words import BYTE, SHORT, WORDS, everywhere, words_of
from formats.storage.q4_1 import GROUP_INPUTS, REGISTER_ROWS

WORDED = np.dtype(words("w scale parts blocks"))
__borders__ = ENOUGH, MAX_ITEM_ROWS, REGISTER_ROWS
SIXTEEN_HALVES = ir.VectorType(ir.HalfType(), LANES)
HALF_BYTES, HALVES = 2, ir.VectorType(SHORT, LANES)  # of a float16; the bits of sixteen
SIXTEEN_BYTES = ir.VectorType(BYTE, LANES)
CENTRED_BYTES = (HALF_BYTES + 1) * LANES  # sixteen float16, then a byte for each


class Wording(NamedTuple):
    """The meaning of words. Levels of `inputs` inputs of an output are read at a time, from planes of these bits
    (formats/core/block_layout.py); `number` (builder, words of each plane, i) is number i of each, as float32. A block
    is `groups` groups of `group` inputs, with `scale_bytes` bytes of scales and `part_words` words of integers of its
    groups for an output; from these `scales` (builder, place, vectors) makes d, then m, of vectors of outputs."""

    inputs: int
    scale_bytes: int
    number: Callable[..., ir.Value]
    scales: Callable[..., list[ir.Value]]
    planes: tuple[int, ...]
    group: int = GROUP_INPUTS
    groups: int = 1
    part_words: int = 0

    @property
    def bits(self) -> int:
        """The bits of a level: the words of a step of 32 inputs of an output."""
        return sum(self.planes)

    @property
    def block(self) -> int:
        """The inputs of a block."""
        return self.group * self.groups

    @property
    def depth(self) -> int:
        """The inputs of whole blocks that are widened at a time."""
        return BLOCK_DEPTH // self.block * self.block


class GroupPlace(NamedTuple):
    """The place of a group's scales: the addresses of those of its block and of the block's integers, the bytes between
    words of one output, and the number of the group in its block."""

    scale: ir.Value
    parts: ir.Value
    across: ir.Value
    group: ir.Value


def read_plane(builder, start, across, first, bits, count, v):
    """Return a vector of words that hold entries `count`, `count` + 1, ... of a plane of some bits at their low ends.
    The plane begins `first` words behind the address `start`; the words of an output are `across` bytes apart."""
    place = builder.mul(count, count.type(bits))
    row = builder.add(builder.lshr(place, place.type(5)), place.type(first))
    at = builder.add(start, builder.mul(across, row))
    vector = builder.bitcast(load_vector(builder, at, 64 * v), WORDS)
    turn = builder.trunc(builder.and_(place, place.type(31)), LANE)
    return builder.lshr(vector, everywhere(builder, turn))


def read_scales(builder, place, v):
    """Return the float16 of vector `v` of outputs at a place of scales, as float32."""
    halves = builder.load(pointer_at(builder, place.scale, HALF_BYTES * LANES * v, HALVES))
    halves.align = HALF_BYTES
    return widen_halves(builder, halves)


def read_exponents(builder, place, v):
    """Return the powers of two of vector `v` of outputs at a place of scales, whose bytes are exponents of float32."""
    exponents = builder.load(pointer_at(builder, place.scale, LANES * v, SIXTEEN_BYTES))
    exponents.align = 1
    return builder.bitcast(builder.shl(builder.zext(exponents, WORDS), words_of(EXPONENT_PLACE)), VECTOR)


def read_floats(builder, place, v):
    """Return the float32 of vector `v` of outputs at a place of scales."""
    return load_vector(builder, place.scale, 64 * v)


def read_pairs(builder, place, v):
    """Return d and m of vector `v` of outputs at a place of scales, float16 in pairs, as float32."""
    pairs = builder.bitcast(load_vector(builder, place.scale, 64 * v), WORDS)
    return [widen_halves(builder, builder.trunc(builder.lshr(pairs, words_of(part)), HALVES)) for part in (0, 16)]


def read_centred(builder, place, v):
    """Return d and the level of zero of vector `v` of outputs at a place of scales, sixteen float16 and as many bytes
    behind them, as float32."""
    halves = builder.load(pointer_at(builder, place.scale, CENTRED_BYTES * v, HALVES))
    zero = builder.load(pointer_at(builder, place.scale, CENTRED_BYTES * v + HALF_BYTES * LANES, SIXTEEN_BYTES))
    halves.align = zero.align = 1
    return [widen_halves(builder, halves), builder.uitofp(builder.zext(zero, WORDS), VECTOR)]


def widen_halves(builder, shorts):
    """Return 16 float16, given by their bits, as float32."""
    if WIDENS:
        return builder.fpext(builder.bitcast(shorts, SIXTEEN_HALVES), VECTOR)
    vector = ir.Constant(VECTOR, ir.Undefined)
    for lane in map(LANE, range(LANES)):
        bits = builder.zext(builder.extract_element(shorts, lane), LANE)
        vector = builder.insert_element(vector, widen_by_integers(builder, bits), lane)
    return vector


def ask_ahead(builder, across, w):
    """Prefetch words that are needed a little later."""
    for v in range(across):
        ask_line(builder, builder.add(w, w.type(AHEAD + 64 * v)))


def read_levels(builder, wording, w, across, unit, v):
    """Return the words of each plane for a unit of inputs of a step that begins at w, a vector of outputs."""
    first, words = 0, []
    for bits in wording.planes:
        if wording.inputs * bits == WORD_BITS:  # a word a unit
            row = builder.add(unit, unit.type(first))
            vector = load_vector(builder, builder.add(w, builder.mul(across, row)), 64 * v)
            words.append(builder.bitcast(vector, WORDS))
        else:
            words.append(read_plane(builder, w, across, first, bits, builder.mul(unit, unit.type(wording.inputs)), v))
        first += bits
    return words


def word_readers(wording: Wording) -> tuple[Callable[..., Any], ...]:
    """Build the operations of a product on words of this wording: read scales, add products to a tile of sums, store
    numbers as rows of a block."""
    inputs = wording.inputs

    def numbers_of(builder, turns, vectors, i):
        """Return number i of the words of each vector of outputs: d q + m."""
        return [
            multiply_add(
                builder,
                builder.extract_value(turns, v),
                wording.number(builder, words, i),
                builder.extract_value(turns, len(vectors) + v),
            )
            for v, words in enumerate(vectors)
        ]

    def ask_planes(builder, across, w, apart, unit):
        """Prefetch the words that are needed a little later: those of a step, spread over its units."""
        units = GROUP_INPUTS // inputs
        for more in range(-(-wording.bits // units)):
            row = builder.add(builder.mul(unit, unit.type(-(-wording.bits // units))), unit.type(more))
            ask_ahead(builder, across, builder.add(w, builder.mul(apart, row)))

    @intrinsic
    def read_turns(typing, sums, scale, parts, across, group):
        """Load d, then m, of a group, of as many vectors of columns as a tile has."""

        def code(context, builder, signature, values):
            return closed(builder, wording.scales(builder, GroupPlace(*values[1:]), sums.across))

        return Vectors(2, sums.across)(sums, *[types.int64] * 4), code

    @intrinsic
    def add_words(typing, sums, x, along, w, across, unit, turns):
        """Return sums + (the inputs of a unit of each row, rows along bytes apart) times the numbers of that unit of
        the step at w."""

        def code(context, builder, signature, values):
            tile, x, along, w, across, unit, turns = values
            sums_ = [builder.extract_value(tile, i) for i in range(sums.count)]
            ask_planes(builder, sums.across, w, across, unit)
            vectors = [read_levels(builder, wording, w, across, unit, v) for v in range(sums.across)]
            for i in range(inputs):
                numbers = numbers_of(builder, turns, vectors, i)
                for r in range(sums.rows):
                    at = builder.add(x, builder.mul(along, along.type(r)))
                    factor = splat(builder, builder.load(pointer_at(builder, at, 4 * i, FLOAT)))
                    for v, number in enumerate(numbers):
                        k = r * sums.across + v
                        sums_[k] = multiply_add(builder, factor, number, sums_[k])
            return closed(builder, sums_)

        return sums(sums, *[types.int64] * 5, turns), code

    @intrinsic
    def store_words(typing, sums, w, across, unit, turns, to, apart):
        """Store the numbers of a unit of the step at w, a row of a block for each input, the rows apart bytes from each
        other."""

        def code(context, builder, signature, values):
            _, w, across, unit, turns, to, apart = values
            ask_planes(builder, sums.across, w, across, unit)
            vectors = [read_levels(builder, wording, w, across, unit, v) for v in range(sums.across)]
            for i in range(inputs):
                row = builder.add(to, builder.mul(apart, apart.type(i)))
                for v, number in enumerate(numbers_of(builder, turns, vectors, i)):
                    put(builder, number, row, 64 * v)
            return context.get_dummy_value()

        return types.void(sums, *[types.int64] * 3, turns, types.int64, types.int64), code

    return read_turns, add_words, store_words


def word_strips(wording: Wording) -> tuple[Callable[..., None], ...]:
    """Build functions for words of this wording: a tile of rows, and all rows of an item, against some columns; columns
    widened into a block."""
    inputs, bits, group, groups = wording.inputs, wording.bits, wording.group, wording.groups
    scale_bytes, part_words = wording.scale_bytes, wording.part_words
    read_turns, add_words, store_words = word_readers(wording)

    @njit(**HELPER)
    def turns_at(none, top, scale, parts, across):
        """Read d and m of the group that begins at input `top`."""
        block, at = top // group // groups, top // group % groups
        return read_turns(
            none, scale + block * scale_bytes * (across // 4), parts + block * part_words * across, across, at
        )

    @njit(**HELPER)
    def strip_words(none, x, along, w, scale, parts, across, depth, y, step, room, lanes):
        """Compute a tile of sums: some rows against as many columns as it has; room: scratch for the rows of a word."""
        sums = none
        for top in range(0, depth, group):
            turns, end = turns_at(none, top, scale, parts, across), min(top + group, depth)
            for at in range(top, end, GROUP_INPUTS):
                begin = w + at // GROUP_INPUTS * bits * across
                for k in range(at, min(at + GROUP_INPUTS, end) - inputs + 1, inputs):
                    sums = add_words(sums, x + 4 * k, along, begin, across, k % GROUP_INPUTS // inputs, turns)
            if top + group > depth and depth % inputs:
                first = depth // inputs * inputs
                begin = w + first // GROUP_INPUTS * bits * across
                store_words(none, begin, across, first % GROUP_INPUTS // inputs, turns, room, 4 * span(none))
                for k in range(first, depth):
                    sums = add_outer(sums, x + 4 * k, along, room + 4 * span(none) * (k % inputs), None)
        store_tile(sums, y, step, lanes)

    @njit(**HELPER)
    def strips(four, two, one, rows, x, along, w, scale, parts, across, depth, y, step, room, lanes):
        """Multiply all rows by as many columns as these tiles have."""
        row = 0
        while row + 4 <= rows:
            strip_words(four, x + row * along, along, w, scale, parts, across, depth, y + row * step, step, room, lanes)
            row += 4
        if row + 2 <= rows:
            strip_words(two, x + row * along, along, w, scale, parts, across, depth, y + row * step, step, room, lanes)
            row += 2
        if row < rows:
            strip_words(one, x + row * along, along, w, scale, parts, across, depth, y + row * step, step, room, lanes)

    @njit(**HELPER)
    def widen_strip(none, w, scale, parts, across, depth, to):
        """Widen as many columns of a panel as a tile has, from the beginning of a block on, to rows of 64 float32; the
        last word is widened whole."""
        for top in range(0, depth, group):
            turns = turns_at(none, top, scale, parts, across)
            end = min(top + group, depth)
            for at in range(top, end, GROUP_INPUTS):
                begin = w + at // GROUP_INPUTS * bits * across
                for k in range(at, min(at + GROUP_INPUTS, end), inputs):
                    store_words(none, begin, across, k % GROUP_INPUTS // inputs, turns, to, 4 * PANEL)
                    to += 4 * PANEL * inputs

    @njit(**HELPER)
    def widen_columns(whole, columns, w, scale, parts, across, depth, to):
        """Widen all columns of a panel, see `widen_strip`."""
        if whole:
            widen_strip(zeros(1, 4), w, scale, parts, across, depth, to)
        else:
            for at in range(0, columns, LANES):
                widen_strip(
                    zeros(1, 1), w + 4 * at, scale + scale_bytes * at, parts + 4 * at, across, depth, to + 4 * at
                )

    return strip_words, strips, widen_columns


def multiply_words(wording: Wording) -> Callable[..., None]:
    """Build a function that computes an item of a product with words of this wording; the epilogue follows panel by
    panel."""
    bits, scale_bytes, part_words = wording.bits, wording.scale_bytes, wording.part_words
    block, most = wording.block, wording.depth
    steps = block // GROUP_INPUTS
    strip_words, strips, widen_columns = word_strips(wording)

    @njit(**HELPER)
    def multiply_item(item, worker, arguments):
        c = record(arguments, LINEAR)
        w = record(c.w, WORDED)
        low, high, left, right = tile(c, item)
        x, along, step, room, rows = (
            c.x + 4 * low * c.along,
            4 * c.along,
            4 * c.step,
            c.room + worker * c.apart,
            high - low,
        )
        for start in range(left, right, PANEL):
            columns, y = min(PANEL, c.p - start), c.out + 4 * low * c.step + 4 * start
            across, whole = (columns + 15) // 16 * 64, MANY_REGISTERS and columns == PANEL
            stored = w.w + 4 * bits * steps * w.blocks * start
            scale = w.scale + scale_bytes * w.blocks * start
            parts = w.parts + 4 * part_words * w.blocks * start
            if rows == REGISTER_ROWS and whole:  # each word is widened only once
                for at in range(0, PANEL, 2 * LANES):
                    strip_words(
                        zeros(8, 2),
                        x,
                        along,
                        stored + 4 * at,
                        scale + scale_bytes * at,
                        parts + 4 * at,
                        across,
                        c.n,
                        y + 4 * at,
                        step,
                        room,
                        None,
                    )
            elif rows <= REGISTER_ROWS and whole:
                strips(
                    zeros(4, 4),
                    zeros(2, 4),
                    zeros(1, 4),
                    rows,
                    x,
                    along,
                    stored,
                    scale,
                    parts,
                    across,
                    c.n,
                    y,
                    step,
                    room,
                    None,
                )
            elif rows <= REGISTER_ROWS:
                twice = columns // (2 * LANES) * 2 * LANES if rows == 1 else 0  # a single sum would wait for itself
                for at in range(0, twice, 2 * LANES):
                    strip_words(
                        zeros(1, 2),
                        x,
                        along,
                        stored + 4 * at,
                        scale + scale_bytes * at,
                        parts + 4 * at,
                        across,
                        c.n,
                        y + 4 * at,
                        step,
                        room,
                        None,
                    )
                for at in range(twice, columns, LANES):
                    strips(
                        zeros(4, 1),
                        zeros(2, 1),
                        zeros(1, 1),
                        rows,
                        x,
                        along,
                        stored + 4 * at,
                        scale + scale_bytes * at,
                        parts + 4 * at,
                        across,
                        c.n,
                        y + 4 * at,
                        step,
                        room,
                        min(LANES, columns - at),
                    )
            else:
                for top in range(0, c.n, most):
                    depth, begin = min(most, c.n - top), x + 4 * top
                    skipped = top // block
                    widen_columns(
                        whole,
                        columns,
                        stored + across * bits * steps * skipped,
                        scale + across // 4 * scale_bytes * skipped,
                        parts + across * part_words * skipped,
                        across,
                        depth,
                        room,
                    )
                    if whole:
                        block_of_panel(rows, top == 0, depth, begin, along, room, y, step, zeros(1, 1))
                    else:
                        multiply(c.multiply, rows, columns, depth, begin, along, room, 4 * PANEL, y, step, top == 0)
            finish_block(c.after, low, high, start, start + columns)
        if right - left == c.p:
            finish_rows(c.after, low, high)

    return multiply_item


class WordedArrays(NamedTuple):
    """Arrays of a weight in words: levels, scales, and the integers of groups."""

    w: np.ndarray
    scale: np.ndarray
    parts: np.ndarray | None = None


def check_words(kernel: Kernel, wording: Wording, x: np.ndarray, weight: WordedArrays, out: np.ndarray) -> int:
    """Return the number of blocks of inputs. ValueError if the arrays of words and scales are no panels of n by p."""
    w, scale, parts = weight
    check_product(x, None, None, out, **{name: each for name, each in weight._asdict().items() if each is not None})
    blocks, columns = -(-x.shape[1] // wording.block), -(-out.shape[1] // LANES) * LANES
    words = wording.bits * wording.block // GROUP_INPUTS
    wanted = 4 * words * blocks * columns, wording.scale_bytes * blocks * columns
    integers = 0 if parts is None else parts.nbytes
    if (w.nbytes, scale.nbytes) != wanted or integers != 4 * wording.part_words * blocks * columns:
        raise ValueError(
            f"{kernel.name}: {w.size} numbers and {scale.size} scales do not make panels of {x.shape[1]} "
            f"by {out.shape[1]}"
        )
    return blocks


def product_words(
    kernel: Kernel, wording: Wording, x: np.ndarray, weight: WordedArrays, out: np.ndarray, epilogue: Epilogue | None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue, by a kernel of this wording."""
    blocks = check_words(kernel, wording, x, weight, out)
    after, workers = epilogue_record(epilogue, out), threads()
    held = filled(address(weight.w), address(weight.scale), address(weight.parts), blocks)
    with POOL.lock:
        room = ROOM.reserve(4 * PANEL * BLOCK_DEPTH, workers)
        launch(workers, *linear_stages(kernel, x, address(held), out, after, workers, room, unit=PANEL))
    return out
