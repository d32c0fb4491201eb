"""W4_128: levels of four bits in groups of 128 inputs, of quantised checkpoints whose levels lie around zero."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class W4_128(InPlanes, Format):
    """d (q - 8) for whole q up to 15, with d in float16 for each group of 128 inputs of an output, 4.125 bits a number
    (symmetric groups of GPTQ, Frantar et al. 2022, arXiv:2210.17323; opmatrix/files/methods)."""
