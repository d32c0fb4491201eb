"""The entries of a row that are among its largest, as `keep_top` takes them. A reading may note the entries that it
takes, or take those of another reading; two readings that round in different places then select the same entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Taken: TypeAlias = NDArray[np.bool_]
Readout = TypeVar("Readout")
Notes = TypeVar("Notes", bound="Routes | None")


def largest(by: NDArray[Any], k: int) -> Taken:
    """Return a mask of the k largest of each row; of equal numbers the first are taken. A NaN is not among them unless
    there are fewer numbers than k."""
    order = np.argsort(-by, axis=-1, kind="stable")[..., :k]
    taken = np.zeros(by.shape, bool)
    np.put_along_axis(taken, order, True, -1)
    return taken


def keep_taken(s: NDArray[Any], by: NDArray[Any], chosen: Taken) -> NDArray[Any]:
    """Return s where it is chosen, 0 elsewhere; a row with a NaN in `by` has no largest, and is NaN."""
    values = np.where(chosen, s, s.dtype.type(0))
    lost = np.isnan(by).any(-1)
    if lost.any():
        values[lost] = np.nan
    return values


class Route(NamedTuple):
    """One selection: the numbers that it went by, heads x rows x columns, and the entries that it took."""

    by: NDArray[Any]
    taken: Taken

    def parted(self, other: Route) -> NDArray[np.bool_]:
        """Return a mask of the rows in which another reading took other entries."""
        return np.asarray((self.taken != other.taken).any((0, 2)))

    def gaps(self) -> NDArray[np.float64]:
        """Return, by row, by how much the largest number that was left exceeds the smallest that was taken: 0 where the
        largest are taken."""
        with np.errstate(invalid="ignore"):
            left, least = np.where(self.taken, -np.inf, self.by).max(-1), np.where(self.taken, self.by, np.inf).min(-1)
            apart = np.nan_to_num(left - least, nan=0.0, neginf=0.0, posinf=np.inf)
        gap: NDArray[np.float64] = np.maximum(apart, 0.0).max(0)
        return gap


class Routes:
    """The selections of one reading, one `keep_top` after another, of all rows at once or of some at a time. `given`:
    selections that the reading takes in place of its own, by number."""

    def __init__(self, given: Mapping[int, Taken] | None = None) -> None:
        self.given, self.parts = given or {}, list[list[Route]]()
        self.first = self.next = 0

    def take(self, by: NDArray[Any], k: int) -> Taken:
        """Return the entries that are taken of these rows, which follow the rows read before: the given selection,
        where it has as many rows and k entries of each; else the k largest."""
        if self.next == len(self.parts):
            self.parts.append([])
        before, whole = self.parts[self.next], by.reshape(-1, *by.shape[-2:])
        low, preset = sum(part.by.shape[1] for part in before), self.given.get(self.next)
        told = None if preset is None else preset[:, low : low + whole.shape[1]]
        fits = told is not None and told.shape == whole.shape and bool((told.sum(-1) == k).all())
        taken = told if told is not None and fits else largest(whole, k)
        before.append(Route(whole, taken))
        self.next += 1
        return taken.reshape(by.shape)

    @property
    def steers(self) -> bool:
        """True if a reading may take other entries than its own largest."""
        return bool(self.given)

    def go_back(self) -> None:
        """Return to the first selection of this pass: the next calls bring more rows of the same values."""
        self.next = self.first

    def go_on(self) -> None:
        """Begin a new pass: the next calls bring values that were not read before."""
        self.first = self.next

    @property
    def found(self) -> list[Route]:
        """The selections, each of all rows."""
        return [Route(*(np.concatenate(arrays, 1) for arrays in zip(*parts, strict=True))) for parts in self.parts]


LISTENING: ContextVar[Routes | None] = ContextVar("LISTENING", default=None)


@contextmanager
def noting(routes: Notes) -> Iterator[Notes]:
    """Let this thread's readings note their selections in `routes`, or take the selections that it is given; None does
    neither."""
    before = LISTENING.set(routes)
    try:
        yield routes
    finally:
        LISTENING.reset(before)


def noted(give: Callable[[], Readout], given: Mapping[int, Taken] | None = None) -> tuple[Readout, list[Route]]:
    """Return the result of a reading, and the selections that it made."""
    with noting(Routes(given)) as routes:
        readout = give()
    return readout, routes.found


def take_top(by: NDArray[Any], k: int) -> Taken:
    """Return a mask of the k largest of each row, or of the given entries that are taken in their place."""
    routes = LISTENING.get()
    return largest(by, k) if routes is None else routes.take(by, k)
