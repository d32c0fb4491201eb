"""Where the seconds of `opmatrix optimize` go: whether phases add up to the wall, and how long a terminal is silent.

    python benchmarks/phases.py [--models minilm,tests/data/gpt2_bytes] [--error 0.02] [--csv OUT]

Each model is optimised once by the command, as a process whose standard error is a terminal. The wall is that of the
process, from before it starts to after it ends; a silence is the time between two pieces that it writes there."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from lib import command
from lib.command import ROOT, Figure, Parser, concluded, listed, say, tabled, takes

from opmatrix.display.tables import table

MISSED, SILENT = 3, 2.0  # bars: % of the wall in no phase; seconds
COLUMNS = "model", "wall_s", "phases_s", "silent_s", "after", "twice"


class Ran(NamedTuple):
    """A run of the command: seconds in all and of its phases, the longest silence and what was written before it, and
    phases that were named as over more than once."""

    wall: float
    phases: dict[str, float]
    silent: float
    after: str
    twice: list[str]


def ran(model: str, error: str) -> Ran:
    """The command on a terminal."""
    reading, terminal = os.openpty()
    with tempfile.TemporaryDirectory() as room:
        words = [
            sys.executable,
            "-m",
            "rewrites.cli",
            "optimize",
            model,
            "--error",
            error,
            "--out",
            str(Path(room, "out")),
            "--json",
            str(Path(room, "report.json")),
        ]
        start = last = time.perf_counter()
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=terminal, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        os.close(terminal)
        silent, after, heard = 0.0, "", ""
        while piece := read(reading):
            now = time.perf_counter()
            if now - last > silent:
                silent, after = now - last, heard[-60:]
            last, heard = now, heard + piece
        status, wall = process.wait(), time.perf_counter() - start
        os.close(reading)
        if status:
            sys.exit(f"optimize {model} ended with status {status}: {heard[-300:]}")
        phases = json.loads(Path(room, "report.json").read_text("utf-8"))["phases"]
    over = re.findall(r"^(?:.*\r\x1b\[K)?(\w+) \d+\.\d s\r?$", heard, re.M)
    return Ran(wall, phases, silent, " ".join(after.split()), sorted({name for name in over if over.count(name) > 1}))


def read(terminal: int) -> str:
    """What was written next; nothing where everybody has closed it."""
    try:
        return os.read(terminal, 4096).decode(errors="replace")
    except OSError:
        return ""


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--models", type=listed, default=["minilm", str(ROOT / "tests/data/gpt2_bytes")])
    parser.add_argument("--error", default="0.02")
    given = parser.parse_args()
    takes(60 * len(given.models))
    rows, figures = [], []
    for model in given.models:
        say(f"optimize {model}")
        found, shown = ran(model, given.error), Path(model).name
        inside = sum(found.phases.values())
        rows.append(
            (
                shown,
                f"{found.wall:.1f}",
                f"{inside:.1f}",
                f"{found.silent:.2f}",
                found.after[-40:],
                " ".join(found.twice),
            )
        )
        figures += [
            Figure(f"{shown}: of the wall in no phase", 100 * abs(1 - inside / found.wall), "%", most=MISSED),
            Figure(f"{shown}: the longest silence of a terminal", found.silent, "s", most=SILENT),
            Figure(f"{shown}: phases that are over twice", len(found.twice), most=0),
        ]
    print(table([list(row) for row in rows], [*COLUMNS]))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures)


if __name__ == "__main__":
    command.run(main)
