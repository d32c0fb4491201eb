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
else:
    Words = array  # before Python 3.12 it is not generic
Record = np.ndarray | Words  # a record of arguments: an array of one, or plain words
Launch = tuple[Kernel, Record, int]  # kernel, its record of arguments, items
ROOM_START, ROOM_STEP = 0x7AAA_5555_AAAA_0000, 0x7AAB_5555_AAAA_0000  # stand for the room in a recording


RECORDING: ContextVar["Recording | None"] = ContextVar("recording", default=None)  # the active recording here


def address(stored: Record | None) -> int:
    """Return the address of an array or record; 0 for None. An active recording keeps the array: its launches read it
    later."""
    if stored is None:
        return 0
    start = begins_at(stored)
    if recording := RECORDING.get():
        recording.addressed[id(stored)] = stored, start
    return start


def begins_at(stored: Record) -> int:
    """Return the address of an array or record."""
    if isinstance(stored, array):
        return stored.buffer_info()[0]
    # for writable arrays, in a third of the time; a record's __array_interface__ spells its fields out
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(stored))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return int(stored.ctypes.data)


def filled(*fields: int) -> Words:
    """Make a record of words alone."""
    record = array("q", fields)
    if recording := RECORDING.get():
        recording.records.append(record)
    return record


def make_record(fields: ArrayLike, kind: DTypeLike) -> np.ndarray:
    """Make a record of this kind, or an array of words."""
    record = np.array(fields, kind)
    if recording := RECORDING.get():
        recording.records.append(record)
    return record


def temporary(shape: tuple[int, ...]) -> np.ndarray:
    """Allocate memory for float32 numbers between two launches."""
    numbers = np.empty(shape, np.float32)
    if recording := RECORDING.get():
        recording.temporaries.append(numbers)
    return numbers


def step(array: np.ndarray) -> int:
    """Return the count of numbers from the beginning of a row to that of the next."""
    return int(array.strides[0]) // array.itemsize


def words(names: str) -> list[tuple[str, str]]:
    """List the int64 fields of a record of arguments: addresses, counts, and steps between rows in numbers."""
    return [(name, "i8") for name in names.split()]


class Reserved(tuple[int, int]):
    """(address aligned to 64 bytes, bytes between workers) of memory that lasts as long as this object. Code that
    interrupts a caller, and launches too, may need more and replace the memory of the room."""

    memory: np.ndarray


class Room:
    """Scratch memory of every worker, kept between launches; grows until it is released. Used under the pool's lock."""

    def __init__(self) -> None:
        self.memory = np.empty(0, np.uint8)

    def reserve(self, size: int, workers: int) -> tuple[int, int]:
        """Reserve at least `size` bytes for each of `workers` workers: no more may launch with it."""
        if recording := RECORDING.get():
            return recording.reserve(size)
        step = -(-size // 4096) * 4096 + 64  # not all on the same cache sets
        if (memory := self.memory).size < (whole := step * workers + 64):
            self.memory = memory = np.empty(0, np.uint8)  # the old memory is freed first
            self.memory = memory = np.empty(whole, np.uint8)
        start = address(memory)
        reserved = Reserved((start + -start % 64, step))
        reserved.memory = memory
        return reserved

    def release(self) -> None:
        """Give the memory back, unless a launch is on."""
        with POOL.lock:
            self.memory = np.empty(0, np.uint8)


ROOM, ARENA = Room(), Room()  # of kernels; of recordings, for values between kernels


def launch(workers: int, *stages: Launch) -> None:
    """Run stages in order, each on up to `workers` threads, for which the caller reserved memory under the pool's
    lock."""
    if recording := RECORDING.get():
        recording.stages.extend(stages)
        return
    with POOL.lock:
        for kernel, arguments, items in stages:
            if items == 1:
                kernel.call(0, 0, address(arguments))
            elif items:
                POOL.run(kernel.address, address(arguments), items, workers)


def warm(names: list[str] | None = None, progress: Callable[[str, float], None] = lambda name, seconds: None) -> float:
    """Compile these kernels (by default all but rare ones), or read them from the cache, with progress(name, seconds).
    Return the seconds in all."""
    started = time.perf_counter()
    if unknown := set(names or ()) - set(FUNCTIONS):
        raise ValueError(f"kernels: there is no {', '.join(unknown)}; there are {', '.join(FUNCTIONS)}")
    provide([FUNCTIONS[name] for name in names or FUNCTIONS if names or not FUNCTIONS[name].rare], progress)
    return time.perf_counter() - started
