"""x @ W for W in panels of 64 columns, depth after depth (Goto and van de Geijn 2008): a panel is read sequentially.

The last panel has the remaining columns, in whole vectors. x is read as it is stored."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.core.layout import PANEL
from formats.host.threads import threads
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import address, launch
from formats.kernels.engine.memory import record
from formats.kernels.engine.native import njit
from formats.kernels.matmul.gemm import multiply
from formats.kernels.matmul.linear import ENOUGH, LINEAR, MAX_ITEM_ROWS, check_product, linear_stages, tile, typed
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.kernels.simd.vectors import AHEAD, MANY_REGISTERS, add_outer, ask, fetch, span, store_tile, zeros

__all__ = ["product_packed"]

FEW_ROWS = 48  # rows below which there is little time to prefetch
__borders__ = ENOUGH, MAX_ITEM_ROWS, FEW_ROWS
BLOCK_DEPTH = 384  # depths of a block: 96 KiB of a panel


@njit(**HELPER)
def one_row(none, x, w, across, depth, y):
    """Multiply one row of x by a whole panel."""
    sums = none
    for _ in range(depth):
        sums = add_outer(sums, x, 0, w, None)
        x += 4
        w += across
    store_tile(sums, y, 0, None)


@njit(**HELPER)
def deep(none, fresh, x, along, w, depth, y, step, this, following, lines):
    """Multiply some rows by a block of a panel, four depths at a time. Lines that are not in cache yet are prefetched:
    of this block from `this` on, and of the following block, as many at a time as `lines` has vectors, unless they are
    None."""
    sums = none if fresh else fetch(none, y, step, None)
    for i in range(depth // 4):
        ask(lines, following, 4 * span(lines) * i)
        for k in range(4 * i, 4 * i + 4):
            ask(none, this, 4 * PANEL * k)
            sums = add_outer(sums, x + 4 * k, along, w + 4 * PANEL * k, None)
    for k in range(depth // 4 * 4, depth):
        sums = add_outer(sums, x + 4 * k, along, w + 4 * PANEL * k, None)
    store_tile(sums, y, step, None)


@njit(**HELPER)
def block_of_panel(rows, fresh, depth, x, along, w, y, step, lines):
    """Multiply by all 64 columns of a block of depths: tiles of 6 rows, then the remaining rows. The first tile
    prefetches the block, the others the following one."""
    size = 4 * PANEL * depth
    row, following = 0, w + size
    if rows >= 6:
        deep(zeros(6, 4), fresh, x, along, w, depth, y, step, w + AHEAD, None, lines)
        row = 6
    while row + 6 <= rows:
        at, to = x + row * along, y + row * step
        if following < w + 2 * size:
            deep(zeros(6, 4), fresh, at, along, w, depth, to, step, None, following, lines)
        else:
            deep(zeros(6, 4), fresh, at, along, w, depth, to, step, None, None, lines)
        following += span(lines) * depth
        row += 6
    if row + 4 <= rows:
        deep(zeros(4, 4), fresh, x + row * along, along, w, depth, y + row * step, step, w + AHEAD, following, lines)
        row += 4
    if row + 2 <= rows:
        deep(zeros(2, 4), fresh, x + row * along, along, w, depth, y + row * step, step, w + AHEAD, following, lines)
        row += 2
    if row < rows:
        deep(zeros(1, 4), fresh, x + row * along, along, w, depth, y + row * step, step, w + AHEAD, following, lines)


@njit(**HELPER)
def whole_panel(rows, depth, x, along, w, y, step):
    """Multiply by all 64 columns: blocks of depths of about one size that stay in cache from tile to tile."""
    if rows == 1:
        one_row(zeros(1, 4), x, w, 4 * PANEL, depth, y)
        return
    blocks = (depth + BLOCK_DEPTH - 1) // BLOCK_DEPTH
    block = ((depth + blocks - 1) // blocks + 3) // 4 * 4
    for top in range(0, depth, block):
        at, to, less = x + 4 * top, w + 4 * PANEL * top, min(block, depth - top)
        if rows < FEW_ROWS:
            block_of_panel(rows, top == 0, less, at, along, to, y, step, zeros(1, 4))
        else:
            block_of_panel(rows, top == 0, less, at, along, to, y, step, zeros(1, 1))


@Kernel
def packed(item, worker, arguments):
    """Multiply by w in panels of float32; the epilogue follows panel by panel."""
    c = record(arguments, LINEAR)
    low, high, left, right = tile(c, item)
    x, out = c.x + 4 * low * c.along, c.out + 4 * low * c.step
    for start in range(left, right, PANEL):
        columns, w = min(PANEL, c.p - start), c.w + 4 * c.n * start
        if columns == PANEL and (MANY_REGISTERS or high - low == 1):
            whole_panel(high - low, c.n, x, 4 * c.along, w, out + 4 * start, 4 * c.step)
        else:
            across = 4 * ((columns + 15) // 16 * 16)
            multiply(c.multiply, high - low, columns, c.n, x, 4 * c.along, w, across, out + 4 * start, 4 * c.step, 1)
        finish_block(c.after, low, high, start, start + columns)
    if right - left == c.p:
        finish_rows(c.after, low, high)


def product_packed(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w, then the epilogue; w as `formats.core.layout.panels` gives it, float32."""
    check_product(x, None, None, out, w=typed("w", w, np.float32))
    if w.size != x.shape[1] * -(-out.shape[1] // 16) * 16:
        raise ValueError(f"packed: {w.size} numbers do not make panels of {x.shape[1]} by {out.shape[1]}")
    after, workers = epilogue_record(epilogue, out), threads()
    launch(workers, *linear_stages(packed, x, address(w), out, after, workers, unit=PANEL))
    return out
