"""Transposition of tiles of tokens, so that tokens run along the contiguous axis, and back."""

from formats.kernels.engine.compiled import HELPER
from formats.kernels.engine.memory import floats
from formats.kernels.engine.native import njit
from formats.kernels.simd.vectors import turn, turn_edge


@njit(**HELPER)
def turn_in(x, along, count, n, y, tokens, depth):
    """Transpose count rows of n numbers at x, along bytes apart, to y: (depth, tokens), zero from line n on. Lanes
    beyond the count rows have arbitrary values. tokens is 1 or a multiple of 8, depth of 16."""
    full = n // 16 * 16
    if tokens == 1:
        row, kept = floats(x, n), floats(y, n)
        for k in range(n):
            kept[k] = row[k]
    for t in range(0, count if tokens > 1 else 0, 16):
        here, lanes = min(16, count - t), min(16, tokens - t)
        for k in range(0, full, 16):
            source, target = x + t * along + 4 * k, y + 4 * (k * tokens + t)
            if here == 16:
                turn(source, along, target, 4 * tokens)
            else:
                turn_edge(source, along, here, 16, target, 4 * tokens, 16, lanes)
        if full < n:
            turn_edge(
                x + t * along + 4 * full, along, here, n - full, y + 4 * (full * tokens + t), 4 * tokens, 16, lanes
            )
    empty = floats(y + 4 * n * tokens, (depth - n) * tokens)
    for i in range(empty.size):
        empty[i] = 0


@njit(**HELPER)
def turn_out(y, tokens, width, out, step, count):
    """Transpose the width lines at y, tokens apart, to columns of the count rows at out, step bytes apart."""
    for t in range(0, count, 16):
        for j in range(0, width, 16):
            if t + 16 <= count and j + 16 <= width:
                turn(y + 4 * (j * tokens + t), 4 * tokens, out + t * step + 4 * j, step)
            else:
                turn_edge(
                    y + 4 * (j * tokens + t),
                    4 * tokens,
                    min(16, width - j),
                    16,
                    out + t * step + 4 * j,
                    step,
                    min(16, count - t),
                    min(16, width - j),
                )
