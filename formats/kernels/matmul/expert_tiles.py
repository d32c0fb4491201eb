"""Mixtures of experts: each row is multiplied by the few stacked matrices that its gate names, up and down, by the
format's own kernels, tile by tile of the rows of one expert.

The tiles are found at run time, so a recording has items for the largest possible number of tiles; items without a tile
return. Experts that no row names are not read."""

import math
from typing import NamedTuple

import numpy as np

from formats.core.arrays import readable, separate, writable
from formats.core.epilogue import Epilogue
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, make_record, step, temporary, words
from formats.kernels.engine.memory import call, longs, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.gemm import gemm
from formats.kernels.matmul.linear import LINEAR, MAX_ITEM_ROWS
from formats.kernels.matmul.own_kernels import OWN_FIELDS, MatrixStack, find_own
from formats.kernels.rows.following import EPILOGUE, epilogue_record
from formats.kernels.rows.routed_rows import (
    ROUTED,
    TILE_WORDS,
    count_tiles,
    count_words,
    order_rows,
    place_rows,
    sum_parts,
)

__all__ = ["experts"]
__borders__ = (MAX_ITEM_ROWS,)

# x (places, n) to out (places, p): tile by tile, `cols` columns at a time, by the matrices of `own`, a record of
# OWN_FIELDS; single: 1 if x is one row, for all places. after: words of an epilogue, which tiles fill in; bias: rows of
# p numbers, one for each matrix, bias_row apart; beside: matrices that compute the factor, whose epilogue is
# after_beside, with rows of beside_bias, beside_row apart; 0 if there is none. aside: bytes of room before those of the
# formats' kernels
TILED = np.dtype(
    words(
        "tiles x along single out step p cols own after bias bias_row beside after_beside beside_bias beside_row "
        "aside room apart multiply"
    )
)
RECORD = 128  # bytes for the record of a product, or of an epilogue
LINEAR_WORDS, AFTER_WORDS = LINEAR.itemsize // 8, EPILOGUE.itemsize // 8
AFTER_OUT, AFTER_STEP, AFTER_BIAS, AFTER_TIMES, AFTER_BESIDE = map(
    (EPILOGUE.names or ()).index, ("out", "step", "bias", "times", "beside")
)
ITEMS_EACH = 4  # items for each worker, as some have little work


@njit(**HELPER)
def multiply_tile(c, own_at, block, worker, rows, e, x, along, out, step, after):
    """Multiply some rows by a block of columns of matrix e, by the format's kernel; out is the address of column 0."""
    own, mine = record(own_at, OWN_FIELDS), c.room + worker * c.apart
    given = longs(mine, LINEAR_WORDS)
    given[0], given[1], given[2], given[3], given[4], given[5], given[6] = x, along, out, step, rows, own.n, own.p
    given[7], given[8], given[9], given[10], given[11] = rows, c.cols, c.multiply, c.room + c.aside, c.apart
    given[12], given[13], given[14] = longs(own.w, e + 1)[e], own.bytes, after
    call(own.one if c.single else own.more, block, worker, mine)


@njit(**HELPER)
def fill_epilogue(words_at, target, out, step, bias):
    """Copy the words of an epilogue, for a tile with this output and the address of its bias, 0 for none."""
    given, kept = longs(words_at, AFTER_WORDS), longs(target, AFTER_WORDS)
    for i in range(AFTER_WORDS):
        kept[i] = given[i]
    kept[AFTER_OUT], kept[AFTER_STEP] = out, step
    if bias:
        kept[AFTER_BIAS] = bias


