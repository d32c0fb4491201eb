"""Programs under faults: interrupts, kills, arrays before guard pages, and planted wrong kernels."""

import faulthandler
import json
import linecache
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import NamedTuple
from unittest import mock

from lib import command
from lib.command import (
    ROOT,
    Figure,
    InputError,
    Parser,
    concluded,
    count,
    folder,
    listed,
    named,
    say,
    share,
    tabled,
    takes,
    whole,
)

import checkpoints
import guarded
import numpy as np

from opmatrix.display.tables import table

# ---- interrupts

PHASES = "recording", "preparing", "waiting", "launch", "result"
HANG = 30  # seconds without an end, of a run that takes milliseconds
RECORDING = {"record", "walk", "together", "keep", "script", "relocate"}
MISSED = 100  # signals in a row that strike nothing: then something is
# wrong here
BUSY = [sys.executable, "-c", "while True: pass"]


def measure_interrupts() -> int | None:
    """Interrupt runs of a program at random moments, beside busy processes: the next run must end, and give the same
    bits.

        python benchmarks/faults.py interrupts [--count 1000] [--neighbours 2] [--seed 0] [--csv OUT]

    An interruption is one to three signals within microseconds of each other, each of which raises
    KeyboardInterrupt wherever the main thread is in these packages, also while the one before it unwinds. Another
    thread runs the same program all the time. Runs are of one sentence (all threads together), of many (a group
    each), on one thread, of one kernel, and first runs, which record."""
    parser = Parser(measure_interrupts)
    parser.add_argument("--count", type=count, default=1000)
    parser.add_argument("--neighbours", type=whole, default=2)
    parser.add_argument("--seed", type=whole, default=0)
    parser.add_argument("--child", action="store_true", help="be interrupted, and say so in lines of JSON")
    given = parser.parse_args()
    if given.child:
        return interrupted(given.count, given.seed)
    takes(10 + 0.15 * given.count)
    rows = interrupts_table(told(given.count, given.neighbours, given.seed))
    for row in rows:
        print(" ".join(f"{cell!s:>14}" for cell in row))
    tabled(given.csv, rows)
    wrong = sum(rows[-1][2:])
    what = f"interruptions of {rows[-1][1]} after which a run hangs, is wrong, or dies"
    concluded(given, [Figure(what, wrong, most=0)])
    return int(bool(wrong))


def interrupts_table(said: list[tuple[str, str]]) -> list[tuple]:
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
                "interrupts",
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


# ---- kills

COMMANDS = {
    "embed": "embed program lines.txt --out rows.npy",
    "optimize": "optimize model --error 0.02 --out found.opmatrix --json found.json --html found.html",
    "run": "run program --json next.json the",
    "evaluate": "evaluate model program --pairs pairs.csv --json scores.json",
    "explain": "explain program --json told.json",
    "report": "report program --out report.html",
    "profile": "profile program --tokens 4 --json steps.json",
    "verify": "verify program --json checks.json",
    "spectrum": "spectrum model --json spectra.json",
    "compile": "compile program --into compiled",
    "laws": "laws --json laws.json",
    "doctor": "doctor --json machine.json",
    "calibrate": "calibrate --json measured.json",
    "partition": "partition model --tp 2 --batch 2 --tokens 8 --machine A100",
    "launch": "launch model --ranks 2 --tp 2 --tokens 4 --batch 2",
}
PATIENCE, OLD = 10.0, 7200.0  # seconds for children to end; of age
LONGEST = 15.0  # seconds into a command, at most, that it is killed
KILLS_COLUMNS = "command", "kills", "processes", "files", "left"


