"""Products of small dense parts: block-diagonal, low rank with a sparse remainder, Kronecker. Nothing is put
together."""
from typing import Any

import numpy as np

from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, temporary, words
from formats.kernels.engine.memory import record
from formats.kernels.engine.pool import POOL
from formats.kernels.rows.following import epilogue_record, finish_block, finish_rows
from formats.machine.threads import threads

from .gemm import multiply
from .linear import (
    BLOCK_COLUMNS,
    BLOCK_DEPTH,
    LINEAR,
    check_factors,
    check_product,
    dense_by_blocks,
    linear_stages,
    tile,
    typed,
)
from .sparse import product_csr

# a block has so many inputs and outputs; fresh: 0 to add to what is there
GROUPED = np.dtype(words("val inputs outputs fresh"))
# k times: at, Aᵀ of c by r; b, B of s by t
FACTORS = np.dtype(words("at b k r c s t"))
f4 = np.float32


@Kernel.of(3, rare=True)
def grouped(item, worker, arguments):
    """Every range of outputs from its own range of inputs."""
    c = record(arguments, LINEAR)
    w = record(c.w, GROUPED)
    low, high, left, right = tile(c, item)
    for start in range(left, right, BLOCK_COLUMNS):
        to, block = min(start + BLOCK_COLUMNS, right), start // w.outputs
        while block * w.outputs < to:
            first, last = max(block * w.outputs, start), min((block + 1) * w.outputs, to)
            top = block * w.inputs
            values = w.val + 4 * (top * w.outputs + first - block * w.outputs)
            multiply(c.multiply, high - low, last - first, min(w.inputs, c.n - top), c.x + 4 * (low * c.along + top),
                     4 * c.along, values, 4 * w.outputs, c.out + 4 * (low * c.step + first), 4 * c.step, w.fresh)
            block += 1
        finish_block(c.after, low, high, start, to)
    if right - left == c.p: finish_rows(c.after, low, high)


@Kernel.of(3, rare=True)
def kronecker(item, worker, arguments):
    """Rows of x as matrices X: Σ Aᵀ (X B)."""
    c = record(arguments, LINEAR)
    w = record(c.w, FACTORS)
    low, high, left, right = tile(c, item)
    between, first, last = c.room + worker * c.apart, left // w.t, right // w.t
    for row in range(low, high):
        for i in range(w.k):
            multiply(c.multiply, w.r, w.t, w.s, c.x + 4 * row * c.along, 4 * w.s, w.b + 4 * i * w.s * w.t, 4 * w.t,
                     between,
                     4 * w.t, 1)
            multiply(c.multiply, last - first, w.t, w.r, w.at + 4 * (i * w.c + first) * w.r, 4 * w.r, between, 4 * w.t,
                     c.out + 4 * (row * c.step + left), 4 * w.t, i == 0)
    finish_block(c.after, low, high, left, right)
    if right - left == c.p: finish_rows(c.after, low, high)


def product_blockdiagonal(x: np.ndarray, val: np.ndarray, out: np.ndarray, epilogue: Any = None,
                          fresh: bool = True) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue, or out += unless fresh; val: float32 (blocks, inputs, outputs), the
    blocks along the diagonal of W, with zeros beyond its edge."""
    check_product(x, None, None, out, val=typed("val", val, f4, axes=3))
    if not val.size or any(-(-side // len(val)) != part
                           for side, part in zip((x.shape[1], out.shape[1]), val.shape[1:], strict=True)):
        raise ValueError(f"blockdiagonal: val {val.shape} does not make {x.shape[1]} × {out.shape[1]}")
    weight = filled(address(val), *val.shape[1:], fresh)
    after, workers = epilogue_record(epilogue, out), threads()
    launch(workers, *linear_stages(grouped, x, address(weight), out, after, workers))
    return out


def product_lowrank_sparse(x: np.ndarray, u: np.ndarray, v: np.ndarray, ptr: np.ndarray, idx: np.ndarray,
                           val: np.ndarray,
                           out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = (x (T, n) @ u (n, r)) @ v (r, p) + x @ S, then the epilogue; S in csr (see product_csr)."""
    check_factors(u, v)
    check_product(x, len(u), v.shape[1], out, u=u, v=v, ptr=ptr, idx=idx, val=val)
    if epilogue: epilogue.check(*out.shape, "out", out)      # before anything is written
    between, workers = temporary((len(x), u.shape[1])), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * BLOCK_DEPTH * BLOCK_COLUMNS, workers)
        launch(workers, *linear_stages(dense_by_blocks, x, address(u), between, None, workers, room))
    product_csr(x, ptr, idx, val, out)
    return product_blockdiagonal(between, v[None], out, epilogue, fresh=False)


def product_kronecker(x: np.ndarray, a: np.ndarray, b: np.ndarray, out: np.ndarray, epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ Σ A ⊗ B, then the epilogue; a: float32 (k, c, r), every Aᵀ, b: float32 (k, n / r, p /
    c)."""
    (k, c, r), (_, s, t) = typed("a", a, f4, axes=3).shape, typed("b", b, f4, axes=3).shape
    check_product(x, r * s, c * t, out, a=a, b=b)
    if not len(b) == k > 0: raise ValueError(f"kronecker: {k} matrices a and {len(b)} matrices b")
    weight, after, workers = filled(address(a), address(b), k, r, c, s, t), epilogue_record(epilogue, out), threads()
    with POOL.lock:
        room = ROOM.reserve(4 * r * t, workers)
        launch(workers, *linear_stages(kronecker, x, address(weight), out, after, workers, room, unit=t))
    return out
