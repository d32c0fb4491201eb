"""The layouts of blocks of GGUF files (ggml, https://github.com/ggml-org/ggml, ggml-common.h) and of groups of
quantised checkpoints (opmatrix/files/methods), and the conversion of a file's blocks to them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.core.block_layout import BlockLayout, LevelArray

NOT_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)  # ggml's kvalues_iq4nl
FLOAT4_MAGNITUDES = 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0  # of E2M1 (OCP Microscaling Formats 1.0, table 5)
FLOAT4 = (*(-number for number in FLOAT4_MAGNITUDES[::-1]), -0.0, 0.0, *FLOAT4_MAGNITUDES)
NORMAL_FLOAT4 = (  # quantiles of normal numbers (Dettmers et al. 2023, arXiv:2305.14314, appendix E)
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
TWELFTHS = 0, 0.0625, 8, 12, 4, 6, 2, 3  # of bitsandbytes' float4: no exponents of E2M1
UNIT_FLOAT4 = tuple(sign * number / 12 for sign in (1, -1) for number in TWELFTHS)
LAYOUTS = {
    "q4_0": BlockLayout((4,), zero=8),
    "q5_0": BlockLayout((4, 1), zero=16),
    "q5_1": BlockLayout((4, 1), minimum=True),
    "iq4_nl": BlockLayout((4,), table=tuple(map(float, NOT_LINEAR))),
    "q2_k": BlockLayout((2,), 16, 16, (8,), 4, minimum=True),
    "q3_k": BlockLayout((2, 1), 16, 16, (4, 2), 6, middle=32, zero=4),
    "q4_k": BlockLayout((4,), 32, 8, (8, 4), 6, minimum=True),
    "q5_k": BlockLayout((4, 1), 32, 8, (8, 4), 6, minimum=True),
    "q6_k": BlockLayout((4, 2), 16, 16, (8,), 8, middle=128, zero=32),
    "w4_128": BlockLayout((4,), 128, zero=8),
    "w4_64": BlockLayout((4,), 64, zero=8),
    "w8_128": BlockLayout((4, 4), 128, zero=128),
    "z4_128": BlockLayout((4,), 128, minimum=True, centred=True),
    "z8_128": BlockLayout((4, 4), 128, minimum=True, centred=True),
    "z4_64": BlockLayout((4,), 64, minimum=True, centred=True),
    "z4_32": BlockLayout((4,), 32, minimum=True, centred=True),
    "mxfp4": BlockLayout((4,), 32, table=FLOAT4, exponents=True),
    "e4m3_128": BlockLayout((4, 4), 128, float8=True, wide=True),
    "nf4_64": BlockLayout((4,), 64, table=NORMAL_FLOAT4, wide=True),
    "fp4_64": BlockLayout((4,), 64, table=UNIT_FLOAT4, wide=True),
}


FieldBytes = NDArray[np.uint8] | NDArray[np.int8]


class FiledBlock(NamedTuple):
    """A block as a file stores it, and the functions that read of blocks (count) their levels (count, inputs) and the
    integers of their groups (count, groups); None where a block is one group. `writes`: functions that give a field's
    bytes (count, bytes) of the levels, or of the integers, by the name of the field: they invert those."""

    block: np.dtype[np.void]
    levels: Callable[..., LevelArray]
    integers: Callable[..., LevelArray] | None = None
    writes: Mapping[str, Callable[..., FieldBytes]] = MappingProxyType({})
    writes_integers: Callable[..., FieldBytes] | None = None

    def made(self, levels: LevelArray, d: np.ndarray, m: np.ndarray | None, integers: LevelArray | None) -> np.ndarray:
        """Return blocks (count) as a file stores them, of levels (count, inputs), scales (count) and the integers of
        groups (count, groups)."""
        blocks = np.zeros(len(levels), self.block)
        blocks["d"] = d
        if m is not None:
            blocks["m"] = m if integers is None else -m
        for name, write in self.writes.items():
            blocks[name] = write(levels)
        if integers is not None and self.writes_integers is not None:
            blocks["scales"] = self.writes_integers(integers)
        return blocks


def minima_of(layout: BlockLayout, blocks: NDArray[np.void]) -> NDArray[np.float16] | NDArray[np.uint8] | None:
    """Return the second scale m of blocks of a layout; None where it has none. Files store minima of groups of groups
    to be subtracted."""
    if not layout.minimum:
        return None
    return -blocks["m"] if layout.fields else blocks["m"]


def nibbles(packed: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return the lower four bits of every `side` bytes, then the upper ones: (n, bytes) to (n, 2 · bytes)."""
    parts = packed.reshape(len(packed), -1, 1, side) >> np.array([[0], [4]], np.uint8)
    return np.asarray(parts & 15, np.uint8).reshape(len(packed), -1)


