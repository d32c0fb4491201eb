"""x @ W for W in panels of narrow numbers: bfloat16, bytes, halves of bytes. x is converted on the way, a row at a time.

A word of 32 bits holds what lies along the depth: two bfloat16 or four bytes (words.py). Bytes are W / scale + 128 and meet
rows of x / scale, whole numbers up to 127 (rounding.py); what the 128 adds is taken off again.
Scales of W belong to a column, or to a group of depths of one."""
from typing import Any

import numpy as np

from ..panels import PANEL
from ..threads import threads
from .amx import MATRIX, matrix_fours, matrix_pairs, release_registers, shape_registers
from .arithmetic import get, keep
from .compiled import HELPER, Kernel
from .epilogue import epilogue_record, finish_rows, move_block
from .launch import ROOM, address, filled, launch, words
from .linear import LINEAR, check_product, linear_stages, split, tile, typed
from .memory import bytes_at, floats, record, whole
from .native import njit
from .pool import POOL
from .rounding import ONE, round_bytes, round_halves
from .vectors import AHEAD, prefetch_apart, write, zeros
from .words import as_numbers, dot_eights, dot_fours, dot_pairs

# depth: numbers of a row of W, whole steps of 64 bytes; group: those that share a scale, of which there are groups; span:
# bytes of a converted row
NARROW = np.dtype(words("w scale depth group groups span"))
BAND = 32                                                    # rows whose sums lie in room
f4, i4 = np.float32, np.int32


# ---- sums of a band of rows against some columns of a panel

