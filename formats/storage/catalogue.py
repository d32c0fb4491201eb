"""The storage formats, by name."""

from collections.abc import Mapping

import numpy as np

from formats.core.arrays import FormatError
from formats.core.epilogue import Epilogue
from formats.storage.bf16 import BF16
from formats.storage.block import Block
from formats.storage.csc import CSC
from formats.storage.csr import CSR
from formats.storage.dense import Dense
from formats.storage.e4m3_128 import E4M3_128
from formats.storage.format import Format
from formats.storage.fp4_64 import FP4_64
from formats.storage.half import Half
from formats.storage.int4 import Int4
from formats.storage.int8 import Int8
from formats.storage.iq4_nl import IQ4_NL
from formats.storage.lowrank import LowRank
from formats.storage.masks import Mask
from formats.storage.mxfp4 import MXFP4
from formats.storage.nf4_64 import NF4_64
from formats.storage.nm import NM
from formats.storage.packed import Packed
from formats.storage.pairs.balancedint8 import BalancedInt8
from formats.storage.pairs.blockint8 import BlockInt8
from formats.storage.pairs.lowrankint8 import LowRankInt8
from formats.storage.pairs.nmint8 import NMInt8
from formats.storage.pairs.q4_1int8 import Q4_1Int8
from formats.storage.pairs.q8_0int8 import Q8_0Int8
from formats.storage.q2_k import Q2_K
from formats.storage.q3_k import Q3_K
from formats.storage.q4_0 import Q4_0
from formats.storage.q4_1 import Q4_1
from formats.storage.q4_k import Q4_K
from formats.storage.q5_0 import Q5_0
from formats.storage.q5_1 import Q5_1
from formats.storage.q5_k import Q5_K
from formats.storage.q6_k import Q6_K
from formats.storage.q8_0 import Q8_0
from formats.storage.sell import SELL
from formats.storage.stacked import Stacked, can_stack
from formats.storage.vectorwise import VectorWise
from formats.storage.w4_64 import W4_64
from formats.storage.w4_128 import W4_128
from formats.storage.w8_128 import W8_128
from formats.storage.z4_32 import Z4_32
from formats.storage.z4_64 import Z4_64
from formats.storage.z4_128 import Z4_128
from formats.storage.z8_128 import Z8_128

__all__ = [
    "BF16",
    "CSC",
    "CSR",
    "E4M3_128",
    "FORMATS",
    "FP4_64",
    "IQ4_NL",
    "MXFP4",
    "NF4_64",
    "NM",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "SELL",
    "W4_64",
    "W4_128",
    "W8_128",
    "Z4_32",
    "Z4_64",
    "Z4_128",
    "Z8_128",
    "BalancedInt8",
    "Block",
    "BlockInt8",
    "Dense",
    "Epilogue",
    "Format",
    "FormatError",
    "Half",
    "Int4",
    "Int8",
    "LowRank",
    "LowRankInt8",
    "Mask",
    "NMInt8",
    "Packed",
    "Q4_1Int8",
    "Q8_0Int8",
    "Stacked",
    "VectorWise",
    "can_stack",
    "from_arrays",
    "read_stored",
]

FORMATS: dict[str, type[Format]] = {
    format.name: format
    for format in (
        Dense,
        Packed,
        Half,
        BF16,
        Int8,
        Int4,
        Q4_1,
        Q8_0,
        Q4_0,
        Q5_0,
        Q5_1,
        Q2_K,
        Q3_K,
        Q4_K,
        Q5_K,
        Q6_K,
        IQ4_NL,
        CSR,
        Block,
        NM,
        VectorWise,
        LowRank,
        BalancedInt8,
        BlockInt8,
        NMInt8,
        LowRankInt8,
        Q4_1Int8,
        Q8_0Int8,
        SELL,
        CSC,
        W4_128,
        W4_64,
        W8_128,
        Z4_128,
        Z4_64,
        Z4_32,
        Z8_128,
        MXFP4,
        E4M3_128,
        NF4_64,
        FP4_64,
    )
}


def from_arrays(meta: Mapping[str, object], arrays: Mapping[str, np.ndarray], numbers: bool = True) -> Format:
    """Restore the matrix that `meta()` and `arrays()` of any format describe; FormatError if there is no such format.
    See `Format.from_arrays`."""
    return named_format(meta).from_arrays(meta, arrays, numbers)


def read_stored(meta: Mapping[str, object], arrays: Mapping[str, np.ndarray], numbers: bool = True) -> Format | Stacked:
    """Restore the matrix, or the stack where the shape has three axes, that `meta()` and `arrays()` describe;
    FormatError as `from_arrays`."""
    form, shape = named_format(meta), meta.get("shape")
    if isinstance(shape, list | tuple) and len(shape) == 3:
        return Stacked.from_arrays(form, meta, arrays, numbers)
    return form.from_arrays(meta, arrays, numbers)


def named_format(meta: Mapping[str, object]) -> type[Format]:
    """Return the format that a description names; FormatError if there is none."""
    if isinstance(name := meta.get("format"), str) and name in FORMATS:
        return FORMATS[name]
    raise FormatError(
        f"there is no format {name!r:.80} in this version: create the program again; there are {', '.join(FORMATS)}"
    )
