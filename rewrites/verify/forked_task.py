"""Verification whose result is needed later, done in a forked process while this one goes on."""
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

LIMIT = 300.0                                               # seconds that an answer is waited for: a process that hangs
                                                            # holds up nothing
POOLED = "egglog", "scipy.optimize"                         # whose threads a forked process has not, and would wait for
READ_BYTES = 1 << 16                                        # read at a time
FAILURE = "level", "where", "what", "reproducer", "laws"    # what an error of verification was made of, beside its
                                                            # numbers


class ForkedTask:
    """`work(announce)`, done beside what its block does, where a process can be forked, nothing is loaded whose threads
    it would lack, and a processor is free for it. `answer()` waits for its result, which JSON must hold, raises the
    VerificationError that it raised, and has said by then what it announced. Where the process could not be made, or
    ended without an answer, the work is done here, or what is given instead. At the end of the block nothing is left of
    it."""

    def __init__(self, work: Callable[[Announce], object], announce: Announce) -> None:
        self.work, self.announce = work, announce
        self.process, self.pipe = 0, -1

    def __enter__(self) -> Self:
        if hasattr(os, "fork") and available() > 1 and not any(name in sys.modules for name in POOLED):
            with suppress(OSError): self.begin()
        return self

    def begin(self) -> None:
        reading, writing = os.pipe()
        for stream in (sys.stdout, sys.stderr): stream.flush()
        try: self.process = os.fork()
        except OSError:
            for end in (reading, writing): os.close(end)
            raise
        if not self.process: self.serve(writing)
        os.close(writing)
        self.pipe = reading

    def serve(self, writing: int) -> None:
        """The forked process: lines of JSON, of which the last is the answer. It prints nothing and ends here, whatever
        happens."""
        with suppress(BaseException):
            signal.signal(signal.SIGINT, signal.SIG_DFL)    # whoever interrupts the run interrupts this too
            with os.fdopen(writing, "w") as lines:
                def tell(kind: str, said: object) -> None: print(json.dumps([kind, said]), file=lines, flush=True)
                try: tell("answer", self.work(lambda line: tell("announced", line)))
                except VerificationError as error:
                    tell("failure", [[getattr(error, name) for name in FAILURE], error.values])
        os._exit(0)

    def answer(self, instead: Callable[[Announce], object] | None = None) -> Any:
        for kind, said in self.lines() if self.process else ():
            if kind == "announced": self.announce(said)
            elif kind == "answer": return said
            elif kind == "failure": raise VerificationError(*said[0], **said[1])
        return (instead or self.work)(self.announce)

    def lines(self) -> Iterator[Any]:
        """What the process says, until it ends or LIMIT is over."""
        end, rest = time.monotonic() + LIMIT, b""
        while (left := end - time.monotonic()) > 0 and select.select([self.pipe], [], [], left)[0]:
            if not (read := os.read(self.pipe, READ_BYTES)): return
            *whole, rest = (rest + read).split(b"\n")
            yield from map(json.loads, whole)

    def __exit__(self, *error: object) -> None:
        if not self.process: return
        os.close(self.pipe)
        with suppress(ProcessLookupError): os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.process = 0
