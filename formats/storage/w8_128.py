"""W8_128: bytes in groups of 128 inputs, of quantised checkpoints whose levels lie around zero."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class W8_128(InPlanes, Format):
    """d (q - 128) for whole q up to 255, with d in float16 for each group of 128 inputs of an output, 8.125 bits a
    number (GPTQ of eight bits, and int8 by channel; opmatrix/files/methods)."""
