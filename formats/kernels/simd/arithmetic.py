"""+, -, * and the like on vectors, so that a formula is written once, as Python, and computed 16 numbers at a time.

Operands are vectors, Vectors(1, 1), or float32 numbers, which are broadcast. Used by maths.py."""

import operator
from collections.abc import Callable

from formats.kernels.engine.native import ConcreteTemplate, infer_global, intrinsic, ir, lower_builtin, signature, types
from formats.kernels.simd.vectors import (
    LANE,
    LANES,
    VECTOR,
    Vectors,
    closed,
    lane_mask,
    llvm_function,
    load_vector,
    multiply_add,
    put,
    splat,
)

VECTOR16, NUMBER = Vectors(1, 1), types.float32
WHOLE = ir.VectorType(LANE, LANES)
Emit = Callable[..., ir.Value]


def emitted(emit: Emit, builder: ir.IRBuilder, kinds: tuple[types.Type, ...], values: list[ir.Value]) -> ir.Value:
    """Apply a function of (builder, LLVM vectors) to operands of these kinds."""
    vectors = [
        builder.extract_value(value, 0) if kind == VECTOR16 else splat(builder, value)
        for kind, value in zip(kinds, values, strict=True)
    ]
    return closed(builder, [emit(builder, *vectors)])


def define(symbol: Callable[..., object], emit: Emit) -> None:
    """Define an operator on vectors, and on vectors and numbers."""
    pairs = [(VECTOR16, VECTOR16), (VECTOR16, NUMBER), (NUMBER, VECTOR16)]
    cases = [signature(VECTOR16, *pair) for pair in pairs]

    def code(context, builder, signature, values):
        return emitted(emit, builder, signature.args, values)

    infer_global(symbol)(type("OnVectors", (ConcreteTemplate,), {"cases": cases}))
    for pair in pairs:
        lower_builtin(symbol, *pair)(code)


def arithmetic(name: str) -> Emit:
    """Return the emitter of fadd, fsub, fmul or fdiv; a product and a sum may become one operation."""
    return lambda builder, x, y: getattr(builder, name)(x, y, flags=("contract",))


for symbol, name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    define(symbol, arithmetic(name))


def unary(emit: Emit) -> Callable[..., Vectors]:
    """Build a function of one vector or number."""

    @intrinsic
    def apply(typing, x):
        def code(context, builder, signature, values):
            return emitted(emit, builder, signature.args, values)

        return VECTOR16(x), code

    return apply


@intrinsic
def fused(typing, x, y, z):
    """Return x y + z, rounded once, and not contracted further: rounding errors can be computed with it."""

    def code(context, builder, signature, values):
        return emitted(multiply_add, builder, signature.args, values)

    return VECTOR16(x, y, z), code


def binary(emit: Emit) -> Callable[..., Vectors]:
    """Build a function of two vectors or numbers."""

    @intrinsic
    def apply(typing, x, y):
        def code(context, builder, signature, values):
            return emitted(emit, builder, signature.args, values)

        return VECTOR16(x, y), code

    return apply


def shift_exponent(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return the low bits of x as an exponent: x is 1.5 2^23 + 127 + n, so this is 2^n, and 0 for n of -127."""
    return builder.bitcast(builder.shl(builder.bitcast(x, WHOLE), ir.Constant(WHOLE, [23] * LANES)), VECTOR)


# NaN passes through all of these: a comparison with it chooses the first operand
larger = binary(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), y, x))
smaller = binary(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), y, x))
negative = unary(lambda b, x: b.fneg(x))
magnitude = unary(lambda b, x: b.call(llvm_function(b, f"llvm.fabs.v{LANES}f32", VECTOR, VECTOR), [x]))
signed_as = binary(
    lambda b, x, y: b.call(llvm_function(b, f"llvm.copysign.v{LANES}f32", VECTOR, VECTOR, VECTOR), [x, y])
)
low_bits_as_power = unary(shift_exponent)


@intrinsic
def below(typing, x, limit, value, other):
    """Return `value` where x is below a limit, `other` elsewhere."""

    def emit(builder, x, limit, value, other):
        return builder.select(builder.fcmp_ordered("<", x, limit), value, other)

    def code(context, builder, signature, values):
        return emitted(emit, builder, signature.args, values)

    return VECTOR16(x, limit, value, other), code


@intrinsic
def get(typing, address, lanes):
    """Load the vector at an address: 16 numbers, or only `lanes` of them and zeros unless lanes is None."""

    def code(context, builder, signature, values):
        return closed(builder, [load_vector(builder, values[0], 0, None if lanes == types.none else values[1])])

    return VECTOR16(types.int64, lanes), code


@intrinsic
def keep(typing, vector, address, lanes):
    """Store a vector: 16 numbers, or only the first `lanes` of them unless lanes is None."""

    def code(context, builder, signature, values):
        put(builder, builder.extract_value(values[0], 0), values[1], 0, None if lanes == types.none else values[2])
        return context.get_dummy_value()

    return types.void(VECTOR16, types.int64, lanes), code


@intrinsic
def cut(typing, vector, lanes, other):
    """Return the first lanes of a vector, and another number in the rest; all of it if lanes is None."""

    def code(context, builder, signature, values):
        if lanes == types.none:
            return values[0]
        kept = lane_mask(builder, values[1])
        return closed(builder, [builder.select(kept, builder.extract_value(values[0], 0), splat(builder, values[2]))])

    return VECTOR16(VECTOR16, lanes, NUMBER), code


def folded(emit: Emit) -> Callable[..., float]:
    """Build a function that reduces the 16 numbers of a vector to one: halves are combined four times."""

    @intrinsic
    def fold(typing, vector):
        def code(context, builder, signature, values):
            vector = builder.extract_value(values[0], 0)
            for distance in (8, 4, 2, 1):
                order = ir.Constant(WHOLE, [lane ^ distance for lane in range(LANES)])
                vector = emit(builder, vector, builder.shuffle_vector(vector, vector, order))
            return builder.extract_element(vector, LANE(0))

        return NUMBER(VECTOR16), code

    return fold


sum_lanes = folded(lambda b, x, y: b.fadd(x, y))
highest = folded(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), y, x))
