"""Q4_1: the blocks of GGUF files, 16 levels for each group of 32 inputs of an output."""

import numpy as np

from formats.core.arrays import FormatError
from formats.core.block_layout import BlockLayout
from formats.core.layout import PANEL, Panelled, panels, unpanelled
from formats.core.sizes import Min, T, ceiling, f2, floor, n, p, u4
from formats.storage.format import Format
from formats.storage.half import FLOAT16_MAX
from formats.storage.packed import Packed

GROUP_INPUTS, WORD_INPUTS, HIGHEST = 32, 8, 15  # inputs of a group, of a word; the highest level


REGISTER_ROWS = 8  # rows up to which words are widened in registers, for each
# tile of 8, 4, 2 and 1 rows anew
REGISTER_TILES = T - floor(T / 2) - floor(T / 4) - floor(T / 8)  # the tiles of T rows in registers
WIDENINGS = ceiling(T / 256) + (REGISTER_TILES - 1) * (1 - Min(1, floor(T / (REGISTER_ROWS + 1))))


class Blocks:
    """The common part of formats that hold the blocks of files: groups of inputs of an output, in panels of outputs."""

    proposed = False
    portion = PANEL
    unit = "float32"

    def transpose(self):
        """Store W.T as float32 in panels, as its groups would run along the other axis."""
        return Packed.pack(self.unpack().T)  # groups of inputs are none of outputs

    @classmethod
    def indices(cls):
        """Return no fields: the unsigned words are numbers, not positions."""
        return []  # words are numbers


