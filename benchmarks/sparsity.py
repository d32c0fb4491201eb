"""Leaving out single entries of a weight, input after input, what is left corrected for it: optimal brain surgeon with
one inverse for all outputs (SparseGPT: Frantar and Alistarh 2023, arXiv:2301.00774, algorithm 1).

The metric decides what it is, as in opmatrix/spectra/removal.py: with the whole Gram of the inputs the rest is
corrected; with its diagonal nothing can be, and entries go by Wanda's scores (Sun et al. 2023); without one, by
magnitude."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from formats.core.errors import InputError
from opmatrix.spectra.gram import Gram, metric
from opmatrix.spectra.measures import RealArray, check_matrix
from opmatrix.spectra.removal import inverse

COMPARED = 128  # inputs whose entries are compared, where the rest is
# corrected
Groups = tuple[int, int]  # n of every m inputs of an output stay


@dataclass(frozen=True)
class Sparsity:
    """Which entries go: `share` of all, or all but n of every m inputs of each output."""

    share: float = 0.5
    groups: Groups | None = None

    def check(self, inputs: int) -> None:
        """Raises InputError for what leaves nothing, or does not divide so many inputs."""
        if not 0 <= self.share < 1:
            raise InputError(f"sparsify: a share of {self.share} goes: give one from 0 below 1")
        if self.groups is None:
            return
        n, m = self.groups
        if not 0 < n <= m or inputs % m or COMPARED % m:
            raise InputError(f"sparsify: {n} of {m} stay of {inputs} inputs: groups divide them, and {COMPARED}")


def sparsify(weight: ArrayLike, sparsity: Sparsity, gram: ArrayLike | Gram | None = None) -> RealArray:
    """W (n, p) with zeros where entries go. An entry costs W_ij² / U_ii², U upper with UᵀU = H⁻¹; input
    after input what goes is made up for by the inputs that follow, W_i: -= U_i: W_ij / U_ii. O(n³ + n² p). Raises
    InputError for groups that do not fit."""
    w, g = check_matrix(weight, "weight").copy(), metric(gram, len(weight))  # type: ignore[arg-type]
    sparsity.check(len(w))
    root = np.asarray(np.linalg.cholesky(inverse(g)).T, np.float64)
    block = len(w) if g.ndim == 1 else COMPARED
    for start in range(0, len(w), block):
        rows = slice(start, start + block)
        lost = sparsify_block(w[rows], root[rows, rows], sparsity)
        if g.ndim == 2:
            w[start + block :] -= root[rows, start + block :].T @ lost
    return w


def sparsify_block(w: RealArray, root: RealArray, sparsity: Sparsity) -> RealArray:
    """Some inputs of W (b, p), in place; what each lost, over U_ii (b, p): inputs behind the block make up for it."""
    diagonal = np.diagonal(root)[:, None]
    gone = None if sparsity.groups else mark_least(np.square(w / diagonal), sparsity.share)
    step = sparsity.groups[1] if sparsity.groups else 1
    lost = np.zeros_like(w)
    for i in range(len(w)):
        if sparsity.groups and i % step == 0:
            group = mark_in_groups(np.square(w[i : i + step] / diagonal[i : i + step]), sparsity.groups[0])
        mask = group[i % step] if gone is None else gone[i]
        lost[i] = np.where(mask, w[i], 0) / root[i, i]
        w[i:] -= np.outer(root[i, i:], lost[i])
        w[i][mask] = 0
    return lost


def mark_least(costs: RealArray, share: float) -> NDArray[np.bool_]:
    """Where the least costs lie, so many of all."""
    count, gone = round(share * costs.size), np.zeros(costs.size, bool)
    gone[np.argsort(costs, axis=None, kind="stable")[:count]] = True
    return gone.reshape(costs.shape)


def mark_in_groups(costs: RealArray, kept: int) -> NDArray[np.bool_]:
    """Where the least costs of each column (m, p) lie: all but so many."""
    gone = np.zeros(costs.shape, bool)
    np.put_along_axis(gone, np.argsort(costs, axis=0, kind="stable")[: len(costs) - kept], True, 0)
    return gone
