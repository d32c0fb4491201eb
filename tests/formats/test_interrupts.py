"""Interrupts at random moments, calls within callbacks, threads whose number changes, forks: nothing hangs, results
stay right."""

import ctypes
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import checkpoints
import numpy as np
import pytest
from children import LIMIT, ROOT, SUPPORT, printed
from programs import bert_program, fused_layer
from test_threads import mark

from formats import FORMATS, kernels
from formats.host import threads
from formats.kernels.engine import compiled, launch, pool
from formats.kernels.rows import activations
from opmatrix.runtime import recorded

sys.path.append(str(ROOT / "benchmarks"))

import faults

CONFIG = checkpoints.CONFIG | {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 3,
    "max_position_embeddings": 64,
}
MANY = [[at % 40] * (at % 60 + 1) for at in range(30)]
POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def program(pack="packed"):
    return bert_program(CONFIG, checkpoints.arrays(CONFIG), fused_layer, FORMATS[pack].approximate)


def child(code, **environment):
    """What a Python prints that imports what is tested, and the tests."""
    return printed(code, Path(__file__).parent, SUPPORT, ROOT, **environment)


# ---- interrupts


@POSIX
def test_an_interrupted_run_leaves_the_next_one_right():
    """At random moments, one to three signals at a time, beside a busy process."""
    said = faults.told(50, 1, seed=1)
    assert Counter(end for _, end in said) == {"right": 50}


class Elapsed(Exception):
    """What the signal of a time limit raises."""


@POSIX
def test_an_interrupt_waits_for_the_end_of_its_launch():
    """Whatever a handler raises: by then no thread works on what the launch was given."""

    def elapsed(number, frame):
        raise Elapsed

    before, raised = signal.signal(signal.SIGALRM, elapsed), 0
    try:
        for at in range(20):
            done, by = np.zeros(7, np.int64), np.zeros(threads.available(), np.int64)
            arguments = np.array([done.ctypes.data, by.ctypes.data, 100_000])
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-3 + at * 1e-4)
                launch.launch(threads.threads(), (mark, arguments, 7))
            except Elapsed:
                raised += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            assert set(done) in ({0}, {1})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert raised


def test_an_exception_that_another_thread_sets():
    """PyThreadState_SetAsyncExc in any of many runs; other callers notice nothing."""
    shared, ended, right = program("int8"), Event(), []
    wanted = shared.run(MANY)

    def work():
        while not ended.is_set():
            with suppress(Elapsed):
                right.append(np.array_equal(shared.run(MANY), wanted))

    workers = [Thread(target=work) for _ in range(2)]
    for each in workers:
        each.start()
    for _ in range(100):
        for each in workers:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(each.ident), ctypes.py_object(Elapsed))
        assert np.array_equal(shared.run(MANY), wanted)
    ended.set()
    for each in workers:
        each.join()
    assert right and all(right)


def test_a_recording_that_is_given_up_leaves_nothing():
    """An exception in the middle of it: launches run again, on as many threads as before."""
    one = program()

    def broken(**arguments):
        raise Elapsed

    call = one.schedule.calls[2]
    one.schedule.calls[2] = call._replace(kernel=type(call.kernel).__new__(type(call.kernel)))
    vars(one.schedule.calls[2].kernel).update(vars(call.kernel) | {"function": broken})
    with pytest.raises(Elapsed):
        one.run(MANY)
    assert (
        launch.RECORDING.get() is None and compiled.MISSING.get() is None and threads.threads() == threads.available()
    )
    one.schedule.calls[2] = call
    assert np.array_equal(one.run(MANY), program().run(MANY))


# ---- calls within calls


@POSIX
def test_a_handler_may_run_programs():
    """Between any two steps of a run, and of a recording, on more room than that has."""
    inner, ran = program("csr"), []
    small, large = [[3] * 4], [[5] * 60 for _ in range(40)]
    wanted = [program().run(small), inner.run(large)]
    x = np.ones((300, 700), np.float32)
    product = kernels.product_dense(x, x.T.copy(), np.empty((300, 300), np.float32))

    def handle(number, frame):
        launch.ROOM.release()
        launch.ARENA.release()
        ran.append(np.array_equal(inner.run(large), wanted[1]))
        if launch.RECORDING.get() is None:
            ran.append(np.array_equal(kernels.product_dense(x, x.T.copy(), np.empty((300, 300), np.float32)), product))

    before = signal.signal(signal.SIGALRM, handle)
    try:
        for moment in np.random.default_rng(0).uniform(1e-5, 5e-3, 60):
            outer = program()
            signal.setitimer(signal.ITIMER_REAL, moment)
            found = outer.run(small)
            while np.array_equal(found, wanted[0]) and signal.getitimer(signal.ITIMER_REAL)[0]:
                found = outer.run(small)
            assert np.array_equal(found, wanted[0])
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(ran) >= 60 and all(ran)


