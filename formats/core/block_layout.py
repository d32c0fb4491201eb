"""Layouts of blocks: levels of a few bits in planes of words, with scales for groups of inputs, and groups of groups.

Files order the bits of a block as their own kernels read them. Here all are in one order, so that one kernel text reads
any of them. A step is 32 inputs of an output; a plane of b bits of it is b words, the bits of input i at bit b i."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

PLANE_INPUTS, WORD_BITS = 32, 32  # inputs of a step; bits of a word
EXPONENT_PLACE, ONE_EXPONENT = 23, 127  # place of a float32's exponent in its bits; the exponent of 1
LevelArray: TypeAlias = NDArray[np.integer]


class BlockLayout(NamedTuple):
    """The meaning of blocks. A level q of a group stands for D v(q) + M, with v(q) = q - zero, or the entry q of
    `table`. A block has `groups` groups of `group` inputs, a scale d and, with `minimum`, a second one, m. Without
    `fields` D = d and M = m, or M = -m d where m, a byte, is the level of zero (`centred`). Otherwise each group has an
    integer, stored in planes of `fields` bits: its low `scale_bits` bits, less `middle`, times d are D; the other bits
    times m are M. With `exponents` a scale is a byte e that stands for 2^(e - 127), and for 0 where it is 0; with
    `wide` it is a float32. With `float8` a level is a byte of E4M3."""

    planes: tuple[int, ...]
    group: int = PLANE_INPUTS
    groups: int = 1
    fields: tuple[int, ...] = ()
    scale_bits: int = 0
    middle: int = 0
    zero: int = 0
    minimum: bool = False
    table: tuple[float, ...] = ()
    centred: bool = False
    exponents: bool = False
    float8: bool = False
    wide: bool = False

    @property
    def bits(self) -> int:
        """The bits of a level, which are the words of a step of one output."""
        return sum(self.planes)

    @property
    def inputs(self) -> int:
        """The inputs of a block."""
        return self.group * self.groups

    @property
    def words(self) -> int:
        """The words of levels of a block of one output."""
        return self.bits * self.inputs // PLANE_INPUTS

    @property
    def part_words(self) -> int:
        """The words of the integers of a block's groups."""
        return sum(self.fields) * self.groups // WORD_BITS

    @property
    def scales(self) -> int:
        """The numbers of `scale_type` of a block of one output: d, and m if there is one."""
        return 3 if self.centred else 1 + self.minimum

    @property
    def scale_type(self) -> np.dtype[np.generic]:
        """The number type of the array of scales: bytes of exponents, and of float16 with the levels of zero."""
        return np.dtype(np.float32 if self.wide else np.uint8 if self.exponents or self.centred else np.float16)

    def widen_scales(self, d: np.ndarray) -> NDArray[np.float32]:
        """Return scales as numbers; infinity for the byte that stands for none."""
        if not self.exponents:
            return np.asarray(d, np.float32)
        bits: NDArray[np.uint32] = np.left_shift(d, EXPONENT_PLACE, dtype=np.uint32)
        return bits.view(np.float32)

    @property
    def values(self) -> NDArray[np.float32]:
        """The numbers v(q) of all levels, in float32."""
        if self.float8:
            return float8_values()
        return np.array(self.table or np.arange(1 << self.bits) - self.zero, np.float32)

    def numbers(
        self, q: LevelArray, d: np.ndarray, m: np.ndarray | None, parts: LevelArray | None
    ) -> NDArray[np.float32]:
        """Return D v(q) + M in float32, rows of inputs: q (blocks, inputs, p), d and m (blocks, p), parts (blocks,
        groups, p). Products are exact in float32, but for those of `wide`, so that at most one operation rounds."""
        count, _, p = q.shape
        grouped = self.values[q.reshape(count, self.groups, self.group, p)]
        scale = self.widen_scales(d)[:, None]
        shift = None if m is None else np.asarray(m, np.float32)[:, None]
        if parts is not None:
            low = (parts & ((1 << self.scale_bits) - 1)).astype(np.float32)
            scale = scale * (low - np.float32(self.middle))
            shift = None if shift is None else shift * (parts >> self.scale_bits).astype(np.float32)
        if self.centred and shift is not None:
            shift = -shift * scale
        grouped *= scale[:, :, None]
        if shift is not None:
            grouped += shift[:, :, None]
        return grouped.reshape(-1, p)


def float8_values() -> NDArray[np.float32]:
    """Return the numbers of all bytes of E4M3 (Micikevicius et al. 2022, arXiv:2209.05433, table 1): a sign, four bits
    of exponent, three of fraction. The two bytes of NaN, which no block may hold, go on as their neighbours do: 480."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    whole = np.where(exponent > 0, 8 + fraction, fraction)
    magnitude = np.ldexp(whole.astype(np.float32), np.maximum(exponent, 1) - 10)
    return np.concatenate([magnitude, -magnitude])


def to_planes(values: LevelArray, planes: Sequence[int], step: int) -> NDArray[np.uint32]:
    """Store integers (count, p), `step` of them at a time, as words (rows, p): of each step plane by plane."""
    p = values.shape[1]
    stepped, offset, parts = values.reshape(-1, step, p), 0, list[NDArray[np.uint32]]()
    for bits in planes:
        each = stepped >> offset & ((1 << bits) - 1)
        rows = step * bits // WORD_BITS
        words = np.zeros((len(stepped), rows, p), np.uint32)
        for at in range(WORD_BITS // bits):
            words |= each.reshape(len(stepped), rows, -1, p)[:, :, at].astype(np.uint32) << np.uint32(bits * at)
        parts.append(words)
        offset += bits
    return np.concatenate(parts, 1).reshape(-1, p)


def from_planes(words: NDArray[np.uint32], planes: Sequence[int], step: int) -> NDArray[np.int64]:
    """Invert `to_planes`."""
    p = words.shape[1]
    stepped = words.reshape(-1, step * sum(planes) // WORD_BITS, p)
    values, offset, first = np.zeros((len(stepped), step, p), np.int64), 0, 0
    for bits in planes:
        rows = step * bits // WORD_BITS
        shifts = bits * np.arange(WORD_BITS // bits, dtype=np.uint32)[:, None]
        plane = stepped[:, first : first + rows, None] >> shifts & np.uint32((1 << bits) - 1)
        values |= plane.reshape(len(stepped), step, p).astype(np.int64) << offset
        offset, first = offset + bits, first + rows
    return values.reshape(-1, p)
