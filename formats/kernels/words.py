"""Products of narrow numbers, a word of 32 bits at a time: two bfloat16 or four bytes of x against those of W.

Sums are tiles of vectors as in vectors.py; whole numbers lie in them as their bits. What the processor has decides how: its own
instructions for pairs (vdpbf16ps) and fours (vpdpbusd), or widening to what it can multiply."""

from .native import intrinsic, ir, types
from .vectors import FEATURES, FLOAT, LANE, VECTOR, WIDE, closed, function, multiply_add, place, read, spread

PAIRS = "+avx512bf16" in FEATURES and "+amx-bf16" not in FEATURES      # where there are both, pairs are the slow way
FOURS = "+avx512vnni" in FEATURES
WORDS = ir.VectorType(LANE, WIDE)
BYTE, SHORT = ir.IntType(8), ir.IntType(16)


class BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""
    intrinsic_name = "bf16"
    def __str__(self): return "bfloat"
    def __eq__(self, other): return isinstance(other, BFloat)
    def __hash__(self): return hash("bfloat")


def everywhere(builder, word):
    """A vector of 16 times the same word."""
    nothing = ir.Constant(WORDS, ir.Undefined)
    first = builder.insert_element(nothing, word, LANE(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(WORDS, [0] * WIDE))


def constant(number): return ir.Constant(WORDS, [number] * WIDE)


def add_pairs(builder, total, x, w):
    """total + x0 w0 + x1 w1 for pairs of bfloat16 in words."""
    if PAIRS:
        kind = ir.VectorType(BFloat(), 2 * WIDE)
        dot = function(builder, "llvm.x86.avx512bf16.dpbf16ps.512", VECTOR, VECTOR, kind, kind)
        return builder.call(dot, [total, builder.bitcast(x, kind), builder.bitcast(w, kind)])
    for part in (lambda v: builder.shl(v, constant(16)), lambda v: builder.and_(v, constant(0xFFFF0000))):
        total = multiply_add(builder, builder.bitcast(part(x), VECTOR), builder.bitcast(part(w), VECTOR), total)
    return total


def add_fours(builder, total, x, w):
    """total + x0 w0 + ... + x3 w3 for four bytes in words: those of x have a sign, those of w none."""
    whole = builder.bitcast(total, WORDS)
    if FOURS:
        kind = ir.VectorType(BYTE, 4 * WIDE)
        dot = function(builder, "llvm.x86.avx512.vpdpbusd.512", WORDS, WORDS, kind, kind)
        return builder.bitcast(builder.call(dot, [whole, builder.bitcast(w, kind), builder.bitcast(x, kind)]), VECTOR)
    pairs, wider = ir.VectorType(SHORT, 2 * WIDE), ir.VectorType(LANE, 2 * WIDE)
    x, w = builder.bitcast(x, pairs), builder.bitcast(w, pairs)
    eight = ir.Constant(pairs, [8] * 2 * WIDE)
    low = builder.ashr(builder.shl(x, eight), eight), builder.and_(w, ir.Constant(pairs, [255] * 2 * WIDE))
    high = builder.ashr(x, eight), builder.lshr(w, eight)
    for a, b in (low, high):
        products = builder.mul(builder.sext(a, wider), builder.sext(b, wider))
        for odd in (0, 1):
            lanes = ir.Constant(WORDS, [2 * i + odd for i in range(WIDE)])
            whole = builder.add(whole, builder.shuffle_vector(products, ir.Constant(wider, ir.Undefined), lanes))
    return builder.bitcast(whole, VECTOR)


def stored(builder, words, address, kind):
    """Store the low ends of 16 words."""
    narrow = ir.VectorType(kind, WIDE)
    builder.store(builder.trunc(words, narrow), place(builder, address, 0, narrow)).align = 1


@intrinsic
def as_numbers(typing, vector, less):
    """The whole numbers whose bits a vector holds, less one, as float32."""
    def code(context, builder, signature, values):
        words = builder.bitcast(builder.extract_value(values[0], 0), WORDS)
        number = builder.sitofp(builder.sub(words, everywhere(builder, values[1])), VECTOR)
        return closed(builder, [number])
    return vector(vector, types.int32), code


@intrinsic
def settled(typing, numbers, sums, less, apart, factors, scales):
    """numbers + a tile of whole numbers, in it as their bits, as float32: less an int32 of each row, apart bytes from each other,
    times a factor of the row and scales of the columns."""
    def code(context, builder, signature, values):
        before, tile, less, apart, factors, scales = values
        scale, new = [read(builder, scales, 64 * v) for v in range(sums.across)], []
        for r in range(sums.rows):
            off = everywhere(builder, builder.load(place(builder, builder.add(less, builder.mul(apart, apart.type(r))), 0, LANE)))
            factor = spread(builder, builder.load(place(builder, factors, 4 * r, FLOAT)))
            for each in scale:
                words = builder.bitcast(builder.extract_value(tile, len(new)), WORDS)
                number, by = builder.sitofp(builder.sub(words, off), VECTOR), builder.fmul(each, factor)
                new.append(multiply_add(builder, number, by, builder.extract_value(before, len(new))))
        return closed(builder, new)
    return sums(sums, sums, types.int64, types.int64, types.int64, types.int64), code


def dots(add, split=None):
    """An intrinsic: sums + (one word for each row, apart bytes from each other) against the words at w, vectors beside
    bytes apart; with split, a vector holds the words of several factors, one word after another."""
    @intrinsic
    def step(typing, sums, factors, apart, w, beside):
        def code(context, builder, signature, values):
            tile, factors, apart, w, beside = values
            starts = [builder.add(w, builder.mul(beside, beside.type(v))) for v in range(sums.across)]
            found = [builder.bitcast(read(builder, start), WORDS) for start in starts]
            new = [builder.extract_value(tile, i) for i in range(sums.count)]
            for i, vectors in enumerate(zip(*(split(builder, v) if split else [v] for v in found), strict=True)):
                for r in range(sums.rows):
                    at = builder.add(factors, builder.mul(apart, apart.type(r)))
                    x = everywhere(builder, builder.load(place(builder, at, 4 * i, LANE)))
                    for v, vector in enumerate(vectors):
                        new[r * sums.across + v] = add(builder, new[r * sums.across + v], x, vector)
            return closed(builder, new)
        return sums(sums, types.int64, types.int64, types.int64, types.int64), code
    return step


def nibbles(builder, vector):
    """The low and the high halves of bytes, each as bytes."""
    mask = constant(0x0F0F0F0F)
    return builder.and_(vector, mask), builder.and_(builder.lshr(vector, constant(4)), mask)


dot_pairs, dot_fours, dot_eights = dots(add_pairs), dots(add_fours), dots(add_fours, nibbles)
