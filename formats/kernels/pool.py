"""The pool of threads: whoever launches takes items too, and waits only for items that some thread has begun.

So a thread that is held up (another program, another pool) delays nothing: the others take its share. On a busy machine
an OpenMP loop, which waits until every thread has come and gone, took twenty times as long. Threads look for work for
longer than Python needs between two launches, then sleep: waking up takes as long as a small kernel."""
import os
import time
from collections.abc import Callable
from threading import Lock, RLock, Thread
from typing import Any

import numpy as np

from ..threads import threads
from .compiled import HELPER, Function
from .memory import WORD, call
from .native import get_or_insert_function, intrinsic, ir, njit, types

# offsets in the shared state, on separate lines of the cache; a ticket is the launch (upper half) and its next item
TICKET, DONE, FUNCTION, ARGUMENTS, ITEMS, WORKERS, ASLEEP, SIZE = 0, 64, 128, 136, 144, 152, 192, 256
NOTHING = (1 << 32) - 1                                      # a ticket's lower half, and an item that no launch has
PATIENCE = 12000                                             # looks for work before sleep: a fifth to a half of a millisecond


def word(builder: Any, address: ir.Value) -> ir.Value: return builder.inttoptr(address, WORD.as_pointer())


@intrinsic
def load(typing, address):
    """The word at an address; what other threads wrote before it is seen too."""
    def code(context, builder, signature, values): return builder.load_atomic(word(builder, values[0]), "acquire", 8)
    return types.int64(types.int64), code


@intrinsic
def store(typing, address, value):
    """Write a word; threads that load it see what was written before."""
    def code(context, builder, signature, values):
        builder.store_atomic(values[1], word(builder, values[0]), "release", 8)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64), code


@intrinsic
def increase(typing, address):
    """Add one to a word."""
    def code(context, builder, signature, values):
        return builder.atomic_rmw("add", word(builder, values[0]), WORD(1), "acq_rel")
    return types.int64(types.int64), code


@intrinsic
def exchange(typing, address, old, new):
    """Write a word if it is still the old one; whether it was."""
    def code(context, builder, signature, values):
        result = builder.cmpxchg(word(builder, values[0]), values[1], values[2], "acq_rel", "acquire")
        return builder.extract_value(result, 1)
    return types.boolean(types.int64, types.int64, types.int64), code


@intrinsic
def pause(typing):
    """Leave the core's resources to its other thread for a moment, where the processor can."""
    def code(context, builder, signature, values):
        if str(builder.module.triple).startswith(("x86_64", "i686")):
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()
    return types.void(), code


@njit(**HELPER)
def work(state, worker):
    """Take items and do them until none is left.

    A ticket can be taken only while its launch lasts, so function, arguments and items are those of the same launch."""
    while True:
        ticket = load(state + TICKET)
        item = ticket & NOTHING
        if item >= load(state + ITEMS) or worker >= load(state + WORKERS): return
        function, arguments = load(state + FUNCTION), load(state + ARGUMENTS)
        if exchange(state + TICKET, ticket, ticket + 1):
            call(function, item, worker, arguments)
            increase(state + DONE)


@njit(**HELPER)
def wait(state, patience):
    """Whether all items of the last launch are done, after some patience."""
    for _ in range(patience):
        if load(state + DONE) == load(state + ITEMS): return 1
        pause()
    return 0


@njit(**HELPER)
def publish(state, function, arguments, items, workers):
    """Offer the items of a launch to all threads."""
    launch = (load(state + TICKET) >> 32) + 1
    store(state + TICKET, launch << 32 | NOTHING)
    store(state + DONE, 0)
    store(state + FUNCTION, function)
    store(state + ARGUMENTS, arguments)
    store(state + ITEMS, items)
    store(state + WORKERS, workers)
    store(state + TICKET, launch << 32)