@dataclass
class Room:
    """A directory that is all that a command sees: its working directory, temporary files, cache."""

    place: Path

    @property
    def work(self) -> Path:
        return self.place / "work"

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """The command, in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "rewrites.cli", *COMMANDS[name].split()],
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ
            | {
                "PYTHONPATH": str(command.ROOT),
                "OPMATRIX_CACHE": str(self.place / "cache"),
                "TMPDIR": str(self.place / "tmp"),
            },
        )

    def finish(self, name: str) -> str:
        """The words of a whole run. Raises InputError where it fails."""
        process = self.start(name)
        said = process.communicate()[0].decode(errors="replace")
        if (status := process.returncode) == 0:
            return said
        raise InputError(f"opmatrix {COMMANDS[name]}: status {status}: {said[-400:]}")

    def files(self) -> set[str]:
        """Every path below."""
        return {str(path.relative_to(self.place)) for path in self.place.rglob("*")}


def measure_kills() -> None:
    """Kill every command at random moments, by SIGTERM and SIGKILL in turn, and look for processes and files that
    outlive it.

        python benchmarks/faults.py kills [--count 30] [--only embed,optimize] [--seed 0] [--csv OUT]

    What lies in the working directory, among temporary files and in the cache beside what a whole run leaves is
    made two hours old; then the command runs to its end. What is still there, and that run does not name, is left
    over."""
    parser = Parser(measure_kills)
    parser.add_argument("--count", type=count, default=30, help="kills of each command")
    parser.add_argument("--only", type=listed, default=[*COMMANDS], help="some commands, between commas")
    parser.add_argument("--seed", type=whole, default=0)
    given = parser.parse_args()
    named("only", given.only, COMMANDS)
    takes(len(given.only) * (10 + 4 * given.count))
    rows = []
    with tempfile.TemporaryDirectory() as place:
        room = furnished(Path(place))
        for name in given.only:
            rows.append(killed(name, room, given.count, random.Random(f"{given.seed} {name}")))
            say(f"{name}: {rows[-1]}")
            tabled(given.csv, [KILLS_COLUMNS, *rows])
    print(table([[str(cell) for cell in row] for row in rows], list(KILLS_COLUMNS)))
    kills = sum(row[1] for row in rows)
    concluded(
        given,
        [
            Figure(f"{what} left by {kills} kills", sum(row[at] for row in rows), most=0)
            for at, what in ((2, "processes"), (3, "files"))
        ],
    )


def killed(name: str, room: Room, count: int, rng: random.Random) -> list[object]:
    """The row of a command."""
    room.finish(name)  # which also fills the cache
    begun = time.monotonic()
    room.finish(name)
    most, usual = min(time.monotonic() - begun, LONGEST), room.files()
    processes, left = 0, list[str]()
    for number in range(count):
        for each in outputs(name, room):
            remove(each)
        processes += outlived(room.start(name), rng.uniform(0, most), (signal.SIGTERM, signal.SIGKILL)[number % 2])
        age(room, usual)
        said = room.finish(name)
        left += [path for path in sorted(room.files() - usual) if Path(path).name not in said]
    for each in outputs(name, room):
        remove(each)
    return [name, count, processes, len(left), " ".join(sorted(set(left)))[:200]]


def furnished(place: Path) -> Room:
    """A room with a small model, its program, and texts."""
    room = Room(place)
    for each in ("work", "tmp", "cache"):
        (place / each).mkdir()
    checkpoints.write(room.work / "model")
    (room.work / "lines.txt").write_text("the bank of the river\n" * 2000)
    (room.work / "pairs.csv").write_text("sentence1,sentence2,score\n" + "the bank,a river,2\nthe river,the,3\n" * 20)
    room.finish("optimize")
    (room.work / "found.opmatrix").rename(room.work / "program")
    return room


def outputs(name: str, room: Room) -> Iterator[Path]:
    """The paths that a command writes to."""
    words = COMMANDS[name].split()
    for option, path in pairwise(words):
        if option in ("--out", "--json", "--html", "--into"):
            yield room.work / path


def remove(path: Path) -> None:
    """Removes a file or a directory that may be there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def outlived(process: "subprocess.Popen[bytes]", seconds: float, number: signal.Signals) -> int:
    """Kills a command after so many seconds; whether a process of its session is there when patience ends."""
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=seconds)
    process.send_signal(number)
    end = time.monotonic() + PATIENCE
    with suppress(ProcessLookupError):
        while time.monotonic() < end:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        return 1
    return 0


def age(room: Room, usual: set[str]) -> None:
    """Makes what a whole run does not leave two hours old."""
    old = time.time() - OLD
    for path in room.files() - usual:
        os.utime(room.place / path, (old, old), follow_symlinks=False)


# ---- guards

RESULTS = "right", "refused", "wrong", "crashed"
PIECE = 2000  # cases of a child


