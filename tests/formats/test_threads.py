"""The pool: several callers, few threads, forks, sleep; BLAS limited and restored."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from children import ROOT, printed

from formats import kernels
from formats.host import threads
from formats.kernels.engine import pool
from formats.kernels.engine.compiled import Kernel
from formats.kernels.engine.launch import launch
from formats.kernels.engine.memory import longs
from formats.kernels.simd.amx import MATRIX
from formats.kernels.simd.vectors import FEATURES


@Kernel
def mark(item, worker, arguments):
    """Count the item, and whoever did it; every third item takes long."""
    a = longs(arguments, 3)
    if item % 3 == 0:
        for _ in range(a[2]):
            pool.pause()
    longs(a[0], item + 1)[item] += 1
    longs(a[1], worker + 1)[worker] += 1


def marked(items, slow=0):
    """(how often each item was done, how many items each worker did)."""
    done, by = np.zeros(max(items, 1), np.int64), np.zeros(threads.available() + 1, np.int64)
    launch(threads.threads(), (mark, np.array([done.ctypes.data, by.ctypes.data, slow]), items))
    return done[:items], by


@pytest.mark.parametrize("items", [0, 1, 2, 3, 1000])
def test_every_item_is_done_once(items):
    for slow in (0, 1000):
        done, by = marked(items, slow)
        assert (done == 1).all() and by.sum() == items


def test_launches_follow_one_another():
    """Thousands of launches of a few items: none is lost to a thread that still looks at the one before."""
    for i in range(3000):
        assert (marked(1 + i % 5)[0] == 1).all()


def test_threads_wake_up():
    for _ in range(5):
        marked(100)
        time.sleep(0.02)
        assert (marked(100, 1000)[0] == 1).all()


def test_callers_at_the_same_time():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((150, 64), np.float32), rng.standard_normal((64, 50), np.float32)
    want = kernels.product_dense(x, w, np.empty((150, 50), np.float32))
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(lambda _: kernels.product_dense(x, w, np.empty((150, 50), np.float32)), range(200)))
    assert all((one == want).all() for one in found)


def test_the_number_of_threads_changes_no_bit_of_a_row_split():
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((700, 64), np.float32), rng.standard_normal((64, 50), np.float32)
    want = kernels.product_dense(x, w, np.empty((700, 50), np.float32))
    with threads.limit(1):
        assert threads.threads() == 1
        assert (kernels.product_dense(x, w, np.empty((700, 50), np.float32)) == want).all()
        assert marked(100)[1][0] == 100
    assert threads.threads() == threads.available()


def test_limit_refuses_nothing():
    with pytest.raises(ValueError, match="at least 1, got 0"), threads.limit(0):
        pass


def run(code, **environment):
    return printed(code, ROOT, **environment)


USE = """
import numpy as np
from formats import kernels
x = np.ones((300, 40), np.float32)
def use(): assert (kernels.product_dense(x, x.T.copy(), np.empty((300, 300), np.float32)) == 40).all()
use()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_has_threads_of_its_own():
    run(USE + "import os\nif child := os.fork(): assert os.waitpid(child, 0)[1] == 0\nelse: use(); os._exit(0)")


def test_threads_may_be_fewer_or_more_than_processors():
    assert run(USE + "from formats.host.threads import threads; print(threads())", NUMBA_NUM_THREADS="5") == "5\n"
    assert run(USE + "from formats.host.threads import threads; print(threads())", NUMBA_NUM_THREADS="1") == "1\n"


def test_threads_are_no_more_than_a_quota_allows(monkeypatch):
    monkeypatch.setattr("formats.host.host.quota", lambda root: 1.5)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert threads.available.__wrapped__() == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert threads.available.__wrapped__() == 5


@pytest.mark.parametrize("asked", ["100000", "9" * 5000, "65"])
def test_threads_are_capped_and_what_is_no_number_is_ignored(monkeypatch, asked):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr("formats.host.host.quota", lambda root: None)
    for given, count in (
        (asked, 64),
        ("64", 64),
        ("000007,3", 7),
        ("many", 2),
        ("-4", 2),
        ("0" * 5000, 2),
        ("1e9", 2),
        ("", 2),
    ):
        monkeypatch.setenv("NUMBA_NUM_THREADS", given)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        assert threads.available.__wrapped__() == count
        monkeypatch.setenv("OMP_NUM_THREADS", "5")
        assert threads.available.__wrapped__() == (count if count > 2 else 5)


