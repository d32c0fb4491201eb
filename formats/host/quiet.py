"""What a busy machine is, declared once: the signs of it, and from what value on each counts. A `Watch` looks at what
others did since it was made: nothing is measured for it but what was to be measured anyway. And how fast the machine
is: a host that gives more or less of itself an hour later changes all prices by about one factor."""
import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

LOUD = 0.05                                                 # of the processors' time, taken by others
TICKS = 40                                                # of the clock of /proc/stat, 10 ms each: fewer say too little
MIN_RUNS = 4                                                # repeated timings have no quartiles
PROBE = 0.5                                                 # seconds
PACE_KERNEL = "linear.dense"
PACE_SIZES = {"T": 128, "n": 512, "p": 512}                 # in the caches: what comes from memory varies by the pages
                                                            # that a process happens to have, too
PACE_SECONDS = 0.2                                          # of looking how fast the machine is now
STEADY = 1.6                                                # a smaller factor says nothing of the next minute: a shared
                                                            # EPYC takes 0.8 to 1.5 times as long from second to second


class Sign(NamedTuple):
    """One way that a busy machine shows: a value above `most`. `says` is written with the value, `why` is where `most`
    is from."""

    most: float
    says: str
    why: str


SIGNS = {
    "load": Sign(1.1, "the load was {:.1f} threads a processor",
                 "a command of ours makes no more threads than processors, so what it leaves behind is a load of 1 at "
                 "most"),
    "others": Sign(LOUD, "other processes took {:.0%} of the processors that it needs",
                   "what programs lose is about what others take: more than figures are told apart by (2 to 5 %)"),
    "stolen": Sign(LOUD, "the host gave {:.0%} of the processors' time to other machines", "as for other processes"),
    "spread": Sign(0.2, "the middle half of repeated timings is {:.0%} wide",
                   "chosen: on a quiet machine it is a few per cent, with a neighbour on every core a half and more"),
    "threads": Sign(1.1, "all threads together took {:.2f} times as long as one for the same arithmetic",
                    "two threads on one core take as long as one, waking them a few per cent more"),
}


class Others:
    """The shares of the processors' time that others took, and that the host gave to other machines, since this was
    made. None where the system does not tell. `pids` are children that count as ours while they live."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self.pids = (os.getpid(), *pids)
        self.before = self.now()

    def now(self) -> tuple[int, int, int, int] | None:
        """Ticks of the clock at work, stolen, in all, and of these processes, and of their children that ended, at
        work; None without Linux's /proc."""
        try:
            spent = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            own = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        except (OSError, ValueError): return None
        user, nice, system, idle, waiting, hard, soft, stolen = spent
        busy = user + nice + system + hard + soft
        return busy, stolen, busy + stolen + idle + waiting, sum(int(word) for words in own for word in words[11:15])

    def shares(self, least: int = 1) -> tuple[float, float] | None:
        """Nothing was taken in fewer ticks than `least`."""
        if self.before is None or (now := self.now()) is None: return None
        busy, stolen, total, own = (after - before for after, before in zip(now, self.before, strict=True))
        return (max(0.0, (busy - own) / total), stolen / total) if total >= least else (0.0, 0.0)


class Watch:
    """What was seen of others since this was made: `seen` is empty on a quiet machine. Timings of one thing, again and
    again, and how much faster all threads are than one, are handed in where they were measured."""

    def __init__(self) -> None:
        from formats.host.host import load_average
        self.others, self.load = Others(), load_average()
        self.runs: list[Sequence[float]] = []
        self.speedup: float | None = None

    def note(self, runs: Iterable[Sequence[float]]) -> None:
        """Seconds of each of several things, each timed again and again."""
        self.runs += runs

    def values(self) -> dict[str, float]:
        """The value of each sign that can be told."""
        from formats.host.threads import threads
        processors = os.cpu_count() or 1
        found: dict[str, float] = {}
        if self.load is not None: found["load"] = self.load / processors
        if shares := self.others.shares(TICKS):
            found["others"], found["stolen"] = missing(shares[0], threads(), processors), shares[1]
        if wide := [width(each) for each in self.runs if len(each) >= MIN_RUNS]: found["spread"] = median(wide)
        if self.speedup: found["threads"] = 1 / self.speedup
        return found

    def seen(self) -> str:
        """The signs of a busy machine, in words."""
        return ", ".join(SIGNS[name].says.format(value) for name, value in self.values().items()
                         if value > SIGNS[name].most)


