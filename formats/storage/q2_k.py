"""Q2_K: the blocks of GGUF files that hold four levels for each group of 16 inputs of an output, sixteen groups a
block."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q2_K(InPlanes, Format):
    """d s q - m t for whole q up to 3, with s and t up to 15 for each group of 16 inputs of an output, d and m in
    float16 for 16 groups, 2.6 bits a number (ggml, https://github.com/ggml-org/ggml, type 10)."""
