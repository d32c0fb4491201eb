"""x @ W for W in levels, d q + m with d and m in float16 for each group of 32 inputs of an output, in panels of 64
columns: a word holds the levels of eight inputs (widened_words.py)."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.kernels.engine.compiled import Kernel
from formats.kernels.matmul.linear import typed
from formats.kernels.matmul.widened_words import WordedArrays, Wording, multiply_words, product_words, read_pairs
from formats.kernels.matmul.widened_words import __borders__ as __borders__
from formats.kernels.simd.tail import permute
from formats.kernels.simd.vectors import FEATURES, VECTOR
from formats.kernels.simd.words import words_of
from formats.storage.q4_1 import WORD_INPUTS

__all__ = ["product_levels"]


def level(builder, planes, i):
    """Return number i of the eight levels of each word, as float32."""
    [words] = planes
    shifted = builder.lshr(words, words_of(4 * i)) if i else words
    if "+avx512f" in FEATURES:
        return permute(builder, [float(q) for q in range(16)], shifted)
    return builder.uitofp(builder.and_(shifted, words_of(15)), VECTOR)


def level_scales(builder, place, across):
    """Load d, then m, of `across` vectors of outputs."""
    pairs = [read_pairs(builder, place, v) for v in range(across)]
    return [pair[part] for part in range(2) for pair in pairs]


LEVELS = Wording(WORD_INPUTS, 4, level, level_scales, (4,))
multiply_levels = multiply_words(LEVELS)


@Kernel.of(3, rare=True)
def levels(item, worker, arguments):
    """Multiply by w in levels; the epilogue follows panel by panel."""
    multiply_levels(item, worker, arguments)


def product_levels(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; w: words (uint32) of eight levels, in panels, n rounded up to 32;
    scale: float16, d and m in pairs, a row for every 32 inputs, in panels. Sums are float32."""
    w, scale = typed("w", w, np.uint32), typed("scale", scale, np.float16)
    return product_words(levels, LEVELS, x, WordedArrays(w, scale), out, epilogue)
