"""Start ranks as processes, hand them jobs, and watch them: a rank that ends, reports an error, or makes no progress is
named, and then all end."""

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
STARTING = 120.0  # seconds that ranks may take to import and meet
SLEPT = 2.0  # seconds between two looks, if this process was stopped
AFTERMATH = 1.0  # seconds to wait for the reason of a lost rank
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
LOOPBACK_DEVICE = {"GLOO_SOCKET_IFNAME": "lo"}  # ranks meet on this machine, whatever a cluster sets
LOST = "Lost"


@dataclass
class Watched:
    """One rank's process, and its latest progress."""

    process: subprocess.Popen[bytes]
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=20))  # its last lines on standard error
    progress: object = None  # the progress that it reported last
    moved: float = 0.0  # when it last made progress
    heard: float = 0.0  # when its last note came
    waits: str = ""  # operation that it waits in
    idle: bool = False  # True if it has finished the job
    stopped: float = 0.0  # since when it has been seen stopped; 0 while it is not

    def look_stopped(self, now: float) -> None:
        """Note since when the system has stopped the process, where that can be known."""
        stops = False
        if hasattr(os, "waitid"):
            with suppress(OSError):  # the process has ended
                stops = os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        self.stopped = (self.stopped or now) if stops else 0.0

    def said(self) -> str:
        """Return how a process ended that did not report it itself."""
        status = self.process.wait()
        last = next((line for line in reversed(self.errors) if line.strip()), "")
        if status < 0:
            return f"died by {signal.Signals(-status).name}"
        return f"ended with status {status}" + (f": {last[:200]}" if last else "")


@dataclass(frozen=True)
class Launched:
    """The results of a job."""

    values: Mapping[Coordinates, Numeric]  # value of each rank, by its place
    meters: Mapping[Coordinates, Meter]  # counts of each rank
    seconds: Sequence[float]  # seconds of each step, since all had done the one before
    memory: Sequence[int]  # bytes of all ranks after each step
    moments: Mapping[Coordinates, Sequence[Moment]]  # events of each rank in the last step
    apart: Mapping[Coordinates, Sequence[float]]  # seconds of each step of each rank

    @property
    def later(self) -> float:
        """The seconds of a step: the median of the steps after the first."""
        return median(self.seconds[1:] or self.seconds)


def hanging(rank: int, seconds: float) -> str:
    """Return a line for a rank that sent no note for so long."""
    return f"rank {rank} hangs: it made no progress for {seconds:g} s: raise --deadline if it is only slow"


