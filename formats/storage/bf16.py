"""bfloat16: a number type as a format."""

import numpy as np

from formats.core.arrays import ROUNDED_TOGETHER, FormatError, as_matrix, multiply_sizes
from formats.core.epilogue import gamma
from formats.core.layout import PANEL, TILE, Panelled, deepened, panels, unpanelled
from formats.core.sizes import T, ceiling, n, p, u2
from formats.storage.format import Format

FLUSHED = 2.0**-126  # a smaller number may count as 0
STEP_INPUTS = 32  # inputs of a step: 64 bytes
BF16_OVERFLOW = 0x7F7F8000  # bits of the first float32 that is nearer to infinity than to a bfloat16


class BF16(Format):
    """Every number rounded to bfloat16, in panels of 64 outputs, pairs of inputs together; x is rounded on the way.

    Products of two such numbers are exact in float32, and so are the sums (Kalamkar et al. 2019, arXiv:1905.12322)."""

    w: u2[32 * ceiling(n / 32) * 16 * ceiling(p / 16)]
    unit = "bf16"
    panelled = Panelled(TILE, 2, STEP_INPUTS)
    portion = PANEL
    flops = 2 * T * n * p
    work = T * n * p, n * p * ceiling(T / 256), T * (n + p), T * n

    def fit(W):
        """Round W to bfloat16 and back; FormatError for a number beyond the largest."""
        return widen_bits(round_weights(W))

    def pack(W):
        """Pad the inputs with zeros to full steps, then lay the bits out in panels, two inputs a word."""
        return panels(deepened(round_weights(W), STEP_INPUTS), 2, TILE)

    def unpack(shape, w):
        """Widen the stored bits to float32, without the padding."""
        return widen_bits(unpanelled(w, (-(-shape[0] // STEP_INPUTS) * STEP_INPUTS, shape[1]), 2, TILE)[: shape[0]])

    @classmethod
    def approximate(cls, W):
        """Return `pack(fit(W))`: rounding twice changes no number."""
        return cls._hold(as_matrix(W, "bf16.fit"))

    def kernel(x, w, out, epilogue):
        """Write x @ W to `out`, with x rounded to bfloat16 as well, then the epilogue."""
        from formats.kernels import product_bf16

        product_bf16(x, w, out, epilogue)

    @staticmethod
    def reads(x):
        """Return x rounded to bfloat16, in float64."""
        return widen_bits(nearest(np.ascontiguousarray(x, np.float32))).astype(np.float64)

    def unsound(self):
        """Describe the fault of bits that stand for infinity or NaN; empty if there are none."""
        return "w holds numbers that are not finite" if ((self.w & 0x7F80) == 0x7F80).any() else ""

    def bound(self, x, operands=None):
        """Bound the error: products are exact, their sums are not; numbers below the smallest normal one may be
        flushed."""
        x, W = operands or self.operands(x)
        lost = multiply_sizes(np.ones((1, len(W))), W) + abs(x).sum(1, keepdims=True) + len(W)
        return gamma(len(W) + 1) * multiply_sizes(x, W) + FLUSHED * lost


def round_weights(W):
    """Return the bits of the nearest bfloat16 numbers, ties to even; FormatError for a number beyond the largest."""
    bits, some = np.empty(W.shape, np.uint16), max(1, ROUNDED_TOGETHER // W.shape[1])
    for at in range(0, len(W), some):
        part = W[at : at + some]
        if (beyond := abs(part).view(np.uint32) >= BF16_OVERFLOW).any():
            i, j = np.argwhere(beyond)[0]
            raise FormatError(f"bf16.fit: W[{at + i}, {j}] = {part[i, j]} is beyond the largest bfloat16")
        bits[at : at + some] = nearest(part)
    return bits


def nearest(x):
    """Return the bits of the nearest finite bfloat16 numbers, ties to even; infinity and NaN stay what they are."""
    bits = x.view(np.uint32)
    rounded = np.where(abs(x).view(np.uint32) >= BF16_OVERFLOW, bits, bits + np.uint32(0x7FFF) + ((bits >> 16) & 1))
    return (np.where(np.isnan(x), bits | np.uint32(1 << 22), rounded) >> 16).astype(np.uint16)


def widen_bits(bits: np.ndarray) -> np.ndarray:
    """Return the float32 numbers of these bits of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
