"""How far something is, on stderr: on a terminal one line that is written over; elsewhere a line when it begins, and
one every few seconds."""
import sys
import time
from typing import Any

OFTEN, SELDOM = 0.2, 5.0                                    # seconds between two lines: on a terminal, elsewhere
WIDTH = 100                                                 # characters of a line that is written over
AGAIN = "\r\033[K"                                          # what a terminal writes the line over by


class Line:
    """What is being done, in words. Call it with what is done so far, or with (done, of); `end` closes it."""

    def __init__(self, words: str, quiet: bool = False) -> None:
        self.words, self.quiet, self.terminal = words, quiet, sys.stderr.isatty()
        self.began = self.said = time.perf_counter()
        self.write(f"{words} …")

    def __call__(self, done: Any, of: int | None = None) -> None:
        now = time.perf_counter()
        if now - self.said < (OFTEN if self.terminal else SELDOM) and not (self.terminal and done == of): return
        self.said = now
        far = f"{done}" + (f"/{of}" if of else "")
        self.write(f"{self.words} … {far}" + ("" if self.terminal else f" after {now - self.began:.0f} s"))

    def write(self, line: str) -> None:
        if self.quiet: return
        print(f"{AGAIN}{line[:WIDTH]}" if self.terminal else line, end="" if self.terminal else "\n", file=sys.stderr,
              flush=True)

    def end(self, words: str = "") -> None:
        """The line is gone, or says these words instead."""
        if self.quiet: return
        if self.terminal: print(AGAIN, end="", file=sys.stderr, flush=True)
        if words: print(words, file=sys.stderr, flush=True)
