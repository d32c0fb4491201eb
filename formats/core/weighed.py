"""What formats ask of a matrix that was looked at."""
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Spectrum(Protocol):
    """A matrix that was looked at in the metric of its inputs (opmatrix/spectra/propose.py)."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def weight(self) -> NDArray[np.float64]:
        """(n, p)."""
    @property
    def gram(self) -> NDArray[np.float64]:
        """Of its inputs, (n, n), or its diagonal, (n,)."""
    @property
    def squares(self) -> NDArray[np.float64]:
        """Of its inputs: the diagonal of the Gram matrix, (n,)."""
    @property
    def energy(self) -> float:
        """Of the output: the sum of its squares."""
    @property
    def errors(self) -> NDArray[np.float64]:
        """Of the output, by the best matrix of rank 0, 1, …"""
    @property
    def shares(self) -> NDArray[np.float64]:
        """Of each number: the share of the output, squared, that is lost without it, were inputs orthogonal."""
    def ranks(self) -> list[int]:
        """At which the error crosses a level that is looked at."""
    def densities(self, tile: tuple[int, int] | None = None) -> list[float]:
        """Shares of numbers, or of tiles, at which what is left out crosses a level."""
