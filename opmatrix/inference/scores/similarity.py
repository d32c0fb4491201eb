"""Similarities of embeddings, by the names in which files declare them: of every two rows, and of rows with rows."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.inference.pooling import normalise_rows

Float64Rows = NDArray[np.float64]
Similarities: TypeAlias = Mapping[str, Callable[[Float64Rows, Float64Rows], Float64Rows]]


def negative_distances(a: Float64Rows, b: Float64Rows, metric: str) -> Float64Rows:
    """Return the negative distance of each of (a, n) from each of (b, n), by a metric of scipy."""
    from scipy.spatial.distance import cdist

    distances: Float64Rows = cdist(a, b, metric)
    return -distances


# (a, n) and (a, n) to (a,)
PAIRWISE: Similarities = {
    "cosine": lambda a, b: (normalise_rows(a) * normalise_rows(b)).sum(-1),
    "dot": lambda a, b: (a * b).sum(-1),
    "euclidean": lambda a, b: -np.sqrt(np.square(a - b).sum(-1)),
    "manhattan": lambda a, b: -np.abs(a - b).sum(-1),
}
# (a, n) and (b, n) to (a, b)
MATRICES: Similarities = {
    "cosine": lambda a, b: normalise_rows(a) @ normalise_rows(b).T,
    "dot": lambda a, b: a @ b.T,
    "euclidean": lambda a, b: negative_distances(a, b, "euclidean"),
    "manhattan": lambda a, b: negative_distances(a, b, "cityblock"),
}
