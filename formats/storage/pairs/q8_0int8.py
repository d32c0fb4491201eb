"""Q8_0 where x is rounded to bytes, too."""

from formats.storage.format import Format
from formats.storage.pairs.in_groups import InGroups
from formats.storage.q8_0 import Q8_0


class Q8_0Int8(InGroups, Format, structure=Q8_0):
    """Blocks of q8_0 as they are, multiplied by rows of which each 32 numbers are rounded to bytes, as ggml does it."""

    def kernel(x, w, scale, out, epilogue):
        """Write x @ W to `out` by integer sums of bytes and rounded rows, then the epilogue."""
        from formats.kernels import product_rounded_bytes

        product_rounded_bytes(x, w, scale, out, epilogue)
