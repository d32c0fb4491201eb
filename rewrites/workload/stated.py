"""The stated error of an approximate program, on texts like those of its workload: the norm of all, single sentences,
cosines; and the kinds of text that it does not cover. All of it comes from lines that no method was fitted to and no
program chosen by."""

from dataclasses import asdict, dataclass
from math import exp, hypot, log
from statistics import NormalDist
from typing import Any

import numpy as np

from formats.core.epilogue import UNIT
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import percent
from opmatrix.inference.pooling import normalise_rows
from opmatrix.inference.scores.scoring import Scoring
from opmatrix.inference.text import LineReading, Tokenizer
from rewrites.verify.differences import Change
from rewrites.verify.lengths import format_errors
from rewrites.workload.line_rows import line_batches
from rewrites.workload.samples import TEXT_KINDS, make_lines

ABOVE, DOUBT = 0.01, 0.01  # share of other sentences above the stated error; the
# chance of a larger share
MOST = log(np.finfo(np.float64).max)  # largest logarithm of a limit
TAIL = 4  # one in TAIL, the largest, are the tail
MIN_SENTENCES, PLENTY = 16, 459  # fewest sentences for a tail; n with 0.99ⁿ < 0.01
COVERAGE_LINES, COVERAGE_SHARE = 20, 0.9  # lines of a kind in a test of coverage; the share of
# covered ones that it requires


@dataclass(frozen=True)
class Stated:
    """The error of other sentences like the `sentences` seen: `error` of as many together (relative, Frobenius norms),
    `sentence` of a single one, which at most one in a hundred exceeds (None if too few were seen), and the change of
    the cosines of `pairs`."""

    sentences: int
    error: float
    sentence: float | None
    pairs: int
    cosine_mean: float
    cosine_most: float

    @classmethod
    def of(
        cls,
        change: Change,
        cosines: np.ndarray,
        rounding: float = 0.0,
        checked: float = 0.0,
        routed: "RoutedChange | None" = None,
        checked_sentence: float = 0.0,
    ) -> "Stated":
        """Return the stated error from the change of a program's output and of cosines against a reference, which
        itself has the error `rounding`. `checked` is the largest error on the rows that other checks use,
        `checked_sentence` that of one of them, and lower bounds of the stated ones: a sentence whose numbers cancel
        rounds more than all together. Where rows are routed, `routed` is a lower bound, too."""
        changes = [change] if routed is None else [change, routed.redrawn]
        single = worst(change.each) if routed is None else routed.worst(change)
        together = max(checked, *(hypot(one.likely_of(len(change.off)), rounding) for one in changes))
        return cls(
            len(change.off),
            together,
            None if single is None else max(single + rounding, checked_sentence),
            len(cosines),
            float(cosines.mean()) if len(cosines) else 0.0,
            float(cosines.max(initial=0.0)),
        )

    def described(self) -> dict[str, object]:
        """Return the statement as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RoutedChange:
    """The part of sentences' errors that comes from rows routed elsewhere: `along` is the change with the routes of the
    program, without this part, and `redrawn` the change with other rows moved, for the same sentences several times. A
    row that moves is rare and has a large error, so the tail of a few sentences does not describe it."""

    along: Change
    redrawn: Change

    def worst(self, change: Change) -> float | None:
        """Return the error that at most `ABOVE` of other sentences exceed: of the smooth part from its tail, but at
        least the largest seen, and the largest of the redrawn sentences."""
        smooth = worst(self.along.each)
        return None if smooth is None else max(smooth, float(change.each.max()), float(self.redrawn.each.max()))


def worst(errors: np.ndarray) -> float | None:
    """Return the error that at most `ABOVE` of other sentences exceed, with the chance `DOUBT` that more do; None below
    `MIN_SENTENCES` sentences. For `PLENTY` or more it is the largest seen, whatever the distribution (Wilks 1941). For
    fewer the tail is extrapolated as a power law (Weissman 1978) from the k largest: their logs exceed the next one by
    h on average (Hill 1975), 2kh over its mean is χ² with 2k degrees, and the largest mean that this leaves in doubt is
    taken. If texts recur the k largest may be equal, and carry no information about a tail: the tolerance limit of a
    lognormal with the mean and spread of all (Odeh and Owen 1980) counts where it is larger, and so does the largest
    seen. Errors below the rounding of one number count as that rounding. None, too, where such limits exceed
    float64."""
    if (n := len(errors)) < MIN_SENTENCES:
        return None
    falling = np.sort(errors)[::-1]
    if n >= PLENTY or falling[0] == 0:
        return float(falling[0])
    from scipy.special import gammaincinv, nctdtrit

    k = n // TAIL
    top = np.log(np.maximum(falling, UNIT))
    mean = float((top[:k] - top[k]).sum() / gammaincinv(k, DOUBT))
    times = float(nctdtrit(n - 1, NormalDist().inv_cdf(1 - ABOVE) * n**0.5, 1 - DOUBT)) / n**0.5
    most = max(top[k] + mean * log(k / (n * ABOVE)), top.mean() + times * top.std(ddof=1))
    return max(float(falling[0]), exp(most)) if most < MOST else None


def change_cosines(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return |Δcos| of every pair of embeddings, of (S, n) before and after: (S (S − 1) / 2,)."""
    units = [normalise_rows(np.asarray(rows, np.float64)) for rows in (before, after)]
    was, now = (unit @ unit.T for unit in units)
    changed: np.ndarray = abs(now - was)[np.triu_indices(len(before), 1)]
    return changed


