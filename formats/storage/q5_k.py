"""Q5_K: the blocks of GGUF files that hold 32 levels for each group of 32 inputs of an output, eight groups a
block."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q5_K(InPlanes, Format):
    """d s q - m t for whole q up to 31, with s and t up to 63 for each group of 32 inputs of an output, d and m in
    float16 for 8 groups, 5.5 bits a number (ggml, https://github.com/ggml-org/ggml, type 13)."""
