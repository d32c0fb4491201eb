"""The ground floor: sizes, storage formats, kernels, machines. It knows no monoid and no operator.

`FORMATS` are the formats by name; `from_arrays(meta, arrays)` is whichever of them was stored."""
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from .arrays import FormatError
from .bf16 import BF16
from .block import Block
from .csr import CSR
from .dense import Dense
from .epilogue import Epilogue
from .format import Format
from .half import Half
from .int4 import Int4
from .int8 import Int8
from .lowrank import LowRank
from .nm import NM
from .packed import Packed
from .vectorwise import VectorWise

__all__ = ["BF16", "CSR", "FORMATS", "NM", "Block", "Dense", "Epilogue", "Format", "FormatError", "Half", "Int4", "Int8",
           "LowRank", "Packed", "VectorWise", "from_arrays"]

FORMATS: dict[str, type[Format]] = {format.name: format for format in (
    Dense, Packed, Half, BF16, Int8, Int4, CSR, Block, NM, VectorWise, LowRank)}


def from_arrays(meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Format:
    """The matrix that `meta()` and `arrays()` of any format describe; FormatError if there is no such format."""
    if (name := meta.get("format")) not in FORMATS:
        raise FormatError(f"the format {name!r} is unknown; there are {', '.join(FORMATS)}")
    return FORMATS[name].from_arrays(meta, arrays)
