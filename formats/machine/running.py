"""The times of kernels inside a run: launches recorded one after another and replayed with a clock, as programs are
(formats/kernels/engine/replay.py), so no Python is in their times. As in a program, the input of a kernel was just
written by another one, on whichever core. A weight comes from memory, as cases of one weight are as far from one
another as they can be; it is timed from the caches, too."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import median

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats, room
from formats.host.host import uncached
from formats.host.quiet import MIN_RUNS, SIGNS, width
from formats.host.threads import threads

AGREE = 0.1  # largest relative difference of two timings that agree
TURNS, MOST_DOUBTFUL = 4, 64  # turns of timing again; most cases of a turn
SCRIPT_CASES = 128  # most cases of a script: an interrupt waits for its end
LEAST_ROUNDS, MAX_ROUNDS = 3, 16
COLD_RUNS = 15
Launching = Callable[[], object]
Case = tuple[str, dict[str, float], Launching]
Measurements = list[tuple[str, dict[str, float], float]]
Doubtful = Callable[[Measurements], list[int]]  # indices of measurements that others contradict
Buffer = NDArray[np.uint8]
Words = NDArray[np.int64]


class Inside:
    """Cases recorded for one way of running them: `apart`, where every worker does all of them, or together. They read
    and write `memory`, of which each worker has a copy. `writers`: for each case a call before it that is not timed, or
    None."""

    def __init__(
        self, cases: Sequence[Case], memory: Buffer, apart: bool, writers: Sequence[Launching | None] = ()
    ) -> None:
        from formats.kernels.engine.replay import Recording

        self.workers, self.apart = threads(), apart
        recording, steps = Recording(memory, 1 if apart else self.workers), list[Launching]()
        for writer, (_, _, call) in zip(writers or [None] * len(cases), cases, strict=True):
            steps += filter(None, (writer, call))

        def walk() -> None:
            """Run the steps in order, with a mark of the recording after each."""
            for step in steps:
                step()
                recording.step()

        recording.keep(walk)
        self.given, self.script = memory.view(np.int64), recording.script()
        timed, ends = {id(call) for _, _, call in cases}, np.array(self.script.ends[: len(steps) + 1])
        of_cases = [i for i, step in enumerate(steps) if id(step) in timed]
        self.starts, self.ends = ends[of_cases], ends[np.add(of_cases, 1)]

    def run(self, fill: bool = True) -> Words:
        """Return nanoseconds of each case, run once: the mean of the workers. Unless `fill`, the input is in the
        workers' memory from the run before."""
        from formats.kernels.engine.launch import ARENA, ROOM, address
        from formats.kernels.engine.pool import POOL
        from formats.kernels.engine.replay import GROUP, REPLAY, clock, conduct, nanoseconds, replay

        groups, script = self.workers if self.apart else 1, self.script
        stages = int(script.ends[-1])
        inputs = address(self.given), fill * len(self.given)
        table = np.array([(address(script.record), *inputs, script.home, 0)] * groups, GROUP)
        stamps = np.zeros((groups, stages + 1, 2), np.int64)
        with POOL.lock:
            reserved = *ARENA.reserve(script.size, groups), *ROOM.reserve(script.scratch, self.workers)
            arguments = np.array([(address(table), *reserved, clock(), address(stamps), stages + 1)], REPLAY)
            if self.apart:
                POOL.run(replay.address, address(arguments), groups, self.workers)
            else:
                conduct.call(POOL.state, address(arguments), POOL.ready(self.workers))
        since: Words = nanoseconds(stamps)
        return np.asarray((since[:, self.ends] - since[:, self.starts]).mean(0))


def inside(
    cases: Sequence[Case],
    memory: Buffer,
    apart: bool,
    seconds: float,
    progress: Callable[..., None] = lambda *_: None,
    reads: Sequence[int] = (),
    doubtful: Doubtful = lambda rows: [],
) -> Measurements:
    """Return seconds of each case (`typical`) over all rounds, three at least. They are scaled by the ratio of the time
    of full scripts to the sum of their cases, as rounds are skewed: programs are judged by medians of full runs, in
    which some step always takes longer. Cases of one weight come in one script as rarely as possible; cases with the
    same call follow one another. No round begins after `seconds`, or after twice as many while rounds are disturbed.
    `reads`: the count of numbers of the memory that each case reads, and another kernel writes before. Cases that are
    `doubtful` are timed again, with all of their script, as in another one weights would come from the caches."""
    from formats.kernels.engine.compiled import walk_compiled
    from formats.kernels.engine.pool import end_workers, launch_items, worker_loop
    from formats.kernels.engine.replay import conduct, replay

    order = spread_weights(cases)
    parts = [order[at : at + SCRIPT_CASES] for at in range(0, len(order), SCRIPT_CASES)]
    writers = [
        write_anew(memory, count, int(sizes.get("T", 1)))
        for count, (_, sizes, _) in zip(reads or [0] * len(cases), cases, strict=True)
    ]
    primed = [[0, *part] for part in parts]
    scripts = walk_compiled(
        lambda: [Inside([cases[i] for i in part], memory, apart, [writers[i] for i in part]) for part in primed],
        replay,
        conduct,
        launch_items,
        worker_loop,
        end_workers,
        progress=lambda name, _: progress(f"compiled {name}"),
    )
    rounds = Rounds([*zip(parts, scripts, strict=True)])
    end = time.perf_counter() + seconds
    for done in range(MAX_ROUNDS):
        if done >= LEAST_ROUNDS and time.perf_counter() > end + seconds * rounds.disturbed:
            break
        rounds.run(range(len(parts)))
        progress(done + 2, MAX_ROUNDS + 1)
    skew, middles = rounds.skew, rounds.middles()

    def again(some: Sequence[int]) -> list[float]:
        """Measure some cases again from the start; return seconds of each, corrected by `skew`."""
        rounds.forget()
        chosen = [at for at, part in enumerate(parts) if not set(part).isdisjoint(some)]
        for _ in range(LEAST_ROUNDS):
            rounds.run(chosen)
        return [skew * rounds.middles()[i] for i in some]

    rows = [(kernel, sizes, skew * middles[i]) for i, (kernel, sizes, _) in enumerate(cases)]
    return settle_timings(rows, doubtful, again)


