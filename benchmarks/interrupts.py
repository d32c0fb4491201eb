"""Runs of a program interrupted at random moments, beside busy processes: the next run must end, and give the same
bits.

    python benchmarks/interrupts.py [--count 1000] [--neighbours 2] [--seed 0] [--csv OUT]

An interruption is one to three signals within microseconds of each other, each of which raises KeyboardInterrupt
wherever the main thread is in these packages, also while the one before it unwinds. Another thread runs the same
program all the time. Runs are of one sentence (all threads together), of many (a group each), on one thread, of one
kernel, and first runs, which record."""

import faulthandler
import json
import linecache
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads

from lib import command
from lib.command import Figure, Parser, concluded, count, tabled, takes, whole

PHASES = "recording", "preparing", "waiting", "launch", "result"
HANG = 30  # seconds without an end, of a run that takes milliseconds
RECORDING = {"record", "walk", "together", "keep", "script", "relocate"}
MISSED = 100  # signals in a row that strike nothing: then something is
# wrong here
BUSY = [sys.executable, "-c", "while True: pass"]


def main() -> int | None:
    parser = Parser(__doc__)
    parser.add_argument("--count", type=count, default=1000)
    parser.add_argument("--neighbours", type=whole, default=2)
    parser.add_argument("--seed", type=whole, default=0)
    parser.add_argument("--child", action="store_true", help="be interrupted, and say so in lines of JSON")
    given = parser.parse_args()
    if given.child:
        return interrupted(given.count, given.seed)
    takes(10 + 0.15 * given.count)
    rows = table(told(given.count, given.neighbours, given.seed))
    for row in rows:
        print(" ".join(f"{cell!s:>14}" for cell in row))
    tabled(given.csv, rows)
    wrong = sum(rows[-1][2:])
    what = f"interruptions of {rows[-1][1]} after which a run hangs, is wrong, or dies"
    concluded(given, [Figure(what, wrong, most=0)])
    return int(bool(wrong))


def table(said: list[tuple[str, str]]) -> list[tuple]:
    """A row a phase, and all of them."""
    counted = Counter(said)
    rows = [(phase, *(counted[phase, end] for end in ("right", "hang", "wrong", "died"))) for phase in PHASES]
    rows = [(phase, sum(ends), *ends[1:]) for phase, *ends in rows]
    return [
        ("phase", "interruptions", "hangs", "wrong", "died"),
        *rows,
        ("all", *map(sum, list(zip(*rows, strict=True))[1:])),
    ]


def told(count: int, neighbours: int, seed: int) -> list[tuple[str, str]]:
    """(phase, how it ended) of so many interruptions. A process that hangs or dies counts once, and another goes on."""
    busy = [subprocess.Popen(BUSY) for _ in range(neighbours)]
    said: list[tuple[str, str]] = []
    try:
        while len(said) < count:
            command = [
                sys.executable,
                __file__,
                "--child",
                "--count",
                str(count - len(said)),
                "--seed",
                str(seed + len(said)),
            ]
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            out, errors = child.communicate()
            lines = [json.loads(line) for line in out.splitlines()]
            said += [(phase, end) for phase, end in lines if end != "begun"]
            if child.returncode:
                print(errors, file=sys.stderr)
                said.append((lines[-1][0] if lines else PHASES[0], "hang" if "Timeout" in errors else "died"))
    finally:
        for each in busy:
            each.kill()
        for each in busy:
            each.wait()
    return said


# ---- in the process that is interrupted

Place = tuple[str, str, int]  # of a frame: file, function, line


@cache
def packages() -> tuple[str, ...]:
    """Where the packages are that are interrupted."""
    import formats
    import opmatrix

    return tuple(f"{Path(str(each.__file__)).parent}{os.sep}" for each in (formats, opmatrix))


def places(frame) -> list[Place]:
    """Where the frames of these packages are, the innermost first; none where a run has not begun, or is over."""
    found = []
    while frame:
        if frame.f_code.co_filename.startswith(packages()):
            found.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno or 0))
        frame = frame.f_back
    return found