def measure_guards() -> int:
    """Lay arrays of every step, alignment, overlap and flag before pages that nobody may touch, at the door of every
    format and kernel.

        python benchmarks/faults.py guards [--share 1.0] [--doors int8 attention] [--workers 2] [--csv OUT]

    Each result is right to the bit of plain arrays, which are near float64, or refused in words; anything else is
    printed, and ends with status 1."""
    parser = Parser(measure_guards)
    parser.add_argument("--share", type=share, default=1.0, help="of all cases, drawn at random")
    parser.add_argument("--doors", nargs="*", help="formats and kernels; default: all")
    parser.add_argument("--workers", type=count, default=os.cpu_count())
    given = parser.parse_args()
    every = [*guarded.cases()]
    named("doors", given.doors or (), sorted({case[0].split()[0] for case in every}))
    chosen = [case for case in every if not given.doors or case[0].split()[0] in given.doors]
    chosen = random.Random(0).sample(chosen, max(1, int(given.share * len(chosen))))
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
    takes(3 + 0.012 * len(chosen))
    started, found, done = time.perf_counter(), Counter(), 0
    with ThreadPoolExecutor(given.workers) as pool:
        for counts in pool.map(lambda piece: guarded.run_all(piece, environment), pieces(chosen)):
            found.update(counts)
            done += sum(counts.values())
            say(f"{done} of {len(chosen)} cases")
    said = [words for words, result in found if result in ("wrong", "crashed")]
    for words in said:
        print(words)
    print(f"{'door':<22}{'cases':>9}" + "".join(f"{result:>9}" for result in RESULTS))
    for door, counts in (rows := sorted(guards_table(found).items())):
        print(f"{door:<22}{sum(counts.values()):>9}" + "".join(f"{counts[result]:>9}" for result in RESULTS))
    print(f"{time.perf_counter() - started:.0f} s")
    tabled(given.csv, [("door", *RESULTS), *((door, *(counts[result] for result in RESULTS)) for door, counts in rows)])
    concluded(given, [Figure(f"results of {len(chosen)} that are wrong, or crashes", len(said), most=0)])
    return int(bool(said))


def pieces(cases: list[guarded.Case]) -> list[list[guarded.Case]]:
    return [cases[at : at + PIECE] for at in range(0, len(cases), PIECE)]


def guards_table(found: Counter) -> dict[str, Counter]:
    """Results by format or kernel, and of all."""
    rows: dict[str, Counter] = {"all": Counter()}
    for (words, result), cases in found.items():
        door = words.lstrip("('").split()[0].rstrip("',")
        for name in ("all", door):
            rows.setdefault(name, Counter())[result] += cases
    return rows


# ---- planted

WORDS = "the bank of river runs dry a ? . bank river runs of the dry".split()
WHOLE = 10  # of so many faults one is met by all of `optimize`
LLAMA = dict(
    vocab_size=41,
    hidden_size=64,
    intermediate_size=128,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=1,
)
EXPERTS = dict(intermediate_size=96, num_local_experts=4, num_experts_per_tok=2)
FAMILIES = {  # of one layer
    "bert": dict(hidden_size=64, intermediate_size=128, num_attention_heads=2, num_hidden_layers=1),
    "gpt2": dict(vocab_size=41, n_embd=64, n_layer=1, n_head=2),
    "llama": LLAMA,
    "mistral": LLAMA | dict(sliding_window=21),
    "mixtral": LLAMA | EXPERTS | dict(sliding_window=None),
}
PLANTED_COLUMNS = "kind", "faults", "sentences", "verify", "optimize"


class Found(NamedTuple):
    """What found a fault: the checks on sentences alone, `verify`, `optimize`."""

    kind: str
    sentences: bool
    verify: bool
    optimize: bool


