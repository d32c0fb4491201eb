"""E4M3_128: float8 numbers with a float32 scale for each group of 128 inputs, of FP8 checkpoints."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class E4M3_128(InPlanes, Format):
    """d times a number of float8 (E4M3), with d in float32 for each group of 128 inputs of an output, 8.25 bits a
    number (Micikevicius et al. 2022; DeepSeek-V3, compressed-tensors and others: opmatrix/files/methods/float8.py)."""
