"""What `opmatrix optimize` prints and takes, as a user runs it: twice, since the first run measures errors that the
second one finds in the cache.

    python benchmarks/report.py [--models minilm,smollm2] [--keep DIR] [--csv OUT]

--keep DIR keeps what the second run of each model printed, and its report: MODEL.txt, MODEL.json."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lib import command
from lib.command import Figure, InputError, Parser, concluded, folder, listed, say, tabled, takes

from formats.disk.files import read_json, replacing
from opmatrix.display.tables import table

SECONDS = {"minilm": 90.0, "smollm2": 360.0}  # of a run on two quiet cores
COLUMNS = "model", "run", "seconds", "resident_gb"


class Run(NamedTuple):
    """One `opmatrix optimize`: its seconds, the most memory that it held, what it printed and its report."""

    model: str
    number: int
    seconds: float
    gigabytes: float
    printed: str
    report: dict[str, Any]

    def row(self) -> list[str | int | float]:
        """A line of the table and of the CSV."""
        return [self.model, self.number, round(self.seconds, 2), round(self.gigabytes, 3)]


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--models", type=listed, default=["minilm"], help="as `opmatrix optimize` takes them")
    parser.add_argument("--keep", type=folder, metavar="DIR", help="keep what was printed, and reports, there")
    given = parser.parse_args()
    takes(2 * sum(SECONDS.get(model, 120) for model in given.models))
    runs = []
    for model in given.models:
        for number in (1, 2):
            runs.append(optimized(model, number))
            tabled(given.csv, [COLUMNS, *(run.row() for run in runs)])
            say(f"{model}, run {number}: {runs[-1].seconds:.0f} s")
        if given.keep:
            keep(runs[-1], given.keep)
    print(runs[-1].printed, table([[str(cell) for cell in run.row()] for run in runs], list(COLUMNS)), sep="\n")
    concluded(given, figures(runs))


def optimized(model: str, number: int) -> Run:
    """Runs the command in a process of its own, in a directory that goes with it."""
    with tempfile.TemporaryDirectory() as room:
        words = [sys.executable, "-m", "rewrites.cli", "optimize", model, "--quiet", "--json", "report.json"]
        begun = time.monotonic()
        with (Path(room) / "printed").open("w+") as printed, (Path(room) / "errors").open("w+") as errors:
            process = subprocess.Popen(
                words,
                cwd=room,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": str(command.ROOT)},
            )
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds = time.monotonic() - begun
            for each in (printed, errors):
                each.seek(0)
            if status:
                raise InputError(f"opmatrix optimize {model}: {errors.read().strip()[-300:]}")
            return Run(
                model,
                number,
                seconds,
                used.ru_maxrss * 1024 / 1e9,
                printed.read(),
                read_json(Path(room) / "report.json"),
            )


def keep(run: Run, place: Path) -> None:
    """Writes what a run printed, and the programs of its report."""
    name = Path(run.model).name  # of a model, or of the directory of a checkpoint
    with replacing(place / f"{name}.txt") as raw:
        raw.write(run.printed.encode())
    with replacing(place / f"{name}.json") as raw:
        raw.write(drawn(run.report))


def drawn(report: dict[str, Any]) -> bytes:
    """The part of a report that pictures and tables are made of, as JSON."""
    kept = {key: report[key] for key in ("model", "machine", "workload", "busy", "chosen") if key in report}
    fields = "name", "predicted_s", "measured_s", "predicted_bytes", "measured_bytes", "measured_error"
    points = lambda found: {key: found[key] for key in fields if key in found}
    whole = kept | {"baseline": points(report["baseline"]), "front": [points(each) for each in report["front"]]}
    return json.dumps(whole, indent=1).encode() + b"\n"


def figures(runs: list[Run]) -> Iterator[Figure]:
    """Seconds, memory, and what the chosen program takes of the imported one's time."""
    for first, second in zip(runs[::2], runs[1::2], strict=True):
        report, name = second.report, second.model
        chosen = report["front"][report["chosen"]]
        yield Figure(f"{name}: imported over chosen", report["baseline"]["measured_s"] / chosen["measured_s"], "x")
        yield Figure(f"{name}: a run whose errors are known", second.seconds, "s")
        yield Figure(f"{name}: the run before", first.seconds, "s")
        yield Figure(f"{name}: the most memory", max(first.gigabytes, second.gigabytes), "GB")


if __name__ == "__main__":
    command.run(main)
