"""The choice of a format for a matrix, and the predicted seconds that it rests on."""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from lib import command
from lib.command import (
    DATA,
    Figure,
    InputError,
    Parser,
    concluded,
    count,
    folder,
    readable,
    say,
    tabled,
    takes,
    whole,
    within,
)

# ---- selection

PATTERNS = DATA / "dlmc"
SELECTION_COLUMNS = "pattern", "structure", "rows", "chosen", "best", "chosen_s", "best_s", "constant_s", "threshold_s"
ERRORS = 0.0, 0.004, 0.0, 0.015  # of the cases in turn
SHAPES = ((384, 384), (384, 1536), (1536, 384), (512, 2048), (1024, 1024), (2048, 1024), (4096, 4096))
MADE = (
    [("blocks", shape, density) for shape, density in zip(SHAPES, (0.3, 0.1, 0.5, 0.2, 0.35, 0.1, 0.2), strict=True)]
    + [("2:4", shape, 0.5) for shape in SHAPES]
    + [
        ("shared", shape, density)
        for shape, density in zip(SHAPES, (0.5, 0.25, 0.5, 0.1, 0.25, 0.5, 0.25), strict=True)
    ]
    + [("dense", shape, 1.0) for shape in SHAPES]
)
KINDS = [
    (kind, shape, density)
    for kind in ("random", "uneven")
    for shape in ((512, 512), (512, 2048), (2048, 512))
    for density in (0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
]
FAR, SLOW, NEAR = 6.0, 2.5, 1.6  # times the fastest: predicted, after one turn, paid for
TURNS, QUICK = 8, 4  # a quick run takes every fourth case
FALLBACK = "packed"
WAYS = {"predicted": "prediction alone", "measured": "prediction, the nearest timed"}


def measure_selection() -> None:
    """Judge the choice of a format by measured seconds: on pruned transformers' patterns (.smtx.gz) and generated
    ones.

        python benchmarks/selection.py [DIR] [--quick [--part 0]] [--processes 3] [--rows 1 16 128 512] [--csv OUT]

    DIR holds patterns (default: dlmc in OPMATRIX_DATA; where there is none, patterns of the same kinds are
    generated). Each case is a pattern, a number of rows and an error allowance (0: float32; 0.004: bf16 is let in;
    0.015: int8).

    1. One process calibrates the machine, as `opmatrix calibrate` does. 2. The oracle, another, times every
    candidate that holds the matrix and is predicted to take at most 6 times the fastest, and numpy's BLAS under its
    fastest setting. 3. A third chooses: by prediction alone, and, where predictions lie too near, by timing those
    few briefly. 4. Three others pay: each times what was chosen and whatever took at most 1.6 times the fastest in
    the oracle. A time is the median of the three.

    Printed: kept performance (geometric mean of best / chosen), how often the choice is within 5 % of the best,
    regret (chosen / best - 1), and excess regret against the better of two rules with hindsight: always one format,
    and one format below a density and one above it (where either does not hold the matrix: packed float32)."""
    parser = Parser(measure_selection)
    parser.add_argument("directory", nargs="?", type=folder)
    parser.add_argument("--quick", action="store_true", help="every fourth case, and the quick calibration")
    parser.add_argument("--part", type=whole, default=0, help="which fourth of the cases a quick run takes: 0 to 3")
    parser.add_argument("--processes", type=count, default=3, help="that pay")
    parser.add_argument("--rows", type=count, nargs="+", default=[1, 16, 128, 512])
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--room", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    within("part", given.part, QUICK - 1, 0)
    if given.stage:
        return STAGES[given.stage[0]](given, Path(given.stage[1]))
    asked = sum(len(rows) for *_, rows in cases(given))
    takes((25 if given.quick else 90) + asked * (1.2 + 0.3 * given.processes))
    with tempfile.TemporaryDirectory() as room:
        raced(given, given.room or Path(room))


def raced(given, room):
    """Runs the stages, each in a process of its own, and shows what came out."""
    from formats.host.blas import fastest

    blas, start = fastest(), time.time()
    pools = dict.fromkeys(("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(given.threads))

    def stage(name):
        done = subprocess.run(
            [sys.executable, *sys.argv, "--stage", name, str(room)], env=os.environ | pools | blas.environment
        )
        if done.returncode:
            sys.exit(done.returncode)
        say(name)

    for name in ("calibrate", "oracle", "choose", *["pay"] * given.processes):
        stage(name)
    read = {file.stem: json.loads(file.read_text()) for file in room.glob("*.json")}
    for way in WAYS:
        rows = outcome(read, way, given.processes)
        print(f"\nchosen by {WAYS[way]}")
        figures = selection_show(rows, read, way)
        if way == "measured":
            tabled(given.csv, [SELECTION_COLUMNS, *(row[:9] for row in rows)])
        else:
            command.show(figures)
    print(f"\n{versions(blas)}, {given.threads} threads, {time.time() - start:.0f} s")
    concluded(given, figures)


def cases(given):
    """(name, structure, matrix, [(rows, error)]) of every pattern; the matrix is made when it is asked for."""
    place = given.directory or PATTERNS
    files = sorted(place.glob("*.smtx.gz")) if place.is_dir() else []
    if given.directory and not files:
        raise InputError(f"{place}: it holds no patterns (*.smtx.gz)")
    patterns = [(file.name.removesuffix(".smtx.gz"), "real", lambda file=file: read(file)) for file in files]
    made = MADE if files else MADE + KINDS
    patterns += [
        (f"{kind} {shape[0]}x{shape[1]} {density:g}", kind, lambda each=(kind, shape, density): make(*each))
        for kind, shape, density in made
    ]
    at = 0
    for i, (name, structure, matrix) in enumerate(patterns):
        asked = []
        for j, rows in enumerate(given.rows):
            if not given.quick or at % QUICK == (i // QUICK + given.part) % QUICK:
                asked.append((rows, ERRORS[(i + j) % len(ERRORS)]))
            at += 1
        if asked:
            yield name, structure, matrix, asked


def read(file):
    """Wᵀ of a pattern file has the file's rows: outputs. The numbers are normal."""
    import numpy as np

    try:
        lines = gzip.open(file, "rt").read().split("\n")
        sizes, starts, columns = (np.array(line.replace(",", " ").split(), int) for line in (*lines[:3], "")[:3])
        outputs, inputs, stored = sizes
        W = np.zeros((inputs, outputs), np.float32)
        W[columns, np.repeat(np.arange(outputs), np.diff(starts))] = np.random.default_rng(0).standard_normal(stored)
        return W
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise InputError(f"{file}: no pattern: {error}") from None


def make(kind, shape, density):
    """A generated matrix (n, p), its numbers normal."""
    from lib import matrices

    import numpy as np

    rng = np.random.default_rng([len(kind), *shape, round(1000 * density)])
    W, (n, p) = rng.standard_normal(shape, np.float32), shape
    if kind == "dense":
        return W
    if kind == "2:4":
        return W * (rng.random((n // 4, 4, p)).argsort(1) < 2).reshape(n, p)
    return W * matrices.STRUCTURES[kind](rng, n, p, density)


def calibrate(given, room):
    """As `opmatrix calibrate` does."""
    from formats.machine.calibration import calibrate
    from formats.machine.prices import FORMAT_CATALOGUE

    calibrate(FORMAT_CATALOGUE, full=not given.quick, blas=True).save(room / "machine.model")


def machine(room):
    from formats.machine.model import Machine
    from formats.machine.prices import FORMAT_CATALOGUE

    return Machine.load(room / "machine.model", FORMAT_CATALOGUE)


def oracle(given, room):
    """Times everything: {case: {label: seconds}}; BLAS in float32 is in every race."""
    import numpy as np

    from formats import FormatError
    from formats.storage.select import DecomposedMatrix, NumpyProduct, candidates

    found, known = {}, machine(room)
    for name, structure, matrix, asked in cases(given):
        W = matrix()
        offered = {rows: candidates(DecomposedMatrix(W), rows, error, known) for rows, error in asked}
        offered = {
            rows: [each for each in found if each.format == FALLBACK or each.seconds <= FAR * least(found)]
            for rows, found in offered.items()
        }
        packed = {}
        for rows, error in asked:
            for each in offered[rows]:
                try:
                    packed[str(each)] = packed.get(str(each)) or each.pack(W)
                except FormatError:
                    continue  # it held the sample, but not the rest
            here = {str(each) for each in offered[rows]} & set(packed)
            entries = {label: packed[label].matmul for label in here} | {"blas": NumpyProduct(W).matmul}
            taken = timed(entries, W.shape, rows, SLOW, TURNS)
            found[f"{name} | {rows}"] = {
                "seconds": taken,
                "structure": structure,
                "density": np.count_nonzero(W) / W.size,
                "error": error,
                "options": {str(each): [each.format, each.options] for each in offered[rows]},
            }
    (room / "oracle.json").write_text(json.dumps(found))


def least(found):
    return min(each.seconds for each in found)


def choose(given, room):
    """{case: labels chosen by prediction, and by timing the nearest, with seconds that choosing took}."""
    from formats.storage.select import DecomposedMatrix, as_weights, race_candidates, rank_candidates

    found, known = {}, machine(room)
    for name, _, matrix, asked in cases(given):
        W = as_weights(matrix())
        for rows, error in asked:
            start = time.perf_counter()
            weights = DecomposedMatrix(W)
            ranked = rank_candidates(weights, rows, error, known)
            predicted, middle = ranked[0], time.perf_counter()
            measured = race_candidates(weights, rows, ranked)
            found[f"{name} | {rows}"] = {
                "predicted": str(predicted),
                "measured": str(measured),
                "predicted_took": middle - start,
                "measured_took": time.perf_counter() - middle,
                "expected": predicted.seconds,
            }
    (room / "choose.json").write_text(json.dumps(found))


def pay(given, room):
    """{case: {label: seconds}} of what was chosen and of what may be the fastest."""
    from formats.storage.select import Candidate, NumpyProduct

    every, chosen = (json.loads((room / name).read_text()) for name in ("oracle.json", "choose.json"))
    found = {}
    for name, _, matrix, asked in cases(given):
        W, packed = matrix(), {}
        for rows, _ in asked:
            known = every[case := f"{name} | {rows}"]
            least = min(known["seconds"].values())
            wanted = {label for label, taken in known["seconds"].items() if taken <= NEAR * least}
            wanted |= {chosen[case]["predicted"], chosen[case]["measured"]}
            for label in wanted - {"blas"} - set(packed):
                name_of, options = known["options"][label]
                packed[label] = Candidate(
                    name_of, tuple((key, plain(value)) for key, value in options), 0, 0, 0, 0
                ).pack(W)
            entries = {
                label: (packed[label] if label != "blas" else NumpyProduct(W)).matmul for label in sorted(wanted)
            }
            found[case] = timed(entries, W.shape, rows, 1e9, TURNS)
    (room / f"pay{len([*room.glob('pay*.json')])}.json").write_text(json.dumps(found))


def plain(value):
    return tuple(value) if isinstance(value, list) else value


def timed(entries, shape, rows, slowest, turns):
    """The lower quartile of each one's calls, in turns."""
    import numpy as np

    from formats.core.arrays import room
    from formats.storage.select import burst

    x, out = (room((rows, side), np.dtype(np.float32)) for side in shape)
    x[:] = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    runs = {label: [] for label in entries}
    for turn in range(turns):
        least = min((min(taken) for taken in runs.values() if taken), default=0)
        for label, call in entries.items():
            if not turn or min(runs[label]) <= slowest * least:
                runs[label] += burst(lambda call=call: call(x, out=out))
    return {label: sorted(taken)[len(taken) // 4] for label, taken in runs.items()}


STAGES = {"calibrate": calibrate, "oracle": oracle, "choose": choose, "pay": pay}


def outcome(read, way, processes):
    """COLUMNS for each case, then density, seconds of what the oracle chose, how far off the prediction was."""
    from statistics import median

    cases, first = list(read["oracle"]), {case: found["seconds"] for case, found in read["oracle"].items()}

    def seconds(case, label):
        paid = [read[f"pay{i}"][case].get(label) for i in range(processes)]
        return median(paid) if None not in paid else read["oracle"][case]["seconds"].get(label)

    def rule(case, *labels):
        return next(taken for label in (*labels, FALLBACK) if (taken := seconds(case, label)) is not None)

    labels = sorted({label for case in cases for label in read["oracle"][case]["seconds"]})
    paid = {case: {label: rule(case, label) for label in labels} for case in cases}
    best = {case: min(seconds(case, label) for label in read["pay0"][case]) for case in cases}
    density = {case: read["oracle"][case]["density"] for case in cases}
    constant = min(labels, key=lambda label: regret([paid[case][label] / best[case] for case in cases]))
    below, above, limit = threshold(cases, labels, paid, best, density)
    rows = []
    for case in cases:
        pattern, number = case.rsplit(" | ", 1)
        chosen = read["choose"][case][way]
        found = min(read["pay0"][case], key=lambda label, case=case: seconds(case, label))
        guess = min(read["pay0"][case], key=lambda label, case=case: first[case].get(label, 1e9))
        rows.append(
            (
                pattern,
                read["oracle"][case]["structure"],
                int(number),
                chosen,
                found,
                seconds(case, chosen),
                best[case],
                paid[case][constant],
                paid[case][below if density[case] < limit else above],
                density[case],
                seconds(case, guess),
                read["choose"][case]["expected"],
            )
        )
    if way == "predicted":
        print(f"best constant: {constant}; threshold: {below} below density {limit:.3g}, else {above}")
    return rows


def threshold(cases, labels, paid, best, density):
    """(format below, format above, density): the rule with the least regret."""
    import numpy as np

    order = sorted(cases, key=density.get)
    regrets = np.array([[paid[case][label] / best[case] - 1 for case in order] for label in labels])
    before = np.concatenate([np.zeros((len(labels), 1)), regrets.cumsum(1)], 1)
    after = before[:, -1:] - before
    cut = (before.min(0) + after.min(0)).argmin()
    limit = density[order[cut]] if cut < len(order) else 2.0
    return labels[before[:, cut].argmin()], labels[after[:, cut].argmin()], limit


def regret(ratios):
    return sum(ratios) / len(ratios) - 1


def selection_show(rows, read, way):
    """Prints what was chosen beside the rules; returns figures with their bars."""
    import numpy as np

    chosen, best, constant, limit, oracle = (np.array([row[i] for row in rows]) for i in (5, 6, 7, 8, 10))

    def figures(taken):
        off = taken / best - 1
        return np.exp(-np.log1p(off).mean()), (off <= 0.05).mean(), np.quantile(off, 0.95), off.max(), off.mean()

    print(f"{'':12s} {'kept':>8s} {'within 5 %':>11s} {'95th percentile':>16s} {'worst':>8s} {'mean regret':>12s}")
    found = {
        name: figures(taken)
        for name, taken in (("chosen", chosen), ("oracle", oracle), ("constant", constant), ("threshold", limit))
    }
    for name, (kept, near, high, worst, mean) in found.items():
        print(f"{name:12s} {kept:8.2%} {near:11.1%} {high:16.1%} {worst:8.1%} {mean:12.2%}")
    kept, near, high, worst, mean = found["chosen"]
    winners = [row[4] for row in rows]
    share, most = max((winners.count(label) / len(rows), label) for label in set(winners))
    off = abs(
        np.array(
            [row[11] / row[5] - 1 for row in rows if row[3] == read["choose"][f"{row[0]} | {row[2]}"]["predicted"]]
        )
    )
    print(
        f"  {len(rows)} cases; predicted seconds of choices are off by {np.median(off):.1%} (median), "
        f"{np.quantile(off, 0.9):.1%} (90 %)"
    )
    for row in sorted(rows, key=lambda row: row[6] / row[5])[:6]:
        print(f"  {row[5] / row[6] - 1:6.1%}  {row[0][:60]} {row[2]} rows: {row[3]} for {row[4]}")
    rules = min(found["constant"][4], found["threshold"][4])
    return [
        Figure("kept performance", 100 * kept, "%", least=99.4),
        Figure(
            "within 5 % of the best; the bar: 95 %, or a point below the oracle",
            100 * near,
            "%",
            least=100 * min(0.95, found["oracle"][1] - 0.01),
        ),
        Figure("95th percentile of regret", 100 * high, "%", most=5),
        Figure(
            "worst regret; the bar: the oracle's and ten points",
            100 * worst,
            "%",
            most=100 * (found["oracle"][3] + 0.1),
        ),
        Figure("mean regret; the bar: a third of the better rule's", 100 * mean, "%", most=100 * rules / 3),
        Figure(f"how often one format is right, at most ({most})", 100 * share, "%", most=40),
    ]


def versions(blas):
    """Of what took part."""
    import platform
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "numba", "llvmlite"))
    from formats.host.host import cpu

    return f"{cpu()}, python {platform.python_version()}, {packages}, OpenBLAS {blas.core or 'as it chooses'}"


# ---- prediction

PREDICTION_COLUMNS = (
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


def measure_prediction() -> None:
    """Compare predicted with measured seconds of products, in every format, on shapes, densities, patterns and rows
    not calibrated.

        python benchmarks/selection.py prediction [--full] [--threads 1] [--matrices 24] [--machine FILE]
                [--csv OUT]

    The machine is calibrated in one process and asked in another, on matrices whose columns differ in size as well
    as on even ones. Errors are relative to the lower quartile of the measured times; `again` is how far a second
    measurement is from the first: no prediction is nearer. `held` is the share of times within the predicted
    interval, which should hold 80 %."""
    parser = Parser(measure_prediction)
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
    figures = prediction_show(table)
    tabled(given.csv, [PREDICTION_COLUMNS, *table])
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


def prediction_show(table):
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
    command.run_parts(measure_selection, measure_prediction)