def pairs_of_bits(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the lowest two bits of every 32 bytes, then the next ones, up to the highest."""
    parts = packed.reshape(len(packed), -1, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)
    return np.asarray(parts & 3, np.uint8).reshape(len(packed), -1)


def bits_of_words(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the bits of bytes, the lowest first: (n, bytes) to (n, 8 · bytes)."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def bits_of_bytes(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the lowest bit of 32 bytes, then the next ones: (n, 32) to (n, 256)."""
    parts = packed[:, None] >> np.arange(8, dtype=np.uint8)[:, None]
    return np.asarray(parts & 1, np.uint8).reshape(len(packed), -1)


def sixes(packed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return scales and minima of six bits of eight groups, from 12 bytes: four low bits in a byte of their own, or
    all six (ggml, get_scale_min_k4)."""
    first, second, third = packed.reshape(-1, 3, 4).swapaxes(0, 1)
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], 1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], 1)
    return np.asarray(scales.astype(np.uint16) | minima.astype(np.uint16) << 6, np.uint16)


def sixteen_sixes(packed: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Return scales of six bits of sixteen groups, from 12 bytes: the low four bits of all, then the high two."""
    low = nibbles(packed[:, :8], 8)
    high = packed[:, None, 8:] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    return np.asarray(low.astype(np.uint16) | high.reshape(len(packed), -1).astype(np.uint16) << 4, np.uint16)


def shifted_bytes(packed: NDArray[np.int8]) -> NDArray[np.uint16]:
    """Return signed bytes with 128 added."""
    return (packed.astype(np.int16) + 128).astype(np.uint16)


def ascending(codes: LevelArray) -> NDArray[np.uint8]:
    """Return the places of codes of float4, which have their sign first, among ascending numbers."""
    return np.asarray(codes ^ np.where(codes < 8, 8, 15), np.uint8)


def codes_of(places: LevelArray) -> NDArray[np.uint8]:
    """Invert `ascending`."""
    return np.asarray(places ^ np.where(places < 8, 15, 8), np.uint8)


# ---- the way back


def join_nibbles(values: LevelArray, side: int) -> NDArray[np.uint8]:
    """Invert `nibbles`: integers below 16, (n, 2 · bytes) to (n, bytes)."""
    halves = values.reshape(len(values), -1, 2, side)
    return np.asarray(halves[:, :, 0] | halves[:, :, 1] << 4, np.uint8).reshape(len(values), -1)


def join_pairs(values: LevelArray) -> NDArray[np.uint8]:
    """Invert `pairs_of_bits`: integers below 4, (n, 4 · bytes) to (n, bytes)."""
    shifted = values.reshape(len(values), -1, 4, 32) << np.array([[0], [2], [4], [6]])
    return np.asarray(np.bitwise_or.reduce(shifted, 2), np.uint8).reshape(len(values), -1)


def join_bits(values: LevelArray) -> NDArray[np.uint8]:
    """Invert `bits_of_words`: bits (n, 8 · bytes) to (n, bytes)."""
    return np.packbits(values.astype(np.uint8), axis=1, bitorder="little")


def join_bytes(values: LevelArray) -> NDArray[np.uint8]:
    """Invert `bits_of_bytes`: bits (n, 256) to (n, 32)."""
    shifted = values.reshape(len(values), 8, 32) << np.arange(8)[:, None]
    return np.asarray(np.bitwise_or.reduce(shifted, 1), np.uint8)


def join_sixes(values: LevelArray) -> NDArray[np.uint8]:
    """Invert `sixes`: scales and minima (n, 8) to (n, 12)."""
    scales, minima = values & 63, values >> 6
    first, second = (x[:, :4] | (x[:, 4:] >> 4) << 6 for x in (scales, minima))
    third = scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], 1).astype(np.uint8)


def join_sixteen_sixes(values: LevelArray) -> NDArray[np.uint8]:
    """Invert `sixteen_sixes`: scales (n, 16) to (n, 12)."""
    high = (values >> 4).reshape(len(values), 4, 4) << np.array([[0], [2], [4], [6]])
    return np.concatenate([join_nibbles(values & 15, 8), np.bitwise_or.reduce(high, 1)], 1).astype(np.uint8)


def join_shifted(values: LevelArray) -> NDArray[np.int8]:
    """Invert `shifted_bytes`."""
    return (values.astype(np.int16) - 128).astype(np.int8)


def tabled(field: str) -> FiledBlock:
    """Return the block of 64 codes of a table with a scale in float32. A format is told by its block, so each names its
    `field` of codes otherwise."""
    return FiledBlock(
        np.dtype([("d", "<f4"), (field, "u1", 32)]),
        lambda x: nibbles(x[field], 32),
        writes={field: lambda q: join_nibbles(q, 32)},
    )


