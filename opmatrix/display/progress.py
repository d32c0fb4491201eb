"""Progress of some work, on stderr: on a terminal one line that is overwritten; elsewhere a line when it begins, and
one every few seconds."""

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

OFTEN, SELDOM = 0.2, 5.0  # seconds between two lines: on a terminal, elsewhere
TICK = 1.0  # seconds after which a terminal is written to in any case
WIDTH = 100  # most characters of a line that is overwritten
AGAIN = "\r\033[K"  # the codes by which a terminal overwrites the line


class WorkCount(NamedTuple):
    """The amount done, and the amount in all."""

    done: int
    of: int


def unheard(done: object, of: int | None = None) -> None:
    """Ignore progress, where no line is shown."""


class ProgressLine:
    """A line of progress under some words. Call it with the amount done so far, or with (done, of); `end` closes it. A
    `brief` one is for terminals alone."""

    def __init__(self, words: str, quiet: bool = False, brief: bool = False) -> None:
        self.words, self.terminal = words, sys.stderr.isatty()
        self.quiet = quiet or (brief and not self.terminal)
        self.began = self.said = time.perf_counter()
        self.far = ""
        self.before, self.last = WorkCount(0, 0), WorkCount(0, 0)
        self.write(f"{words} …")

    def __call__(self, done: object, of: int | None = None) -> None:
        now = time.perf_counter()
        if isinstance(done, int):
            done, of = self.counted(done, of or 0)
        self.far = f" {done}" + (f"/{of}" if of else "")
        if now - self.said < (OFTEN if self.terminal else SELDOM) and not (self.terminal and done == of):
            return
        self.tell(now)

    def counted(self, done: int, of: int) -> WorkCount:
        """Return the amount done of all that was counted up to now. Several works may be counted one after the other:
        one begins where the amount done is smaller, or the amount in all is another, than in the last call, and goes on
        where the last one ended."""
        if done < self.last.done or of != self.last.of:
            self.before = WorkCount(self.before.done + self.last.done, self.before.of + self.last.of)
        self.last = WorkCount(done, of)
        return WorkCount(self.before.done + done, self.before.of + of if of else 0)

    def tell(self, now: float) -> None:
        """Write the amount done, and the seconds that have passed."""
        self.said = now
        after = f" after {now - self.began:.0f} s"
        self.write(f"{self.words} …{self.far}{after if not self.terminal or now - self.began >= TICK else ''}")

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Update the line on a terminal every second with the seconds that have passed, while the block lasts. The
        thread that writes is gone afterwards, so that nothing forks beside it between two blocks."""
        if self.quiet or not self.terminal:
            yield
            return
        over = Event()

        def tick() -> None:
            """Rewrite the line whenever no other write came within TICK seconds, until the block is over."""
            while not over.wait(TICK / 2):
                if (now := time.perf_counter()) - self.said >= TICK:
                    self.tell(now)

        writer = Thread(target=tick, daemon=True)
        writer.start()
        try:
            yield
        finally:
            over.set()
            writer.join()

    def write(self, line: str) -> None:
        """Write a line to stderr: over the last one on a terminal, cut to its width; else below it."""
        if self.quiet:
            return
        width = min(WIDTH, shutil.get_terminal_size().columns - 1)
        sys.stderr.write(f"{AGAIN}{line[:width]}" if self.terminal else f"{line}\n")  # at once: a thread writes too
        sys.stderr.flush()

    def end(self, words: str = "") -> None:
        """Remove the line, or replace it by these words."""
        if self.quiet:
            return
        if self.terminal:
            print(AGAIN, end="", file=sys.stderr, flush=True)
        if words:
            print(words, file=sys.stderr, flush=True)