class Rounds:
    """Seconds of cases, round by round, in scripts that are given with the indices of their cases; for each round also
    those of full scripts. A round before the first is not counted: it fills the memory."""

    def __init__(self, scripts: Sequence[tuple[Sequence[int], Inside]]) -> None:
        self.scripts = scripts
        for _, script in scripts:
            script.run(fill=True)
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.taken: dict[int, list[float]] = {}
        self.wholes: dict[int, list[float]] = {}

    def run(self, some: Iterable[int]) -> None:
        """Run a round of these scripts."""
        for at in some:
            part, script = self.scripts[at]
            _, *every = 1e-9 * script.run(fill=False)  # the first case runs with cold caches
            for i, seconds in zip(part, every, strict=True):
                self.taken.setdefault(i, []).append(float(seconds))
            self.wholes.setdefault(at, []).append(float(sum(every)))

    def middles(self) -> dict[int, float]:
        """Return the typical seconds of each case."""
        return {i: typical(seconds) for i, seconds in self.taken.items()}

    @property
    def disturbed(self) -> bool:
        """True if timings of most cases vary as on a busy machine."""
        wide = [is_wide(seconds) for seconds in self.taken.values()]
        return 2 * sum(wide) > len(wide)

    @property
    def skew(self) -> float:
        """The medians of full scripts over the sums of their cases; 1 where rounds are disturbed, as a full round is
        never spared."""
        return 1.0 if self.disturbed else sum(map(median, self.wholes.values())) / sum(self.middles().values())


# ---- disturbances


def is_wide(taken: Sequence[float]) -> bool:
    """True if repeated timings vary as on a busy machine (formats/host/quiet.py)."""
    return len(taken) >= MIN_RUNS and width(taken) > SIGNS["spread"].most


def typical(taken: Sequence[float]) -> float:
    """Return the typical seconds of repeated timings: the median; where they vary as on a busy machine the middle of
    the nearest quarter of them (a narrow shorth: Andrews et al. 1972): undisturbed timings agree, and disturbed ones
    scatter above."""
    ordered = sorted(taken)
    if not is_wide(ordered):
        return median(ordered)
    count = max(2, -(-len(ordered) // 4))
    first = min(range(len(ordered) - count + 1), key=lambda at: ordered[at + count - 1] / ordered[at])
    return median(ordered[first : first + count])


def settle_timings(
    rows: Measurements, doubtful: Doubtful, again: Callable[[Sequence[int]], list[float]]
) -> Measurements:
    """Return the measurements, with the `doubtful` ones timed again until two timings agree. A timing that repeats is
    right, whatever its neighbours are, and any other was a disturbance. Where none agree the least counts, as
    disturbances only ever add time."""
    settled, timings = [*rows], dict[int, list[float]]()
    for _ in range(TURNS):
        some = [i for i in doubtful(settled) if find_repeated(timings.get(i, ())) is None][:MOST_DOUBTFUL]
        if not some:
            break
        for i, seconds in zip(some, again(some), strict=True):
            every = timings.setdefault(i, [rows[i][2]])
            every.append(seconds)
            settled[i] = (*rows[i][:2], find_repeated(every) or min(every))
    return settled


def find_repeated(timings: Sequence[float]) -> float | None:
    """Return the lower of two timings that agree, the least such; None where none do."""
    ordered = sorted(timings)
    return next((low for low, high in pairwise(ordered) if high <= (1 + AGREE) * low), None)


def spread_weights(cases: Sequence[Case]) -> list[int]:
    """Return a random order of cases, but the first of every weight before the second of any, and cases of one call
    behind one another."""
    calls: dict[int, list[int]] = {}
    for i, (_, _, call) in enumerate(cases):
        calls.setdefault(id(call), []).append(i)
    seen: dict[object, int] = {}
    turns = []
    for same in calls.values():
        kernel, sizes, _ = cases[same[0]]
        weight = kernel, *((name, size) for name, size in sizes.items() if name != "T")
        turns.append(seen.setdefault(weight, 0))
        seen[weight] += 1
    drawn = np.random.default_rng(1).permutation(len(turns))
    units = [*calls.values()]
    return [i for at in sorted(drawn, key=turns.__getitem__) for i in units[at]]


def write_anew(memory: Buffer, count: int, rows: int) -> Launching | None:
    """Return a kernel that rewrites the first `count` numbers of the memory, in `rows` rows; None for a count of 0."""
    from formats import kernels

    if not count:
        return None
    numbers = memory.view(np.float32)[:count].reshape(rows, -1)
    return lambda: kernels.scale(numbers, 1.0, numbers)


def cold_cache_seconds(call: Launching) -> float:
    """Return the median seconds of a call when its data is in no cache, and threads look for work."""
    from formats import kernels

    held = np.ones((2, uncached() // 8), np.float32)
    taken = []
    for _ in range(COLD_RUNS):
        kernels.scale(held[:1], 0.5, held[1:])
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return median(taken)


def allocate_both(numbers: int) -> tuple[Buffer, Floats, Floats]:
    """Allocate memory of `numbers` float32 to read and as many to write: all of it, as bytes, then the two."""
    memory = room((8 * numbers,), np.dtype(np.uint8))
    both = memory.view(np.float32)
    return memory, both[:numbers], both[numbers:]
