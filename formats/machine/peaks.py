"""The measured peaks of this machine: arithmetic by number type, bandwidth by level of memory, the overhead of a
call."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from formats import FORMATS
from formats.core.arrays import room
from formats.disk.holdings import try_put
from formats.host.host import caches, cpu, uncached
from formats.host.threads import limit, threads

SIDE, PRODUCT_ROWS = 512, 256  # sizes of the products that are timed: a millisecond or less
MEASURED_SECONDS = 0.02  # seconds of one measurement
Progress = Callable[..., None]
T = TypeVar("T")


@dataclass(frozen=True)
class Rate:
    """A number of operations or bytes a second, on one thread and on all."""

    one: float
    all: float


@dataclass(frozen=True)
class Peaks:
    """`rates`: operations a second by number type, "vector" float32 in registers. `bandwidth`: (level, bytes read in
    turn, bytes a second). `overheads`: seconds."""

    name: str
    threads: int
    rates: dict[str, Rate]
    bandwidth: list[tuple[str, int, Rate]]
    overheads: dict[str, float]

    def save(self, file: Path) -> bool:
        """Write JSON, completely or not at all. Return whether it could be written; a failure is reported."""
        return try_put(file, json.dumps(asdict(self), indent=1).encode(), "peaks")

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield the rows of a table: quantity, unit, on one thread, on all."""
        for kind, rate in self.rates.items():
            yield kind, "Gop/s", f"{rate.one / 1e9:.0f}", f"{rate.all / 1e9:.0f}"
        for level, size, rate in self.bandwidth:
            yield f"{level} ({format_bytes(size)})", "GB/s", f"{rate.one / 1e9:.0f}", f"{rate.all / 1e9:.0f}"
        for what, seconds in self.overheads.items():
            yield what, "µs", f"{1e6 * seconds:.1f}", ""


def measure_peaks(progress: Progress = lambda *_: None) -> Peaks:
    """Measure all peaks, in ten seconds or so; progress(done, of)."""
    present = {kind: [name for name, form in FORMATS.items() if form.unit == kind] for kind in units()}
    kinds, levels = [*present], [*memory_levels()]
    steps = len(kinds) + len(levels) + 2

    def told(done: int, value: T) -> T:
        """Report a finished step of the measurement, and hand its value on."""
        progress(done, steps)
        return value

    rates = {"vector": told(1, vector_rate())}
    rates |= {kind: told(2 + i, product_rate(present[kind])) for i, kind in enumerate(kinds)}
    reads = [told(2 + len(kinds) + i, (level, size, bandwidth(size))) for i, (level, size) in enumerate(levels)]
    return Peaks(cpu(), threads(), rates, reads, told(steps, overheads()))


def units() -> list[str]:
    """Return the number types that the product of some format computes in; among formats with one type the fastest
    counts."""
    return [*dict.fromkeys(form.unit for form in FORMATS.values() if form.unit)]


def best(call: Callable[[], object], seconds: float = MEASURED_SECONDS) -> float:
    """Return the least seconds of a call within a time limit: a peak is the best possible rate."""
    call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def time_parallel(calls: Sequence[Callable[[], object]]) -> float:
    """Return the least seconds in which all calls are done, each on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return best(lambda: list(pool.map(lambda call: call(), calls)))


def vector_rate() -> Rate:
    """Measure float32 operations a second without memory access: a multiplication and an addition are two."""
    from formats.machine.rates import CHAINS, multiply_adds

    count = 1 << 19
    ends = [room((CHAINS,), np.dtype(np.float32)) for _ in range(threads())]
    calls: list[Callable[[], object]] = [partial(multiply_adds.call, count, end.ctypes.data) for end in ends]
    work = 2 * CHAINS * count
    return Rate(work / best(calls[0]), len(calls) * work / time_parallel(calls))


def product_rate(names: list[str]) -> Rate:
    """Measure operations a second of the fastest of these formats, in a product whose weight fits the caches."""
    rng = np.random.default_rng(0)
    x, out = (room((PRODUCT_ROWS, SIDE), np.dtype(np.float32)) for _ in range(2))
    x[...], W = rng.standard_normal(x.shape), rng.standard_normal((SIDE, SIDE), np.float32) / 32
    calls = [partial(FORMATS[name].approximate(W).matmul, x, out=out) for name in names]
    work = 2 * PRODUCT_ROWS * SIDE * SIDE
    with limit(1):
        one = work / min(map(best, calls))
    return Rate(one, work / min(map(best, calls)))


def memory_levels() -> Iterator[tuple[str, int]]:
    """Yield (level, bytes to read) for every data cache, half of its size, and for memory, if there is room for that
    much."""
    sizes = caches()
    for level, size in enumerate(sizes, 1):
        yield f"L{level}", size // 2
    yield "memory", min(uncached(), max(sizes[-1], free_memory() // 4))


def free_memory() -> int:
    """Return the bytes that are free, as far as the system reports them."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 << 30


def bandwidth(size: int) -> Rate:
    """Measure bytes a second read in order from `size` bytes; on all threads each reads a part of its own."""
    one = filled(size)
    taken = best(partial(sweep, *one)), best(partial(sweep, *one))
    workers = threads()
    parts = [filled(size // workers) for _ in range(workers)] if workers > 1 else [one]
    work = [partial(sweep, *part) for part in parts]
    return Rate(traffic(one[0]) / min(taken), sum(traffic(part) for part, _ in parts) / time_parallel(work))


def filled(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Allocate and fill an array of `size` bytes, and room for a sum."""
    from formats.machine.rates import CHAINS

    array = room((max(size // (4 * CHAINS), 1), CHAINS), np.dtype(np.float32))
    array[...] = 1
    return array, room((CHAINS,), array.dtype)


def sweep(array: np.ndarray, end: np.ndarray) -> None:
    """Read the array once; a small one repeatedly, so that the call itself is negligible."""
    from formats.machine.rates import read_all

    read_all.call(array.ctypes.data, len(array), traffic(array) // array.nbytes, end.ctypes.data)


def traffic(array: np.ndarray) -> int:
    """Return the bytes that `sweep` reads."""
    size = int(array.nbytes)
    return size * max(1, (1 << 26) // size)


def overheads() -> dict[str, float]:
    """Measure the seconds of a minimal product on one thread, and the additional seconds of waking the others."""
    x, out = (room((64, 16), np.dtype(np.float32)) for _ in range(2))
    x[...] = 1
    weight = FORMATS["dense"].pack(np.ones((16, 16), np.float32))

    def taken(rows: int) -> float:
        """Return the median seconds of a product of the first `rows` rows of x, over 2000 calls."""
        runs = []
        for _ in range(2000):
            start = time.perf_counter()
            weight.matmul(x[:rows], out=out[:rows])
            runs.append(time.perf_counter() - start)
        return median(runs)

    with limit(1):
        alone = taken(1), taken(64)
    return {"call": alone[0], "launch": max(0.0, taken(64) - alone[1])}


def format_bytes(size: int) -> str:
    """Format bytes in the largest binary unit that keeps them above one."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << shift:
            return f"{size / (1 << shift):.3g} {unit}"
    return f"{size} B"
