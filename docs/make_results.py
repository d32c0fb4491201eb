"""Writes what README.md and docs/results.md say of speed, and docs/front.svg, from what was measured last in
docs/measured: run `python docs/make_results.py` after changing how it is said. `python benchmarks/all.py --publish`
measures it anew, and then runs this."""

import csv
import json
import re
import runpy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs" / "measured"
PAGES = "README.md", "docs/results.md"
BLOCK = re.compile(r"<!-- measured: (\w+) -->\n.*?<!-- /measured -->", re.S)
TYPES, TEXTS = ("float32", "bf16", "int8"), ("file", "padded", "sorted")  # texts are one column
EACH = "256 texts"
README_SHAPE, WIDEST = "1x128", 150
SMALL = 1e-4  # errors above it are shown in per cent


@dataclass(frozen=True)
class Measured:
    """The files of one run of `benchmarks/all.py --publish`."""

    place: Path = MEASURED

    @cached_property
    def about(self) -> dict[str, str]:
        """Version, processor, threads, versions of others."""
        return dict(json.loads(self.text("about.json")))

    @cached_property
    def races(self) -> list[dict[str, str]]:
        """Rows of benchmarks/models.py."""
        return [*csv.DictReader(self.text("models.csv").splitlines())]

    @cached_property
    def runs(self) -> list[dict[str, str]]:
        """Rows of benchmarks/report.py."""
        return [*csv.DictReader(self.text("report.csv").splitlines())]

    @cached_property
    def report(self) -> dict[str, Any]:
        """The programs of `opmatrix optimize minilm`."""
        return dict(json.loads(self.text("minilm.json")))

    @property
    def chosen(self) -> dict[str, Any]:
        """The program of it that was chosen."""
        return dict(self.report["front"][self.report["chosen"]])

    @property
    def printed(self) -> str:
        """The text of `opmatrix optimize minilm`."""
        return self.text("minilm.txt").strip("\n")

    def text(self, name: str) -> str:
        """The content of a file. OSError."""
        return (self.place / name).read_text("utf-8")

    @property
    def by(self) -> str:
        """The version and the machine."""
        name, _, features = self.about["processor"].partition(": ")
        return f"by version {self.about['version']} on {self.about['threads']} cores of an {name} ({features})"


# ---- parts of pages


def front(measured: Measured) -> str:
    """The table of programs."""
    return fenced(measured.printed.split("\n\nprograms: ")[1].split("\n\n")[0].split("\n", 1)[1])


def report(measured: Measured) -> str:
    """All that was printed."""
    return fenced(measured.printed)


def fenced(text: str) -> str:
    """A block of output, of lines that a page may have."""
    lines = [
        part
        for line in text.splitlines()
        for part in wrap(line, WIDEST, subsequent_indent=" " * 10, replace_whitespace=False) or [""]
    ]
    return "```\n" + "\n".join(lines) + "\n```"


def machine(measured: Measured) -> str:
    """A sentence on where all was measured."""
    peers = dict.fromkeys(f"{row['engine']} {row['version']}" for row in measured.races if row["engine"] != "opmatrix")
    return f"Measured {measured.by}, beside {', '.join(peers)}."


def gain(measured: Measured) -> str:
    """A sentence on the chosen program beside the imported one."""
    chosen, before = measured.chosen, measured.report["baseline"]
    return fill(
        f"MiniLM there answers a sentence of 128 tokens in {1e3 * chosen['measured_s']:.1f} ms and "
        f"{chosen['measured_bytes'] / 1e6:.0f} MB, where the imported model takes "
        f"{1e3 * before['measured_s']:.1f} ms and {before['measured_bytes'] / 1e6:.0f} MB. The error is "
        f"{100 * chosen['measured_error']:.2f} %.",
        WIDEST,
    )


