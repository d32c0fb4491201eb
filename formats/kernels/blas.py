"""Single-precision matrix products inside kernels: the BLAS that scipy brings, through its address."""
from functools import cache

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

BYTE, INT, FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()


@cache
def sgemm_address() -> int:
    """Where sgemm is in this process; kernels are given it, so that their compiled code can be cached."""
    return int(get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))


@intrinsic
def sgemm(typing, function, turned, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """c (m, n) = alpha a (m, k) b (k, n) + beta c, by rows; addresses, and steps between rows in numbers.

    turned: b is stored as (n, k). BLAS counts by columns, so it is given the operands the other way round."""
    def code(context, builder, signature, values):
        function, turned, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = values
        def by_reference(value, kind):
            if isinstance(value.type, ir.IntType) and value.type.width > kind.width: value = builder.trunc(value, kind)
            return cgutils.alloca_once_value(builder, value)
        number = lambda value: by_reference(value, INT)
        address = lambda value: builder.inttoptr(value, FLOAT.as_pointer())
        plain, flipped = (by_reference(BYTE(ord(letter)), BYTE) for letter in "NT")
        choice = builder.select(builder.icmp_signed("!=", turned, turned.type(0)), flipped, plain)
        scalar = lambda value: cgutils.alloca_once_value(builder, value)
        arguments = [choice, plain, number(n), number(m), number(k), scalar(alpha), address(b), number(ldb), address(a),
                     number(lda), scalar(beta), address(c), number(ldc)]
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)
        return context.get_dummy_value()
    i8, f4 = types.int64, types.float32
    return types.void(i8, i8, i8, i8, i8, f4, i8, i8, i8, i8, f4, i8, i8), code
