"""Norm, gain and shift of each head of each row by itself, as queries and keys have them before they are rotated."""

import numpy as np

from formats.core.arrays import as_contiguous, separate, writable
from formats.core.epilogue import EPS, NORMS
from formats.host.threads import threads
from formats.kernels.attentions.heads import heads_of
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import address, launch, make_record, words
from formats.kernels.engine.memory import floats, record
from formats.kernels.rows.following import combine, normalise

__all__ = ["pointwise_heads"]

# out (T, h, d) from x; normal: 1 subtracts the mean, 2 does not, 0 is no normalisation
NORMED = np.dtype([*words("x x_row x_head out out_row out_head gain shift normal T h d rows"), ("eps", "f8")])


@Kernel
def normed(item, worker, arguments):
    """Normalise a chunk of rows, head by head."""
    c = record(arguments, NORMED)
    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):
        for head in range(c.h):
            y = c.out + 4 * (row * c.out_row + head * c.out_head)
            combine(c.x + 4 * (row * c.x_row + head * c.x_head), y, c.d, 0, 0, 0)
            if c.normal:
                normalise(floats(y, c.d), c.normal == 1, c.eps)
            combine(y, y, c.d, c.gain, c.shift, 0)


def pointwise_heads(
    x: np.ndarray,
    out: np.ndarray,
    gain: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    eps: float | None = None,
    norm: str = "layer",
) -> np.ndarray:
    """out (T, h, d), which may be x: each head of x normalised by itself if there is an eps (see
    formats.core.epilogue), times gain, plus shift, each (d,). ValueError for arrays that do not fit."""
    if x.ndim != 3 or out.shape != x.shape:
        raise ValueError(f"norm: x {x.shape} and out {out.shape} must be (rows, heads, columns)")
    if norm not in NORMS:
        raise ValueError(f"norm: {norm!r} is unknown: give {' or '.join(NORMS)}")
    if eps is not None and not EPS[0] <= eps <= EPS[1]:
        raise ValueError(f"norm: eps = {eps} is not from {EPS[0]:.3g} to {EPS[1]:.3g}")
    T, h, d = x.shape
    writable("out", out)
    separate(out, over=True, x=x)
    rows = {
        name: as_contiguous(name, row, np.float32)
        for name, row in (("gain", gain), ("shift", shift))
        if row is not None
    }
    for name, row in rows.items():
        if row.shape != (d,):
            raise ValueError(f"{name}: expected shape ({d},), got {row.shape}")
    separate(out, **rows)
    source, target = heads_of("x", x, T, h), heads_of("out", out, T, h)
    if not out.size:
        return out
    normal = 0 if eps is None else 1 if norm == "layer" else 2
    chunk = max(1, -(-T // (4 * (workers := threads()))))
    values = *source, *target, address(rows.get("gain")), address(rows.get("shift")), normal, T, h, d, chunk, eps or 0.0
    launch(workers, (normed, make_record([values], NORMED), -(-T // chunk)))
    return out
