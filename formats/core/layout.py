"""Panels: a matrix in the order in which a kernel reads it, 64 columns at a time."""
from typing import NamedTuple

import numpy as np

PANEL = 64                                                   # columns
TILE = 16                                                    # of narrow numbers: those of a matrix register
VECTOR = 16                                                  # numbers; the last panel is filled up to whole vectors
LEAST_SCALED = 127 * 2.0 ** -126                              # below it the scale of bytes is no normal float32
MIXED = 16, 8, 4  # vectors of inputs that a Hadamard matrix mixes, the most that are left; a filled row has whole fours


class Panelled(NamedTuple):
    """How a matrix lies in panels: of so many columns, so many numbers of the array side by side, inputs filled up to
    a multiple. A byte may hold halves of inputs: the low ones of so many that lie side by side, then the high ones.
    `group`: so many inputs share a scale, a float16, and scales lie in panels too."""
    width: int = PANEL
    words: int = 1
    deep: int = 1
    halves: bool = False
    group: int = 0

    def filled(self, inputs: int) -> int:
        """How many inputs are stored of so many."""
        return -(-inputs // self.deep) * self.deep

    def stored(self, inputs: int) -> int:
        """How many numbers of the array a column of so many inputs takes."""
        return self.filled(inputs) // (1 + self.halves)


def panels(W: np.ndarray, words: int = 1, width: int = PANEL) -> np.ndarray:
    """W (n, p), n a multiple of words, as one axis: panels, each (n / words, columns, words) of `width` columns; the
    last has as many as are left, padded with zeros to whole vectors of 16."""
    n, p = W.shape
    padded = np.pad(W, ((0, 0), (0, -p % VECTOR)))
    parts = (padded[:, at:at + width].reshape(n // words, words, -1).transpose(0, 2, 1) for at in range(0, p, width))
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts])


def unpanelled(w: np.ndarray, shape: tuple[int, int], words: int = 1, width: int = PANEL) -> np.ndarray:
    """The inverse of `panels`."""
    n, p = shape
    wide = -(-p // VECTOR) * VECTOR
    parts = (w[n * at:n * min(at + width, wide)].reshape(n // words, -1, words).transpose(0, 2, 1).reshape(n, -1)
             for at in range(0, p, width))
    return np.hstack([*parts])[:, :p]


def deepened(W: np.ndarray, unit: int) -> np.ndarray:
    """W with rows of zeros below, up to a multiple of a unit."""
    return np.pad(W, ((0, -len(W) % unit), (0, 0)))
