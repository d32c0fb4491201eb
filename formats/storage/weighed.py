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
        """The Gram matrix of its inputs, (n, n), or its diagonal, (n,)."""
    @property
    def squares(self) -> NDArray[np.float64]:
        """The diagonal of the Gram matrix of its inputs, (n,)."""
    @property
    def energy(self) -> float:
        """The sum of the squares of the output."""
    @property
    def errors(self) -> NDArray[np.float64]:
        """What the best matrix of rank 0, 1, … leaves out of the output."""
    @property
    def shares(self) -> NDArray[np.float64]:
        """The share of the output, squared, that is lost without each number, were inputs orthogonal."""
    def ranks(self) -> list[int]:
        """At which the error crosses a level that is looked at."""
    def densities(self, tile: tuple[int, int] | None = None) -> list[float]:
        """Shares of numbers, or of tiles, at which what is left out crosses a level."""
