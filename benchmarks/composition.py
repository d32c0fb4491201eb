"""Compositions of optimisations: the best one, and pairs of techniques."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import permutations
from math import inf
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lib import command
from lib.command import (
    DATA,
    Figure,
    Parser,
    concluded,
    count,
    listed,
    named,
    number,
    readable,
    say,
    share,
    tabled,
    takes,
)
from lib.sentence_pairs import halves

import numpy as np
from errors import FFN_LEFT, TECHNIQUES, compressed, joined, matrices, scored

from formats import FORMATS
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import factors
from opmatrix.algebra.term import Operator
from opmatrix.display.progress import unheard
from opmatrix.display.tables import megabytes, ms, table
from opmatrix.files.checkpoint import open_model
from opmatrix.runtime.pricing import this_machine
from rewrites.approximate import losses
from rewrites.approximate.error_levels import OBJECTIVES, Front, count_methods, describe_methods
from rewrites.approximate.removing import METRICS, WHAT, Level, remove_groups
from rewrites.approximate.structured import weight_and_bias
from rewrites.approximate.variants import Untried, choose_best
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.lower import Method, plainly
from rewrites.lowering.mixed import parse_mix
from rewrites.lowering.narrowing import narrowed
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
from rewrites.search.search import SearchSpace, cheapest
from rewrites.workload.phases import silence_stdout
from rewrites.workload.resolve import source
from rewrites.workload.workload import Workload, calibration

# ---- composition

COMPOSITION_COLUMNS = (
    "technique",
    "program",
    "ms",
    "megabytes",
    "spearman_chosen_by",
    "spearman_kept_apart",
    "stated_error",
)
EXACT, COMPOSED, SMALL, LAYERS = "exact float32", "composition", "composition, small", "layers"
COMPOSITION_QUICK = 0.45, 0.6  # of what could go
ERRORS = 0.05, 0.1, 0.15, 0.2, 0.3, 0.4  # that a technique alone may add, each by itself


def measure_composition() -> None:
    """Compare the best composition of optimisations that the search finds with each technique alone, tuned by the same
    search.

        python benchmarks/composition.py [--quick] [--pairs CSV] [--drop 0.25] [--bytes 0.22] [--workload 8x128]
                [--rounds 11] [--csv OUT]

    Of the pairs every other one is text, without its score, that smaller models are fitted to; a quarter chooses
    programs, whose rank correlation may fall by --drop hundredths: half of what may be lost in the end, as what is
    chosen by some pairs loses more on others; a quarter judges what was chosen, and nothing else sees it. Of
    compositions the fastest is shown, and the fastest that is small; the bars are about that one. A technique alone
    is one stored form (number type, pattern of sparsity, low rank) for as many weights as it likes, or number
    types, each weight by its own, or hidden units, heads or layers left out and nothing else."""
    parser = Parser(measure_composition)
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
    tabled(given.csv, [COMPOSITION_COLUMNS, *rows])
    concluded(given, composition_figures({r[0]: r for r in rows}))


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
        losses.SHARES = COMPOSITION_QUICK
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


def composition_figures(rows: dict[str, Sequence]) -> list[Figure]:
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


# ---- interactions

NUMBERS = "int8", "bf16", "int4"
FITS = {"low rank": TECHNIQUES["low rank"], "2:4": TECHNIQUES["2:4"], "half": TECHNIQUES["half of the entries"]}
LEVELS = {"units": Level(0.5), "heads": Level(heads=0.25)}
PAIRED = {("nm", "int8"): "nmint8", ("lowrank", "int8"): "lowrankint8"}
NAMES = (*NUMBERS, *FITS, *LEVELS)
INTERACTIONS_QUICK, QUICK_ROWS, QUICK_PAIRS = ("int8", "2:4", "units"), 2048, 100
INTERACTIONS_COLUMNS = (
    "first",
    "second",
    "time",
    "time_apart",
    "memory",
    "memory_apart",
    "error",
    "error_apart",
    "cosine_lost",
    "cosine_lost_apart",
    "spearman_lost",
    "spearman_lost_apart",
)


class State(NamedTuple):
    """A model by some techniques. `stored` says by label which structure a weight has; `numbers` which number type
    square weights have, and all others."""

    model: Operator
    stored: dict[str, Method]
    numbers: tuple[str, str] = ("", "")

    def by(self, name: str, batch: Batch) -> "State":
        """The same by one technique more."""
        if name in NUMBERS:
            first = self.numbers[0]
            return self._replace(numbers=(first or name, name))
        if name in LEVELS:
            less = remove_groups(self.model, LEVELS[name], batch)
            changed = {cut.weight for cut in less.cuts}  # they are dense again
            return self._replace(
                model=less.model,
                stored={label: method for label, method in self.stored.items() if label not in changed},
            )
        model, _ = compressed(self.model, FITS[name], batch, METRICS[0])
        own = {data.label: structure(name, *data.shape) for data in weights(model) if FITS[name].takes(*data.shape)}
        return self._replace(model=model, stored=self.stored | own)

    def methods(self, lowering, use):
        """What a use is stored by."""
        leaves = lowering.arrays(use.weight)
        if use.layout == "stack" or not leaves:
            return plainly(lowering, use)
        one, *others = [self.stored.get(each.label) for each in leaves]
        n, p = leaves[0].shape
        method = narrow(one if all(each == one for each in others) else None, self.numbers[n != p])
        plain = method.plain or (lowering.gathers(use) and not lowering.gatherable(use, method))
        return plainly(lowering, use) if plain else (method,)


class Outcome(NamedTuple):
    """Predicted seconds, stored bytes, the relative change of embeddings, what is lost of 1 in mean cosine and of 100
    times the rank correlation."""

    seconds: float
    bytes: float
    error: float
    cosine: float
    spearman: float


class Judge:
    """Programs of one model, beside its exact one."""

    def __init__(self, searched: Searched, pairs: SentencePairs) -> None:
        self.searched, self.pairs = searched, pairs

    @cached_property
    def exact(self):
        return *scored(self.searched.exact, self.pairs), self.searched.optimum.time

    def outcome(self, state: State) -> Outcome:
        own = self.searched.space
        structure = cheapest(SearchSpace(state.model, own.laws, own.machine, own.extents, like=own), state.methods)
        program = narrowed(structure.program(self.searched.opened.meta)[0], own.prices)
        (whole, wanted, _), (correlation, found) = self.exact, scored(program, self.pairs)
        return Outcome(
            structure.time,
            program.stored_bytes,
            float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)),
            1 - float((found * wanted).sum(1).mean()),
            whole - correlation,
        )

    def factor(self, outcome: Outcome) -> Outcome:
        """Seconds and bytes as shares of the exact program's."""
        return outcome._replace(
            seconds=outcome.seconds / self.exact[2], bytes=outcome.bytes / self.searched.exact.stored_bytes
        )


