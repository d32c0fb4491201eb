"""Every command killed at random moments, by SIGTERM and SIGKILL in turn: which processes and files outlive it.

    python benchmarks/kills.py [--count 30] [--only embed,optimize] [--seed 0] [--csv OUT]

What lies in the working directory, among temporary files and in the cache beside what a whole run leaves is made two
hours old; then the command runs to its end. What is still there, and that run does not name, is left over."""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from lib import command
from lib.command import Figure, InputError, Parser, concluded, count, listed, named, say, tabled, takes, whole

import checkpoints

from opmatrix.display.tables import table

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
COLUMNS = "command", "kills", "processes", "files", "left"


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


def main() -> None:
    parser = Parser(__doc__)
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
            tabled(given.csv, [COLUMNS, *rows])
    print(table([[str(cell) for cell in row] for row in rows], list(COLUMNS)))
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


if __name__ == "__main__":
    command.run(main)
