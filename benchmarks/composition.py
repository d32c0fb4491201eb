"""The best composition of optimisations that the search finds, against each technique alone, tuned by the same
search.

    python benchmarks/composition.py [--quick] [--pairs CSV] [--drop 0.25] [--bytes 0.22] [--workload 8x128]
                                     [--rounds 11] [--csv OUT]

Of the pairs every other one is text, without its score, that smaller models are fitted to; a quarter chooses
programs, whose rank correlation may fall by --drop hundredths: half of what may be lost in the end, as what is chosen
by some pairs loses more on others; a quarter judges what was chosen, and nothing else sees it. Of compositions the
fastest is shown, and the fastest that is small; the bars are about that one. A technique alone is one stored form
(number type, pattern of sparsity, low rank) for as many weights as it likes, or number types, each weight by its own,
or hidden units, heads or layers left out and nothing else."""

import csv
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path

from lib import command
from lib.command import Figure, Parser, concluded, count, number, readable, say, share, tabled, takes

from all import DATA

from opmatrix.display.progress import unheard
from opmatrix.display.tables import megabytes, ms, table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from rewrites.approximate import losses
from rewrites.approximate.error_levels import OBJECTIVES, Front, count_methods, describe_methods
from rewrites.approximate.removing import WHAT
from rewrites.approximate.variants import Untried, choose_best
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.mixed import parse_mix
from rewrites.lowering.representations import only_narrows
from rewrites.metrics.goals import ANY, goals
from rewrites.metrics.pairs import SentencePairs, score_pairs
from rewrites.metrics.quality import Quality, loosened
from rewrites.opened import Opened, Searched, search_exact
from rewrites.report.choice import choose
from rewrites.report.points import Point
from rewrites.run import (
    Frontier,
    Proposed,
    Verified,
    compile_kernels,
    find_figures,
    find_front,
    judge_front,
    propose_approximations,
    pruning_of,
    time_front,
    verify_front,
)
from rewrites.search.search import SearchSpace
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload

COLUMNS = ("technique", "program", "ms", "megabytes", "spearman_chosen_by", "spearman_kept_apart", "stated_error")
EXACT, COMPOSED, SMALL, LAYERS = "exact float32", "composition", "composition, small", "layers"
QUICK = 0.45, 0.6  # of what could go
ERRORS = 0.05, 0.1, 0.15, 0.2, 0.3, 0.4  # that a technique alone may add, each by itself


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    parser.add_argument("--drop", type=number(float, 0, 100, "from 0 to 100 hundredths"), default=0.25)
    parser.add_argument("--workload", default="8x128")
    parser.add_argument("--number-type", default="int4")
    parser.add_argument("--bytes", type=share, default=0.22, help="of the exact program's that a small one may need")
    parser.add_argument("--rounds", type=count, default=11)
    parser.add_argument("--quick", action="store_true", help="two smaller models of each kind")
    given = parser.parse_args()
    takes(90 if given.quick else 300)
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        text, chooses, judges = halves(Path(given.pairs), Path(place))
        techniques = compared(given, text, chooses)
        rows = [row(technique, point, judges) for technique, point in techniques.items()]
    print(
        table(
            [[*r[:2], ms(r[2]), megabytes(r[3]), *(f"{each:.2f}" for each in r[4:6]), f"{r[6]:.3g}"] for r in rows],
            ["technique", "its fastest that keeps the correlation", "ms", "MB", "chosen by", "kept apart", "error"],
        )
    )
    tabled(given.csv, [COLUMNS, *rows])
    concluded(given, figures({r[0]: r for r in rows}))


def halves(file: Path, place: Path) -> tuple[Path, Path, SentencePairs]:
    """A file of lines from every other pair, but for sentences that the others have; one of pairs that choose; and
    those that judge."""
    with open(file, newline="", encoding="utf-8") as opened:
        rows = [*csv.reader(opened)]
    others = {sentence for row in rows[1::2] for sentence in row[:2]}
    lines = dict.fromkeys(sentence for row in rows[0::2] for sentence in row[:2] if sentence not in others)
    text, made = place / "text.txt", []
    text.write_text("\n".join(lines), "utf-8")
    for at in (1, 3):
        made.append(place / f"pairs{at}.csv")
        with open(made[-1], "w", newline="", encoding="utf-8") as opened:
            csv.writer(opened).writerows(rows[at::4])
    return text, made[0], SentencePairs.read(made[1])


