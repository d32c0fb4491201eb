"""The dropout masks of a step of training. The mask of each sequence is drawn on its own, from the seed, the step, its
number, the layer and the name: masks are the same on any mesh, however a batch is sharded, and backward draws them
again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch_sizes import Dims


class DropMasks(NamedTuple):
    """The masks of one micro-batch in one layer."""

    seed: int  # seed of the job
    step: int  # number of the step of training
    first: int  # number of its first sequence in the batch
    factor: int  # factor with which the layer begins

    def drawn(self, name: str, rate: float, dims: Dims, own: Sequence[slice]) -> NDArray[np.bool_]:
        """Draw a rank's window of a mask, by sequences, heads, rows and columns: True where an entry stays."""
        batch, *within = own
        whole = tuple(map(int, dims[1:]))
        return np.stack(
            [self.rolls(batch.start + k, name, whole)[tuple(within)] >= rate for k in range(batch.stop - batch.start)]
        )

    def rolls(self, sequence: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw numbers from 0 to 1 for the entries of a sequence."""
        by = [self.seed, self.step, self.first + sequence, self.factor, crc32(name.encode())]
        return np.random.default_rng(by).random(shape)
