"""Q6_K: the blocks of GGUF files that hold 64 levels for each group of 16 inputs of an output, sixteen groups a
block."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q6_K(InPlanes, Format):
    """d s (q - 32) for whole q up to 63, with s from -128 to 127 for each group of 16 inputs of an output, d in float16
    for 16 groups, 6.6 bits a number (ggml, https://github.com/ggml-org/ggml, type 14)."""
