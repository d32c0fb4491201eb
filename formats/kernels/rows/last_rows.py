"""The last rows of sequences, as a session keeps them from step to step: a state holds them side by side in every head,
the latest last. State 0 is that of a sequence without rows: zeros, which nothing overwrites."""

import numpy as np

from formats.core.arrays import as_contiguous, places, separate
from formats.host.threads import threads
from formats.kernels.attentions.heads import copy_rows, heads_of
from formats.kernels.engine.compiled import HELPER, Kernel
from formats.kernels.engine.launch import address, filled, launch, words
from formats.kernels.engine.memory import longs, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.pool import POOL

__all__ = ["keep_last"]

LOOKED_AT = 64  # rows of an item
# x (T, heads, cols): rows whose target is not 0 leave the `kept` rows up to themselves in that state of out
LAST_RECORD = np.dtype(words("x x_row x_head out out_row out_head ages sources targets T heads cols kept"))


@njit(**HELPER)
def keep_row(c, row, lag, age, source, target):
    """Copy the row `lag` before a row to its place in a state: a new row, or one of the state before."""
    place = target + 4 * (c.kept - 1 - lag) * c.cols
    if lag <= age:
        copy_rows(c.x + 4 * (row - lag) * c.x_row, 4 * c.x_head, c.heads, c.cols, place, 4 * c.out_head)
    else:
        copy_rows(source + 4 * (c.kept + age - lag) * c.cols, 4 * c.out_head, c.heads, c.cols, place, 4 * c.out_head)


@Kernel.of(3, rare=True)
def keep_last_rows(item, worker, arguments):
    """Write the states that an item's rows leave."""
    c = record(arguments, LAST_RECORD)
    ages, sources, targets = longs(c.ages, c.T), longs(c.sources, c.T), longs(c.targets, c.T)
    for row in range(item * LOOKED_AT, min((item + 1) * LOOKED_AT, c.T)):
        if targets[row]:
            source, target = c.out + 4 * sources[row] * c.out_row, c.out + 4 * targets[row] * c.out_row
            for lag in range(c.kept):
                keep_row(c, row, lag, ages[row], source, target)


def keep_last(x: np.ndarray, ages: np.ndarray, sources: np.ndarray, targets: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Write the last rows of x (T, heads, cols) into states out (states, heads, kept · cols): out[targets[t]] takes the
    rows up to t, where targets[t] is not 0. Row t is new row `ages[t]` of its sequence, which had state `sources[t]`
    before these. Raises IndexError for a state outside, ValueError for a row older than the rows before it allow."""
    (count, heads, wide), T = out.shape, len(x)
    if x.shape[1] != heads or wide % x.shape[2]:
        raise ValueError(f"x and out: rows of {x.shape[1:]} do not fill states of {(heads, wide)}")
    places("ages", ages, T, T)
    if (ages > np.arange(T)).any():
        raise ValueError("ages: a row is older than there are rows before it")
    places("sources", sources, T, count)
    places("targets", targets, T, count)
    columns = dict(ages=ages, sources=sources, targets=targets)
    numbers = [as_contiguous(name, column, np.int64) for name, column in columns.items()]
    separate(out, x=x, **columns)
    lies = *heads_of("x", x, T, heads), *heads_of("out", out, count, heads)
    with POOL.lock:
        sizes = T, heads, x.shape[2], wide // x.shape[2]
        launch(threads(), (keep_last_rows, filled(*lies, *map(address, numbers), *sizes), -(-T // LOOKED_AT)))
    return out