def test_a_limit_is_no_way_around_the_cap():
    with threads.limit(10**6):
        assert threads.threads() == threads.available() <= threads.most()


def test_a_hundred_thousand_threads_are_asked_for():
    assert (
        run(
            USE + "from formats.host.threads import most, threads; print(threads() == most())",
            NUMBA_NUM_THREADS="100000",
        )
        == "True\n"
    )


def test_blas_is_limited_inside_and_restored():
    get = [get for get, _ in threads.libraries()]
    before = [count() for count in get]
    with threads.single_blas(), threads.single_blas():
        assert [count() for count in get] == [1] * len(get)
    assert [count() for count in get] == before


def test_the_command_line_gives_blas_one_thread():
    given = threads.command_line_environment()
    code = "from formats.host.threads import libraries; import numpy; print({get() for get, _ in libraries()})"
    assert run(code, **given) == "{1}\n"


# what is left
OFF = {"avx512": [], "avx512bf16,-avx512vnni,-amx": ["+avx512f"], "amx": ["+avx512f", "+avx512vnni", "+avx512bf16"]}
BOTH = """
import numpy as np
from formats import FORMATS, kernels
from formats.storage.check import check
from formats.kernels.engine import compiled
from formats.kernels.simd.amx import MATRIX
from formats.kernels.simd.vectors import MANY_REGISTERS
from formats.kernels.simd.words import FOURS, PAIRS
assert (MANY_REGISTERS, FOURS, PAIRS, MATRIX) == {expected}
compiled.COMMON = ()                                         # nobody needs them next
rng = np.random.default_rng(0)
for T, n, p in ((1, 40, 70), (7, 40, 33), (300, 64, 96)):
    x, w = (rng.integers(-3, 4, size).astype(np.float32) for size in ((T, n), (n, p)))
    assert (kernels.product_dense(x, w, np.empty((T, p), np.float32)) == x @ w).all()
    same, starts = np.ones((T, 2, 20), np.float32), np.array([0, T])
    assert abs(kernels.attention(same, same, same, starts, np.empty_like(same)) - 1).max() < 1e-6
for name in {formats}: check(FORMATS[name], rng)
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    "off, left",
    [
        pytest.param(off, left, id=off)
        for off, left in OFF.items()
        if {*left} <= {*FEATURES.split(",")} and (off != "amx" or MATRIX)
    ],
)
def test_a_processor_with_less(off, left):
    """Other tiles of sums are used there, and other instructions for narrow numbers; whole numbers have exact products.
    Its kernels are kept beside the others, under another key."""
    expected = *(feature in left for feature in ("+avx512f", "+avx512vnni", "+avx512bf16")), False
    formats = ["int8", "packed", "block"] if off == "avx512" else ["bf16", "int8", "int4"]
    run(BOTH.format(expected=expected, formats=formats), OPMATRIX_FEATURES=f"-{off}")


HALVES = """
import numpy as np
from formats import FORMATS, kernels
from formats.storage.check import check
from formats.kernels.engine import compiled
from formats.kernels.engine.memory import WIDENS
assert WIDENS == {expected}
compiled.COMMON = ()                                         # nobody needs them next
table = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
found = kernels.gather(np.arange(256), table.view(np.float16), np.empty((256, 256), np.float32)).view(np.uint32)
with np.errstate(invalid="ignore"): wanted = table.view(np.float16).astype(np.float32).view(np.uint32)
wanted = np.where(wanted & 0x7FFFFFFF > 0x7F800000, wanted | 0x400000, wanted)      # a NaN that signals is quiet then
wanted[128, 0] = 0                                           # -0 + 0: a sum begins with it
wrong = [tuple(at) for at in np.argwhere(found != wanted)[:5]]
assert not wrong, [(hex(table[at]), hex(found[at]), hex(wanted[at])) for at in wrong]
check(FORMATS["half"], np.random.default_rng(0))
"""


@pytest.mark.deep(every=2)
@pytest.mark.skipif(
    "+f16c" not in FEATURES.split(","), reason="this processor has no instruction that could be missing"
)
@pytest.mark.parametrize("settings", [{}, {"OPMATRIX_FEATURES": "-avx"}], ids=["with", "without"])
def test_every_float16_is_widened_to_the_same_bits_with_and_without_an_instruction(settings):
    run(HALVES.format(expected=not settings), **settings)
