"""How far predicted seconds of products are off, in every format, on shapes, densities, patterns and rows not
calibrated.

    python benchmarks/prediction.py [--full] [--threads 1] [--matrices 24] [--machine FILE] [--csv OUT]

The machine is calibrated in one process and asked in another, on matrices whose columns differ in size as well as on
even ones. Errors are relative to the lower quartile of the measured times; `again` is how far a second measurement is
from the first: no prediction is nearer. `held` is the share of times within the predicted interval, which should hold
80 %."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lib import command
from lib.command import Figure, InputError, Parser, concluded, count, readable, say, tabled, takes

COLUMNS = (
    "format",
    "inputs",
    "outputs",
    "rows",
    "bytes",
    "skewed",
    "seconds",
    "closed_s",
    "predicted_s",
    "low_s",
    "high_s",
    "again_s",
)
LARGEST, ARITHMETIC = 4096, 6e8
ALLOWED = 0.10, 0.25  # median and 90th percentile of errors


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--full", action="store_true", help="the calibration of a minute, not the quick one")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--matrices", type=count, default=24, help="of each format")
    parser.add_argument("--machine", type=readable, help="a calibration that was saved")
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ |= dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(given.threads))
    if given.save:
        return calibrated(given.save, given.full)
    takes((90 if given.full else 20) * (not given.machine) + 2 + 2.5 * given.matrices)
    with tempfile.TemporaryDirectory() as room:
        file = given.machine or Path(room) / "machine.json"
        if not given.machine:
            another(file)
        table = measured(file, given.matrices)
    figures = show(table)
    tabled(given.csv, [COLUMNS, *table])
    concluded(given, figures)


def another(file):
    """Calibrates in another process."""
    say("calibrates")
    if status := subprocess.run([sys.executable, *sys.argv, "--save", str(file)]).returncode:
        sys.exit(status)


def calibrated(file, full):
    """Calibrates, and saves what was found."""
    from formats.machine.calibration import calibrate
    from formats.machine.prices import FORMAT_CATALOGUE

    calibrate(FORMAT_CATALOGUE, whole=True, full=full).save(file)


def measured(file, count):
    """The rows of the table."""
    from formats import FORMATS
    from formats.machine import calibration
    from formats.machine.features import weigh_format
    from formats.machine.model import Machine, NotThisMachine
    from formats.machine.prices import FORMAT_CATALOGUE

    try:
        machine, numbers = Machine.load(file, FORMAT_CATALOGUE), calibration.Numbers()
    except NotThisMachine as error:
        raise InputError(f"--machine {error}: give what `opmatrix calibrate` saved here") from None
    table = []
    for name in FORMATS:
        if f"linear.{name}" not in machine.coefficients:
            continue  # what searches seldom ask for: --full
        for skew, share in ((0.0, -(-count // 2)), (0.7, count // 2)):
            plan = calibration.Effort(share, 4, LARGEST, 700, ARITHMETIC, 1e9, 1e9)
            cases = [*calibration.products([name], plan, numbers, start=5000 + count * (skew > 0), skew=skew)]
            first, again = (calibration.measured(FORMAT_CATALOGUE, cases, most=1e9) for _ in range(2))
            for (kernel, sizes, seconds), (*_, other) in zip(first, again, strict=True):
                prices = (
                    machine.closed(kernel, **sizes),
                    machine.seconds(kernel, **sizes),
                    *machine.between(kernel, **sizes),
                )
                shape = (int(sizes[each]) for each in ("n", "p", "T"))
                table.append((name, *shape, int(weigh_format(name, sizes)[0]), skew, seconds, *prices, other))
        say(name)
    return table


def show(table):
    """Errors of every format, at one row and at more, and whether the bar holds."""
    import numpy as np

    print(
        f"{'format':16s} {'rows':>6s} {'cases':>5s} {'closed: median':>14s} {'90 %':>6s} {'predicted: median':>17s} "
        f"{'90 %':>6s} {'held':>6s} {'again: median':>13s} {'90 %':>6s}"
    )

    def line(name, which, rows):
        if not rows:
            return [0.0, 0.0]  # few matrices may have no case of one row, or of more
        taken, closed, found, low, high, again = np.array([row[6:] for row in rows]).T
        errors = [abs(each / taken - 1) for each in (closed, found, again)]
        held = np.mean((low <= taken) & (taken <= high))
        numbers = [np.quantile(error, share) for error in errors for share in (0.5, 0.9)]
        print(
            f"{name:16s} {which:>6s} {len(rows):5d} {numbers[0]:14.1%} {numbers[1]:6.1%} {numbers[2]:17.1%} "
            f"{numbers[3]:6.1%} {held:6.0%} {numbers[4]:13.1%} {numbers[5]:6.1%}"
        )
        return numbers[2:4]

    failed, names = [], [*dict.fromkeys(row[0] for row in table)]
    for name in names:
        rows = [row for row in table if row[0] == name]
        line(name, "one", [row for row in rows if row[3] == 1])
        line("", "more", [row for row in rows if row[3] > 1])
        if any(found >= allowed for found, allowed in zip(line("", "all", rows), ALLOWED, strict=True)):
            failed.append(name)
    middle, most = line("all", "all", table)
    off = np.array([abs(row[11] / row[6] - 1) for row in table])
    print(
        f"median under {ALLOWED[0]:.0%} and 90th percentile under {ALLOWED[1]:.0%}: "
        f"{'every format' if not failed else 'not ' + ', '.join(failed)}"
    )
    again, far = (float(np.quantile(off, share)) for share in (0.5, 0.9))
    bars = [100 * allowed for allowed in ALLOWED]
    return [
        Figure(f"predicted seconds of {len(table)} products off by, median", 100 * middle, "%", again, most=bars[0]),
        Figure("90th percentile", 100 * most, "%", far, most=bars[1]),
        Figure(f"formats of {len(names)} that keep both bars", len(names) - len(failed), least=len(names)),
    ]


if __name__ == "__main__":
    command.run(main)
