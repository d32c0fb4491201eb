"""What all benchmarks share. Imported first, it finds the packages of this tree, and keeps BLAS to one
thread where a benchmark runs. Options are refused in a line, seconds are foretold, figures are judged by their bars."""

import argparse
import csv
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite
from pathlib import Path

LIB = Path(__file__).resolve().parent
HERE = LIB.parent
ROOT = HERE.parent
TESTS = ROOT / "tests"
SUPPORT = TESTS / "support"
DATA = Path(os.environ.get("OPMATRIX_DATA") or ROOT.parent / "shared" / "data")
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # before an installed opmatrix
sys.path.append(str(SUPPORT))  # what makes models, programs and mutants

from formats.core.errors import InputError  # noqa: E402
from formats.disk.files import open_regular, replacing  # noqa: E402
from formats.host.threads import command_line_environment  # noqa: E402

if Path(sys.argv[0]).resolve().parent in (HERE, LIB):  # not where a test imports this
    os.environ |= command_line_environment() | os.environ

BEGUN = time.monotonic()
ROOM = 1.05  # of a ceiling that is itself measured


# ---- options


Part = Callable[[], int | None]  # `measure_NAME` of a script, with a docstring and options of its own
PARTS: dict[str, Part] = {}  # of the script that runs


class Parser(argparse.ArgumentParser):
    """Options of a script, by its docstring, or of one of its parts: the first paragraph says what it does. Refuses in
    a line, as everything else is refused."""

    def __init__(self, about: str | Part, table: bool = True) -> None:
        self.part = part_name(about) if callable(about) else ""
        doc = (about.__doc__ if callable(about) else about) or ""
        file = Path(sys.argv[0])
        script = f"{file.name} {self.part}" if self.part not in ("", file.stem) else file.name
        super().__init__(script, description=" ".join(doc.split("\n\n")[0].split()), epilog=listed_parts())
        if table:
            self.add_argument("--csv", type=Path, help="write the table there, too")
        self.add_argument("--figures", type=Path, help="write what it comes to there, as JSON")

    def error(self, message: str) -> None:  # type: ignore[override]
        raise InputError(message.replace("argument ", "", 1))

    def parse_args(self, *given):  # type: ignore[no-untyped-def]
        words = sys.argv[2:] if self.part and sys.argv[1:2] == [self.part] else sys.argv[1:]
        found = super().parse_args(*given or [words])
        for option in ("csv", "figures"):
            tablefile(option, getattr(found, option, None))
        return found


