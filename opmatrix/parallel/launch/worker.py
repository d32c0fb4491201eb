"""One rank as a process: `python -m opmatrix.parallel.launch.worker`, which the launcher starts. It reads jobs, each a
line of JSON, and ends when its input is closed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.data import Numeric
from opmatrix.parallel.launch.exchanges import Crossings
from opmatrix.parallel.launch.headings import Heading, RanksFailed
from opmatrix.parallel.launch.pipes import NoteWriter
from opmatrix.parallel.ranks.ranks import Meter
from opmatrix.parallel.sharding.cost_formulas import CROSSED

OPENING = "opens the model"
BEAT = 0.2  # seconds between two signs of life


class Worker:
    """A rank that runs jobs, and reports its progress all the time."""

    def __init__(self, notes: NoteWriter) -> None:
        self.notes, self.lines = notes, SimpleQueue[str]()
        self.line: Crossings | None = None
        self.at, self.step = "", 0
        for body in (self.listen, self.beat):
            Thread(target=body, daemon=True).start()

    def listen(self) -> None:
        """Read lines of the launcher; end the process when the launcher is gone."""
        for text in sys.stdin:
            self.lines.put(text)
        os._exit(0)

    def beat(self) -> None:
        """Report progress again and again: numbers that change as long as it computes, and the message that it waits
        in."""
        while True:
            time.sleep(BEAT)
            line = self.line
            meter = line.meter if line else Meter()
            waits = line.current if line else None
            told = Heading.of(waits).told(line.mesh) if line and waits else ""
            busy = time.process_time() if self.at == OPENING else 0  # counts start with the run
            self.notes.send(
                "beat", progress=[self.at, self.step, busy, meter.flops, *meter.messages.values()], waits=told
            )

    def serve(self) -> None:
        """Meet the other ranks, then run jobs."""
        settings = json.loads(self.lines.get())
        self.at = "meets others"
        from opmatrix.parallel.launch.gloo import GlooWire, Meeting

        rank, wire = int(settings["rank"]), GlooWire(Meeting(**settings))
        self.notes.send("ready")
        while True:
            self.at = "waits for a job"
            self.work(json.loads(self.lines.get()), rank, wire)

    def work(self, asked: Mapping[str, object], rank: int, wire: object) -> None:
        """Prepare a job and run its steps; report values, times, memory and counts in a note."""
        from opmatrix.parallel.launch.jobs import Job
        from opmatrix.parallel.launch.prepared import Moment
        from opmatrix.parallel.launch.train_runs import run_of

        self.at = OPENING
        job = Job.read(asked)
        place = [*job.mesh.places()][rank]
        ready = run_of(job, place)
        self.line = line = Crossings(wire, job.mesh, place, Meter())  # type: ignore[arg-type]
        values: list[Numeric] = []
        times, memory, moments = list[tuple[float, float]](), list[int](), list[Moment]()
        self.at = "runs"
        for self.step in range(1, job.steps + 1):
            begun, traced = time.monotonic(), job.traced and self.step == job.steps
            value = ready.run(line, moments if traced else None)
            if job.each_step:
                values.append(value)
            times.append((begun, time.monotonic()))
            memory.append(resident())
        self.notes.send(
            "done",
            np.stack(values) if values else value,
            times=times,
            memory=memory,
            moments=moments,
            meter=meter_json(line.meter),
        )
        self.line = None


def meter_json(meter: Meter) -> dict[str, object]:
    """Return the counts of a rank as JSON: keys of pairs become the first entries of rows."""
    tables = {name: [[*key, count] for key, count in getattr(meter, name).items()] for name in CROSSED}
    return dict(flops=meter.flops, peak=meter.peak, stored=meter.stored, gathered=meter.gathered, **tables)


def resident() -> int:
    """Return the bytes of memory of this process; 0 if the system does not report them."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0


def run_worker() -> None:
    """Run a worker. Output of libraries goes to the standard error, so notes stay whole."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker(NoteWriter(stream))
    try:
        worker.serve()
    except (RanksFailed, InputError) as error:
        during = f"step {worker.step}: " if worker.at == "runs" and type(error).__name__ == "NotFinite" else ""
        worker.notes.send("failed", what=type(error).__name__, text=f"{during}{error}")
    except MemoryError:
        worker.notes.send("failed", what="MemoryError", text="there is not enough memory")
    except ModuleNotFoundError as error:
        worker.notes.send("failed", what="InputError", text=f"{error}: pip install 'opmatrix[launch]'")
    except Exception as error:
        import traceback

        traceback.print_exc()
        worker.notes.send("failed", what="Error", text=f"{type(error).__name__}: {error}")
    os._exit(1)  # a wire that is in use would wait for ranks that are gone


if __name__ == "__main__":
    run_worker()
