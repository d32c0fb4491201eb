"""The choice of the next token by the scores of a vocabulary: the likeliest, or one drawn. The vocabulary is never
sorted: a partition finds the k best, a histogram the share that counts, and only the bin at its edge is sorted."""

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError

BINS, DEEPEST = 4096, 64.0  # bins of the histogram; its range, in nats below the best

ScoreRow = NDArray[np.float32 | np.float64]
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """The way tokens are chosen. `temperature` 0 takes the likeliest; of equal ones always the one of the lower id.
    Else one is drawn with probabilities softmax(scores / temperature), from the `top_k` best, and of these from the
    fewest that together have the share `top_p`.

    A random number depends on a seed and a position alone, so a text depends neither on threads nor on other texts of
    the same batch. Sequence i draws with seed + i."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature {self.temperature!r:.40}: give 0 or more; 0 takes the likeliest token")
        if self.top_k is not None and not (is_whole(self.top_k) and self.top_k >= 1):
            raise InputError(f"top_k {self.top_k!r:.40}: give 1 or more, or leave it out")
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise InputError(f"top_p {self.top_p!r:.40}: give a share above 0, and at most 1")
        if not (is_whole(self.seed) and 0 <= self.seed < 1 << 64):
            raise InputError(f"seed {self.seed!r:.40}: give a whole number, 0 or more and below 2^64")

    def choose(self, scores: ScoreRow, position: int, sequence: int = 0) -> int:
        """Return the token at a position of a sequence, given the scores of all tokens there. Raises InputError if the
        best score is not finite."""
        best = int(scores.argmax())  # the first NaN if there is one
        if not isfinite(scores[best]):
            raise InputError(
                f"scores: token {best} at position {position} has the score {scores[best]}: the "
                "model overflows in float32"
            )
        if not self.temperature:
            return best
        places = None if self.top_k is None else keep_best(scores, self.top_k)
        with np.errstate(over="ignore"):  # depths may overflow at low temperatures
            chosen = scores if places is None else scores[places]
            depths = np.subtract(scores[best], chosen, dtype=np.float64) / self.temperature
        weights = np.exp(-depths)
        if self.top_p < 1:
            top = keep_share(depths, weights, self.top_p)
            places, weights = top if places is None else places[top], weights[top]
        at = draw_place(weights, uniform(self.seed + sequence, position))
        return at if places is None else int(places[at])


def keep_best(scores: ScoreRow, count: int) -> NDArray[np.intp]:
    """Return the places of the `count` largest scores, in ascending order; of equal scores the first."""
    if count >= len(scores):
        return np.arange(len(scores))
    edge = np.partition(scores, len(scores) - count)[len(scores) - count]
    selected = scores > edge
    selected[np.flatnonzero(scores == edge)[: count - np.count_nonzero(selected)]] = True
    return np.flatnonzero(selected)


def keep_share(depths: Weights, weights: Weights, share: float) -> NDArray[np.intp]:
    """Return the places, in ascending order, of the fewest weights that together have a share of all; of equal weights
    the first. The weights are exp(-depths)."""
    deepest = min(float(depths.max()), DEEPEST) or 1.0
    bins = (np.minimum(depths, deepest) * ((BINS - 1) / deepest)).astype(np.int64)
    sums = np.bincount(bins, weights, BINS).cumsum()
    wanted = share * sums[-1]
    edge = int(sums.searchsorted(wanted))
    selected, within = bins < edge, np.flatnonzero(bins == edge)
    within = within[np.argsort(depths[within], kind="stable")]
    above = sums[edge - 1] if edge else 0.0
    selected[within[: int((above + weights[within].cumsum()).searchsorted(wanted)) + 1]] = True
    return np.flatnonzero(selected)


def draw_place(weights: Weights, number: float) -> int:
    """Return the place that a number from 0 to 1 falls at, where each place is as wide as its weight."""
    sums = weights.cumsum()
    return int(sums.searchsorted(min(number * sums[-1], np.nextafter(sums[-1], 0)), side="right"))


def uniform(seed: int, position: int) -> float:
    """Return the random number of a seed at a position, at least 0 and below 1 (Philox: Salmon et al. 2011)."""
    return float(int(np.random.Philox(key=seed, counter=position).random_raw()) >> 11) * 2.0**-53


def is_number(given: object) -> bool:
    """True for a number that is no truth value."""
    return isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)


def is_whole(given: object) -> bool:
    """True for a whole number that is no truth value."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool)
