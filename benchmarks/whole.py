"""How far predicted seconds of whole programs are off: over all points of fronts, each at the workload that it was
found for.

    python benchmarks/whole.py [--models minilm,base] [--workloads 1x16,1x128,8x128] [--rounds 15] [--programs DIR]
    [--csv OUT]

One process for each model and workload finds the programs: the import, the fused and the exact one, and the front
within the default error; they are kept in --programs and taken from there. Another loads them and times them in turns:
medians, and `wide`, the middle half of the rounds as a share of the median; where that is more than 5 % they are timed
again, and each keeps the rounds that agree best. What calibrated the machine was another process. `as calls` are the
same kernels priced as calls from Python, with weights in the cache. Printed: errors, median and worst, and Kendall's
tau over the pairs of programs of a workload that differ by 10 % or more as measured."""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from lib import command, workloads
from lib.command import Figure, Parser, concluded, count, listed, say, shown, spread, tabled, takes

from formats.machine.local import learning
from opmatrix.algebra.batch.batch import Batch
from opmatrix.display.tables import table
from opmatrix.runtime.measure import measure
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.price import Prices
from rewrites.opened import Opened, search_exact
from rewrites.run import find_front, propose_approximations
from rewrites.workload.workload import Workload

COLUMNS = "model", "workload", "program", "predicted_ms", "measured_ms", "wide", "as_calls_ms"
NAMES = "names.json"
WIDE, AGAIN = 0.05, 3  # of rounds; how often they are taken again at most
APART = 1.1  # programs that tau is of
MEDIAN, WORST, TAU = 10, 25, 0.85  # bars: errors in %, and order
ROWS = 512  # that methods are judged by: what programs take is what
# counts here
ERROR = 0.02


def main():
    parser = Parser(__doc__)
    parser.add_argument("--models", type=listed, default=["minilm", "base"])
    parser.add_argument("--workloads", type=listed, default=["1x16", "1x128", "8x128"], help="SENTENCESxTOKENS")
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--programs", type=Path, help="where programs are kept")
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        return STAGES[given.stage[0]](*given.stage[1:], given)
    takes(60 * len(given.models) * len(given.workloads))
    with tempfile.TemporaryDirectory() as spare:
        given.programs = given.programs or Path(spare)
        rows = [row for model in given.models for workload in given.workloads for row in raced(model, workload, given)]
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, show(rows))


def raced(model, workload, given):
    """The rows of one model at one workload, each stage in a process of its own."""

    def stage(name):
        say(f"{name} {model} {workload}")
        again = [sys.executable, __file__, "--rounds", str(given.rounds), "--programs", str(given.programs)]
        done = subprocess.run([*again, "--stage", name, model, workload], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.returncode)
        return done.stdout

    if not (given.programs / f"{model}-{workload}" / NAMES).exists():
        stage("find")
    return [(model, workload, *row) for row in json.loads(stage("time"))]


def batch(checkpoint, workload):
    """The workload as a batch."""
    return Batch(workloads.made(workload, checkpoint, None, None).sentences)


def find(model, workload, given):
    """Saves the programs of a front."""
    checkpoint = workloads.model(model)
    whole = Workload.of(checkpoint)
    few = next(whole.fit.pieces(ROWS))
    timed = replace(whole, timed=batch(checkpoint, workload), name=workload, fit=few, choose=few, probe=few)
    searched = search_exact(Opened(checkpoint.operator(), timed, this_machine(), EXACT_LAWS))
    points = find_front(propose_approximations(searched, ERROR), ERROR, None).points
    found = {name: searched.programs[name] for name in ("imported", "fused")} | {
        point.name: point.program for point in points
    }
    place = given.programs / f"{model}-{workload}"
    for at, program in enumerate(found.values()):
        program.save(place / str(at))
    (place / NAMES).write_text(json.dumps([*found]))