# ---- kinds of text that are like a workload


def uncovered(tokenizer: Tokenizer, fitted: Batch, stated: Batch, scoring: Scoring | None = None) -> tuple[str, ...]:
    """Return the kinds of text, in pairs for a model that scores, that a workload does not cover: for more than one
    line in ten the length is outside the workload's range, or more tokens are new to it than in any line that its own
    error is stated from. Covered kinds need not be alike: the test is necessary, not sufficient."""
    counts = np.diff([*fitted.starts]), np.diff([*stated.starts])
    low, high = (function(np.concatenate(counts)) for function in (np.min, np.max))
    most = max(unseen(row.tokens, fitted.tokens) for row in stated)
    whole = np.concatenate([fitted.tokens, stated.tokens])

    def held(row: np.ndarray) -> bool:
        """True if a row's length and new tokens are within those of the workload."""
        return low <= len(row) <= high and unseen(row, whole) <= most

    def covered(kind: str) -> bool:
        """True if enough rows of a kind of text are like those of the workload."""
        reading = LineReading(truncate=True, skip_bad=True)
        rows = [
            part.tokens
            for batch in line_batches(tokenizer, make_lines(kind, COVERAGE_LINES), reading, scoring)
            for part in batch
        ]
        return sum(map(held, rows)) >= COVERAGE_SHARE * len(rows)

    return tuple(kind for kind in TEXT_KINDS if not covered(kind))


def unseen(tokens: np.ndarray, known: np.ndarray) -> float:
    """Return the share of tokens that are not among those known."""
    return float(1 - np.isin(tokens, known).mean())


# ---- text of the report


def spoken(workload: dict[str, Any], program: dict[str, Any]) -> str:
    """Return the sentence about a program's stated error, from the entries of a report: `stated` of the run and those
    of the program; and its error at other lengths."""
    (low, high), stated, near = workload["lengths"], program["stated"], program["near"]
    single = stated["sentence"]
    worst = (
        f"a single one by {percent(single)}, which at most {percent(ABOVE)} of them exceed"
        if single is not None
        else f"nothing of a single one: that needs {2 * MIN_SENTENCES} lines"
    )
    lacks = workload["uncovered"]
    return (
        f"stated    texts like {workload['like']}, {low} to {high} tokens, are off by {percent(stated['error'])} "
        f"together; {worst}\n          (of {stated['sentences']} that nothing was fitted to or chosen by)"
        + (tell_cosines(stated) if stated["pairs"] else "")
        + (f"\n          at other lengths it was found off by {format_errors(near)}" if near else "")
        + (f"\n          not covered: {', '.join(lacks)}" if lacks else "")
    )


def tell_cosines(stated: dict[str, float]) -> str:
    """Return the clause about cosines of pairs of embeddings."""
    mean, most = (f"{stated[name]:.2g}" for name in ("cosine_mean", "cosine_most"))
    return f"; cosines by {mean} on average, {most} at most of {stated['pairs']} pairs"
