"""Addresses, records and the few machine instructions that numba has no name for."""
import numpy as np

from .native import carray, intrinsic, ir, njit, types

WORD, VOID = ir.IntType(64), ir.VoidType()


@intrinsic
def pointer(typing, address, kind):
    """The address (int64) as a pointer to numbers or records of this kind."""
    pointed = kind.dtype if isinstance(kind, types.DType) else kind.instance_type
    def code(context, builder, signature, values):
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))
    return types.CPointer(pointed)(address, kind), code


def numbers(kind):
    """A function: so many numbers of this kind at an address, as an array."""
    @njit
    def at(address, count): return carray(pointer(address, kind), count)
    return at


floats, shorts, longs = numbers(np.float32), numbers(np.uint16), numbers(np.int64)
bytes_at, signed, whole = numbers(np.uint8), numbers(np.int8), numbers(np.int32)


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
