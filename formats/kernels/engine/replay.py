"""Launches recorded once and replayed from native code: no Python, no allocation between them.

A recording keeps the records of its launches as words in which addresses are relative to the memory of a run. It is
replayed by one worker (a group of sentences each, no waiting between stages), or stage by stage by all workers
together. With a clock, they note when each stage began."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

import numpy as np

from formats.host.threads import FIXED
from formats.kernels.engine.compiled import HELPER, Function, Kernel, calling
from formats.kernels.engine.launch import (
    ARENA,
    RECORDING,
    ROOM,
    ROOM_START,
    ROOM_STEP,
    Launch,
    Record,
    address,
    filled,
    words,
)
from formats.kernels.engine.memory import call, longs, record
from formats.kernels.engine.native import njit
from formats.kernels.engine.objects import find_c_function
from formats.kernels.engine.pool import POOL, finish, publish

# words: the records, then the table of stages; added: for base, room, step and each array elsewhere, the indices of the
# words that it is added to, and their count
SCRIPT = np.dtype(words("words count added kinds table stages"))
# a script with its inputs: `given` words, which come first; home is relative to base; arrays: the addresses of arrays
# elsewhere
GROUP = np.dtype(words("script inputs given home arrays"))
# clock: C's clock_gettime, 0 for none; stamps: (seconds, nanoseconds) of every stage's beginning and of the end; along:
# the count of stamps of a group
REPLAY = np.dtype(words("groups memory apart room step clock stamps along"))
ENTRY = 3  # words of a table entry: function, arguments, items
OWN = 3  # kinds of addresses that every script has: base, room, step
MONOTONIC = int(getattr(time, "CLOCK_MONOTONIC", 0))
look = calling(2)  # calls the clock
T = TypeVar("T")
Regions = Sequence[tuple[Record, int]]


def clock() -> int:
    """Return the address of C's clock_gettime; 0 where it is missing."""
    with suppress(OSError, AttributeError):
        return find_c_function("clock_gettime")
    return 0


def nanoseconds(stamps: np.ndarray) -> np.ndarray:
    """Convert stamps of groups, (groups, along), to nanoseconds since the second in which the first group began."""
    return np.asarray((stamps[..., 0] - stamps[0, 0, 0]) * 10**9 + stamps[..., 1])


class Recording:
    """Launches that are recorded, for `workers` workers. memory: the memory that they may write to; elsewhere: arrays
    that stand for those of each group, whose addresses are given when it runs."""

    def __init__(self, memory: np.ndarray, workers: int, elsewhere: Sequence[np.ndarray] = ()) -> None:
        self.memory, self.workers, self.elsewhere, self.scratch = memory, workers, elsewhere, 0
        self.stages: list[Launch] = []
        self.records: list[Record] = []
        self.temporaries: list[np.ndarray] = []  # temporaries of this step
        self.addressed: dict[int, tuple[Record, int]] = {}  # by id: arrays, and their addresses in records
        self.regions: list[tuple[Record, int]] = [(memory, 0)]  # memory and its place, in bytes
        self.ends = [0]  # the end of each step, as a count of stages
        self.end = round_to_lines(memory.nbytes)

    def keep(self, walk: Callable[[], T]) -> T:
        """Return walk(), with launches of this thread recorded. The context is restored however the walk ends."""

        def kept() -> T:
            RECORDING.set(self)
            FIXED.set(self.workers)
            return walk()

        return copy_context().run(kept)

    def reserve(self, size: int) -> tuple[int, int]:
        """Return the placeholders of a worker's room, which is known when it runs."""
        self.scratch = max(self.scratch, size)
        return ROOM_START, ROOM_STEP

    def step(self) -> None:
        """End a step: later launches do not need its temporaries."""
        at = round_to_lines(self.memory.nbytes)
        for array in self.temporaries:
            self.regions.append((array, at))
            at += round_to_lines(array.nbytes)
        self.end, self.temporaries = max(self.end, at), []
        self.ends.append(len(self.stages))

    def script(self) -> "Script":
        """Return the recorded launches, with relative addresses."""
        self.step()
        table = np.array(
            [[kernel.address, address(arguments), items] for kernel, arguments, items in self.stages], np.int64
        ).reshape(-1, ENTRY)
        pieces = [np.frombuffer(array, np.int64) for array in self.records]
        content = np.concatenate([*pieces, table.ravel()])
        places = self.end + np.cumsum([0, *(piece.nbytes for piece in pieces)])[:-1]
        regions = [*self.regions, *zip(self.records, places.tolist(), strict=True)]
        region = relocate(content, [*regions, *((array, 0) for array in self.elsewhere)])
        moved = [np.flatnonzero((region >= 0) & (region < len(regions)))]
        moved += [np.flatnonzero(region == i) for i in range(len(regions), len(regions) + len(self.elsewhere))]
        return Script(
            content,
            moved,
            len(content) - table.size,
            self.ends,
            self.end,
            self.scratch,
            outside(self.addressed.values(), [*regions, *((array, 0) for array in self.elsewhere)]),
        )


def outside(addressed: Collection[tuple[Record, int]], regions: Regions) -> list[Record]:
    """Return the arrays that begin in no region. Regions as for `relocate`."""
    where = relocate(np.array([start for _, start in addressed], np.int64), regions)
    return [array for (array, _), region in zip(addressed, where.tolist(), strict=True) if region < 0]


