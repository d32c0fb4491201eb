"""x @ W for sparse W stored by inputs (csc); W is not made dense."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.kernels.engine.compiled import HELPER, Function
from formats.kernels.engine.memory import floats, pointer, record
from formats.kernels.engine.native import njit
from formats.kernels.matmul.csr_nm import SPARSE, STRIP, launch_sparse
from formats.kernels.matmul.linear import ENOUGH, MAX_ITEM_ROWS, check_product, typed
from formats.kernels.simd.vectors import add_outer, fetch, store_tile, zeros

__all__ = ["product_csc"]
__borders__ = ENOUGH, MAX_ITEM_ROWS, STRIP

f4, i8 = np.float32, np.int64


@njit(**HELPER)
def read_unsigned(address, size, k):
    """Read the k-th of unsigned numbers of `size` bytes, 2 or 4."""
    return i8(pointer(address, np.uint16)[k]) if size == 2 else i8(pointer(address, np.uint32)[k])


@njit(**HELPER)
def first(address, size, low, high, least):
    """Return the index of the first of the ascending numbers low..high that is at least `least`."""
    while low < high:
        middle = (low + high) // 2
        if read_unsigned(address, size, middle) < least:
            low = middle + 1
        else:
            high = middle
    return low


# ---- csc: w.r bytes an index, w.c inputs


@njit(**HELPER)
def scatter(none, w, k, end, start, width, along, x, y):
    """Add the numbers of one input, times its tokens, to the columns that they name."""
    while k < end:
        j = read_unsigned(w.idx, w.r, k) - start
        if j >= width:
            break
        store_tile(add_outer(fetch(none, y + j * along, 0, None), w.val + 4 * k, 0, x, None), y + j * along, 0, None)
        k += 1


@Function.of(6, rare=True)
def csc_columns(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous."""
    w, along = record(weight, SPARSE), 4 * tokens
    ptr, sums = pointer(w.ptr, np.uint32), floats(y, width * tokens)
    for i in range(sums.size):
        sums[i] = 0
    for i in range(w.c):
        k, end = i8(ptr[i]), i8(ptr[i + 1])
        if start:
            k = first(w.idx, w.r, k, end, start)
        if tokens == STRIP:
            scatter(zeros(1, 2), w, k, end, start, width, along, x + i * along, y)
        else:
            scatter(zeros(1, 1), w, k, end, start, width, along, x + i * along, y)


@njit(**HELPER)
def scatter_one(idx, val, k, end, factor, start, out):
    """Add the numbers k..end of one input, times one token, to the columns that they name."""
    while k < end:
        out[i8(idx[k]) - start] += factor * val[k]
        k += 1


@Function.of(5, rare=True)
def csc_single(weight, start, width, x, y):
    """Compute columns start.. for one token; inputs that are zero are skipped."""
    w, row, out = record(weight, SPARSE), pointer(x, np.float32), floats(y, width)
    ptr, val = pointer(w.ptr, np.uint32), pointer(w.val, np.float32)
    for j in range(width):
        out[j] = 0
    for i in range(w.c):
        if row[i] == 0:
            continue
        k, end = i8(ptr[i]), i8(ptr[i + 1])
        if start:
            k = first(w.idx, w.r, k, end, start)
        if start + width < w.p:
            end = first(w.idx, w.r, k, end, start + width)
        if w.r == 2:
            scatter_one(pointer(w.idx, np.uint16), val, k, end, row[i], start, out)
        else:
            scatter_one(pointer(w.idx, np.uint32), val, k, end, row[i], start, out)


# ---- from Python


def product_csc(
    x: np.ndarray, ptr: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; row i of W has val[ptr[i]:ptr[i + 1]] in the columns idx[same].

    ptr: uint32 (n + 1), idx: uint16 or uint32 (nnz), ascending in each row, val: float32 (nnz)."""
    arrays = typed("ptr", ptr, np.uint32), typed("idx", idx, np.uint16, np.uint32), typed("val", val, f4)
    check_product(x, len(ptr) - 1, None, out, ptr=ptr, idx=idx, val=val)
    if not ptr[-1] == len(idx) == len(val):
        raise ValueError(f"csc: ptr ends at {ptr[-1]}, but idx has {len(idx)} and val {len(val)} numbers")
    sizes = idx.itemsize, len(ptr) - 1
    return launch_sparse(x, arrays, out, epilogue, (csc_columns, csc_single), sizes, columns=out.shape[1])
