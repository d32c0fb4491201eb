"""Tiles whose rows are of 8 numbers, two to a vector of 16: for few columns, where half of a vector would be idle."""
from formats.kernels.engine.native import Context, Intrinsic, Signature, Typing, Values, intrinsic, ir, types
from formats.kernels.simd.vectors import FLOAT, LANE, LANES, VECTOR, Vectors, closed, multiply_add, pointer_at, put

HALF_LANES = LANES // 2
EIGHT = ir.VectorType(FLOAT, HALF_LANES)


def chosen_lanes(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, lanes: list[int]) -> ir.Value:
    """Some lanes of two vectors."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(LANE, len(lanes)), lanes))


def spread_over_eight(builder: ir.IRBuilder, number: ir.Value) -> ir.Value:
    """A vector of 8 times the same number."""
    nothing = ir.Constant(EIGHT, ir.Undefined)
    return chosen_lanes(builder, builder.insert_element(nothing, number, LANE(0)), nothing, [0] * HALF_LANES)


@intrinsic
def add_outer_eights(typing: Typing, sums: Vectors, factors: types.Type, apart: types.Type, x: types.Type) -> Intrinsic:
    """sums + (one number for each row, apart bytes from each other) times (the 8 numbers at x)."""
    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        tile, factors, apart, x = values
        stored = builder.load(pointer_at(builder, x, 0, EIGHT))
        stored.align = 4
        numbers, new = chosen_lanes(builder, stored, stored, [*range(HALF_LANES)] * 2), list[ir.Value]()
        for v in range(sums.count):
            places = [builder.add(factors, builder.mul(apart, apart.type(r))) for r in (2 * v, 2 * v + 1)]
            low, high = (spread_over_eight(builder, builder.load(pointer_at(builder, at, 0, FLOAT))) for at in places)
            factor = chosen_lanes(builder, low, high, [*range(LANES)])
            new.append(multiply_add(builder, factor, numbers, builder.extract_value(tile, v)))
        return closed(builder, new)
    return sums(sums, types.int64, types.int64, types.int64), code


@intrinsic
def store_eights(typing: Typing, sums: Vectors, y: types.Type, apart: types.Type) -> Intrinsic:
    """Store a tile at y, its rows apart bytes from each other, each with 8 zeros behind it."""
    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        tile, y, apart = values
        for r in range(2 * sums.count):
            begin = r % 2 * HALF_LANES
            row = chosen_lanes(builder, builder.extract_value(tile, r // 2), ir.Constant(VECTOR, None),
                               [*range(begin, begin + HALF_LANES), *range(LANES, LANES + HALF_LANES)])
            put(builder, row, builder.add(y, builder.mul(apart, apart.type(r))))
        return context.get_dummy_value()
    return types.void(sums, types.int64, types.int64), code
