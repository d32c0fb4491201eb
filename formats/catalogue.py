"""The storage formats, by name."""
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from formats.core.arrays import FormatError
from formats.core.epilogue import Epilogue
from formats.storage.bf16 import BF16
from formats.storage.bitmap import Bitmap
from formats.storage.block import Block
from formats.storage.blockdiagonal import BlockDiagonal
from formats.storage.coo import COO
from formats.storage.csc import CSC
from formats.storage.csr import CSR
from formats.storage.dense import Dense
from formats.storage.half import Half
from formats.storage.int4 import Int4
from formats.storage.int8 import Int8
from formats.storage.kronecker import Kronecker
from formats.storage.lowrank import LowRank
from formats.storage.lowranksparse import LowRankSparse
from formats.storage.nm import NM
from formats.storage.packed import Packed
from formats.storage.q4_1 import Q4_1
from formats.storage.sell import SELL
from formats.storage.vectorwise import VectorWise

from .format import Format
from .masks import Mask
from .pairs.balancedint8 import BalancedInt8
from .pairs.blockint8 import BlockInt8
from .pairs.lowrankint8 import LowRankInt8
from .pairs.nmint8 import NMInt8

__all__ = ["BF16", "COO", "CSC", "CSR", "FORMATS", "NM", "Q4_1", "SELL", "BalancedInt8", "Bitmap", "Block",
           "BlockDiagonal", "BlockInt8", "Dense", "Epilogue",
           "Format", "FormatError", "Half", "Int4", "Int8", "Kronecker", "LowRank", "LowRankInt8", "LowRankSparse",
           "Mask", "NMInt8",
           "Packed", "VectorWise", "from_arrays"]

FORMATS: dict[str, type[Format]] = {format.name: format for format in (
    Dense, Packed, Half, BF16, Int8, Int4, Q4_1, CSR, Block, NM, VectorWise, LowRank, BalancedInt8, BlockInt8, NMInt8,
    LowRankInt8, CSC, COO, SELL, Bitmap, LowRankSparse, Kronecker, BlockDiagonal)}


def from_arrays(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], numbers: bool = True) -> Format:
    """The matrix that `meta()` and `arrays()` of any format describe; FormatError if there is no such format. See
    `Format.from_arrays`."""
    if not isinstance(name := meta.get("format"), str) or name not in FORMATS:
        raise FormatError(f"the format {name!r} is unknown; there are {', '.join(FORMATS)}")
    return FORMATS[name].from_arrays(meta, arrays, numbers)
