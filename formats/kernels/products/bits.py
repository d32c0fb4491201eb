"""x @ W for W with a bit for every entry and its nonzero numbers in a row (bitmap); nothing is densified.

One token: 16 entries of x at a time, with the numbers spread over the places where bits are set. Many tokens: the set
bits of a word one after the other, each a number times a row of tokens."""
from typing import Any

import numpy as np

from formats.kernels.engine.compiled import HELPER, Function
from formats.kernels.engine.memory import WORD, floats, pointer, record
from formats.kernels.engine.native import intrinsic, ir, njit, types
from formats.kernels.simd.arithmetic import sum_lanes
from formats.kernels.simd.vectors import (
    FLOAT,
    LANE,
    LANES,
    MASK,
    VECTOR,
    add_outer,
    llvm_function,
    multiply_add,
    plus,
    pointer_at,
    store_tile,
    zeros,
)

from .linear import check_product, typed
from .sparse import SPARSE, STRIP, launch_sparse

f4, i8 = np.float32, np.int64


@intrinsic
def add_spread(typing, sums, bits, val, x):
    """sums + 16 entries at x where one of the 16 bits is set, times the numbers at val, one for each set bit."""
    def code(context, builder, signature, values):
        tile, bits, val, x = values
        mask, none = builder.bitcast(builder.trunc(bits, ir.IntType(LANES)), MASK), ir.Constant(VECTOR, None)
        at, from_ = pointer_at(builder, val, 0, FLOAT), pointer_at(builder, x, 0, VECTOR)
        spread = llvm_function(builder, f"llvm.masked.expandload.v{LANES}f32", VECTOR, at.type, MASK, VECTOR)
        masked = llvm_function(builder, f"llvm.masked.load.v{LANES}f32.p0", VECTOR, from_.type, LANE, MASK, VECTOR)
        numbers, entries = builder.call(spread, [at, mask, none]), builder.call(masked, [from_, LANE(4), mask, none])
        new = multiply_add(builder, numbers, entries, builder.extract_value(tile, 0))
        return builder.insert_value(tile, new, 0)
    return sums(sums, types.int64, types.int64, types.int64), code


@intrinsic
def set_bits(typing, word):
    """How many bits of a word are set."""
    def code(context, builder, signature, values):
        return builder.call(llvm_function(builder, "llvm.ctpop.i64", WORD, WORD), values)
    return types.int64(types.int64), code


@intrinsic
def lowest(typing, word):
    """The place of the lowest set bit of a word that is not 0."""
    def code(context, builder, signature, values):
        count = llvm_function(builder, "llvm.cttz.i64", WORD, WORD, ir.IntType(1))
        return builder.call(count, [values[0], ir.IntType(1)(1)])
    return types.int64(types.int64), code


@njit(**HELPER)
def bit_column(none, bits, words, val, x, along, y):
    """One column for the tokens of a strip: two sums side by side."""
    even, odd = none, none
    for g in range(words):
        left, at = i8(bits[g]), x + 16 * g * along
        while left:
            even = add_outer(even, val, 0, at + lowest(left) * along, None)
            left &= left - 1
            val += 4
            if left:
                odd = add_outer(odd, val, 0, at + lowest(left) * along, None)
                left &= left - 1
                val += 4
    store_tile(plus(even, odd), y, 0, None)


@Function.of(6, rare=True)
def bitmap_columns(weight, start, width, tokens, x, y):
    """Columns start.. of x @ W at y, tokens contiguous; w.r words of bits for each."""
    w, along = record(weight, SPARSE), 4 * tokens
    ptr = pointer(w.ptr, np.uint32)
    for j in range(start, start + width):
        bits, val, to = pointer(w.idx + 2 * j * w.r, np.uint16), w.val + 4 * i8(ptr[j]), y + (j - start) * along
        if tokens == STRIP: bit_column(zeros(1, 2), bits, w.r, val, x, along, to)
        else: bit_column(zeros(1, 1), bits, w.r, val, x, along, to)


@Function.of(5, rare=True)
def bitmap_single(weight, start, width, x, y):
    """Columns start.. for one token."""
    w, out = record(weight, SPARSE), floats(y, width)
    ptr = pointer(w.ptr, np.uint32)
    for j in range(start, start + width):
        bits, val, even, odd = pointer(w.idx + 2 * j * w.r, np.uint16), w.val + 4 * i8(ptr[j]), zeros(1, 1), zeros(1, 1)
        for g in range(0, w.r - 1, 2):
            one, two = i8(bits[g]), i8(bits[g + 1])
            middle = val + 4 * set_bits(one)
            even, odd = add_spread(even, one, val, x + 64 * g), add_spread(odd, two, middle, x + 64 * g + 64)
            val = middle + 4 * set_bits(two)
        if w.r % 2: even = add_spread(even, i8(bits[w.r - 1]), val, x + 64 * (w.r - 1))
        out[j - start] = sum_lanes(plus(even, odd))


def product_bitmap(x: np.ndarray, ptr: np.ndarray, bits: np.ndarray, val: np.ndarray, out: np.ndarray,
                   epilogue: Any = None) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; bit i % 16 of bits[j, i // 16] is set where W[i, j] is not zero,
    and val[ptr[j]:ptr[j + 1]] are these numbers.

    ptr: uint32 (p + 1), bits: uint16 (p, n / 16 rounded up), val: float32."""
    arrays = typed("ptr", ptr, np.uint32), typed("bits", bits, np.uint16, axes=2), typed("val", val, f4)
    check_product(x, None, len(bits), out, ptr=ptr, bits=bits, val=val)
    if len(ptr) - 1 != len(bits) or ptr[-1] != len(val) or bits.shape[1] != -(-x.shape[1] // 16):
        raise ValueError(f"bitmap: ptr of {len(ptr)} ending at {ptr[-1]}, bits of {bits.shape} and {len(val)} numbers "
                         f"do not make {x.shape[1]} × {len(bits)}")
    return launch_sparse(x, arrays, out, epilogue, (bitmap_columns, bitmap_single), (bits.shape[1], 1))
