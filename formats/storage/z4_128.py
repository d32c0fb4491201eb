"""Z4_128: levels of four bits with a level of zero in groups of 128 inputs, of quantised checkpoints."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class Z4_128(InPlanes, Format):
    """d (q - m) for whole q up to 15, with d in float16 and the level of zero m in a byte for each group of 128 inputs
    of an output, 4.1875 bits a number (AWQ, Lin et al. 2023, arXiv:2306.00978; opmatrix/files/methods)."""
