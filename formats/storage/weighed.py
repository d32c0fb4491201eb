"""The statistics of a matrix that formats use."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Spectrum(Protocol):
    """The statistics of a matrix in the metric of its inputs (opmatrix/spectra/propose.py)."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix: (inputs, outputs)."""

    @property
    def weight(self) -> NDArray[np.float64]:
        """The matrix, (n, p)."""

    @property
    def gram(self) -> NDArray[np.float64]:
        """The Gram matrix of its inputs, (n, n), or its diagonal, (n,)."""

    @property
    def squares(self) -> NDArray[np.float64]:
        """The diagonal of the Gram matrix of its inputs, (n,)."""

    @property
    def energy(self) -> float:
        """The sum of the squares of the output."""

    @property
    def errors(self) -> NDArray[np.float64]:
        """The part of the output that the best matrix of rank 0, 1, … leaves out."""

    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of the output, squared, that is lost without each number, were inputs orthogonal."""

    def ranks(self) -> list[int]:
        """Return the ranks at which the error crosses a level of interest."""

    def densities(self, tile: tuple[int, int] | None = None) -> list[float]:
        """Return shares of numbers, or of tiles, at which the part left out crosses a level."""
