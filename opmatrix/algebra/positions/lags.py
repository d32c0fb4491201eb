"""Distances between a row and an earlier row of its sequence that is read in its place."""

from __future__ import annotations

from opmatrix.algebra.attributes import whole_of

LARGEST_LAG = 16  # a kernel reads at most so many rows back


class Lag(int):
    """A number of rows, 1 to LARGEST_LAG. It is no size: templates of other lags are other templates."""


LAGS = tuple(Lag(k) for k in range(1, LARGEST_LAG + 1))


def lag_of(given: object, where: str) -> object:
    """Return a whole number as a lag; a stand-in for one in a law stays. Raises ValueError for a number outside 1 to
    LARGEST_LAG, TypeError for anything else."""
    rows = whole_of(given, where, 1)
    if not isinstance(rows, int):
        return rows
    if rows > LARGEST_LAG:
        raise ValueError(f"{where} is {rows}: it must be a whole number from 1 to {LARGEST_LAG}")
    return Lag(rows)
