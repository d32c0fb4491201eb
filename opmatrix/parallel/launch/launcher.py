"""Starts ranks as processes, hands them jobs, and watches them: who ends, says that something is wrong, or does nothing
any more is named, and then all end."""
from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from queue import Empty, SimpleQueue
from statistics import median
from threading import Thread
from typing import Any, Self

from formats.core.errors import InputError
from formats.disk.own_python import PythonChild, child_of_module
from opmatrix.algebra.data import Numeric
from opmatrix.parallel.launch.headings import RanksFailed
from opmatrix.parallel.launch.jobs import Job
from opmatrix.parallel.launch.pipes import LOOPBACK, Note, read_note
from opmatrix.parallel.launch.prepared import Moment
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.sharding.cost_formulas import CROSSED
from opmatrix.parallel.sharding.placement import Coordinates

WORKER = "opmatrix.parallel.launch.worker"
STARTING = 120.0                                            # seconds that ranks may take to import and meet
SLEPT = 2.0                                                 # seconds between two looks that nothing explains
AFTERMATH = 1.0                                             # seconds in which who was lost says why
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LOOPBACK_DEVICE = {"GLOO_SOCKET_IFNAME": "lo"}              # ranks meet on this machine, whatever a cluster sets
LOST = "Lost"


@dataclass
class Watched:
    """One rank's process, and when it last got on."""
    process: subprocess.Popen[bytes]
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    progress: object = None
    moved: float = 0.0
    heard: float = 0.0
    waits: str = ""
    idle: bool = False
    stopped: float = 0.0                                    # since when it has been seen stopped; 0 while it is not

    def look_stopped(self, now: float) -> None:
        """Note since when the system has stopped the process, where that can be known."""
        stops = False
        if hasattr(os, "waitid"):
            with suppress(OSError):                         # it has ended
                stops = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        self.stopped = (self.stopped or now) if stops else 0.0

    def said(self) -> str:
        """How a process ended that did not say so itself."""
        status = self.process.wait()
        last = next((each for each in reversed(self.errors) if each.strip()), "")
        if status < 0: return f"died by {signal.Signals(-status).name}"
        return f"ended with status {status}" + (f": {last[:200]}" if last else "")


@dataclass(frozen=True)
class Launched:
    """What ranks gave, each at its place: the value, what was counted, seconds of each step, from when all had done
    the one before, and of each rank `apart`, bytes of memory after it, and what happened in the last step."""
    values: Mapping[Coordinates, Numeric]
    meters: Mapping[Coordinates, Meter]
    seconds: Sequence[float]
    memory: Sequence[int]
    moments: Mapping[Coordinates, Sequence[Moment]]
    apart: Mapping[Coordinates, Sequence[float]]

    @property
    def later(self) -> float:
        """Seconds of a step, the median of those after the first."""
        return median(self.seconds[1:] or self.seconds)


def hanging(rank: int, seconds: float) -> str:
    """A line for a rank of which nothing was heard for so long."""
    return f"rank {rank} hangs: nothing of it for {seconds:g} s: a longer --deadline lets it go on"


