"""Gains of fusion, laws and approximations, and of each part of extraction."""

from contextlib import ExitStack
from dataclasses import replace
from math import exp, log
from statistics import median
from typing import Any
from unittest.mock import patch

from lib import command
from lib.command import Figure, Parser, concluded, count, number, say, shape, shown, spread, tabled, takes

import numpy as np
from extraction import asking, problems
from search import bert

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import counted
from opmatrix.display.progress import unheard
from opmatrix.display.tables import table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.measure import rotate_order, seconds, undisturbed
from opmatrix.runtime.pricing import this_machine
from rewrites.extraction import cuts, extract, verify
from rewrites.extraction.bounding import Search
from rewrites.laws import EXACT_LAWS
from rewrites.metrics.goals import goals
from rewrites.opened import Opened, search_exact
from rewrites.report.choice import allowed, choose
from rewrites.report.points import Point
from rewrites.run import compile_kernels, find_front, propose_approximations, time_front, verify_front
from rewrites.search import search as compiler
from rewrites.workload.workload import Workload

# ---- gain

COLUMNS = "workload", "program", "ms", "share_saved", "times_baseline", "predicted_ms", "error", "spread"


def measure_gain() -> None:
    """Measure the gain of fusion and laws over the import with one kernel for each operator, and that of the fastest
    peer.

        python benchmarks/gain.py [--model minilm] [--workloads 1x16 1x128 8x128] [--rounds 25] [--error 0.02]
                [--no-peers] [--csv OUT]

    All programs and all peers run once in every round, in an order that turns; figures are medians of rounds,
    ratios medians of the rounds' ratios. `chosen` is what `opmatrix optimize --error` would return. Peers run in
    processes of their own, with as many threads (benchmarks/lib/peers.py)."""
    parser = Parser(measure_gain)
    parser.add_argument("--model", default="minilm")
    parser.add_argument(
        "--workloads", type=shape, nargs="+", default=[(1, 16), (1, 128), (8, 128)], help="sentences x tokens"
    )
    parser.add_argument("--rounds", type=count, default=25)
    parser.add_argument("--error", type=number(float, 0, 1, "from 0 to 1"), default=0.02)
    parser.add_argument("--no-peers", action="store_true")
    given = parser.parse_args()
    takes(45 * len(given.workloads) + 20 * (not given.no_peers))
    checkpoint, machine, rows = open_model(given.model), this_machine(), []
    peers = [] if given.no_peers else the_peers(checkpoint.directory)
    for sentences, tokens in given.workloads:
        rows += measured(sentences, tokens, checkpoint, machine, peers, given)
        say(f"{sentences}x{tokens}")
    for peer in peers:
        peer.close()
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures(rows))


def the_peers(directory):
    """Started once for all workloads."""
    from lib.peers import started

    return started(directory)


def figures(rows):
    """What each means saves of the whole, by workload, and the chosen program's error."""
    for row in (dict(zip(COLUMNS, each, strict=True)) for each in rows):
        workload, program, saved, wide = (row[name] for name in ("workload", "program", "share_saved", "spread"))
        if program == "baseline":
            yield Figure(f"{workload}: imported", row["ms"], "ms", wide)
        else:
            yield Figure(f"{workload}: {program}, saved", 100 * saved, "%", wide)


def measured(sentences, tokens, checkpoint, machine, peers, given):
    """Prints a workload's table, and gives its rows."""
    name = f"{sentences}x{tokens}"
    workload = Workload.of(checkpoint, tokens=tokens)
    timed = Batch([np.resize(workload.timed.tokens, tokens)] * sentences)
    searched = search_exact(Opened(checkpoint.operator(), replace(workload, timed=timed), machine, EXACT_LAWS))
    best = chosen(searched, given.error)
    programs = {
        "baseline": searched.programs["imported"],
        "+ fusion": searched.programs["fused"],
        "+ laws": searched.exact,
        f"chosen: {best.name}": best.program,
    }
    predicted = dict(
        zip(programs, (*(each.time for each in searched.structures.values()), best.predicted_s), strict=True)
    )
    peers = [peer for peer in peers if works(peer, sentences, tokens)]
    times = rounds(programs, peers, timed, given.rounds)
    lines = [
        (
            name,
            who,
            1e3 * median(taken),
            1 - ratio(times, who),
            ratio(times, who),
            1e3 * predicted.get(who, np.nan),
            best.measured_error if who.startswith("chosen") else "",
            spread(taken),
        )
        for who, taken in times.items()
    ]
    print(
        f"\n{name} tokens, {given.rounds} rounds\n"
        + table(
            [
                [
                    who,
                    f"{ms:.3f}",
                    f"{100 * share:.1f} %",
                    f"{times_base:.3f}",
                    f"{ahead:.3f}" if ahead == ahead else "",
                    f"{error:.2g}" if error else "",
                    shown(wide),
                ]
                for _, who, ms, share, times_base, ahead, error, wide in lines
            ],
            ["", "ms", "saved", "× baseline (paired)", "ms predicted", "error", "spread"],
        )
    )
    if peers:
        fastest = min(peers, key=lambda peer: median(times[peer.name])).name
        times_ours = median(times[fastest]) / median(times["+ laws"])
        print(f"fastest peer: {fastest}, {times_ours:.2f} times as long as + laws")
    return lines


def works(peer, sentences, tokens):
    """Whether a peer takes batches of this shape; why not is printed."""
    try:
        return peer.seconds([[101] * tokens] * sentences) > 0
    except (RuntimeError, BrokenPipeError) as error:
        return print(f"absent  {error}")