def compared(given, text, chooses) -> dict[str, Point]:
    """The point of each technique, measured and verified."""
    checkpoint = open_model(given.model)
    workload = Workload.of(checkpoint, mix=parse_mix(f"1:{given.workload}"))
    searched = search_exact(
        Opened(
            checkpoint.operator(True),
            workload,
            this_machine(),
            EXACT_LAWS,
            source(checkpoint),
            number_type=given.number_type,
        )
    )
    asked = goals(file=chooses, drop=given.drop)
    compile_kernels(searched)
    quality = Quality(loosened(asked, ()), find_figures(asked[1:], "the model", searched.exact))
    if given.quick:
        losses.SHARES = QUICK
    pruning = pruning_of(searched)
    variants = [each for what in (WHAT, *zip(WHAT)) for each in pruning.variants(quality, what, text, unheard)]
    say(f"{len(variants)} smaller models keep the correlation")
    proposed = propose_approximations(searched, ANY, variants=variants)
    say("methods of all weights are measured")
    front = find_front(proposed, ANY, None, quality=quality)
    say(f"the search has {len(front.points)} programs")
    techniques = {EXACT: front.points[:1], COMPOSED: front.points[1:], **dict(alone(proposed, quality))}
    whose = [name for name, points in techniques.items() for _ in points]
    every = Verified([point for points in techniques.values() for point in points], [], front.imported)
    timed = time_front(searched, judge_front(every, asked[1:], quality.exactly, unheard), given.rounds, unheard)
    exact, chosen = timed.points[0], dict[str, Point]()
    for name in techniques:
        points = [point for point, owner in zip(timed.points, whose, strict=True) if owner == name]
        kept = [point for point in points if all(goal.kept(point, exact) for goal in quality.asked)]
        if kept:
            chosen[name] = choose(kept)
        if name == COMPOSED and (few := [each for each in kept if bytes_of(each) <= given.bytes * bytes_of(exact)]):
            chosen[SMALL] = choose(few)
        if kept and name not in (EXACT, COMPOSED) and (least := min(kept, key=bytes_of)) is not chosen[name]:
            chosen[f"{name}, smallest"] = least
    say(f"{len(chosen)} of {len(timed.points)} programs are verified")
    names = {id(point.program): name for name, point in chosen.items()}
    verified = verify_front(searched, proposed.choices, Frontier([*chosen.values()], None, timed.imported), {})
    return {names[id(point.program)]: point for point in verified.points}  # of laws `opmatrix optimize` asks


def bytes_of(point: Point) -> float:
    return point.measured_bytes or inf


def alone(proposed: Proposed, quality: Quality) -> Iterator[tuple[str, list[Point]]]:
    """The points of each technique by itself that keep the correlation: of a stored form, in as many weights as it
    likes, of hidden units, of heads."""
    searched, choices, variants = proposed
    workload = searched.workload
    front = Front(choices, searched.exact, (workload.probe, workload.choose), workload.peak_bytes, searched.opened.meta)
    forms = dict.fromkeys(method.format for methods in choices.measured.values() for method in methods)
    narrow = {form for form in forms if only_narrows([form])}
    plain = replace(searched.space, substitutions=(), like=searched.space)

    def among(found: Sequence[Untried]) -> list[Point]:
        return looked(searched, front, quality, found)

    for name, allowed in ({form: {form} for form in forms} | {"number types": narrow}).items():
        yield name, among([*within(proposed, plain, allowed)])
    if searched.space.substitutions:
        yield LAYERS, among([*within(proposed, searched.space, set())])
    for what in dict.fromkeys(name for variant in variants for name in variant.cuts):
        yield (
            what,
            among(
                [
                    Untried(variant, variant.structure, variant.program)
                    for variant in variants
                    if [*variant.cuts] == [what]
                ]
            ),
        )


def within(proposed: Proposed, space: SearchSpace, forms: set[str]) -> Iterator[Untried]:
    """Programs of a space where a weight is stored by one of these forms or as it is, over a ladder of errors."""
    measured = {at: [each for each in found if each.format in forms] for at, found in proposed.choices.measured.items()}
    choices, seen = replace(proposed.choices, space=space, measured=measured), set[tuple[float, float]]()
    for error in ERRORS:
        for weights in OBJECTIVES:
            try:
                structure = choices.choose(error, None, weights)
            except Infeasible:
                continue
            if not structure.error or (spent := (structure.time, structure.memory)) in seen:
                continue
            seen.add(spent)
            yield Untried(None, structure, choices.program(structure, proposed.searched.opened.meta))


def looked(searched: Searched, front: Front, quality: Quality, found: Sequence[Untried]) -> list[Point]:
    """Points of those that keep the quality."""
    points = []
    for (variant, structure, program), joint, stated in choose_best(found, front, quality, 2):
        name = variant.name(structure) if variant else describe_methods(structure)
        methods = variant.methods(structure) if variant else count_methods(structure)
        points.append(
            Point.of(
                searched,
                name,
                program,
                structure.time,
                joint,
                None,
                methods=methods,
                structure=structure,
                stated_error=stated,
                variant=variant,
            )
        )
    return points


def row(technique: str, point: Point, judges: SentencePairs):
    """A row of the table, with the correlation on pairs that nothing has seen."""
    return [
        technique,
        point.name,
        point.measured_s,
        point.measured_bytes,
        point.judged["spearman"],
        score_pairs(point.name, point.program, judges).spearman,
        point.stated_error,
    ]


def figures(rows: dict[str, Sequence]) -> list[Figure]:
    """What it comes to: all of one program, the small composition where there is one."""
    exact, found = rows[EXACT], rows.get(SMALL, rows.get(COMPOSED))
    single = [each for name, each in rows.items() if name not in (EXACT, COMPOSED, SMALL)]
    if found is None or not single:
        return [Figure("composition", None, why="no program keeps the correlation")]
    fastest, smallest = (min(single, key=lambda each, at=at: each[at]) for at in (2, 3))
    return [
        Figure(f"time against the fastest technique alone, {fastest[0]}", found[2] / fastest[2], most=0.75),
        Figure("its bytes against that one's", found[3] / fastest[3], most=0.75),
        Figure(f"its bytes against the smallest technique alone, {smallest[0]}", found[3] / smallest[3]),
        Figure("time against exact float32", found[2] / exact[2], most=0.30),
        Figure("bytes against exact float32", found[3] / exact[3], most=0.22),
        Figure("Spearman x 100 lost, pairs that chose", exact[4] - found[4], most=0.5),
        Figure("Spearman x 100 lost, pairs kept apart", exact[5] - found[5], most=0.5),
    ]


if __name__ == "__main__":
    command.run(main)
