"""Random operators, terms, models and laws, and what search, proofs and checks make of them."""

from __future__ import annotations

import re
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from lib import command
from lib.command import Figure, Parser, concluded, count, followed, listed, named, say, tabled, takes, whole

import numpy as np
from judge import AXIOMS, TRIED, Verdict, judge
from law_mutants import Mutant, kernel_mutants, mutants
from planted_equalities import LAWS, list_planted
from poisoned import poison
from proof_pairs import tabulated
from random_models import random_config, random_weights
from random_operators import Drawn, degenerate_operator, random_operator
from random_programs import Anything
from stated_equations import FALSE, TRUE
from true_laws import TRUE_LAWS

from formats.core.errors import InputError
from opmatrix.algebra.batch.extents import collect_needs, counted
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.routes import noted
from opmatrix.display.tables import table
from opmatrix.models import build
from opmatrix.runtime.pricing import datasheet
from opmatrix.runtime.program import Program
from rewrites.discovery.stated_laws import judge as judge_law
from rewrites.egraph.layers import outputs
from rewrites.explain.exploring.exploration import explore
from rewrites.extraction import Infeasible
from rewrites.laws import EXACT_LAWS, without
from rewrites.laws.implementation import implementations
from rewrites.laws.law import Law
from rewrites.proofs.equations import prove
from rewrites.run import optimize
from rewrites.search.search import search
from rewrites.verify.routed import Reference

# ---- drawn

FRESH = 48  # sentences of a batch that no program has seen
NEAR, ROUGH = 1e-5, 30.0  # relative; times what the model itself rounds in float32
DRAWN_BAD = "wrong", "fault"
OUTCOMES = "right", "beyond", "refused", *DRAWN_BAD
DRAWN_COLUMNS = ("seed", "error", "door", "outcome", "seconds", "programs", "said")


class Outcome(NamedTuple):
    """Outcome of the operator of a seed, within an error, through a door, and how many programs that gave."""

    seed: int
    error: float | None
    door: str
    outcome: str
    seconds: float
    programs: int
    said: str

    @property
    def case(self) -> str:
        return f"seed {self.seed}, {self.door}, error {self.error}"


class Exact(NamedTuple):
    """A program that is no point of a front: nothing is approximated."""

    name: str
    program: Program
    methods: tuple = ()
    stated_error: float = 0.0


@cache
def machine():
    """As `optimize` prices for, once a process."""
    from opmatrix.runtime.pricing import this_machine

    return this_machine(lambda *done: None)


def know_laws() -> None:
    """From here on the laws alone, which no operator changes, are verified once."""
    from rewrites import verify

    found = cache(verify.verify_laws)
    verify.verify_laws = lambda laws, **told: dict(found(tuple(laws)))


def through_explore(drawn: Drawn, error: float | None) -> list[Exact]:
    """The best program, where prices are random."""
    return [Exact("best", explore(drawn.model, drawn.batch(0), machine=random_machine(drawn)).best)]


def through_search(drawn: Drawn, error: float | None) -> list[Exact]:
    """The searched program, where prices are random."""
    extents = drawn.batch(0).extents(*collect_needs(*outputs(drawn.model).values()))
    return [Exact("searched", search(drawn.model, EXACT_LAWS, random_machine(drawn), extents).program({})[0])]


def through_files(drawn: Drawn, error: float | None) -> list[Exact]:
    """The searched program, saved and loaded."""
    [searched] = through_search(drawn, error)
    with tempfile.TemporaryDirectory() as folder:
        searched.program.save(Path(folder) / "program")
        return [Exact("saved", Program.load(Path(folder) / "program", copy=True))]


def through_optimize(drawn: Drawn, error: float | None) -> list:
    """All programs of the front."""
    result = optimize(drawn.model, workload=drawn.batch(0), error=error, machine=machine(), rounds=1)
    return [*result.points]


def random_machine(drawn: Drawn) -> Anything:
    """A machine of random prices, the same for an operator each time."""
    return Anything(np.random.default_rng([drawn.seed, 3]))


DOORS: dict[str, Callable[[Drawn, float | None], list]] = {
    "explore": through_explore,
    "search": through_search,
    "saved": through_files,
    "optimize": through_optimize,
}


