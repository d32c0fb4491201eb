"""Number types of stored weights: for each the structure of a block and the conversion of blocks to float32."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats import Q4_1, Q8_0
from formats.core.arrays import Floats
from opmatrix.algebra.data import Numeric

BlockedTensor: TypeAlias = Numeric


class BlockType(NamedTuple):
    """A block of `numbers` numbers, and the function that widens n blocks to n rows of them. The conversion is exact
    for types that round no number; a scaled block gives the results of ggml: products and sums in float32. `kept`: a
    format holds the blocks as they are."""

    block: np.dtype[np.generic]
    numbers: int
    widen: Callable[[BlockedTensor], Floats]
    kept: bool = False


def bfloat16(x: BlockedTensor) -> Floats:
    """Widen bfloat16, the upper half of a float32."""
    return np.left_shift(x, 16, dtype=np.uint32).view(np.float32)


def nibbles(bytes_: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return the lower four bits of every `side` bytes, then the upper ones: (n, bytes) to (n, 2 · bytes)."""
    parts = bytes_.reshape(len(bytes_), -1, 1, side) >> np.array([[0], [4]], np.uint8)
    return np.asarray(parts & 15, np.uint8).reshape(len(bytes_), -1)


def read_scale(x: BlockedTensor, name: str = "d") -> Floats:
    """Return a float16 of each block, as a column."""
    return np.asarray(x[name], np.float32)[:, None]


def q4_0(x: BlockedTensor) -> Floats:
    """Widen halves of bytes: d (q - 8)."""
    return read_scale(x) * (nibbles(x["q"], 16).astype(np.float32) - 8)


def q4_1(x: BlockedTensor) -> Floats:
    """Widen halves of bytes with a shift: d q + m."""
    return read_scale(x) * nibbles(x["q"], 16).astype(np.float32) + read_scale(x, "m")


def q8_0(x: BlockedTensor) -> Floats:
    """Widen bytes with a scale: d q."""
    return read_scale(x) * np.asarray(x["q"], np.float32)


def q4_k(x: BlockedTensor) -> Floats:
    """Widen eight groups of 32, each with a scale and a shift of six bits: four low bits in a byte of their own, or all
    six."""
    first, second, third = x["scales"].reshape(-1, 3, 4).swapaxes(0, 1)
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], 1)
    shifts = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], 1)
    d, m = (read_scale(x, name) * group.astype(np.float32) for name, group in (("d", scales), ("m", shifts)))
    values = d[..., None] * nibbles(x["q"], 32).reshape(-1, 8, 32).astype(np.float32) - m[..., None]
    return values.reshape(len(x), -1)


def q6_k(x: BlockedTensor) -> Floats:
    """Widen sixteen groups of 16, each with a scale of eight bits; a number has four bits in one place, two in
    another."""
    low = nibbles(x["low"], 64).reshape(-1, 8, 32)
    high = (x["high"].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3).reshape(-1, 8, 32)
    q = ((low | high << 4).astype(np.int8) - 32).reshape(-1, 16, 16).astype(np.float32)
    return ((read_scale(x) * np.asarray(x["scales"], np.float32))[..., None] * q).reshape(len(x), -1)


def identity(x: BlockedTensor) -> Floats:
    """Return the numbers as they are, for tensors of float32."""
    return x


def as_float32(x: BlockedTensor) -> Floats:
    """Convert the numbers to float32."""
    return np.asarray(x, np.float32)


STORED = {
    "F32": BlockType(np.dtype("<f4"), 1, identity),
    "F16": BlockType(np.dtype("<f2"), 1, as_float32),
    "BF16": BlockType(np.dtype("<u2"), 1, bfloat16),
    "F64": BlockType(np.dtype("<f8"), 1, as_float32),
    "Q4_0": BlockType(np.dtype([("d", "<f2"), ("q", "u1", 16)]), 32, q4_0),
    "Q4_1": BlockType(Q4_1.filed, 32, q4_1, kept=True),
    "Q8_0": BlockType(Q8_0.filed, 32, q8_0, kept=True),
    "Q4_K": BlockType(np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)]), 256, q4_k),
    "Q6_K": BlockType(
        np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]), 256, q6_k
    ),
}
