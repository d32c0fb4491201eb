"""Addresses, records and the few machine instructions that numba does not offer."""

import platform
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.kernels.engine.native import (
    FEATURES,
    Context,
    Intrinsic,
    Signature,
    Typing,
    Values,
    carray,
    intrinsic,
    ir,
    njit,
    types,
)

# True if float16 is widened by an instruction
WIDENS = "+f16c" in FEATURES.split(",") or platform.machine().lower() in ("aarch64", "arm64")
WORD, VOID = ir.IntType(64), ir.VoidType()


@intrinsic
def pointer(typing: Typing, address: types.Type, kind: "types.DType | types.NumberClass[Any]") -> Intrinsic:
    """Convert an address (int64) to a pointer to numbers or records of this kind."""
    pointed = kind.dtype if isinstance(kind, types.DType) else kind.instance_type

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(pointed)(address, kind), code


def view_as(kind: type) -> Callable[[int, int], NDArray[Any]]:
    """Make a function that returns `count` numbers of this kind at an address as an array."""

    @njit
    def at(address: int, count: int) -> NDArray[Any]:
        return carray(pointer(address, kind), count)

    return at


floats, shorts, longs = view_as(np.float32), view_as(np.uint16), view_as(np.int64)
bytes_at, signed, ints_at = view_as(np.uint8), view_as(np.int8), view_as(np.int32)


@njit
def record(address: int, kind: np.dtype[np.void]) -> np.record:
    """Return the record of this kind at an address: a kernel's arguments."""
    fields: np.record = carray(pointer(address, kind), 1)[0]
    return fields


@intrinsic
def call(
    typing: Typing, function: types.Type, item: types.Type, worker: types.Type, arguments: types.Type
) -> Intrinsic:
    """Call the C function at an address: work on one item, as one worker."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        kind = ir.FunctionType(VOID, [WORD] * 3)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code


@intrinsic
def extended(typing: Typing, bits: types.Type) -> Intrinsic:
    """Convert the 16 bits of a bfloat16 to float32."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(values[0], word), word(16)), ir.FloatType())

    return types.float32(types.uint16), code


@intrinsic
def widen(typing: Typing, bits: types.Type) -> Intrinsic:
    """Convert the 16 bits of a float16 to float32; a signalling NaN becomes quiet."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        if WIDENS:
            return builder.fpext(builder.bitcast(values[0], ir.HalfType()), ir.FloatType())
        return widen_by_integers(builder, builder.zext(values[0], ir.IntType(32)))

    return types.float32(types.uint16), code


def widen_by_integers(builder: ir.IRBuilder, bits: ir.Value) -> ir.Value:
    """`widen` by integers, where the processor has no instruction for it and compilers would call a function that need
    not be there. Exponent and fraction move to their places in a float32, whose exponents are 112 higher. A float16
    below 2⁻¹⁴ has no leading one: it is read as if it had (exponent 113), and 2⁻¹⁴ is subtracted, which is exact."""
    word, number = bits.type, ir.FloatType()
    moved = builder.shl(builder.and_(bits, word(0x7FFF)), word(13))
    normal = builder.add(moved, word(112 << 23))
    small = builder.fsub(builder.bitcast(builder.add(moved, word(113 << 23)), number), number(2.0**-14))
    nan = builder.select(builder.icmp_unsigned(">", moved, word(31 << 23)), word(1 << 22), word(0))
    endless = builder.or_(builder.or_(moved, word(255 << 23)), nan)
    widened = builder.select(builder.icmp_unsigned("<", moved, word(1 << 23)), builder.bitcast(small, word), normal)
    widened = builder.select(builder.icmp_unsigned(">=", moved, word(31 << 23)), endless, widened)
    sign = builder.shl(builder.and_(bits, word(0x8000)), word(16))
    return builder.bitcast(builder.or_(widened, sign), number)
