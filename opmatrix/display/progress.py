"""How far something is, on stderr: on a terminal one line that is written over; elsewhere a line when it begins, and
one every few seconds."""
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple

OFTEN, SELDOM = 0.2, 5.0                                    # seconds between two lines: on a terminal, elsewhere
TICK = 1.0                                                  # seconds after which a terminal is written to in any case
WIDTH = 100                                                 # characters of a line that is written over, at most
AGAIN = "\r\033[K"                                          # what a terminal writes the line over by


class WorkCount(NamedTuple):
    """How much of how much."""
    done: int
    of: int


def unheard(done: object, of: int | None = None) -> None:
    """In place of a line, where nobody asked how far it is."""


class ProgressLine:
    """What is being done, in words. Call it with what is done so far, or with (done, of); `end` closes it. A
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
        if isinstance(done, int): done, of = self.counted(done, of or 0)
        self.far = f" {done}" + (f"/{of}" if of else "")
        if now - self.said < (OFTEN if self.terminal else SELDOM) and not (self.terminal and done == of): return
        self.tell(now)

    def counted(self, done: int, of: int) -> WorkCount:
        """What is done of all that was counted up to now. Several works may be counted one after the other: one begins
        where less is done, or something else is to do, than was said last, and goes on where the last one ended."""
        if done < self.last.done or of != self.last.of:
            self.before = WorkCount(self.before.done + self.last.done, self.before.of + self.last.of)
        self.last = WorkCount(done, of)
        return WorkCount(self.before.done + done, self.before.of + of if of else 0)

    def tell(self, now: float) -> None:
        """How far it is, and after how many seconds."""
        self.said = now
        after = f" after {now - self.began:.0f} s"
        self.write(f"{self.words} …{self.far}{after if not self.terminal or now - self.began >= TICK else ''}")

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """While the block lasts, on a terminal, the line says every second how many have gone by, whatever else is
        done. The thread that writes is gone afterwards, so that nothing forks beside it between two blocks."""
        if self.quiet or not self.terminal:
            yield
            return
        over = Event()

        def tick() -> None:
            while not over.wait(TICK / 2):
                if (now := time.perf_counter()) - self.said >= TICK: self.tell(now)
        writer = Thread(target=tick, daemon=True)
        writer.start()
        try: yield
        finally:
            over.set()
            writer.join()

    def write(self, line: str) -> None:
        if self.quiet: return
        width = min(WIDTH, shutil.get_terminal_size().columns - 1)
        sys.stderr.write(f"{AGAIN}{line[:width]}" if self.terminal else f"{line}\n")    # whole, as a thread writes too
        sys.stderr.flush()

    def end(self, words: str = "") -> None:
        """The line is gone, or says these words instead."""
        if self.quiet: return
        if self.terminal: print(AGAIN, end="", file=sys.stderr, flush=True)
        if words: print(words, file=sys.stderr, flush=True)
