"""The signs of a busy machine, declared once, with the value from which each counts. A `Watch` observes other processes
from its creation on, without measurements of its own. Also the pace of the machine: a virtual machine that gets more or
less of its host an hour later changes all prices by about one factor."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

LOUD = 0.05  # share of the processors' time that others take
TICKS = 40  # least ticks of the clock of /proc/stat, 10 ms each
MIN_RUNS = 4  # runs; fewer have no quartiles
PROBE = 0.5  # seconds
PACE_KERNEL = "linear.dense"
PACE_SIZES = {"T": 128, "n": 512, "p": 512}  # in the caches: times of reads from memory vary by the
# pages of a process, too
PACE_SECONDS = 0.2  # seconds of measuring the present pace
STEADY = 1.6  # a smaller factor does not predict the next minute: a
# shared EPYC varies by 0.8 to 1.5 from second to second


class Sign(NamedTuple):
    """One sign of a busy machine: a value above `most`. `says` is the text with the value, `why` is the reason for
    `most`."""

    most: float
    says: str
    why: str


SIGNS = {
    "load": Sign(
        1.1,
        "the load was {:.1f} threads a processor",
        "a command of opmatrix starts at most one thread a processor, so the load that it leaves is at most 1",
    ),
    "others": Sign(
        LOUD,
        "other processes took {:.0%} of the processors that it needs",
        "programs slow down by about this share, which is more than the differences that figures show (2 to 5 %)",
    ),
    "stolen": Sign(
        LOUD,
        "the host gave {:.0%} of the processors' time to other virtual machines",
        "as for the share of other processes",
    ),
    "spread": Sign(
        0.2,
        "the middle half of repeated timings is {:.0%} wide",
        "chosen: on a quiet machine it is a few per cent, with a neighbour on every core a half and more",
    ),
    "threads": Sign(
        1.1,
        "all threads together took {:.2f} times as long as one for the same arithmetic",
        "two threads on one core take as long as one, waking them a few per cent more",
    ),
}


class Others:
    """The shares of the processors' time that others took, and that the host gave to other machines, since this object
    was made. None where the system does not report them. `pids` are children that count as ours while they live."""

    def __init__(self, pids: Iterable[int] = ()) -> None:
        self.pids = (os.getpid(), *pids)
        self.before = self.now()

    def now(self) -> tuple[int, int, int, int] | None:
        """Return ticks of the clock: at work, stolen, in all, and at work for these processes and their ended children.
        None without Linux's /proc."""
        try:
            spent = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids]
        except (OSError, ValueError):
            return None
        user, nice, system, idle, waiting, hard, soft, stolen = spent
        busy = user + nice + system + hard + soft
        return busy, stolen, busy + stolen + idle + waiting, sum(int(word) for words in stats for word in words[11:15])

    def shares(self, least: int = 1) -> tuple[float, float] | None:
        """Return the shares of others and of the host; 0 if fewer ticks than `least` have passed."""
        if self.before is None or (now := self.now()) is None:
            return None
        busy, stolen, total, ours = (after - before for after, before in zip(now, self.before, strict=True))
        return (max(0.0, (busy - ours) / total), stolen / total) if total >= least else (0.0, 0.0)


class Watch:
    """Observations of other processes since this object was made: `seen` is empty on a quiet machine. Repeated timings,
    and the speed-up of all threads over one, are handed in by the code that measured them."""

    def __init__(self) -> None:
        from formats.host.host import load_average

        self.others, self.load = Others(), load_average()
        self.runs: list[Sequence[float]] = []
        self.speedup: float | None = None

    def note(self, runs: Iterable[Sequence[float]]) -> None:
        """Take in the seconds of several calls, each timed repeatedly."""
        self.runs += runs

    def values(self) -> dict[str, float]:
        """Return the value of each sign that is known."""
        from formats.host.threads import threads

        processors = os.cpu_count() or 1
        signs: dict[str, float] = {}
        if self.load is not None:
            signs["load"] = self.load / processors
        if shares := self.others.shares(TICKS):
            signs["others"], signs["stolen"] = missing(shares[0], threads(), processors), shares[1]
        if wide := [width(run) for run in self.runs if len(run) >= MIN_RUNS]:
            signs["spread"] = median(wide)
        if self.speedup:
            signs["threads"] = 1 / self.speedup
        return signs

    def seen(self) -> str:
        """Return the signs of a busy machine, in words."""
        return ", ".join(
            SIGNS[name].says.format(value) for name, value in self.values().items() if value > SIGNS[name].most
        )


