"""Rotation by positions (Su et al. 2021, RoPE): pairs of columns of every head are rotated by angles of the row's
position."""

import numpy as np

from formats.core.arrays import as_contiguous, places, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import Layout, heads_of, sequences
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import address, launch, make_record, words
from formats.kernels.engine.memory import longs, record
from formats.kernels.engine.native import njit
from formats.kernels.rows.following import combine
from formats.kernels.simd.arithmetic import get, keep

__all__ = ["rotate"]

# out (T, h, d) from x; cos and sin (positions, k): row positions[i] belongs to row i of x; with starts, row i is the
# last token of sequence i, or its first
ROTATED = np.dtype(words("x x_row x_head out out_row out_head positions starts last cos sin T h d k rows"))


@njit(forceinline=True, **HELPER)
def turn_pairs(a, b, cos, sin, to, fellow, lanes):
    """Store (a + i b)(cos + i sin) of the vectors at these addresses; both are read before either is written."""
    x, y, c, s = get(a, lanes), get(b, lanes), get(cos, lanes), get(sin, lanes)
    keep(x * c - y * s, to, lanes)
    keep(x * s + y * c, fellow, lanes)


@Kernel
def rotated(item, worker, arguments):
    """Rotate a chunk of rows; columns behind the first 2 k stay as they are."""
    c = record(arguments, ROTATED)
    half, full = 4 * c.k, 4 * (c.k // 16 * 16)
    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):
        at = row
        if c.starts:
            bounds = longs(c.starts + 8 * row, 2)
            if bounds[0] == bounds[1]:
                continue
            at = bounds[1] - 1 if c.last else bounds[0]
        angle = half * longs(c.positions + 8 * at, 1)[0]
        cos, sin = c.cos + angle, c.sin + angle
        for head in range(c.h):
            x, out = c.x + 4 * (row * c.x_row + head * c.x_head), c.out + 4 * (row * c.out_row + head * c.out_head)
            for at in range(0, full, 64):
                turn_pairs(x + at, x + half + at, cos + at, sin + at, out + at, out + half + at, None)
            if full < half:
                turn_pairs(
                    x + full, x + half + full, cos + full, sin + full, out + full, out + half + full, (half - full) // 4
                )
            combine(x + 2 * half, out + 2 * half, c.d - 2 * c.k, 0, 0, 0)


def rotate(
    x: np.ndarray,
    positions: np.ndarray,
    cos: np.ndarray,
    sin: np.ndarray,
    out: np.ndarray,
    starts: np.ndarray | Layout | None = None,
    last: bool = True,
) -> np.ndarray:
    """out (T, h, d), which may be x: columns i and k + i of every head of x are rotated by the angle whose cosine and
    sine are in column i of cos and sin (N, k), in the row of the position. With starts, x has a row for each sequence,
    that of its last token or of its first; positions are those of all tokens. IndexError for a position outside."""
    if x.ndim != 3 or out.shape != x.shape:
        raise ValueError(f"rotate: x {x.shape} and out {out.shape} must be (rows, heads, columns)")
    T, h, d = x.shape
    if cos.ndim != 2 or cos.shape != sin.shape or 2 * cos.shape[1] > d:
        raise ValueError(
            f"rotate: cos {cos.shape} and sin {sin.shape}: both must be (positions, at most half of {d} columns)"
        )
    batch = None if starts is None else sequences(starts)
    if batch and len(batch.starts) <= T:
        raise ValueError(f"rotate: {len(batch.starts) - 1} sequences, but x has {T} rows")
    tokens = int(batch.starts[-1]) if batch else T
    places("positions", positions, tokens, len(cos), of="cos")
    positions, cos, sin = (
        as_contiguous("positions", positions, np.int64),
        as_contiguous("cos", cos, np.float32),
        as_contiguous("sin", sin, np.float32),
    )
    writable("out", out)
    separate(out, over=True, x=x)
    separate(out, positions=positions, cos=cos, sin=sin)
    source, target = heads_of("x", x, T, h), heads_of("out", out, T, h)
    if not out.size:
        return out
    rows = max(1, -(-T // (4 * (workers := threads()))))
    tables = address(positions), address(batch and batch.starts), last, address(cos), address(sin)
    values = (*source, *target, *tables, T, h, d, cos.shape[1], rows)
    launch(workers, (rotated, make_record([values], ROTATED), -(-T // rows)))
    return out