def test_progress_may_run_programs_while_another_thread_needs_the_compiler(monkeypatch):
    """Progress waits for the pool, whose owner waits to compile: no lock is held in progress."""
    found, x = activations.PASSES["square"], np.ones((64, 64), np.float32)
    kernels.product_packed(x, x.ravel(), np.empty_like(x))
    monkeypatch.setattr(compiled, "provided", lambda functions, others: ((each.name, 0.0) for each in functions))
    begun, told = Event(), []

    def other():
        with pool.POOL.lock:
            begun.set()
            time.sleep(0.05)
            compiled.provide([found])

    def progress(name, seconds):
        thread.start()
        begun.wait()
        told.append(kernels.product_packed(x, x.ravel(), np.empty_like(x)).sum())

    thread = Thread(target=other)
    caller = Thread(target=lambda: compiled.provide([found], progress), daemon=True)
    caller.start()
    caller.join(LIMIT)
    assert told == [64**3]


# ---- threads whose number changes

OURS = (
    *(f"attentions.{name}" for name in ("attending", "heads", "masked")),
    "rows.passes",
    *(
        f"matmul.{name}"
        for name in ("block_vectorwise", "by_head", "linear", "bf16_int8_int4", "packed_panels", "csr_nm")
    ),
)
CHANGES = """
import numpy as np
import test_interrupts as here
from formats import FORMATS; from formats.host import threads
from formats.storage.check import check
from formats.kernels.engine import launch

wanted = {name: here.program(name).run(here.MANY) for name in here.PACKS}
rng = np.random.default_rng(0)
x, W = np.ones((300, 700), np.float32), rng.standard_normal((700, 200), np.float32)
weights = [FORMATS[name].approximate(W) for name in here.PACKS]
products = [weight.matmul(x) for weight in weights]
here.replace_threads(lambda: threads.FIXED.get() or int(rng.choice((1, 2, 4))))
here.reserve_before_a_guard()
for name in here.PACKS:
    shared = here.program(name)
    for _ in range(20): assert np.array_equal(shared.run(here.MANY), wanted[name]), name
for weight, product in zip(weights, products, strict=True):
    for _ in range(20): assert np.array_equal(weight.matmul(x), product), weight.name
for name in FORMATS:
    if name != "nm":
        for _ in range(3): check(FORMATS[name], rng)
print("right")
"""
PACKS = "packed", "int8", "bf16"


def replace_threads(function):
    """In place of `threads`, wherever a launch may ask for it."""
    modules = [
        sys.modules[f"formats.kernels.{name}"]
        if f"formats.kernels.{name}" in sys.modules
        else __import__(f"formats.kernels.{name}", fromlist=["x"])
        for name in OURS
    ]
    for module in (threads, recorded, *modules):
        module.threads = function


