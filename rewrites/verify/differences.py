"""The distance of one output from another, and its variation from sentence to sentence."""

from collections.abc import Iterable
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from formats.core.arrays import settled
from formats.core.epilogue import UNIT

DRAWS = 1000  # resamples of sentences, to estimate the variation
BLOCK = 2**22  # numbers compared at a time, in float64


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the relative change of a whole output: the Frobenius norm of the difference over that of the output."""
    return Change.of(found, wanted).relative


def ratio(off: ArrayLike, size: ArrayLike) -> np.ndarray:
    """Return `off` over `size` in float64, both from 0 on: 0 where `off` is 0, even if `size` is 0; inf where only
    `size` is 0."""
    over, under = np.asarray(off, np.float64), np.asarray(size, np.float64)
    quotient: np.ndarray = np.divide(over, under, out=np.where(over == 0, 0.0, np.inf), where=under > 0)
    return quotient


class Change(NamedTuple):
    """The distance of one output from another: the squared Frobenius norms of the difference and of the wanted output
    for each sentence, (S,) each."""

    off: np.ndarray
    size: np.ndarray

    @classmethod
    def of(cls, found: np.ndarray, wanted: np.ndarray, starts: np.ndarray | None = None) -> Self:
        """Return the change of rows in any number type. `starts` are the offsets of sentences; without them all rows
        are one sentence. Rows are widened to float64 some at a time: the rows of a language model are as wide as its
        vocabulary."""
        some = max(1, BLOCK // max(1, wanted[0].size))
        rows = np.empty((2, len(wanted)))
        for at in range(0, len(wanted), some):
            part = slice(at, at + some)
            whole = np.asarray(wanted[part], np.float64).reshape(len(wanted[part]), -1)
            for sums, numbers in zip(rows, settled(found[part].reshape(whole.shape), whole), strict=True):
                sums[part] = np.einsum("ij,ij->i", numbers, numbers)
        return cls(*np.add.reduceat(rows, [0] if starts is None else starts[:-1], axis=1))

    @classmethod
    def joined(cls, parts: Iterable[Self]) -> Self:
        """Return the change of the sentences of several outputs together."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @property
    def relative(self) -> float:
        """The norm of the difference over that of the output, all sentences together."""
        return float(np.sqrt(ratio(self.off.sum(), self.size.sum())))

    @property
    def each(self) -> np.ndarray:
        """The relative change of every sentence, (S,). A sentence whose norm is less than the rounding of the others
        is measured against that rounding."""
        alone: np.ndarray = np.sqrt(ratio(self.off, np.maximum(self.size, UNIT**2 * self.size.mean())))
        return alone

    @property
    def surely(self) -> float:
        """The bound of `surely_of` for as many sentences as there are."""
        return self.surely_of(len(self.off))

    def surely_of(self, sentences: int) -> float:
        """Return the bound that the change of `sentences` sentences, drawn again from these, exceeds one time in a
        thousand (bootstrap: Efron 1979). If all drawn sentences are zero, their size is taken as the mean size of a
        sentence."""
        again = np.random.default_rng(0).integers(0, len(self.off), (DRAWS, sentences))
        size = np.maximum(self.size[again].sum(1), self.size.mean())
        return float(np.quantile(np.sqrt(ratio(self.off[again].sum(1), size)), 0.999))

    @property
    def likely(self) -> float:
        """The bound of `likely_of` for as many sentences as there are."""
        return self.likely_of(len(self.off))

    def likely_of(self, sentences: int) -> float:
        """Return the bound that the change of `sentences` other sentences exceeds one time in a thousand. The
        bootstrap estimates how such an error varies; two samples vary alike, so their difference varies by √2 as much.
        """
        return self.relative + 2**0.5 * max(0.0, self.surely_of(sentences) - self.relative)
