"""FP4_64: numbers of a float4 with a float32 scale for each group of 64 inputs, of bitsandbytes."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class FP4_64(InPlanes, Format):
    """d v(q) for whole q up to 15, v a table of bitsandbytes' float4, with d in float32 for each
    group of 64 inputs of an output, 4.5 bits a number (https://github.com/
    bitsandbytes-foundation/bitsandbytes; opmatrix/files/methods/bitsandbytes.py)."""
