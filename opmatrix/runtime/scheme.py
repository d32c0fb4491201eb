"""The way a batch runs: split into groups, each computed from end to end by one worker, or as a whole by all workers
together, stage by stage; and the predicted time of a machine's kernels in each way."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from formats.host.host import caches
from opmatrix.algebra.batch.extents import Extents

if TYPE_CHECKING:
    from formats.machine.model import Machine

GROUP_ROWS = 256  # rows of a group, about: weights are read once for each, so
# 128 took 1.03 to 1.07 times as long, and with 512 workers
# end at unequal times
READING = 8  # reading all weights from memory takes as long as 8 rows
WAITING = 1.1  # time of a stage by all workers together, relative to alone
Offsets = NDArray[np.int64]


class Group(NamedTuple):
    """Consecutive sentences, and their rows."""

    first: int
    last: int
    low: int
    high: int


def reading_rows(held: float) -> float:
    """Return the number of rows that take as long as reading this many bytes of weights from memory: few if the last
    cache holds them."""
    return READING * share_missed(held)


def make_groups(starts: Offsets, workers: int, most: int = GROUP_ROWS, reading: float = READING) -> list[Group]:
    """Return the groups of a batch, about `most` rows each: one group if all workers are faster on it together. Weights
    are read once for each group, which takes as long as `reading` rows, times the number of workers that read at
    once."""
    rows, sentences = int(starts[-1]), len(starts) - 1
    whole = [Group(0, sentences, 0, rows)]
    if sentences < 2:
        return whole
    count = workers * -(-rows // (workers * most))
    wanted = rows * np.arange(1, count) / count
    cuts = sorted({0, sentences, *(int(np.abs(starts - row).argmin()) for row in wanted)})
    parts = [Group(a, b, int(starts[a]), int(starts[b])) for a, b in pairwise(cuts)]
    if workers == 1:
        return parts
    most_rows = max(
        sum(part.high - part.low + workers * reading for part in assigned) for assigned in assign_groups(parts, workers)
    )
    return parts if most_rows <= WAITING * rows / workers + reading else whole


def assign_groups(parts: Sequence[Group], workers: int) -> list[list[Group]]:
    """Return the groups of each worker; a worker takes the next group when it is done."""
    assigned: list[list[Group]] = [[] for _ in range(workers)]
    ends = [0] * workers
    for part in parts:
        assigned[at := ends.index(min(ends))].append(part)
        ends[at] += part.high - part.low + READING
    return assigned


def share_missed(held: float) -> float:
    """Return the share of this many bytes, read again and again, that the last cache does not hold, as it has no room
    for them."""
    return min(1.0, (held / caches()[-1]) ** 2)


@dataclass(frozen=True)
class Running:
    """A machine's prices for a batch that runs in one way (formats.machine.model.WAYS). Sizes are of a group (`group`),
    and are priced times the groups of the worker that has the most; `lengths` are the sentences of these. A kernel that
    is never recorded is called from Python, and finds its operands outside the caches. `missed`: the share of a weight
    that comes from memory, and not from the caches that all threads share."""

    machine: "Machine"
    way: str
    times: int = 1
    lengths: tuple[int, ...] = ()
    missed: float = 1.0

    @classmethod
    def of(cls, machine: Any, starts: Offsets, held: float = inf) -> Any:
        """Return the prices for sentences that start at these rows, with `held` bytes read from one run to the next. A
        machine without known ways is returned unchanged."""
        if not getattr(machine, "ways", None):
            return machine
        parts, missed = make_groups(starts, machine.threads, reading=reading_rows(held)), share_missed(held)
        if len(parts) == 1:
            return cls(machine, "together", missed=missed)
        busiest = max(assign_groups(parts, machine.threads), key=lambda own: sum(part.high - part.low for part in own))
        lengths = tuple(int(length) for part in busiest for length in np.diff(starts[part.first : part.last + 1]))
        return cls(machine, "apart", len(busiest), lengths, missed)

    def group(self, extents: Extents) -> Extents:
        """Return the mean extents of a group, from those of the whole batch."""
        return extents.mean(self.lengths, self.times) if self.lengths else extents

    @property
    def start(self) -> float:
        """The seconds of a run besides its kernels."""
        return float(self.machine.opened(self.way).start)

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Return the predicted seconds of a kernel for all groups, its sizes those of one. A kernel that never runs
        this way is priced as a call from Python."""
        from formats.machine.features import FAR, even, weigh_format  # imported here: running programs needs no sympy

        price = self.machine.catalogue[kernel]
        rates = self.machine.holding(kernel, self.way)
        if kernel not in rates.coefficients:
            calls = self.times * (self.machine.threads if self.lengths else 1)  # one for each group, all workers
            return calls * float(self.machine.seconds(kernel, **sizes)) + (0.0 if price.rides else self.machine.cold)
        if name := price.product:
            sizes = sizes | {FAR: self.missed * weigh_format(name, sizes)[0]}
        if self.way == "together":
            sizes = even(price, sizes, self.machine.threads)
        return self.times * float(rates.seconds(kernel, **sizes))
