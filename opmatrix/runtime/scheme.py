"""How a batch runs: cut into groups, each computed from end to end by one worker, or as a whole by all workers
together, stage by stage; and what a machine's kernels then take."""
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

GROUP_ROWS = 256                                            # rows of a group, about: weights are read once for each, so
                                                            # 128 took
                                                            # 1.03 to 1.07 times as long, and 512 leave workers unequal
                                                            # ends
READING = 8                                                 # rows that reading all weights from memory takes as long as
WAITING = 1.1                                               # times as long as alone where all work together
Offsets = NDArray[np.int64]


class Group(NamedTuple):
    """Consecutive sentences, and their rows."""
    first: int
    last: int
    low: int
    high: int


def reading_rows(held: float) -> float:
    """Rows that reading so many bytes of weights takes as long as: none where the last cache keeps them."""
    return READING * share_missed(held)


def make_groups(starts: Offsets, workers: int, most: int = GROUP_ROWS, reading: float = READING) -> list[Group]:
    """The groups of a batch, about `most` rows each: one where all workers are quicker on it together. Weights are read
    once for each group, which takes as long as so many rows do, and longer by as many as read them at once."""
    rows, sentences = int(starts[-1]), len(starts) - 1
    whole = [Group(0, sentences, 0, rows)]
    if sentences < 2: return whole
    count = workers * -(-rows // (workers * most))
    wanted = rows * np.arange(1, count) / count
    cuts = sorted({0, sentences, *(int(np.abs(starts - each).argmin()) for each in wanted)})
    parts = [Group(a, b, int(starts[a]), int(starts[b])) for a, b in pairwise(cuts)]
    if workers == 1: return parts
    most_rows = max(sum(part.high - part.low + workers * reading for part in each)
                    for each in assign_groups(parts, workers))
    return parts if most_rows <= WAITING * rows / workers + reading else whole


def assign_groups(parts: Sequence[Group], workers: int) -> list[list[Group]]:
    """The groups of each worker, who takes the next one whenever it is done."""
    own: list[list[Group]] = [[] for _ in range(workers)]
    ends = [0] * workers
    for part in parts:
        own[at := ends.index(min(ends))].append(part)
        ends[at] += part.high - part.low + READING
    return own


def share_missed(held: float) -> float:
    """The share of so many bytes, read again and again, that the last cache does not keep: all that it has no room
    for."""
    return min(1.0, (held / caches()[-1]) ** 2)


@dataclass(frozen=True)
class Running:
    """A machine's prices where a batch runs in one way (formats.machine.model.WAYS): what is asked is of a group
    (`group`), and is priced times the groups of the worker that has the most, `lengths` the sentences of these. A
    kernel that is never recorded is called from Python, and finds what it needs out of the caches. `missed`: the share
    of a weight that comes from memory, and not from the caches that all threads share."""

    machine: "Machine"
    way: str
    times: int = 1
    lengths: tuple[int, ...] = ()
    missed: float = 1.0

    @classmethod
    def of(cls, machine: Any, starts: Offsets, held: float = inf) -> Any:
        """For sentences that start at these rows, where so many bytes are read from one run to the next. A machine
        whose ways are not known stays as it is."""
        if not getattr(machine, "ways", None): return machine
        parts, missed = make_groups(starts, machine.threads, reading=reading_rows(held)), share_missed(held)
        if len(parts) == 1: return cls(machine, "together", missed=missed)
        busiest = max(assign_groups(parts, machine.threads), key=lambda own: sum(part.high - part.low for part in own))
        lengths = tuple(int(each) for part in busiest for each in np.diff(starts[part.first:part.last + 1]))
        return cls(machine, "apart", len(busiest), lengths, missed)

    def group(self, extents: Extents) -> Extents:
        """The extents of a group, on average, where these are of the whole batch."""
        return extents.mean(self.lengths, self.times) if self.lengths else extents

    @property
    def start(self) -> float:
        """Seconds of a run beside its kernels."""
        return float(self.machine.opened(self.way).start)

    def seconds(self, kernel: str, **sizes: float) -> float:
        """Predicted seconds of a kernel for all groups, its sizes those of one. What never runs so is priced as a call
        from Python."""
        from formats.machine.features import FAR, even, weigh_format  # with sympy, which nothing that only runs needs
        price = self.machine.catalogue[kernel]
        rates = self.machine.holding(kernel, self.way)
        if kernel not in rates.coefficients:
            calls = self.times * (self.machine.threads if self.lengths else 1)        # for every group of every worker
            return calls * float(self.machine.seconds(kernel,
                                                      **sizes)) + (0.0 if price.rides else self.machine.cold)
        if name := price.product: sizes = sizes | {FAR: self.missed * weigh_format(name, sizes)[0]}
        if self.way == "together": sizes = even(price, sizes, self.machine.threads)
        return self.times * float(rates.seconds(kernel, **sizes))
