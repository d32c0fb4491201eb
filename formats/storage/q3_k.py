"""Q3_K: the blocks of GGUF files that hold eight levels for each group of 16 inputs of an output, sixteen groups a
block."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q3_K(InPlanes, Format):
    """d s (q - 4) for whole q up to 7, with s from -32 to 31 for each group of 16 inputs of an output, d in float16 for
    16 groups, 3.4 bits a number (ggml, https://github.com/ggml-org/ggml, type 11)."""
