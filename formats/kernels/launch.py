"""A kernel is a C function of (item, worker, arguments); a launch gives its items to the threads of the pool."""
import time
from collections.abc import Callable

import numpy as np

from ..threads import available
from .compiled import FUNCTIONS, Kernel
from .pool import POOL

Stage = tuple[Kernel, np.ndarray, int]                      # kernel, its record of arguments, items


def address(array: np.ndarray | None) -> int:
    """Where an array begins; 0 for none."""
    return 0 if array is None else int(array.__array_interface__["data"][0])


def step(array: np.ndarray) -> int:
    """Numbers between the beginnings of two rows."""
    return int(array.strides[0]) // array.itemsize


def words(names: str) -> list[tuple[str, str]]:
    """The int64 fields of a record of arguments: addresses, counts, and steps between rows in numbers."""
    return [(name, "i8") for name in names.split()]


class Room:
    """Scratch memory of every worker, kept between launches; grows, never shrinks. Used under the pool's lock."""

    def __init__(self) -> None: self.memory = np.empty(0, np.uint8)

    def reserve(self, size: int) -> tuple[int, int]:
        """(address aligned to 64 bytes, bytes between workers) of at least this many bytes for each worker."""
        step = -(-size // 4096) * 4096 + 64                                     # not all on the same cache sets
        if self.memory.size < step * available() + 64: self.memory = np.empty(step * available() + 64, np.uint8)
        start = address(self.memory)
        return start + -start % 64, step


ROOM = Room()


def launch(*stages: Stage) -> None:
    """Run stages in order, each on all threads. The caller holds the pool's lock if it reserved room."""
    with POOL.lock:
        for kernel, arguments, items in stages:
            # a record's __array_interface__ spells its fields out, which takes ten times as long
            if items: POOL.run(kernel.address, arguments.ctypes.data, items)


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] | None = None) -> float:
    """Compile these kernels (by default all but rare ones), or read them from the cache; progress(name, seconds); seconds
    in all."""
    started = time.perf_counter()
    for name in names or [name for name, function in FUNCTIONS.items() if not function.rare]:
        begun = time.perf_counter()
        _ = FUNCTIONS[name].address
        if progress: progress(name, time.perf_counter() - begun)
    return time.perf_counter() - started
