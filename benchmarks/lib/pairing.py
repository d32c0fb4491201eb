"""Two processes that take turns, what their times say of each other, and what else the machine did meanwhile."""

import time
from statistics import median

import numpy as np

from formats.host.quiet import LOUD, Others

ORDERS = (0, 1, 1, 0), (1, 0, 0, 1)  # of a round's turns: neither side is always first, or last
TURN, SETTLE = 0.03, 0.003  # seconds of a turn, or one call; until pools sleep
ROOM = 0.02  # what a ratio of 1 may be off by
WIDE = 0.1  # the width of an interval that says little
LEVEL, DRAWS = 0.95, 2000  # of the bootstrap


def rounds(pair, count, first=0, seconds=TURN):
    """Seconds of a call of each side, so many times: medians of the calls of a round."""
    for turn in range(first, first + count):
        taken = [], []
        for side in ORDERS[turn % 2]:
            taken[side].extend(pair[side].ask("turn", seconds=seconds))
            time.sleep(SETTLE)
        yield median(taken[0]), median(taken[1])


def interval(starts, seed=0):
    """The median over all rounds of the second side's figure over the first's, and the bounds of its bootstrap interval
    (Efron 1979). `starts` has the rounds of each pair of processes. Starts are drawn again, and rounds of each, for
    where a process happens to lie in memory changes its speed by per cents as long as it lives. What slows both sides
    of a round changes nothing."""
    ratios = [np.array([second / first for first, second in taken]) for taken in starts]
    known, rng = np.full((len(ratios), max(map(len, ratios))), np.nan), np.random.default_rng(seed)
    for at, each in enumerate(ratios):
        known[at, : len(each)] = each
    at = rng.integers(len(ratios), size=(DRAWS, len(ratios)))
    count = np.array([len(each) for each in ratios])[at, None]
    drawn = known[at[..., None], (rng.random((DRAWS, *known.shape)) * count).astype(int)]
    drawn[np.arange(known.shape[1]) >= count] = np.nan
    low, high = np.quantile(np.nanmedian(drawn.reshape(DRAWS, -1), 1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(np.median(np.concatenate(ratios))), float(low), float(high)


def verdict(low, high):
    """Whether an interval reaches into 1.00 ± 0.02, or lies wholly to one side."""
    if low > 1 + ROOM:
        return "slower"
    if high < 1 - ROOM:
        return "faster"
    return "wide" if high - low > WIDE else "same"


def apart(first, second):
    """The largest difference of two arrays over the largest number of the first; infinite where shapes differ."""
    if first.shape != second.shape:
        return float("inf")
    return float(np.abs(first.astype(float) - second).max() / np.abs(first).max())


def calm(patience):
    """Waits until others leave the processors alone, so many seconds at most; the seconds that are left of them."""
    end = time.monotonic() + patience
    while patience and time.monotonic() < end:
        others = Others([])
        time.sleep(0.5)
        if sum(others.shares() or (0.0,)) < LOUD:
            break
    return max(0.0, end - time.monotonic())
