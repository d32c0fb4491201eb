"""Z8_128: levels of eight bits with a level of zero in groups of 128 inputs, of quantised checkpoints."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Z8_128(InPlanes, Format):
    """d (q - m) for whole q up to 255, with d in float16 and the level of zero m in a byte for each group of 128 inputs
    of an output, 8.1875 bits a number (opmatrix/files/methods)."""
