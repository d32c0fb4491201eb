"""Predicted seconds of whole programs: how far off, in which order, and of sparse weights."""

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
from lib.command import Figure, Parser, concluded, count, listed, number, say, share, shown, spread, tabled, takes

import numpy as np
from scipy.stats import kendalltau

from formats import FORMATS
from formats.machine.local import learning
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import dense
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build
from opmatrix.runtime.measure import measure, medians, peak, ratio
from opmatrix.runtime.pricing import this_machine
from opmatrix.runtime.program import Program
from opmatrix.runtime.scheme import Running
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS, without
from rewrites.lowering.lower import Method, plainly
from rewrites.lowering.price import Prices
from rewrites.opened import Opened, search_exact
from rewrites.run import find_front, propose_approximations
from rewrites.search.search import search
from rewrites.verify.differences import difference
from rewrites.workload.workload import Workload

# ---- whole

WHOLE_COLUMNS = "model", "workload", "program", "predicted_ms", "measured_ms", "wide", "as_calls_ms"
NAMES = "names.json"
WIDE, AGAIN = 0.05, 3  # of rounds; how often they are taken again at most
APART = 1.1  # programs that tau is of
MEDIAN, WORST, TAU = 10, 25, 0.85  # bars: errors in %, and order
ROWS = 512  # that methods are judged by: what programs take is what
# counts here
ERROR = 0.02


def measure_whole():
    """Compare predicted with measured seconds of whole programs: over all points of fronts, each at the workload that
    it was found for.

        python benchmarks/whole.py [--models minilm,base] [--workloads 1x16,1x128,8x128] [--rounds 15]
                [--programs DIR] [--csv OUT]

    One process for each model and workload finds the programs: the import, the fused and the exact one, and the
    front within the default error; they are kept in --programs and taken from there. Another loads them and times
    them in turns: medians, and `wide`, the middle half of the rounds as a share of the median; where that is more
    than 5 % they are timed again, and each keeps the rounds that agree best. What calibrated the machine was
    another process. `as calls` are the same kernels priced as calls from Python, with weights in the cache.
    Printed: errors, median and worst, and Kendall's tau over the pairs of programs of a workload that differ by 10
    % or more as measured."""
    parser = Parser(measure_whole)
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
    tabled(given.csv, [WHOLE_COLUMNS, *rows])
    concluded(given, whole_show(rows))


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


def whole_show(rows):
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


# ---- ranking

RANKING_COLUMNS = "program", "predicted_ms", "measured_ms", "measured_over_predicted", "spread"
ERRORS = [0.01 * 1.25**step for step in range(24)]
LEFT = ["join"], ["join", "stack_columns", "stack_rows"], ["absorb_keys"]  # names of laws that there are


def measure_ranking() -> None:
    """Compare the order of programs by price with that by the clock: predicted and measured seconds, and Kendall's
    tau.

        python benchmarks/whole.py ranking [--model minilm] [--tokens 128] [--rounds 15] [--apart 1.1] [--csv OUT]

    Alternatives are the import, fusion, the optimum, optima without some laws, and approximations over a ladder of
    errors. Of these the most are kept whose predicted times differ by a factor of `--apart` from one to the next."""
    parser = Parser(measure_ranking)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=15)
    parser.add_argument("--apart", type=number(float, 1, 100, "from 1 to 100"), default=1.1)
    given = parser.parse_args()
    takes(30 + 0.4 * given.rounds)
    checkpoint = open_model(given.model)
    workload = Workload.of(checkpoint, tokens=given.tokens)
    kept = apart(alternatives(Opened(checkpoint.operator(), workload, this_machine(), EXACT_LAWS)), given.apart)
    say(f"{len(kept)} programs, {given.rounds} rounds")
    rounds = measure({name: program for name, _, program in kept}, [workload.timed], given.rounds)
    taken = medians(rounds)
    rows = [
        (name, 1e3 * ahead, 1e3 * taken[name], taken[name] / ahead, spread(rounds[name])) for name, ahead, _ in kept
    ]
    print(
        table(
            [[name, *(f"{figure:.3f}" for figure in figures), shown(wide)] for name, *figures, wide in rows],
            ["", "ms predicted", "ms measured", "measured / predicted", "spread"],
        )
    )
    tau = float(kendalltau([row[1] for row in rows], [row[2] for row in rows]).statistic) if len(rows) > 1 else None
    tabled(given.csv, [RANKING_COLUMNS, *rows])
    wide = [row[4] for row in rows if row[4] is not None]
    what = f"Kendall's tau of {len(rows)} programs, each {given.apart:g} times as slow as the next"
    off = median(abs(1 - 1 / row[3]) for row in rows)
    concluded(
        given,
        [
            Figure(what, tau, spread=median(wide) if wide else None, ceiling=1, why="one program is no order"),
            Figure("predicted seconds off by, median", 100 * off, "%"),
        ],
    )


def alternatives(opened):
    """(name, predicted seconds, program)."""
    searched = search_exact(opened)
    found = [(name, structure.time, searched.programs[name]) for name, structure in searched.structures.items()]
    for names in LEFT:
        try:
            structure = opened.structure(without(opened.laws, names))
        except Infeasible:
            continue
        found.append((f"without {', '.join(names)}", structure.time, structure.program({})[0]))
    plain = opened.structure(opened.laws, fusion=False)
    found.append(("laws without fusion", plain.time, plain.program({})[0]))
    choices = propose_approximations(searched, max(ERRORS)).choices
    for error in ERRORS:
        for weights in ((1, 0, 0), (1e-3, 1e-12, 0)):
            try:
                choice = choices.choose(error, None, weights)
            except Infeasible:
                continue
            name = f"{'fastest' if weights[0] == 1 else 'smallest'} at {error:.3g}"
            found.append((name, choice.time, choices.program(choice, {})))
    return found