def drawn_judge(
    seed: int, error: float | None, draw: Callable[[int], Drawn] = random_operator, door: str = "optimize"
) -> Outcome:
    """The operator of a seed through a door."""
    start, programs = time.perf_counter(), 0
    drawn = draw(seed)
    with np.errstate(all="ignore"):
        try:
            points = DOORS[door](drawn, error)
            programs = len(points)
            outcome, said = max(
                (compared(drawn, point) for point in points), key=lambda found: OUTCOMES.index(found[0])
            )
        except (InputError, Infeasible) as refused:
            outcome, said = "refused", str(refused)
        except Exception as fault:
            place = traceback.extract_tb(fault.__traceback__)[-1]
            outcome = "fault"
            said = f"{type(fault).__name__}: {fault} ({place.filename.rpartition('/')[2]}:{place.lineno} {place.name})"
    return Outcome(seed, error, door, outcome, time.perf_counter() - start, programs, " ".join(said.split()))


def compared(drawn: Drawn, point) -> tuple[str, str]:
    """A program of the front on inputs that it has not seen: those of a batch of which nothing is stated for others are
    its own, where it is no exact one."""
    own = drawn.batch(0)
    batch = own if own.alone and point.methods else drawn.batch(1, None if own.alone else FRESH)
    (given, taken), found = noted(partial(point.program.run_all, batch)), ("right", "")
    for name, term in outputs(drawn.model).items():  # of several heads side by side
        wanted, _, _ = Reference(partial(dense, term, batch)).beside(taken)  # where rows go as they went there
        sure = np.isfinite(wanted)  # of what is no number nothing is right or wrong
        size, off = (np.linalg.norm(each[sure]) for each in (wanted, given[name].reshape(wanted.shape) - wanted))
        if point.methods:
            most, worst = point.stated_error * size, 2 * point.stated_error * size
        else:
            rough = np.linalg.norm((dense(term, batch, dtype=np.float32) - wanted)[sure])
            most = worst = max(NEAR * size, ROUGH * rough)
        if not off <= most:
            kind = "beyond" if off <= worst else "wrong"
            found = max(
                found,
                (kind, f"{point.name}: {name} is off by {off:.3g}, at most {most:.3g} of {size:.3g}"),
                key=lambda each: OUTCOMES.index(each[0]),
            )
    return found


def drawn_one(at: int, seed: int) -> Outcome:
    """Through `optimize`, by turns exact and not."""
    return drawn_judge(seed + at, None if at % 2 else 0.0)


def through_doors(at: int, seed: int, draw: Callable[[int], Drawn], doors: Iterable[str]) -> list[Outcome]:
    """An operator through each door, by turns exact and not."""
    return [drawn_judge(seed + at, None if at % 2 else 0.0, draw, door) for door in doors]


def begin_process() -> None:
    """Verify laws and poison memory, before a process judges operators."""
    know_laws()
    poison(SimpleNamespace(setattr=setattr))


def drawn_judged(many: int, judge_one: Callable[[int], list[Outcome]], processes: int) -> Iterator[Outcome]:
    """The outcomes of so many operators."""
    if processes == 1:
        begin_process()
        for at in range(many):
            yield from judge_one(at)
    else:
        with ProcessPoolExecutor(processes, initializer=begin_process) as pool:
            for found in pool.map(judge_one, range(many), chunksize=4):
                yield from found


def drawn_table(found: Iterable[Outcome]) -> list[str]:
    """Lines: how many there were of each outcome through each door, refusals and what must not be by what they say."""
    found = [*found]
    counts = Counter((each.door, each.outcome) for each in found)
    doors = dict.fromkeys(each.door for each in found)
    lines = [f"{door:>10}" + "".join(f"{counts[door, outcome]:>6} {outcome}" for outcome in OUTCOMES) for door in doors]
    said = Counter(
        (each.outcome, re.sub(r"\d[\d.e+-]*", "#", each.said)[:110]) for each in found if each.outcome != "right"
    )
    return lines + [f"{count:>6} {outcome}: {words}" for (outcome, words), count in sorted(said.items())]