def reserve_before_a_guard():
    """Rooms that are as small as they may be, and end where pages begin that nobody may touch, for more workers than
    there are."""
    page, guard, libc, reserve = mmap.PAGESIZE, 1 << 26, ctypes.CDLL(None), launch.Room.reserve

    def guarded(size, kind):
        whole = -(-size // page) * page
        array = np.frombuffer(mmap.mmap(-1, whole + guard), np.uint8)
        assert libc.mprotect(ctypes.c_void_p(array.ctypes.data + whole), ctypes.c_size_t(guard), 0) == 0
        return array[whole - size : whole]

    def anew(room, size, workers):
        room.memory = np.empty(0, np.uint8)
        return reserve(room, size, workers)

    launch.Room.reserve = anew
    launch.np = SimpleNamespace(
        **vars(np) | {"empty": lambda shape, kind: (guarded if kind is np.uint8 else np.empty)(shape, kind)}
    )


@pytest.mark.deep
@POSIX
def test_every_launch_asks_once_how_many_threads_there_are():
    """Otherwise room is reserved for some workers and launched with more: here beside pages that nobody may touch."""
    assert child(CHANGES, NUMBA_NUM_THREADS="4") == "right\n"


def test_limits_that_come_and_go():
    shared = [program(pack) for pack in PACKS]
    wanted, ended = [each.run(MANY) for each in shared], Event()

    def toggle():
        while not ended.is_set():
            with threads.limit(1):
                time.sleep(1e-4)
            time.sleep(1e-4)

    togglers = [Thread(target=toggle) for _ in range(2)]
    for each in togglers:
        each.start()
    try:
        for _ in range(100):
            for each, right in zip(shared, wanted, strict=True):
                assert np.array_equal(each.run(MANY), right)
    finally:
        ended.set()
        for each in togglers:
            each.join()
    assert threads.threads() == threads.available()


# ---- forks, and the end of a process

FORKS = """
import os, signal, sys, time
from threading import Event, Thread
from types import SimpleNamespace
import numpy as np
import test_interrupts as here
from formats import kernels; from formats.host import threads
from formats.kernels.rows import activations; from formats.kernels.engine import compiled

shared, x = here.program(), np.ones((32, 32), np.float32)
wanted, over = shared.run(here.MANY), Event()
def runs():
    while not over.is_set(): shared.run(here.MANY)
def compiles():
    while not over.is_set():
        with compiled.COMPILING: time.sleep(0.3)
def limits():
    while not over.is_set():
        with threads.limit(1), threads.single_blas(): pass
busy = [Thread(target=each) for each in (runs, compiles, limits)]
for each in busy: each.start()
time.sleep(0.1)
for at in range(20):
    if not (child := os.fork()):
        signal.alarm(240)
        compiled.provide([activations.PASSES["square"]])
        right = np.array_equal(shared.run(here.MANY), wanted) and not threads.CHOSEN and not threads.SINGLE_BLAS.inside
        with threads.single_blas(): fresh = np.array_equal(here.program().run(here.MANY), wanted)
        os._exit(0 if right and fresh else 1)
    status = os.waitpid(child, 0)[1]
    if status: break
over.set()
for each in busy: each.join()
assert not status, status
print("right")
"""


@POSIX
def test_a_fork_may_come_at_any_time():
    """Other threads run programs, hold the compiler's lock, change limits: the forked process has them all to
    itself."""
    assert child(FORKS) == "right\n"


def summed(rows):
    return float(program().run([[5] * rows]).sum())


@POSIX
@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_processes_of_multiprocessing(kind):
    wanted = [summed(rows) for rows in range(1, 5)]
    with multiprocessing.get_context(kind).Pool(2) as processes:
        assert processes.map(summed, range(1, 5)) == wanted


ENDS = """
import os, sys, time
from threading import Thread
import test_interrupts as here
shared = here.program()
shared.run(here.MANY)
def runs():
    while True: shared.run(here.MANY)
for _ in range(20):
    if not (child := os.fork()):
        for _ in range(2): Thread(target=runs, daemon=True).start()
        time.sleep(0.02)
        sys.exit(0)                                         # ends as any process does, not at once
    for _ in range(20_000):
        done, status = os.waitpid(child, os.WNOHANG)
        if done: break
        time.sleep(0.01)
    assert done and not status, (done, status)
print("right")
"""


@pytest.mark.deep
@POSIX
def test_a_process_ends_while_threads_run_programs():
    assert child(ENDS).endswith("right\n")


def test_after_the_end_whoever_launches_does_everything():
    """What runs later than the pool is closed: destructors, and functions that were registered for the end before."""
    code = """
import atexit
import test_interrupts as here
shared = here.program()
wanted = shared.run(here.MANY)
from formats.kernels.engine.pool import POOL
POOL.close()
assert POOL.threads and not any(each.is_alive() for each in POOL.threads)
assert (shared.run(here.MANY) == wanted).all()
print("right")
"""
    assert child(code) == "right\n"


def test_a_child_that_hangs_says_where(tmp_path, monkeypatch):
    """Its time begins once it waits, however late that is."""
    waiting = tmp_path / "waiting"

    def communicate(child, wait=subprocess.Popen.communicate, timeout=None):
        while timeout and not waiting.exists():
            time.sleep(0.01)
        return wait(child, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    code = f"import time\ndef waits(): open({str(waiting)!r}, 'w').close(); time.sleep(1000)\nwaits()"
    with pytest.raises(AssertionError, match=r"(?s)not ended after 0.1 s.*in waits"):
        printed(code, ROOT, limit=0.1)