def fastest(measured: Measured, number: str, workload: str, ours: bool) -> dict[str, str] | None:
    """The row of the least seconds of a number type on a workload, by us or by another engine."""
    names = TEXTS if workload == "file" else (workload,)
    rows = [
        row
        for row in measured.races
        if row["number_type"] == number and row["workload"] in names and (row["engine"] == "opmatrix") is ours
    ]
    return min(rows, key=lambda row: float(row["median_s"])) if rows else None


def peers(measured: Measured) -> str:
    """The README's table: one shape, and texts."""
    rows = [
        [
            number,
            *(cell(measured, number, workload, ours) for workload in (README_SHAPE, "file") for ours in (True, False)),
        ]
        for number in TYPES
    ]
    chosen = measured.chosen
    within = f"{1e3 * chosen['measured_s']:.3g} ({100 * chosen['measured_error']:.2g} %)"
    rows.append(["chosen within 2 %", within, "", "", ""])
    return markdown(["", "1 x 128 tokens, ms (error)", "fastest peer", f"{EACH}, ms (error)", "fastest peer"], rows)


def speed(measured: Measured) -> str:
    """The table of results.md: all shapes, ours above the fastest peer's."""
    workloads = list(dict.fromkeys(row["workload"] for row in measured.races))
    shown = [each for each in workloads if each not in TEXTS] + ["file"] * ("file" in workloads)
    rows = [
        [
            f"the fastest peer, {number}" if not ours else number,
            *(cell(measured, number, workload, ours, named=not ours) for workload in shown),
        ]
        for number in TYPES
        for ours in (True, False)
    ]
    return markdown(["", *(EACH if each == "file" else each for each in shown)], rows)


def cell(measured: Measured, number: str, workload: str, ours: bool, named: bool = False) -> str:
    """Milliseconds, the error, and by whom."""
    row = fastest(measured, number, workload, ours)
    if row is None:
        return ""
    error = float(row["error"])
    shown = f"{100 * error:.2g} %" if error > SMALL else f"{error:.0e}"
    return f"{1e3 * float(row['median_s']):.3g} ({shown}{', ' + row['engine'] if named else ''})"


def start(measured: Measured) -> str:
    """A sentence on the first result of a process, and on its memory."""
    rows = [row for row in measured.races if row["workload"] == "1x16"]
    ours = [row for row in rows if row["engine"] == "opmatrix"]
    others = [row for row in rows if row["engine"] != "opmatrix"]
    first, held = (lambda row: float(row["first_s"])), (lambda row: float(row["resident_mb"]))
    low, high = min(map(first, ours)), max(map(first, ours))
    return fill(
        f"A saved MiniLM answers its first 16 tokens {low:.2f} to {high:.2f} s after its process starts, in "
        f"{min(map(held, ours)):.0f} MB to {max(map(held, ours)):.0f} MB; the first peer takes "
        f"{min(map(first, others)):.2f} s, and the smallest {min(map(held, others)):.0f} MB.",
        WIDEST,
    )


def search(measured: Measured) -> str:
    """What a run of `opmatrix optimize` takes."""
    rows = [
        [
            row["model"],
            "unknown" if row["run"] == "1" else "known",
            f"{float(row['seconds']):.0f}",
            f"{float(row['resident_gb']):.1f}",
        ]
        for row in measured.runs
    ]
    return markdown(["`opmatrix optimize`", "errors", "seconds", "GB"], rows)


def markdown(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PARTS: dict[str, Callable[[Measured], str]] = {
    each.__name__: each for each in (front, report, machine, gain, peers, speed, start, search)
}


# ---- pages


def pages(place: Path = MEASURED) -> dict[str, str]:
    """Every file that is made, with its text. Raises KeyError for a part that no function makes."""
    measured = Measured(place)
    block = lambda found: f"<!-- measured: {found[1]} -->\n{PARTS[found[1]](measured)}\n<!-- /measured -->"
    made = {name: BLOCK.sub(block, (ROOT / name).read_text("utf-8")) for name in PAGES}
    picture = runpy.run_path(str(ROOT / "docs" / "make_front.py"))["picture"]
    return made | {"docs/front.svg": picture(measured.report)}


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / name).write_text(text, "utf-8")
