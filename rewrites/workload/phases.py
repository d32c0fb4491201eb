"""Phases of a run, with progress and seconds, and a redirection of stdout."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from formats.host.freed_memory import release_memory
from opmatrix.display.progress import AGAIN, ProgressLine

Tell = Callable[..., None]  # reports the progress of a phase: (done, of), or words


@contextmanager
def silence_stdout() -> Iterator[None]:
    """Discard the output that compiled libraries print to the standard output on their own (HiGHS does)."""
    sys.stdout.flush()
    output, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(output, 1)
        for descriptor in (output, nothing):
            os.close(descriptor)


@dataclass
class Report:
    """Prints progress on stderr, and stores the seconds of every phase; phases of one name add up. `began` is the start
    of the command (time.perf_counter), and of its first phase: by default the first phase's."""

    quiet: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    began: float | None = None
    running: dict[str, float] = field(default_factory=dict)  # running phases, each with its start
    ended: float = 0.0

    @contextmanager
    def phase(self, name: str, brief: bool = False) -> Iterator[ProgressLine]:
        """Run one phase; the value is called with (done, of) or with words as it goes. A `brief` one prints to a
        terminal alone: its errors about a command are a single line."""
        start, line = time.perf_counter(), ProgressLine(name, self.quiet, brief)
        if self.began is None:
            self.began = start
        self.running[name] = start if self.seconds else self.began
        before = self.seconds.get(name)
        try:
            with line.ticking():
                yield line
        finally:
            self.ended = time.perf_counter()
            self.seconds[name] = (before or 0.0) + self.ended - self.running.pop(name)
            line.end()
            release_memory()
        line.end(f"{name} {self.seconds[name]:.1f} s{'' if before is None else ' in all'}")

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of every phase up to now."""
        return self.seconds | {
            name: self.seconds.get(name, 0.0) + time.perf_counter() - start for name, start in self.running.items()
        }

    @property
    def wall(self) -> float:
        """Seconds from the beginning to now, or to the end of the last phase."""
        return (time.perf_counter() if self.running else self.ended) - (self.began or 0.0)

    def say(self, line: str) -> None:
        """Print a line beside those of phases."""
        if not self.quiet:
            print(f"{AGAIN if sys.stderr.isatty() else ''}{line}", file=sys.stderr, flush=True)
