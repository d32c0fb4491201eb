"""Which entries of a row are among its largest, as `keep_top` takes them. What a reading took may be noted, or be taken
by another one, too: two that round in different places then go the same ways."""
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
    """Where the k largest of each row are; of equal ones the first are taken. A NaN is none of them unless there are
    fewer numbers than k."""
    order = np.argsort(-by, axis=-1, kind="stable")[..., :k]
    found = np.zeros(by.shape, bool)
    np.put_along_axis(found, order, True, -1)
    return found

def keep_taken(s: NDArray[Any], by: NDArray[Any], chosen: Taken) -> NDArray[Any]:
    """s where it is chosen, 0 elsewhere; a row with a NaN in `by` has no largest, and is NaN."""
    found = np.where(chosen, s, s.dtype.type(0))
    lost = np.isnan(by).any(-1)
    if lost.any(): found[lost] = np.nan
    return found


class Route(NamedTuple):
    """What was gone by, heads x rows x columns, and what was taken."""
    by: NDArray[Any]
    taken: Taken

    def parted(self, other: Route) -> NDArray[np.bool_]:
        """The rows in which another reading took others."""
        return np.asarray((self.taken != other.taken).any((0, 2)))

    def gaps(self) -> NDArray[np.float64]:
        """By row, how much higher a number lies that was left than one that was taken: 0 where the largest are
        taken."""
        with np.errstate(invalid="ignore"):
            left, least = np.where(self.taken, -np.inf, self.by).max(-1), np.where(self.taken, self.by, np.inf).min(-1)
            apart = np.nan_to_num(left - least, nan=0.0, neginf=0.0, posinf=np.inf)
        found: NDArray[np.float64] = np.maximum(apart, 0.0).max(0)
        return found


class Routes:
    """What one reading takes, one `keep_top` after another, of all rows at once or of some at a time. `given`: what it
    takes instead of its own, by number."""

    def __init__(self, given: Mapping[int, Taken] | None = None) -> None:
        self.given, self.parts = given or {}, list[list[Route]]()
        self.first = self.next = 0

    def take(self, by: NDArray[Any], k: int) -> Taken:
        """What is taken of these rows, which follow those that were there before: what is given, where it is of so many
        rows, k of each."""
        if self.next == len(self.parts): self.parts.append([])
        before, whole = self.parts[self.next], by.reshape(-1, *by.shape[-2:])
        low, given = sum(part.by.shape[1] for part in before), self.given.get(self.next)
        told = None if given is None else given[:, low:low + whole.shape[1]]
        fits = told is not None and told.shape == whole.shape and bool((told.sum(-1) == k).all())
        taken = told if told is not None and fits else largest(whole, k)
        before.append(Route(whole, taken))
        self.next += 1
        return taken.reshape(by.shape)

    @property
    def steers(self) -> bool:
        """Tell whether a reading may take other entries than its own largest."""
        return bool(self.given)

    def go_back(self) -> None:
        """What comes next are more rows of what was read last."""
        self.next = self.first

    def go_on(self) -> None:
        """What comes next was not read before."""
        self.first = self.next

    @property
    def found(self) -> list[Route]:
        """Each, of all rows."""
        return [Route(*(np.concatenate(each, 1) for each in zip(*parts, strict=True))) for parts in self.parts]


LISTENING: ContextVar[Routes | None] = ContextVar("LISTENING", default=None)

@contextmanager
def noting(routes: Notes) -> Iterator[Notes]:
    """What this thread reads meanwhile notes what it takes, or takes what it is given; of None, neither."""
    before = LISTENING.set(routes)
    try: yield routes
    finally: LISTENING.reset(before)

def noted(give: Callable[[], Readout], given: Mapping[int, Taken] | None = None) -> tuple[Readout, list[Route]]:
    """What a reading gives, and what it takes on the way."""
    with noting(Routes(given)) as routes: found = give()
    return found, routes.found

def take_top(by: NDArray[Any], k: int) -> Taken:
    """Where the k largest of each row are, or what is given to be taken for them."""
    routes = LISTENING.get()
    return largest(by, k) if routes is None else routes.take(by, k)
