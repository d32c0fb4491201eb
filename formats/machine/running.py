"""What kernels take inside a run: launches recorded one after another and replayed with a clock, as programs are
(formats/kernels/engine/replay.py), so nothing of Python is in their times. As in a program, what a kernel reads was
just written by another one, on whichever core; a weight comes from memory, as cases of one weight lie as far from one
another as they can, and a second time from the caches."""
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats, room
from formats.machine.host import uncached
from formats.machine.threads import threads

SCRIPT_CASES = 128                                          # cases of a script: an interrupt waits for its end
MAX_ROUNDS = 16                                             # at most; three at least
COLD_RUNS = 15
Launching = Callable[[], object]
Case = tuple[str, dict[str, float], Launching]
Measurements = list[tuple[str, dict[str, float], float]]
Buffer = NDArray[np.uint8]
Words = NDArray[np.int64]


class Inside:
    """Cases recorded for one way of running them: `apart`, where every worker does all of them, or together. They read
    and write `memory`, which each worker has a copy of. `writers`: what is called before each case and not timed, None
    for nothing."""

    def __init__(self, cases: Sequence[Case], memory: Buffer, apart: bool,
                 writers: Sequence[Launching | None] = ()) -> None:
        from formats.kernels.engine.replay import Recording
        self.workers, self.apart = threads(), apart
        recording, steps = Recording(memory, 1 if apart else self.workers), list[Launching]()
        for writer, (_, _, call) in zip(writers or [None] * len(cases), cases, strict=True):
            steps += filter(None, (writer, call))

        def walk() -> None:
            for step in steps:
                step()
                recording.step()
        recording.keep(walk)
        self.given, self.script = memory.view(np.int64), recording.script()
        timed, ends = {id(call) for _, _, call in cases}, np.array(self.script.ends[:len(steps) + 1])
        of_cases = [i for i, step in enumerate(steps) if id(step) in timed]
        self.starts, self.ends = ends[of_cases], ends[np.add(of_cases, 1)]

    def run(self, fill: bool = True) -> Words:
        """Nanoseconds of each case, once: the mean of the workers. Unless `fill`, what is read lies in the workers'
        memory from the run before."""
        from formats.kernels.engine.launch import ARENA, ROOM, address
        from formats.kernels.engine.pool import POOL
        from formats.kernels.engine.replay import GROUP, REPLAY, clock, conduct, nanoseconds, replay
        groups, script = self.workers if self.apart else 1, self.script
        stages = int(script.ends[-1])
        given = address(self.given), fill * len(self.given)
        table = np.array([(address(script.record), *given, script.home, 0)] * groups, GROUP)
        stamps = np.zeros((groups, stages + 1, 2), np.int64)
        with POOL.lock:
            reserved = *ARENA.reserve(script.size, groups), *ROOM.reserve(script.scratch, self.workers)
            arguments = np.array([(address(table), *reserved, clock(), address(stamps), stages + 1)], REPLAY)
            if self.apart: POOL.run(replay.address, address(arguments), groups, self.workers)
            else: conduct.call(POOL.state, address(arguments), POOL.ready(self.workers))
        since: Words = nanoseconds(stamps)
        return np.asarray((since[:, self.ends] - since[:, self.starts]).mean(0))


def inside(cases: Sequence[Case], memory: Buffer, apart: bool, seconds: float,
           progress: Callable[..., None] = lambda *_: None, reads: Sequence[int] = ()) -> Measurements:
    """Seconds of each case: the median of all rounds, of which there are three at least, times what the medians of
    whole scripts are longer than the sums of their cases' medians, as rounds are skewed: programs are judged by
    medians of whole runs, in which some step always takes longer. Cases of one weight come in one script as rarely as
    they can; those that are one call follow one another. `seconds`: after these no more rounds are begun. `reads`:
    numbers of the memory that each case reads, and another kernel writes before."""
    from formats.kernels.engine.compiled import walk_compiled
    from formats.kernels.engine.pool import end_workers, launch_items, worker_loop
    from formats.kernels.engine.replay import conduct, replay
    order = spread_weights(cases)
    parts = [order[at:at + SCRIPT_CASES] for at in range(0, len(order), SCRIPT_CASES)]
    writers = [write_anew(memory, count, int(sizes.get("T", 1)))
               for count, (_, sizes, _) in zip(reads or [0] * len(cases), cases, strict=True)]
    made = [[0, *part] for part in parts]
    scripts = walk_compiled(
        lambda: [Inside([cases[i] for i in part], memory, apart, [writers[i] for i in part]) for part in made],
        replay, conduct, launch_items, worker_loop, end_workers, progress=lambda name, _: progress(f"compiled {name}"))
    taken: list[list[float]] = [[] for _ in cases]
    wholes: list[list[float]] = [[] for _ in parts]
    end = time.perf_counter() + seconds
    for done in range(-1, MAX_ROUNDS):                      # the round before the first is not counted
        if done >= 3 and time.perf_counter() > end: break
        for part, script, whole in zip(parts, scripts, wholes, strict=True):
            _, *every = 1e-9 * script.run(fill=done < 0)    # the first finds caches that have forgotten what it needs
            if done < 0: continue
            for i, each in zip(part, every, strict=True): taken[i].append(float(each))
            whole.append(float(sum(every)))
        progress(done + 2, MAX_ROUNDS + 1)
    middles = [median(each) for each in taken]
    skew = sum(map(median, wholes)) / sum(middles)
    return [(kernel, sizes, skew * middle) for (kernel, sizes, _), middle in zip(cases, middles, strict=True)]


def spread_weights(cases: Sequence[Case]) -> list[int]:
    """The order of cases: drawn, but the first of every weight before the second of any, and cases of one call behind
    one another."""
    calls: dict[int, list[int]] = {}
    for i, (_, _, call) in enumerate(cases): calls.setdefault(id(call), []).append(i)
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
    """A kernel that writes the first so many numbers of the memory as they are, in so many rows; None for no
    numbers."""
    from formats import kernels
    if not count: return None
    numbers = memory.view(np.float32)[:count].reshape(rows, -1)
    return lambda: kernels.scale(numbers, 1.0, numbers)


def cold_cache_seconds(call: Launching) -> float:
    """The median seconds of a call when all caches have forgotten what it needs, and threads look for work."""
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
    """Memory of so many float32 to read and as many to write: all of it, as bytes, then the two."""
    memory = room((8 * numbers,), np.dtype(np.uint8))
    both = memory.view(np.float32)
    return memory, both[:numbers], both[numbers:]
