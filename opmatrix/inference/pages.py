"""Pages of caches: what sequences hold as values, and who uses which page.

A page knows the page before it, so sequences share those that they begin with. What sequences hold is told by their
lengths and last pages alone: what a call writes, it writes to pages that nobody holds, or behind the rows that anybody
has, until these are replaced, all at once. Where rows see a window alone, the pages wholly behind it are given back:
the first page that is still read then has none before it."""
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

NO_PAGE = -1                                                # the page before the first
K = TypeVar("K")


class Holding(NamedTuple):
    """How many rows a sequence has, and the page that the last of them is in."""
    length: int = 0
    page: int = NO_PAGE


class State(NamedTuple, Generic[K]):
    """What a session holds: each sequence's rows, and how many sequences there ever were. It is never changed."""
    sequences: Mapping[K, Holding]
    made: int = 0


class Usage:
    """How many use each page: sequences that end in it, and pages that follow it. Pages that nobody uses are free, and
    the first of them is taken first: so it follows from what sequences hold, and from `before`, of each page the page
    before it. `of`: the state that it is of, none while it is changed."""

    def __init__(self, before: NDArray[np.int64], ends: Iterable[int]) -> None:
        self.before, self.users = before, [0] * len(before)
        self.of: State[Any] | None = None
        for page in ends:
            while page != NO_PAGE:
                self.users[page] += 1
                page = int(before[page]) if self.users[page] == 1 else NO_PAGE
        self.free = [page for page, users in enumerate(self.users) if not users]        # ascending: a heap

    def share(self, page: int) -> None:
        """Another sequence ends in a page."""
        if page != NO_PAGE: self.users[page] += 1

    def add(self, before: int) -> int:
        """Another page for a sequence: what ended in its last page is now the page that follows."""
        page = heappop(self.free)
        self.before[page], self.users[page] = before, 1
        return page

    def drop(self, page: int) -> int:
        """A sequence ends in the page before, which is given; a page that nobody needs is free."""
        before = int(self.before[page])
        self.users[page] -= 1
        if not self.users[page]: heappush(self.free, page)
        else: self.share(before)                            # the page still follows it, and so does the sequence
        return before

    def cut(self, page: int, pages: int) -> int:
        """A sequence gives back so many pages; where it ends then."""
        for _ in range(pages):
            if page == NO_PAGE: break                       # pages before it were given back
            page = self.drop(page)
        return page

    def forget(self, page: int) -> None:
        """Give back the pages before one that nobody else needs: no sequence that has this page reads them any more."""
        before, self.before[page] = int(self.before[page]), NO_PAGE
        while before != NO_PAGE:
            self.users[before] -= 1
            if self.users[before]: break
            heappush(self.free, before)
            before = int(self.before[before])


def pages_of(rows: int, side: int) -> int:
    """Pages of so many rows each that so many rows take."""
    return -(-rows // side)
