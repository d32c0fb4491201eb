"""y = x @ w, or y += x @ w, on one thread: tiles of sums in registers (Goto and van de Geijn 2008).

Kernels get its address, so it is compiled once. They use no other BLAS, and no other pool of threads."""

from formats.kernels.engine.compiled import HELPER, Function, calling
from formats.kernels.engine.native import njit
from formats.kernels.simd.vectors import MANY_REGISTERS, add_outer, fetch, span, store_tile, zeros

# the tile of sums: 24 of 32 registers as wide as a vector, or 12 of 16 registers half as wide
TILE_ROWS, TILE_VECTORS, MIDDLE = (8, 3, 2) if MANY_REGISTERS else (6, 1, 1)
ROW_VECTORS = 12 if MANY_REGISTERS else 4  # vectors of a tile of one row
# depths of a block of a panel of 64 columns, whose rows are 256 bytes apart: the block (24 KiB) stays in L1 from tile
# to tile. Tiles as wide as three quarters of a panel read it so seldom that they need no blocks
NEAR_DEPTH = 1 << 30 if MANY_REGISTERS else 96


@njit(**HELPER)
def strip(none, x, along, w, across, depth, y, step, fresh, lanes):
    """Compute one tile of outputs: rows of x times columns of w, added to the stored outputs unless fresh."""
    sums = none if fresh else fetch(none, y, step, lanes)
    for _ in range(depth):
        sums = add_outer(sums, x, along, w, lanes)
        x += 4
        w += across
    store_tile(sums, y, step, lanes)


@njit(**HELPER)
def band(wide, middle, narrow, row, columns, depth, x, along, w, across, y, step, fresh):
    """Compute a band of rows: wide tiles of columns while they fit, a middle one, then narrow ones, the last one
    cut."""
    x, y, left = x + row * along, y + row * step, 0
    while left + span(wide) <= columns:
        strip(wide, x, along, w + 4 * left, across, depth, y + 4 * left, step, fresh, None)
        left += span(wide)
    if left + span(middle) <= columns:
        strip(middle, x, along, w + 4 * left, across, depth, y + 4 * left, step, fresh, None)
        left += span(middle)
    while left < columns:
        strip(narrow, x, along, w + 4 * left, across, depth, y + 4 * left, step, fresh, min(16, columns - left))
        left += 16


@njit(**HELPER)
def bands(rows, columns, depth, x, along, w, across, y, step, fresh):
    """Compute all rows, by bands from large to small."""
    row = 0
    while row + TILE_ROWS <= rows:
        band(
            zeros(TILE_ROWS, TILE_VECTORS),
            zeros(TILE_ROWS, MIDDLE),
            zeros(TILE_ROWS, 1),
            row,
            columns,
            depth,
            x,
            along,
            w,
            across,
            y,
            step,
            fresh,
        )
        row += TILE_ROWS
    if row + 4 <= rows:
        band(
            zeros(4, TILE_VECTORS),
            zeros(4, TILE_VECTORS),
            zeros(4, 1),
            row,
            columns,
            depth,
            x,
            along,
            w,
            across,
            y,
            step,
            fresh,
        )
        row += 4
    while row < rows:
        band(
            zeros(1, ROW_VECTORS),
            zeros(1, ROW_VECTORS),
            zeros(1, 1),
            row,
            columns,
            depth,
            x,
            along,
            w,
            across,
            y,
            step,
            fresh,
        )
        row += 1


@Function.of(10)
def gemm(rows, columns, depth, x, along, w, across, y, step, fresh):
    """y (rows, columns) = x (rows, depth) @ w (depth, columns), or += unless fresh: addresses, bytes between rows."""
    bands(rows, columns, min(NEAR_DEPTH, depth), x, along, w, across, y, step, fresh)
    for top in range(NEAR_DEPTH, depth, NEAR_DEPTH):
        bands(rows, columns, min(NEAR_DEPTH, depth - top), x + 4 * top, along, w + across * top, across, y, step, False)


# call the product at an address (the first argument): multiply(gemm.address, rows, columns, depth, x, ...)
multiply = calling(10)
