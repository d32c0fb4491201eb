"""Verification whose result is needed later, done in a forked process while this process goes on."""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Self

from formats.host.threads import available
from rewrites.verify.failure import VerificationError
from rewrites.verify.levels import Announce

LIMIT = 300.0  # longest wait for an answer, s: a process that hangs
# does not block the run
POOLED = "egglog", "scipy.optimize"  # packages with threads, which a forked process lacks
READ_BYTES = 1 << 16  # bytes read at a time
FAILURE = "level", "where", "what", "reproducer", "laws"  # arguments of a VerificationError beside its numbers


class ForkedTask:
    """The call `work(announce)`, run in a forked process beside the block of this context manager. It forks only if
    the system can, no loaded package has threads that the child would lack, and a processor is free. `answer()` waits
    for the result, which must fit in JSON; it announces the lines that the work announced, and raises the
    VerificationError that the work raised. If the process could not be started, or ended without an answer, `answer()`
    runs the work here, or `instead` if that is passed. The process is gone at the end of the block."""

    def __init__(self, work: Callable[[Announce], object], announce: Announce) -> None:
        self.work, self.announce = work, announce
        self.process, self.pipe = 0, -1

    def __enter__(self) -> Self:
        if hasattr(os, "fork") and available() > 1 and not any(name in sys.modules for name in POOLED):
            with suppress(OSError):
                self.begin()
        return self

    def begin(self) -> None:
        """Fork the process: the child does the work, this one goes on with the pipe to read from."""
        reading, writing = os.pipe()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            self.process = os.fork()
        except OSError:
            for end in (reading, writing):
                os.close(end)
            raise
        if not self.process:
            self.serve(writing)
        os.close(writing)
        self.pipe = reading

    def serve(self, writing: int) -> None:
        """Run in the forked process: write lines of JSON, the last of which is the answer. Prints nothing, and ends
        the process whatever happens."""
        with suppress(BaseException):
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # an interrupt of the run ends this process too
            with os.fdopen(writing, "w") as lines:

                def tell(kind: str, said: object) -> None:
                    """Write one line of JSON at once."""
                    print(json.dumps([kind, said]), file=lines, flush=True)

                try:
                    tell("answer", self.work(lambda line: tell("announced", line)))
                except VerificationError as error:
                    tell("failure", [[getattr(error, name) for name in FAILURE], error.values])
        os._exit(0)

    def answer(self, instead: Callable[[Announce], object] | None = None) -> Any:
        """Wait for the answer, and announce the lines that come before it; do the work here if there is no fork or no
        answer. Raises VerificationError as the work does."""
        for kind, content in self.lines() if self.process else ():
            if kind == "announced":
                self.announce(content)
            elif kind == "answer":
                return content
            elif kind == "failure":
                raise VerificationError(*content[0], **content[1])
        return (instead or self.work)(self.announce)

    def lines(self) -> Iterator[Any]:
        """Yield the messages of the process until it ends or LIMIT is over."""
        end, rest = time.monotonic() + LIMIT, b""
        while (left := end - time.monotonic()) > 0 and select.select([self.pipe], [], [], left)[0]:
            if not (read := os.read(self.pipe, READ_BYTES)):
                return
            *whole, rest = (rest + read).split(b"\n")
            yield from map(json.loads, whole)

    def __exit__(self, *error: object) -> None:
        if not self.process:
            return
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.process = 0
