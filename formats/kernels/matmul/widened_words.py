"""x @ W for W in words that hold several inputs of an output, in panels of 64 columns. A word holds integers q, which
stand for d q + m with d and m of a group of 32 inputs. This is the common part of block formats, for any words and
scales (`Wording`).

Words are widened to the float32 numbers that they mean: in registers for few rows, where memory sets the pace; for more
rows, a block of a panel into scratch that stays in cache, and is then multiplied as a float32 panel is."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

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
from formats.kernels.simd.words import WORDS
from formats.storage.q4_1 import GROUP_INPUTS, REGISTER_ROWS

WORDED = np.dtype(words("w scale groups"))
__borders__ = ENOUGH, MAX_ITEM_ROWS, REGISTER_ROWS
SIXTEEN_HALVES = ir.VectorType(ir.HalfType(), LANES)


class Wording(NamedTuple):
    """The meaning of words. A word holds `inputs` inputs of an output; `number` (builder, words, i) is number i of
    each, as float32. A group has `scale_bytes` bytes of scales for an output; from these `scales` (builder, address,
    vectors) makes d, then m, of vectors of outputs."""

    inputs: int
    scale_bytes: int
    number: Callable[..., ir.Value]
    scales: Callable[..., list[ir.Value]]


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


def word_readers(wording: Wording) -> tuple[Callable[..., Any], ...]:
    """Build the operations of a product on words of this wording: read scales, add products to a tile of sums, store
    numbers as rows of a block."""
    inputs = wording.inputs

    def numbers_of(builder, turns, across, w, i):
        """Return number i of the words at w, a vector for each 16 outputs: d q + m."""
        vectors = [builder.bitcast(load_vector(builder, w, 64 * v), WORDS) for v in range(across)]
        return [
            multiply_add(
                builder,
                builder.extract_value(turns, v),
                wording.number(builder, vector, i),
                builder.extract_value(turns, across + v),
            )
            for v, vector in enumerate(vectors)
        ]

    @intrinsic
    def read_turns(typing, sums, scale):
        """Load d, then m, of as many vectors of columns as a tile has."""

        def code(context, builder, signature, values):
            return closed(builder, wording.scales(builder, values[1], sums.across))

        return Vectors(2, sums.across)(sums, types.int64), code

    @intrinsic
    def add_words(typing, sums, x, along, w, turns):
        """Return sums + (the inputs of a word of each row, rows along bytes apart) times the numbers of the words at
        w."""

        def code(context, builder, signature, values):
            tile, x, along, w, turns = values
            sums_ = [builder.extract_value(tile, i) for i in range(sums.count)]
            ask_ahead(builder, sums.across, w)
            for i in range(inputs):
                numbers = numbers_of(builder, turns, sums.across, w, i)
                for r in range(sums.rows):
                    at = builder.add(x, builder.mul(along, along.type(r)))
                    factor = splat(builder, builder.load(pointer_at(builder, at, 4 * i, FLOAT)))
                    for v, number in enumerate(numbers):
                        k = r * sums.across + v
                        sums_[k] = multiply_add(builder, factor, number, sums_[k])
            return closed(builder, sums_)

        return sums(sums, types.int64, types.int64, types.int64, turns), code

    @intrinsic
    def store_words(typing, sums, w, turns, to, apart):
        """Store the numbers of the words at w, a row of a block for each input, the rows apart bytes from each
        other."""

        def code(context, builder, signature, values):
            _, w, turns, to, apart = values
            ask_ahead(builder, sums.across, w)
            for i in range(inputs):
                row = builder.add(to, builder.mul(apart, apart.type(i)))
                for v, number in enumerate(numbers_of(builder, turns, sums.across, w, i)):
                    put(builder, number, row, 64 * v)
            return context.get_dummy_value()

        return types.void(sums, types.int64, turns, types.int64, types.int64), code

    return read_turns, add_words, store_words


def word_strips(wording: Wording) -> tuple[Callable[..., None], ...]:
    """Build functions for words of this wording: a tile of rows, and all rows of an item, against some columns; columns
    widened into a block."""
    inputs, scale_bytes = wording.inputs, wording.scale_bytes
    read_turns, add_words, store_words = word_readers(wording)

    @njit(**HELPER)
    def strip_words(none, x, along, w, scale, across, depth, y, step, room, lanes):
        """Compute a tile of sums: some rows against as many columns as it has; room: scratch for the rows of a word."""
        sums = none
        for top in range(0, depth, GROUP_INPUTS):
            turns, end = read_turns(none, scale), min(top + GROUP_INPUTS, depth) - inputs + 1
            for k in range(top, end, inputs):
                sums = add_words(sums, x + 4 * k, along, w, turns)
                w += across
            scale += across // 4 * scale_bytes
            if top + GROUP_INPUTS > depth and depth % inputs:
                store_words(none, w, turns, room, 4 * span(none))
                for k in range(depth // inputs * inputs, depth):
                    sums = add_outer(sums, x + 4 * k, along, room + 4 * span(none) * (k % inputs), None)
        store_tile(sums, y, step, lanes)

    @njit(**HELPER)
    def strips(four, two, one, rows, x, along, w, scale, across, depth, y, step, room, lanes):
        """Multiply all rows by as many columns as these tiles have."""
        row = 0
        while row + 4 <= rows:
            strip_words(four, x + row * along, along, w, scale, across, depth, y + row * step, step, room, lanes)
            row += 4
        if row + 2 <= rows:
            strip_words(two, x + row * along, along, w, scale, across, depth, y + row * step, step, room, lanes)
            row += 2
        if row < rows:
            strip_words(one, x + row * along, along, w, scale, across, depth, y + row * step, step, room, lanes)

    @njit(**HELPER)
    def widen_strip(none, w, scale, across, depth, to):
        """Widen as many columns of a panel as a tile has, from the beginning of a group on, to rows of 64 float32; the
        last word is widened whole."""
        for top in range(0, depth, GROUP_INPUTS):
            turns = read_turns(none, scale)
            for _ in range(top, min(top + GROUP_INPUTS, depth), inputs):
                store_words(none, w, turns, to, 4 * PANEL)
                w, to = w + across, to + 4 * PANEL * inputs
            scale += across // 4 * scale_bytes

    @njit(**HELPER)
    def widen_columns(whole, columns, w, scale, across, depth, to):
        """Widen all columns of a panel, see `widen_strip`."""
        if whole:
            widen_strip(zeros(1, 4), w, scale, across, depth, to)
        else:
            for at in range(0, columns, LANES):
                widen_strip(zeros(1, 1), w + 4 * at, scale + scale_bytes * at, across, depth, to + 4 * at)

    return strip_words, strips, widen_columns


def multiply_words(wording: Wording) -> Callable[..., None]:
    """Build a function that computes an item of a product with words of this wording; the epilogue follows panel by
    panel."""
    inputs, scale_bytes = wording.inputs, wording.scale_bytes
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
            stored = w.w + 4 * GROUP_INPUTS // inputs * w.groups * start
            scale = w.scale + scale_bytes * w.groups * start
            if rows == REGISTER_ROWS and whole:  # each word is widened only once
                for at in range(0, PANEL, 2 * LANES):
                    strip_words(
                        zeros(8, 2),
                        x,
                        along,
                        stored + 4 * at,
                        scale + scale_bytes * at,
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
                        across,
                        c.n,
                        y + 4 * at,
                        step,
                        room,
                        min(LANES, columns - at),
                    )
            else:
                for top in range(0, c.n, BLOCK_DEPTH):
                    depth, begin = min(BLOCK_DEPTH, c.n - top), x + 4 * top
                    some, turns = stored + across * top // inputs, across // 4 * scale_bytes * top // GROUP_INPUTS
                    widen_columns(whole, columns, some, scale + turns, across, depth, room)
                    if whole:
                        block_of_panel(rows, top == 0, depth, begin, along, room, y, step, zeros(1, 1))
                    else:
                        multiply(c.multiply, rows, columns, depth, begin, along, room, 4 * PANEL, y, step, top == 0)
            finish_block(c.after, low, high, start, start + columns)
        if right - left == c.p:
            finish_rows(c.after, low, high)

    return multiply_item


def check_words(
    kernel: Kernel, wording: Wording, x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray
) -> int:
    """Return the number of groups of inputs. ValueError if the arrays of words and scales are no panels of n by p."""
    check_product(x, None, None, out, w=w, scale=scale)
    groups, columns = -(-x.shape[1] // GROUP_INPUTS), -(-out.shape[1] // LANES) * LANES
    wanted = 4 * GROUP_INPUTS // wording.inputs * groups * columns, wording.scale_bytes * groups * columns
    if (w.nbytes, scale.nbytes) != wanted:
        raise ValueError(
            f"{kernel.name}: {w.size} numbers and {scale.size} scales do not make panels of {x.shape[1]} "
            f"by {out.shape[1]}"
        )
    return groups


def product_words(
    kernel: Kernel,
    wording: Wording,
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None,
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue, by a kernel of this wording."""
    groups = check_words(kernel, wording, x, w, scale, out)
    after, workers, weight = epilogue_record(epilogue, out), threads(), filled(address(w), address(scale), groups)
    with POOL.lock:
        room = ROOM.reserve(4 * PANEL * BLOCK_DEPTH, workers)
        launch(workers, *linear_stages(kernel, x, address(weight), out, after, workers, room, unit=PANEL))
    return out
