"""Products with a separate weight for every head."""

import numpy as np

from formats.core.arrays import as_contiguous
from formats.host.threads import threads
from formats.kernels.attentions.heads import check_heads, heads_of
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import address, launch, make_record, words
from formats.kernels.engine.memory import record
from formats.kernels.matmul.gemm import TILE_ROWS, gemm, multiply

__all__ = ["headwise"]
__borders__ = (TILE_ROWS,)

HEADWISE = np.dtype(words("x x_row x_head out out_row out_head w T h d n rows multiply"))
f4 = np.float32


@Kernel
def head_by_head(item, worker, arguments):
    """Multiply a chunk of rows of one head by that head's matrix."""
    c = record(arguments, HEADWISE)
    low, head = item // c.h * c.rows, item % c.h
    multiply(
        c.multiply,
        min(c.rows, c.T - low),
        c.n,
        c.d,
        c.x + 4 * (low * c.x_row + head * c.x_head),
        4 * c.x_row,
        c.w + 4 * head * c.d * c.n,
        4 * c.n,
        c.out + 4 * (low * c.out_row + head * c.out_head),
        4 * c.out_row,
        1,
    )


def headwise(x: np.ndarray, w: np.ndarray, out: np.ndarray) -> np.ndarray:
    """out (T, h, n)[:, i] = x[:, i] @ w[i]; x is (T, h, d), or (T, 1, d) for all heads alike, w (h, d, n)."""
    weight = as_contiguous("w", w, f4)
    check_heads(out, x=x, w=weight)
    (T, x_heads, d), (h, deep, n) = x.shape, w.shape
    if x_heads not in (1, h) or d != deep:
        raise ValueError(f"headwise: x {x.shape} does not fit w {w.shape}")
    if out.shape[2] != n:
        raise ValueError(f"headwise: out {out.shape} does not fit w {w.shape}")
    source, target = heads_of("x", x, T, x_heads), heads_of("out", out, T, h)
    if not out.size:
        return out
    rows = min(T, max(16, -(-T * h // (4 * (workers := threads()) * h))))
    source = (*source[:2], 0 if x_heads == 1 else source[2])
    values = (*source, *target, address(weight), T, h, d, n, rows, gemm.address)
    launch(workers, (head_by_head, make_record([values], HEADWISE), -(-T // rows) * h))
    return out
