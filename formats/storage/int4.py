"""Halves of bytes: whole numbers up to 7 with a scale for each group of inputs of an output."""

from types import MappingProxyType

import numpy as np

from formats.core.layout import PANEL, TILE, Panelled, deepened, panels, unpanelled
from formats.core.sizes import T, ceiling, f4, n, p, u1
from formats.core.sizes import group as size
from formats.storage.format import Format
from formats.storage.int8 import (
    STEP_INPUTS,
    UNIT,
    bound_error,
    by_row,
    check_group,
    quantised,
    row_rounding,
    scale_groups,
    unsound,
    whole_numbers,
)
from formats.storage.packed import Packed

GROUP = 64


class Int4(Format):
    """W / scale rounded to whole numbers up to 7, stored as halves of bytes with 8 added, in panels of 64 outputs,
    eights of inputs together (scales of groups: Frantar et al. 2022, arXiv:2210.17323, section 4); x is rounded as for
    int8.

    `group`: the number of inputs of an output that share a scale, a multiple of 64."""

    w: u1[32 * ceiling(n / 64) * 16 * ceiling(p / 16)]
    scale: f4[ceiling(n / size), p]
    unit, common = "int4", False
    panelled = Panelled(TILE, 4, STEP_INPUTS, halves=True)
    portion = PANEL
    flops = 2 * T * n * p
    work = T * n * p, n * p * ceiling(T / 256), T * (n + p), T * n, T * p * ceiling(n / size)
    together = 2
    named = MappingProxyType({"group": size})

    def fit(W, *, group=GROUP):
        """Round to the nearest integer multiples of scales, which the largest numbers determine."""
        return scale_groups(*quantised(W, group, 7), group)

    def pack(W, *, group=GROUP):
        """Return panels of bytes, each of two inputs four apart in their step of eight, and the scales of groups."""
        whole, scale = quantised(W, group, 7)
        fours = (deepened(whole, STEP_INPUTS) + 8).astype(np.uint8).reshape(-1, 2, 4, W.shape[1])
        return panels((fours[:, 0] | fours[:, 1] << 4).reshape(-1, W.shape[1]), 4, TILE), scale

    def unpack(shape, w, scale, *, group):
        """Take both halves of each byte apart, subtract 8 and multiply by the scales."""
        return scale_groups(stored_halves(shape, w).astype(np.float32), scale, group)

    def integers(self):
        """Return the halves of bytes without the 8 that is added."""
        return (whole_numbers(stored_halves(self.shape, self.w), self.scale, self.remembered["group"], bits=4),)

    def kernel(x, w, scale, out, epilogue, *, group):
        """Write x @ W to `out` by integer sums of each group, x rounded row by row, then the epilogue."""
        from formats.kernels import product_int4

        product_int4(x, w, scale, group, out, epilogue)

    def transpose(self):
        """Store W.T as float32 in panels, as it has no scales of its own."""
        return Packed.pack(self.unpack().T)  # scales of outputs are none of inputs

    def unsound(self):
        """Describe the fault of the group or of the scales; empty if there is none."""
        return unsound("int4", self.scale, self.remembered["group"])

    def tolerance(self, W):
        """Allow for the rounding of integer times scale: 4 unit roundoffs of W's norm."""
        return 4 * UNIT * float(np.linalg.norm(W.astype(np.float64)))

    def bound(self, x, operands=None):
        """Bound the float32 roundings around integer sums, which are exact, by group."""
        return bound_error(x, *operands or self.operands(x), len(self.scale))

    @staticmethod
    def reads(x):
        """Return x as its kernel reads it: integers up to 127 times the scale of their row, in float64."""
        return by_row(x)

    @classmethod
    def rounding(cls, spectrum, *, group=GROUP):
        """Estimate the error of rounding x to 1/127 of the largest number of its row."""
        return row_rounding(spectrum, spectrum.squares, spectrum.weight)

    @classmethod
    def choices(cls, inputs, outputs):
        """Propose the default group, and one twice as large if the matrix has more inputs than that."""
        return [{"group": GROUP}, *([{"group": 2 * GROUP}] if inputs > 2 * GROUP else [])]

    @classmethod
    def counts(cls, inputs, outputs, *, group=GROUP):
        """Return the inputs of a group; FormatError for a group that a kernel cannot step through."""
        return {size: check_group("int4", group)}


def stored_halves(shape, w):
    """Return the integers (n, p), int8, of panels of halves of bytes."""
    depth = -(-shape[0] // STEP_INPUTS) * STEP_INPUTS
    stored = unpanelled(w, (depth // 2, shape[1]), 4, TILE).reshape(-1, 1, 4, shape[1])
    whole = np.concatenate([stored & 15, stored >> 4], 1).reshape(depth, shape[1])[: shape[0]]
    return whole.astype(np.int8) - np.int8(8)
