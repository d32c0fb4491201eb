"""Weights that the ranks of an axis store once: each rank has a piece of every array, and gathers the pieces of
others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.parallel.sharding.axis_states import bounds


class WeightPieces(NamedTuple):
    """The pieces of flat arrays that the ranks of an axis store."""

    axis: int  # number of the axis
    ranks: int  # ranks of the axis
    place: int  # place of this rank among them
    sizes: tuple[int, ...]  # numbers of each whole array

    def cut(self, arrays: Sequence[Numeric]) -> list[Numeric]:
        """Return this rank's pieces of whole arrays."""
        ends = [bounds(size, self.ranks, self.place) for size in self.sizes]
        return [array[lo:hi] for array, (lo, hi) in zip(arrays, ends, strict=True)]

    def join(self, gathered: Numeric) -> list[Numeric]:
        """Return the whole arrays from the pieces of all ranks, one rank after the other."""
        lengths = [
            hi - lo for r in range(self.ranks) for lo, hi in (bounds(size, self.ranks, r) for size in self.sizes)
        ]
        parts = iter(np.split(gathered, np.cumsum(lengths)))
        by_rank = [[next(parts) for _ in self.sizes] for _ in range(self.ranks)]
        return [np.concatenate(pieces) for pieces in zip(*by_rank, strict=True)]