def timed(model, workload, given):
    """Prints name, predicted and measured milliseconds, how wide rounds are, and milliseconds as calls, of each
    program."""
    place = given.programs / f"{model}-{workload}"
    programs = {name: Program.load(place / str(at)) for at, name in enumerate(json.loads((place / NAMES).read_text()))}
    on, machine = batch(workloads.model(model), workload), this_machine()
    taken = measure(programs, [on], given.rounds)
    for _ in range(AGAIN):
        if max(spread(rounds) or 0.0 for rounds in taken.values()) <= WIDE:
            break
        again = measure(programs, [on], given.rounds)
        taken = {name: min(rounds, again[name], key=lambda each: spread(each) or 0.0) for name, rounds in taken.items()}
    print(
        json.dumps(
            [
                (
                    name,
                    1e3 * learning(partial(predicted, program, on, machine)),
                    1e3 * median(taken[name]),
                    spread(taken[name]),
                    1e3 * learning(partial(as_calls, program, on, machine)),
                )
                for name, program in programs.items()
            ]
        )
    )


def predicted(program, batch, machine):
    """Seconds of a run, as the search prices them."""
    prices = Prices(Running.of(machine, batch.starts), program.extents(batch))
    return prices.beside(program) + prices.seconds(program.cost(prices.group))


def as_calls(program, batch, machine):
    """Seconds of a program's kernels, each called from Python with its weights in the cache."""
    return sum(machine.seconds(kernel, **sizes) for kernel, sizes in program.cost(batch))


STAGES = {"find": find, "time": timed}


def show(rows):
    """Prints the programs and the errors of each workload; the figures of all."""
    print(
        table(
            [
                [
                    model,
                    workload,
                    name[:48],
                    f"{ahead:.3f}",
                    f"{found:.3f}",
                    f"{ahead / found - 1:+.0%}",
                    shown(wide),
                    f"{calls / found - 1:+.0%}",
                ]
                for model, workload, name, ahead, found, wide, calls in rows
            ],
            ["", "", "program", "ms predicted", "ms measured", "off", "spread", "off as calls"],
        )
    )
    groups = {key: [row for row in rows if row[:2] == key] for key in dict.fromkeys(row[:2] for row in rows)}
    print(
        "\n"
        + table(
            [[*key, str(len(each)), *said(errors(each)), f"{tau(each):.3f}"] for key, each in groups.items()],
            ["", "", "programs", "off, median", "off, worst", "tau"],
        )
    )
    wide = median(row[5] or 0.0 for row in rows)
    off, calls = errors(rows), [abs(row[6] / row[4] - 1) for row in rows]
    return [
        Figure(f"predicted seconds of {len(rows)} programs off by, median", 100 * median(off), "%", wide, most=MEDIAN),
        Figure("predicted seconds off by, worst", 100 * max(off), "%", wide, most=WORST),
        Figure("predicted over the exact program's off by, median", 100 * median(against_exact(rows)), "%", wide),
        Figure(f"Kendall's tau of pairs {APART:g} times apart", tau(rows), "", wide, least=TAU, ceiling=1),
        Figure("priced as calls off by, median", 100 * median(calls), "%", wide),
    ]


def errors(rows):
    return [abs(ahead / found - 1) for _, _, _, ahead, found, *_ in rows]


def against_exact(rows):
    """How far off predicted ratios to the exact program of the same workload are: what a choice between programs rests
    on, whatever speed the machine has just then."""
    exact = {row[:2]: row for row in rows if row[2] == "exact"}
    return [abs(row[3] / exact[row[:2]][3] * exact[row[:2]][4] / row[4] - 1) for row in rows if row[2] != "exact"]


def said(off):
    return f"{median(off):.1%}", f"{max(off):.1%}"


def tau(rows):
    """Kendall's, over pairs of programs of one workload that differ by so much as measured."""
    pairs = [
        (a, b)
        for at, a in enumerate(rows)
        for b in rows[:at]
        if a[:2] == b[:2] and max(a[4] / b[4], b[4] / a[4]) >= APART
    ]
    signs = [1 if (a[3] - b[3]) * (a[4] - b[4]) > 0 else -1 for a, b in pairs]
    return sum(signs) / len(signs) if signs else 1.0


if __name__ == "__main__":
    command.run(main)
