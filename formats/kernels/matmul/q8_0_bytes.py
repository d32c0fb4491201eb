"""x @ W for W in bytes, d (q - 128) with d in float16 for each group of 32 inputs of an output, in panels of 64
columns: a word holds the bytes of four inputs (widened_words.py)."""

import numpy as np

from formats.core.epilogue import Epilogue
from formats.kernels.engine.compiled import Kernel
from formats.kernels.matmul.linear import typed
from formats.kernels.matmul.widened_words import WordedArrays, Wording, multiply_words, product_words, read_scales
from formats.kernels.matmul.widened_words import __borders__ as __borders__
from formats.kernels.simd.vectors import FLOAT, VECTOR, splat
from formats.kernels.simd.words import words_of

__all__ = ["product_scaled_bytes"]


def byte(builder, planes, i):
    """Return number i of the four bytes of each word, as float32."""
    [words] = planes
    shifted = builder.lshr(words, words_of(8 * i)) if i else words
    return builder.uitofp(shifted if i == 3 else builder.and_(shifted, words_of(255)), VECTOR)


def byte_scales(builder, place, across):
    """Load d, then -128 d, of `across` vectors of outputs: d q - 128 d is exact."""
    scales = [read_scales(builder, place, v) for v in range(across)]
    middle = splat(builder, FLOAT(-128.0))
    return [*scales, *(builder.fmul(d, middle) for d in scales)]


BYTES = Wording(4, 2, byte, byte_scales, (8,))
multiply_scaled_bytes = multiply_words(BYTES)


@Kernel.of(3, rare=True)
def scaled_bytes(item, worker, arguments):
    """Multiply by w in bytes with scales of groups; the epilogue follows panel by panel."""
    multiply_scaled_bytes(item, worker, arguments)


def product_scaled_bytes(
    x: np.ndarray, w: np.ndarray, scale: np.ndarray, out: np.ndarray, epilogue: Epilogue | None = None
) -> np.ndarray:
    """out (T, p) = x (T, n) @ W, then the epilogue; w: bytes W / d + 128, in panels of fours, n rounded up to 32;
    scale: d in float16, a row for every 32 inputs, in panels. Sums are float32."""
    w, scale = typed("w", w, np.uint8), typed("scale", scale, np.float16)
    return product_words(scaled_bytes, BYTES, x, WordedArrays(w, scale), out, epilogue)
