"""x @ W for W in panels of narrow numbers: bfloat16, bytes, halves of bytes. x is converted on the way, a row at a
time.

A word of 32 bits holds neighbours along the depth: two bfloat16 or four bytes (words.py). Bytes are W / scale + 128 and
meet rows of x / scale, integers up to 127 (rounding.py); the contribution of the 128 is subtracted again. A scale of W
belongs to a column, or to a group of depths of a column."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from formats.core.epilogue import Epilogue
from formats.core.layout import PANEL
from formats.host.threads import threads
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import ROOM, Record, address, filled, launch, temporary
from formats.kernels.engine.pool import POOL
from formats.kernels.matmul.linear import ENOUGH, MAX_ITEM_ROWS, check_product, linear_stages, split_work, typed
from formats.kernels.matmul.narrow_matrix import BAND as MATRIX_BAND
from formats.kernels.matmul.narrow_matrix import halves_matrix, nibbled_matrix, quantised_matrix
from formats.kernels.matmul.narrow_vectors import BAND as VECTOR_BAND
from formats.kernels.matmul.narrow_vectors import halves, nibbled, quantised
from formats.kernels.rows.following import epilogue_record

__all__ = ["product_balanced_bytes", "product_bf16", "product_int4", "product_int8", "product_lowrank_bytes"]
__borders__ = ENOUGH, MAX_ITEM_ROWS, VECTOR_BAND, MATRIX_BAND

ASIDE = max(VECTOR_BAND, MATRIX_BAND)  # rows of a band whose sums are in scratch
f4 = np.float32


class Narrow(NamedTuple):
    """A weight of narrow numbers as kernels take it. kernels: the first for one row, the second for more. scale:
    (groups, p). In w, n is rounded up to units, p to 16; `per` numbers are stored in one of w. factors: (n,) of the
    inputs of balanced x."""

    kernels: tuple[Kernel, Kernel]
    w: np.ndarray
    scale: np.ndarray | None
    group: int
    unit: int
    per: int = 1
    factors: np.ndarray | None = None

    def described(self, n: int, p: int, rows: int) -> tuple[Record, int]:
        """Return the record that describes it, and the scratch bytes of items of this many rows. ValueError if it is
        not n by p."""
        (_, w, scale, group, unit, per, factors) = self
        depth, columns = -(-n // unit) * unit, -(-p // 16) * 16
        if w.size * per != depth * columns:
            raise ValueError(f"w: {w.size} numbers of {w.dtype} do not make panels of {depth} by {columns}")
        if group < 1:
            raise ValueError(f"scale: groups of {group} inputs: give 1 or more")
        group = min(group, depth)
        groups, span = -(-n // group), depth * (2 if scale is None else 1) + 64
        if (scale is not None and scale.shape != (groups, p)) or group % unit:
            raise ValueError(
                f"scale: expected one for each of {p} columns and each group of {group} (a multiple of {unit}) of {n} "
                "inputs"
            )
        if factors is not None and factors.shape != (n,):
            raise ValueError(f"factors: expected one for each of {n} inputs, got {factors.shape}")
        room = (
            (rows + ASIDE) * (span + 8 + 4 * groups)
            + 8 * ASIDE * PANEL
            + PANEL * (4 * groups + depth + 4)
            + (0 if factors is None else 4 * depth)
            + 256
        )
        return filled(address(w), address(scale), depth, group, groups, span, address(factors)), room


def product_narrow(x: np.ndarray, weights: Sequence[Narrow], out: np.ndarray, epilogue: Epilogue | None) -> np.ndarray:
    """out (T, p) = x (T, n) @ the weights, one after another, then the epilogue; intermediate results are float32, with
    as many columns as the weight before has scales."""
    stored = {
        f"{name}{i}": array
        for i, weight in enumerate(weights)
        for name, array in (("w", weight.w), ("scale", weight.scale), ("factors", weight.factors))
        if array is not None
    }
    check_product(x, None, None, out, **stored)
    T, workers = len(x), threads()
    sides = [x.shape[1], *(weight.scale.shape[1] for weight in weights[:-1] if weight.scale is not None), out.shape[1]]
    between = [x, *(temporary((T, side)) for side in sides[1:-1]), out]
    laid = [
        weight.described(n, p, split_work(T, p, workers, PANEL)[0])
        for weight, (n, p) in zip(weights, pairwise(sides), strict=True)
    ]
    after = [*[None] * (len(weights) - 1), epilogue_record(epilogue, out, rough=True)]
    with POOL.lock:
        room = ROOM.reserve(max(size for _, size in laid), workers)
        launch(
            workers,
            *(
                stage
                for i, (weight, (record, _)) in enumerate(zip(weights, laid, strict=True))
                for stage in linear_stages(
                    weight.kernels[T > 1],
                    between[i],
                    address(record),
                    between[i + 1],
                    after[i],
                    workers,
                    room,
                    unit=PANEL,
                )
            ),
        )
    return out


def product_bf16(x: np.ndarray, w: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ w, then the epilogue; w: bfloat16 as uint16, in panels of pairs, n rounded up to 32. x is
    rounded to bfloat16, sums are float32."""
    return product_narrow(
        x, [Narrow((halves, halves_matrix), typed("w", w, np.uint16), None, 1 << 30, 32)], out, epilogue
    )


def product_int8(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, group: int, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; w: bytes W / scale + 128 in panels of fours, n rounded up to 64;
    scale: float32, a row for every group of inputs. Each row of x is rounded to 255 steps, sums are exact within a
    group."""
    return product_narrow(x, [in_bytes(w, scale, group)], out, epilogue)


def product_int4(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, group: int, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_int8` for 4-bit values W / scale + 8, two per byte: the low one belongs to one word of depth,
    the high one to the next."""
    weight = Narrow((nibbled, nibbled_matrix), typed("w", w, np.uint8), typed("scale", scale, f4, axes=2), group, 64, 2)
    return product_narrow(x, [weight], out, epilogue)


def product_balanced_bytes(
    x: np.ndarray,
    factors: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    group: int,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """Compute `product_int8` of x times factors of its inputs (n,), float32, mixed (hadamard.py) before rows are
    rounded."""
    weight = in_bytes(w, scale, group)._replace(factors=typed("factors", factors, f4))
    return product_narrow(x, [weight], out, epilogue)


def in_bytes(w: np.ndarray, scale: np.ndarray, group: int) -> Narrow:
    """Return a weight of bytes with a scale for each column and group."""
    return Narrow((quantised, quantised_matrix), typed("w", w, np.uint8), typed("scale", scale, f4, axes=2), group, 64)


def product_lowrank_bytes(
    x: np.ndarray,
    u: np.ndarray,
    left: np.ndarray,
    v: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """out (T, p) = (x (T, n) @ U) @ V, then the epilogue; u, v: bytes as for `product_int8`, left and right: float32, a
    scale for each column. Rows of x, and of the intermediate result, are rounded to 255 steps."""
    factors = (in_bytes(w, typed("scale", scale, f4)[None], 1 << 30) for w, scale in ((u, left), (v, right)))
    return product_narrow(x, [*factors], out, epilogue)
