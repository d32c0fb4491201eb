"""Q5_0: the blocks of GGUF files that hold 32 levels for each group of 32 inputs of an output."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q5_0(InPlanes, Format):
    """d (q - 16) for whole q up to 31, with d in float16 for each group of 32 inputs of an output, 5.5 bits a number
    (ggml, https://github.com/ggml-org/ggml, type 6)."""
