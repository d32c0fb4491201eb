"""The number of threads that kernels use, and contexts that keep BLAS from using others beside them."""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TypeVar

from formats.host.host import Host

T = TypeVar("T")
BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

COUNTS = "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"  # the first that is a number counts
ALWAYS_ALLOWED = 64  # threads that any setting may request


def command_line_environment() -> dict[str, str]:
    """Return the variables that a command line should set before numpy is imported; a library must not set them."""
    return {name: "1" for name in BLAS_VARIABLES} | {"OPENBLAS_THREAD_TIMEOUT": "4"}


def asked(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """Return the variable that requests a number of threads, and that number; ("", 0) where none holds a number."""
    counts = ((name, parse_count(environment.get(name, "").split(",")[0])) for name in COUNTS)
    return next(((name, count) for name, count in counts if count), ("", 0))


def parse_count(text: str) -> int:
    """Parse a text of digits; 0 for any other text. Python refuses to parse thousands of digits, so a number of ten
    digits or more becomes a billion."""
    if not text.isdecimal():
        return 0
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) < 10 else 10**9


def most() -> int:
    """Return the largest number of threads that a setting may request: each has a stack, and memory of its own in every
    arena."""
    return max(ALWAYS_ALLOWED, 4 * (os.cpu_count() or 1))


@cache
def available() -> int:
    """Return the number of threads that the user allows (see `asked`), up to `most`; otherwise the processors that we
    may use, as far as a quota of time goes: more threads than that would be stopped in the middle of work that others
    wait for."""
    return min(asked()[1], most()) or Host.here().usable


FIXED: ContextVar[int] = ContextVar("workers", default=0)  # set by a recording or a check, for its thread alone
CHOSEN: dict[tuple[int, object], int] = {}  # counts by thread and block of `limit`


def threads() -> int:
    """Return the number of threads that a kernel uses. Another thread may change it at any time: a launch reads it once
    and hands it on."""
    return FIXED.get() or min(CHOSEN.values(), default=available())


@contextmanager
def limit(count: int) -> Generator[None]:
    """Limit kernels of all callers that begin inside the block to `count` threads, and never more than are
    available."""
    if count < 1:
        raise ValueError(f"threads: expected at least 1, got {count}")
    block = threading.get_ident(), object()
    try:  # an interrupt may come right after the entry is made
        CHOSEN[block] = min(count, available())
        yield
    finally:
        CHOSEN.pop(block, None)


@contextmanager
def on_threads(count: int) -> Generator[None]:
    """Run kernels that this thread begins inside the block on `count` threads, whatever others limit."""
    before = FIXED.set(min(count, available()))
    try:
        yield
    finally:
        FIXED.reset(before)


def numbers_of_threads() -> tuple[int, ...]:
    """Return every number of threads that a program may use."""
    return tuple(range(1, available() + 1))


class SingleBlas:
    """A re-entrant context: while any thread is inside, every BLAS library runs on one thread (two microseconds)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: list[int] = []  # threads, each as often as it has entered
        self.settings: list[tuple[Callable[[int], None], int]] = []

    def __enter__(self) -> None:
        with self.lock:
            self.inside.append(threading.get_ident())
            if len(self.inside) == 1:
                self.settings = [(put, count) for get, put in libraries() if (count := get()) > 1]
                for put, _ in self.settings:
                    put(1)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside.remove(threading.get_ident())
            if not self.inside:
                self.restore()

    def restore(self) -> None:
        """Restore every library's own number of threads."""
        for put, count in self.settings:
            put(count)

    def forked(self) -> None:
        """Reset after a fork: the lock is free, and threads that the new process lacks are no longer inside."""
        self.lock, before = threading.Lock(), self.inside
        self.inside = [thread for thread in before if thread == threading.get_ident()]
        if before and not self.inside:
            self.restore()


@cache
def libraries() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """Return (get, set) of the thread count of every BLAS library that is loaded by the time of the first use."""
    from threadpoolctl import ThreadpoolController

    controllers = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple((library.get_num_threads, library.set_num_threads) for library in controllers)


SINGLE_BLAS = SingleBlas()


@contextmanager
def single_blas() -> Generator[None]:
    """Limit BLAS to one thread inside; the caller's own setting is restored on leaving."""
    with SINGLE_BLAS:
        yield


def in_threads(calls: Iterable[Callable[[], T]], most: int = 2) -> list[T]:
    """Run these calls, `most` at a time, each on one thread of BLAS, and return their results. The next call is drawn
    when a thread is free, so an iterator that makes large calls holds few of them. Raises the first of their errors."""
    from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

    count, results, running = min(most, available()), list[Future[T]](), set[Future[T]]()
    with single_blas(), ThreadPoolExecutor(count) as pool:
        for call in calls:
            results.append(pool.submit(call))
            running.add(results[-1])
            if len(running) >= count:
                running = wait(running, return_when=FIRST_COMPLETED).not_done
        return [result.result() for result in results]


def forked() -> None:
    """Forget the limits of threads that a forked process does not have."""
    for block in [*CHOSEN]:
        if block[0] != threading.get_ident():
            del CHOSEN[block]
    SINGLE_BLAS.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forked)
