"""x @ W for W in blocks of files: levels in planes of bits, with scales of groups, in panels of 64 columns. One text
for every layout (formats/core/block_layout.py), by the writer of widened_words.py; a kernel for each layout."""

import numpy as np

from formats.core.block_layout import BlockLayout
from formats.core.epilogue import Epilogue
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.native import ir
from formats.kernels.matmul.linear import typed
from formats.kernels.matmul.widened_words import (
    GroupPlace,
    WordedArrays,
    Wording,
    multiply_words,
    product_words,
    read_plane,
    widen_halves,
)
from formats.kernels.matmul.widened_words import __borders__ as __borders__
from formats.kernels.simd.tail import permute
from formats.kernels.simd.vectors import FLOAT, LANES, VECTOR, load_vector, pointer_at, splat
from formats.kernels.simd.words import SHORT, WORDS, words_of
from formats.storage.block_layouts import LAYOUTS

__all__ = [
    "product_iq4_nl",
    "product_q2_k",
    "product_q3_k",
    "product_q4_0",
    "product_q4_k",
    "product_q5_0",
    "product_q5_1",
    "product_q5_k",
    "product_q6_k",
]
UNIT_INPUTS = 8  # inputs whose levels are read at a time
HALF_BYTES, HALVES = 2, ir.VectorType(SHORT, LANES)


def level_reader(layout: BlockLayout):
    """Build the function that returns level i of a unit, from the words of its planes, as the float32 of the level."""
    values = layout.values.tolist() if layout.bits <= 4 else []
    values += values[:1] * (16 - len(values)) if values else []

    def number(builder, planes, i):
        """Return number i of the words of each plane: from a table of 16, or the level itself."""
        whole, offset = None, 0
        for words, bits in zip(planes, layout.planes, strict=True):
            shift, mask = bits * i - offset, (1 << bits) - 1
            turned = (
                words
                if not shift
                else builder.lshr(words, words_of(shift))
                if shift > 0
                else builder.shl(words, words_of(-shift))
            )
            part = builder.and_(turned, words_of(mask << offset))
            whole = part if whole is None else builder.or_(whole, part)
            offset += bits
        return permute(builder, values, whole) if values else builder.uitofp(whole, VECTOR)

    return number


def scale_reader(layout: BlockLayout):
    """Build the function that makes d, then m, of vectors of outputs from the scales of a group."""

    def stored_scales(builder, place, v):
        """Return the scales of a block as float32: d, and m if there is one, in pairs."""
        if not layout.minimum:
            halves = builder.load(pointer_at(builder, place.scale, HALF_BYTES * LANES * v, HALVES))
            halves.align = HALF_BYTES
            return [widen_halves(builder, halves)]
        pairs = builder.bitcast(load_vector(builder, place.scale, 64 * v), WORDS)
        return [widen_halves(builder, builder.trunc(builder.lshr(pairs, words_of(part)), HALVES)) for part in (0, 16)]

    def integers(builder, place, v):
        """Return the integers of a group."""
        whole, first, offset = None, 0, 0
        for bits in layout.fields:
            words = read_plane(builder, place.parts, place.across, first, bits, place.group, v)
            part = builder.and_(words, words_of((1 << bits) - 1))
            whole = part if whole is None else builder.or_(whole, builder.shl(part, words_of(offset)))
            first, offset = first + bits * layout.groups // 32, offset + bits
        return whole

    def scales(builder, place: GroupPlace, across):
        """Return d, then m, of `across` vectors of outputs."""
        scale, shift = [], []
        for v in range(across):
            d, *m = stored_scales(builder, place, v)
            if layout.fields:
                whole = integers(builder, place, v)
                low = builder.and_(whole, words_of((1 << layout.scale_bits) - 1))
                d = builder.fmul(d, builder.sitofp(builder.sub(low, words_of(layout.middle)), VECTOR))
                high = builder.lshr(whole, words_of(layout.scale_bits))
                m = [builder.fmul(each, builder.sitofp(high, VECTOR)) for each in m]
            scale.append(d)
            shift += m or [builder.fmul(d, splat(builder, FLOAT(float(missing_offset(layout)))))]
        return [*scale, *shift]

    return scales


def missing_offset(layout: BlockLayout) -> int:
    """Return what the numbers of levels that are read lack of v(q): levels of five bits and more are read as they
    are."""
    return 0 if layout.bits <= 4 else -layout.zero


def wording_of(layout: BlockLayout) -> Wording:
    """Return the wording of words of a layout."""
    return Wording(
        UNIT_INPUTS,
        HALF_BYTES * layout.scales,
        level_reader(layout),
        scale_reader(layout),
        layout.planes,
        layout.group,
        layout.groups,
        layout.part_words,
    )