@Kernel
def expert_tile(item, worker, arguments):
    """Compute a block of columns of a tile; no effect if there is no such tile."""
    c = record(arguments, TILED)
    across = (c.p + c.cols - 1) // c.cols
    at, block = item // across, item % across
    if at >= longs(c.tiles, 1)[0]:
        return
    found = longs(c.tiles + 8 * (1 + TILE_WORDS * at), TILE_WORDS)
    e, low, rows = found[0], found[1], found[2] - found[1]
    x, along, out, after = c.x + 4 * low * c.along, c.along, c.out + 4 * low * c.step, 0
    if c.after:
        after = c.room + worker * c.apart + RECORD
        fill_epilogue(c.after, after, out, c.step, c.bias + 4 * e * c.bias_row)
        if c.beside:
            factor, behind = after + 2 * RECORD - 4 * block * c.cols, 0
            if c.after_beside:
                behind = after + RECORD
                fill_epilogue(c.after_beside, behind, factor, c.cols, c.beside_bias + 4 * e * c.beside_row)
            multiply_tile(c, c.beside, block, worker, rows, e, x, along, factor, c.cols, behind)
            kept = longs(after, AFTER_WORDS)
            kept[AFTER_TIMES], kept[AFTER_BESIDE] = factor, c.cols
    multiply_tile(c, c.own, block, worker, rows, e, x, along, out, c.step, after)


