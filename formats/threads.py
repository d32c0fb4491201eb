"""One pool of threads: numba's. BLAS computes inside it on one thread, and gets its own threads back afterwards."""
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def command_line_environment() -> dict[str, str]:
    """What a command line should put into the environment before numpy is imported; a library must not."""
    return {name: "1" for name in BLAS_VARIABLES} | {"OPENBLAS_THREAD_TIMEOUT": "4", "OMP_WAIT_POLICY": "ACTIVE"}


@cache
def pool() -> str:
    """Choose the pool once: OpenMP where numba has it, unless the user chose, and return the chosen layer's name."""
    from numba.core import config
    if config.THREADING_LAYER == "default":
        try:
            import numba.np.ufunc.omppool  # noqa: F401
            config.THREADING_LAYER = "omp"
        except ImportError:
            config.THREADING_LAYER = "workqueue"
    return str(config.THREADING_LAYER)


def threads() -> int:
    """Threads that a kernel called from here would use."""
    import numba
    return int(numba.get_num_threads())


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
    """(get, set) of the thread count of every BLAS library that is loaded by the time of the first kernel."""
    import scipy.linalg.cython_blas  # noqa: F401     # the one that kernels call; loaded now so that it is found
    from threadpoolctl import ThreadpoolController
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple((library.get_num_threads, library.set_num_threads) for library in found)


SINGLE_BLAS = SingleBlas()


@contextmanager
def single_blas() -> Iterator[None]:
    """Limit BLAS to one thread inside; the caller's own setting is restored on leaving."""
    with SINGLE_BLAS: yield
