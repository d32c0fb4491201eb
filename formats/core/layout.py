"""Panels: a matrix in the order in which a kernel reads it, 64 columns at a time."""

from typing import NamedTuple

import numpy as np

from formats.core.block_layout import BlockLayout

PANEL = 64  # columns
TILE = 16  # columns of narrow numbers in a matrix register
VECTOR = 16  # numbers; the last panel is filled up to whole vectors
LEAST_SCALED = 127 * 2.0**-126  # below it a scale of bytes is not normal
MIXED = 16, 8, 4  # vectors of inputs that a Hadamard matrix mixes, the most that are left; a filled row has whole fours


class Panelled(NamedTuple):
    """The layout of a matrix in panels: `width` columns a panel, `words` numbers of the array side by side, inputs
    filled up to a multiple of `deep`. With `halves` a byte holds two inputs: the low halves of a run of adjacent bytes
    come first, then the high ones. With `group`, that many inputs share a scale, a float16, and the scales are stored
    in panels too. With `layout` the array holds blocks, whose words stand for several inputs."""

    width: int = PANEL
    words: int = 1
    deep: int = 1
    halves: bool = False
    group: int = 0
    layout: BlockLayout | None = None

    def filled(self, inputs: int) -> int:
        """Count the inputs that are stored for `inputs` inputs."""
        return -(-inputs // self.deep) * self.deep

    def stored(self, inputs: int) -> int:
        """Count the numbers of the array that a column of `inputs` inputs takes."""
        return self.filled(inputs) // (1 + self.halves)


def panels(W: np.ndarray, words: int = 1, width: int = PANEL) -> np.ndarray:
    """Flatten W (n, p), n a multiple of words, into panels, each (n / words, columns, words) of `width` columns; the
    last has the remaining columns, padded with zeros to whole vectors of 16."""
    n, p = W.shape
    padded = np.pad(W, ((0, 0), (0, -p % VECTOR)))
    parts = (padded[:, at : at + width].reshape(n // words, words, -1).transpose(0, 2, 1) for at in range(0, p, width))
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts])


def unpanelled(w: np.ndarray, shape: tuple[int, int], words: int = 1, width: int = PANEL) -> np.ndarray:
    """Invert `panels`."""
    n, p = shape
    wide = -(-p // VECTOR) * VECTOR
    parts = (
        w[n * at : n * min(at + width, wide)].reshape(n // words, -1, words).transpose(0, 2, 1).reshape(n, -1)
        for at in range(0, p, width)
    )
    return np.hstack([*parts])[:, :p]


def deepened(W: np.ndarray, unit: int) -> np.ndarray:
    """Append rows of zeros to W, up to a multiple of `unit`."""
    return np.pad(W, ((0, -len(W) % unit), (0, 0)))