FILED = {
    "q4_0": FiledBlock(
        np.dtype([("d", "<f2"), ("q", "u1", 16)]),
        lambda x: nibbles(x["q"], 16),
        writes={"q": lambda q: join_nibbles(q, 16)},
    ),
    "q5_0": FiledBlock(
        np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)]),
        lambda x: nibbles(x["q"], 16) | bits_of_words(x["high"]) << 4,
        writes={"high": lambda q: join_bits(q >> 4), "q": lambda q: join_nibbles(q & 15, 16)},
    ),
    "q5_1": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)]),
        lambda x: nibbles(x["q"], 16) | bits_of_words(x["high"]) << 4,
        writes={"high": lambda q: join_bits(q >> 4), "q": lambda q: join_nibbles(q & 15, 16)},
    ),
    "iq4_nl": FiledBlock(
        np.dtype([("d", "<f2"), ("codes", "u1", 16)]),
        lambda x: nibbles(x["codes"], 16),
        writes={"codes": lambda q: join_nibbles(q, 16)},
    ),
    "q2_k": FiledBlock(
        np.dtype([("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("m", "<f2")]),
        lambda x: pairs_of_bits(x["q"]),
        lambda x: x["scales"].astype(np.uint16),
        {"q": join_pairs},
        lambda scales: scales.astype(np.uint8),
    ),
    "q3_k": FiledBlock(
        np.dtype([("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]),
        lambda x: pairs_of_bits(x["q"]) | bits_of_bytes(x["high"]) << 2,
        lambda x: sixteen_sixes(x["scales"]),
        {"high": lambda q: join_bytes(q >> 2), "q": lambda q: join_pairs(q & 3)},
        join_sixteen_sixes,
    ),
    "q4_k": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)]),
        lambda x: nibbles(x["q"], 32),
        lambda x: sixes(x["scales"]),
        {"q": lambda q: join_nibbles(q, 32)},
        join_sixes,
    ),
    "q5_k": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)]),
        lambda x: nibbles(x["q"], 32) | bits_of_bytes(x["high"]) << 4,
        lambda x: sixes(x["scales"]),
        {"high": lambda q: join_bytes(q >> 4), "q": lambda q: join_nibbles(q & 15, 32)},
        join_sixes,
    ),
    "q6_k": FiledBlock(
        np.dtype([("low", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]),
        lambda x: nibbles(x["low"], 64) | pairs_of_bits(x["high"]) << 4,
        lambda x: shifted_bytes(x["scales"]),
        {"low": lambda q: join_nibbles(q & 15, 64), "high": lambda q: join_pairs(q >> 4)},
        join_shifted,
    ),
    "w4_128": FiledBlock(
        np.dtype([("d", "<f2"), ("q", "u1", 64)]),
        lambda x: nibbles(x["q"], 64),
        writes={"q": lambda q: join_nibbles(q, 64)},
    ),
    "w4_64": FiledBlock(
        np.dtype([("d", "<f2"), ("q", "u1", 32)]),
        lambda x: nibbles(x["q"], 32),
        writes={"q": lambda q: join_nibbles(q, 32)},
    ),
    "w8_128": FiledBlock(
        np.dtype([("d", "<f2"), ("bytes", "u1", 128)]),
        lambda x: x["bytes"],
        writes={"bytes": lambda q: q.astype(np.uint8)},
    ),
    "z4_128": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "u1"), ("halves", "u1", 64)]),
        lambda x: nibbles(x["halves"], 64),
        writes={"halves": lambda q: join_nibbles(q, 64)},
    ),
    "z8_128": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "u1"), ("bytes", "u1", 128)]),
        lambda x: x["bytes"],
        writes={"bytes": lambda q: q.astype(np.uint8)},
    ),
    "z4_64": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "u1"), ("halves", "u1", 32)]),
        lambda x: nibbles(x["halves"], 32),
        writes={"halves": lambda q: join_nibbles(q, 32)},
    ),
    "mxfp4": FiledBlock(
        np.dtype([("d", "u1"), ("codes", "u1", 16)]),
        lambda x: ascending(nibbles(x["codes"], 16)),
        writes={"codes": lambda q: join_nibbles(codes_of(q), 16)},
    ),
    "e4m3_128": FiledBlock(
        np.dtype([("d", "<f4"), ("codes", "u1", 128)]),
        lambda x: x["codes"],
        writes={"codes": lambda q: q.astype(np.uint8)},
    ),
    "nf4_64": tabled("normal"),
    "fp4_64": tabled("float4"),
    "z4_32": FiledBlock(
        np.dtype([("d", "<f2"), ("m", "u1"), ("halves", "u1", 16)]),
        lambda x: nibbles(x["halves"], 16),
        writes={"halves": lambda q: join_nibbles(q, 16)},
    ),
}
