"""The pool of threads: a caller that launches takes items too, and waits only for items that some thread has begun.

A thread that is held up (another program, another pool) delays no others: they take its share. On a busy machine an
OpenMP loop, which waits until every thread has come and gone, took twenty times as long. Threads look for work for
longer than Python needs between two launches, then park: waking up takes as long as a small kernel.

A launch is one native call that returns when all of its items are done. Python raises exceptions that interrupt a
thread (of a signal, or set by another thread) between bytecodes, so before a launch or after it: no launch is ever left
half done."""

import atexit
import ctypes
import os
from threading import RLock, Thread

import numpy as np

from formats.kernels.engine.compiled import HELPER, Function, calling
from formats.kernels.engine.memory import WORD, call
from formats.kernels.engine.native import (
    Context,
    Intrinsic,
    Signature,
    Typing,
    Values,
    get_or_insert_function,
    intrinsic,
    ir,
    njit,
    types,
)

# offsets in the shared state, on separate lines of the cache; a ticket is the launch (upper half) and its next item
TICKET, DONE, FUNCTION, ARGUMENTS, ITEMS, WORKERS = 0, 64, 128, 136, 144, 152
CLAIMED, CLOSED, ACQUIRE, RELEASE = 192, 200, 208, 216  # count of workers; flag to end them; Python's functions
MAX_WORKERS = 1024  # workers, with the caller, which is number 0
PARKED, WAKE_LOCKS = 256, 256 + 8 * MAX_WORKERS  # for each worker: a flag that it waits, and its lock
SIZE = WAKE_LOCKS + 8 * MAX_WORKERS
NO_ITEM = (1 << 32) - 1  # a ticket's lower half, and an item that no launch has
MAX_LOOKS = 12000  # looks for work before parking: 0.2 to 0.5 ms
GRACE = 1.0  # seconds that the process waits for a worker at its end


def word_pointer(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return builder.inttoptr(address, WORD.as_pointer())


@intrinsic
def atomic_load(typing: Typing, address: types.Type) -> Intrinsic:
    """Load the word at an address; writes of other threads before it are visible too."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        return builder.load_atomic(word_pointer(builder, values[0]), "acquire", 8)

    return types.int64(types.int64), code


@intrinsic
def store(typing: Typing, address: types.Type, value: types.Type) -> Intrinsic:
    """Store a word; threads that load it see all writes before it."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        builder.store_atomic(values[1], word_pointer(builder, values[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def increase(typing: Typing, address: types.Type) -> Intrinsic:
    """Add one to a word and return its old value."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        return builder.atomic_rmw("add", word_pointer(builder, values[0]), WORD(1), "acq_rel")

    return types.int64(types.int64), code


@intrinsic
def exchange(typing: Typing, address: types.Type, old: types.Type, new: types.Type) -> Intrinsic:
    """Store a word if it still has the old value; True if it had."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        result = builder.cmpxchg(word_pointer(builder, values[0]), values[1], values[2], "acq_rel", "acquire")
        return builder.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64), code


@intrinsic
def fence(typing: Typing) -> Intrinsic:
    """Issue a memory fence: of two threads that each write a word, pass a fence, and read the other's word, at least
    one sees the other's write."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def pause(typing: Typing) -> Intrinsic:
    """Leave the core's resources to its other thread for a moment, where the processor can."""

    def code(context: Context, builder: ir.IRBuilder, signature: Signature, values: Values) -> ir.Value:
        if str(builder.module.triple).startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), code


release, acquire = calling(1), calling(2)  # release and acquire the lock at an address


@njit(**HELPER)
def park(state: int, worker: int) -> None:
    """Wait for the worker's lock. The thread that clears the mark releases the lock, once: the worker itself does not
    wait then."""
    acquire(atomic_load(state + ACQUIRE), atomic_load(state + WAKE_LOCKS + 8 * worker), 1)


@njit(**HELPER)
def unpark(state: int, worker: int) -> None:
    """Wake a worker that has parked, or is about to."""
    parked = state + PARKED + 8 * worker
    if atomic_load(parked) and exchange(parked, 1, 0):
        release(atomic_load(state + RELEASE), atomic_load(state + WAKE_LOCKS + 8 * worker))


@njit(**HELPER)
def work(state: int, worker: int) -> None:
    """Take items and do them until none is left.

    A ticket can be taken only while its launch lasts, so function, arguments and items are those of the same launch."""
    while True:
        ticket = atomic_load(state + TICKET)
        item, items = ticket & NO_ITEM, atomic_load(state + ITEMS)
        if item >= items or worker >= atomic_load(state + WORKERS):
            return
        function, arguments = atomic_load(state + FUNCTION), atomic_load(state + ARGUMENTS)
        if exchange(state + TICKET, ticket, ticket + 1):
            call(function, item, worker, arguments)
            if increase(state + DONE) + 1 == items and worker:
                fence()
                unpark(state, 0)