@Function.of(5)
def offer(state, function, arguments, items, workers):
    """Publish a launch."""
    publish(state, function, arguments, items, workers)


@Function.of(2, result=True)
def drive(state, patience):
    """Take part in a launch, and wait for the items of others; whether all are done."""
    work(state, 0)
    return wait(state, patience)


@Function.of(2, result=True)
def offered(state, worker):
    """Whether there is an item that this worker may take."""
    return (load(state + TICKET) & NOTHING) < load(state + ITEMS) and worker < load(state + WORKERS)


@Function
def serve(state, worker, patience):
    """Do the items of every launch, until there has been none for a while."""
    idle = 0
    while idle < patience:
        before = load(state + TICKET)
        work(state, worker)
        idle = idle + 1 if load(state + TICKET) == before else 0
        pause()


class Pool:
    """Threads that serve one state; made when a launch first needs them. The lock is for one caller at a time."""

    def __init__(self) -> None:
        self.reset()
        if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """No threads yet: also what a forked process has."""
        self.lock, self.room = RLock(), np.zeros(SIZE + 64, np.uint8)
        self.state = int(self.room.ctypes.data) + -int(self.room.ctypes.data) % 64
        self.words = self.room[self.state - int(self.room.ctypes.data):][:SIZE].view(np.int64)
        self.beds: list[Lock] = []                           # thread i + 1 sleeps on lock i
        self.asleep: set[int] = set()

    def run(self, function: int, arguments: int, items: int) -> None:
        """Call function(item, worker, arguments) for every item, on as many threads as there are."""
        others = min(threads(), items) - 1
        done = False
        try:
            offer.call(self.state, function, arguments, items, others + 1)
            self.wake(others)                                # not before: who lies down meanwhile looks for items again
            done = drive.call(self.state, PATIENCE)
            while not done:
                time.sleep(2e-5)
                done = drive.call(self.state, PATIENCE)
        finally:                                             # an interrupt must not free what threads still work on
            while not done: done = drive.call(self.state, PATIENCE)

    def wake(self, others: int) -> None:
        """So many threads beside the caller's, awake."""
        while len(self.beds) < others: self.employ()
        for thread in [thread for thread in tuple(self.asleep) if thread < others]:     # they lie down meanwhile
            self.asleep.discard(thread)
            self.beds[thread].release()
        self.tell()

    def tell(self) -> None:
        """Say to native code who is asleep, a bit each."""
        self.words[ASLEEP // 8] = sum(1 << thread for thread in tuple(self.asleep) if thread < 62)

    def conduct(self, stages: Callable[[int, int, int], int]) -> None:
        """Stages in order, each on all threads. stages(state, first, patience) begins with one, and gives the number of those
        begun where it waits for others too long, or finds some asleep; 0 at the end."""
        self.wake(threads() - 1)
        first, done = stages(self.state, 0, PATIENCE), False
        try:
            while first:
                if not (done := drive.call(self.state, PATIENCE)): time.sleep(2e-5)
                else:
                    self.wake(threads() - 1)
                    first = stages(self.state, first, PATIENCE)
            done = True
        finally:                                             # as above
            while not done: done = drive.call(self.state, PATIENCE)

    def employ(self) -> None:
        """One more thread."""
        self.beds.append(bed := Lock())
        bed.acquire()
        function = serve.call                                # compiled here, so that an error is raised here
        Thread(target=self.life, args=(function, len(self.beds) - 1, bed), daemon=True, name="opmatrix").start()

    def life(self, function: Callable[..., None], thread: int, bed: Lock) -> None:
        """Serve, and sleep when there is nothing to do."""
        state, room = self.state, self.room                  # held: a thread may outlive a reset
        while room.size:
            function(state, thread + 1, PATIENCE)
            self.asleep.add(thread)
            self.tell()
            if offered.call(state, thread + 1) and thread in self.asleep: self.asleep.discard(thread)
            else: bed.acquire()


POOL = Pool()
