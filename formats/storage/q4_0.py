"""Q4_0: the blocks of GGUF files that hold sixteen levels for each group of 32 inputs of an output."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Q4_0(InPlanes, Format):
    """d (q - 8) for whole q up to 15, with d in float16 for each group of 32 inputs of an output, 4.5 bits a number
    (ggml, https://github.com/ggml-org/ggml, type 2)."""