class Ranks:
    """So many processes, as a context: none is left at its end. `deadline`: seconds in which some rank must get on.
    `port`: of this machine, a free one for 0. Raises InputError for a port in use and where torch is not installed."""
    def __init__(self, count: int, deadline: float = 8.0, port: int = 0, program: PythonChild | None = None) -> None:
        if count < 1: raise InputError(f"ranks {count}: at least 1")
        if deadline <= 0: raise InputError(f"deadline {deadline}: seconds, more than 0")
        if program is None and find_spec("torch") is None:
            raise InputError("launch: torch, which carries what crosses, is not installed: pip install "
                             "'opmatrix[launch]'")
        self.count, self.deadline, self.program = count, deadline, program or child_of_module(WORKER)
        self.notes: SimpleQueue[tuple[int, Note | None]] = SimpleQueue()
        self.ranks: list[Watched] = []
        self.looked = 0.0
        self.door = listening(port)

    def __enter__(self) -> Self:
        try:
            with self.door:
                port = self.door.getsockname()[1]
                for rank in range(self.count): self.start(rank, port)
            self.gather("ready", STARTING)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None: self.close()

    def start(self, rank: int, port: int) -> None:
        given = dict(rank=rank, ranks=self.count, port=port, socket=self.door.fileno())
        process = subprocess.Popen(self.program.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=self.program.environment | ONE_THREAD | LOOPBACK_DEVICE,
                                   pass_fds=[self.door.fileno()] if rank == 0 else [])
        one = Watched(process)
        self.ranks.append(one)
        self.tell(rank, given)
        for body in (self.listen, self.overhear): Thread(target=body, args=(rank, one), daemon=True).start()

    def tell(self, rank: int, given: Mapping[str, object]) -> None:
        stream = self.ranks[rank].process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps(given).encode() + b"\n")
            stream.flush()
        except BrokenPipeError: pass                        # it ended, which its notes say

    def listen(self, rank: int, one: Watched) -> None:
        stream: Any = one.process.stdout
        while (note := read_note(stream)) is not None: self.notes.put((rank, note))
        self.notes.put((rank, None))

    def overhear(self, rank: int, one: Watched) -> None:
        stream: Any = one.process.stderr
        for line in stream: one.errors.append(line.decode(errors="replace").rstrip())

    def run(self, job: Job) -> Launched:
        """Runs a job on all ranks. Raises InputError for a mesh of another number of ranks, and RanksFailed where one
        fails, which ends all of them."""
        mesh = job.mesh
        if mesh.ranks != self.count: raise InputError(f"mesh: it has {mesh.ranks} ranks, and {self.count} were started")
        if not self.ranks: raise InputError("launch: the ranks have ended: start others")
        for rank in range(self.count): self.tell(rank, job.json())
        try: found = self.gather("done", self.deadline)
        except BaseException:
            self.close()
            raise
        places = [*mesh.places()]
        said: list[dict[str, Any]] = [found[rank].said for rank in range(self.count)]
        times = [each["times"] for each in said]
        ends = [max(each[k][1] for each in times) for k in range(job.steps)]
        seconds = [end - begin for begin, end in pairwise([min(each[0][0] for each in times), *ends])]
        values = {place: note.array for place, note in zip(places, found.values(), strict=True)
                  if note.array is not None}
        return Launched(values, {place: meter_of(each["meter"]) for place, each in zip(places, said, strict=True)},
                        seconds, [sum(each["memory"][k] for each in said) for k in range(job.steps)],
                        {place: [Moment(*each) for each in one["moments"]]
                         for place, one in zip(places, said, strict=True)},
                        {place: [end - begin for begin, end in own] for place, own in zip(places, times, strict=True)})

    def gather(self, kind: str, patience: float) -> dict[int, Note]:
        """A note of that kind of every rank, in order. Raises RanksFailed."""
        found: dict[int, Note] = {}
        self.looked = start = time.monotonic()
        for each in self.ranks: each.moved, each.heard, each.idle = start, start, False
        while len(found) < self.count:
            try: rank, note = self.notes.get(timeout=0.1)
            except Empty:
                self.look(patience)
                continue
            if note is None or note.kind == "failed": raise self.failure(rank, note)
            one, now = self.ranks[rank], time.monotonic()
            one.heard = now
            if note.kind == kind: found[rank], one.idle, one.moved = note, True, now
            if note.kind == "beat":
                if note.said["progress"] != one.progress: one.progress, one.moved = note.said["progress"], now
                one.waits = str(note.said["waits"])
                self.look(patience)
        return {rank: found[rank] for rank in range(self.count)}

    def look(self, patience: float) -> None:
        """Raises RanksFailed for a rank that is stopped, while ranks start, too, or says nothing for too long, though
        others get on, and where none got on: it names the one that does not wait for another; else what all wait
        in."""
        now, looked = time.monotonic(), self.looked
        self.looked = now
        if now - looked > SLEPT:                            # this process was stopped, and has not heard what was said
            for each in self.ranks: each.heard, each.stopped = now, 0.0
        for each in self.ranks: each.look_stopped(now)
        stopped = [(each.stopped, rank) for rank, each in enumerate(self.ranks)
                   if each.stopped and now - each.stopped > self.deadline]
        if stopped: raise RanksFailed(hanging(min(stopped)[1], self.deadline))
        silent = [(each.heard, rank) for rank, each in enumerate(self.ranks)
                  if not each.idle and now - each.heard > patience]
        if silent: raise RanksFailed(hanging(min(silent)[1], patience))
        if now - max(each.moved for each in self.ranks) <= patience: return
        busy = [(each.moved, rank) for rank, each in enumerate(self.ranks) if not each.idle
                and (not each.waits or now - each.heard > patience / 2)]
        if busy:
            raise RanksFailed(f"rank {min(busy)[1]} hangs: nothing of it for {patience:g} s, and the others wait for "
                              "it: a longer --deadline lets it go on")
        waiting = "; ".join(f"rank {rank} waits in {each.waits}" for rank, each in enumerate(self.ranks)
                            if not each.idle)
        raise RanksFailed(f"ranks wait for each other: {waiting}")

    def failure(self, rank: int, note: Note | None) -> Exception:
        """What failed first: who lost another rank waits a little for what became of that one."""
        end, lost = time.monotonic() + AFTERMATH, None
        while note is not None and note.said["what"] == LOST:
            lost = lost or note
            try:
                while (more := self.notes.get(timeout=max(0.01, end - time.monotonic())))[1] is not None and (
                        more[1].kind != "failed"): pass
            except Empty: return RanksFailed(str(lost.said["text"]))
            if more[1] is None and more[0] == rank: continue
            rank, note = more
        if note is None: return RanksFailed(f"rank {rank} {self.ranks[rank].said()}")
        text = str(note.said["text"])
        return InputError(text) if note.said["what"] == "InputError" else RanksFailed(
            text if text.startswith(("rank", "step")) else f"rank {rank}: {text}")

    def close(self) -> None:
        """Ends all processes: those that wait for jobs end when nobody writes any."""
        for each in self.ranks:
            if each.process.stdin: each.process.stdin.close()
        for each in self.ranks:
            try: each.process.wait(0.0 if each.waits or not each.idle else 1.0)
            except subprocess.TimeoutExpired: each.process.kill()
            each.process.wait()
        self.ranks = []
        self.door.close()


def listening(port: int) -> socket.socket:
    """A socket of this machine. Raises InputError for a port that is in use, or is none."""
    try: return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise InputError(f"port {port}: {why}: name another, or 0 for a free one") from None


def meter_of(found: Mapping[str, Any]) -> Meter:
    """A meter from its JSON."""
    tables = {name: {(op, axis): count for op, axis, count in found[name]} for name in CROSSED}
    return Meter(found["flops"], found["peak"], found["stored"], found["gathered"], **tables)
