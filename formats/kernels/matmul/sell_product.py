"""x @ W for slices of columns whose numbers are interleaved (SELL-C-σ); W is not made dense.

Many tokens: a column steps over its neighbours' numbers, and ends before its padding zeros. One token: a slice is
multiplied 16 columns at a time, with the entries of x that they name gathered."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.kernels.engine.compiled import HELPER, Function
from formats.kernels.engine.launch import address, filled, words
from formats.kernels.engine.memory import floats, pointer, record
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.matmul.csc_product import read_unsigned
from formats.kernels.matmul.csr_nm import SPARSE, STRIP, launch_sparse
from formats.kernels.matmul.linear import ENOUGH, MAX_ITEM_ROWS, check_product, typed
from formats.kernels.simd.vectors import (
    LANE,
    LANES,
    MASK,
    VECTOR,
    add_outer,
    llvm_function,
    load_vector,
    multiply_add,
    plus,
    pointer_at,
    store_tile,
    zeros,
)

__all__ = ["product_sell"]
__borders__ = ENOUGH, MAX_ITEM_ROWS, STRIP

# chunk: columns of a slice; bytes: bytes of an index; named: bytes of a number of `order`
SLICES = np.dtype(words("order ptr chunk bytes named"))
f4, i8 = np.float32, np.int64


@intrinsic
def add_gathered(typing, sums, val, idx, kind, x):
    """Return sums + the 16 numbers at val times the entries of x that the 16 indices of this kind at idx name
    (addresses)."""
    names = ir.VectorType(ir.IntType(kind.instance_type.bitwidth), LANES)
    far, lanes = ir.VectorType(ir.IntType(64), LANES), ir.VectorType(LANE, LANES)

    def code(context, builder, signature, values):
        tile, val, idx, _, x = values
        found = builder.load(pointer_at(builder, idx, 0, names))
        found.align = kind.instance_type.bitwidth // 8
        start = builder.insert_element(ir.Constant(far, ir.Undefined), x, LANE(0))
        start = builder.shuffle_vector(start, start, ir.Constant(lanes, [0] * LANES))
        apart = builder.mul(builder.zext(found, far), ir.Constant(far, [4] * LANES))
        at = builder.inttoptr(builder.add(start, apart), ir.VectorType(ir.FloatType().as_pointer(), LANES))
        gather = llvm_function(
            builder, f"llvm.masked.gather.v{LANES}f32.v{LANES}p0", VECTOR, at.type, LANE, MASK, VECTOR
        )
        entries = builder.call(gather, [at, LANE(4), ir.Constant(MASK, [1] * LANES), ir.Constant(VECTOR, None)])
        new = multiply_add(builder, entries, load_vector(builder, val), builder.extract_value(tile, 0))
        return builder.insert_value(tile, new, 0)

    return sums(sums, types.int64, types.int64, kind, types.int64), code


@intrinsic
def lane(typing, sums, i):
    """Return number i of the first vector."""

    def code(context, builder, signature, values):
        return builder.extract_element(builder.extract_value(values[0], 0), builder.trunc(values[1], LANE))

    return types.float32(sums, types.int64), code


@njit(**HELPER)
def slot_column(none, idx, val, k, end, chunk, x, along, y):
    """Compute one column for the tokens of a strip, its numbers `chunk` apart; several sums, as an addition takes four
    cycles."""
    one, two, three, four = none, none, none, none
    while k + 3 * chunk < end:
        one = add_outer(one, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        k += chunk
        two = add_outer(two, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        k += chunk
        three = add_outer(three, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        k += chunk
        four = add_outer(four, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        k += chunk
    while k < end:
        one = add_outer(one, val + 4 * k, 0, x + i8(idx[k]) * along, None)
        k += chunk
    store_tile(plus(plus(one, two), plus(three, four)), y, 0, None)


@njit(**HELPER)
def sell_range(w, s, idx, start, width, tokens, x, y):
    """Compute a range of columns for the tokens of a strip: whole windows, within which slots are in any order."""
    ptr, val, chunk, along = pointer(s.ptr, np.uint32), pointer(w.val, np.float32), s.chunk, 4 * tokens
    for slot in range(start, start + width):
        k, end = i8(ptr[slot // chunk]) * chunk + slot % chunk, i8(ptr[slot // chunk + 1]) * chunk + slot % chunk
        while end > k and val[end - chunk] == 0:
            end -= chunk
        to = y + (read_unsigned(s.order, s.named, slot) - start) * along
        if tokens == STRIP:
            slot_column(zeros(1, 2), idx, w.val, k, end, chunk, x, along, to)
        else:
            slot_column(zeros(1, 1), idx, w.val, k, end, chunk, x, along, to)


@Function.of(6, rare=True)
def sell_wide(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous; idx in 32 bits."""
    w = record(weight, SPARSE)
    sell_range(w, record(w.ptr, SLICES), pointer(w.idx, np.uint32), start, width, tokens, x, y)