WORDINGS = {name: wording_of(layout) for name, layout in LAYOUTS.items()}
multiply_q4_0 = multiply_words(WORDINGS["q4_0"])
multiply_q5_0 = multiply_words(WORDINGS["q5_0"])
multiply_q5_1 = multiply_words(WORDINGS["q5_1"])
multiply_q2_k = multiply_words(WORDINGS["q2_k"])
multiply_q3_k = multiply_words(WORDINGS["q3_k"])
multiply_q4_k = multiply_words(WORDINGS["q4_k"])
multiply_q5_k = multiply_words(WORDINGS["q5_k"])
multiply_q6_k = multiply_words(WORDINGS["q6_k"])
multiply_iq4_nl = multiply_words(WORDINGS["iq4_nl"])


@Kernel.of(3, rare=True)
def blocks_q4_0(item, worker, arguments):
    """Multiply by w in blocks of q4_0; the epilogue follows panel by panel."""
    multiply_q4_0(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q5_0(item, worker, arguments):
    """Multiply by w in blocks of q5_0; the epilogue follows panel by panel."""
    multiply_q5_0(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q5_1(item, worker, arguments):
    """Multiply by w in blocks of q5_1; the epilogue follows panel by panel."""
    multiply_q5_1(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q2_k(item, worker, arguments):
    """Multiply by w in blocks of q2_k; the epilogue follows panel by panel."""
    multiply_q2_k(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q3_k(item, worker, arguments):
    """Multiply by w in blocks of q3_k; the epilogue follows panel by panel."""
    multiply_q3_k(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q4_k(item, worker, arguments):
    """Multiply by w in blocks of q4_k; the epilogue follows panel by panel."""
    multiply_q4_k(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q5_k(item, worker, arguments):
    """Multiply by w in blocks of q5_k; the epilogue follows panel by panel."""
    multiply_q5_k(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_q6_k(item, worker, arguments):
    """Multiply by w in blocks of q6_k; the epilogue follows panel by panel."""
    multiply_q6_k(item, worker, arguments)


@Kernel.of(3, rare=True)
def blocks_iq4_nl(item, worker, arguments):
    """Multiply by w in blocks of iq4_nl; the epilogue follows panel by panel."""
    multiply_iq4_nl(item, worker, arguments)


def product_blocks(
    kernel: Kernel, name: str, x: np.ndarray, weight: WordedArrays, out: np.ndarray, epilogue: Epilogue | None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue, for W in blocks of a layout: w words of levels, scale float16,
    parts words of the integers of groups, all in panels, n rounded up to whole blocks. Sums are float32."""
    w, scale, parts = weight
    typed_parts = None if parts is None else typed("parts", parts, np.uint32)
    weight = WordedArrays(typed("w", w, np.uint32), typed("scale", scale, np.float16), typed_parts)
    return product_words(kernel, WORDINGS[name], x, weight, out, epilogue)


def product_q4_0(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q4_0."""
    return product_blocks(blocks_q4_0, "q4_0", x, WordedArrays(w, scale), out, epilogue)


def product_q5_0(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q5_0."""
    return product_blocks(blocks_q5_0, "q5_0", x, WordedArrays(w, scale), out, epilogue)


def product_q5_1(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q5_1."""
    return product_blocks(blocks_q5_1, "q5_1", x, WordedArrays(w, scale), out, epilogue)


def product_q2_k(
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    parts: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q2_k."""
    return product_blocks(blocks_q2_k, "q2_k", x, WordedArrays(w, scale, parts), out, epilogue)


def product_q3_k(
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    parts: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q3_k."""
    return product_blocks(blocks_q3_k, "q3_k", x, WordedArrays(w, scale, parts), out, epilogue)


def product_q4_k(
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    parts: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q4_k."""
    return product_blocks(blocks_q4_k, "q4_k", x, WordedArrays(w, scale, parts), out, epilogue)


def product_q5_k(
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    parts: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q5_k."""
    return product_blocks(blocks_q5_k, "q5_k", x, WordedArrays(w, scale, parts), out, epilogue)


def product_q6_k(
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    parts: np.ndarray,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """Compute `product_blocks` for blocks of q6_k."""
    return product_blocks(blocks_q6_k, "q6_k", x, WordedArrays(w, scale, parts), out, epilogue)


def product_iq4_nl(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """Compute `product_blocks` for blocks of iq4_nl."""
    return product_blocks(blocks_iq4_nl, "iq4_nl", x, WordedArrays(w, scale), out, epilogue)