def cut_columns(tiles: int, p: int, workers: int, portion: int) -> int:
    """Return the columns of an item: all for one worker; else so few that all workers have some, wherever rows are
    routed."""
    parts = 1 if workers == 1 else min(workers, max(2, -(-ITEMS_EACH * workers // max(tiles, 1))))
    unit = math.lcm(portion, 16)
    return min(p, -(-p // parts // unit) * unit)


class ItemCut(NamedTuple):
    """Sizes of the work items: `rows` of a tile, at most `tiles` tiles, columns of an item of each product (`up`,
    `down`), and bytes of room before those of the formats' kernels (`aside`)."""

    rows: int
    tiles: int
    up: int
    down: int
    aside: int

    @classmethod
    def of(cls, places: int, E: int, f: int, q: int, workers: int, portions: tuple[int, int]) -> "ItemCut":
        """Return the sizes for `places` rows of experts and E matrices, with f and q outputs that formats compute by
        portions."""
        rows = max(1, min(MAX_ITEM_ROWS, places))
        tiles = count_tiles(places, E, rows)
        up, down = (cut_columns(tiles, p, workers, portion) for p, portion in zip((f, q), portions, strict=True))
        return cls(rows, tiles, up, down, 3 * RECORD + -(-4 * rows * up // 64) * 64)


def experts(
    x: np.ndarray,
    gate: np.ndarray,
    up: MatrixStack,
    down: MatrixStack,
    out: np.ndarray,
    beside: MatrixStack | None = None,
    activation: str = "",
    most: int = 1,
    residual: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    beside_bias: np.ndarray | None = None,
    beside_activation: str = "",
) -> np.ndarray:
    """out (T, q) = the sum over e of gate[:, e] * ((act(x @ up[e] + bias[e]) * fac(x @ beside[e] + beside_bias[e])) @
    down[e]), + residual, for the e at which a row of gate (T, E) is not 0, `most` at most: a row with more becomes NaN.
    Without beside, its factor is left out. up, beside: E matrices (n, f), down: (f, q), of float32 or of one format
    each; bias, beside_bias: (E, f); fac: the function `beside_activation`."""
    check_experts(x, gate, up, down, out, beside, most, residual, bias, beside_bias)
    (T, n), E, (f, q) = x.shape, gate.shape[1], down.shape[1:]
    if not T:
        return out
    workers, most = threads(), min(most, E)
    places = T * most
    first, last, second = (
        None if stack is None else find_own(name, stack)
        for name, stack in (("up", up), ("down", down), ("beside", beside))
    )
    assert first is not None and last is not None
    beside_portion = 1 if second is None else second.portion  # an item cuts both matrices at the same columns
    cut = ItemCut.of(places, E, f, q, workers, (math.lcm(first.portion, beside_portion), last.portion))
    raised, parts = temporary((places, f)), temporary((places, max(n if T > 1 else 0, q)))
    held = [*map(word_array, count_words(T, most, E, cut.rows)), parts, parts]
    after = epilogue_record(Epilogue(activation=activation), raised, rough=first.rounds)
    after_beside = None
    if second is not None and (beside_activation or beside_bias is not None):
        after_beside = epilogue_record(Epilogue(activation=beside_activation), raised, rough=second.rounds)
    chunk = -(-T // (4 * workers))
    routed = make_record(
        [
            (
                address(x),
                step(x),
                T,
                n,
                address(gate),
                step(gate),
                E,
                most,
                cut.rows,
                *map(address, held),
                q,
                address(out),
                step(out),
                address(residual),
                0 if residual is None else step(residual),
                chunk,
            )
        ],
        ROUTED,
    )
    told = [None if products is None else products.record() for products in (first, second, last)]
    with POOL.lock:
        room = ROOM.reserve(
            cut.aside + max(products.room(cut.rows) for products in (first, second, last) if products), workers
        )
        row, beside_row = ((address(rows), 0 if rows is None else step(rows)) for rows in (bias, beside_bias))
        ordered = (address(x), 0, 1) if T == 1 else (address(parts), n, 0)
        raising = filled(
            address(held[5]),
            *ordered,
            address(raised),
            f,
            f,
            cut.up,
            address(told[0]),
            address(after),
            *row,
            address(told[1]),
            address(after_beside),
            *beside_row,
            cut.aside,
            *room,
            gemm.address,
        )
        lowering = filled(
            address(held[5]),
            address(raised),
            f,
            T == 1,
            address(parts),
            q,
            q,
            cut.down,
            address(told[2]),
            *(0,) * 7,
            cut.aside,
            *room,
            gemm.address,
        )
        launch(
            workers,
            (place_rows, routed, 1),
            *([(order_rows, routed, -(-T // chunk))] if T > 1 else ()),
            (expert_tile, raising, cut.tiles * -(-f // cut.up)),
            (expert_tile, lowering, cut.tiles * -(-q // cut.down)),
            (sum_parts, routed, -(-T // chunk)),
        )
    return out


def word_array(count: int) -> np.ndarray:
    """Return memory for `count` words that live between two launches."""
    return temporary((2 * count,))


def check_experts(
    x: np.ndarray,
    gate: np.ndarray,
    up: MatrixStack,
    down: MatrixStack,
    out: np.ndarray,
    beside: MatrixStack | None,
    most: int,
    residual: np.ndarray | None,
    bias: np.ndarray | None,
    beside_bias: np.ndarray | None,
) -> None:
    """Check the arguments: sizes fit, and out does not overlap the arrays that are read. ValueError names the array
    that does not fit."""
    if x.ndim != 2 or gate.ndim != 2:
        raise ValueError(f"x and gate: expected two axes each, got shapes {x.shape} and {gate.shape}")
    (T, n), E = x.shape, gate.shape[1]
    shapes = {
        name: tuple(stack.shape)
        for name, stack in (("up", up), ("beside", beside), ("down", down))
        if stack is not None
    }
    f, q = shapes["down"][1:] if len(shapes["down"]) == 3 else (0, 0)
    for name, shape in shapes.items():
        wanted = (E, f, q) if name == "down" else (E, n, f)
        if shape != wanted or 0 in shape:
            raise ValueError(f"{name}: expected matrices {wanted}, got {shape}")
    if most < 1:
        raise ValueError(f"most: each row is routed to at least one matrix, got {most}")
    for name, array, columns in (("x", x, n), ("gate", gate, E), ("out", out, q), ("residual", residual, q)):
        if array is not None:
            readable(name, array, (T, columns))
    rows = {name: array for name, array in (("bias", bias), ("beside_bias", beside_bias)) if array is not None}
    for name, array in rows.items():
        readable(name, array, (E, f))
    writable("out", out)
    stacks = {
        name: stack for name, stack in (("up", up), ("beside", beside), ("down", down)) if isinstance(stack, np.ndarray)
    }
    separate(out, x=x, gate=gate, **stacks, **rows, **({} if residual is None else {"residual": residual}))
