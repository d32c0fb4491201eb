"""What kernels take inside a run: launches recorded one after another and replayed with a clock, as programs are
(formats/kernels/engine/replay.py), so nothing of Python is in their times. Their order is drawn, so a weight comes from
memory, as it does in a program that others ran since, and what a kernel reads was written by another one, on whichever
core."""
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.core.arrays import Floats, room
from formats.machine.host import uncached
from formats.machine.threads import threads

SCRIPT_CASES = 128                                          # cases of a script: an interrupt waits for its end
MAX_ROUNDS = 16                                             # at most; three at least
COLD_RUNS = 15
# a run of almost nothing for so many sentences: what programs enter here (opmatrix/runtime/cases.py) begins as they do
BEGINNINGS: list[Callable[[int], Callable[[], Any]]] = []
Case = tuple[str, dict[str, float], Callable[[], Any]]
Measurements = list[tuple[str, dict[str, float], float]]
Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]


class Inside:
    """Cases recorded for one way of running them: `apart`, where every worker does all of them, or together. They read
    and write `memory`, which each worker has a copy of."""

    def __init__(self, cases: Sequence[Case], memory: Bytes, apart: bool) -> None:
        from formats.kernels.engine.replay import Recording
        self.workers, self.apart = threads(), apart
        recording = Recording(memory, 1 if apart else self.workers)

        def walk() -> None:
            for _, _, call in cases:
                call()
                recording.step()
        recording.keep(walk)
        self.given, self.script = memory.view(np.int64), recording.script()
        self.ends = np.array(self.script.ends[:len(cases) + 1])

    def run(self, fill: bool = True) -> Words:
        """Nanoseconds of each case, once: the mean of the workers. Unless `fill`, what is read lies in the workers'
        memory from the run before."""
        from formats.kernels.engine.launch import ARENA, ROOM, address
        from formats.kernels.engine.pool import POOL
        from formats.kernels.engine.replay import GROUP, REPLAY, clock, conduct, nanoseconds, replay
        groups, stages, script = self.workers if self.apart else 1, int(self.ends[-1]), self.script
        given = address(self.given), fill * len(self.given)
        table = np.array([(address(script.record), *given, script.home, 0)] * groups, GROUP)
        stamps = np.zeros((groups, stages + 1, 2), np.int64)
        with POOL.lock:
            reserved = *ARENA.reserve(script.size, groups), *ROOM.reserve(script.scratch, self.workers)
            arguments = np.array([(address(table), *reserved, clock(), address(stamps), stages + 1)], REPLAY)
            if self.apart: POOL.run(replay.address, address(arguments), groups, self.workers)
            else: conduct.call(POOL.state, address(arguments), POOL.ready(self.workers))
        since: Words = nanoseconds(stamps)
        return np.asarray(np.diff(since[:, self.ends]).mean(0))


def inside(cases: Sequence[Case], memory: Bytes, apart: bool, seconds: float,
           progress: Callable[..., None] = lambda *_: None) -> Measurements:
    """The median of all rounds of each case, of which there are three at least, as programs are judged by medians.
    `seconds`: after these no more rounds are begun."""
    from formats.kernels.engine.compiled import walk_compiled
    from formats.kernels.engine.pool import end_workers, launch_items, worker_loop
    from formats.kernels.engine.replay import conduct, replay
    order = np.random.default_rng(1).permutation(len(cases))
    parts = [order[at:at + SCRIPT_CASES] for at in range(0, len(order), SCRIPT_CASES)]
    scripts = walk_compiled(lambda: [Inside([cases[0], *(cases[i] for i in part)], memory, apart) for part in parts],
                            replay, conduct, launch_items, worker_loop, end_workers,
                            progress=lambda name, _: progress(f"compiled {name}"))
    taken: list[list[float]] = [[] for _ in cases]
    end = time.perf_counter() + seconds
    for done in range(-1, MAX_ROUNDS):                      # the round before the first is not counted
        if done >= 3 and time.perf_counter() > end: break
        for part, script in zip(parts, scripts, strict=True):
            _, *every = script.run(fill=done < 0)           # the first finds caches that have forgotten what it needs
            if done < 0: continue
            for i, each in zip(part, every, strict=True): taken[i].append(1e-9 * float(each))
        progress(done + 2, MAX_ROUNDS + 1)
    return [(kernel, sizes, median(each)) for (kernel, sizes, _), each in zip(cases, taken, strict=True)]


def forgotten(call: Callable[[], Any]) -> float:
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


def allocate_both(numbers: int) -> tuple[Bytes, Floats, Floats]:
    """Memory of so many float32 to read and as many to write: all of it, as bytes, then the two."""
    memory = room((8 * numbers,), np.dtype(np.uint8))
    both = memory.view(np.float32)
    return memory, both[:numbers], both[numbers:]