def phase(found: list[Place]) -> str:
    """What they are at."""
    if RECORDING & {function for _, function, _ in found}:
        return "recording"
    line = linecache.getline(found[0][0], found[0][2])
    if "with POOL.lock" in line:
        return "waiting"
    if ".call(" in line or "sleep(" in line:
        return "launch"
    return "result" if len(found) < 3 and "return" in line else "preparing"


class Interrupts:
    """A few signals from a moment on; where the first of them struck."""

    def __init__(self) -> None:
        self.struck, self.left, self.busy = "", 0, False
        signal.signal(signal.SIGALRM, self.arrive)

    def arrive(self, number: int, frame) -> None:
        if self.busy or not self.left:
            return
        self.busy = True
        self.left -= 1
        if (found := places(frame)) and not self.struck:
            self.struck = phase(found)
            print(json.dumps((self.struck, "begun")), flush=True)
        self.busy = False
        if found:
            raise KeyboardInterrupt

    def during(self, call, moment: float, gap: float, signals: int) -> str:
        """Where the call was interrupted, so many seconds after its beginning, so many times with gaps between; '' if
        not."""
        self.struck, self.left = "", signals
        with suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, moment, gap)
            call()
        self.left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        return self.struck


def calls() -> dict:
    """By what is special about a run, what prepares it: a function that runs, and gives an array."""
    import checkpoints
    import numpy as np
    from programs import bert_program, fused_layer

    from formats import FORMATS, kernels
    from formats.host.threads import limit

    config = checkpoints.CONFIG | {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
    }
    made = lambda: bert_program(config, arrays, fused_layer, FORMATS["int8"].approximate)
    arrays, rng = checkpoints.arrays(config), np.random.default_rng(0)
    program, x, w = made(), rng.standard_normal((300, 256), np.float32), rng.standard_normal((256, 200), np.float32)
    one, many = (
        [[5] * 250],
        [rng.integers(0, config["vocab_size"], length).tolist() for length in rng.integers(1, 60, 40)],
    )

    def alone():
        with limit(1):
            return program.run(many)

    def first():
        fresh = made()
        return lambda: fresh.run(one)

    kernel = lambda: kernels.product_dense(x, w, np.empty((300, 200), np.float32))
    return {
        "together": lambda: lambda: program.run(one),
        "groups": lambda: lambda: program.run(many),
        "alone": lambda: alone,
        "kernel": lambda: kernel,
        "first": first,
    }


def interrupted(count: int, seed: int) -> None:
    """Print a line for each interruption: where it struck, and whether this call and the others are right after it."""
    import numpy as np

    faulthandler.enable()
    rng, made, interrupts, over = np.random.default_rng(seed), calls(), Interrupts(), Event()
    faulthandler.dump_traceback_later(10 * HANG, exit=True)
    wanted = {name: call()() for name, call in made.items()}
    for each in enumerate_threads():  # they are held up in the middle of items, by the busy
        # processes
        if each.name == "opmatrix" and sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, each.native_id, 19)
    taken = {name: min(seconds(call()) for _ in range(5)) for name, call in made.items()}
    wrong: list[str] = []

    def beside() -> None:
        while not over.wait(0.05):
            if not np.array_equal(made["together"]()(), wanted["together"]):
                wrong.append("beside")

    thread = Thread(target=beside)
    thread.start()
    missed, _ = 0, packages()  # asked for before a signal does
    try:
        while count:
            faulthandler.dump_traceback_later(HANG, exit=True)
            name = rng.choice([*made], p=[0.4, *[0.15] * 4])
            at = interrupts.during(
                made[name](), rng.uniform(1e-6, 1.2 * taken[name]), rng.uniform(1e-5, 1e-4), rng.integers(1, 4)
            )
            wrong += [each for each in {name, "together", "kernel"} if not np.array_equal(made[each]()(), wanted[each])]
            missed = 0 if at else missed + 1
            if missed > MISSED:
                raise SystemExit(f"{missed} signals in a row struck none of {', '.join(packages())}")
            if at:
                count -= 1
                print(json.dumps((at, "wrong" if wrong else "right")), flush=True)
                wrong.clear()
    finally:
        over.set()
        thread.join()


def seconds(call) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    command.run(main)
