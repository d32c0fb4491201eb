"""A kernel is a C function of (item, worker, arguments); one parallel loop hands its items to the threads of the pool.

Only that loop is compiled as parallel code, so a kernel costs a tenth of a second to compile. Items are taken from a
shared counter: a thread that was held up takes fewer. Launches are serialised (the pool is one, some layers are not
safe for two callers) and release the interpreter lock."""
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numba import carray, cfunc, njit, prange
from numba.core import config

from .. import threads
from ..cache import cache_directory
from .memory import call, pointer, take

threads.pool()
LOCK = RLock()
KERNELS: dict[str, "Kernel"] = {}
FAST = {"contract", "reassoc", "nsz", "arcp"}               # sums in any order; infinities and NaN keep their meaning
OPTIONS: dict[str, Any] = dict(boundscheck=False, error_model="numpy")
Stage = tuple["Kernel", np.ndarray, int]                    # kernel, its record of arguments, items


class Kernel:
    """A function of (item, worker, arguments), compiled or read from the cache when it is first needed."""

    def __init__(self, body: Callable[..., None], signature: str = "void(int64, int64, int64)") -> None:
        self.body, self.name, self.signature = body, body.__name__, signature
        KERNELS[self.name] = self

    @classmethod
    def of(cls, signature: str) -> Callable[[Callable[..., None]], "Kernel"]:
        """A function that kernels call by its address, with a signature of its own."""
        return lambda body: cls(body, signature)

    @cached_property
    def compiled(self) -> Any:
        with LOCK, cached_here():
            return cfunc(self.signature, cache=True, **OPTIONS)(self.body)

    @cached_property
    def address(self) -> int: return int(self.compiled.address)


class Launcher:
    """The one parallel loop: launcher(address of the stages, number of stages, workers)."""
    name = "launch"

    @cached_property
    def compiled(self) -> Any:
        with LOCK, cached_here():
            return njit("void(int64, int64, int64)", parallel=True, cache=True, nogil=True, **OPTIONS)(stages_in_order)

    @property
    def address(self) -> int: return id(self.compiled)


def stages_in_order(stages, count, workers):
    """Run stages one after another: rows of (function, arguments, items, counter from 0)."""
    table = carray(pointer(stages, np.int64), (count, 4))
    for s in range(count):
        for worker in prange(workers):
            item = take(stages + 32 * s + 24)
            while item < table[s, 2]:
                call(table[s, 0], item, worker, table[s, 1])
                item = take(stages + 32 * s + 24)


LAUNCHER = Launcher()


@contextmanager
def cached_here() -> Iterator[None]:
    """numba's cache in a directory named by a digest of these sources: it would notice a change of one file only."""
    before = config.CACHE_DIR
    root = Path(before) if before else cache_directory() / "kernels"
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.blake2b(b"".join(path.read_bytes() for path in sources), digest_size=8).hexdigest()
    config.CACHE_DIR = str(root / digest)
    try: yield
    finally: config.CACHE_DIR = before


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
    """Scratch memory of every worker, kept between launches; grows, never shrinks."""

    def __init__(self) -> None: self.memory = np.empty(0, np.uint8)

    def reserve(self, size: int) -> tuple[int, int]:
        """(address aligned to 64 bytes, bytes between workers) of at least this many bytes for each worker."""
        step = -(-size // 4096) * 4096 + 64                                     # not all on the same cache sets
        if self.memory.size < step * config.NUMBA_NUM_THREADS + 64:
            self.memory = np.empty(step * config.NUMBA_NUM_THREADS + 64, np.uint8)
        start = address(self.memory)
        return start + -start % 64, step


ROOM = Room()


def launch(*stages: Stage) -> None:
    """Run stages in order, each on all threads. The caller holds LOCK if it reserved room."""
    # a record's __array_interface__ spells its fields out, which takes ten times as long
    rows = [(kernel.address, arguments.ctypes.data, items, 0) for kernel, arguments, items in stages]
    table = np.array(rows, np.int64)
    with LOCK: LAUNCHER.compiled(address(table), len(rows), threads.threads())


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] | None = None) -> float:
    """Compile these kernels (all by default), or read them from the cache; progress(name, seconds); seconds in all."""
    started = time.perf_counter()
    for kernel in [LAUNCHER, *(KERNELS[name] for name in names or KERNELS)]:
        begun = time.perf_counter()
        _ = kernel.address
        if progress: progress(kernel.name, time.perf_counter() - begun)
    return time.perf_counter() - started