def measure_drawn() -> int:
    """Send random operators through the whole of `optimize`, and judge the programs of their fronts.

        python benchmarks/fuzz.py drawn [--count 2000] [--seed 0] [--processes 2] [--csv OUT]
        python benchmarks/fuzz.py drawn --degenerate [--count 3000] [--doors explore,search,saved,optimize]
                [--seed 0]

    The operators are those of tests/support/random_operators.py: all kinds, monoids, relations and patterns, with
    weights of zeros, arrays that are equal or have one name, sentences of one token, several outputs. Each is made
    cheapest for its batch, by turns exactly and with what `optimize` allows by itself, with nothing left out but
    rounds of measuring, and that laws alone, which are the same for all, are verified once a process. `right`:
    every program of the front gives what the model gives in float64, for inputs that it has not seen: an exact one
    as nearly as the model read in float32 (or to 1e-5), others as nearly as is stated. `beyond`: an approximate
    program was off by up to twice what is stated, which is a statistic. `refused`: an InputError, listed by what it
    says. What must not be: `wrong` (any other number), `fault` (any other exception).

    `--degenerate` draws identities, constants, aliases, one column, outputs that are inputs or one another.
    `--doors` says what they go through: `explore` and `search` on a machine of random prices, on which any program
    may be the cheapest; `saved`, the searched program once more, saved and loaded; `optimize`. Memory is poisoned
    before each run."""
    parser = Parser(measure_drawn)
    parser.add_argument("--count", type=count, default=2000, help="operators")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--degenerate", action="store_true", help="identities, constants, aliases, shared outputs")
    parser.add_argument("--doors", type=listed, default=["optimize"], help=f"of {', '.join(DOORS)}")
    options = parser.parse_args()
    named("doors", options.doors, DOORS)
    takes(10 + 4 * options.count * len(options.doors) / options.processes)
    draw = degenerate_operator if options.degenerate else random_operator
    judge_one = partial(through_doors, seed=options.seed, draw=draw, doors=options.doors)
    found = followed(drawn_judged(options.count, judge_one, options.processes), "operators", DRAWN_BAD)
    for line in drawn_table(found):
        print(line)
    tabled(options.csv, [DRAWN_COLUMNS, *found])
    counts = Counter(each.outcome for each in found)
    print(f"{counts['wrong']} wrong, {counts['fault']} faults of {options.count} operators")
    figures = [Figure(f"{kind} of {options.count} operators", counts[kind], most=0) for kind in DRAWN_BAD]
    figures += [Figure("seconds of one, at the median", float(np.median([each.seconds for each in found])), "s")]
    concluded(options, figures)
    return int(any(counts[kind] for kind in DRAWN_BAD))


# ---- proofs

SHARE = 100  # pairs that a process judges before it tells
VERDICTS = "proved", "refuted", "not found", "fault"
STATED_COLUMNS = "equation", "true", "verdict", "seconds", "by"
PROOFS_COLUMNS = ("pair", "pairs", *VERDICTS, "false")


def judge_stated() -> list[tuple[str | float, ...]]:
    """A row for each equation: its name, whether it is true, the verdict, seconds, what it was proved or tried by."""
    rows: list[tuple[str | float, ...]] = []
    for true, equations in ((True, TRUE), (False, FALSE)):
        for name, (left, right) in equations.items():
            start = time.process_time()
            proof = prove(left, right)
            ways = proof.tried[-1:] if proof else proof.tried
            rows.append(
                (
                    name,
                    str(true).lower(),
                    proof.verdict,
                    round(time.process_time() - start, 3),
                    ", ".join(each.way for each in ways),
                )
            )
    return rows


def figures_of(rows: list[tuple[str | float, ...]]) -> list[Figure]:
    """Count equations that met the verdict that they should, and those that met a false one."""
    counts = Counter((true, verdict) for _, true, verdict, *_ in rows)
    total = Counter(true for _, true, *_ in rows)
    return [
        Figure(f"true equations proved, of {total['true']}", counts["true", "proved"], least=0.9 * total["true"]),
        Figure(
            f"false equations refuted, of {total['false']}", counts["false", "refuted"], least=0.95 * total["false"]
        ),
        Figure("equations judged falsely", counts["true", "refuted"] + counts["false", "proved"], most=0),
    ]


def show_stated(rows: list[tuple[str | float, ...]]) -> None:
    """A line for each equation."""
    for name, true, verdict, seconds, ways in rows:
        print(f"{name:<44}{true:>6}  {verdict:<10}{seconds:>8}  {ways}")