def chosen(searched, error):
    """The point that a whole run returns; where no error is allowed that is the exact one."""
    compile_kernels(searched)
    if not error:
        return Point.of(searched, "exact", searched.exact, searched.optimum.time, 0.0, 0.0)
    proposed = propose_approximations(searched, error)
    verified = verify_front(searched, proposed.choices, find_front(proposed, error, None), {})
    timed = time_front(searched, verified, 10, unheard)
    return choose(allowed(timed.points, goals(error=error), None))


def rounds(programs, peers, batch, count, warm=3):
    """Seconds of each program and peer, round by round."""
    sentences = [part.tolist() for part in np.split(batch.tokens, batch.starts[1:-1])]
    calls = {name: lambda program=program: seconds(program.run, batch) for name, program in programs.items()}
    calls |= {peer.name: lambda peer=peer: peer.seconds(sentences) for peer in peers}
    taken = {name: [] for name in calls}
    with undisturbed():
        for turn in range(-warm, count):
            for name in rotate_order(list(calls), turn):
                calls[name]()  # once for the caches, which another has filled
                second = calls[name]()
                if turn >= 0:
                    taken[name].append(second)
    return taken


def ratio(times, name):
    """The median of the rounds' ratios to the baseline."""
    return median(a / b for a, b in zip(times[name], times["baseline"], strict=True))


# ---- ablation

NEVER = dict(autospec=True, return_value=False)
PARTS: dict[str, list[tuple[Any, str, dict[str, Any]]]] = {  # what is patched, and by what
    "nothing": [],
    "annealing": [(Search, "walked", NEVER)],
    "neighbourhoods": [(Search, "neighbours", NEVER)],
    "programs at noisy prices": [(Search, "scatter", NEVER)],
    "landmark cuts": [(Search, "cheap", NEVER)],
    "cuts of the relaxation": [(cuts, "thresholds", dict(return_value=())), (cuts, "flows", dict(return_value=()))],
    "the relaxation": [(Search, "relaxed", NEVER)],
    "0/1 programs": [(Search, "integral", NEVER)],
}


def measure_ablation() -> None:
    """Measure the worth of each part of extraction: the same graphs with one part of the search left out at a time.

        python benchmarks/gain.py ablation DIR [--time-limit S] [--generated] [--csv OUT]

    Graphs are those of a folder of egraph-serialize JSON files, generated ones, and those that the exact search of
    BERT-base asks for. `cost` is the geometric mean of costs over those with nothing left out, at equal time
    limits; `proved` says how many answers are proved optimal within it."""
    given = asking(measure_ablation, 2.0).parse_args()
    graphs = [*problems(given.folder, given.generated), *asked()]
    takes(0.4 * len(PARTS) * given.time_limit * len(graphs))
    found = {part: solved(part, graphs, given.time_limit) for part in PARTS}
    lines = [compared(part, answers, found["nothing"]) for part, answers in found.items()]
    print(table(lines, ["left out", "cost", "worst", "better", "worse", "proved", "seconds"]))
    tabled(
        given.csv,
        [
            ["part", "graph", "cost", "bound", "seconds"],
            *(
                [part, name, each.cost, each.bound, each.seconds]
                for part, answers in found.items()
                for name, each in answers.items()
            ),
        ],
    )
    left = [answers for part, answers in found.items() if PARTS[part]]
    concluded(
        given,
        [
            Figure(
                f"parts of {len(left)} without which an answer is dearer, unproved, or all take a tenth longer",
                float(sum(pays(answers, found["nothing"]) for answers in left)),
            )
        ],
    )


def asked():
    """The problems that the exact search of BERT-base extracts."""
    taken = []

    def kept(problem, **options):
        taken.append((f"model {len(taken)}", problem))
        return extract(problem, **options)

    with patch.object(compiler, "extract", kept):
        compiler.search(bert(12, 768), EXACT_LAWS, this_machine(), counted([128]))
    return taken


def solved(part, graphs, seconds):
    """The answers with a part left out, each checked against the definition."""
    found = {}
    with ExitStack() as stack:
        for owner, name, options in PARTS[part]:
            stack.enter_context(patch.object(owner, name, **options))
        for name, problem in graphs:
            found[name] = extract(problem, time_limit=seconds)
            verify(problem, found[name])
    say(f"without {part}")
    return found


def compared(part, answers, whole):
    ratios = [(each.cost + 1e-30) / (whole[name].cost + 1e-30) for name, each in answers.items()]
    return [
        part,
        *map(
            str,
            (
                f"{exp(sum(map(log, ratios)) / len(ratios)):.5f}",
                f"{max(ratios):.4f}",
                sum(each < 1 - 1e-9 for each in ratios),
                sum(each > 1 + 1e-9 for each in ratios),
                sum(each.optimal for each in answers.values()),
                f"{sum(each.seconds for each in answers.values()):.1f}",
            ),
        ),
    ]


def pays(answers, whole):
    """Whether answers are dearer, fewer are proved, or they take a tenth and a second longer."""
    taken, before = (sum(each.seconds for each in found.values()) for found in (answers, whole))
    return (
        any(each.cost > whole[name].cost * (1 + 1e-9) for name, each in answers.items())
        or sum(each.optimal for each in answers.values()) < sum(each.optimal for each in whole.values())
        or taken > 1.1 * before + 1
    )


if __name__ == "__main__":
    command.run_parts(measure_gain, measure_ablation)