class Q4_1(Blocks, Format):
    """d q + m for whole q up to 15, with d and m in float16 for each group of 32 inputs of an output, 5 bits a number:
    eight inputs to a word, in panels of 64 outputs (ggml, https://github.com/ggml-org/ggml, type 3).

    Numbers are those that ggml widens to, rounded to float32 once, and x stays float32, so a weight that a file stores
    in this format is not approximated. Single columns of a table in this format can be gathered."""

    w: u4[4 * ceiling(n / 32) * 16 * ceiling(p / 16)]
    scale: f2[2 * ceiling(n / 32) * 16 * ceiling(p / 16)]
    filed = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", GROUP_INPUTS // 2)])
    few = REGISTER_ROWS
    panelled = Panelled(PANEL, 1, GROUP_INPUTS, layout=BlockLayout((4,), minimum=True))
    flops = 2 * T * n * p
    work = T * n * p, n * p * WIDENINGS, T * (n + p)

    def fit(W):
        """Round each group of 32 inputs of an output to 16 levels, exactly where it has such levels."""
        return rows_of_levels(*fit_levels(W))[: len(W)]

    def pack(W):
        """Return the words of levels and the pairs (d, m) of each group."""
        return level_arrays(*fit_levels(W))

    def unpack(shape, w, scale):
        """Take the levels out of the words, and return d q + m."""
        return rows_of_levels(*held_levels(shape, w, scale))[: shape[0]]

    def kernel(x, w, scale, out, epilogue):
        """Write x @ W to `out`, levels widened to float32 on the way, then the epilogue."""
        from formats.kernels import product_levels

        product_levels(x, w, scale, out, epilogue)

    @classmethod
    def of_blocks(cls, blocks):
        """Return x @ W.T for blocks (p, n / 32) of a file, records of d, m and q, two levels to a byte: the first 16
        low."""
        q = np.concatenate([blocks["q"] & HIGHEST, blocks["q"] >> 4], 2).transpose(1, 2, 0)
        return cls((GROUP_INPUTS * blocks.shape[1], len(blocks)), level_arrays(q, blocks["d"].T, blocks["m"].T))

    def filed_blocks(self):
        """Return the blocks (p, n / 32) of a file: the inverse of `of_blocks`, for n that 32 divides."""
        q, d, m = held_levels(self.shape, self.w, self.scale)
        blocks = np.zeros(d.T.shape, self.filed)
        levels = q.transpose(2, 0, 1)
        blocks["d"], blocks["m"] = d.T, m.T
        blocks["q"] = levels[..., : GROUP_INPUTS // 2] | levels[..., GROUP_INPUTS // 2 :] << 4
        return blocks


GROUP_WORDS = GROUP_INPUTS // WORD_INPUTS  # words of a group
SHIFTS = 4 * np.arange(WORD_INPUTS, dtype=np.uint32)[:, None]  # shifts of the levels of a word
SPANS = [(span, first) for span in range(HIGHEST, 0, -1) for first in range(HIGHEST + 1 - span)]
EXACT_BITS = 20  # bits of d below the largest number: then d q + m is exact


def held_levels(shape, w, scale):
    """Return levels (groups, 32, p), d and m (groups, p) of the format's arrays: the inverse of `level_arrays`."""
    groups = -(-shape[0] // GROUP_INPUTS)
    words = unpanelled(w, (GROUP_WORDS * groups, shape[1]))
    d, m = unpanelled(scale, (2 * groups, shape[1]), 2).reshape(groups, 2, -1).swapaxes(0, 1)
    return (words[:, None] >> SHIFTS & HIGHEST).reshape(groups, GROUP_INPUTS, -1), d, m


def level_arrays(q, d, m):
    """Return levels (groups, 32, p), d and m (groups, p) as the format's arrays."""
    groups, _, p = q.shape
    shifted = q.reshape(GROUP_WORDS * groups, WORD_INPUTS, p).astype(np.uint32) << SHIFTS
    pairs = np.stack([d, m], 1).reshape(2 * groups, p)
    return panels(np.bitwise_or.reduce(shifted, 1)), panels(pairs, 2)


def widen_levels(q, d, m):
    """Return d q + m in float32: a product of 15 bits is exact, so only the sum is rounded."""
    return d.astype(np.float32) * q.astype(np.float32) + m.astype(np.float32)


def rows_of_levels(q, d, m):
    """Return levels (groups, 32, p), d and m (groups, p) as numbers, a row an input."""
    return widen_levels(q, d[:, None], m[:, None]).reshape(-1, q.shape[2])


def fit_levels(W):
    """Return (q, d, m) of W (n, p), padded to whole groups: exactly where the numbers of a group are such levels and d
    is not negative; else the nearest levels between its least number and its largest."""
    if abs(W).max() > FLOAT16_MAX:
        raise FormatError(f"q4_1: W holds {abs(W).max():.3g}, beyond {FLOAT16_MAX:.0f}, the largest float16")
    whole = np.pad(W, ((0, -len(W) % GROUP_INPUTS), (0, 0)), "edge").reshape(-1, GROUP_INPUTS, W.shape[1])
    groups = np.ascontiguousarray(whole.swapaxes(1, 2)).reshape(-1, GROUP_INPUTS)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        levels = nearest_levels(groups)
        few = (np.diff(np.sort(groups)) > 0).sum(1) <= HIGHEST
        left = np.flatnonzero(few & (widen_levels(*levels) != groups).any(1))
        for span, first in SPANS if len(left) else ():
            some = levels_between(groups[left], span, first)
            held = (widen_levels(*some) == groups[left]).all(1)
            for every, closer in zip(levels, some, strict=True):
                every[left[held]] = closer[held]
            left = left[~held]
    q, d, m = levels
    return q.reshape(len(whole), -1, GROUP_INPUTS).swapaxes(1, 2), d.reshape(len(whole), -1), m.reshape(len(whole), -1)


def nearest_levels(groups):
    """Return (q, d, m) of groups (count, 32): the nearest levels to their numbers, d so coarse that these are exact."""
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    d, m = ((high - low) / HIGHEST).astype(np.float16), low.astype(np.float16)
    grid = np.ldexp(np.float32(1), np.frexp(np.maximum(-low, high))[1] - EXACT_BITS)
    d = (np.rint(d / grid) * grid).astype(np.float16)
    q = nearest_whole(groups, d, m)
    d[(q == q[:, :1]).all(1)] = 0
    return np.where(d > 0, q, 0).astype(np.uint8), d, m


def levels_between(groups, span, first):
    """Return (q, d, m) of groups whose least number has the level `first`, and their largest the level `first +
    span`."""
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    d = ((high - low) / span).astype(np.float16)
    m = (low - first * d.astype(np.float32)).astype(np.float16)
    return nearest_whole(groups, d, m), d, m


def nearest_whole(groups, d, m):
    """Return the levels nearest to the numbers of groups, (x - m) / d rounded and clipped to 0..15."""
    return np.clip(np.rint((groups - m.astype(np.float32)) / d.astype(np.float32)), 0, HIGHEST).astype(np.uint8)
