"""Products of narrow numbers, a word of 32 bits at a time: two bfloat16 or four bytes of x times those of W.

Sums are tiles of vectors as in vectors.py; integers are stored in them as their bits. The code depends on the
processor: its own instructions for pairs (vdpbf16ps) and fours (vpdpbusd), or widening to numbers that it can
multiply."""

from collections.abc import Callable

from formats.kernels.engine.native import FEATURES, Context, Intrinsic, Signature, Typing, Values, intrinsic, ir, types
from formats.kernels.simd.vectors import LANE, LANES, VECTOR, closed, llvm_function, multiply_add, pointer_at

PAIRS = "+avx512bf16" in FEATURES and "+amx-bf16" not in FEATURES  # with AMX, pairs are the slower way
FOURS = "+avx512vnni" in FEATURES
WORDS = ir.VectorType(LANE, LANES)
BYTE, SHORT = ir.IntType(8), ir.IntType(16)


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, for which llvmlite has no name."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


def everywhere(builder: ir.IRBuilder, word: ir.Value) -> ir.Value:
    """Return a vector of 16 copies of a word."""
    nothing = ir.Constant(WORDS, ir.Undefined)
    first = builder.insert_element(nothing, word, LANE(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(WORDS, [0] * LANES))


def words_of(number: int) -> ir.Value:
    return ir.Constant(WORDS, [number] * LANES)


def add_pairs(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, w: ir.Value) -> ir.Value:
    """Return total + x0 w0 + x1 w1 for pairs of bfloat16 in words."""
    if PAIRS:
        kind = ir.VectorType(BFloat(), 2 * LANES)
        dot = llvm_function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VECTOR, VECTOR, kind, kind)
        return builder.call(dot, [total, builder.bitcast(x, kind), builder.bitcast(w, kind)])
    parts: tuple[Callable[[ir.Value], ir.Value], ...]  # the low halves of words, and the high ones
    parts = lambda v: builder.shl(v, words_of(16)), lambda v: builder.and_(v, words_of(0xFFFF0000))
    for part in parts:
        total = multiply_add(builder, builder.bitcast(part(x), VECTOR), builder.bitcast(part(w), VECTOR), total)
    return total


def add_fours(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, w: ir.Value) -> ir.Value:
    """Return total + x0 w0 + ... + x3 w3 for four bytes in words: signed bytes of x, unsigned bytes of w."""
    whole = builder.bitcast(total, WORDS)
    if FOURS:
        kind = ir.VectorType(BYTE, 4 * LANES)
        dot = llvm_function(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS, WORDS, kind, kind)
        return builder.bitcast(builder.call(dot, [whole, builder.bitcast(w, kind), builder.bitcast(x, kind)]), VECTOR)
    pairs, wider = ir.VectorType(SHORT, 2 * LANES), ir.VectorType(LANE, 2 * LANES)
    x, w = builder.bitcast(x, pairs), builder.bitcast(w, pairs)
    eight = ir.Constant(pairs, [8] * 2 * LANES)
    low = builder.ashr(builder.shl(x, eight), eight), builder.and_(w, ir.Constant(pairs, [255] * 2 * LANES))
    high = builder.ashr(x, eight), builder.lshr(w, eight)
    for a, b in (low, high):
        products = builder.mul(builder.sext(a, wider), builder.sext(b, wider))
        for odd in (0, 1):
            lanes = ir.Constant(WORDS, [2 * i + odd for i in range(LANES)])
            whole = builder.add(whole, builder.shuffle_vector(products, ir.Constant(wider, ir.Undefined), lanes))
    return builder.bitcast(whole, VECTOR)


def store_words(builder: ir.IRBuilder, words: ir.Value, address: ir.Value, kind: ir.Type) -> None:
    """Store the low ends of 16 words."""
    narrow = ir.VectorType(kind, LANES)
    builder.store(builder.trunc(words, narrow), pointer_at(builder, address, 0, narrow)).align = 1


@intrinsic
def as_numbers(typing: Typing, vector: types.Type, less: types.Type) -> Intrinsic:
    """Return the integers whose bits a vector holds, minus `less`, as float32."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        words = builder.bitcast(builder.extract_value(values[0], 0), WORDS)
        number = builder.sitofp(builder.sub(words, everywhere(builder, values[1])), VECTOR)
        return closed(builder, [number])

    return vector(vector, types.int32), code


def nibbles(builder: ir.IRBuilder, vector: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the low and the high halves of bytes, each as bytes."""
    mask = words_of(0x0F0F0F0F)
    return builder.and_(vector, mask), builder.and_(builder.lshr(vector, words_of(4)), mask)
