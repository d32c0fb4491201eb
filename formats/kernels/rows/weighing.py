"""Weighted sum of the heads of each row."""

import numpy as np

from formats.core.arrays import readable, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import heads_of
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import address, launch, make_record, step, words
from formats.kernels.engine.memory import floats, record
from formats.kernels.engine.native import njit
from formats.kernels.simd.arithmetic import get, keep

__all__ = ["blend_heads"]

# out (T, p) from x (T, h, p) and by (T, h), + residual, 0 if there is none; rows: rows of an item
WEIGHED = np.dtype(words("x x_row x_head by by_row out step residual across T h p rows"))


@njit(forceinline=True, **HELPER)
def weigh_vector(c, row, at, lanes):
    """Sum 16 columns of a row, head by head, then the residual."""
    x, by = c.x + 4 * (row * c.x_row + at), floats(c.by + 4 * row * c.by_row, c.h)
    total = get(x, lanes) * by[0]
    for head in range(1, c.h):
        total = total + get(x + 4 * head * c.x_head, lanes) * by[head]
    if c.residual:
        total = total + get(c.residual + 4 * (row * c.across + at), lanes)
    keep(total, c.out + 4 * (row * c.step + at), lanes)


@Kernel
def weighed_rows(item, worker, arguments):
    """Sum the heads of a chunk of rows."""
    c = record(arguments, WEIGHED)
    full = c.p // 16 * 16
    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):
        for at in range(0, full, 16):
            weigh_vector(c, row, at, None)
        if full < c.p:
            weigh_vector(c, row, full, c.p - full)


def blend_heads(x: np.ndarray, by: np.ndarray, out: np.ndarray, residual: np.ndarray | None = None) -> np.ndarray:
    """out (T, p) = the sum over h of x[:, h] * by[:, h], + residual: x (T, heads, p), by (T, heads)."""
    if x.ndim != 3:
        raise ValueError(f"x: expected three axes, got shape {x.shape}")
    T, h, p = x.shape
    if not h:
        raise ValueError("x: it has 0 heads")
    readable("by", by, (T, h))
    readable("out", out, (T, p))
    if residual is not None:
        readable("residual", residual, (T, p))
    place = heads_of("x", x, T, h)
    writable("out", out)
    separate(out, x=x, by=by, **({} if residual is None else {"residual": residual}))
    if not out.size:
        return out
    rows = max(1, -(-T // (4 * (workers := threads()))))
    launch(
        workers,
        (
            weighed_rows,
            make_record(
                [
                    (
                        *place,
                        address(by),
                        step(by),
                        address(out),
                        step(out),
                        address(residual),
                        0 if residual is None else step(residual),
                        T,
                        h,
                        p,
                        rows,
                    )
                ],
                WEIGHED,
            ),
            -(-T // rows),
        ),
    )
    return out
