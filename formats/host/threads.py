"""How many threads kernels use, and how BLAS is kept from using others beside them."""
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

COUNTS = "NUMBA_NUM_THREADS", "OMP_NUM_THREADS"              # the first that is a number counts
ALWAYS_ALLOWED = 64                                          # threads that anybody may ask for


def command_line_environment() -> dict[str, str]:
    """What a command line should put into the environment before numpy is imported; a library must not."""
    return {name: "1" for name in BLAS_VARIABLES} | {"OPENBLAS_THREAD_TIMEOUT": "4"}


def asked(environment: Mapping[str, str] = os.environ) -> tuple[str, int]:
    """The variable that says how many threads there are to be, and how many; ("", 0) where none says a number."""
    given = ((name, parse_count(environment.get(name, "").split(",")[0])) for name in COUNTS)
    return next(((name, count) for name, count in given if count), ("", 0))


def parse_count(text: str) -> int:
    """The number of a text of digits; 0 for any other. Python refuses to read thousands of them, and a billion is as
    good."""
    if not text.isdecimal(): return 0
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) < 10 else 10 ** 9


def most() -> int:
    """Threads at most, whoever asks: each has a stack, and memory of its own in every arena."""
    return max(ALWAYS_ALLOWED, 4 * (os.cpu_count() or 1))


@cache
def available() -> int:
    """Threads that the user allows (see `asked`), up to `most`; otherwise processors that we may use, as far as a quota
    of time goes: more threads than that would be stopped in the middle of what others wait for."""
    return min(asked()[1], most()) or Host.here().usable


FIXED: ContextVar[int] = ContextVar("workers", default=0)     # of a recording or a check, for its thread alone
CHOSEN: dict[tuple[int, object], int] = {}                  # by thread and block of `limit`


def threads() -> int:
    """Threads that a kernel uses. Another thread may change it at any time: a launch reads it once and hands it on."""
    return FIXED.get() or min(CHOSEN.values(), default=available())


@contextmanager
def limit(count: int) -> Generator[None]:
    """Kernels that begin inside use at most so many threads, of all callers, and never more than are available."""
    if count < 1: raise ValueError(f"threads: expected at least 1, got {count}")
    block = threading.get_ident(), object()
    try:                                                     # an interrupt may come right after the entry is made
        CHOSEN[block] = min(count, available())
        yield
    finally: CHOSEN.pop(block, None)


@contextmanager
def on_threads(count: int) -> Generator[None]:
    """Kernels that this thread begins inside use so many threads, whatever others limit."""
    before = FIXED.set(min(count, available()))
    try: yield
    finally: FIXED.reset(before)


def numbers_of_threads() -> tuple[int, ...]:
    """Each number of threads that a program may use."""
    return tuple(range(1, available() + 1))


class SingleBlas:
    """A re-entrant context: while anyone is inside, every BLAS library runs on one thread (two microseconds)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside: list[int] = []                          # threads, each as often as it has entered
        self.settings: list[tuple[Callable[[int], None], int]] = []

    def __enter__(self) -> None:
        with self.lock:
            self.inside.append(threading.get_ident())
            if len(self.inside) == 1:
                self.settings = [(put, count) for get, put in libraries() if (count := get()) > 1]
                for put, _ in self.settings: put(1)

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside.remove(threading.get_ident())
            if not self.inside: self.restore()

    def restore(self) -> None:
        """Every library's own number of threads."""
        for put, count in self.settings: put(count)

    def forked(self) -> None:
        """In a forked process: the lock is free, and threads that it has not are no longer inside."""
        self.lock, before = threading.Lock(), self.inside
        self.inside = [each for each in before if each == threading.get_ident()]
        if before and not self.inside: self.restore()


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


def in_threads(calls: Iterable[Callable[[], T]], most: int = 2) -> list[T]:
    """What these calls return, so many at a time, each on one thread of BLAS; of what they raise the first."""
    from concurrent.futures import ThreadPoolExecutor
    with single_blas(), ThreadPoolExecutor(min(most, available())) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def forked() -> None:
    """A forked process has none of the other threads, so nothing that they chose."""
    for block in [*CHOSEN]:
        if block[0] != threading.get_ident(): del CHOSEN[block]
    SINGLE_BLAS.forked()


if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=forked)
