"""The best composition of optimisations that the search finds, against each technique alone, tuned by the same
search.

    python benchmarks/composition.py [--quick] [--pairs CSV] [--drop 0.5] [--workload 8x128] [--rounds 11] [--csv OUT]

Of the pairs every other one is text, without its score, that smaller models are fitted to; a quarter chooses
programs, whose rank correlation may fall by --drop hundredths; a quarter judges what was chosen, and nothing else
sees it. A technique alone is one stored form (number type, pattern of sparsity, low rank) for as many weights as it
likes, or hidden units alone, or heads alone. Then, of half of the hidden units: what is lost by OBS, Wanda and
magnitude."""
import csv
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import command
import numpy as np
from all import DATA
from command import Figure, Parser, concluded, count, number, readable, say, tabled, takes

from formats.machine.model import this_machine
from opmatrix.display.tables import megabytes, ms, table
from opmatrix.files.checkpoint import open_model
from opmatrix.pipelines.pooling import normalise_rows
from rewrites.command.pairs import Pairs, score_pairs
from rewrites.command.report import Report, silence_stdout
from rewrites.compiler.mixed import parse_mix
from rewrites.extraction import Infeasible
from rewrites.front import removing
from rewrites.front.choice import choose
from rewrites.front.goals import ANY, goals
from rewrites.front.ladder import LADDER, OBJECTIVES, Front, count_methods, describe_methods
from rewrites.front.opening import source
from rewrites.front.quality import Quality, loosened
from rewrites.front.removing import METRICS, Level, removed
from rewrites.front.variants import less, smaller
from rewrites.front.workload import Workload, calibration
from rewrites.laws import EXACT_LAWS
from rewrites.run import Run

COLUMNS = ("technique", "program", "ms", "megabytes", "spearman_chosen_by", "spearman_kept_apart", "stated_error")
EXACT, COMPOSED = "exact float32", "composition"
HALF = Level(0.5)
QUICK = HALF, Level(0.625, 0.1)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    parser.add_argument("--drop", type=number(float, 0, 100, "from 0 to 100 hundredths"), default=0.5)
    parser.add_argument("--workload", default="8x128")
    parser.add_argument("--number-type", default="int4")
    parser.add_argument("--rounds", type=count, default=11)
    parser.add_argument("--quick", action="store_true", help="two smaller models, and none by other metrics")
    given = parser.parse_args()
    takes(90 if given.quick else 300)
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        text, chooses, judges = halves(Path(given.pairs), Path(place))
        run, techniques = searched(given, text, chooses)
        rows = [row(run, technique, point, judges) for technique, point in techniques.items()]
        lost = [] if given.quick else [*quality(run, text, judges)]
    print(table([[*r[:2], ms(r[2]), megabytes(r[3]), *(f"{each:.2f}" for each in r[4:6]), f"{r[6]:.3g}"] for r in rows],
                ["technique", "its fastest that keeps the correlation", "ms", "MB", "chosen by", "kept apart",
                 "error"]))
    if lost: print(table([[name, f"{fall:.2f}", f"{cosine:.4f}"] for name, fall, cosine in lost],
                         [f"{HALF} removed by", "Spearman lost", "mean cosine"]))
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, [*figures({r[0]: r for r in rows}), *removal(lost)])


def halves(file: Path, place: Path) -> tuple[Path, Path, Pairs]:
    """A file of lines from every other pair, but for sentences that the others have; one of pairs that choose; and
    those that judge."""
    with open(file, newline="", encoding="utf-8") as opened: rows = [*csv.reader(opened)]
    others = {sentence for row in rows[1::2] for sentence in row[:2]}
    lines = dict.fromkeys(sentence for row in rows[0::2] for sentence in row[:2] if sentence not in others)
    text, made = place / "text.txt", []
    text.write_text("\n".join(lines), "utf-8")
    for at in (1, 3):
        made.append(place / f"pairs{at}.csv")
        with open(made[-1], "w", newline="", encoding="utf-8") as opened: csv.writer(opened).writerows(rows[at::4])
    return text, made[0], Pairs.read(made[1])


