"""Reads mutated files of every kind in child processes, and says what became of each: refused in a line, the same,
other numbers, or what must not be: another error, memory beyond a limit, a crash, a hang, code that ran.

    python tests/support/hostile.py SEED FIRST LAST    (a child: a line of JSON before and after each file)"""

import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

HERE = Path(__file__).parent
SPARE = 3 << 30  # bytes of address space that reading a small file may take
GOOD, BAD = ("refused", "same", "other"), ("changed", "error", "memory", "crash", "hang", "code")
OUTCOMES = (*GOOD, *BAD)
SILENT, FIRST = 120, 1800  # seconds without a word after which a child hangs; before
# its
# first file kernels may have to be compiled


@dataclass
class Outcome:
    """What became of a file: its number, its kind, one of OUTCOMES, and what was said."""

    at: int
    kind: str
    outcome: str
    said: str = ""


# ---- the parent


def judged(seed, first, last, silent=SILENT):
    """The outcomes of the files from `first` to `last`, last excluded. A child that dies or falls silent is
    replaced."""
    while first < last:
        child = subprocess.Popen(
            [sys.executable, __file__, str(seed), str(first), str(last)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE.parents[1],
            env=os.environ | {"RUST_BACKTRACE": "0"},
        )
        lines = queue.Queue()
        readers = [
            Thread(target=lambda: [lines.put(line) for line in child.stdout] + [lines.put(None)]),  # noqa: B023
            Thread(target=lambda: setattr(child, "said", child.stderr.read())),  # noqa: B023
        ]
        for reader in readers:
            reader.start()
        begun, hung, started = None, False, False
        while True:
            try:
                line = lines.get(timeout=silent if started else FIRST)
            except queue.Empty:
                hung = True
                child.kill()
                break
            if line is None:
                break
            found, started = json.loads(line), True
            if "outcome" in found:
                yield Outcome(**found)
                begun, first = None, found["at"] + 1
            else:
                begun = found
        code = child.wait()
        for reader in readers:
            reader.join()
        if begun:
            yield Outcome(**begun, outcome="hang" if hung else "crash", said=f"exit {code}: {child.said[-300:]}")
            first = begun["at"] + 1
        elif code:
            raise RuntimeError(f"the child ended with {code} before file {first}: {child.said[-2000:]}")


def table(outcomes):
    """A row for each kind of file, and their sum."""
    counts = {}
    for each in outcomes:
        for kind in (each.kind, "all"):
            counts.setdefault(kind, Counter())[each.outcome] += 1
    ordered = sorted(counts, key=lambda kind: (kind == "all", kind))
    return [(kind, sum(counts[kind].values()), *(counts[kind][outcome] for outcome in OUTCOMES)) for kind in ordered]


# ---- the child

WATCHED = {
    "exec",
    "compile",
    "import",
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.spawn",
    "pty.spawn",
    "socket.connect",
    "ctypes.dlopen",
    "marshal.loads",
    "pickle.find_class",
    "code.__new__",
    "shutil.rmtree",
    "os.remove",
    "os.rename",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Watch:
    """An audit hook that remembers and refuses what no file may cause, while it is on."""

    def __init__(self, room, canary):
        self.on, self.caught, self.room, self.canary = False, [], str(room), str(canary)
        sys.addaudithook(self.hook)

    def own(self, path):
        return str(path).startswith(self.room) and str(path) != self.canary

    def hook(self, event, arguments):
        if not self.on:
            return
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING and not self.own(arguments[0])
        )
        if event not in WATCHED and not writes:
            return
        self.caught.append(f"{event} {str(arguments)[:200]}")
        raise PermissionError(f"refused: {event}")


def read_all(seed, first, last):
    """Read the files of a range, each in a line before and one after."""
    import numpy as np
    from hostile_kinds import KINDS
    from mutations import Mutator

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed otherwise is no outcome
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as room:
        room = Path(room)
        kinds = [kind(room / kind.__name__) for kind in KINDS]
        canary = room / "canary"
        watch = Watch(room, canary)
        if (sizes := Path("/proc/self/statm")).exists():
            most = int(sizes.read_text().split()[0]) * resource.getpagesize() + SPARE
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        for at in range(first, last):
            kind = kinds[at % len(kinds)]
            print(json.dumps({"at": at, "kind": kind.name}), file=out, flush=True)
            watch.caught.clear()
            with kind.spoilt(Mutator(np.random.default_rng([seed, at]), canary)):
                watch.on = True
                try:
                    outcome, said = kind.outcome()
                except MemoryError as error:
                    outcome, said = "memory", str(error)
                except BaseException as error:
                    outcome, said = "error", f"{type(error).__name__}: {error}"
                finally:
                    watch.on = False
            if watch.caught or canary.exists():
                outcome, said = "code", f"{watch.caught[:1]} {said}"
            canary.unlink(missing_ok=True)
            print(
                json.dumps({"at": at, "kind": kind.name, "outcome": outcome, "said": said[:300]}), file=out, flush=True
            )


if __name__ == "__main__":
    read_all(*map(int, sys.argv[1:]))
