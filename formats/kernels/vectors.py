"""Vectors of 16 float32 as numba values: kernels keep their sums in registers and say so in plain Python.

A value of type Vectors(rows, across) is a tile of sums: rows of so many vectors. Where registers are narrower, LLVM
uses several."""
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, register_model

WIDE, FLOAT = 16, ir.FloatType()
VECTOR = ir.VectorType(FLOAT, WIDE)
LANE = ir.IntType(32)


class Vectors(types.Type):
    """rows by across vectors of 16 float32."""

    def __init__(self, rows: int, across: int) -> None:
        self.rows, self.across, self.count = rows, across, rows * across
        super().__init__(name=f"Vectors({rows}, {across})")


@register_model(Vectors)
class VectorsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vectors) -> None:
        super().__init__(manager, kind, ir.ArrayType(VECTOR, kind.count))


def place(builder, address, offset, kind):
    """A pointer to this kind of number, so many bytes after an address."""
    return builder.inttoptr(builder.add(address, address.type(offset)), kind.as_pointer())


def read(builder, address, offset=0):
    """The vector at an address that need not be aligned."""
    value = builder.load(place(builder, address, offset, VECTOR))
    value.align = 4
    return value


def put(builder, value, address, offset=0):
    """Store a vector at an address that need not be aligned."""
    builder.store(value, place(builder, address, offset, value.type)).align = 4


def spread(builder, number):
    """A vector of 16 times the same number."""
    nothing = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, number, LANE(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(LANE, WIDE), [0] * WIDE))


def multiply_add(builder, x, y, z):
    """x y + z, rounded once."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    return builder.call(get_or_insert_function(builder.module, kind, f"llvm.fma.v{WIDE}f32"), [x, y, z])


def closed(builder, parts):
    """A tile from its vectors."""
    value = ir.Constant(ir.ArrayType(VECTOR, len(parts)), ir.Undefined)
    for i, part in enumerate(parts): value = builder.insert_value(value, part, i)
    return value


@intrinsic(prefer_literal=True)
def zeros(typing, rows, across):
    """A tile of zeros; both sizes are literals."""
    kind = Vectors(rows.literal_value, across.literal_value)
    def code(context, builder, signature, values): return ir.Constant(ir.ArrayType(VECTOR, kind.count), None)
    return kind(rows, across), code


@intrinsic
def add_outer(typing, sums, factors, apart, x):
    """sums + (one number for each row, apart bytes from each other) times (the vectors at x)."""
    def code(context, builder, signature, values):
        tile, factors, apart, x = values
        vectors = [read(builder, x, 64 * v) for v in range(sums.across)]
        new: list[ir.Value] = []
        for r in range(sums.rows):
            at = builder.add(factors, builder.mul(apart, apart.type(r)))
            factor = spread(builder, builder.load(place(builder, at, 0, FLOAT)))
            for vector in vectors:
                new.append(multiply_add(builder, factor, vector, builder.extract_value(tile, len(new))))
        return closed(builder, new)
    return sums(sums, types.int64, types.int64, types.int64), code


@intrinsic
def plus(typing, a, b):
    """The sum of two tiles."""
    def code(context, builder, signature, values):
        pairs = [[builder.extract_value(value, i) for value in values] for i in range(a.count)]
        return closed(builder, [builder.fadd(x, y) for x, y in pairs])
    return a(a, a), code


@intrinsic
def write(typing, sums, y, apart):
    """Store a tile at y, its rows apart bytes from each other."""
    def code(context, builder, signature, values):
        tile, y, apart = values
        for i in range(sums.count):
            row = builder.add(y, builder.mul(apart, apart.type(i // sums.across)))
            put(builder, builder.extract_value(tile, i), row, 64 * (i % sums.across))
        return context.get_dummy_value()
    return types.void(sums, types.int64, types.int64), code


@intrinsic
def turn(typing, x, across, y, along):
    """y[j, i] = x[i, j] for a tile of 16 by 16 (addresses; bytes between rows): four stages of exchanges."""
    def code(context, builder, signature, values):
        x, across, y, along = values
        rows = [read(builder, builder.add(x, builder.mul(across, across.type(i)))) for i in range(WIDE)]
        def mixed(p, q, lanes): return builder.shuffle_vector(p, q, ir.Constant(ir.VectorType(LANE, WIDE), lanes))
        for s in (8, 4, 2, 1):
            for i in (i for i in range(WIDE) if not i & s):
                p, q = rows[i], rows[i + s]
                rows[i] = mixed(p, q, [j if not j & s else WIDE + j - s for j in range(WIDE)])
                rows[i + s] = mixed(p, q, [j + s if not j & s else WIDE + j for j in range(WIDE)])
        for i, row in enumerate(rows): put(builder, row, builder.add(y, builder.mul(along, along.type(i))))
        return context.get_dummy_value()
    return types.void(*[types.int64] * 4), code
