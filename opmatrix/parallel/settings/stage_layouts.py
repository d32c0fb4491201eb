"""Layers by stage as stacks write them: Megatron's layout string, and how torchtitan spreads layers by weights of what
stands before and behind them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from formats.core.errors import InputError
from opmatrix.parallel.search.stage_times import even_cut

MOST_LAYOUT_LETTERS = 20_000  # of a layout string that is written out
REPEATED_GROUP = re.compile(r"\(([^()]+)\)\*(\d+)")
REPEATED_LETTER = re.compile(r"([EtmL|])\*(\d+)")
LAYOUT_LETTERS = "E embedding, t layer, m multi-token prediction, L loss, | between chunks"


def read_layout_string(text: str) -> tuple[int, ...]:
    """Return the layers of each chunk of a layout string, such as "Et*3|(tt|)*2tL". Raises InputError for one that is
    none, or that stands for more letters than any model has.

        >>> read_layout_string("Et*3|(tt|)*2tL")
        (3, 2, 2, 1)"""
    written = text.replace(",", "").replace(" ", "")
    for pattern in (REPEATED_GROUP, REPEATED_LETTER):
        size = len(written) + sum(len(match[1]) * int(match[2][:9]) for match in pattern.finditer(written))
        if size > MOST_LAYOUT_LETTERS:
            raise InputError(f"layout of stages {text[:60]!r}: it stands for more than {MOST_LAYOUT_LETTERS:,} letters")
        written = pattern.sub(lambda match: match[1] * int(match[2]), written)
    if strange := sorted({*written} - {*"EtmL|"}):
        raise InputError(f"layout of stages {text[:60]!r}: {' '.join(strange)}: it has {LAYOUT_LETTERS}")
    plain = written.replace("|", "")
    if written.count("E") != 1 or written.count("L") != 1 or not (plain.startswith("E") and plain.endswith("L")):
        raise InputError(f"layout of stages {text[:60]!r}: it starts with one E and ends with one L")
    return tuple(chunk.count("t") for chunk in written.split("|"))


def write_layout_string(cut: Sequence[int]) -> str:
    """Return the layout string of layers by chunk; equal chunks are grouped.

    >>> write_layout_string((3, 2, 2, 1)), write_layout_string((2, 2, 2))
    ('Et*3|(t*2|)*2tL', 'Et*2|t*2|t*2L')"""
    first, *middle, last = [repeated(layers) for layers in cut]
    groups = [(chunk, len([*same])) for chunk, same in groupby(middle)]
    between = "".join(f"({chunk}|)*{n}" if n > 1 else f"{chunk}|" for chunk, n in groups)
    return f"E{first}|{between}{last}L"


def repeated(layers: int) -> str:
    """Return the letters of some layers."""
    return f"t*{layers}" if layers > 1 else "t" * layers


def weighted_layers(layers: int, chunks: int, before: int, behind: int) -> tuple[int, ...]:
    """Return the layers of each chunk where what stands before the first and behind the last counts as some layers.
    Raises InputError where a chunk has less than that.

        >>> weighted_layers(32, 4, 1, 1)
        (8, 9, 8, 7)"""
    if chunks == 1:
        return (layers,)
    cut = even_cut(layers, chunks, before, behind)
    if min(before, behind, *cut) < 0:
        raise InputError(f"{layers} layers on {chunks} chunks with {before} and {behind} less at the ends: too few")
    return cut
