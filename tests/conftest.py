"""What the tests of the algebra start from, and the one whole run that is made for all tests of a process."""

import one_blas_thread  # noqa: F401, before numpy

# isort: split
import gc
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from threading import current_thread, main_thread
from types import SimpleNamespace

import numpy as np
import pytest
from deep_parts import PARTS, is_left, runs_all
from hypothesis import HealthCheck, settings
from poisoned import poison
from tiny_config import CONFIG

from formats import kernels
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.term import Data
from opmatrix.models import build

SHARED = {"optimized", "once"}  # fixtures that several modules ask for

# Hundreds of processes import the packages, and two rewrite the assertions of all tests: bytecode is kept beside the
# sources, whatever the environment says, or each would compile all of them, which took a second of every process.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
gc.set_threshold(50_000, 10, 10)  # as the command line has it
# Drawn examples may take their time: a busy machine is no fault of theirs.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def whole(config):
    """Whether nobody named a file or a test."""
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS


def pytest_addoption(parser):
    parser.addoption(
        "--deep", action="store_true", help="run what is marked `deep`, too: who names a file or a test does"
    )
    parser.addoption(
        "--deep-part",
        type=int,
        choices=range(PARTS),
        metavar="N",
        help=f"run the N-th of {PARTS} parts of what is marked `deep`, too",
    )


def pytest_configure(config):
    """Who names a file or a test runs what is deep, too, or the part of it that is named."""
    told = getattr(config, "workerinput", None)
    option = config.option
    option.deep = told["deep"] if told else runs_all(option.deep, not whole(config), option.deep_part)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Tell a process that shares the tests: it reads the command line by itself, and no option that was set since."""
    node.workerinput["deep"] = node.config.option.deep


def pytest_sessionstart(session):
    """Before the processes of a whole run begin, kernels are compiled once, and not by each of them."""
    if whole(session.config) and session.config.getoption("numprocesses", None):
        with suppress(RuntimeError):  # what cannot be compiled, tests say
            kernels.warm()
            kernels.warm(
                ["attend_cached", "append_rows", "nibbled", "levels", "scaled_bytes", "rounded_levels", "rounded_bytes"]
            )  # rare, but not in tests


def pytest_collection_modifyitems(config, items):
    """What is `deep` is left out, but for every n-th case where that is said. Modules that share what takes long come
    first, so that one process runs them and makes it once: the other begins in the middle, and what either has left is
    taken from its end."""
    if not config.option.deep:
        seen = Counter()
        left = [
            item
            for item in items
            if (mark := item.get_closest_marker("deep")) and is_left(mark, item, seen, config.option.deep_part)
        ]
        config.hook.pytest_deselected(items=left)
        gone = {*left}
        items[:] = [item for item in items if item not in gone]
    sharing = {item.path for item in items if SHARED.intersection(item.fixturenames)}
    items.sort(key=lambda item: item.path not in sharing)


def pytest_collection_finish():
    """What is collected, and all that was imported for it, lasts: nobody looks for garbage there."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def as_before_sigterm():
    """A command that runs in this process attends SIGTERM in Python; a forked process would inherit that, and one that
    waits in C may never come to it."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) is not before and current_thread() is main_thread():
        signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session", autouse=True)
def disk_not_waited_for():
    """What tests write need not outlast a loss of power, and a disk takes milliseconds to promise that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def memory_poisoned():
    """No buffer of a program and no scratch of a kernel holds what would pass for a result before it is written."""
    with pytest.MonkeyPatch.context() as patch:
        poison(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def garbage_left():
    """Where a program is timed, all garbage is collected first. Nothing is timed here, and a process that has run
    thousands of tests holds so many objects that looking at all of them takes longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        if measure := sys.modules.get("opmatrix.runtime.measure"):
            patch.setattr(measure, "gc", SimpleNamespace(**vars(gc) | {"collect": lambda: gc.collect(0)}))
        yield


@pytest.fixture(scope="session", autouse=True)
def compilers_forked():
    """What tests compile in this process. Processes that they start compile as anybody's do."""
    if not hasattr(os, "fork"):
        yield
    else:
        from zygote import Zygote

        from formats.kernels.engine import compiler

        made = Zygote(compiler.started)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiler, "started", made.started)
            yield
        made.end()


@pytest.fixture(scope="session", autouse=True)
def graphs_shared():
    """Where tests search at all."""
    with pytest.MonkeyPatch.context() as patch:
        if "rewrites.egraph.layers" in sys.modules:
            from explored import sharing

            sharing(patch)
        yield


@pytest.fixture
def graphs_anew(monkeypatch):
    """For what is about making them, and programs of them."""
    from explored import anew, extract

    monkeypatch.setattr("rewrites.egraph.layers.Explorer.graph", anew)
    monkeypatch.setattr("rewrites.search.search.extract", extract)


@pytest.fixture(scope="session")
def optimized(tmp_path_factory):
    """Imported here: most tests do without what it imports."""
    from optimized import optimized

    return optimized(tmp_path_factory.mktemp("optimized"))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def data(rng):
    """Named arrays of random numbers."""
    return lambda name, *shape: Data(rng.normal(size=shape), name)


@pytest.fixture
def batch():
    """Three sentences of unequal length, one of a single token."""
    return Batch([[3, 1, 4, 1], [5], [9, 2]], [[0, 1, 1, 0], [1], [0, 0]])


@pytest.fixture
def weights(rng):
    """The tensors of a small BERT as `at` gives them: distinct sizes, non-zero biases, gains that are not one."""
    made = {}

    def at(name, *shape):
        return made.setdefault(name, Data(rng.normal(size=shape), name))

    at.made = made
    return at


@pytest.fixture
def small(weights):
    """A BERT of two layers."""
    return build(CONFIG, weights)


@pytest.fixture
def savings_known(monkeypatch):
    """What laws save is asked by tests/rewrites/test_whole_families.py and test_report.py."""
    from standin import know_savings

    know_savings(monkeypatch)


@pytest.fixture
def machine_known(monkeypatch):
    """A whole run plans with the prices of a stand-in, and measures no kernel of this machine."""
    from standin import machine

    monkeypatch.setattr("rewrites.run.calibrated", lambda progress, *batches: machine())


@pytest.fixture
def laws_known(monkeypatch):
    """Imported here, too."""
    from standin import know_laws

    know_laws(monkeypatch)
