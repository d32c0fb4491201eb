"""Addresses, records and the few machine instructions that numba has no name for."""
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

WORD, VOID = ir.IntType(64), ir.VoidType()


@intrinsic
def pointer(typing, address, kind):
    """The address (int64) as a pointer to numbers or records of this kind."""
    pointed = kind.dtype if isinstance(kind, types.DType) else kind.instance_type
    def code(context, builder, signature, values):
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))
    return types.CPointer(pointed)(address, kind), code


@njit
def floats(address, count):
    """count float32 numbers at an address, as an array."""
    return carray(pointer(address, np.float32), count)


@njit
def shorts(address, count):
    """count uint16 numbers at an address."""
    return carray(pointer(address, np.uint16), count)


@njit
def bytes_at(address, count):
    """count uint8 numbers at an address."""
    return carray(pointer(address, np.uint8), count)


@njit
def signed(address, count):
    """count int8 numbers at an address."""
    return carray(pointer(address, np.int8), count)


@njit
def whole(address, count):
    """count int32 numbers at an address."""
    return carray(pointer(address, np.int32), count)


@njit
def longs(address, count):
    """count int64 numbers at an address."""
    return carray(pointer(address, np.int64), count)


@njit
def record(address, kind):
    """The record of this kind at an address: a kernel's arguments."""
    return carray(pointer(address, kind), 1)[0]


@intrinsic
def call(typing, function, item, worker, arguments):
    """Call the C function at an address: work on one item, as one worker."""
    def code(context, builder, signature, values):
        kind = ir.FunctionType(VOID, [WORD] * 3)
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()
    return types.void(*[types.int64] * 4), code


@intrinsic
def widen(typing, bits):
    """The float16 with these 16 bits, as float32."""
    def code(context, builder, signature, values):
        return builder.fpext(builder.bitcast(values[0], ir.HalfType()), ir.FloatType())
    return types.float32(types.uint16), code