def missing(taken: float, threads: int, processors: int) -> float:
    """Return the share of the processors needed by `threads` threads that is not free, where others take the share
    `taken` of all processors."""
    needed = min(threads, processors)
    return max(0.0, taken * processors + needed - processors) / needed


def width(taken: Sequence[float]) -> float:
    """Return the distance between the lower and the upper quartile, as a share of the median."""
    ordered = sorted(taken)
    return (ordered[-1 - len(ordered) // 4] - ordered[len(ordered) // 4]) / median(ordered)


def timed(call: Callable[[], object], seconds: float, least: int, most: int) -> list[float]:
    """Return seconds of runs within a time limit, from `least` to `most` of them, after one that is not counted. Runs
    that lost the processor are included only if all did."""
    call()
    taken: list[float] = []
    clean: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < least or (time.perf_counter() < end and len(taken) < most):
        start, worked = time.perf_counter(), time.thread_time()
        call()
        taken.append(time.perf_counter() - start)
        if taken[-1] < 1.1 * (time.thread_time() - worked):
            clean.append(taken[-1])
    return clean or taken


def describe_noise(seen: str, means: str) -> str:
    """Return the line of a command on a busy machine: the signs, and their consequence for its figures."""
    return f"busy machine: {seen}: {means}"


def warn_busy(seen: str, means: str, calibrated: Sequence[str]) -> list[str]:
    """Return the one line of a command whose figures are measured, and predicted by prices that have the marks
    `calibrated`: the signs seen meanwhile, and those seen when the prices were measured. Empty on a quiet machine."""
    clauses = [f"{seen}: {means}"] * bool(seen)
    if calibrated:
        clauses.append(f"when it was calibrated, {calibrated[0]}: predicted times are less certain")
    return [f"busy machine: {'; '.join(clauses)}"] * bool(clauses)


def probe(seconds: float = PROBE) -> str:
    """Observe other processes for `seconds`, while timing the same small sum repeatedly. Return the signs of a busy
    machine."""
    watch, taken = Watch(), list[float]()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        sum(range(20_000))
        taken.append(time.perf_counter() - start)
    watch.note([taken])
    return watch.seen()


@cache
def watched() -> Watch:
    """Start the watch of a benchmark, once a process: at exit, a line on standard error if the machine was busy."""
    watch = Watch()

    def last() -> None:
        """Print the warning of a busy machine at exit, on standard error."""
        if seen := watch.seen():
            print(describe_noise(seen, "times are too long, and close ones cannot be distinguished"), file=sys.stderr)

    atexit.register(last)
    return watch


class Pace:
    """The pace of the machine: seconds of a product, timed at every `sample` as the calls of a calibration are."""

    def __init__(self) -> None:
        import numpy as np

        from formats import FORMATS

        rows, inner, columns = PACE_SIZES.values()
        weight = FORMATS["dense"].pack(np.ones((inner, columns), np.float32))
        self.call = partial(
            weight.matmul, np.ones((rows, inner), np.float32), out=np.empty((rows, columns), np.float32)
        )
        self.taken: list[float] = []

    def sample(self, seconds: float = PACE_SECONDS / 4) -> None:
        """Time the product repeatedly for `seconds`, at least once."""
        self.taken += timed(self.call, seconds, 1, sys.maxsize)

    @property
    def seconds(self) -> float:
        """The lower quartile of all samples, as for a calibration's calls."""
        return sorted(self.taken)[len(self.taken) // 4]


@cache
def pace_now() -> float:
    """Measure the present pace of this machine in seconds, once a process."""
    pace = Pace()
    pace.sample(PACE_SECONDS)
    return pace.seconds


def drift(then: float) -> float:
    """Return the factor that brings prices measured at pace `then` to the present pace; 1 where the difference is not
    significant, or where `then` is 0 (unknown)."""
    factor = pace_now() / then if then else 1.0
    return factor if max(factor, 1 / factor) > STEADY else 1.0
