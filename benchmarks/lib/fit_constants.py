"""The fit of the constants that data sheets do not state: the fractions and latencies that make measured steps
likeliest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from formats.core.errors import InputError
from opmatrix.parallel.cost.constants import Constants, load_constants

FITTED = "idle", "memory", "superstep", "gap"
FRACTIONS = "matrix", "idle", "memory", "links", "hidden", "attention", "eight", "fragments"
START = load_constants()._replace(idle=0.5, memory=0.8, superstep=1e-5, gap=1.2e-5)
CLOSE = 0.05  # error beyond which a row pulls less


def fit_constants(
    predicted: Callable[[Constants], npt.NDArray[np.float64]],
    seconds: Sequence[float],
    start: Constants = START,
    names: Sequence[str] = FITTED,
) -> Constants:
    """Return the constants whose predictions come closest to measured seconds, by the logarithm of their ratio; `names`
    are fitted, all others are those of `start`. Rows that are far off pull less. A constant that the rows say little
    about stays near `start`. Raises InputError for too few rows, and for rows that are all alike."""
    from scipy.optimize import least_squares

    measured = np.array(seconds, dtype=float)
    if len(measured) < 2 * len(names):
        raise InputError(f"fit: {len(measured)} rows for {len(names)} constants: give at least {2 * len(names)}")
    if not (np.isfinite(measured).all() and (measured > 0).all()):
        raise InputError(f"fit: {measured.min()} seconds: give positive numbers")
    if np.ptp(measured) < 1e-9 * measured.max():
        raise InputError(f"fit: all {len(measured)} rows take {measured[0]:g} seconds: give rows that differ")

    def constants(moved: npt.NDArray[np.float64]) -> Constants:
        values = {name: getattr(start, name) * float(np.exp(by)) for name, by in zip(names, moved, strict=True)}
        values = {name: min(value, 1.0) if name in FRACTIONS else value for name, value in values.items()}
        return start._replace(**values)

    ended = least_squares(
        lambda moved: np.log(predicted(constants(moved)) / measured),
        np.zeros(len(names)),
        loss="soft_l1",
        f_scale=CLOSE,
        max_nfev=30,
    )
    return constants(ended.x)
