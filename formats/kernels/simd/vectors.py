"""Vectors of 16 float32 as numba values: kernels keep their sums in registers, in plain Python.

A value of type Vectors(rows, across) is a tile of sums: rows by across vectors. Where registers are narrower, LLVM uses
several for each vector."""

from collections.abc import Sequence

from formats.kernels.engine.native import (
    FEATURES,
    Context,
    Intrinsic,
    Signature,
    Typing,
    Values,
    get_or_insert_function,
    intrinsic,
    ir,
    models,
    register_model,
    types,
)

MANY_REGISTERS = "+avx512f" in FEATURES  # 32 registers of 16 float32 each
LANES, FLOAT = 16, ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
AHEAD = 4096  # bytes that a stream of numbers is prefetched ahead
LANE, MASK = ir.IntType(32), ir.VectorType(ir.IntType(1), LANES)


class Vectors(types.Type):
    """The type of rows by across vectors of 16 float32."""

    def __init__(self, rows: int, across: int) -> None:
        self.rows, self.across, self.count = rows, across, rows * across
        super().__init__(name=f"Vectors({rows}, {across})")


@register_model(Vectors)
class VectorsModel(models.PrimitiveModel):
    def __init__(self, manager: object, kind: Vectors) -> None:
        super().__init__(manager, kind, ir.ArrayType(VECTOR, kind.count))  # type: ignore[no-untyped-call]


