"""The launcher watches its ranks: who ends, fails, hangs or waits for ever is named in a line, within the deadline, and
no process is left. Ranks here only act; real ones are in tests/peers/test_launch.py."""

import os
import socket
from collections import Counter
from queue import Empty, SimpleQueue
from types import SimpleNamespace

import pytest
from children import LIMIT, SUPPORT

from formats.core.errors import InputError
from formats.disk.own_python import child_of_python
from opmatrix.parallel.launch import launcher
from opmatrix.parallel.launch.headings import RanksFailed
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.launcher import Ranks

ACTOR = str(SUPPORT / "acting_rank.py")
JOB = Job({}, dict(x=(2, "tensor")), [[1]])
BEATING = {"waits", "computes", "goes on", "works", "done"}  # parts that say again and again that they live
STEP = 0.05  # seconds of the clock between two beats


class RankClock:
    """Notes of ranks, and a clock that only these move, so that a slow machine changes nothing: a step when all ranks
    that beat have done so once more; if none does, when nothing comes for a moment, once `ready` ranks have started."""

    def __init__(self, *beating, ready=0):
        self.beating, self.ready, self.notes, self.counts, self.silences = beating, ready, SimpleQueue(), Counter(), 0
        self.put = self.notes.put

    def monotonic(self):
        steps = min(self.counts["beat", rank] for rank in self.beating) if self.beating else self.silences
        return 1.0 + STEP * steps

    def get(self, timeout):
        waits = self.beating or self.counts["ready"] < self.ready
        try:
            rank, note = self.notes.get(timeout=LIMIT if waits else timeout)
        except Empty:
            self.silences += 1
            raise
        if note is not None:
            self.counts[note.kind] += 1
            self.counts[note.kind, rank] += 1
        return rank, note


def clocked(patch, ranks, clock):
    """The ranks, whose notes move the launcher's clock."""
    patch.setattr(launcher, "time", SimpleNamespace(monotonic=clock.monotonic))
    ranks.notes = clock
    return ranks


def acted(*parts, deadline=240.0):
    """What a run of ranks that play these parts gives; its processes are gone whatever comes out."""
    clock = RankClock(*(rank for rank, part in enumerate(parts) if part in BEATING))
    processes = []
    try:
        with pytest.MonkeyPatch.context() as patch:
            with clocked(patch, Ranks(2, deadline, program=child_of_python(ACTOR, *parts)), clock) as ranks:
                processes += [each.process for each in ranks.ranks]
                return ranks.run(JOB)
    finally:
        assert len(processes) == 2 and all(each.returncode is not None for each in processes)


@pytest.mark.parametrize(
    "parts, words",
    [
        (("waits", "dies"), "^rank 1 died by SIGKILL$"),
        (("ends", "waits"), "^rank 0 ended with status 1: nothing left to do$"),
        (("waits", "fails"), "^step 3: rank 1: the output is not finite$"),
        (("loses", "dies"), "^rank 1 died by SIGKILL$"),  # whoever of both is heard first
        (("loses", "fails"), "^step 3: rank 1: the output is not finite$"),
        (("waits", "computes"), "^rank 1 hangs: it made no progress for 0.8 s, and other ranks wait for it"),
        (("stops", "waits"), "^rank 0 hangs: it made no progress for 0.8 s"),
        (("goes on", "stops"), "^rank 1 hangs: it made no progress for 0.8 s: raise --deadline"),
        (("waits", "done"), "^ranks wait for each other: rank 0 waits in send of step 1 on axis x, waits$"),
    ],
)
def test_what_goes_wrong_is_named(parts, words):
    """What is no hang is named as what it is, long before the deadline would name one."""
    hangs = "hangs" in words or "wait for each other" in words
    with pytest.raises(RanksFailed, match=words) as failed:
        acted(*parts, deadline=0.8 if hangs else 240.0)
    assert "\n" not in str(failed.value)


def test_who_only_lost_another_says_so():
    with pytest.raises(RanksFailed, match=r"lost rank 1: closed|ended with status 1"):
        acted("loses", "waits")


def test_bad_input_of_a_rank_is_bad_input():
    with pytest.raises(InputError, match=r"^mesh: not so$"):
        acted("refuses", "waits")


def test_what_is_done_is_handed_on():
    """Rank 0 takes twice the deadline, but gets on."""
    ran = acted("works", "done", deadline=0.8)
    assert ran.meters[1,].payload == {("send", "x"): 4} and ran.seconds == [1.0] and ran.memory == [10]


def test_what_cannot_start_is_refused(monkeypatch):
    monkeypatch.setattr("opmatrix.parallel.launch.launcher.find_spec", lambda name: name)  # torch may not be here
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
        with pytest.raises(InputError, match=rf"^port {port}: .*in use: name another, or 0"):
            Ranks(2, port=port)
    with pytest.raises(InputError, match=r"^port 70000: a port is a number from 0 to 65535"):
        Ranks(2, port=70000)
    with pytest.raises(InputError, match=r"^ranks 0: at least 1$"):
        Ranks(0)
    with pytest.raises(InputError, match=r"^deadline 0: seconds"):
        Ranks(2, 0)
    monkeypatch.setattr("opmatrix.parallel.launch.launcher.find_spec", lambda name: None)
    words = r"^launch: torch, .* not installed: pip install 'opmatrix\[launch\]'$"
    with pytest.raises(InputError, match=words):
        Ranks(2)


def test_a_mesh_of_other_ranks_is_refused():
    with Ranks(2, program=child_of_python(ACTOR, "waits", "waits")) as ranks:
        with pytest.raises(InputError, match=r"^mesh: it has 3 ranks, and 2 were started$"):
            ranks.run(Job({}, dict(x=(3, "tensor")), [[1]]))


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="whether a process is stopped is not said here")
@pytest.mark.parametrize("parts, rank", [(("waits", "never starts"), 1), (("never starts", "late"), 0)])
def test_who_is_stopped_while_ranks_start_is_named_within_the_deadline(monkeypatch, parts, rank):
    """And not after all that ranks may take to start, which the words would name."""
    ranks = clocked(monkeypatch, Ranks(2, 0.8, program=child_of_python(ACTOR, *parts)), RankClock())
    with pytest.raises(RanksFailed, match=rf"^rank {rank} hangs: it made no progress for 0.8 s: raise --deadline"):
        with ranks:
            pass


def test_who_never_comes_is_named(monkeypatch):
    monkeypatch.setattr(launcher, "STARTING", 0.5)
    program = child_of_python(ACTOR, "waits", "late")
    ranks = clocked(monkeypatch, Ranks(2, program=program), RankClock(ready=1))
    with pytest.raises(RanksFailed, match=r"^rank 1 hangs: it made no progress for 0.5 s"), ranks:
        pass
