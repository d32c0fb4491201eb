"""IQ4_NL: the blocks of GGUF files that hold sixteen levels at unequal distances for each group of 32 inputs of an
output."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class IQ4_NL(InPlanes, Format):
    """d v(q) for whole q up to 15, v a table of ggml's, with d in float16 for each group of 32 inputs of an output, 4.5
    bits a number (ggml, https://github.com/ggml-org/ggml, type 20)."""