def measure(pairs: int, processes: int, seed: int) -> tuple[Counter[tuple[str, str]], dict[int, str]]:
    """How many pairs of each kind met each verdict, and by its number what is wrong with a pair; these are printed as
    they come. Processes begin anew: a fork of one that has used egglog lacks its threads, and waits for them for
    ever."""
    counts, wrong = Counter[tuple[str, str]](), dict[int, str]()
    shares = [range(low, min(low + SHARE, seed + pairs)) for low in range(seed, seed + pairs, SHARE)]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for number, (found, said) in enumerate(pool.map(tabulated, shares), 1):
            counts += found
            wrong |= said
            for at, words in said.items():
                print(f"pair {at}: {words}", flush=True)
            if number % 10 == 0:
                say(f"{number * SHARE} pairs")
    return counts, wrong


def proofs_table(counts: Counter[tuple[str, str]], wrong: dict[int, str]) -> list[tuple[str | int, ...]]:
    """A row for each way in which pairs are made, and their sum."""
    false = Counter(words.partition(": ")[0] for words in wrong.values())
    rows: list[tuple[str | int, ...]] = [
        (
            how,
            sum(counts[how, verdict] for verdict in VERDICTS),
            *(counts[how, verdict] for verdict in VERDICTS),
            false[how],
        )
        for how in sorted({how for how, _ in counts})
    ]
    columns = list(zip(*rows, strict=True))[1:]
    return [*rows, ("all", *(sum(map(int, column)) for column in columns))]


def measure_proofs() -> int:
    """Judge the answers of `prove`, for stated equations and random pairs of terms.

        python benchmarks/fuzz.py proofs [--stated] [--count 10000] [--processes 2] [--seed 0] [--csv OUT]

    The equations of tests/support/stated_equations.py come first, over the whole algebra, true ones and near
    misses: each with the verdict, the processor's seconds, and what proved it. With `--stated` they are all, and
    the table is theirs.

    A pair is a term and what becomes of it by identities of the algebra, or by one change besides, as
    tests/support/proof_pairs.py makes them: monoids, patterns, functions, tables and symbols of one name that are
    not one thing; numbers that cancel; tokens, positions, relations and inputs that a batch gives. What is proved
    is evaluated with 150 digits at a random input, what is refuted at the place that the refutation names: a proof
    is false where finite entries differ there, a refutation where they do not, or where the pair was made by
    identities alone. What raises is a fault."""
    parser = Parser(measure_proofs)
    parser.add_argument("--count", type=count, default=10_000)
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--seed", type=whole, default=0)
    parser.add_argument("--stated", action="store_true", help="the equations alone, no random pairs")
    options = parser.parse_args()
    takes(60)
    stated = judge_stated()
    show_stated(stated)
    if options.stated:
        tabled(options.csv, [STATED_COLUMNS, *stated])
        concluded(options, figures := figures_of(stated))
        return int(any(figure.verdict == "missed" for figure in figures))
    takes(5 + 0.08 * options.count * 2 / options.processes)
    start = time.perf_counter()
    counts, wrong = measure(options.count, options.processes, options.seed)
    rows = proofs_table(counts, wrong)
    for how, *cells in (PROOFS_COLUMNS, *rows):
        print(f"{how:<20}" + "".join(f"{cell:>11}" for cell in cells))
    print(f"{time.perf_counter() - start:.0f} s")
    tabled(options.csv, [PROOFS_COLUMNS, *rows])
    said = [words.partition(": ")[2] for words in wrong.values()]
    judged = [
        Figure(f"{what} of {options.count} pairs", sum(each.startswith(begins) for each in said), most=0)
        for what, begins in (("false proofs", "false proof"), ("false refutations", "false refutation"), ("faults", ""))
    ]
    concluded(options, [*figures_of(stated), *judged])
    return int(bool(wrong))


# ---- mutants

MUTANTS_COLUMNS = ("kind", "mutants", "law", "e-class", "equal", "tried", "survivors")


def mutants_table(verdicts: list[Verdict]) -> list[tuple[str | int, ...]]:
    """A row for each kind of mutant, and their sum."""
    counts = {kind: Counter[str]() for kind in (*sorted({v.mutant.kind for v in verdicts}), "all")}
    for v in verdicts:
        for kind in (v.mutant.kind, "all"):
            counts[kind] += Counter(
                {
                    "mutants": 1,
                    "law": v.law,
                    "e-class": v.graph,
                    "equal": v.equal == AXIOMS,
                    "tried": v.equal == TRIED,
                    "survivors": v.survived,
                }
            )
    return [(kind, *(count[column] for column in MUTANTS_COLUMNS[1:])) for kind, count in counts.items()]


