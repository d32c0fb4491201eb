"""Loops that run one operation as fast as the machine can: multiply and add in registers, read memory."""

from collections.abc import Callable

from formats.kernels.engine.compiled import Function
from formats.kernels.engine.native import Context, Intrinsic, Signature, Typing, Values, cgutils, intrinsic, ir, types
from formats.kernels.simd.vectors import FLOAT, LANES, MANY_REGISTERS

CHAINS = 8 * LANES if MANY_REGISTERS else 4 * LANES  # eight registers: a sum need not wait for the one before
LONG_VECTOR = ir.VectorType(FLOAT, CHAINS)


def looped(
    builder: ir.IRBuilder, count: ir.Value, value: ir.Value, step: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Emit value = step(index, value), `count` times; the vector stays in registers."""
    held = cgutils.alloca_once_value(builder, value)
    with cgutils.for_range(builder, count) as loop:
        builder.store(step(loop.index, builder.load(held)), held)
    return builder.load(held)


@intrinsic
def multiply_add(typing: Typing, count: types.Type, to: types.Type) -> Intrinsic:
    """CHAINS float32 numbers v = v a + b, count times, in registers; the result goes to an address."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        name = f"llvm.fmuladd.v{CHAINS}f32"
        fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(LONG_VECTOR, [LONG_VECTOR] * 3), name)
        a, b = (ir.Constant(LONG_VECTOR, [number] * CHAINS) for number in (0.5, 1.0))
        store_result(builder, looped(builder, values[0], b, lambda _, v: builder.call(fma, [v, a, b])), values[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def added(typing: Typing, address: types.Type, count: types.Type, to: types.Type) -> Intrinsic:
    """The sum of count times CHAINS float32 numbers at an address, which goes to another."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        def step(index: ir.Value, sums: ir.Value) -> ir.Value:
            at = builder.add(values[0], builder.mul(index, index.type(4 * CHAINS)))
            load = builder.load(builder.inttoptr(at, LONG_VECTOR.as_pointer()))
            load.align = 4
            return builder.fadd(sums, load)

        store_result(builder, looped(builder, values[1], ir.Constant(LONG_VECTOR, None), step), values[2])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), code


def store_result(builder: ir.IRBuilder, vector: ir.Value, address: ir.Value) -> None:
    """Emit a store of a vector, so that the compiler cannot remove the loop."""
    builder.store(vector, builder.inttoptr(address, vector.type.as_pointer())).align = 4


@Function.of(2, rare=True)
def multiply_adds(count: int, to: int) -> None:
    """2 CHAINS count float32 operations."""
    multiply_add(count, to)


@Function.of(4, rare=True)
def read_all(address: int, count: int, times: int, to: int) -> None:
    """Read 4 CHAINS count bytes, `times` times."""
    for _ in range(times):
        added(address, count, to)
