"""Formats that hold the blocks of files in planes of bits: the common part of those of block_layouts.py."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import FormatError
from formats.core.block_layout import ONE_EXPONENT, PLANE_INPUTS, BlockLayout, from_planes, to_planes
from formats.core.layout import PANEL, VECTOR, Panelled, panels, unpanelled
from formats.core.sizes import T, ceiling, f2, f4, n, p, u1, u4
from formats.storage.block_layouts import FILED, LAYOUTS, FiledBlock, minima_of
from formats.storage.half import FLOAT16_MAX
from formats.storage.q4_1 import REGISTER_ROWS, WIDENINGS, Blocks

MOST_LEVELS = 1 << 21  # levels of a file's blocks that are re-ordered at a time
FLOAT32 = np.finfo(np.float32)
MOST_FITS = 64  # fits of a fitted matrix, after which it no longer changes


ScalesAndMinima = tuple[NDArray[np.floating], NDArray[np.floating] | NDArray[np.uint8] | None]


class BlockNumbers(NamedTuple):
    """The numbers of blocks: levels (blocks, inputs, p), scales d and m (blocks, p), integers of groups (blocks,
    groups, p)."""

    q: NDArray[np.integer]
    d: NDArray[np.floating] | NDArray[np.uint8]
    m: NDArray[np.floating] | NDArray[np.uint8] | None = None
    parts: NDArray[np.integer] | None = None


class InPlanes(Blocks):
    """A format of blocks of a layout, which its class names. Blocks of a file are kept to the bit. `fit` is not the
    nearest of all matrices that the blocks can hold: its levels lie on both sides of zero alike."""

    layout: BlockLayout
    stored: FiledBlock
    ranked = False

    def __init_subclass__(cls) -> None:
        name = cls.__name__.lower()
        cls.layout, cls.stored = LAYOUTS[name], FILED[name]
        layout = cls.layout
        cls.filed = FILED[name].block  # type: ignore[attr-defined]
        cls.panelled = Panelled(PANEL, 1, layout.inputs, layout=layout)  # type: ignore[attr-defined]
        count = ceiling(n / layout.inputs) * 16 * ceiling(p / 16)
        scale = {4: f4, 2: f2, 1: u1}[layout.scale_type.itemsize]
        cls.__annotations__ = {"w": u4[layout.words * count], "scale": scale[layout.scales * count]}
        if layout.fields:
            cls.__annotations__["parts"] = u4[layout.part_words * count]
        cls.few, cls.flops = REGISTER_ROWS, 2 * T * n * p  # type: ignore[attr-defined]
        cls.work = T * n * p, n * p * WIDENINGS, T * (n + p)  # type: ignore[attr-defined]
        cls.fit, cls.pack, cls.unpack = fit_of(layout), pack_of(layout), unpack_of(layout)  # type: ignore[attr-defined]
        cls.kernel = block_product(name, layout)  # type: ignore[attr-defined]
        super().__init_subclass__()

    @classmethod
    def narrowest(cls):
        """Return the bits of the narrowest numbers that a weight is stored by: 8 where levels are float8 themselves, at
        most 16 whatever their scales are."""
        return 8 if cls.layout.float8 else 16 if cls.layout.wide or cls.layout.centred else super().narrowest()

    def unsound(self):
        """Describe the fault of scales that are no finite numbers and lie among bytes; empty if there is none."""
        if not self.layout.centred:
            return ""
        d, _ = held_scales(self.layout, self.shape, self.scale)
        return "" if np.isfinite(d).all() else f"a scale is {d[~np.isfinite(d)][0]}"

    @classmethod
    def of_blocks(cls, blocks):
        """Return x @ W.T for blocks (p, count) of a file."""
        outputs, count = blocks.shape
        inputs = count * cls.layout.inputs
        some = max(1, MOST_LEVELS // (inputs * PANEL)) * PANEL  # whole panels, which lie one behind the other
        pieces = [cls.piece(blocks[at : at + some]) for at in range(0, outputs, some)]
        return cls((inputs, outputs), tuple(map(np.concatenate, zip(*pieces, strict=True))))

    @classmethod
    def piece(cls, blocks):
        """Return the arrays of some outputs: panels of levels, scales and integers of groups."""
        (outputs, count), layout, flat = blocks.shape, cls.layout, blocks.reshape(-1)
        q = cls.stored.levels(flat).reshape(outputs, count, layout.inputs).transpose(1, 2, 0)
        m, parts = minima_of(layout, blocks), None
        if cls.stored.integers:
            parts = cls.stored.integers(flat).reshape(outputs, count, layout.groups).transpose(1, 2, 0)
        return block_arrays(layout, BlockNumbers(q, blocks["d"].T, None if m is None else m.T, parts))

    def filed_blocks(self):
        """Return the blocks (p, count) of a file: the inverse of `of_blocks`, for rows that its blocks divide."""
        (inputs, outputs), layout = self.shape, self.layout
        q, d, m, parts = held_blocks(layout, self.shape, *self.arrays().values())
        by_output = partial(turned_blocks, count=inputs // layout.inputs * outputs)
        return self.stored.made(*map(by_output, (q, d, m, parts))).reshape(outputs, -1)

    @classmethod
    def drawn(cls, rng, inputs, outputs):
        """Return a matrix of this shape with random levels: its products take as long as those of any other."""
        promised = cls.promised(inputs, outputs)
        words = {
            name: rng.integers(0, 1 << 32, array.shape, np.uint32)
            for name, array in promised.arrays().items()
            if name != "scale"
        }
        shape = promised.scale.shape
        if cls.layout.exponents:
            scale = rng.integers(ONE_EXPONENT - 12, ONE_EXPONENT - 10, shape, np.uint8)
        elif cls.layout.centred:
            d = rng.uniform(2.0**-12, 2.0**-10, (shape[0] // cls.layout.scales, 1)).astype(np.float16)
            scale = scale_array(cls.layout, d.reshape(-1, VECTOR), np.zeros((len(d) // VECTOR, VECTOR), np.uint8))
        else:
            scale = rng.uniform(2.0**-12, 2.0**-10, shape).astype(cls.layout.scale_type)
        return cls((inputs, outputs), tuple((words | {"scale": scale})[name] for name in cls.fields))


def block_arrays(layout: BlockLayout, blocks: BlockNumbers) -> tuple[np.ndarray, ...]:
    """Return blocks as the arrays of a format: words of levels, scales, and words of integers if there are any."""
    q, d, m, parts = blocks
    outputs = q.shape[2]
    words = panels(to_planes(q.reshape(-1, outputs), layout.planes, PLANE_INPUTS))
    scale = scale_array(layout, d, m)
    if parts is None:
        return words, scale
    return words, scale, panels(to_planes(parts.reshape(-1, outputs), layout.fields, layout.groups))


def scale_array(layout: BlockLayout, d: np.ndarray, m: np.ndarray | None) -> np.ndarray:
    """Return scales d, or d and m, (blocks, p), in panels: side by side, or m in bytes behind d of 16 outputs."""
    if m is None:
        return panels(d)
    if not layout.centred:
        return panels(np.stack([d, m], 1).reshape(-1, d.shape[1]), layout.scales)
    vectors = panels(d).reshape(-1, VECTOR).view(np.uint8), panels(m).reshape(-1, VECTOR)
    return np.concatenate(vectors, 1).reshape(-1)


def held_scales(layout: BlockLayout, shape: tuple[int, int], scale: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Return scales d and m (blocks, p) of a matrix of this shape: the inverse of `scale_array`."""
    blocks = -(-shape[0] // layout.inputs), shape[1]
    if layout.centred:
        vectors = scale.reshape(-1, layout.scales * VECTOR)
        d, m = (np.ascontiguousarray(part) for part in np.split(vectors, [2 * VECTOR], 1))
        return unpanelled(d.view(np.float16).reshape(-1), blocks), unpanelled(m.reshape(-1), blocks)
    d = unpanelled(scale, (layout.scales * blocks[0], shape[1]), layout.scales)
    if not layout.minimum:
        return d, None
    both = d.reshape(blocks[0], 2, shape[1])
    return both[:, 0], both[:, 1]


def unpack_of(layout: BlockLayout):
    """Build the function that takes blocks out of the arrays, as numbers."""

    def unpack(shape, w, scale, parts=None):
        """Take the levels out of the words, and return D v(q) + M."""
        return layout.numbers(*held_blocks(layout, shape, w, scale, parts))[: shape[0]]

    return unpack


def held_blocks(
    layout: BlockLayout, shape: tuple[int, int], w: np.ndarray, scale: np.ndarray, parts: np.ndarray | None = None
) -> BlockNumbers:
    """Return the blocks that a format's arrays hold of a matrix of this shape: the inverse of `block_arrays`."""
    inputs, outputs = shape
    count = -(-inputs // layout.inputs)
    levels = from_planes(unpanelled(w, (layout.words * count, outputs)), layout.planes, PLANE_INPUTS)
    d, m = held_scales(layout, shape, scale)
    if parts is not None:
        words = unpanelled(parts, (layout.part_words * count, outputs))
        parts = from_planes(words, layout.fields, layout.groups).reshape(count, layout.groups, outputs)
    return BlockNumbers(levels.reshape(count, layout.inputs, outputs), d, m, parts)


def turned_blocks(array: np.ndarray | None, count: int) -> np.ndarray | None:
    """Return numbers of blocks, outputs last, as a row a block, block by block of each output; a number each where
    they have one."""
    if array is None:
        return None
    first = np.moveaxis(array, -1, 0)
    return first.reshape((count, *first.shape[2:]))


def block_product(name: str, layout: BlockLayout):
    """Build the function that multiplies rows by blocks of a layout of this name."""

    def with_parts(x, w, scale, parts, out, epilogue):
        """Write x @ W to `out`, levels widened to float32 on the way, then the epilogue."""
        from formats.kernels import product_blocks

        product_blocks(name, x, w, scale, parts, out, epilogue)

    def of_single_groups(x, w, scale, out, epilogue):
        """Write x @ W to `out` for blocks of one group, whose scales have no integers."""
        from formats.kernels import product_blocks

        product_blocks(name, x, w, scale, None, out, epilogue)

    return with_parts if layout.fields else of_single_groups


def fit_of(layout: BlockLayout):
    """Build the function that returns a near matrix which blocks of a layout hold."""

    def fit(W):
        """Round the numbers of each group to multiples of its scale, until another rounding changes none."""
        for _ in range(MOST_FITS):
            before, W = W, layout.numbers(*fitted_blocks(layout, W))[: len(W)]
            if np.array_equal(before, W):
                return W
        return W

    return fit


def pack_of(layout: BlockLayout):
    """Build the function that stores a fitted matrix."""

    def pack(W):
        """Return the words of levels, the scales, and the integers of groups."""
        return block_arrays(layout, fitted_blocks(layout, W))

    return pack


def fitted_blocks(layout: BlockLayout, W: NDArray[np.float32]) -> BlockNumbers:
    """Return blocks near W (n, p), padded with zeros to whole blocks. Raises FormatError for scales beyond float16."""
    outputs = W.shape[1]
    whole = np.pad(W, ((0, -len(W) % layout.inputs), (0, 0)))
    groups = whole.reshape(-1, layout.groups, layout.group, outputs)
    return fitted_groups(layout, groups) if layout.fields else fitted_signed(layout, groups)


def narrowed_scales(layout: BlockLayout, wide: NDArray[np.float32]) -> ScalesAndMinima:
    """Return scales in the number type of blocks, float16 for most, and the second ones that put the middle level at
    zero, if the layout has them. Raises FormatError for scales beyond float16."""
    with np.errstate(over="ignore"):
        d: NDArray[np.floating] = wide if layout.wide else wide.astype(np.float16)
        m: NDArray[np.floating] | NDArray[np.uint8] | None = None
        if layout.centred:
            m = np.full(d.shape, middle_level(layout), np.uint8)
        elif layout.minimum:
            m = (-middle_level(layout) * d.astype(np.float32)).astype(np.float16)
    if not np.isfinite(d if m is None or layout.centred else m).all():
        raise FormatError(f"W has a scale of {abs(wide).max():.3g}, beyond {FLOAT16_MAX:.0f}, the largest float16")
    return d, m


def fitted_signed(layout: BlockLayout, groups: NDArray[np.float32]) -> BlockNumbers:
    """Return blocks of one group each: its largest number has the level whose value is the largest."""
    values, zero = layout.values, middle_level(layout)
    if layout.minimum:
        values = values - np.float32(zero)
    first = abs(groups).argmax(2, keepdims=True)
    largest = np.take_along_axis(groups, first, 2)[:, 0, 0]
    if layout.exponents:
        return fitted_exponents(layout, groups[:, 0], abs(largest) / values.max())
    d, m = narrowed_scales(layout, largest / values[abs(values).argmax()])
    q = nearest_levels(divided(groups[:, 0], d[:, None].astype(np.float32)), values)
    return BlockNumbers(q, d, m)


def fitted_exponents(layout: BlockLayout, groups: NDArray[np.float32], least: NDArray[np.float32]) -> BlockNumbers:
    """Return blocks (count, inputs, p) whose scales are the smallest powers of two that are no smaller than `least`.
    Raises FormatError for a scale whose largest number is beyond float32."""
    d, largest = least_exponents(least), np.float32(FLOAT32.max) / 2 ** np.ceil(np.log2(layout.values.max()))
    if (beyond := least > largest).any():
        raise FormatError(f"W has a scale of {least[beyond].max():.3g}, beyond {largest:.3g}: use another format")
    return BlockNumbers(nearest_levels(divided(groups, layout.widen_scales(d)[:, None]), layout.values), d)


def least_exponents(least: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the bytes of the smallest powers of two that are no smaller than these numbers; 0 for 0."""
    part, exponent = np.frexp(least)
    byte = np.clip(exponent - (part == 0.5) + ONE_EXPONENT, 1, 2 * ONE_EXPONENT)
    return np.where(least > 0, byte, 0).astype(np.uint8)


def fitted_groups(layout: BlockLayout, groups: NDArray[np.float32]) -> BlockNumbers:
    """Return blocks of several groups. Levels are as far below zero as above; a minimum is the middle level times the
    scale."""
    count, _, _, outputs = groups.shape
    zero = middle_level(layout)
    most, highest = (1 << layout.bits) - 1 - zero, (1 << layout.scale_bits) - 1 - layout.middle
    largest = abs(groups).max(2)
    d, m = narrowed_scales(layout, largest.max(1) / np.float32(most * highest))
    wide = d.astype(np.float32)[:, None]
    scales = np.clip(np.rint(divided(largest / np.float32(most), wide)), 0, highest)
    levels = np.clip(np.rint(divided(groups, (wide * scales)[:, :, None])), -most, most)
    q = (levels.astype(np.int64) + zero).reshape(count, layout.inputs, outputs)
    parts = scales.astype(np.int64) + layout.middle
    return BlockNumbers(q, d, m, parts | parts << layout.scale_bits if layout.minimum else parts)


def middle_level(layout: BlockLayout) -> int:
    """Return the level that means zero in fitted blocks."""
    return 1 << layout.bits - 1 if layout.minimum else layout.zero


def divided(numbers: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return numbers over their scale; 0 where that is 0."""
    shape = np.broadcast_shapes(numbers.shape, scale.shape)
    return np.divide(numbers, scale, out=np.zeros(shape, np.float32), where=scale != 0)


def nearest_levels(numbers: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the levels whose values are nearest to the numbers."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    return order[np.searchsorted((ascending[1:] + ascending[:-1]) / 2, numbers)].astype(np.int64)