def missing(taken: float, threads: int, processors: int) -> float:
    """The share of the processors that so many threads need and others leave no room for, who take this share of
    all."""
    needed = min(threads, processors)
    return max(0.0, taken * processors + needed - processors) / needed


def width(taken: Sequence[float]) -> float:
    """From the lower to the upper quartile, as a share of the median."""
    ordered = sorted(taken)
    return (ordered[-1 - len(ordered) // 4] - ordered[len(ordered) // 4]) / median(ordered)


def timed(call: Callable[[], object], seconds: float, least: int, most: int) -> list[float]:
    """Seconds of runs within so many seconds, from `least` to `most` of them, after one that is not counted; of runs
    that lost the processor only if all did."""
    call()
    taken: list[float] = []
    clean: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < least or (time.perf_counter() < end and len(taken) < most):
        start, worked = time.perf_counter(), time.thread_time()
        call()
        taken.append(time.perf_counter() - start)
        if taken[-1] < 1.1 * (time.thread_time() - worked): clean.append(taken[-1])
    return clean or taken


def describe_noise(seen: str, means: str) -> str:
    """The line of a command on a busy machine: what was seen, and what it means for its figures."""
    return f"busy machine: {seen}: {means}"


def warn_busy(seen: str, means: str, calibrated: Sequence[str]) -> list[str]:
    """The one line of a command whose figures are measured, and predicted by prices that have these marks: of what was
    seen of others meanwhile, and of what was seen when the prices were measured. None on a quiet machine."""
    said = [f"{seen}: {means}"] * bool(seen)
    if calibrated:
        said.append(f"when it was calibrated, {calibrated[0]}: predicted times are less certain")
    return [f"busy machine: {'; '.join(said)}"] * bool(said)


def probe(seconds: float = PROBE) -> str:
    """What is seen of others within so many seconds; the same small sum is timed in them again and again."""
    watch, taken = Watch(), list[float]()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        sum(range(20_000))
        taken.append(time.perf_counter() - start)
    watch.note([taken])
    return watch.seen()


@cache
def watched() -> Watch:
    """For a benchmark: at its end, a line on standard error if the machine was busy, once a process, whoever asks
    again."""
    watch = Watch()

    def last() -> None:
        if seen := watch.seen():
            print(describe_noise(seen, "times are too long, and what lies close together is not told apart"),
                  file=sys.stderr)
    atexit.register(last)
    return watch


class Pace:
    """How fast the machine is: seconds of a product, timed at every `sample` as the calls of a calibration are."""

    def __init__(self) -> None:
        import numpy as np

        from formats import FORMATS
        rows, inner, columns = PACE_SIZES.values()
        weight = FORMATS["dense"].pack(np.ones((inner, columns), np.float32))
        self.call = partial(weight.matmul, np.ones((rows, inner), np.float32),
                            out=np.empty((rows, columns), np.float32))
        self.taken: list[float] = []

    def sample(self, seconds: float = PACE_SECONDS / 4) -> None:
        """The product again and again within so many seconds, once at least."""
        self.taken += timed(self.call, seconds, 1, sys.maxsize)

    @property
    def seconds(self) -> float:
        """The lower quartile of all samples, as of a calibration's calls."""
        return sorted(self.taken)[len(self.taken) // 4]


@cache
def pace_now() -> float:
    """Seconds that say how fast this machine is now, looked for once a process."""
    found = Pace()
    found.sample(PACE_SECONDS)
    return found.seconds


def drift(then: float) -> float:
    """What prices that were measured at some pace are to be multiplied by now; 1 where the difference says nothing, or
    nobody knows that pace."""
    factor = pace_now() / then if then else 1.0
    return factor if max(factor, 1 / factor) > STEADY else 1.0