@Function.of(6, rare=True)
def sell_short(weight, start, width, tokens, x, y):
    """Compute columns start.. of x @ W at y, tokens contiguous; idx in 16 bits."""
    w = record(weight, SPARSE)
    sell_range(w, record(w.ptr, SLICES), pointer(w.idx, np.uint16), start, width, tokens, x, y)


@njit(**HELPER)
def slice_sums(none, w, s, kind, k, end, x):
    """Compute 16 columns of a slice for one token, their numbers side by side."""
    even, odd = none, none
    while k + s.chunk < end:
        even = add_gathered(even, w.val + 4 * k, w.idx + s.bytes * k, kind, x)
        odd = add_gathered(odd, w.val + 4 * (k + s.chunk), w.idx + s.bytes * (k + s.chunk), kind, x)
        k += 2 * s.chunk
    if k < end:
        even = add_gathered(even, w.val + 4 * k, w.idx + s.bytes * k, kind, x)
    return plus(even, odd)


@njit(**HELPER)
def slot_dot(w, s, k, end, row):
    """Compute one column of a narrow slice for one token."""
    total, val = f4(0), pointer(w.val, np.float32)
    while k < end:
        total += val[k] * row[read_unsigned(w.idx, s.bytes, k)]
        k += s.chunk
    return total


@Function.of(5, rare=True)
def sell_single(weight, start, width, x, y):
    """Compute columns start.. for one token: whole windows."""
    w, out, row = record(weight, SPARSE), floats(y, width), pointer(x, np.float32)
    s = record(w.ptr, SLICES)
    ptr, together = pointer(s.ptr, np.uint32), 16 if s.chunk % 16 == 0 else 1
    for slot in range(start, start + width, together):
        k, end = i8(ptr[slot // s.chunk]), i8(ptr[slot // s.chunk + 1])
        k, end = k * s.chunk + slot % s.chunk, end * s.chunk + slot % s.chunk
        if together == 1:
            out[read_unsigned(s.order, s.named, slot) - start] = slot_dot(w, s, k, end, row)
            continue
        if s.bytes == 2:
            sums = slice_sums(zeros(1, 1), w, s, np.uint16, k, end, x)
        else:
            sums = slice_sums(zeros(1, 1), w, s, np.uint32, k, end, x)
        for i in range(min(16, start + width - slot)):
            out[read_unsigned(s.order, s.named, slot + i) - start] = lane(sums, i)


def product_sell(
    x: np.ndarray,
    order: np.ndarray,
    ptr: np.ndarray,
    idx: np.ndarray,
    val: np.ndarray,
    out: np.ndarray,
    chunk: int,
    sigma: int,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; slice s of `chunk` columns has the rows ptr[s]:ptr[s + 1] of
    idx and val (each of `chunk` numbers); its columns are order[s chunk:(s + 1) chunk], sorted within windows of
    `sigma`.

    order: uint16 or uint32 (p), ptr: uint32 (slices + 1), idx: uint16 or uint32, val: float32."""
    order, ptr = typed("order", order, np.uint16, np.uint32), typed("ptr", ptr, np.uint32)
    weights = typed("idx", idx, np.uint16, np.uint32), typed("val", val, f4)
    check_product(x, None, len(order), out, order=order, ptr=ptr, idx=idx, val=val)
    if min(chunk, sigma) < 1:
        raise ValueError(f"sell: slices of {chunk}, windows of {sigma}: both must be 1 or more")
    if len(ptr) - 1 != -(-len(order) // chunk) or not int(ptr[-1]) * chunk == len(idx) == len(val) or sigma % chunk:
        raise ValueError(
            f"sell: ptr of {len(ptr)} ending at {ptr[-1]}, {len(idx)} indices and {len(val)} numbers do "
            f"not make {len(order)} columns in slices of {chunk}, windows of {sigma}"
        )
    slices = filled(address(order), address(ptr), chunk, idx.itemsize, order.itemsize)
    functions = sell_short if idx.itemsize == 2 else sell_wide, sell_single
    return launch_sparse(x, (address(slices), *weights), out, epilogue, functions, group=min(sigma, len(order)))