def show(name: str, verdicts: list[Verdict], seconds: float, listed: bool) -> list[tuple[str | int, ...]]:
    rows = mutants_table(verdicts)
    print(f"{name}: {len(verdicts)} mutants, {seconds:.1f} s")
    for row in (MUTANTS_COLUMNS, *rows):
        print("  " + "".join(f"{cell:>12}" for cell in row))
    for v in verdicts:
        if v.survived or (listed and v.equal):
            print(f"  {'SURVIVED' if v.survived else 'equal'}: {v.mutant}" + (f" ({v.equal})" if v.equal else ""))
    return [(name, *row) for row in rows]


MADE = {"exact": partial(mutants, EXACT_LAWS), "kernels": partial(kernel_mutants, [*implementations()])}


@cache
def made(name: str) -> list[Mutant]:
    """All mutants of these: a process makes them itself, as they hold functions."""
    return list(MADE[name]())


def mutants_one(name: str, at: int) -> tuple[bool, bool, str]:
    """What becomes of a mutant: a verdict without the mutant."""
    verdict = judge(made(name)[at])
    return verdict.law, verdict.graph, verdict.equal


def mutants_judged(name: str, processes: int, every: int) -> tuple[list[Verdict], float]:
    """The verdicts on each so many mutants, and the seconds that it took."""
    start, places = time.perf_counter(), range(0, len(made(name)), every)
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(processes) as pool:
        for at, found in zip(places, pool.map(partial(mutants_one, name), places, chunksize=20), strict=True):
            verdicts.append(Verdict(made(name)[at], *found))
            if len(verdicts) % 200 == 0:
                say(f"{name}: {len(verdicts)} of {len(places)}")
    return verdicts, time.perf_counter() - start


def measure_mutants() -> int:
    """Judge mutants of every law: count those that the checks name, that are proved equal, that survive.

        python benchmarks/fuzz.py mutants [--csv OUT] [--only exact|kernels] [--list] [--processes 2] [--every 1]

    A mutant is a law with one thing changed: a guard dropped, operands exchanged, a transpose, sign or scale put in
    or left out, the order of a composition, an index, a term. `law` is how many fail alone on random operators,
    `e-class` how many are named in a graph that starts from their own left side, `equal` how many no check names
    because both sides are proved to be one, `tried` how many of the kernels lack a guard without which their term
    was still computed, with numbers. Those of the kernels are thousands and take minutes; --every 10 judges each
    tenth."""
    parser = Parser(measure_mutants)
    parser.add_argument("--only", choices=("exact", "kernels"))
    parser.add_argument("--list", action="store_true", help="list what is equal, and why")
    parser.add_argument("--processes", type=count, default=2)
    parser.add_argument("--every", type=count, default=1, metavar="N", help="judge each N-th mutant")
    options = parser.parse_args()
    takes(5 + 270 * 2 / options.processes / options.every)
    rows, survivors = [], 0
    for name in MADE:
        if options.only not in (None, name):
            continue
        verdicts, seconds = mutants_judged(name, options.processes, options.every)
        survivors += sum(v.survived for v in verdicts)
        rows += show(name, verdicts, seconds, options.list)
    tabled(options.csv, [("laws", *MUTANTS_COLUMNS), *rows])
    judged_in_all = sum(row[2] for row in rows if row[1] == "all")
    concluded(options, [Figure(f"survivors of {judged_in_all} mutants", survivors, most=0)])
    return int(bool(survivors))


# ---- own_laws

SAME = 1e-9  # relative: what sums of prices round
ALL = "all together"
OWN_LAWS_BAD = "dearer", "wrong", "fault"


class WithLaw(NamedTuple):
    """Seconds of a seed's program with a law, over those without, less 1."""

    seed: int
    law: str
    outcome: str
    change: float
    seconds: float
    said: str

    @property
    def case(self) -> str:
        return f"seed {self.seed}, {self.law}"


