"""Placement of buffers: one block reused by offset, the largest first, each in the tightest gap.

Greedy by size for offsets (Pisarchyk and Lee 2020, Efficient memory management for deep neural net inference)."""

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple


class Life(NamedTuple):
    """The lifetime of a buffer: from the step that writes it to the last that reads it, both included."""

    size: int
    first: int
    last: int

    def meets(self, other: "Life") -> bool:
        """True if two buffers are live in one step, so that they must not overlap."""
        return self.first <= other.last and other.first <= self.last


class Plan(NamedTuple):
    """Offsets in bytes, one a buffer; below `wall` is the result's own block, the arena is behind it."""

    offsets: tuple[int, ...]
    wall: int
    end: int

    @property
    def arena(self) -> int:
        """The bytes of the arena: all but the result's own block."""
        return self.end - self.wall

    def times(self, count: int) -> "Plan":
        """Return the plan of buffers that are all `count` times as large."""
        return Plan(tuple(at * count for at in self.offsets), self.wall * count, self.end * count)


def gaps(busy: list[tuple[int, int]], wall: int) -> Iterator[tuple[float, float]]:
    """Yield the free intervals between the busy ones, split at the wall; the last has no end."""
    at: float = 0
    for low, high in [*sorted(busy), (inf, inf)]:
        if at < wall < low:
            yield at, wall
            at = wall
        if at < low:
            yield at, low
        at = max(at, high)


def place_buffers(lives: Sequence[Life], result: int | None) -> Plan:
    """Return offsets such that no two live buffers overlap. The result, if there is one, outlives the call and is an
    allocation of its own; until it is written its space is lent to others, and no buffer crosses its end."""
    wall = 0 if result is None else lives[result].size
    offsets = {} if result is None else {result: 0}
    placed = [(*lives[i][1:], at, at + lives[i].size) for i, at in offsets.items()]
    for i in sorted(set(range(len(lives))) - {*offsets}, key=lambda i: (-lives[i].size, i)):
        size, first, last = lives[i]
        busy = [(low, high) for begun, ended, low, high in placed if begun <= last and first <= ended]
        fits = [(end - at, at) for at, end in gaps(busy, wall) if end - at >= size]
        offsets[i] = int(min(fits)[1])
        placed.append((first, last, offsets[i], offsets[i] + size))
    end = max((offsets[i] + lives[i].size for i in offsets), default=0)
    return Plan(tuple(offsets[i] for i in range(len(lives))), wall, end)


def floor(lives: Sequence[Life]) -> int:
    """Return the most bytes live at one step: no plan needs less."""
    return max(sum(a.size for a in lives if a.first <= b.first <= a.last) for b in lives)
