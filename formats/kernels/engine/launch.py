"""A kernel is a C function of (item, worker, arguments); a launch gives its items to the threads of the pool, or to the
recording that is on (replay.py)."""
import ctypes
import time
from array import array
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from formats.kernels.engine.compiled import FUNCTIONS, Kernel, provide
from formats.kernels.engine.pool import POOL

if TYPE_CHECKING:
    from formats.kernels.engine.replay import Recording
    Words = array[int]
else: Words = array                                         # before Python 3.12 it says no type of what it holds
Record = np.ndarray | Words                                 # of arguments: an array of one, or plain words
Launch = tuple[Kernel, Record, int]                         # kernel, its record of arguments, items
ROOM_START, ROOM_STEP = 0x7AAA_5555_AAAA_0000, 0x7AAB_5555_AAAA_0000    # what a recording has in their place


RECORDING: ContextVar["Recording | None"] = ContextVar("recording", default=None)    # the one that is on here


def address(stored: Record | None) -> int:
    """Where an array or record begins; 0 for none. A recording that is on keeps it: what it launches reads it later."""
    if stored is None: return 0
    found = begins_at(stored)
    if recording := RECORDING.get(): recording.addressed[id(stored)] = stored, found
    return found


def begins_at(stored: Record) -> int:
    """Where an array or record begins."""
    if isinstance(stored, array): return stored.buffer_info()[0]
    # of what may be written to, a third of the time; a record's __array_interface__ spells its fields out
    try: return ctypes.addressof(ctypes.c_char.from_buffer(stored))   # type: ignore[arg-type]
    except (TypeError, ValueError): return int(stored.ctypes.data)


def filled(*fields: int) -> Words:
    """A record of words alone."""
    record = array("q", fields)
    if recording := RECORDING.get(): recording.records.append(record)
    return record


def make_record(fields: ArrayLike, kind: DTypeLike) -> np.ndarray:
    """A record of this kind, or an array of words."""
    record = np.array(fields, kind)
    if recording := RECORDING.get(): recording.records.append(record)
    return record


def temporary(shape: tuple[int, ...]) -> np.ndarray:
    """Memory for float32 numbers that lie between two launches."""
    made = np.empty(shape, np.float32)
    if recording := RECORDING.get(): recording.temporaries.append(made)
    return made


def step(array: np.ndarray) -> int:
    """Numbers between the beginnings of two rows."""
    return int(array.strides[0]) // array.itemsize


def words(names: str) -> list[tuple[str, str]]:
    """The int64 fields of a record of arguments: addresses, counts, and steps between rows in numbers."""
    return [(name, "i8") for name in names.split()]


class Reserved(tuple[int, int]):
    """(address aligned to 64 bytes, bytes between workers) of memory that lasts as long as this: what interrupts a
    caller, and launches too, may need more and replace it."""

    memory: np.ndarray


class Room:
    """Scratch memory of every worker, kept between launches; grows until it is released. Used under the pool's lock."""

    def __init__(self) -> None: self.memory = np.empty(0, np.uint8)

    def reserve(self, size: int, workers: int) -> tuple[int, int]:
        """At least this many bytes for each of so many workers: no more may launch with it."""
        if recording := RECORDING.get():
            return recording.reserve(size)
        step = -(-size // 4096) * 4096 + 64                                     # not all on the same cache sets
        if (memory := self.memory).size < (whole := step * workers + 64):
            self.memory = memory = np.empty(0, np.uint8)                      # what nobody uses any more is freed first
            self.memory = memory = np.empty(whole, np.uint8)
        start = address(memory)
        reserved = Reserved((start + -start % 64, step))
        reserved.memory = memory
        return reserved

    def release(self) -> None:
        """Give the memory back, unless a launch is on."""
        with POOL.lock: self.memory = np.empty(0, np.uint8)


ROOM, ARENA = Room(), Room()                                # of kernels; of recordings, for what lies between kernels


def launch(workers: int, *stages: Launch) -> None:
    """Run stages in order, each on so many threads, for which the caller reserved what they need under the pool's
    lock."""
    if recording := RECORDING.get():
        recording.stages.extend(stages)
        return
    with POOL.lock:
        for kernel, arguments, items in stages:
            if items == 1: kernel.call(0, 0, address(arguments))
            elif items: POOL.run(kernel.address, address(arguments), items, workers)


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] = lambda name, seconds: None) -> float:
    """Compile these kernels (by default all but rare ones), or read them from the cache; progress(name, seconds);
    seconds in all."""
    started = time.perf_counter()
    if unknown := set(names or ()) - set(FUNCTIONS):
        raise ValueError(f"kernels: no {', '.join(unknown)}; {', '.join(FUNCTIONS)}")
    provide([FUNCTIONS[name] for name in names or FUNCTIONS if names or not FUNCTIONS[name].rare], progress)
    return time.perf_counter() - started
