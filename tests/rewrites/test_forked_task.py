"""Work in a forked process: its answer, what it announces, its failures, and that nothing is left of it."""

import os
import signal
import time

import pytest

from rewrites.verify import VerificationError, forked_task
from rewrites.verify.forked_task import ForkedTask

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")


@pytest.fixture(autouse=True)
def can_fork(monkeypatch):
    monkeypatch.setattr(forked_task, "available", lambda: 2)
    monkeypatch.setattr(forked_task, "POOLED", ("absent",))


def begun(work):
    said = []
    return ForkedTask(work, said.append), said


def test_the_answer_comes_from_another_process():
    def work(announce):
        announce("a line")
        return {"process": os.getpid(), "laws": ["α", "b"], "saved": [[["a", "b"], 1e-5]]}

    here, said = begun(work)
    with here:
        answer = here.answer()
    assert answer["process"] != os.getpid() and said == ["a line"]
    assert answer["laws"] == ["α", "b"] and answer["saved"] == [[["a", "b"], 1e-5]]


def test_a_failure_of_verification_is_raised_whole():
    wrong = VerificationError(
        2, "graph 1 of 3", "x is not y", "assert False", ["drops"], difference=float("inf"), seed=0
    )

    def work(announce):
        raise wrong

    here, _ = begun(work)
    with pytest.raises(VerificationError) as caught, here:
        here.answer()
    assert str(caught.value) == str(wrong) and vars(caught.value) == vars(wrong)


@pytest.mark.parametrize(
    "ends",
    [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0, lambda: time.sleep(60)],
    ids=["killed", "fails", "hangs"],
)
def test_work_that_ends_without_an_answer_is_done_here(monkeypatch, ends):
    monkeypatch.setattr(forked_task, "LIMIT", 0.5)
    own = os.getpid()

    def work(announce):
        if os.getpid() != own:
            ends()
        return os.getpid()

    here, _ = begun(work)
    with here:
        process = here.process
        assert here.answer() == own
    with pytest.raises(ChildProcessError):
        os.waitpid(process, 0)  # nothing is left of it


def test_an_interrupted_block_leaves_nothing():
    here, _ = begun(lambda announce: time.sleep(60))
    with pytest.raises(KeyboardInterrupt), here:
        process = here.process
        raise KeyboardInterrupt
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("name, value", [("available", lambda: 1), ("POOLED", ("absent", "os"))])
def test_without_a_processor_or_beside_threads_the_work_is_done_when_it_is_asked_for(monkeypatch, name, value):
    monkeypatch.setattr(forked_task, name, value)
    here, _ = begun(lambda announce: os.getpid())
    with here:
        assert here.answer() == os.getpid()
