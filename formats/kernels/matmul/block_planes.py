"""x @ W for W in blocks of files: levels in planes of bits, with scales of groups, in panels of 64 columns. One text
for every layout (formats/core/block_layout.py), by the writer of widened_words.py; a kernel for each layout."""

import numpy as np

from formats.core.block_layout import BlockLayout
from formats.core.epilogue import Epilogue
from formats.kernels.engine.compiled import Kernel
from formats.kernels.matmul.linear import typed
from formats.kernels.matmul.widened_words import (
    GroupPlace,
    WordedArrays,
    Wording,
    multiply_words,
    product_words,
    read_centred,
    read_exponents,
    read_floats,
    read_pairs,
    read_plane,
    read_scales,
)
from formats.kernels.matmul.widened_words import __borders__ as __borders__
from formats.kernels.simd.tail import permute
from formats.kernels.simd.vectors import FLOAT, VECTOR, splat
from formats.kernels.simd.words import WORDS, words_of
from formats.storage.block_layouts import LAYOUTS

__all__ = ["product_blocks"]

UNIT_INPUTS = 8  # inputs whose levels are read at a time


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
        if layout.float8:
            return widen_float8(builder, whole)
        return permute(builder, values, whole) if values else builder.uitofp(whole, VECTOR)

    return number


def widen_float8(builder, words):
    """Return bytes of E4M3, in words, as float32. Exponent and fraction move to their places in a float32, whose
    exponents are 120 higher. A number below 2⁻⁶ has no leading one: it is read as if it had, and 2⁻⁶ is subtracted,
    which is exact."""
    moved = builder.shl(builder.and_(words, words_of(0x7F)), words_of(20))
    small = builder.bitcast(builder.add(moved, words_of(121 << 23)), VECTOR)
    small = builder.bitcast(builder.fsub(small, splat(builder, FLOAT(2.0**-6))), WORDS)
    is_small = builder.icmp_unsigned("<", moved, words_of(1 << 23))
    widened = builder.select(is_small, small, builder.add(moved, words_of(120 << 23)))
    sign = builder.shl(builder.and_(words, words_of(0x80)), words_of(24))
    return builder.bitcast(builder.or_(widened, sign), VECTOR)


def scale_reader(layout: BlockLayout):
    """Build the function that makes d, then m, of vectors of outputs from the scales of a group."""

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
            pairs = read_centred if layout.centred else read_pairs
            read = read_exponents if layout.exponents else read_floats if layout.wide else read_scales
            d, *m = pairs(builder, place, v) if layout.minimum else [read(builder, place, v)]
            if layout.fields:
                whole = integers(builder, place, v)
                low = builder.and_(whole, words_of((1 << layout.scale_bits) - 1))
                d = builder.fmul(d, builder.sitofp(builder.sub(low, words_of(layout.middle)), VECTOR))
                high = builder.lshr(whole, words_of(layout.scale_bits))
                m = [builder.fmul(each, builder.sitofp(high, VECTOR)) for each in m]
            if layout.centred:
                m = [builder.fneg(builder.fmul(d, each)) for each in m]
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
        layout.scale_type.itemsize * layout.scales,
        level_reader(layout),
        scale_reader(layout),
        layout.planes,
        layout.group,
        layout.groups,
        layout.part_words,
    )


WORDINGS = {name: wording_of(layout) for name, layout in LAYOUTS.items()}


def block_kernel(name: str) -> Kernel:
    """Return the kernel of a layout, entered by a name of its own."""
    multiply = multiply_words(WORDINGS[name])

    def multiply_blocks(item, worker, arguments):
        """Multiply by w in blocks of the layout; the epilogue follows panel by panel."""
        multiply(item, worker, arguments)

    multiply_blocks.__name__ = multiply_blocks.__qualname__ = f"blocks_{name}"
    return Kernel(multiply_blocks, rare=True)


BLOCK_KERNELS = {name: block_kernel(name) for name in WORDINGS}


def product_blocks(
    layout: str,
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    parts: np.ndarray | None,
    out: np.ndarray,
    epilogue: Epilogue | None = None,
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue, for W in blocks of a layout: w words of levels, scale float16,
    bytes of exponents or of float16 with levels of zero, or float32, parts words of the integers of groups, all in
    panels, n rounded up to whole blocks. Sums are float32."""
    typed_parts = None if parts is None else typed("parts", parts, np.uint32)
    weight = WordedArrays(typed("w", w, np.uint32), typed("scale", scale, LAYOUTS[layout].scale_type), typed_parts)
    return product_words(BLOCK_KERNELS[layout], WORDINGS[layout], x, weight, out, epilogue)
