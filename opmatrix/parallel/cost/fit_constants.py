"""The fit of what data sheets do not state, on measured steps: fractions and latencies that make them likeliest."""
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
CLOSE = 0.05                                                # beyond this error a row pulls less


def fit_constants(predicted: Callable[[Constants], npt.NDArray[np.float64]], seconds: Sequence[float],
                  start: Constants = START) -> Constants:
    """The constants by which predictions come closest to measured seconds, by the logarithm of their ratio; rows that
    are far off pull less. What rows tell little of stays as it was. Raises InputError for rows that are too few, or all
    alike."""
    from scipy.optimize import least_squares
    measured = np.array(seconds, dtype=float)
    if len(measured) < LEAST_ROWS:
        raise InputError(f"fit: {len(measured)} rows for {len(FITTED)} constants: give at least {LEAST_ROWS}")
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise InputError(f"fit: {measured.min()} seconds: give positive numbers")
    if np.ptp(measured) < 1e-9 * measured.max():
        raise InputError(f"fit: all {len(measured)} rows take {measured[0]:g} seconds: give rows that differ")

    def constants(moved: npt.NDArray[np.float64]) -> Constants:
        found = {name: getattr(start, name) * float(np.exp(by)) for name, by in zip(FITTED, moved, strict=True)}
        found = {name: min(value, 1.0) if name in FRACTIONS else value for name, value in found.items()}
        return start._replace(**found)
    ended = least_squares(lambda moved: np.log(predicted(constants(moved)) / measured), np.zeros(len(FITTED)),
                          loss="soft_l1", f_scale=CLOSE, max_nfev=30)
    return constants(ended.x)
