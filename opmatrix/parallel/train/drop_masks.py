"""What layers drop in a step of training. A sequence's masks are drawn apart, by the seed, the step, its number, the
layer and the name: they are alike on any mesh, however a batch is cut, and backward draws them again."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch_sizes import Dims


class DropMasks(NamedTuple):
    """The masks of one micro-batch in one layer, which begins with that factor; `first` is the number of its first
    sequence in the batch."""
    seed: int
    step: int
    first: int
    factor: int

    def drawn(self, name: str, rate: float, dims: Dims, own: Sequence[slice]) -> NDArray[np.bool_]:
        """A mask, of which a rank has a window of sequences, heads, rows and columns: true where an entry stays."""
        batch, *within = own
        whole = tuple(map(int, dims[1:]))
        return np.stack([self.rolls(batch.start + k, name, whole)[tuple(within)] >= rate
                         for k in range(batch.stop - batch.start)])

    def rolls(self, sequence: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Numbers from 0 to 1 for the entries of a sequence."""
        by = [self.seed, self.step, self.first + sequence, self.factor, crc32(name.encode())]
        return np.random.default_rng(by).random(shape)
