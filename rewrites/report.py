"""What a run says while it works and when it is done: phases with seconds, and tables."""
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@contextmanager
def hushed() -> Iterator[None]:
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
    _line: Any = None

    @contextmanager
    def phase(self, name: str) -> Iterator[Any]:
        """One phase; the value is called with (done, of) or with words as it goes."""
        start, last = time.perf_counter(), [0.0]

        def progress(done: Any, of: int | None = None) -> None:
            if (now := time.perf_counter()) - last[0] > 0.2 or done == of:
                last[0] = now
                self.say(f"{name} … {done}" + (f"/{of}" if of else ""), again=True)
        self.say(f"{name} …", again=True)
        try:
            yield progress
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        self.say(f"{name} {self.seconds[name]:.1f} s")

    def say(self, line: str, again: bool = False) -> None:
        """A line; `again` ones replace each other on a terminal, and elsewhere are left out."""
        if self.quiet or (again and not sys.stderr.isatty()):
            return
        end = "" if again else "\n"
        print(f"\r\033[K{line[:100]}" if sys.stderr.isatty() else line, end=end, file=sys.stderr, flush=True)


def table(rows: Sequence[Sequence[str]], header: Sequence[str]) -> str:
    """Columns that line up: the first to the left, the others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))).rstrip()
             for row in cells]
    return "\n".join([lines[0], "  ".join("─" * w for w in widths), *lines[1:]])


def ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def between(ends: Sequence[float] | None) -> str:
    """Two seconds, in milliseconds."""
    return "" if ends is None else " to ".join(map(ms, ends))


def megabytes(size: float | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"


def percent(error: float | None) -> str:
    """An error in per cent, or as a power of ten where it is rounding."""
    if error is None:
        return ""
    return f"{error:.0e}" if error < 1e-5 else f"{100 * error:.3g} %"