def measure_planted() -> int:
    """Plant kernels that are wrong for some data or lengths alone, and count those that `verify` and `optimize` find.

        python benchmarks/faults.py planted [--of lengths|data] [--count 60]
                [--family bert|gpt2|llama|mistral|mixtral] [--positions 300] [--model DIR] [--number-type int8]
                [--seed 0] [--csv OUT]

    Faults of lengths are of eight kinds (tests/support/wrong_kernels.py): an input, a key, a row, a head, a group
    or a tail that is lost, a wrong scale, wrong bits; of products, attention in float32 and in bfloat16, rotations,
    norms, pooling, embeddings. Of a family that decodes every third is one of its sessions
    (tests/support/wrong_sessions.py): lost pages and rows, page boundaries, masks of several rows, shared writes,
    rewinds, double rounding, windows, two threads. Each appears only in sequences longer, or rows further, than a
    threshold drawn within the lengths that the certificates list. Faults of data (tests/support/wrong_for_data.py)
    are made from what kernels declare: rows that are zero, equal, tiny, huge, of a drawn size, an id of a table,
    ties, an expert without rows, of one or of all, an eps that is forgotten. The model is a random one of a family,
    of so many positions, or one of your own; its front is made once without faults, and its programs are verified
    with each fault, those that have the kernel, by `verify` and as `optimize` does it; with every tenth fault all
    of `optimize` runs. `sentences` says how many the checks on the sentences of certificates find alone."""
    parser = Parser(measure_planted)
    parser.add_argument("--of", choices=("lengths", "data"), default="lengths")
    parser.add_argument("--count", type=count, default=60)
    parser.add_argument("--positions", type=count, default=300)
    parser.add_argument("--model", type=folder, help="a checkpoint")
    parser.add_argument("--family", choices=FAMILIES, default="bert")
    parser.add_argument("--number-type", choices=("float32", "bf16", "int8", "int4"), default="int8")
    parser.add_argument("--seed", type=whole, default=0)
    given = parser.parse_args()
    takes(30 + 5 * given.count)
    with tempfile.TemporaryDirectory() as place:
        model = given.model or written(Path(place, "model"), given.family, given.positions)
        found = judged(Path(place), model, given.number_type, drawing(given.of, given.count, given.seed))
    rows, width = planted_table(found), max(len(each.kind) for each in found)
    print(f"seed {given.seed}")
    for kind, *row in rows:
        print(f"{kind:>{max(9, width)}}", *(f"{cell!s:>9}" for cell in row))
    tabled(given.csv, rows)
    _, faults, _, verified, optimized = rows[-1]
    concluded(
        given,
        [
            Figure(f"of {faults} faults those that verify does not find", faults - verified, most=0),
            Figure(f"of {faults} faults those that optimize does not find", faults - optimized, most=0),
        ],
    )
    return int(min(verified, optimized) < faults)


def planted_table(found: list[Found]) -> list[tuple]:
    """A row a kind, and all of them."""
    counted = {kind: Counter[str]() for kind in (*dict.fromkeys(each.kind for each in found), "all")}
    for each in found:
        for kind in (each.kind, "all"):
            counted[kind] += Counter(faults=1, sentences=each.sentences, verify=each.verify, optimize=each.optimize)
    return [
        PLANTED_COLUMNS,
        *((kind, *(row[column] for column in PLANTED_COLUMNS[1:])) for kind, row in counted.items()),
    ]


def written(place: Path, family: str, positions: int) -> Path:
    """A checkpoint of random numbers."""
    from checkpoints import fused, safetensors, write, write_tokenizer
    from random_models import random_weights

    from opmatrix.models import build

    if family == "bert":
        return write(place, **FAMILIES[family], max_position_embeddings=positions)
    limit = "n_positions" if family == "gpt2" else "max_position_embeddings"
    config = FAMILIES[family] | {"model_type": family, limit: positions}
    build(config, numbers := random_weights(config, np.random.default_rng(0)))
    place.mkdir()
    place.joinpath("config.json").write_text(json.dumps(config))
    safetensors(place / "model.safetensors", fused({name: data.array for name, data in numbers.made.items()}))
    write_tokenizer(place / "tokenizer.json")
    return place


def drawing(of: str, count: int, seed: int):
    """Return a function that draws `count` faults for programs and a longest sentence, and one that tells whether
    a program meets a fault."""
    import wrong_for_data
    import wrong_kernels

    rng = np.random.default_rng(seed)
    if of == "data":
        return lambda programs, _: wrong_for_data.drawn(rng, count, programs), wrong_for_data.meets
    return lambda programs, longest: with_sessions(
        wrong_kernels.drawn(rng, count, longest, kernels_of(programs)), programs[0], longest, seed
    ), has