def apart(found, factor):
    """As many as possible, each so many times as slow as the one before it: greedily from the fastest."""
    kept = []
    for each in sorted(found, key=lambda one: one[1]):
        if not kept or each[1] >= factor * kept[-1][1]:
            kept.append(each)
    return kept


# ---- sparse

SPARSE_COLUMNS = (
    "pattern",
    "density",
    "kernels",
    "sparse_ms",
    "same_dense_ms",
    "best_dense_ms",
    "times_same_dense",
    "times_best_dense",
    "stored",
    "stored_dense",
    "allocated",
    "planned",
    "smallest_dense",
    "error",
    "spread",
)
EXACT = 1e-5  # relative, of float32
SPARSE = "csr", "block", "nm"


def measure_sparse() -> None:
    """Prune a BERT, and time the program whose weights the exact search stores sparse against the same one, dense.

        python benchmarks/whole.py sparse [--model minilm] [--densities 0.5 0.25 0.1 0.05] [--pattern csr block nm]
                [--tokens 128] [--rounds 15] [--csv OUT]

    Every weight of the layers is pruned by magnitude to the density; what is left is the model, and all programs
    are exact for it. That nothing is made dense is shown by the most bytes that a run allocates beyond its planned
    buffers, against the bytes of the smallest weight that is stored sparse, were it dense."""
    parser = Parser(measure_sparse)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--densities", type=share, nargs="+", default=[0.5, 0.25, 0.1, 0.05])
    parser.add_argument("--pattern", nargs="+", choices=SPARSE, default=["csr", "block", "nm"])
    parser.add_argument("--tokens", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=15)
    given = parser.parse_args()
    takes(2 + len(given.pattern) * len(given.densities) * (6 + 0.06 * given.rounds))
    checkpoint, machine, rows = open_model(given.model), this_machine(), []
    for pattern in given.pattern:
        for density in given.densities:
            rows.append(measured(pruned(checkpoint, pattern, density), checkpoint, machine, pattern, density, given))
            sparse_show(rows[-1])
            say(f"{pattern} at {density:g}")
    tabled(given.csv, [SPARSE_COLUMNS, *rows])
    found = [dict(zip(SPARSE_COLUMNS, row, strict=True)) for row in rows]
    concluded(
        given,
        [
            *(
                Figure(
                    f"{row['pattern']} at density {row['density']:g}: of the best dense program's seconds",
                    row["times_best_dense"],
                    "x",
                    row["spread"],
                    most=1,
                )
                for row in found
            ),
            Figure("largest relative error", max(row["error"] for row in found), most=EXACT),
        ],
    )


def pruned(checkpoint, pattern, density):
    """The model with the weights of its layers pruned."""
    group = max(4, round(1 / density))
    options = {"nm": {"n": round(density * group), "m": group}}.get(pattern, {"density": density})

    def at(name, *shape):
        data = checkpoint.at(name, *shape)
        if len(shape) != 2 or "encoder" not in name:
            return data
        return Data(np.ascontiguousarray(FORMATS[pattern].fit(data.array.T, **options).T), name)  # they lie out by in

    return build(checkpoint.config, at)


def measured(model, checkpoint, machine, pattern, density, given):
    """A row of the table."""
    rng = np.random.default_rng(0)
    batch = Batch([rng.integers(0, checkpoint.config["vocab_size"], given.tokens)])
    sizes = machine, batch.extents()
    chosen, best = search(model, EXACT_LAWS, *sizes), search(model, EXACT_LAWS, *sizes, methods=plainly)
    programs = {
        "sparse": chosen.program({})[0],
        "best dense": best.program({})[0],
        "same dense": chosen.program({}, lambda part, use, method: Method())[0],
    }
    times = measure(programs, [batch], given.rounds)
    middle, program = medians(times), programs["sparse"]
    held = [weight for weight in program.constants.values() if getattr(weight, "name", "") in SPARSE]
    kernels = {name: sum(weight.name == name for weight in held) for name in SPARSE}
    return (
        pattern,
        density,
        " ".join(f"{name}×{count}" for name, count in kernels.items() if count) or "none",
        *(1e3 * middle[name] for name in ("sparse", "same dense", "best dense")),
        ratio(times, "sparse", "same dense"),
        ratio(times, "sparse", "best dense"),
        program.stored_bytes,
        programs["best dense"].stored_bytes,
        peak(program, batch),
        program.peak_bytes(batch),
        min((4 * int(np.prod(w.shape)) for w in held), default=0),
        difference(program.run(batch), dense(model, batch)),
        spread(times["sparse"]),
    )


def sparse_show(row):
    """A row as a paragraph."""
    pattern, density, kernels, ours, same, best, by_same, by_best, *sizes, error, wide = row
    stored, plain, allocated, planned, smallest = sizes
    print(
        f"\n{pattern} at density {density:g}: sparse kernels {kernels}; {stored / 1e6:.1f} MB stored, "
        f"dense {plain / 1e6:.1f}; error {error:.1g}; spread {shown(wide)}"
    )
    print(
        table(
            [
                ["chosen", f"{ours:.2f}", ""],
                ["the same, dense", f"{same:.2f}", f"{by_same:.3f}"],
                ["the best dense", f"{best:.2f}", f"{by_best:.3f}"],
            ],
            ["", "ms", "chosen / this (paired)"],
        )
    )
    if smallest:
        print(
            f"a run allocates {(allocated - planned) / 1e3:.0f} kB beyond its planned {planned / 1e3:.0f} kB; "
            f"the smallest of these weights is {smallest / 1e3:.0f} kB dense"
        )


if __name__ == "__main__":
    command.run_parts(measure_whole, measure_ranking, measure_sparse)
