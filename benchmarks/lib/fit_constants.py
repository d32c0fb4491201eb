"""The fit of the constants that data sheets do not state: the fractions and latencies that make measured steps
likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from formats.core.errors import InputError
from opmatrix.parallel.cost.constants import Constants

FITTED = "idle", "memory", "superstep", "gap"
FRACTIONS = "matrix", "idle", "memory", "near", "far", "hidden"
START = Constants(matrix=0.95, idle=0.5, memory=0.8, near=0.77, far=0.77, superstep=1e-5, gap=1.2e-5, hidden=0.5)
LEAST_ROWS = 2 * len(FITTED)
CLOSE = 0.05  # error beyond which a row pulls less


def fit_constants(
    predicted: Callable[[Constants], npt.NDArray[np.float64]], seconds: Sequence[float], start: Constants = START
) -> Constants:
    """Return the constants whose predictions come closest to measured seconds, by the logarithm of their ratio. Rows
    that are far off pull less. A constant that the rows say little about stays near `start`. Raises InputError for too
    few rows, and for rows that are all alike."""
    from scipy.optimize import least_squares

    measured = np.array(seconds, dtype=float)
    if len(measured) < LEAST_ROWS:
        raise InputError(f"fit: {len(measured)} rows for {len(FITTED)} constants: give at least {LEAST_ROWS}")
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise InputError(f"fit: {measured.min()} seconds: give positive numbers")
    if np.ptp(measured) < 1e-9 * measured.max():
        raise InputError(f"fit: all {len(measured)} rows take {measured[0]:g} seconds: give rows that differ")

    def constants(moved: npt.NDArray[np.float64]) -> Constants:
        values = {name: getattr(start, name) * float(np.exp(by)) for name, by in zip(FITTED, moved, strict=True)}
        values = {name: min(value, 1.0) if name in FRACTIONS else value for name, value in values.items()}
        return start._replace(**values)

    ended = least_squares(
        lambda moved: np.log(predicted(constants(moved)) / measured),
        np.zeros(len(FITTED)),
        loss="soft_l1",
        f_scale=CLOSE,
        max_nfev=30,
    )
    return constants(ended.x)
