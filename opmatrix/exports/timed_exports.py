"""Times of exported files in their runtime: a process each, called in turn, so that all meet the same other work."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from formats.core.errors import InputError
from formats.disk.files import shown
from formats.disk.own_python import child_of_module
from opmatrix.exports.cached_graph import ExportedCache
from opmatrix.exports.runtimes import Runtime

PROCESS = "opmatrix.exports.timed_process"
TIMED_ROUNDS = 15


@dataclass(frozen=True)
class TimingJob:
    """Work that each file is timed at: batches (sentences, tokens) of ids below `words`, given to these inputs; of a
    file with caches a step of one token behind so many."""

    shapes: Sequence[tuple[int, int]]
    words: int
    inputs: Sequence[str]
    threads: int
    caches: Sequence[ExportedCache] = ()


class TimedExport(NamedTuple):
    """A file's milliseconds, the medians of its shapes added, the version of its runtime, and its kernels of
    products."""

    milliseconds: float
    version: str
    products: Mapping[str, int]


class TimedProcess:
    """A process that has opened a file."""

    def __init__(self, process: Popen[str], errors: IO[str], file: Path) -> None:
        self.process, self.errors, self.file = process, errors, file
        self.ready = self.answer()

    def answer(self) -> str:
        """Return its next line, JSON. Raises InputError, with its last words, if it ended."""
        assert self.process.stdout
        if line := self.process.stdout.readline():
            return line
        self.process.wait()
        self.errors.seek(0)
        words = (self.errors.read().strip().splitlines() or [f"status {self.process.returncode}"])[-1]
        raise InputError(f"{shown(self.file)}: its runtime cannot run it: {words[:300]}")

    def time(self) -> list[float]:
        """Return the milliseconds of one call of each shape."""
        assert self.process.stdin
        print("again", file=self.process.stdin, flush=True)
        taken: list[float] = json.loads(self.answer())
        return taken


@contextmanager
def opened_process(runtime: Runtime, file: Path, job: TimingJob) -> Iterator[TimedProcess]:
    """Give a process that has opened a file. Raises InputError if it cannot."""
    child = child_of_module(PROCESS, runtime.name, str(file), json.dumps(asdict(job)))
    with TemporaryFile("w+") as errors:
        process = Popen(child.command, env=child.environment, stdin=PIPE, stdout=PIPE, stderr=errors, text=True)
        try:
            yield TimedProcess(process, errors, file)
        finally:
            process.kill()
            process.communicate()


def time_exports(
    runtime: Runtime, files: Mapping[str, Path], job: TimingJob, rounds: int = TIMED_ROUNDS
) -> dict[str, TimedExport]:
    """Return the times of files by name. Raises InputError for a file that the runtime cannot run."""
    with ExitStack() as stack:
        running = {name: stack.enter_context(opened_process(runtime, file, job)) for name, file in files.items()}
        taken: dict[str, list[list[float]]] = {name: [] for name in files}
        for _ in range(rounds):
            for name, process in running.items():
                taken[name].append(process.time())
    times = {name: sum(map(median, zip(*several, strict=True))) for name, several in taken.items()}
    return {name: TimedExport(times[name], **json.loads(running[name].ready)) for name in files}