def number(kind: Callable[[str], float], least: float, most: float, says: str) -> Callable[[str], float]:
    """The type of an option: a number from `least` to `most`."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = inf
        if not (isfinite(value) and least <= value <= most):
            raise argparse.ArgumentTypeError(f"{text}: {says}")
        return value

    return read


count = number(int, 1, 10**9, "a whole number from 1 on")
whole = number(int, 0, 10**9, "a whole number from 0 on")
share = number(float, 1e-9, 1, "a share, more than 0 and at most 1")
positive = number(float, 1e-9, 1e12, "a number above 0")


def listed(text):
    """The words of an option, between commas."""
    return [word for word in text.split(",") if word]


def named(option, words, known):
    """Raises InputError for a word that is not known."""
    for word in words:
        if word not in known:
            raise InputError(f"--{option} {word}: {', '.join(known)}")


def within(option, value, most, least=1):
    """Raises InputError for a number that is out of its range."""
    if not least <= value <= most:
        raise InputError(f"--{option} {value}: {least} to {most}")


def tablefile(option, file):
    """Raises InputError for a file that could not be written in the end."""
    if file and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise InputError(f"--{option} {file}: it is to be a file in a directory that is there")


def shape(text: str) -> tuple[int, int]:
    """The type of an option: two whole numbers, such as 8x128."""
    try:
        first, second = (int(count(part)) for part in text.split("x"))
    except (argparse.ArgumentTypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text}: two whole numbers, such as 8x128") from None
    return first, second


def folder(text: str) -> Path:
    """The type of an option: a directory to read from."""
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text}: it is no directory")
    return Path(text)


def readable(text: str) -> Path:
    """The type of an option: a file to read."""
    try:
        open_regular(text).close()
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


# ---- what is said


def say(words):
    print(f"{time.monotonic() - BEGUN:6.0f} s  {words}", file=sys.stderr, flush=True)


def takes(seconds: float) -> None:
    """Says how long what begins now is going to take; from now on others are looked at."""
    from formats.host.quiet import watched

    watched()
    said = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{max(1, seconds):.0f} s"
    say(f"about {said}, on two quiet cores")


def followed(outcomes, things, bad):
    """All outcomes, while what must not be is told as it comes, and how many there were every hundred."""
    found = []
    for each in outcomes:
        found.append(each)
        if each.outcome in bad:
            print(f"{each.outcome}: {each.case}: {each.said}", flush=True)
        if len(found) % 100 == 0:
            say(f"{len(found)} {things}")
    return found


def spread(taken: Sequence[float]) -> float | None:
    """From the lower to the upper quartile of repeated measurements, as a share of their median; None of too few."""
    from formats.host.quiet import MIN_RUNS, width

    return width(taken) if len(taken) >= MIN_RUNS else None


def shown(part: float | None) -> str:
    """A spread in words: what lies within it is half of all."""
    return "" if part is None else f"± {50 * part:.1f} %"


def cell(value: object, width: int) -> str:
    """A cell of a table of so wide columns."""
    return f"{'' if value is None else f'{value:.4g}' if isinstance(value, float) else value!s:>{width}}"


def tabled(file, rows):
    """Writes rows as CSV, the file whole at any time; nothing where there is no file."""
    if file is None:
        return
    csv.writer(text := io.StringIO()).writerows(rows)
    with replacing(file) as raw:
        raw.write(text.getvalue().encode())


@dataclass(frozen=True)
class Figure:
    """One number that a benchmark comes to, None where it was not measured, and `why`. It is to be at least `least` or
    at most `most`, if there is a bar; above `ceiling` no such number can be. `spread` as above."""

    what: str
    value: float | None
    unit: str = ""
    spread: float | None = None
    least: float | None = None
    most: float | None = None
    ceiling: float | None = None
    why: str = ""

    @property
    def bar(self) -> str:
        ends = {"≥": self.least, "≤": self.most}
        return ", ".join(f"{sign} {end:g}" for sign, end in ends.items() if end is not None)

    @property
    def verdict(self) -> str:
        """A number that cannot be is never called met, nor one that was too noisy to tell."""
        if self.value is None or not isfinite(self.value):
            return f"not measured here: {self.why or 'no number came out'}"
        if self.ceiling is not None and not 0 <= self.value <= ROOM * self.ceiling:
            return f"impossible: beyond {self.ceiling:g}, so it was measured wrongly"
        if not self.bar:
            return ""
        low, high = (-inf if self.least is None else self.least), (inf if self.most is None else self.most)
        half = (self.spread or 0.0) / 2
        found = {low <= value <= high for value in (self.value * (1 - half), self.value, self.value * (1 + half))}
        return (
            ("met" if found == {True} else "missed")
            if len(found) == 1
            else "not measured here: the bar lies within the spread"
        )

    def cells(self) -> list[str]:
        value = "" if self.value is None else f"{self.value:.3g} {self.unit}".strip()
        return [self.what, value, shown(self.spread), self.bar, self.verdict]


def show(figures: Iterable[Figure]) -> None:
    """Prints a table of them."""
    from opmatrix.display.tables import table

    print("\n" + table([each.cells() for each in figures], ["in short", "", "spread", "bar", ""]), flush=True)


def concluded(given: argparse.Namespace, figures: Iterable[Figure]) -> None:
    """Prints what a benchmark comes to, and writes it where it is asked for."""
    figures = [*figures]
    show(figures)
    if given.figures is None:
        return
    with replacing(given.figures) as raw:
        raw.write(json.dumps([asdict(each) for each in figures], indent=1).encode())


def run(main: Part, *refused: type[Exception]) -> None:
    """Runs a benchmark and ends the process with its status. What is refused, bad input or these, is a line, with
    status 2."""
    try:
        sys.exit(main())
    except (InputError, *refused) as error:
        sys.exit(print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr) or 2)
    except KeyboardInterrupt:
        sys.exit(130)


def run_parts(*parts: Part, refused: tuple[type[Exception], ...] = ()) -> None:
    """Runs that part of a script which its first word names, as `run` does; where there is none, the part that the
    script is called after."""
    PARTS.update({part_name(part): part for part in parts})
    word = next(iter(sys.argv[1:]), "")
    run(PARTS.get(word) or PARTS.get(Path(sys.argv[0]).stem) or (lambda: no_part(word)), *refused)


def part_name(part: Part) -> str:
    return part.__name__.removeprefix("measure_")


def listed_parts() -> str:
    """The parts of the script that runs, in a line; "" where it has none."""
    return f"parts: {', '.join(PARTS)}; `PART --help` lists their options" if PARTS else ""


def no_part(word: str) -> int:
    """Answers a word that names no part of a script that has no part of its own name."""
    if word not in ("-h", "--help"):
        raise InputError(f"{word or 'no part'}: name one of {', '.join(PARTS)}")
    print(f"usage: {Path(sys.argv[0]).name} PART [options]\n\n{listed_parts()}")
    return 0


# ---- processors


def cores():
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def pinned(threads):
    """This process and all that it starts use so many processors, on as many cores where there are as many."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, sorted(allowed, key=lambda cpu: (sibling(cpu) != cpu, cpu))[:threads])


def sibling(cpu):
    """The first processor on the same core."""
    try:
        listed = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return cpu
    return int(listed.replace("-", ",").split(",")[0])
