"""The residual of a machine's closed form, as a factor: kriging, that is regression by a Gaussian process (Rasmussen
and Williams 2006, chapter 2), from the calibration's measurements near by, its settings chosen by leaving one out (eqs.
5.10 to 5.12)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product as combine

import numpy as np
from numpy.typing import NDArray

from formats.machine.features import quantile

ROW_SCALES, SIDE_SCALES, NOISE = (0.7, 1.5, 3.0), (1.0, 2.5, 6.0), (0.02, 0.05, 0.12)
MIN_DEVIATION = 0.02  # the least deviation of a prediction
OUTLYING, LEAST_FAR = 4.0, 0.25  # least deviations, and least logarithm, of a doubtful call
FEW_CALLS = 6  # least number of calls that can be compared
SHARE = 0.9  # of cases left out, for 80 %: new cases are farther off
KrigingArray = NDArray[np.float64]


@dataclass(frozen=True)
class Correction:
    """The residuals of the closed form of one kernel on one machine at the places that were measured.

    `scale` are the lengths, along each axis of a place, over which calls are alike; `noise` and `amplitude` are of
    logarithms of seconds; `spread` widens the deviation until the interval holds 90 % of cases that were left out, and
    `alone` is the 90 % quantile of their errors."""

    scale: list[float] = field(default_factory=list)
    noise: float = 0.05
    amplitude: float = 0.0
    spread: float = 1.3
    alone: float = 0.3
    places: list[list[float]] = field(default_factory=list)
    left: list[float] = field(default_factory=list)

    def __call__(self, place: Sequence[float]) -> float:
        """Return the logarithm of the factor at a place."""
        return float(self.alike(place) @ self.solved[1]) if self.places else 0.0

    def deviation(self, place: Sequence[float]) -> float:
        """Return half the width of the interval, as a logarithm: wide where no place near was measured."""
        if not self.places:
            return max(self.spread * self.noise, MIN_DEVIATION)
        near = self.alike(place)
        known = min(float(near @ self.solved[0] @ near), self.amplitude**2)
        return max(self.spread * float(np.sqrt(self.amplitude**2 + self.noise**2 - known)), MIN_DEVIATION)

    @cached_property
    def anchors(self) -> KrigingArray:
        """The measured places, each axis over its length scale."""
        return np.array(self.places) / self.scale

    def alike(self, where: Sequence[float]) -> KrigingArray:
        """Return the covariance of the residual at a place with that of each measured one: a squared exponential."""
        away = self.anchors - np.array(where) / self.scale
        return np.asarray(self.amplitude**2 * np.exp(-0.5 * (away * away).sum(1)))

    @cached_property
    def solved(self) -> tuple[KrigingArray, KrigingArray]:
        """The inverse of the covariance of the measurements, and its product with their residuals."""
        away = self.anchors[:, None] - self.anchors[None]
        covariance = self.amplitude**2 * np.exp(-0.5 * (away * away).sum(2))
        inverse = np.linalg.inv(covariance + self.noise**2 * np.eye(len(covariance)))
        return inverse, inverse @ np.array(self.left)


def fit_correction(calls: Sequence[Sequence[float]], residuals: Sequence[float], product: bool) -> Correction:
    """Fit the correction that predicts residuals best, one call left out at a time. `product`: whether these are calls
    of a product. Residuals are logarithms of measured over closed form."""
    places, left = np.array(calls), np.array(residuals)
    squared, amplitude = np.square(places[:, None] - places[None]), float(np.sqrt(np.mean(np.square(left)))) + 1e-6
    best: tuple[float, Correction] | None = None
    for rows, sides, share in combine(ROW_SCALES, SIDE_SCALES, NOISE):
        scale = scale_axes(product, places.shape[1], rows, sides)
        covariance = covariance_of(squared, amplitude, scale)
        score, off, error = left_out(covariance, share, left)
        if best is None or score < best[0]:
            spread, alone = (quantile(abs(deviations), SHARE) for deviations in (off, error))
            best = (
                score,
                Correction(
                    scale,
                    share,
                    amplitude,
                    float(np.clip(spread, 0.8, 4.0)),
                    float(alone),
                    places.round(4).tolist(),
                    left.round(5).tolist(),
                ),
            )
    assert best is not None
    return best[1]


def find_disturbed(calls: Sequence[Sequence[float]], residuals: Sequence[float], product: bool) -> list[int]:
    """Find the calls whose residuals differ from the prediction of all others by more than OUTLYING deviations, the
    farthest first: the machine was disturbed while they were timed, or a closed form has a step there."""
    if len(calls) < FEW_CALLS:
        return []
    places, left = np.array(calls), np.array(residuals)
    best, squared = fit_correction(calls, residuals, product), np.square(places[:, None] - places[None])
    covariance = covariance_of(squared, best.amplitude, best.scale)
    far = abs(left_out(covariance, best.noise, left)[2])
    deviation = 1.4826 * float(np.median(far))  # the median of absolute normal numbers is .6745 deviations
    most = max(OUTLYING * deviation, LEAST_FAR)
    return [int(i) for i in np.argsort(-far, kind="stable") if far[i] > most]


def covariance_of(squared: KrigingArray, amplitude: float, scale: Sequence[float]) -> KrigingArray:
    """Return the covariance (n, n) of calls at these squared distances along each axis (n, n, axes)."""
    return np.asarray(amplitude**2 * np.exp(-0.5 * (squared / np.square(scale)).sum(2)))


def scale_axes(product: bool, width: int, rows: float, sides: float) -> list[float]:
    """Return the lengths of the axes: a product of one row is unlike one of two; a number's bytes count double."""
    if not product:
        return [sides] * width
    return [rows, 0.5, sides, sides, sides / 2, *[sides] * (width - 5)]


def left_out(covariance: KrigingArray, noise: float, y: KrigingArray) -> tuple[float, KrigingArray, KrigingArray]:
    """Predict each of y from all others. Return the mean negative logarithm of its likelihood, and the errors, in
    deviations and as they are."""
    inverse = np.linalg.inv(covariance + noise**2 * np.eye(len(y)))
    deviation = 1 / np.sqrt(np.diag(inverse))
    off = (inverse @ y) * deviation
    return float(np.mean(np.log(deviation) + 0.5 * np.minimum(np.square(off), 16))), off, off * deviation
