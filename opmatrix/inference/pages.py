"""Pages of caches: the rows of sequences as values, and the users of each page; and states of sequences.

A page knows the page before it, so sequences share a common beginning. The rows of a sequence are given by its length
and last page alone. A call writes to pages that no sequence holds, or behind the rows of all sequences, until lengths
and last pages are replaced, all at once. If rows see only a window, the pages wholly behind it are given back: the
first page that is still read then has none before it."""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.signature import Port

NO_PAGE = -1  # the page before the first
EACH_STATE = 8  # rows before the last one after each of which a state is kept
STATE_GAP = 64  # rows between the states that are kept further back
K = TypeVar("K")


class Snapshot(NamedTuple):
    """The state of a sequence after its first `length` rows: its number, 0 without rows."""

    length: int = 0
    state: int = 0


class Past(NamedTuple):
    """States that a sequence keeps, that after its last row last, and the tokens of its last rows, which are passed
    again from a state to reach a row between two."""

    states: tuple[Snapshot, ...] = ()
    tokens: tuple[int, ...] = ()

    def first(self, length: int, gone: int) -> "Past":
        """Return what is kept of the first `length` rows, which `gone` rows follow."""
        states = tuple(snapshot for snapshot in self.states if snapshot.length <= length)
        return Past(states, self.tokens[: max(0, len(self.tokens) - gone)])

    def latest(self, length: int) -> Snapshot:
        """Return the last state after at most `length` rows; that without rows if none is kept."""
        return max((snapshot for snapshot in self.states if snapshot.length <= length), default=Snapshot())

    def grown(self, states: Iterable[Snapshot], tokens: Iterable[int], length: int, rewinds: int) -> "Past":
        """Return what is kept once a sequence has `length` rows, of which the last have these states and tokens."""
        lengths, since = {*kept_lengths(0, length, rewinds)}, length - first_passed_again(length, rewinds)
        known = tuple(snapshot for snapshot in (*self.states, *states) if snapshot.length in lengths)
        return Past(known, (*self.tokens, *tokens)[-since:] if since else ())


def first_passed_again(length: int, rewinds: int) -> int:
    """Return the row from which a sequence of `length` rows keeps tokens, so that it can go back by `rewinds` rows: one
    after which a state is kept. It is `length` where every state in reach is kept."""
    return length if rewinds <= EACH_STATE else max(0, length - rewinds) // STATE_GAP * STATE_GAP


def kept_lengths(before: int, length: int, rewinds: int) -> list[int]:
    """Return the numbers of rows, ascending and above `before`, after which a sequence of `length` rows keeps a state:
    each of the last, and one of STATE_GAP further back."""
    near = max(before, length - min(rewinds, EACH_STATE) - 1)
    far = max(before, first_passed_again(length, rewinds) - 1)
    return [*range((far // STATE_GAP + 1) * STATE_GAP, near + 1, STATE_GAP), *range(near + 1, length + 1)]


def count_states(rewinds: int) -> int:
    """Return the most states of a sequence that may go back by `rewinds` rows."""
    far = rewinds // STATE_GAP + 2 if rewinds > EACH_STATE else 0
    return min(rewinds, EACH_STATE) + 1 + far


class Holding(NamedTuple):
    """The number of rows of a sequence, the page of its last row, and what it keeps of its past for its states."""

    length: int = 0
    page: int = NO_PAGE
    past: Past = Past()

    def first(self, length: int, page: int) -> "Holding":
        """Return the first `length` rows, which end in this page."""
        return Holding(length, page, self.past.first(length, self.length - length) if length else Past())


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


class StatePool:
    """States of sequences: arrays (states, heads, columns) by name. State 0 is that of a sequence without rows, zeros;
    any other is written once, before the call that holds it is committed, so sequences share it after a fork."""

    def __init__(self, ports: Sequence[Port], exact: bool) -> None:
        kind = np.float64 if exact else np.float32
        self.arrays = {port.name: np.zeros((1, port.heads, port.columns), kind) for port in ports}

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values()), ()))

    @property
    def each(self) -> int:
        """The bytes of one state of a sequence."""
        return sum(array[:1].nbytes for array in self.arrays.values())

    def take(self, holdings: Iterable[Holding], count: int) -> list[int]:
        """Return `count` states that no sequence holds. Where there are fewer, the arrays are replaced, all at once, by
        larger ones with the same numbers."""
        held = {0, *(snapshot.state for rows in holdings for snapshot in rows.past.states)}
        if (needed := len(held) + count) > (has := len(self)):
            size = max(needed, has + has // 4)
            larger = {name: np.zeros((size, *array.shape[1:]), array.dtype) for name, array in self.arrays.items()}
            for name, array in self.arrays.items():
                larger[name][:has] = array
            self.arrays = larger
        return [*islice((state for state in range(len(self)) if state not in held), count)]


def pages_of(rows: int, side: int) -> int:
    """Return the number of pages of `side` rows each that these rows take."""
    return -(-rows // side)
