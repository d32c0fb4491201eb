"""How far predicted seconds of products are off, in every format, on shapes, densities, patterns and rows not calibrated.

    python benchmarks/prediction.py [--full] [--threads 1] [--matrices 24] [--machine FILE] [--csv OUT]

The machine is calibrated in one process and asked in another, on matrices whose columns differ in size as well as on even
ones. Errors are relative to the lower quartile of the measured times; `again` is how far a second measurement is from the
first: no prediction is nearer. `held` is the share of times within the predicted interval, which should hold 80 %."""
import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS = ("format", "inputs", "outputs", "rows", "bytes", "skewed", "seconds", "closed_s", "predicted_s", "low_s", "high_s",
           "again_s")
LARGEST, ARITHMETIC = 4096, 6e8
ALLOWED = 0.10, 0.25                                         # median and 90th percentile of errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="the calibration of a minute, not the quick one")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--matrices", type=int, default=24, help="of each format")
    parser.add_argument("--machine", type=Path, help="a calibration that was saved")
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    given = parser.parse_args()
    os.environ |= {"NUMBA_NUM_THREADS": given.threads, "OPENBLAS_NUM_THREADS": given.threads}
    sys.path[0] = str(ROOT)
    if given.save: return calibrated(given.save, given.full)
    from formats.quiet import watched
    watched()
    with tempfile.TemporaryDirectory() as room:
        file = given.machine or Path(room) / "machine.json"
        if not given.machine: subprocess.run([sys.executable, *sys.argv, "--save", str(file)], check=True)
        table = measured(file, given.matrices)
    show(table)
    if given.csv:
        with given.csv.open("w", newline="") as out: csv.writer(out).writerows([COLUMNS, *table])


def calibrated(file, full):
    """Calibrates, and saves what was found."""
    from formats.calibrate import calibrate
    calibrate(full=full).save(file)


def measured(file, count):
    """The rows of the table."""
    from formats import FORMATS, calibrate
    from formats.features import stored
    from formats.machine import Machine
    machine, numbers = Machine.load(file), calibrate.Numbers()
    plan = calibrate.Plan(count // 2, 4, LARGEST, 700, ARITHMETIC, 1e9, 1e9)
    table = []
    for name in FORMATS:
        for skew in (0.0, 0.7):
            cases = [*calibrate.products([name], plan, numbers, start=5000 + count * (skew > 0), skew=skew)]
            first, again = (calibrate.measured(cases, most=1e9) for _ in range(2))
            for (kernel, sizes, seconds), (*_, other) in zip(first, again, strict=True):
                prices = machine.closed(kernel, **sizes), machine.seconds(kernel, **sizes), *machine.between(kernel, **sizes)
                shape = (int(sizes[each]) for each in ("n", "p", "T"))
                table.append((name, *shape, int(stored(name, sizes)[0]), skew, seconds, *prices, other))
    return table


def show(table):
    """Errors of every format, at one row and at more, and whether the bar holds."""
    import numpy as np
    print(f"{'format':16s} {'rows':>6s} {'cases':>5s} {'closed: median':>14s} {'90 %':>6s} {'predicted: median':>17s} "
          f"{'90 %':>6s} {'held':>6s} {'again: median':>13s} {'90 %':>6s}")
    def line(name, which, rows):
        taken, closed, found, low, high, again = np.array([row[6:] for row in rows]).T
        errors = [abs(each / taken - 1) for each in (closed, found, again)]
        held = np.mean((low <= taken) & (taken <= high))
        numbers = [np.quantile(error, share) for error in errors for share in (0.5, 0.9)]
        print(f"{name:16s} {which:>6s} {len(rows):5d} {numbers[0]:14.1%} {numbers[1]:6.1%} {numbers[2]:17.1%} {numbers[3]:6.1%} "
              f"{held:6.0%} {numbers[4]:13.1%} {numbers[5]:6.1%}")
        return numbers[2:4]
    failed = []
    for name in dict.fromkeys(row[0] for row in table):
        rows = [row for row in table if row[0] == name]
        line(name, "one", [row for row in rows if row[3] == 1])
        line("", "more", [row for row in rows if row[3] > 1])
        if any(found >= allowed for found, allowed in zip(line("", "all", rows), ALLOWED, strict=True)): failed.append(name)
    line("all", "all", table)
    print(f"median under {ALLOWED[0]:.0%} and 90th percentile under {ALLOWED[1]:.0%}: "
          f"{'every format' if not failed else 'not ' + ', '.join(failed)}")


if __name__ == "__main__": main()
