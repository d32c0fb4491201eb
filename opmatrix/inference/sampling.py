"""The token that follows, by the scores of a vocabulary: the likeliest, or one drawn. The vocabulary is never sorted:
the k best are told by a partition, the share that counts by a histogram, and only the bin at its edge is put in
order."""
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from formats.core.errors import InputError

BINS, DEEPEST = 4096, 64.0                                  # of the histogram; nats below the best that it reaches

ScoreRow = NDArray[np.float32 | np.float64]
Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. `temperature` 0 takes the likeliest; of equal ones always the one of the lower id. Else
    one is drawn with probabilities softmax(scores / temperature), of the `top_k` best, and of these of the fewest that
    together have the share `top_p`.

    A drawn number belongs to a seed and a position alone, so a text depends neither on threads nor on what else is
    generated at once. Sequence i draws by seed + i."""
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
        """The token at a position of a sequence, given the scores of all tokens there. Raises InputError where the best
        score is no number."""
        best = int(scores.argmax())                         # of what is no number the first
        if not isfinite(scores[best]):
            raise InputError(f"scores: that of token {best} at position {position} is {scores[best]}: float32 does not "
                             "carry this model")
        if not self.temperature: return best
        places = None if self.top_k is None else keep_best(scores, self.top_k)
        with np.errstate(over="ignore"):                    # far below, at low temperatures
            chosen = scores if places is None else scores[places]
            depths = np.subtract(scores[best], chosen, dtype=np.float64) / self.temperature
        weights = np.exp(-depths)
        if self.top_p < 1:
            kept = keep_share(depths, weights, self.top_p)
            places, weights = kept if places is None else places[kept], weights[kept]
        at = draw_place(weights, uniform(self.seed + sequence, position))
        return at if places is None else int(places[at])


def keep_best(scores: ScoreRow, count: int) -> NDArray[np.intp]:
    """Places of the largest scores, so many, in ascending order; of equal scores the first."""
    if count >= len(scores): return np.arange(len(scores))
    edge = np.partition(scores, len(scores) - count)[len(scores) - count]
    kept = scores > edge
    kept[np.flatnonzero(scores == edge)[:count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def keep_share(depths: Weights, weights: Weights, share: float) -> NDArray[np.intp]:
    """Places, in ascending order, of the fewest weights that together have a share of all; of equal weights the first.
    `depths` are what the weights are the exponentials of, negated."""
    deepest = min(float(depths.max()), DEEPEST) or 1.0
    bins = (np.minimum(depths, deepest) * ((BINS - 1) / deepest)).astype(np.int64)
    sums = np.bincount(bins, weights, BINS).cumsum()
    wanted = share * sums[-1]
    edge = int(sums.searchsorted(wanted))
    kept, within = bins < edge, np.flatnonzero(bins == edge)
    within = within[np.argsort(depths[within], kind="stable")]
    above = sums[edge - 1] if edge else 0.0
    kept[within[:int((above + weights[within].cumsum()).searchsorted(wanted)) + 1]] = True
    return np.flatnonzero(kept)


def draw_place(weights: Weights, number: float) -> int:
    """The place that a number from 0 to 1 falls at, where each place is as wide as its weight."""
    sums = weights.cumsum()
    return int(sums.searchsorted(min(number * sums[-1], np.nextafter(sums[-1], 0)), side="right"))


def uniform(seed: int, position: int) -> float:
    """The number of a seed at a position, at least 0 and below 1 (Philox: Salmon et al. 2011)."""
    return float(int(np.random.Philox(key=seed, counter=position).random_raw()) >> 11) * 2.0 ** -53


def is_number(given: object) -> bool:
    """Whether what was given is a number, and no truth value."""
    return isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)


def is_whole(given: object) -> bool:
    """Whether what was given is a whole number, and no truth value."""
    return isinstance(given, int | np.integer) and not isinstance(given, bool)