def round_to_lines(size: int) -> int:
    return -(-size // 64) * 64


def relocate(content: np.ndarray, regions: Regions) -> np.ndarray:
    """Replace words that are addresses in a region by offsets, in place; return the region of each word, -1 for none.
    Regions: memory, offset."""
    starts = np.array([address(array) for array, _ in regions], np.int64)
    sizes = np.array([memoryview(array).nbytes for array, _ in regions], np.int64)  # type: ignore[arg-type]
    order = np.argsort(starts)
    index = np.searchsorted(starts[order], content, "right") - 1
    region = order[np.maximum(index, 0)]
    inside = (index >= 0) & (content < starts[region] + sizes[region])
    content[inside] += np.array([offset for _, offset in regions], np.int64)[region[inside]] - starts[region[inside]]
    return np.where(inside, region, -1)


class Script:
    """Stages for memory that is allocated later: `size` bytes, of which records take those from `home` on; every worker
    also needs `scratch` bytes of room. moved: indices of words to which base is added, then for each array elsewhere
    those to which its address is added. ends: the count of stages before the first step, and after each. read: the
    arrays whose addresses they have (weights, masks, copies); they last as long as this object."""

    def __init__(
        self,
        content: np.ndarray,
        moved: list[np.ndarray],
        table: int,
        ends: list[int],
        home: int,
        scratch: int,
        read: Sequence[Record] = (),
    ) -> None:
        self.ends, self.read = ends, (*read,)
        self.content, self.home, self.size, self.scratch = content, home, home + content.nbytes, scratch
        rooms, steps = np.flatnonzero(content == ROOM_START), np.flatnonzero(content == ROOM_STEP)
        content[rooms], content[steps] = 0, 0
        self.indices = moved[0], rooms, steps, *moved[1:]
        self.added = np.array([(address(index), len(index)) for index in self.indices])
        added = address(self.added), len(self.added)
        self.record = np.array([(address(content), len(content), *added, table, ends[-1])], SCRIPT)


@njit(**HELPER)
def copy_words(source: int, target: int, count: int) -> None:
    """Copy `count` words from one address to another."""
    given, kept = longs(source, count), longs(target, count)
    for i in range(count):
        kept[i] = given[i]


@njit(**HELPER)
def add_each(target: int, places: int, count: int, value: int) -> None:
    """Add a value to the words at these indices."""
    which = longs(places, count)
    for i in range(count):
        longs(target + 8 * which[i], 1)[0] += value


@njit(**HELPER)
def stamp(c: np.record, item: int, stage: int) -> None:
    """Note when a group's stage begins."""
    if c.clock:
        look(c.clock, MONOTONIC, c.stamps + 16 * (item * c.along + stage))


@njit(**HELPER)
def prepare(g: np.record, base: int, room: int, apart: int) -> int:
    """Copy inputs and records to their addresses in memory; return the address of the table of stages."""
    s, home = record(g.script, SCRIPT), base + g.home
    added, arrays = longs(s.added, 2 * s.kinds), longs(g.arrays, s.kinds - OWN)
    copy_words(g.inputs, base, g.given)
    copy_words(s.words, home, s.count)
    add_each(home, added[0], added[1], base)
    add_each(home, added[2], added[3], room)
    add_each(home, added[4], added[5], apart)
    for i in range(OWN, s.kinds):
        add_each(home, added[2 * i], added[2 * i + 1], arrays[i - OWN])
    table: int = home + 8 * s.table
    return table


@Kernel
def replay(item: int, worker: int, arguments: int) -> None:
    """Run all stages of a group, by one worker."""
    c = record(arguments, REPLAY)
    g = record(c.groups + 8 * GROUP_WORDS * item, GROUP)
    base = c.memory + worker * c.apart
    table, stages = prepare(g, base, c.room, c.step), record(g.script, SCRIPT).stages
    for i in range(stages):
        stamp(c, item, i)
        stage = longs(table + 8 * ENTRY * i, ENTRY)
        for each in range(stage[2]):
            call(stage[0], each, worker, stage[1])
    stamp(c, item, stages)


@Function.of(3)
def conduct(state: int, arguments: int, workers: int) -> None:
    """Run the stages of one group, each by all workers."""
    c = record(arguments, REPLAY)
    g = record(c.groups, GROUP)
    table, stages = prepare(g, c.memory, c.room, c.step), record(g.script, SCRIPT).stages
    for i in range(stages):
        stamp(c, 0, i)
        stage = longs(table + 8 * ENTRY * i, ENTRY)
        items = stage[2]
        if items == 1:
            call(stage[0], 0, 0, stage[1])
        elif items:
            publish(state, stage[0], stage[1], items, min(workers, items))
            finish(state)
    stamp(c, 0, stages)


def replay_groups(
    groups: int,
    count: int,
    size: int,
    scratch: int,
    workers: int,
    clock: int = 0,
    stamps: Record | None = None,
    along: int = 0,
) -> None:
    """Run `count` groups, whose records begin at the address `groups`, each with `size` bytes of memory and `scratch`
    bytes of room: one group by all workers together, several by one worker each. The pool is locked."""
    base, room = ARENA.reserve(size, workers if count > 1 else 1), ROOM.reserve(scratch, workers)
    arguments = filled(groups, *base, *room, clock, address(stamps), along)
    if count == 1:
        conduct.call(POOL.state, address(arguments), POOL.ready(workers))
    elif workers > 1:
        POOL.run(replay.address, address(arguments), count, workers)
    else:
        for i in range(count):
            replay.call(i, 0, address(arguments))


GROUP_WORDS = len(GROUP.names or ())