def pointer_at(builder: ir.IRBuilder, address: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
    """Return a pointer to this kind of number, `offset` bytes after an address."""
    return builder.inttoptr(builder.add(address, address.type(offset)), kind.as_pointer())


def lane_mask(builder: ir.IRBuilder, lanes: ir.Value) -> ir.Value:
    """Return the mask of the first `lanes` lanes (int64)."""
    several = ir.VectorType(LANE, LANES)
    first = builder.insert_element(ir.Constant(several, ir.Undefined), builder.trunc(lanes, LANE), LANE(0))
    limit = builder.shuffle_vector(first, ir.Constant(several, ir.Undefined), ir.Constant(several, [0] * LANES))
    return builder.icmp_signed("<", ir.Constant(several, list(range(LANES))), limit)


def load_vector(builder: ir.IRBuilder, address: ir.Value, offset: int = 0, lanes: ir.Value | None = None) -> ir.Value:
    """Load the vector at an address that need not be aligned; with lanes, only the first `lanes` numbers are read and
    the rest are 0."""
    at = pointer_at(builder, address, offset, VECTOR)
    if lanes is not None:
        masked = llvm_function(builder, f"llvm.masked.load.v{LANES}f32.p0", VECTOR, at.type, LANE, MASK, VECTOR)
        return builder.call(masked, [at, LANE(4), lane_mask(builder, lanes), ir.Constant(VECTOR, None)])
    value = builder.load(at)
    value.align = 4
    return value


def put(
    builder: ir.IRBuilder, value: ir.Value, address: ir.Value, offset: int = 0, lanes: ir.Value | None = None
) -> None:
    """Store a vector at an address that need not be aligned; with lanes, only its first `lanes` numbers."""
    at = pointer_at(builder, address, offset, VECTOR)
    if lanes is None:
        builder.store(value, at).align = 4
    else:
        masked = llvm_function(builder, f"llvm.masked.store.v{LANES}f32.p0", ir.VoidType(), VECTOR, at.type, LANE, MASK)
        builder.call(masked, [value, at, LANE(4), lane_mask(builder, lanes)])


def llvm_function(builder: ir.IRBuilder, name: str, result: ir.Type, *arguments: ir.Type) -> ir.Value:
    """Return one of LLVM's own functions."""
    return get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


def splat(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """Return a vector of 16 copies of a number."""
    nothing = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, number, LANE(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(LANE, LANES), [0] * LANES))


def multiply_add(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Return x y + z, rounded once."""
    return builder.call(llvm_function(builder, f"llvm.fma.v{LANES}f32", VECTOR, VECTOR, VECTOR, VECTOR), [x, y, z])


def closed(builder: ir.IRBuilder, parts: Sequence[ir.Value]) -> ir.Value:
    """Return a tile from its vectors."""
    value = ir.Constant(ir.ArrayType(VECTOR, len(parts)), ir.Undefined)
    for i, part in enumerate(parts):
        value = builder.insert_value(value, part, i)
    return value


@intrinsic(prefer_literal=True)
def zeros(typing: Typing, rows: types.IntegerLiteral, across: types.IntegerLiteral) -> Intrinsic:
    """Return a tile of zeros; both sizes are literals."""
    kind = Vectors(rows.literal_value, across.literal_value)

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        return ir.Constant(ir.ArrayType(VECTOR, kind.count), None)

    return kind(rows, across), code


@intrinsic
def add_outer(
    typing: Typing, sums: Vectors, factors: types.Type, apart: types.Type, x: types.Type, lanes: types.Type
) -> Intrinsic:
    """Return sums + (one number for each row, apart bytes from each other) times (the vectors at x, the last cut to
    lanes)."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        tile, factors, apart, x, cut = values
        vectors = [load_vector(builder, x, 64 * v, cut_at(sums, v, lanes, cut)) for v in range(sums.across)]
        new: list[ir.Value] = []
        for r in range(sums.rows):
            at = builder.add(factors, builder.mul(apart, apart.type(r)))
            factor = splat(builder, builder.load(pointer_at(builder, at, 0, FLOAT)))
            for vector in vectors:
                new.append(multiply_add(builder, factor, vector, builder.extract_value(tile, len(new))))
        return closed(builder, new)

    return sums(sums, types.int64, types.int64, types.int64, lanes), code


def cut_at(sums: Vectors, v: int, lanes: types.Type, value: ir.Value) -> ir.Value | None:
    """Return the lanes of vector v of a row: None (all of them) except for the last one, if the type of lanes is not
    None."""
    return None if lanes == types.none or v < sums.across - 1 else value


@intrinsic
def plus(typing: Typing, a: Vectors, b: Vectors) -> Intrinsic:
    """Return the sum of two tiles."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        pairs = [[builder.extract_value(value, i) for value in values] for i in range(a.count)]
        return closed(builder, [builder.fadd(x, y) for x, y in pairs])

    return a(a, a), code


@intrinsic
def times_rows(typing: Typing, sums: Vectors, factors: types.Type) -> Intrinsic:
    """Multiply each row of a tile by a number of its own; the numbers are contiguous at an address."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        tile, factors = values
        numbers = [splat(builder, builder.load(pointer_at(builder, factors, 4 * r, FLOAT))) for r in range(sums.rows)]
        return closed(
            builder,
            [builder.fmul(builder.extract_value(tile, i), numbers[i // sums.across]) for i in range(sums.count)],
        )

    return sums(sums, types.int64), code


@intrinsic
def store_tile(typing: Typing, sums: Vectors, y: types.Type, apart: types.Type, lanes: types.Type) -> Intrinsic:
    """Store a tile at y, its rows apart bytes from each other, the last vector of a row cut to lanes."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        tile, y, apart, cut = values
        for i in range(sums.count):
            row, v = builder.add(y, builder.mul(apart, apart.type(i // sums.across))), i % sums.across
            put(builder, builder.extract_value(tile, i), row, 64 * v, cut_at(sums, v, lanes, cut))
        return context.get_dummy_value()

    return types.void(sums, types.int64, types.int64, lanes), code


@intrinsic
def fetch(typing: Typing, sums: Vectors, y: types.Type, apart: types.Type, lanes: types.Type) -> Intrinsic:
    """Load a tile of the size of `sums` from y, its rows apart bytes from each other, the last vector of a row cut to
    lanes."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        _, y, apart, cut = values
        rows = [builder.add(y, builder.mul(apart, apart.type(r))) for r in range(sums.rows)]
        return closed(
            builder,
            [
                load_vector(builder, row, 64 * v, cut_at(sums, v, lanes, cut))
                for row in rows
                for v in range(sums.across)
            ],
        )

    return sums(sums, types.int64, types.int64, lanes), code


@intrinsic
def span(typing: Typing, sums: Vectors) -> Intrinsic:
    """Return the columns of a tile."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        return ir.IntType(64)(LANES * sums.across)

    return types.int64(sums), code


@intrinsic
def count_vectors(typing: Typing, sums: Vectors) -> Intrinsic:
    """Return the number of vectors of a tile."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        return ir.IntType(64)(sums.count)

    return types.int64(sums), code


def turned(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the 16 columns of 16 vectors: four stages of exchanges."""
    rows = list(rows)

    def mixed(p: ir.Value, q: ir.Value, lanes: list[int]) -> ir.Value:
        return builder.shuffle_vector(p, q, ir.Constant(ir.VectorType(LANE, LANES), lanes))

    for s in (8, 4, 2, 1):
        for i in (i for i in range(LANES) if not i & s):
            p, q = rows[i], rows[i + s]
            rows[i] = mixed(p, q, [j if not j & s else LANES + j - s for j in range(LANES)])
            rows[i + s] = mixed(p, q, [j + s if not j & s else LANES + j for j in range(LANES)])
    return rows


def ask_line(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Prefetch the cache line of an address, which need not be allocated."""
    kind = ir.IntType(8).as_pointer()
    ask = llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), kind, LANE, LANE, LANE)
    builder.call(ask, [builder.inttoptr(address, kind), LANE(0), LANE(3), LANE(1)])


@intrinsic
def prefetch(typing: Typing, sums: Vectors, address: types.Type) -> Intrinsic:
    """Prefetch the cache lines of a row of a tile's vectors at an address, which need not be allocated."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        kind = ir.IntType(8).as_pointer()
        ask = llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), kind, LANE, LANE, LANE)
        for v in range(sums.across):
            builder.call(ask, [pointer_at(builder, values[1], 64 * v, ir.IntType(8)), LANE(0), LANE(3), LANE(1)])
        return context.get_dummy_value()

    return types.void(sums, types.int64), code


@intrinsic
def ask(typing: Typing, sums: Vectors, base: types.Type, offset: types.Type) -> Intrinsic:
    """Run `prefetch` of base + offset, into the second cache: the first has few places for pending lines. No effect if
    base is None."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        if base == types.none:
            return context.get_dummy_value()
        kind = ir.IntType(8).as_pointer()
        ask = llvm_function(builder, "llvm.prefetch.p0", ir.VoidType(), kind, LANE, LANE, LANE)
        start = builder.add(values[1], values[2])
        for v in range(sums.across):
            builder.call(ask, [pointer_at(builder, start, 64 * v, ir.IntType(8)), LANE(0), LANE(2), LANE(1)])
        return context.get_dummy_value()

    return types.void(sums, base, types.int64), code


@intrinsic
def turn(typing: Typing, x: types.Type, across: types.Type, y: types.Type, along: types.Type) -> Intrinsic:
    """y[j, i] = x[i, j] for a tile of 16 by 16 (addresses; bytes between rows)."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        x, across, y, along = values
        rows = [load_vector(builder, builder.add(x, builder.mul(across, across.type(i)))) for i in range(LANES)]
        for i, row in enumerate(turned(builder, rows)):
            put(builder, row, builder.add(y, builder.mul(along, along.type(i))))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), code


@intrinsic
def turn_edge(
    typing: Typing,
    x: types.Type,
    across: types.Type,
    rows: types.Type,
    columns: types.Type,
    y: types.Type,
    along: types.Type,
    lines: types.Type,
    lanes: types.Type,
) -> Intrinsic:
    """Run `turn` where only rows by columns of x are read, with zeros for other columns, and only lines by lanes of y
    written."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        x, across, rows, columns, y, along, lines, lanes = values

        def line(start: ir.Value, apart: ir.Value, i: int, count: ir.Value) -> ir.Value:
            last = builder.sub(count, count.type(1))  # lines beyond the last repeat the last
            at = builder.select(builder.icmp_signed("<", count.type(i), count), count.type(i), last)
            return builder.add(start, builder.mul(apart, at))

        found = [load_vector(builder, line(x, across, i, rows), 0, columns) for i in range(LANES)]
        for i, row in reversed([*enumerate(turned(builder, found))]):  # the true last line is written last
            put(builder, row, line(y, along, i, lines), 0, lanes)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8), code