class Point(NamedTuple):
    """A program as `drawn.compared` looks at one."""

    name: str
    program: Program
    methods: tuple[()] = ()


def with_laws(seed: int, laws: Sequence[Law], machine: object) -> Iterator[WithLaw]:
    """The operator of a seed: what each law changes, and all of them."""
    drawn = random_operator(seed)
    extents = drawn.batch(0).extents(*collect_needs(*outputs(drawn.model).values()))
    find = partial(search, drawn.model, machine=machine, extents=extents)
    try:
        before = find(laws=EXACT_LAWS)
    except (InputError, Infeasible) as error:
        yield WithLaw(seed, "", "refused", 0.0, 0.0, str(error))
        return
    plain = str(before.program({})[0])
    for name, added in [*((law.name, (law,)) for law in laws), (ALL, tuple(laws))]:
        start = time.perf_counter()
        change, outcome, said = 0.0, "same", ""
        try:
            found = find(laws=(*EXACT_LAWS, *added))
            change, said = found.time / before.time - 1, "; ".join(found.cut)
            program = found.program({})[0]
            if str(program) != plain:
                right, off = compared(drawn, Point(name, program))
                outcome = "cheaper" if change < -SAME else "as dear"
                if right != "right":
                    outcome, said = "wrong", off
            if change > SAME:
                outcome = "dearer"
        except Exception as fault:
            outcome, said = "fault", f"{type(fault).__name__}: {fault} {traceback.extract_tb(fault.__traceback__)[-1]}"
        yield WithLaw(seed, name, outcome, change, time.perf_counter() - start, " ".join(said.split()))


def measure_own_laws() -> int:
    """Measure whether a law of the user's own is in the way: random operators, each searched without and with true
    laws.

        python benchmarks/fuzz.py own_laws [--count 500] [--seed 0] [--laws NAME ...] [--machine A100] [--csv OUT]

    Operators are of tests/support/random_operators.py, the twenty laws of tests/support/true_laws.py: laws that pay
    and that do not, that subsume what is cheaper, that never end. Each is added alone to the laws of the search,
    then all of them together; prices are a data sheet's, so nothing of this machine counts. `dearer`: the program
    with the law is predicted to take more than without. `wrong`: a program that a law changed gives other numbers
    than the model in float64. `fault`: any exception that is no InputError. None of them may be."""
    parser = Parser(measure_own_laws)
    parser.add_argument("--count", type=count, default=500, help="operators")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument(
        "--laws", nargs="*", default=[law.name for law in TRUE_LAWS], help="of tests/support/true_laws.py"
    )
    parser.add_argument("--machine", default="A100", help="a data sheet")
    given = parser.parse_args()
    machine, laws = datasheet(given.machine), [law for law in TRUE_LAWS if law.name in given.laws]
    takes(15 * given.count)
    seeds = range(given.seed, given.seed + given.count)
    rows = followed((row for seed in seeds for row in with_laws(seed, laws, machine)), "searches", OWN_LAWS_BAD)
    shown = []
    for law in [*(law.name for law in laws), ALL]:
        own = [row for row in rows if row.law == law]
        counts = [
            sum(row.outcome == outcome for row in own) for outcome in ("same", "as dear", "cheaper", *OWN_LAWS_BAD)
        ]
        shown.append(
            [
                law,
                *map(str, counts),
                f"{np.median([row.seconds for row in own] or [0]):.2f}",
                f"{min((row.change for row in own), default=0):.1%}",
            ]
        )
    print(table(shown, ["law", "same", "as dear", "cheaper", *OWN_LAWS_BAD, "s", "best"]))
    tabled(given.csv, [WithLaw._fields, *rows])
    refused = sum(row.outcome == "refused" for row in rows)
    figures = [
        Figure(f"programs of {len(rows)} that are {kind}", sum(row.outcome == kind for row in rows), most=0)
        for kind in OWN_LAWS_BAD
    ]
    concluded(given, [*figures, Figure("operators refused", refused)])
    return int(any(row.outcome in OWN_LAWS_BAD for row in rows))


# ---- laws_left_out

LENGTHS = 24, 1, 7


class LeftOut(NamedTuple):
    """What a model's program takes without a law, over what it takes with all, less 1."""

    seed: int
    law: str
    change: float


