"""Q8_0: the blocks of GGUF files that hold bytes, with a scale for each group of 32 inputs of an output."""

import numpy as np

from formats.core.arrays import FormatError
from formats.core.layout import PANEL, Panelled, panels, unpanelled
from formats.core.sizes import T, ceiling, f2, n, p, u1
from formats.storage.format import Format, WholeNumbers
from formats.storage.half import FLOAT16_MAX
from formats.storage.q4_1 import GROUP_INPUTS, REGISTER_ROWS, WIDENINGS, Blocks

FOUR_INPUTS = 4  # inputs of a word
TOP, MIDDLE = 127, 128  # the largest integer; the offset added to each
EMPTY_BITS = 31  # the bits of a float32 that d q leaves 0: 11 bits times 8


class Q8_0(Blocks, Format):
    """d q for whole q from -128 to 127, with d in float16 for each group of 32 inputs of an output, 8.5 bits a number:
    bytes with 128 added, four inputs to a word, in panels of 64 outputs (ggml, https://github.com/ggml-org/ggml, type
    8).

    Numbers are those that ggml widens to, which are exact in float32, and x stays float32, so a weight that a file
    stores in this format is not approximated. Single columns of a table in this format can be gathered."""

    w: u1[32 * ceiling(n / 32) * 16 * ceiling(p / 16)]
    scale: f2[ceiling(n / 32) * 16 * ceiling(p / 16)]
    filed = np.dtype([("d", "<f2"), ("q", "i1", GROUP_INPUTS)])
    few = REGISTER_ROWS
    panelled = Panelled(PANEL, FOUR_INPUTS, GROUP_INPUTS, group=GROUP_INPUTS)
    flops = 2 * T * n * p
    work = T * n * p, n * p * WIDENINGS, T * (n + p)

    def fit(W):
        """Round each group of 32 inputs of an output to integer multiples of one float16."""
        return rows_of_bytes(*fit_bytes(W))[: len(W)]

    def pack(W):
        """Return the words of bytes and the scale d of each group."""
        return byte_arrays(*fit_bytes(W))

    def unpack(shape, w, scale):
        """Take the bytes out of the words, subtract 128 and return d q."""
        q, d = stored_blocks(shape, w, scale)
        return rows_of_bytes(q, d)[: shape[0]]

    def integers(self):
        """Return the stored bytes without the 128 that is added; rows stay float32."""
        q, d = stored_blocks(self.shape, self.w, self.scale)
        whole = q.reshape(-1, self.shape[1])[: self.shape[0]].astype(np.int8)
        return (WholeNumbers(whole, d.astype(np.float32), GROUP_INPUTS, 8, rounds=False),)

    def kernel(x, w, scale, out, epilogue):
        """Write x @ W to `out`, bytes widened to float32 on the way, then the epilogue."""
        from formats.kernels import product_scaled_bytes

        product_scaled_bytes(x, w, scale, out, epilogue)

    @classmethod
    def of_blocks(cls, blocks):
        """Return x @ W.T for blocks (p, n / 32) of a file, records of d and q."""
        return cls(
            (GROUP_INPUTS * blocks.shape[1], len(blocks)), byte_arrays(blocks["q"].transpose(1, 2, 0), blocks["d"].T)
        )

    def filed_blocks(self):
        """Return the blocks (p, n / 32) of a file: the inverse of `of_blocks`, for n that 32 divides."""
        q, d = stored_blocks(self.shape, self.w, self.scale)
        blocks = np.zeros(d.T.shape, self.filed)
        blocks["d"], blocks["q"] = d.T, q.transpose(2, 0, 1)
        return blocks


def stored_blocks(shape, w, scale):
    """Return integers (groups, 32, p) and d (groups, p) of the format's arrays."""
    groups = -(-shape[0] // GROUP_INPUTS)
    stored = unpanelled(w, (GROUP_INPUTS * groups, shape[1]), FOUR_INPUTS)
    return (stored.astype(np.int16) - MIDDLE).reshape(groups, GROUP_INPUTS, -1), unpanelled(scale, (groups, shape[1]))


def byte_arrays(q, d):
    """Return integers (groups, 32, p) and d (groups, p) as the format's arrays."""
    stored = q.reshape(-1, q.shape[2]).astype(np.int8).view(np.uint8) ^ np.uint8(MIDDLE)  # with 128 added
    return panels(stored, FOUR_INPUTS), panels(np.asarray(d, np.float16))


def rows_of_bytes(q, d):
    """Return integers (groups, 32, p) and d (groups, p) as numbers, a row an input."""
    return numbers_held(q, d).reshape(-1, q.shape[2])


def numbers_held(q, d):
    """Return d q in float32: a product of 19 bits is exact."""
    return d.astype(np.float32)[:, None] * q.astype(np.float32)


def fit_bytes(W):
    """Return (q, d) of W (n, p), padded to whole groups: exactly where the numbers of a group are integer multiples of
    a float16 that is not negative; else the nearest multiples of the largest number / 127, as in ggml."""
    if abs(W).max() > TOP * FLOAT16_MAX:
        raise FormatError(
            f"q8_0: W holds {abs(W).max():.3g}, beyond {TOP * FLOAT16_MAX:.0f}, 127 times the largest float16"
        )
    whole = np.pad(W, ((0, -len(W) % GROUP_INPUTS), (0, 0))).reshape(-1, GROUP_INPUTS, W.shape[1])
    q, d = nearest_bytes(whole, TOP)
    able = ((whole.view(np.uint32) & EMPTY_BITS) == 0).all(1)
    left = np.argwhere(able & (numbers_held(q, d) != whole).any(1))
    for most in (*range(TOP - 1, 0, -1), TOP + 1) if len(left) else ():
        i, j = left.T
        some = nearest_bytes(groups := whole[i, :, j][..., None], most)
        held = (numbers_held(*some) == groups).all((1, 2))
        q[i[held], :, j[held]], d[i[held], j[held]] = some[0][held, :, 0], some[1][held, 0]
        left = left[~held]
    return q, d


def nearest_bytes(groups, most):
    """Return (q, d) of groups (count, 32, p) whose largest number is `most` times d."""
    d = (abs(groups).max(1) / np.float32(most)).astype(np.float16)
    wide = d.astype(np.float64)[:, None]
    whole = np.rint(np.divide(groups, wide, out=np.zeros(groups.shape), where=wide > 0))
    return np.clip(whole, -TOP - 1, TOP).astype(np.int8), d
