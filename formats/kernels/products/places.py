"""x @ W for sparse W that names the place of each number: by inputs (csc), or one by one (coo). Nothing is
densified."""
from typing import Any

import numpy as np

from formats.kernels.engine.compiled import FAST, HELPER, Function
from formats.kernels.engine.memory import floats, pointer, record
from formats.kernels.engine.native import njit
from formats.kernels.simd.vectors import add_outer, fetch, store_tile, zeros

from .linear import check_product, typed
from .sparse import SPARSE, STRIP, csr_column, launch_sparse

f4, i8 = np.float32, np.int64


@njit(**HELPER)
def read_unsigned(address, size, k):
    """The k-th of the unsigned numbers of so many bytes."""
    return i8(pointer(address, np.uint16)[k]) if size == 2 else i8(pointer(address, np.uint32)[k])


@njit(**HELPER)
def first(address, size, low, high, least):
    """The first of the ascending numbers low..high that is at least this."""
    while low < high:
        middle = (low + high) // 2
        if read_unsigned(address, size, middle) < least: low = middle + 1
        else: high = middle
    return low


# ---- csc: w.r bytes an index, w.c inputs

@njit(**HELPER)
def scatter(none, w, k, end, start, width, along, x, y):
    """The numbers of one input, times its tokens, added to the columns that they name."""
    while k < end:
        j = read_unsigned(w.idx, w.r, k) - start
        if j >= width: break
        store_tile(add_outer(fetch(none, y + j * along, 0, None), w.val + 4 * k, 0, x, None), y + j * along, 0, None)
        k += 1


@Function.of(6, rare=True)
def csc_columns(weight, start, width, tokens, x, y):
    """Columns start.. of x @ W at y, tokens contiguous."""
    w, along = record(weight, SPARSE), 4 * tokens
    ptr, sums = pointer(w.ptr, np.uint32), floats(y, width * tokens)
    for i in range(sums.size): sums[i] = 0
    for i in range(w.c):
        k, end = i8(ptr[i]), i8(ptr[i + 1])
        if start: k = first(w.idx, w.r, k, end, start)
        if tokens == STRIP: scatter(zeros(1, 2), w, k, end, start, width, along, x + i * along, y)
        else: scatter(zeros(1, 1), w, k, end, start, width, along, x + i * along, y)


@njit(**HELPER)
def scatter_one(idx, val, k, end, factor, start, out):
    """The numbers k..end of one input, times one token."""
    while k < end:
        out[i8(idx[k]) - start] += factor * val[k]
        k += 1


@Function.of(5, rare=True)
def csc_single(weight, start, width, x, y):
    """Columns start.. for one token; inputs that are zero are left out."""
    w, row, out = record(weight, SPARSE), pointer(x, np.float32), floats(y, width)
    ptr, val = pointer(w.ptr, np.uint32), pointer(w.val, np.float32)
    for j in range(width): out[j] = 0
    for i in range(w.c):
        if row[i] == 0: continue
        k, end = i8(ptr[i]), i8(ptr[i + 1])
        if start: k = first(w.idx, w.r, k, end, start)
        if start + width < w.p: end = first(w.idx, w.r, k, end, start + width)
        if w.r == 2: scatter_one(pointer(w.idx, np.uint16), val, k, end, row[i], start, out)
        else: scatter_one(pointer(w.idx, np.uint32), val, k, end, row[i], start, out)


# ---- coo: ptr are the outputs, idx the inputs; w.r numbers, w.c: bytes of an input, times 8, and of an output

@njit(**HELPER)
def coo_run(w, k, column):
    """Where the numbers of a column end that begin at k: by steps that double, then by halves."""
    step, low = 1, k
    while low + step <= w.r and read_unsigned(w.ptr, w.c % 8, low + step - 1) == column:
        low += step
        step *= 2
    return first(w.ptr, w.c % 8, low, min(low + step, w.r), column + 1)


@njit(**HELPER)
def coo_range(w, idx, start, width, tokens, x, y):
    """A range of columns for the tokens of a strip."""
    k, along = first(w.ptr, w.c % 8, 0, w.r, start), 4 * tokens
    for j in range(width):
        end = coo_run(w, k, start + j)
        if tokens == STRIP: csr_column(zeros(1, 2), idx, w.val, k, end, x, along, y + j * along)
        else: csr_column(zeros(1, 1), idx, w.val, k, end, x, along, y + j * along)
        k = end


@Function.of(6, rare=True)
def coo_wide(weight, start, width, tokens, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; inputs in 32 bits."""
    w = record(weight, SPARSE)
    coo_range(w, pointer(w.idx, np.uint32), start, width, tokens, x, y)


@Function.of(6, rare=True)
def coo_short(weight, start, width, tokens, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; inputs in 16 bits."""
    w = record(weight, SPARSE)
    coo_range(w, pointer(w.idx, np.uint16), start, width, tokens, x, y)


@njit(fastmath=FAST, **HELPER)
def dot(idx, val, k, end, row):
    """The numbers k..end times the entries of a row that they name."""
    total = f4(0)
    for i in range(k, end): total += val[i] * row[i8(idx[i])]
    return total


@Function.of(5, rare=True)
def coo_single(weight, start, width, x, y):
    """Columns start.. for one token."""
    w, row, out = record(weight, SPARSE), pointer(x, np.float32), floats(y, width)
    val, k = pointer(w.val, np.float32), first(w.ptr, w.c % 8, 0, w.r, start)
    for j in range(width):
        end = coo_run(w, k, start + j)
        if w.c // 8 == 2: out[j] = dot(pointer(w.idx, np.uint16), val, k, end, row)
        else: out[j] = dot(pointer(w.idx, np.uint32), val, k, end, row)
        k = end


# ---- from Python

def product_csc(x: np.ndarray, ptr: np.ndarray, idx: np.ndarray, val: np.ndarray, out: np.ndarray,
                epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; row i of W has val[ptr[i]:ptr[i + 1]] in the columns idx[same].

    ptr: uint32 (n + 1), idx: uint16 or uint32 (nnz), ascending in each row, val: float32 (nnz)."""
    arrays = typed("ptr", ptr, np.uint32), typed("idx", idx, np.uint16, np.uint32), typed("val", val, f4)
    check_product(x, len(ptr) - 1, None, out, ptr=ptr, idx=idx, val=val)
    if not ptr[-1] == len(idx) == len(val):
        raise ValueError(f"csc: ptr ends at {ptr[-1]}, but idx has {len(idx)} and val {len(val)} numbers")
    sizes = idx.itemsize, len(ptr) - 1
    return launch_sparse(x, arrays, out, epilogue, (csc_columns, csc_single), sizes, columns=out.shape[1])


def product_coo(x: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, val: np.ndarray, out: np.ndarray,
                epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; W has val[k] in row inputs[k] and column outputs[k].

    inputs, outputs: uint16 or uint32 (nnz), ascending by outputs, then inputs; val: float32 (nnz)."""
    places = [typed(name, array, np.uint16, np.uint32) for name, array in (("outputs", outputs), ("inputs", inputs))]
    check_product(x, None, None, out, inputs=inputs, outputs=outputs, val=typed("val", val, f4))
    if not len(inputs) == len(outputs) == len(val):
        raise ValueError(f"coo: {len(inputs)} inputs, {len(outputs)} outputs and {len(val)} numbers do not match")
    functions = coo_short if inputs.itemsize == 2 else coo_wide, coo_single
    return launch_sparse(x, (*places, val), out, epilogue, functions,
                         (len(val), 8 * inputs.itemsize + outputs.itemsize))
