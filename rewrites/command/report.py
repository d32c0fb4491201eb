"""What a run says while it works and when it is done: phases with seconds."""
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opmatrix.display.progress import AGAIN, Line


@contextmanager
def silence_stdout() -> Iterator[None]:
    """Without what compiled libraries print to the standard output on their own (HiGHS does)."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


@dataclass
class Report:
    """Says on stderr what is being done, with progress, and keeps the seconds of every phase."""

    quiet: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[Any]:
        """One phase; the value is called with (done, of) or with words as it goes."""
        start, line = time.perf_counter(), Line(name, self.quiet)
        try:
            yield line
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            line.end()
        line.end(f"{name} {self.seconds[name]:.1f} s")

    def say(self, line: str) -> None:
        """A line of its own."""
        if not self.quiet: print(f"{AGAIN if sys.stderr.isatty() else ''}{line}", file=sys.stderr, flush=True)
