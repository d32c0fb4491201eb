"""W4_64: levels of four bits in groups of 64 inputs, of quantised checkpoints whose levels lie around zero."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class W4_64(InPlanes, Format):
    """d (q - 8) for whole q up to 15, with d in float16 for each group of 64 inputs of an output, 4.25 bits a number:
    for groups that 128 does not divide (opmatrix/files/methods)."""