def left_out(seed: int, machine: object) -> Iterator[LeftOut]:
    """Each law that fired for the model of a seed."""
    config = random_config(np.random.default_rng(seed))
    model = build(config, random_weights(config, np.random.default_rng(seed)))
    extents = counted([*LENGTHS], collect_needs(model)[0])
    every = search(model, EXACT_LAWS, machine, extents)
    for law in sorted(every.fired):
        found = search(model, without(EXACT_LAWS, [law]), machine, extents)
        yield LeftOut(seed, law, found.time / every.time - 1)


def measure_laws_left_out() -> int:
    """Look for laws that are in the way: search random transformers anew with each law that fired left out.

        python benchmarks/fuzz.py laws_left_out [--count 20] [--seed 0] [--machine A100] [--csv OUT]

    Models are of tests/support/random_models.py: shared keys, biases, gates, norms, windows; prices are a data
    sheet's, so nothing of this machine counts. With all laws no program may be dearer than without one: what is,
    hides another form, by its phase or by what it subsumes."""
    parser = Parser(measure_laws_left_out)
    parser.add_argument("--count", type=count, default=20, help="models")
    parser.add_argument("--seed", type=whole, default=0, help="of the first; the others follow")
    parser.add_argument("--machine", default="A100", help="a data sheet")
    given = parser.parse_args()
    machine, rows = datasheet(given.machine), list[LeftOut]()
    takes(12 * given.count)
    for seed in range(given.seed, given.seed + given.count):
        rows += left_out(seed, machine)
        say(f"model {seed}: {sum(row.seed == seed for row in rows)} laws")
    hiding = [row for row in rows if row.change < -SAME]
    shown = [[str(row.seed), row.law, f"{row.change:.3%}"] for row in hiding]
    if shown:
        print(table(shown, ["model", "without", "takes"]))
    tabled(given.csv, [LeftOut._fields, *rows])
    concluded(given, [Figure(f"programs of {len(rows)} that are cheaper without a law", len(hiding), most=0)])
    return int(bool(hiding))


# ---- false_equalities

FALSE_COLUMNS = "law", "wrong", "refused", "trials", "because"


def judge_planted(at: int) -> list[tuple[str, str, bool, int, str]]:
    """Judge the false equalities that are planted in one law, as discovery judges what it finds."""
    rows = []
    for one in list_planted([LAWS[at]]):
        verdict = judge_law(one.law, 0)
        rows.append((one.law.name, one.wrong, bool(verdict.refuted), verdict.trials, verdict.refuted))
    return rows


def measure_false_equalities() -> int:
    """Plant false equalities in true laws, and judge each as discovery does: `python benchmarks/fuzz.py
    false_equalities [--every 1] [--processes 2] [--csv OUT]`.

    Each agrees with its law but at other sizes, beyond 30 columns, where two sizes are equal, at one row, at equal
    rows, in a row without keys, by a ten millionth, in a guard, or in the order of operands. Each is false: a trial at
    sizes that the judgement does not use shows it. `trials` agreed before one differed."""
    parser = Parser(measure_false_equalities)
    parser.add_argument("--every", type=count, default=1, metavar="N", help="plant in each N-th law")
    parser.add_argument("--processes", type=count, default=2)
    options = parser.parse_args()
    takes(5 + 300 * 2 / options.processes / options.every)
    rows = list[tuple[str, str, bool, int, str]]()
    with ProcessPoolExecutor(options.processes) as pool:
        for judged in pool.map(judge_planted, range(0, len(LAWS), options.every)):
            rows += judged
    kinds = Counter(wrong.split(",")[0] for _, wrong, *_ in rows)
    refused = Counter(wrong.split(",")[0] for _, wrong, done, *_ in rows if done)
    print(
        table([(kind, str(many), str(refused[kind])) for kind, many in kinds.items()], ["wrong", "planted", "refused"])
    )
    taken = [f"{law}: {wrong}" for law, wrong, done, *_ in rows if not done]
    print("\n".join(taken))
    tabled(options.csv, [FALSE_COLUMNS, *rows])
    concluded(options, [Figure(f"taken of {len(rows)} false equalities", len(taken), most=0)])
    return int(bool(taken))


if __name__ == "__main__":
    command.run_parts(
        measure_drawn,
        measure_proofs,
        measure_mutants,
        measure_own_laws,
        measure_laws_left_out,
        measure_false_equalities,
    )