def searched(given, text, chooses):
    """The run, verified and measured, and the point of each technique."""
    checkpoint = open_model(given.model)
    workload = Workload.of(checkpoint, mix=parse_mix(f"1:{given.workload}"))
    run = Run(checkpoint.operator(True), workload, this_machine(), EXACT_LAWS, Report(quiet=True), source(checkpoint),
              number_type=given.number_type)
    asked = goals(file=chooses, drop=given.drop)
    run.explore()
    run.compile()
    run.begin(asked)
    keeps = run.quality = Quality(loosened(asked, ()), run.exactly)
    if given.quick: removing.LEVELS = QUICK
    run.variants = smaller(run, ("units", "heads"), text, lambda *_: None)
    say(f"{len(run.variants)} smaller models keep the correlation")
    run.approximate(ANY, lambda *_: None)
    run.front(ANY, None)
    techniques = {EXACT: run.points[:1], COMPOSED: run.points[1:], **alone(run), **less_alone(run)}
    every = (point for points in techniques.values() for point in points)
    run.points = [point for point in every if keeps.kept(point.program, point.stated_error)]
    say(f"{len(run.points)} programs keep it")
    run.verify(run.judged_laws(lambda *_: None)[0])
    run.judge(asked, lambda *_: None)
    run.measure(given.rounds, lambda *_: None)
    kept = {id(point) for point in run.points}
    left = {name: [point for point in points if id(point) in kept] for name, points in techniques.items()}
    return run, {name: choose(points) for name, points in left.items() if points}


def alone(run):
    """The points of each stored form alone, over the ladder of errors."""
    forms = dict.fromkeys(method.format for methods in run.choices.measured.values() for method in methods)
    return {form: [*within(run, form)] for form in forms}


def within(run, form):
    measured = run.choices.measured.items()
    choices = replace(run.choices,
                      measured={at: [each for each in found if each.format == form] for at, found in measured})
    front = fronted(run, choices)
    seen = set()
    for error in LADDER:
        for weights in OBJECTIVES:
            try: structure = choices.choose(error, None, weights)
            except Infeasible: continue
            if not structure.error or structure.error in seen: continue
            seen.add(structure.error)
            program = choices.program(structure, run.meta)
            joint, stated = front.errors(program, np.inf)
            point = run.point(describe_methods(structure), program, structure.time, joint, None,
                              count_methods(structure), structure)
            point.stated_error = stated
            yield point


def fronted(run, choices):
    workload = run.workload
    return Front(choices, run.programs["exact"], (workload.probe, workload.choose), workload.timed, run.meta)


def less_alone(run):
    """Hidden units alone, and heads alone."""
    front = fronted(run, run.choices)
    found = {}
    for variant in run.variants:
        if len(variant.cuts) > 1: continue
        joint, stated = front.errors(variant.program, np.inf)
        point = run.point(variant.name(variant.structure), variant.program, variant.structure.time, joint, None,
                          variant.methods(variant.structure), variant.structure)
        point.stated_error, point.variant = stated, variant
        found.setdefault(next(iter(variant.cuts)), []).append(point)
    return found


def row(run, technique, point, judges):
    """A row of the table, with the correlation on pairs that nothing has seen."""
    return [technique, point.name, point.measured_s, point.measured_bytes, point.judged["spearman"],
            score_pairs(point.name, point.program, judges).spearman, point.stated_error]


def quality(run, text, judges):
    """By metric, what half of the hidden units costs of the correlation, and the mean cosine of embeddings."""
    exact = run.programs["exact"]
    batch = calibration(text, exact.tokenizer, run.workload, judges.texts)
    whole, wanted = score_pairs("exact", exact,
                                judges).spearman, normalise_rows(exact.embed(judges.texts, progress=False))
    for metric in METRICS:
        program = less(run, removed(run.operator, HALF, batch, metric)).program
        found = normalise_rows(program.embed(judges.texts, progress=False))
        yield metric, whole - score_pairs(metric, program, judges).spearman, float((found * wanted).sum(1).mean())


def figures(rows: dict[str, Sequence]) -> list[Figure]:
    """What it comes to."""
    exact, found = rows[EXACT], rows.get(COMPOSED)
    single = [each for name, each in rows.items() if name not in (EXACT, COMPOSED)]
    if found is None or not single: return [Figure("composition", None, why="no program keeps the correlation")]
    fastest, smallest = (min(single, key=lambda each, at=at: each[at]) for at in (2, 3))
    return [Figure(f"time against the fastest technique alone, {fastest[0]}", found[2] / fastest[2], most=0.75),
            Figure("its bytes against that one's", found[3] / fastest[3], most=0.75),
            Figure(f"its bytes against the smallest technique alone, {smallest[0]}", found[3] / smallest[3]),
            Figure("time against exact float32", found[2] / exact[2], most=0.30),
            Figure("bytes against exact float32", found[3] / exact[3], most=0.22),
            Figure("Spearman x 100 lost, pairs that chose", exact[4] - found[4], most=0.5),
            Figure("Spearman x 100 lost, pairs kept apart", exact[5] - found[5], most=0.5)]


def removal(lost) -> list[Figure]:
    """Of half of the hidden units."""
    if not lost: return []
    best, *others = lost
    return [Figure("half of the units by OBS: Spearman x 100 lost", best[1], most=0.3),
            Figure("and mean cosine", best[2], least=0.92),
            Figure("cosine above Wanda's and magnitude's", best[2] - max(each[2] for each in others), least=0.0)]


if __name__ == "__main__": command.run(main)
