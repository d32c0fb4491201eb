"""Z4_64: levels of four bits with a level of zero in groups of 64 inputs, of quantised checkpoints."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Z4_64(InPlanes, Format):
    """d (q - m) for whole q up to 15, with d in float16 and the level of zero m in a byte for each group of 64 inputs
    of an output, 4.375 bits a number: for groups that 128 does not divide (opmatrix/files/methods)."""