def measure_interactions() -> None:
    """Measure what two techniques bring together, in both orders, against what each brings alone.

        python benchmarks/composition.py interactions [--model minilm] [--pairs CSV] [--only int8,2:4,units]
                [--workload 8x128] [--quick] [--csv OUT]

    The second technique is fitted to what the first has left, on the activations of that model, to the sentences of
    every other pair without its score; the other pairs judge. A number type comes last, as it only says how numbers
    are stored; of two number types the first stores the square weights, those of attention, and the second all
    others. A weight is stored as the last structure that took it, in bytes where there is such a format. Apart,
    factors of time and of memory multiply, and losses of cosine and rank correlation add, and so do squares of
    errors: what the search supposes."""
    parser = Parser(measure_interactions)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--pairs", type=readable, default=DATA / "sts" / "stsb-en-dev.csv")
    parser.add_argument("--only", type=listed, help=", ".join(NAMES))
    parser.add_argument("--workload", default="8x128")
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(INTERACTIONS_QUICK)} on fewer rows and pairs")
    given = parser.parse_args()
    names = given.only or (INTERACTIONS_QUICK if given.quick else NAMES)
    named("only", names, NAMES)
    takes(25 * len(names) if given.quick else 25 * len(names) ** 2)
    with tempfile.TemporaryDirectory() as place, silence_stdout():
        alone, rows = measured(given, names, Path(place))
    print(table([[name, *shown(each)] for name, each in alone.items()], ["alone", *TITLES]), "\n")
    print(
        table(
            [
                [first, second, *between(shown(each), shown(apart(alone[first], alone[second])))]
                for (first, second), each in rows.items()
            ],
            ["first", "second", *(f"{t} (apart)" for t in TITLES)],
        )
    )
    tabled(
        given.csv,
        [
            INTERACTIONS_COLUMNS,
            *(
                [
                    *at,
                    *(each for both in zip(found, apart(*(alone[name] for name in at)), strict=True) for each in both),
                ]
                for at, found in rows.items()
            ),
        ],
    )
    concluded(given, interactions_figures(alone, rows))


TITLES = "time", "memory", "error", "cosine lost", "Spearman x 100 lost"


