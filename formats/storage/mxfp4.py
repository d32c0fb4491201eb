"""MXFP4: float4 numbers with a power of two for each group of 32 inputs, as gpt-oss was trained with."""

from formats.storage.format import Format
from formats.storage.in_planes import InPlanes


class MXFP4(InPlanes, Format):
    """2^(e - 127) times a number of float4 (E2M1), with e in a byte for each group of 32 inputs of an output, 4.25 bits
    a number; a group whose e is 0 is zero (OCP Microscaling Formats 1.0, 2023, section 5)."""