class Ranks:
    """A context of rank processes: none is left at its end. `deadline`: seconds in which some rank must make progress.
    `port`: of this machine, a free one for 0. Raises InputError for a port in use, and if torch is not installed."""

    def __init__(self, count: int, deadline: float = 8.0, port: int = 0, program: PythonChild | None = None) -> None:
        if count < 1:
            raise InputError(f"ranks {count}: at least 1")
        if deadline <= 0:
            raise InputError(f"deadline {deadline}: seconds, more than 0")
        if program is None and find_spec("torch") is None:
            raise InputError(
                "launch: torch, which runs the collectives, is not installed: pip install 'opmatrix[launch]'"
            )
        self.count, self.deadline, self.program = count, deadline, program or child_of_module(WORKER)
        self.notes: SimpleQueue[tuple[int, Note | None]] = SimpleQueue()
        self.ranks: list[Watched] = []
        self.looked = 0.0
        self.door = listening(port)

    def __enter__(self) -> Self:
        try:
            with self.door:
                port = self.door.getsockname()[1]
                for rank in range(self.count):
                    self.start(rank, port)
            self.gather("ready", STARTING)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, rank: int, port: int) -> None:
        """Start a rank's process with one thread for numbers, hand it its settings, and read its pipes in two
        threads."""
        settings = dict(rank=rank, ranks=self.count, port=port, socket=self.door.fileno())
        process = subprocess.Popen(
            self.program.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.program.environment | ONE_THREAD | LOOPBACK_DEVICE,
            pass_fds=[self.door.fileno()] if rank == 0 else [],
        )
        one = Watched(process)
        self.ranks.append(one)
        self.tell(rank, settings)
        for body in (self.listen, self.overhear):
            Thread(target=body, args=(rank, one), daemon=True).start()

    def tell(self, rank: int, given: Mapping[str, object]) -> None:
        """Send a line of JSON to a rank; a rank that has ended gets none."""
        stream = self.ranks[rank].process.stdin
        assert stream is not None
        try:
            stream.write(json.dumps(given).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            pass  # it ended, as its notes show

    def listen(self, rank: int, one: Watched) -> None:
        """Collect a rank's notes until its pipe closes, then None."""
        stream: Any = one.process.stdout
        while (note := read_note(stream)) is not None:
            self.notes.put((rank, note))
        self.notes.put((rank, None))

    def overhear(self, rank: int, one: Watched) -> None:
        """Collect the lines that a rank writes to its standard error."""
        stream: Any = one.process.stderr
        for line in stream:
            one.errors.append(line.decode(errors="replace").rstrip())

    def run(self, job: Job) -> Launched:
        """Run a job on all ranks. Raises InputError for a mesh of another number of ranks, and RanksFailed if one
        fails, which ends all of them."""
        mesh = job.mesh
        if mesh.ranks != self.count:
            raise InputError(f"mesh: it has {mesh.ranks} ranks, and {self.count} were started")
        if not self.ranks:
            raise InputError("launch: the ranks have ended: start new ones")
        for rank in range(self.count):
            self.tell(rank, job.json())
        try:
            notes = self.gather("done", self.deadline)
        except BaseException:
            self.close()
            raise
        places = [*mesh.places()]
        reports: list[dict[str, Any]] = [notes[rank].said for rank in range(self.count)]
        times = [report["times"] for report in reports]
        ends = [max(spans[k][1] for spans in times) for k in range(job.steps)]
        seconds = [end - begin for begin, end in pairwise([min(spans[0][0] for spans in times), *ends])]
        values = {
            place: note.array for place, note in zip(places, notes.values(), strict=True) if note.array is not None
        }
        return Launched(
            values,
            {place: meter_of(report["meter"]) for place, report in zip(places, reports, strict=True)},
            seconds,
            [sum(report["memory"][k] for report in reports) for k in range(job.steps)],
            {place: [Moment(*moment) for moment in one["moments"]] for place, one in zip(places, reports, strict=True)},
            {place: [end - begin for begin, end in spans] for place, spans in zip(places, times, strict=True)},
        )

    def gather(self, kind: str, patience: float) -> dict[int, Note]:
        """Return a note of a kind from every rank, in order. Raises RanksFailed."""
        notes: dict[int, Note] = {}
        self.looked = start = time.monotonic()
        for watched in self.ranks:
            watched.moved, watched.heard, watched.idle = start, start, False
        while len(notes) < self.count:
            try:
                rank, note = self.notes.get(timeout=0.1)
            except Empty:
                self.look(patience)
                continue
            if note is None or note.kind == "failed":
                raise self.failure(rank, note)
            one, now = self.ranks[rank], time.monotonic()
            one.heard = now
            if note.kind == kind:
                notes[rank], one.idle, one.moved = note, True, now
            if note.kind == "beat":
                if note.said["progress"] != one.progress:
                    one.progress, one.moved = note.said["progress"], now
                one.waits = str(note.said["waits"])
                self.look(patience)
        return {rank: notes[rank] for rank in range(self.count)}

    def look(self, patience: float) -> None:
        """Raise RanksFailed for a rank that is stopped, also while ranks start, or sends no note for too long, though
        others make progress. If no rank makes progress, name the rank that does not wait for another, else the
        operations that all wait in."""
        now, looked = time.monotonic(), self.looked
        self.looked = now
        if now - looked > SLEPT:  # this process was stopped, and missed notes
            for watched in self.ranks:
                watched.heard, watched.stopped = now, 0.0
        for watched in self.ranks:
            watched.look_stopped(now)
        stopped = [
            (watched.stopped, rank)
            for rank, watched in enumerate(self.ranks)
            if watched.stopped and now - watched.stopped > self.deadline
        ]
        if stopped:
            raise RanksFailed(hanging(min(stopped)[1], self.deadline))
        silent = [
            (watched.heard, rank)
            for rank, watched in enumerate(self.ranks)
            if not watched.idle and now - watched.heard > patience
        ]
        if silent:
            raise RanksFailed(hanging(min(silent)[1], patience))
        if now - max(watched.moved for watched in self.ranks) <= patience:
            return
        busy = [
            (watched.moved, rank)
            for rank, watched in enumerate(self.ranks)
            if not watched.idle and (not watched.waits or now - watched.heard > patience / 2)
        ]
        if busy:
            raise RanksFailed(
                f"rank {min(busy)[1]} hangs: it made no progress for {patience:g} s, and other ranks wait for it: "
                "raise --deadline if it is only slow"
            )
        waiting = "; ".join(
            f"rank {rank} waits in {watched.waits}" for rank, watched in enumerate(self.ranks) if not watched.idle
        )
        raise RanksFailed(f"ranks wait for each other: {waiting}")

    def next_end(self, until: float) -> tuple[int, Note | None]:
        """Return the next rank that fails or ends, with its note. Raises Empty once the clock shows `until`, however
        many beats arrive before."""
        while (left := until - time.monotonic()) > 0:
            rank, note = self.notes.get(timeout=left)
            if note is None or note.kind == "failed":
                return rank, note
        raise Empty

    def failure(self, rank: int, note: Note | None) -> Exception:
        """Return the first failure. If a rank reports that it lost another one, wait a little for the reason of that
        one."""
        end, lost = time.monotonic() + AFTERMATH, None
        while note is not None and note.said["what"] == LOST:
            lost = lost or note
            try:
                other, told = self.next_end(end)
            except Empty:
                return RanksFailed(str(lost.said["text"]))
            if told is None and other == rank:
                continue
            rank, note = other, told
        if note is None:
            return RanksFailed(f"rank {rank} {self.ranks[rank].said()}")
        text = str(note.said["text"])
        return (
            InputError(text)
            if note.said["what"] == "InputError"
            else RanksFailed(text if text.startswith(("rank", "step")) else f"rank {rank}: {text}")
        )

    def close(self) -> None:
        """End all processes: ranks that wait for jobs end when their input is closed."""
        for watched in self.ranks:
            if watched.process.stdin:
                watched.process.stdin.close()
        for watched in self.ranks:
            try:
                watched.process.wait(0.0 if watched.waits or not watched.idle else 1.0)
            except subprocess.TimeoutExpired:
                watched.process.kill()
            watched.process.wait()
        self.ranks = []
        self.door.close()


def listening(port: int) -> socket.socket:
    """Return a listening socket of this machine. Raises InputError for a port that is in use or invalid."""
    try:
        return socket.create_server((LOOPBACK, port))
    except (OSError, OverflowError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "a port is a number from 0 to 65535"
        raise InputError(f"port {port}: {why}: name another, or 0 for a free one") from None


def meter_of(found: Mapping[str, Any]) -> Meter:
    """Read a meter from its JSON."""
    tables = {name: {(op, axis): count for op, axis, count in found[name]} for name in CROSSED}
    return Meter(found["flops"], found["peak"], found["stored"], found["gathered"], **tables)
