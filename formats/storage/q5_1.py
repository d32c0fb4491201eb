"""Q5_1: the blocks of GGUF files that hold 32 levels from a least number on, for each group of 32 inputs of an
output."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q5_1(InPlanes, Format):
    """d q + m for whole q up to 31, with d and m in float16 for each group of 32 inputs of an output, 6 bits a number
    (ggml, https://github.com/ggml-org/ggml, type 7)."""
