"""NF4_64: quantiles of normal numbers with a float32 scale for each group of 64 inputs, of bitsandbytes."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class NF4_64(InPlanes, Format):
    """d v(q) for whole q up to 15, v a table of quantiles of normal numbers, with d in float32 for each
    group of 64 inputs of an output, 4.5 bits a number (Dettmers et al. 2023,
    arXiv:2305.14314, section 3; opmatrix/files/methods/bitsandbytes.py)."""
