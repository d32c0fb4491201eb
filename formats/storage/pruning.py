"""Pruning: the score of an entry, and the mask of the highest scores."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.arrays import Floats, FormatError


def importance(W: Floats, scale: ArrayLike | None, where: str) -> NDArray[np.float64]:
    """Return |W| (Han et al. 2015, arXiv:1506.02626), or |W[i, j]| * scale[i] with scale the norms of the inputs'
    columns on calibration rows (Wanda: Sun et al. 2023, arXiv:2306.11695, eq. 1): W (n, p), scale (n,) -> (n, p)."""
    score: NDArray[np.float64] = abs(W.astype(np.float64))
    if scale is None:
        return score
    weight = np.asarray(scale, np.float64)
    if weight.shape != (len(W),):
        raise FormatError(f"{where}: scale has shape {weight.shape}; it needs one for each of {len(W)} inputs")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        at = int(np.nonzero(~(np.isfinite(weight) & (weight >= 0)))[0][0])
        raise FormatError(f"{where}: scale[{at}] = {weight[at]} is not a finite number >= 0")
    # an input never seen loses to every other one, but its nonzero entries still win over zeros
    weight = np.maximum(weight, 1e-60 * (weight.max() or 1))
    return score * weight[:, None]


def count_kept(density: float, total: int, where: str) -> int:
    """Return the number of entries out of `total` that a density keeps."""
    if not 0 <= density <= 1:
        raise FormatError(f"{where}: density = {density} is not between 0 and 1")
    return round(density * total)


def highest(score: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Return a mask that is true at exactly `count` entries, none lower than one left out."""
    mask = np.zeros(score.size, bool)
    if count:
        mask[np.argpartition(score, score.size - count, axis=None)[score.size - count :]] = True
    return mask.reshape(score.shape)
