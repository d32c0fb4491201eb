"""Q4_1 where x is rounded to bytes."""

import numpy as np

from formats.core.layout import unpanelled
from formats.storage.format import Format
from formats.storage.pairs.in_groups import InGroups
from formats.storage.q4_1 import GROUP_INPUTS, Q4_1


class Q4_1Int8(InGroups, Format, structure=Q4_1):
    """Blocks of q4_1 as they are, multiplied by rows of which each 32 numbers are rounded to bytes, as ggml does it."""

    def kernel(x, w, scale, out, epilogue):
        """Write x @ W to `out` by integer sums of levels and rounded rows, then the epilogue."""
        from formats.kernels import product_rounded_levels

        product_rounded_levels(x, w, scale, out, epilogue)

    def sizes_of(self, W):
        """Return |W| + 2 |m|, which bounds |d| q + |m|, whatever their signs."""
        groups = -(-len(W) // GROUP_INPUTS)
        m = unpanelled(self.scale, (2 * groups, W.shape[1]), 2)[1::2].astype(np.float64)
        return abs(W) + 2 * np.repeat(abs(m), GROUP_INPUTS, 0)[: len(W)]
