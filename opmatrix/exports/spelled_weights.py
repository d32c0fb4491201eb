"""Weights of whole numbers in a graph: stored as they are, and multiplied in float32 or as integers.

Multiplied as integers, a row x is rounded to levels up to 127 of its own largest number (Dettmers et al. 2022,
arXiv:2208.07339, section 2.1), as the program's kernels round it: the levels of a row depend on no other row. Levels
are bytes with 128 added and a zero point of 128, which is the same product: on x86, kernels of unsigned by signed bytes
are the fast ones."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from formats.core.arrays import Floats
from formats.storage.bf16 import nearest
from formats.storage.format import RowTurn, WholeNumbers
from opmatrix.algebra.batch.signature import FLOAT
from opmatrix.exports.graph import (
    BFLOAT16_NUMBERS,
    FLOAT16_NUMBERS,
    INT4_NUMBERS,
    INT8_NUMBERS,
    UINT8_NUMBERS,
    ArrayGraph,
    SymbolicArray,
)
from opmatrix.runtime.declarations.padded import Padded, into_heads, out_of_heads

TOP_LEVEL, ZERO_POINT = np.float32(127), np.float32(128)  # the largest level; the zero point of levels
LEAST_LARGEST = np.float32(1e-30)  # rows whose numbers are all smaller are read as zeros


SpelledWay = str  # of a weight of whole numbers: one of the three below
WIDE, STORED_WAY, SUMMED = "float32", "stored", "integers"


class WeightSpelling(NamedTuple):
    """The form of weights in a graph: numbers of 16 bits are widened to float32, or stored as they are (`narrow`), and
    whole numbers are widened, stored, or multiplied as integers, as a function of the weight chooses."""

    narrow: bool = False
    choose: Callable[[WholeNumbers], SpelledWay] = lambda weight: WIDE

    def way(self, weight: WholeNumbers) -> SpelledWay:
        """Return the way of a weight; integers are summed of bytes alone, and where its format rounds rows."""
        chosen = self.choose(weight)
        return STORED_WAY if chosen == SUMMED and not (weight.rounds and weight.bits == 8) else chosen


WIDENED, NARROW_SPELLING = WeightSpelling(), WeightSpelling(narrow=True)
STORED_SPELLING, INTEGERS = WeightSpelling(True, lambda weight: STORED_WAY), WeightSpelling(True, lambda weight: SUMMED)


class TurnedMatrix:
    """A matrix whose rows from the left are turned first: x @ W is turned(x) @ W'."""

    __array_ufunc__ = None

    def __init__(self, turn: RowTurn, matrix: SymbolicArray) -> None:
        self.turn, self.matrix = turn, matrix
        self.shape = (len(turn.factor), matrix.shape[1])

    def __rmatmul__(self, x: Padded) -> Padded:
        return turn_rows(x, self.turn) @ self.matrix


def turn_rows(x: Padded, turn: RowTurn) -> Padded:
    """Return rows times their factors, filled up with zeros, groups of vectors mixed."""
    widths = [len(mix) * count * turn.vector for mix, count in turn.parts]
    rows = x * turn.factor
    if missing := sum(widths) - len(turn.factor):
        rows = np.pad(rows, ((0, missing),))
    mixed, begin = [], 0
    for width, (mix, count) in zip(widths, turn.parts, strict=True):
        groups = into_heads(into_heads(rows[..., begin : begin + width], count), len(mix))
        mixed.append(out_of_heads(out_of_heads(np.matmul(mix, groups))))
        begin += width
    return mixed[0] if len(mixed) == 1 else np.concatenate(mixed, -1)


class IntegerMatrix(SymbolicArray):
    """A matrix of whole numbers times scales. A product from the left is one of integers; every other function reads
    its numbers in float32."""

    def __init__(self, dense: SymbolicArray, weight: WholeNumbers, name: str) -> None:
        super().__init__(dense.graph, dense.number)
        self.weight, self.name = weight, name

    def __rmatmul__(self, x: Padded) -> Padded:
        """Record x @ W by integer sums, x rounded row by row."""
        largest = np.maximum(np.absolute(x).max(-1, keepdims=True), LEAST_LARGEST)
        levels = np.rint(x * (TOP_LEVEL / largest))
        sums = self.sum_levels(levels)
        return sums * (largest / TOP_LEVEL)

    def sum_levels(self, levels: Padded) -> Padded:
        """Record levels @ W: one integer product, or one for each group, whose results are added."""
        whole, scale, group, *_ = self.weight
        if len(scale) == 1:
            return multiply_levels(levels, self.graph.constant(whole, self.name, INT8_NUMBERS)) * scale[0]
        missing = -len(whole) % group
        grouped = np.pad(whole, ((0, missing), (0, 0))).reshape(len(scale), group, -1)
        levels = np.pad(levels, ((0, missing),)) if missing else levels
        parts = np.swapaxes(into_heads(levels, len(scale)), -3, -2)
        sums = multiply_levels(parts, self.graph.constant(grouped, f"{self.name}.groups", INT8_NUMBERS))
        return (sums * np.expand_dims(scale, 1)).sum(-3)


def multiply_levels(levels: SymbolicArray, whole: SymbolicArray) -> SymbolicArray:
    """Record the product of levels, whole numbers in float32, and whole numbers in bytes: exact sums, in float32."""
    graph, shape = levels.graph, (*levels.shape[:-1], whole.shape[-1])
    return graph.add("integer_product", [(levels + ZERO_POINT).astype(UINT8_NUMBERS), whole], [], shape, FLOAT)


def spell_weight(graph: ArrayGraph, weight: WholeNumbers, name: str, way: SpelledWay) -> Padded:
    """Add a weight to a graph, its numbers stored as they are."""
    whole = graph.constant(weight.whole, name, INT8_NUMBERS if weight.bits == 8 else INT4_NUMBERS)
    scale = graph.constant(scale_array(weight.scale), f"{name}.scale")
    shape = tuple(weight.whole.shape)
    dense = graph.add("dequantise", [whole, scale], [weight.group], shape, FLOAT)
    matrix = IntegerMatrix(dense, weight, name) if way == SUMMED else dense
    return TurnedMatrix(weight.turn, matrix) if weight.turn else matrix


def spell_narrow(graph: ArrayGraph, W: Floats, name: str) -> SymbolicArray | None:
    """Add a matrix in 16 bits, widened where it is read; None if no such type holds its numbers."""
    with np.errstate(over="ignore"):
        half = W.astype(np.float16)
    if np.array_equal(half, W):
        return graph.constant(half, name, FLOAT16_NUMBERS).astype(FLOAT)
    bits: np.ndarray = nearest(W)  # type: ignore[no-untyped-call]
    if np.array_equal((bits.astype(np.uint32) << 16).view(np.float32), W):
        return graph.constant(bits, name, BFLOAT16_NUMBERS).astype(FLOAT)
    return None


def scale_array(scale: Floats) -> Floats:
    """Return the scales of one group as a vector."""
    return scale[0] if len(scale) == 1 else scale
