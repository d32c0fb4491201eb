"""Pages of caches: the rows of sequences as values, and the users of each page.

A page knows the page before it, so sequences share a common beginning. The rows of a sequence are given by its length
and last page alone. A call writes to pages that no sequence holds, or behind the rows of all sequences, until lengths
and last pages are replaced, all at once. If rows see only a window, the pages wholly behind it are given back: the
first page that is still read then has none before it."""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

NO_PAGE = -1  # the page before the first
K = TypeVar("K")


class Holding(NamedTuple):
    """The number of rows of a sequence, and the page of its last row."""

    length: int = 0
    page: int = NO_PAGE


class State(NamedTuple, Generic[K]):
    """The state of a session: each sequence's rows, and the number of sequences that were ever made. It is never
    changed."""

    sequences: Mapping[K, Holding]
    made: int = 0


class Usage:
    """The number of users of each page: sequences that end in it, and pages that follow it. Pages without users are
    free, and the first of them is taken first. So the usage follows from the rows of the sequences and from `before`,
    the page before each page. `of`: the state that it belongs to, None while it is changed."""

    def __init__(self, before: NDArray[np.int64], ends: Iterable[int]) -> None:
        self.before, self.users = before, [0] * len(before)
        self.of: State[Any] | None = None
        for page in ends:
            while page != NO_PAGE:
                self.users[page] += 1
                page = int(before[page]) if self.users[page] == 1 else NO_PAGE
        self.free = [page for page, users in enumerate(self.users) if not users]  # ascending: a heap

    def share(self, page: int) -> None:
        """Add a sequence that ends in a page."""
        if page != NO_PAGE:
            self.users[page] += 1

    def add(self, before: int) -> int:
        """Take a free page for a sequence: the user of its last page is now this page."""
        page = heappop(self.free)
        self.before[page], self.users[page] = before, 1
        return page

    def drop(self, page: int) -> int:
        """Let a sequence end in the page before, which is returned; a page without users becomes free."""
        before = int(self.before[page])
        self.users[page] -= 1
        if not self.users[page]:
            heappush(self.free, page)
        else:
            self.share(before)  # the page still follows it, and so does the sequence
        return before

    def cut(self, page: int, pages: int) -> int:
        """Give back the last `pages` pages of a sequence; return the page that it ends in then."""
        for _ in range(pages):
            if page == NO_PAGE:
                break  # pages before it were given back
            page = self.drop(page)
        return page

    def forget(self, page: int) -> None:
        """Give back the pages before this one that have no other user: no sequence that has this page reads them any
        more."""
        before, self.before[page] = int(self.before[page]), NO_PAGE
        while before != NO_PAGE:
            self.users[before] -= 1
            if self.users[before]:
                break
            heappush(self.free, before)
            before = int(self.before[before])


def pages_of(rows: int, side: int) -> int:
    """Return the number of pages of `side` rows each that these rows take."""
    return -(-rows // side)
