"""x @ W for W in panels of narrow numbers: bfloat16, bytes, halves of bytes. x is converted on the way, a row at a time.

A word of 32 bits holds what lies along the depth: two bfloat16 or four bytes (words.py). Bytes are W / scale + 128 and meet
rows of x / scale, whole numbers up to 127 (rounding.py); what the 128 adds is taken off again.
Scales of W belong to a column, or to a group of depths of one."""
from typing import Any

import numpy as np

from formats.core.layout import PANEL
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import ROOM, address, filled, launch
from formats.kernels.engine.pool import POOL
from formats.kernels.rows.following import epilogue_record
from formats.machine.threads import threads

from .linear import check_product, linear_stages, split, typed
from .narrow_matrix import BAND as MATRIX_BAND
from .narrow_matrix import halves_matrix, nibbled_matrix, quantised_matrix
from .narrow_vectors import BAND as VECTOR_BAND
from .narrow_vectors import halves, nibbled, quantised

ASIDE = max(VECTOR_BAND, MATRIX_BAND)                        # rows of a band whose sums lie in room
f4 = np.float32


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
        room = ROOM.reserve((rows + ASIDE) * (span + 8 + 4 * groups) + 8 * ASIDE * PANEL + PANEL * (4 * groups + depth + 4) + 256, workers)
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