def by_vectors(dot, deep):
    """A function: rows of sums at y, of words of x against a panel; a vector of the panel holds `deep` words, those of the next
    depth lie apart, those of the next 16 columns beside."""
    @njit(**HELPER)
    def strip_words(none, ahead, x, along, w, apart, beside, steps, y, step):
        sums = none
        for _ in range(steps // deep):
            if ahead: prefetch_apart(sums, w + AHEAD, beside)
            sums = dot(sums, x, along, w, beside)
            x += 4 * deep
            w += apart
        write(sums, y, step, None)

    @njit(**HELPER)
    def multiply(rows, columns, x, along, w, apart, beside, steps, y, step, ahead, lines):
        for row in range(0, rows // 4 * 4, 4):
            for v in range(0, columns, 32 if columns % 32 == 0 else 16):
                at, to, start = x + row * along, y + row * step + 4 * v, w + v // 16 * beside
                if columns % 32 == 0: strip_words(zeros(4, 2), False, at, along, start, apart, beside, steps, to, step)
                else: strip_words(zeros(4, 1), False, at, along, start, apart, beside, steps, to, step)
        for row in range(rows // 4 * 4, rows):
            for v in range(0, columns, 64 if columns == PANEL else 16):
                at, to, start = x + row * along, y + row * step + 4 * v, w + v // 16 * beside
                if columns == PANEL: strip_words(zeros(1, 4), True, at, along, start, apart, beside, steps, to, step)
                else: strip_words(zeros(1, 1), True, at, along, start, apart, beside, steps, to, step)
    return multiply


vector_pairs, vector_fours, vector_eights = by_vectors(dot_pairs, 1), by_vectors(dot_fours, 1), by_vectors(dot_eights, 2)


@njit(forceinline=True, **HELPER)
def settle(found, less, factor, scale, to, fresh, lanes):
    """A vector of whole sums: less what was added, times the scales of its row and of its columns."""
    number = as_numbers(get(found, None), less) * (get(scale, lanes) * factor)
    keep(number if fresh else number + get(to, lanes), to, None)


@njit(**HELPER)
def lifted(block, rows, lifts):
    """Rows of sums times what their scales leave out (see LIFT)."""
    for i in range(rows):
        lift, row = floats(lifts + 4 * i, 1)[0], floats(block + 4 * PANEL * i, PANEL)
        for j in range(PANEL if lift != ONE else 0): row[j] *= lift


@njit(forceinline=True, **HELPER)
def settled(sums, rows, columns, middle, totals, groups, g, scales, scale, to):
    """Whole sums of a group as float32, added to those of the groups before; `to` may be sums where there is one group."""
    full = columns // 16 * 16
    for i in range(rows):
        less, factor = i4(middle * whole(totals + 4 * (i * groups + g), 1)[0]), floats(scales + 4 * i, 1)[0]
        found, kept = sums + 4 * PANEL * i, to + 4 * PANEL * i
        for j in range(0, full, 16): settle(found + 4 * j, less, factor, scale + 4 * j, kept + 4 * j, g == 0, None)
        if full < columns: settle(found + 4 * full, less, factor, scale + 4 * full, kept + 4 * full, g == 0, columns - full)


@njit(**HELPER)
def spread_nibbles(w, count, target):
    """Halves of bytes to bytes: so many lines of 64 at w, each of two words of depth, to twice as many."""
    for k in range(count):
        source, low, high = bytes_at(w + 64 * k, 64), bytes_at(target + 128 * k, 64), bytes_at(target + 128 * k + 64, 64)
        for i in range(64):
            low[i] = source[i] & 15
            high[i] = source[i] >> 4


@njit(forceinline=True, **HELPER)
def row_of(x, i, span, tiled):
    """Where a rounded row begins: rows lie one after another, or 16 at a time by pieces of 64 bytes, as registers take them."""
    return x + i // 16 * 16 * span + i % 16 * 64 if tiled else x + i * span


@njit(**HELPER)
def following(panel, size, rows, more):
    """Where the next panel begins, and how many of its lines a band asks for."""
    bands = (rows + BAND - 1) // BAND
    return panel + size, (size // 64 + bands - 1) // bands if more else 0


# ---- kernels

# forceinline: what is called through an argument could otherwise not be kept in the cache

@njit(**HELPER)
def no_shape(at):
    """What vectors need in place of shape_registers."""


@njit(**HELPER)
def no_release():
    """What vectors need in place of release_registers."""


@njit(forceinline=True, **HELPER)
def halves_by(multiply, shape, release, tiled, item, worker, arguments):
    """An item of bfloat16."""
    c = record(arguments, LINEAR)
    w = record(c.w, NARROW)
    low, high, left, right = tile(c, item)
    x = c.room + worker * c.apart
    sums = x + (high - low + BAND - 1) // BAND * BAND * w.span        # registers take whole bands of rows
    shape(sums + 4 * BAND * PANEL)
    for i in range(high - low):
        round_halves(c.x + 4 * (low + i) * c.along, c.n, row_of(x, i, w.span, tiled), w.depth, 1024 if tiled else 64)
    for start in range(left, right, PANEL):
        columns = min(PANEL, c.p - start)
        stored, panel = (columns + 15) // 16 * 16, w.w + 2 * w.depth * start
        ahead, lines = following(panel, 2 * w.depth * stored, high - low, start + PANEL < right)
        for i in range(0, high - low, BAND):
            rows, out = min(BAND, high - low - i), c.out + 4 * ((low + i) * c.step + start)
            multiply(rows, stored, x + i * w.span, w.span, panel, 64, 32 * w.depth, w.depth // 2, sums, 4 * PANEL,
                     ahead + 2 * i * lines, lines)
            move_block(c.after, low + i, low + i + rows, start, start + columns, sums, 4 * PANEL, out, 4 * c.step)
    release()
    if right - left == c.p: finish_rows(c.after, low, high)


@njit(forceinline=True, **HELPER)
def bytes_by(multiply, shape, release, tiled, middle, per, spread, item, worker, arguments):
    """An item of bytes, or of halves of them (two words of depth in a vector), which are spread to bytes or read as they are;
    middle was added to W, per numbers of a column lie in a word."""
    c = record(arguments, LINEAR)
    w = record(c.w, NARROW)
    low, high, left, right = tile(c, item)
    groups = w.groups
    x = c.room + worker * c.apart
    sums = x + (high - low + BAND - 1) // BAND * BAND * w.span        # registers take whole bands of rows
    scales = sums + 4 * BAND * PANEL + 64
    lifts, far = scales + 4 * (high - low), False
    totals = lifts + 4 * (high - low)
    wide = totals + 4 * (high - low) * groups + 64
    wide -= wide % 64
    block = sums if groups == 1 else wide + PANEL * w.depth  # what the groups add up to
    shape(sums + 4 * BAND * PANEL)
    for i in range(high - low):
        scale, lift = round_bytes(c.x + 4 * (low + i) * c.along, c.n, row_of(x, i, w.span, tiled), w.depth,
                                  1024 if tiled else 64, w.group, groups, totals + 4 * i * groups)
        floats(scales + 4 * i, 1)[0], floats(lifts + 4 * i, 1)[0] = scale, lift
        far |= lift != ONE
    for start in range(left, right, PANEL):
        columns = min(PANEL, c.p - start)
        stored, panel, packed = (columns + 15) // 16 * 16, w.w + w.depth * start * 4 // per, 4 if spread else per
        ahead, lines = following(panel, w.depth * stored * 4 // per, high - low, start + PANEL < right)
        if spread:
            spread_nibbles(panel, w.depth * stored // 128, wide)
            panel = wide
        for i in range(0, high - low, BAND):
            rows, out = min(BAND, high - low - i), c.out + 4 * ((low + i) * c.step + start)
            for g in range(groups):
                length = min(w.group, w.depth - g * w.group)
                multiply(rows, stored, x + i * w.span + g * w.group * (16 if tiled else 1), w.span,
                         panel + g * w.group * 64 // packed, 64, w.depth * 64 // packed, length // 4, sums, 4 * PANEL,
                         ahead + 2 * i * lines, lines if g == 0 else 0)
                settled(sums, rows, columns, middle, totals + 4 * i * groups, groups, g, scales + 4 * i,
                        w.scale + 4 * (g * c.p + start), block)
            if far: lifted(block, rows, lifts + 4 * i)
            move_block(c.after, low + i, low + i + rows, start, start + columns, block, 4 * PANEL, out, 4 * c.step)
    release()
    if right - left == c.p: finish_rows(c.after, low, high)


@Kernel
def halves(item, worker, arguments):
    """bfloat16, by vectors."""
    halves_by(vector_pairs, no_shape, no_release, False, item, worker, arguments)


@Kernel
def quantised(item, worker, arguments):
    """Bytes, by vectors."""
    bytes_by(vector_fours, no_shape, no_release, False, 128, 4, False, item, worker, arguments)


@Kernel
def nibbled(item, worker, arguments):
    """Halves of bytes, by vectors."""
    bytes_by(vector_eights, no_shape, no_release, False, 8, 8, False, item, worker, arguments)


halves_matrix, quantised_matrix, nibbled_matrix = halves, quantised, nibbled
if MATRIX:                                                   # others could not even be compiled
    @Kernel
    def halves_matrix(item, worker, arguments):
        """bfloat16, by matrix registers."""
        halves_by(matrix_pairs, shape_registers, release_registers, True, item, worker, arguments)

    @Kernel
    def quantised_matrix(item, worker, arguments):
        """Bytes, by matrix registers."""
        bytes_by(matrix_fours, shape_registers, release_registers, True, 128, 4, False, item, worker, arguments)

    @Kernel
    def nibbled_matrix(item, worker, arguments):
        """Halves of bytes, spread, by matrix registers."""
        bytes_by(matrix_fours, shape_registers, release_registers, True, 8, 8, True, item, worker, arguments)


# ---- from Python

def product_narrow(kernels: tuple[Kernel, Kernel], x: np.ndarray, w: np.ndarray, scale: np.ndarray | None, group: int,
                   out: np.ndarray, epilogue: Any, unit: int, per: int = 1) -> np.ndarray:
    """The product by the first kernel for one row, by the second for more; scale: (groups, p). n is rounded up to units in w,
    p to 16; `per` numbers lie in one of w."""
    check_product(x, None, None, out, w=w, **({} if scale is None else {"scale": scale}))
    (T, n), p = x.shape, out.shape[1]
    depth, columns = -(-n // unit) * unit, -(-p // 16) * 16
    if w.size * per != depth * columns:
        raise ValueError(f"w: {w.size} numbers of {w.dtype} do not make panels of {depth} by {columns}")
    if group < 1: raise ValueError(f"scale: groups of {group} inputs")
    group = min(group, depth)
    groups, span = -(-n // group), depth * (2 if scale is None else 1) + 64
    if (scale is not None and scale.shape != (groups, p)) or group % unit:
        raise ValueError(f"scale: expected one for each of {p} columns and groups of {group} in {n} inputs, a multiple of {unit}")
    weight, after = filled(address(w), address(scale), depth, group, groups, span), epilogue_record(epilogue, out, rough=True)
    rows, _ = split(T, p, workers := threads(), PANEL)
    with POOL.lock:
        room = ROOM.reserve((rows + BAND) * (span + 8 + 4 * groups) + 8 * BAND * PANEL + 256 + PANEL * depth, workers)
        launch(workers, *linear_stages(kernels[T > 1], x, address(weight), out, after, workers, room, unit=PANEL))
    return out


def product_bf16(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w, then the epilogue; w: bfloat16 as uint16, in panels of pairs, n rounded up to 32. x is
    rounded to bfloat16, sums are float32."""
    return product_narrow((halves, halves_matrix), x, typed("w", w, np.uint16), None, 1 << 30, out, epilogue, 32)


def product_int8(x: np.ndarray, w: np.ndarray, scale: np.ndarray, group: int, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; w: bytes W / scale + 128 in panels of fours, n rounded up to 64; scale:
    float32, a row for every group of inputs. Each row of x is rounded to 255 steps, sums are exact within a group."""
    return product_narrow((quantised, quantised_matrix), x, typed("w", w, np.uint8), typed("scale", scale, f4, axes=2), group,
                          out, epilogue, 64)


def product_int4(x: np.ndarray, w: np.ndarray, scale: np.ndarray, group: int, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """The same for halves of bytes W / scale + 8: in a byte the low half is of one word of depth, the high one of the next."""
    return product_narrow((nibbled, nibbled_matrix), x, typed("w", w, np.uint8), typed("scale", scale, f4, axes=2), group,
                          out, epilogue, 64, 2)
