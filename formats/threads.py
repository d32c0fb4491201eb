"""How many threads kernels use, and how BLAS is kept from using others beside them."""
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

from .host import Host

BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def command_line_environment() -> dict[str, str]:
    """What a command line should put into the environment before numpy is imported; a library must not."""
    return {name: "1" for name in BLAS_VARIABLES} | {"OPENBLAS_THREAD_TIMEOUT": "4"}


@cache
def available() -> int:
    """Threads that the user allows (NUMBA_NUM_THREADS or OMP_NUM_THREADS), otherwise processors that we may use, as far as a
    quota of time goes: more threads than that would be stopped in the middle of what others wait for."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        if (value := os.environ.get(name, "").split(",")[0]).isdecimal() and int(value): return int(value)
    return Host.here().usable


CHOSEN: list[int] = []


def threads() -> int:
    """Threads that a kernel uses."""
    return min(CHOSEN, default=available())


@contextmanager
def limit(count: int) -> Generator[None]:
    """Kernels inside use at most so many threads, of all callers."""
    if count < 1: raise ValueError(f"threads: expected at least 1, got {count}")
    CHOSEN.append(min(count, available()))
    try: yield
    finally: CHOSEN.remove(min(count, available()))


class SingleBlas:
    """A re-entrant context: while anyone is inside, every BLAS library runs on one thread (two microseconds)."""

    def __init__(self) -> None:
        self.lock, self.depth = threading.Lock(), 0
        self.settings: list[tuple[Callable[[int], None], int]] = []

    def __enter__(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                self.settings = [(put, count) for get, put in libraries() if (count := get()) > 1]
                for put, _ in self.settings: put(1)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth:
                for put, count in self.settings: put(count)


@cache
def libraries() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """(get, set) of the thread count of every BLAS library that is loaded by the time of the first use."""
    from threadpoolctl import ThreadpoolController
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple((library.get_num_threads, library.set_num_threads) for library in found)


SINGLE_BLAS = SingleBlas()


@contextmanager
def single_blas() -> Generator[None]:
    """Limit BLAS to one thread inside; the caller's own setting is restored on leaving."""
    with SINGLE_BLAS: yield
