"""Number types of stored weights: for each the structure of a block and the conversion of blocks to float32."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from formats import Q4_1, Q8_0
from formats.core.arrays import Floats
from formats.storage.block_layouts import FILED, LAYOUTS, minima_of, nibbles
from opmatrix.algebra.data import Numeric

BlockedTensor: TypeAlias = Numeric
SAFE_EXPONENT = 252  # the highest byte of an exponent of which float32 holds six times the power, a float4's most


class BlockType(NamedTuple):
    """A block of `numbers` numbers, and the function that widens n blocks to n rows of them. The conversion is exact
    for types that round no number; a scaled block gives the results of ggml: products and sums in float32. `kept`: a
    format holds the blocks as they are. `exponents`: scales are bytes of exponents; `largest`: of the
    numbers that scales may lead beyond float32."""

    block: np.dtype[np.generic]
    numbers: int
    widen: Callable[[BlockedTensor], Floats]
    kept: bool = False
    exponents: bool = False
    largest: float = 1.0

    def leads_to_finite(self, blocks: BlockedTensor) -> bool:
        """True if the scales of blocks are such that all numbers are finite."""
        if self.exponents:
            return not (blocks["d"] > SAFE_EXPONENT).any()
        floats = (blocks[name] for name in self.block.names or () if blocks[name].dtype.kind == "f")
        with np.errstate(over="ignore", invalid="ignore"):
            return all(np.isfinite(scales * scales.dtype.type(self.largest)).all() for scales in floats)


def bfloat16(x: BlockedTensor) -> Floats:
    """Widen bfloat16, the upper half of a float32."""
    return np.left_shift(x, 16, dtype=np.uint32).view(np.float32)


def read_scale(x: BlockedTensor, name: str = "d") -> Floats:
    """Return a float16 of each block, as a column."""
    return np.asarray(x[name], np.float32)[:, None]


def q4_1(x: BlockedTensor) -> Floats:
    """Widen halves of bytes with a shift: d q + m."""
    return read_scale(x) * nibbles(x["q"], 16).astype(np.float32) + read_scale(x, "m")


def q8_0(x: BlockedTensor) -> Floats:
    """Widen bytes with a scale: d q."""
    return read_scale(x) * np.asarray(x["q"], np.float32)


def planes(name: str) -> BlockType:
    """Return the type of blocks of a layout, which a format keeps (formats/storage/block_layouts.py)."""
    layout, filed = LAYOUTS[name], FILED[name]

    def widen(x: BlockedTensor) -> Floats:
        """Widen levels by the scales of their groups."""
        m = minima_of(layout, x)
        parts = None if filed.integers is None else filed.integers(x)[:, :, None]
        shift = None if m is None else m[:, None]
        return layout.numbers(filed.levels(x)[:, :, None], x["d"][:, None], shift, parts).reshape(len(x), -1)

    largest = float(abs(layout.values).max()) if layout.wide else 1.0
    return BlockType(filed.block, layout.inputs, widen, kept=True, exponents=layout.exponents, largest=largest)


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
    "Q4_1": BlockType(Q4_1.filed, 32, q4_1, kept=True),
    "Q8_0": BlockType(Q8_0.filed, 32, q8_0, kept=True),
    **{name.upper(): planes(name) for name in LAYOUTS},
}