@njit(**HELPER)
def publish(state: int, function: int, arguments: int, items: int, workers: int) -> None:
    """Offer the items of a launch to all threads. The launch before has ended."""
    launch = (atomic_load(state + TICKET) >> 32) + 1
    store(state + TICKET, launch << 32 | NO_ITEM)
    store(state + DONE, 0)
    store(state + FUNCTION, function)
    store(state + ARGUMENTS, arguments)
    store(state + ITEMS, items)
    store(state + WORKERS, workers)
    store(state + TICKET, launch << 32)
    fence()  # a worker about to park re-checks the tickets, so no wake-up is lost
    for worker in range(1, workers):
        unpark(state, worker)


@njit(**HELPER)
def finish(state: int) -> None:
    """Take part in a launch, and wait until all of its items are done. A late wake-up from the launch before only makes
    the caller look again."""
    work(state, 0)
    looks = 0
    while atomic_load(state + DONE) < atomic_load(state + ITEMS):
        looks += 1
        if looks < MAX_LOOKS:
            pause()
        else:
            store(state + PARKED, 1)
            fence()
            if atomic_load(state + DONE) < atomic_load(state + ITEMS) or not exchange(state + PARKED, 1, 0):
                park(state, 0)


@Function.of(5)
def launch_items(state: int, function: int, arguments: int, items: int, workers: int) -> None:
    """Run a launch from its beginning to its end."""
    publish(state, function, arguments, items, workers)
    finish(state)


@Function.of(2)
def worker_loop(state: int, lock: int) -> None:
    """Do items of every launch, and park after a while without any, until the workers are told to end. The worker takes
    its number here, so that no two threads can have the same. The lock is held."""
    worker = increase(state + CLAIMED) + 1
    if worker >= MAX_WORKERS:
        return
    store(state + WAKE_LOCKS + 8 * worker, lock)
    parked = state + PARKED + 8 * worker
    while not atomic_load(state + CLOSED):
        idle = 0
        while idle < MAX_LOOKS:
            before = atomic_load(state + TICKET)
            work(state, worker)
            idle = idle + 1 if atomic_load(state + TICKET) == before else 0
            pause()
        store(parked, 1)
        fence()
        wanted = (atomic_load(state + TICKET) & NO_ITEM) < atomic_load(state + ITEMS) and worker < atomic_load(
            state + WORKERS
        )
        if not ((wanted or atomic_load(state + CLOSED) != 0) and exchange(parked, 1, 0)):
            park(state, worker)


@Function.of(1)
def end_workers(state: int) -> None:
    """Tell the workers to end once they have done the items that they are at."""
    store(state + CLOSED, 1)
    fence()
    for worker in range(1, MAX_WORKERS):
        unpark(state, worker)


def held_lock() -> int:
    """Make a lock of Python's own, which native code may wait for and release, in the state in which waiting blocks."""
    allocate, take = ctypes.pythonapi["PyThread_allocate_lock"], ctypes.pythonapi["PyThread_acquire_lock"]
    allocate.restype, take.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]
    if not (lock := allocate()):
        raise MemoryError("no lock for a thread")
    take(lock, 1)
    return int(lock)


def find_symbol(name: str) -> int:
    """Return the address of a function of Python's C interface."""
    return int(ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value or 0)


def serve(state: int, room: np.ndarray) -> None:
    """Run a worker's thread; it keeps the memory of the state alive."""
    worker_loop.call(state, held_lock())


class Pool:
    """Threads that serve one state; started when a launch first needs them. The lock is for one caller at a time."""

    def __init__(self) -> None:
        self.reset()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Reset to no threads: also the state of a forked process."""
        self.lock, self.room = RLock(), np.zeros(SIZE + 64, np.uint8)
        self.state = int(self.room.ctypes.data) + -int(self.room.ctypes.data) % 64
        words = self.room[self.state - int(self.room.ctypes.data) :][:SIZE].view(np.int64)
        words[ACQUIRE // 8], words[RELEASE // 8] = (
            find_symbol("PyThread_acquire_lock"),
            find_symbol("PyThread_release_lock"),
        )
        words[WAKE_LOCKS // 8] = held_lock()
        self.threads: list[Thread] = []  # one for each worker, at least

    def run(self, function: int, arguments: int, items: int, workers: int) -> None:
        """Call function(item, worker, arguments) for every item, on up to `workers` threads."""
        launch_items.call(self.state, function, arguments, items, self.ready(min(workers, items)))

    def ready(self, workers: int) -> int:
        """Return the number of workers that a launch may have, up to `workers`; threads for them are started."""
        if len(self.threads) < min(workers, MAX_WORKERS) - 1:
            self.spawn_workers(min(workers, MAX_WORKERS) - 1)
        return min(workers, MAX_WORKERS)

    def spawn_workers(self, others: int) -> None:
        """Start threads until there are `others` beside the caller's. Where the system gives no more, the present ones
        do all work."""
        _ = worker_loop.call, end_workers.call  # compiled here, so that an error is raised here
        while len(self.threads) < others:
            thread = Thread(target=serve, args=(self.state, self.room), daemon=True, name="opmatrix")
            try:
                thread.start()
            except RuntimeError:
                return
            self.threads.append(thread)  # after it: an interrupt may add a worker, but leaves none out

    def close(self) -> None:
        """End the workers: at the end of the process no thread may be in native code that is being taken down. Later
        launches run on their callers' threads alone."""
        if self.threads:
            end_workers.call(self.state)
        for thread in self.threads:
            thread.join(GRACE)


POOL = Pool()