def judged(place: Path, model: Path, number_type: str, drawn_faults) -> list[Found]:
    """Verify saved programs with each fault planted, and list which door found it."""
    from opmatrix.runtime.program import Program

    (draw, meets), (searched, points) = drawn_faults, verified(model, number_type)
    longest = max(map(max, points[0].lengths))
    places = [place / f"{at}" for at in range(len(points))]
    for each, point in zip(places, points, strict=True):
        point.program.save(each)
    found = []
    say(f"texts of up to {longest} tokens")
    for at, fault in enumerate(draw([point.program for point in points], longest)):
        with fault.planted():
            programs = [Program.load(each) for each in places]
            names = [checked(program) for program in programs if meets(program, fault)]
            short = all("steps within bounds" in each for each in names)
            ended = refused(lambda: verified_anew(searched, points)) and (
                at % WHOLE or refused(lambda: verified(model, number_type))
            )
            found.append(Found(fault.kind, short, all(map(bool, names)), bool(ended)))
        if not (found[-1].verify and found[-1].optimize):
            say(f"not found: {fault}: {found[-1]}")
        elif len(found) % 10 == 0:
            say(f"{len(found)} faults")
    return found


def with_sessions(faults, program, longest: int, seed: int):
    """These faults; of a program that decodes a fault of its sessions in place of every third."""
    import wrong_sessions

    from opmatrix.inference.cached import decoder_of, rows_behind

    decoder = decoder_of(program)
    if decoder is None:
        return faults
    others = wrong_sessions.endless(np.random.default_rng(seed), longest, rows_behind(decoder) < longest)
    return (next(others) if at % 3 == 2 else fault for at, fault in enumerate(faults))


def verified(model: Path, number_type: str):
    """What `optimize` searches within 5 %, and its programs, verified; laws and their graphs are verified elsewhere."""
    import standin
    from pytest import MonkeyPatch

    from rewrites import run

    rng, stages = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as place, MonkeyPatch.context() as patch:
        standin.know_laws(patch)
        time_front = run.time_front
        patch.setattr(
            run,
            "time_front",
            lambda searched, front, *given: (
                stages.append((searched, front.points)),
                time_front(searched, front, *given),
            )[1],
        )
        text = Path(place, "lines.txt")
        text.write_text("\n".join(" ".join(rng.choice(WORDS, rng.integers(3, 20))) for _ in range(80)))
        run.optimize(
            str(model),
            error=0.05,
            text=str(text),
            tokens=60,
            number_type=number_type,
            machine=standin.machine(),
            rounds=1,
        )
    return stages[0]


def verified_anew(searched, points) -> None:
    """What `optimize` does with the programs that it found, which are bound again to the kernels that there are now."""
    from rewrites.report.checked import LengthChecks
    from rewrites.verify import verify_steps
    from rewrites.verify.sessions.verified_sessions import Sessions, verify_all_sessions

    told = set()
    points = [replace(point, program=point.program.over(point.program.steps)) for point in points]
    programs = {name: program.over(program.steps) for name, program in searched.programs.items()}
    few = searched.workload.few
    for program in (programs["imported"], *(point.program for point in points)):
        verify_steps(program, [few], told)
    lengths = LengthChecks.of(replace(searched, programs=programs | {"exact": points[0].program}), points, few)
    results = {name: check() for name, check in lengths.calls().items()}
    if results:
        lengths.state(points, *results["model at lengths"])
    verify_all_sessions([point.program for point in points], few, Sessions.of(lengths.lengths))


def refused(call) -> bool:
    """Whether verification ends it."""
    from rewrites.verify import VerificationError

    try:
        call()
    except VerificationError:
        return True
    return False


def kernels_of(programs: list) -> dict[str, list[bool]]:
    """The kernels that programs have; of attention whether in bfloat16."""
    found: dict[str, set[bool]] = {}
    for program in programs:
        for call in program.schedule.calls[program.schedule.first :]:
            narrow = getattr(call.bound, "number_type", "float32") != "float32"
            found.setdefault(call.kernel.name, set()).add(narrow)
    return {name: sorted(each) for name, each in found.items()}


def has(program, fault) -> bool:
    """Tell whether a program has the kernel of a fault, or sessions."""
    if not hasattr(fault, "narrow"):
        return True
    return fault.narrow in kernels_of([program]).get(fault.kernel, ()) or (
        not fault.narrow and fault.kernel in kernels_of([program])
    )


def checked(program) -> set[str]:
    """What fails of a program that is verified."""
    from rewrites.metrics import recheck

    with mock.patch.object(recheck, "verify_laws", lambda laws: {"laws": len(laws)}):
        return {check.what for check in recheck.checks(program) if check.verdict == recheck.FAILS}


if __name__ == "__main__":
    command.run_parts(measure_interrupts, measure_kills, measure_guards, measure_planted)