def measured(given, names, place: Path) -> tuple[dict[str, Outcome], dict[tuple[str, str], Outcome]]:
    """What each technique comes to alone, and what each pair does, in the orders that matter."""
    text, chooses, judges = halves(Path(given.pairs), place)
    pairs, checkpoint = joined(SentencePairs.read(chooses), judges), open_model(given.model)
    workload = Workload.of(checkpoint, mix=parse_mix(f"1:{given.workload}"))
    searched = search_exact(Opened(checkpoint.operator(True), workload, this_machine(), EXACT_LAWS, source(checkpoint)))
    batch = calibration(text, searched.exact.tokenizer, searched.workload, pairs.texts)
    if given.quick:
        batch, pairs = (
            next(batch.pieces(QUICK_ROWS)),
            SentencePairs(pairs.texts[: 2 * QUICK_PAIRS], pairs.scores[:QUICK_PAIRS]),
        )
    judge, begun = Judge(searched, pairs), State(searched.opened.operator, {})
    say(f"fitted to {batch.rows} tokens, judged by {len(pairs)} pairs")
    alone, rows, states = {}, {}, {}
    for name in names:
        states[name] = begun.by(name, batch)
        alone[name] = judge.factor(judge.outcome(states[name]))
        say(name)
    for first, second in ordered(names):
        rows[first, second] = judge.factor(judge.outcome(states[first].by(second, batch)))
        say(f"{first}, then {second}")
    return alone, rows


def ordered(names) -> Iterator[tuple[str, str]]:
    """SentencePairs of techniques in the orders that matter."""
    return (pair for pair in permutations(names, 2) if pair[0] not in NUMBERS or pair[1] in NUMBERS)


def structure(name: str, n: int, p: int) -> Method:
    """What stores a weight (n, p) by one of FITS."""
    match name:
        case "low rank":
            return Method("lowrank", (("rank", round(FFN_LEFT * n * p / (n + p))),))
        case "2:4":
            return Method("nm", (("n", 2), ("m", 4)))
    return Method("csr", (("density", 0.5),))


def narrow(method: Method | None, numbers: str) -> Method:
    """A structure in a number type: the pair of both where there is one, else the number type alone."""
    if method is None or not numbers:
        return method or Method(*((numbers,) if numbers else ()))
    if (pair := PAIRED.get((method.format, numbers))) is None:
        return Method(numbers)
    return Method(pair, tuple(each for each in method.parameters if each[0] in FORMATS[pair].parameters))


def weights(model: Operator):
    """The arrays of every weight but tables."""
    return [weight_and_bias(node)[0] for factor in [*factors(model)][1:] for node, _ in matrices(factor)]


def apart(one: Outcome, other: Outcome) -> Outcome:
    """What both would come to if neither knew of the other."""
    return Outcome(
        one.seconds * other.seconds,
        one.bytes * other.bytes,
        float(np.hypot(one.error, other.error)),
        one.cosine + other.cosine,
        one.spearman + other.spearman,
    )


def shown(found: Outcome) -> list[str]:
    return [
        f"{found.seconds:.2f}",
        f"{found.bytes:.2f}",
        f"{100 * found.error:.3g} %",
        f"{found.cosine:.4f}",
        f"{found.spearman:.2f}",
    ]


def between(together: list[str], alone: list[str]) -> list[str]:
    return [f"{one} ({other})" for one, other in zip(together, alone, strict=True)]


def interactions_figures(alone: dict[str, Outcome], rows: dict[tuple[str, str], Outcome]) -> list[Figure]:
    """How far pairs are from what their techniques come to apart."""
    both = [(found, apart(alone[first], alone[second])) for (first, second), found in rows.items()]
    swapped = [
        (found, rows[second, first])
        for (first, second), found in rows.items()
        if (second, first) in rows and first < second
    ]
    from scipy.stats import spearmanr

    errors = [[each.error for each in column] for column in zip(*both, strict=True)]
    return [
        Figure(
            "time together over the product apart, median",
            median(found.seconds / alone.seconds for found, alone in both),
        ),
        Figure(
            "memory together over the product apart, median", median(found.bytes / alone.bytes for found, alone in both)
        ),
        Figure(
            "error together over the root of the sum of squares apart, median",
            median(found.error / alone.error for found, alone in both),
        ),
        Figure("rank correlation of errors together with those sums", float(spearmanr(*errors).statistic)),
        Figure(
            "share of pairs that lose less cosine than the sum",
            float(np.mean([found.cosine < alone.cosine for found, alone in both])),
        ),
        Figure(
            "cosine lost in one order over the other, at most",
            max((max(a.cosine / b.cosine, b.cosine / a.cosine) for a, b in swapped), default=None),
        ),
    ]


if __name__ == "__main__":
    command.run_parts(measure_composition, measure_interactions)
