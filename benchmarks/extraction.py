"""Others' e-graphs, extracted, and others' equations, proved."""

from __future__ import annotations

import csv
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from lib import command, payoff, search_laws
from lib.command import Figure, Parser, concluded, count, folder, positive, readable, say, tabled, takes

import sympy
from xla_rules import OPEN, PROVED, REFUTED, RULES, SAME, SOURCE, UNSAID, RuleVerdict, judge_rule

from formats.core.errors import InputError
from formats.disk.files import read_text
from opmatrix.algebra.nodes import compose
from opmatrix.algebra.operators import I, product, relu, row, symbol, turn
from opmatrix.algebra.shapes import Shape, size
from opmatrix.algebra.term import Operator
from opmatrix.display.tables import table
from rewrites.discovery.written import restate
from rewrites.extraction import Extraction, Node, Problem, extract, read_problem, verify
from rewrites.laws import EXACT_LAWS
from rewrites.laws.kinds import left, right
from rewrites.laws.law import Law, find
from rewrites.laws.proving.value_kinds import below, unit
from rewrites.proofs.equations import Prover
from rewrites.proofs.refute import refute
from rewrites.verify.user_laws import load_laws

# ---- extraction


def far(random: Random, c: int, classes: int) -> Iterable[int]:
    """Any classes below."""
    return (random.randrange(c) for _ in range(random.randint(1, 3)))


def window(random: Random, c: int, classes: int) -> Iterable[int]:
    """The forty classes below: little is shared far apart, and no bound is tight."""
    return (random.randrange(max(0, c - 40), c) for _ in range(random.choice((1, 2, 2, 3))))


def layers(random: Random, c: int, classes: int) -> Iterable[int]:
    """Layers of twenty classes, each on the one below, as in networks."""
    start = max(0, c // 20 * 20 - 20)
    return (random.randrange(start, min(c, start + 20)) for _ in range(random.choice((1, 2, 2))))


def diamonds(random: Random, c: int, classes: int) -> Iterable[int]:
    """Two classes just below: chains of diamonds."""
    return (max(0, c - 1 - int(random.expovariate(0.3))) for _ in range(2))


def deep(random: Random, c: int, classes: int) -> Iterable[int]:
    """A tree with short cuts: many programs of equal cost."""
    return (
        (c // 2, c // 3)
        if random.random() < 0.2
        else (max(0, c - random.randint(1, 30)) for _ in range(random.randint(1, 2)))
    )


def cover(random: Random, c: int, classes: int) -> Iterable[int]:
    """The upper half of the classes needs some of the lower: a choice of what is shared, over and over."""
    return (random.randrange(classes // 2) for _ in range(random.choice((1, 2, 2)))) if c >= classes // 2 else ()


STRUCTURES = far, window, layers, diamonds, deep, cover
PRICES = lambda random: float(random.randint(1, 10)), lambda random: 10 * random.random(), lambda random: 1.0


def generated(nodes: int, structure: Callable[[Random, int, int], Iterable[int]], cyclic: bool, seed: int) -> Problem:
    """A random problem: four nodes a class; if cyclic, one child in ten is any class, so that most of it is one
    component."""
    random = Random(seed)
    classes = nodes // 4
    leaves = max(1, classes // 50)
    price = PRICES[seed % 3]
    out = []
    for i in range(nodes):
        c = i % classes
        children = [
            random.randrange(classes) if cyclic and i >= classes and random.random() < 0.1 else k
            for k in (structure(random, c, classes) if c >= leaves else ())
        ]
        out.append(Node(c, tuple(children), price(random)))
    roots = range(classes // 2, classes) if structure is cover else range(classes - 3, classes)
    return Problem(out, [*roots])


def problems(folder: Path | None, more: bool) -> Iterator[tuple[str, Problem]]:
    """The files of the folder, small ones first, then the generated graphs."""
    for path in sorted(folder.glob("**/*.json"), key=lambda path: path.stat().st_size) if folder else ():
        yield path.name, read_problem(path)
    for nodes in (2_000, 5_000, 10_000, 30_000) if more else ():
        for seed, (structure, cyclic) in enumerate(itertools.product(STRUCTURES, (False, True))):
            name = f"{structure.__name__}_{nodes}_{'cyclic' if cyclic else 'acyclic'}"
            yield name, generated(nodes, structure, cyclic, seed // 2)


def closed(answer: Extraction) -> float:
    """The part of the gap between greedy and bound that the answer closes."""
    gap = answer.greedy - answer.bound
    return (answer.greedy - answer.cost) / gap if gap > 1e-9 * answer.greedy else 1.0


def optima(folder: Path | None) -> dict[str, float]:
    """By file, where they are known."""
    if not folder or not (file := folder / "optima.csv").exists():
        return {}
    try:
        return {row["file"]: float(row["optimum"]) for row in csv.DictReader(read_text(file).splitlines())}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file}: columns file and optimum: {error}") from None


def asking(doc: str | None, seconds: float) -> Parser:
    """The options that say which graphs are extracted from, and for how long each."""
    parser = Parser(doc)
    parser.add_argument("folder", type=folder, nargs="?", metavar="DIR", help="folder of egraph-serialize JSON files")
    parser.add_argument("--time-limit", type=positive, default=seconds, metavar="S", help="seconds for each graph")
    parser.add_argument("--generated", action="store_true", help="also 2,000 to 30,000 nodes, generated")
    return parser


def measure_extraction() -> None:
    """Extract a folder of egraph-serialize JSON files, and generated graphs: cost, proved bound, greedy, seconds.

        python benchmarks/extraction.py DIR [--csv OUT] [--time-limit S] [--generated]

    Beside a file `optima.csv` (columns file, optimum) the costs are compared with the optima. Every answer is
    checked against the definition. `closed` is the part of the gap between greedy and bound that is closed; 1 where
    there is no gap."""
    parser = asking(measure_extraction, 10.0)
    options = parser.parse_args()
    if not options.folder and not options.generated:
        raise InputError("nothing to extract: give a folder, or --generated")
    takes(options.time_limit * (24 * options.generated + (options.folder is not None)) + 10)
    best, rows, proved, wrong = optima(options.folder), [], 0, []
    print(f"{'file':52} {'nodes':>6} {'cost':>12} {'bound':>12} {'greedy':>12} {'closed':>6} {'seconds':>8}")
    for name, problem in problems(options.folder, options.generated):
        answer = extract(problem, time_limit=options.time_limit)
        verify(problem, answer)
        proof = "proved" if answer.optimal else f"gap {answer.gap:.2%}"
        proved += answer.optimal
        if name in best and abs(answer.cost - best[name]) > 1e-6 * best[name]:
            wrong.append(name)
            proof += f", not the optimum {best[name]}"
        print(
            f"{name[-52:]:52} {len(problem.nodes):6} {answer.cost:12.6g} {answer.bound:12.6g} {answer.greedy:12.6g} "
            f"{closed(answer):6.2f} {answer.seconds:8.3f}  {proof}",
            flush=True,
        )
        rows.append([name, len(problem.nodes), answer.cost, answer.bound, answer.greedy, answer.seconds])
    tabled(options.csv, [["file", "nodes", "cost", "bound", "greedy", "seconds"], *rows])
    known = sum(row[0] in best for row in rows)
    concluded(
        options,
        [
            Figure(f"graphs of {len(rows)} solved with a proof", proved),
            Figure(
                f"costs of {known} that are not the known optimum",
                len(wrong) if known else None,
                most=0,
                why="the folder has no optima.csv",
            ),
            Figure("longest", max((row[5] for row in rows), default=None), "s"),
        ],
    )


# ---- peer_laws

ARITY = dict(In=1, MM=2, Add=2, Mul=2, S=2, T=1, Cat0=2, Cat1=2, Sp00=1, Sp01=1, Sp10=1, Sp11=1, Relu=1, Imm=0)
MEANING: dict[str, Callable[..., Any]] = dict(
    MM=product,
    Add=lambda a, b: a + b,
    Mul=lambda a, b: a * b,
    S=lambda a, s: compose(a, I * s),
    Cat0=below,
    Cat1=row,
    Relu=lambda a: compose(a, relu),
)
PARTS = left, right


def parse(text: str) -> Any:
    """An s-expression: nested tuples of names. Raises InputError where it is none of this vocabulary."""

    def read(at: int) -> tuple[Any, int]:
        if at + 1 >= len(tokens) or tokens[at] != "(" or tokens[at + 1] not in ARITY:
            raise InputError(
                f"{text}: at token {at + 1} stands {' '.join(tokens[at : at + 2]) or 'nothing'}, "
                f"not one of ({', ('.join(ARITY)}"
            )
        name, operands, at = tokens[at + 1], [], at + 2
        while at < len(tokens) and tokens[at] != ")":
            operand, at = read(at) if tokens[at] == "(" else (tokens[at].strip('"'), at + 1)
            operands.append(operand)
        if len(operands) != ARITY[name] or at >= len(tokens):
            raise InputError(f"{text}: {name} takes {ARITY[name]} operands, not {len(operands)}")
        if any(isinstance(operand, str) != (name == "In") for operand in operands):
            raise InputError(f"{text}: In takes a name, and {name} was given {operands}")
        return (name, *operands), at + 1

    tokens = re.findall(r'[()]|"[^"]*"|[^\s()]+', text)
    tree, end = read(0)
    if end != len(tokens):
        raise InputError(f"{text}: {' '.join(tokens[end:])} stands behind its end")
    return tree


class Sizes:
    """The most general sizes that fit. An axis is a free size, or a pair of axes where two blocks meet."""

    def __init__(self) -> None:
        self.bound: dict[int, Any] = {}
        self.made = 0

    def free(self) -> int:
        self.made += 1
        return self.made

    def found(self, axis: Any) -> Any:
        while axis in self.bound:
            axis = self.bound[axis]
        return axis

    def flat(self, axis: Any) -> tuple[int, ...]:
        """The free sizes whose sum it is."""
        axis = self.found(axis)
        return (axis,) if isinstance(axis, int) else self.flat(axis[0]) + self.flat(axis[1])

    def agree(self, a: Any, b: Any) -> None:
        """Makes two axes the same; blocks meet blocks. Raises InputError where no sizes do."""
        a, b = self.found(a), self.found(b)
        if a == b:
            return
        one, other = sorted((self.flat(a), self.flat(b)), key=len)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(self.flat(a[0])) == len(self.flat(b[0])):
            self.agree(a[0], b[0])
            self.agree(a[1], b[1])
        elif len(one) == 1 and one[0] not in other:
            self.bound[one[0]] = b if one == self.flat(a) else a
        elif len(one) == 1:
            raise InputError(f"no sizes fit: {len(other)} blocks of rows or columns would be as many as one of them")
        else:
            self.agree(one[0], other[0])
            self.agree(self.joined(one[1:]), self.joined(other[1:]))

    def joined(self, sizes: tuple[int, ...]) -> Any:
        return sizes[0] if len(sizes) == 1 else (sizes[0], self.joined(sizes[1:]))

    def halves(self, axis: Any) -> tuple[Any, Any]:
        """Where blocks meet; an axis without blocks gets two."""
        axis = self.found(axis)
        if isinstance(axis, int):
            self.bound[axis] = axis = (self.free(), self.free())
        return axis


Typed = tuple[Any, Any, Callable[[], Operator]]  # rows, columns, and the operator once all sizes are known


class Reader:
    """Both sides of one equation as operators of equal sizes."""

    def __init__(self) -> None:
        self.sizes, self.names = Sizes(), dict[int, sympy.Symbol]()
        self.inputs: dict[str, Any] = {}

    def sides(self, *texts: str) -> list[Operator]:
        """The operators. Raises InputError where a text is no equation side, or the two fit at no sizes."""
        read = [self.read(parse(text)) for text in texts]
        for rows, columns, _ in read[1:]:
            self.sizes.agree(read[0][0], rows)
            self.sizes.agree(read[0][1], columns)
        return [make() for _, _, make in read]

    def read(self, tree: Any) -> Typed:
        match tree:
            case ("In", name):
                rows, columns = self.input(name, (self.sizes.free(), self.sizes.free()))
                return rows, columns, lambda: symbol(name, None, Shape(1, self.size(rows), self.size(columns)))
            case ("Imm",):
                rows = self.sizes.free()
                return rows, rows, lambda: unit(self.like(rows))
            case ("S", a, b):
                (rows, columns, first), number = self.read(a), self.number(b)
                return rows, columns, lambda: MEANING["S"](first(), number)
            case (name, a):
                return self.unary(name, *self.read(a))
            case (name, a, b):
                return self.binary(name, self.read(a), self.read(b))
        raise InputError(f"{tree}: not a term")

    def unary(self, name: str, rows: Any, columns: Any, operand: Callable[[], Operator]) -> Typed:
        if name == "Relu":
            return rows, columns, lambda: MEANING[name](operand())
        if name == "T":
            return columns, rows, lambda: turn(operand())
        part, axis = int(name[2]), int(name[3])
        halves = self.sizes.halves((rows, columns)[axis])
        if axis:
            return rows, halves[part], lambda: PARTS[part](operand(), self.like(halves[0]))
        return halves[part], columns, lambda: turn(PARTS[part](turn(operand()), self.like(halves[0])))

    def binary(self, name: str, a: Typed, b: Typed) -> Typed:
        (rows, columns, first), (below, beside, last) = a, b
        axes = {"MM": [(columns, below)], "Cat0": [(columns, beside)], "Cat1": [(rows, below)]}
        for one, other in axes.get(name, [(rows, below), (columns, beside)]):
            self.sizes.agree(one, other)
        rows = (rows, below) if name == "Cat0" else rows
        columns = (columns, beside) if name == "Cat1" else beside if name == "MM" else columns
        return rows, columns, lambda: MEANING[name](first(), last())

    def number(self, tree: Any) -> Operator:
        """A number: the second operand of S. Products and sums of numbers are numbers."""
        match tree:
            case ("In", name):
                self.input(name, None)
                return symbol(name, None, 1, constant=True, uniform=True)
            case ("S" | "Mul", a, b):
                return self.number(a) * self.number(b)
            case ("Add", a, b):
                return self.number(a) + self.number(b)
        raise InputError(f"{tree}: the second operand of S is a number, not this")

    def input(self, name: str, axes: Any) -> Any:
        """The axes of an input, none where it is a number."""
        found = self.inputs.setdefault(name, axes)
        if (found is None) != (axes is None):
            raise InputError(f"{name} is a matrix in one place and a number in another")
        return found

    def size(self, axis: Any) -> Any:
        return sum(self.names.setdefault(one, size(f"n{len(self.names)}")) for one in self.sizes.flat(axis))

    def like(self, axis: Any) -> Operator:
        """Something with so many columns."""
        return symbol("columns", None, self.size(axis))


def equations(file: Path) -> Iterator[tuple[str, str, str]]:
    """Truth, left and right of every line."""
    rows = csv.DictReader(read_text(file).splitlines())
    if missing := {"truth", "lhs", "rhs"} - set(rows.fieldnames or ()):
        raise InputError(f"{file}: the columns {', '.join(sorted(missing))} are missing")
    yield from ((row["truth"] or "", row["lhs"] or "", row["rhs"] or "") for row in rows)


def judged(prover: Prover, lhs: str, rhs: str) -> tuple[bool, float, bool, str]:
    """Whether it is proved, the seconds of reading and proving, whether numbers refute it, and why nothing can be said
    if so."""
    start = time.perf_counter()
    try:
        sides = Reader().sides(lhs, rhs)
        proof = prover.prove(*sides)
    except InputError as error:
        return False, time.perf_counter() - start, False, str(error)
    seconds = time.perf_counter() - start
    return proof.proved, seconds, not proof and refute(*sides) is not None, proof.cut


def read_undirected(file: Path) -> list[Law]:
    """Return the laws of a file that discovery wrote, in both directions, without facts that only direct them. Raises
    InputError for a file that declares no law."""
    return [restate(law).undirected(law.name) for law in load_laws(file).laws]


def measure_peer_laws() -> None:
    """Prove others' equations by the laws of this project: `python benchmarks/extraction.py peer_laws FILE --csv OUT`.

    FILE has the columns truth, lhs, rhs. Sides are s-expressions over matrices of any sizes that fit: MM product,
    Add and Mul entry by entry, S times a number, T transpose, Cat0 and Cat1 rows above rows and columns beside
    columns, Sp<part><axis> a part of a concatenation, Relu, Imm the identity matrix, In an input. Proved: both
    sides end in one class of the e-graph (rewrites/proofs/equations.py). What is not proved is tried with numbers.
    With `--laws FOUND.py`, a file that `opmatrix discover --out` wrote, its laws are used in place of those of values,
    in both directions: what is proved then is derivable from what was found.
    OUT has the columns truth, lhs, rhs, proved, seconds (of one equation, read and proved), refuted."""
    parser = Parser(measure_peer_laws)
    parser.add_argument("file", type=readable)
    parser.add_argument("--laws", type=readable, metavar="FOUND.py", help="found laws, in place of those of values")
    options = parser.parse_args()
    takes(2 + 0.06 * sum(1 for _ in equations(options.file)))
    start = time.perf_counter()
    prover = Prover(read_undirected(options.laws)) if options.laws else Prover()
    rows, ready = [], time.perf_counter() - start
    for truth, lhs, rhs in equations(options.file):
        prover.refresh()  # what an engine costs belongs to no equation, but to all
        proved, seconds, refuted, why = judged(prover, lhs, rhs)
        rows.append((truth, lhs, rhs, proved, seconds, refuted))
        if not len(rows) % 100:
            say(f"{len(rows)} equations")
        if why or proved != (truth == "true"):
            print(f"{truth:20} {'proved' if proved else 'not proved':10} {lhs} = {rhs}{why and f': {why}'}")
    print(f"{'truth':20} {'equations':>9} {'proved':>6} {'refuted':>7} {'longest, ms':>11} {'in all, ms':>10}")
    for truth in dict.fromkeys(line[0] for line in rows):
        proved, seconds, refuted = zip(*(line[3:] for line in rows if line[0] == truth), strict=True)
        print(
            f"{truth:20} {len(proved):9} {sum(proved):6} {sum(refuted):7} {1e3 * max(seconds):11.1f} "
            f"{1e3 * sum(seconds):10.1f}"
        )
    print(f"{time.perf_counter() - start:.2f} s in all, {ready:.2f} s of it to read the laws")
    tabled(options.csv, [("truth", "lhs", "rhs", "proved", "seconds", "refuted"), *rows])
    true, other = [row[3] for row in rows if row[0] == "true"], [row[3] for row in rows if row[0] != "true"]
    concluded(
        options,
        [
            Figure(f"proved of {len(true)} that are true", sum(true)),
            Figure(f"proved of {len(other)} that are not", sum(other), most=0),
            Figure("true ones that numbers refute", sum(row[5] for row in rows if row[0] == "true"), most=0),
        ],
    )


# ---- xla_rules

XLA_COLUMNS = ("place", "rule", "verdict", "by, or missing", "neighbour", "seconds")


def measure_xla_rules() -> None:
    """Prove or refute the rules of XLA's algebraic simplifier, of matrices of any size: `python
    benchmarks/extraction.py xla_rules --csv OUT`.

    The rules, each with a false neighbour or with what this algebra lacks to say it, stand in
    tests/support/xla_rules.py. Sides that are one term here are `same term` and count as no proof."""
    parser = Parser(measure_xla_rules)
    parser.add_argument("--every", type=count, default=1, metavar="N", help="judge each N-th rule")
    options = parser.parse_args()
    takes(60 / options.every)
    print(SOURCE)
    judged, rows = list[RuleVerdict](), list[tuple[str, ...]]()
    for rule in RULES[:: options.every]:
        start = time.perf_counter()
        judged.append(verdict := judge_rule(rule))
        seconds = time.perf_counter() - start
        rows.append((rule.place, rule.says, verdict.verdict, verdict.by, verdict.near, f"{seconds:.2f}"))
    print(table(rows, XLA_COLUMNS, left=range(5)))
    tabled(options.csv, [XLA_COLUMNS, *rows])
    missing = Counter(one.by for one in judged if one.verdict == UNSAID)
    print(table([(what, str(rules)) for what, rules in missing.most_common()], ["missing", "rules"]))
    concluded(options, rule_figures(judged, options.every == 1))


def rule_figures(judged: list[RuleVerdict], all_of_them: bool) -> list[Figure]:
    """Count the rules by verdict, and false proofs. How many there are is judged if they are all."""
    counts = Counter(one.verdict for one in judged)
    near = Counter(one.near for one in judged)
    said = len(judged) - counts[UNSAID]
    false = counts[REFUTED] - sum(bool(one.rule.missing) and one.verdict == REFUTED for one in judged)
    return [
        Figure("rules listed", len(judged), least=100 if all_of_them else None),
        Figure(f"proved of {said} that can be said", counts[PROVED], least=40 if all_of_them else None),
        Figure("one term on both sides", counts[SAME]),
        Figure("refuted, as a guard is missing", counts[REFUTED] - false),
        Figure("refuted, and thought true", false, most=0),
        Figure("open", counts[OPEN]),
        Figure(f"false neighbours proved, of {said}", near[PROVED], most=0),
        Figure("false neighbours refuted", near[REFUTED]),
    ]


# ---- search_laws


def measure_search_laws() -> None:
    """Set the exact laws of the search beside what discovery finds: `python benchmarks/extraction.py search_laws
    --csv OUT`.

    Rounds of discovery are run that enumerate what these laws need, of at most 3 operators. A law is found, where a
    found law has its sides, follows from found laws in one graph, or is out of reach, and why; `axioms` says by what
    it is proved without any law of the search: its entries, or the laws of values. `guard` is its guard beside the
    widest that numbers do not refute, with one variable widened at a time."""
    parser = Parser(measure_search_laws)
    parser.add_argument("--rounds", type=count, default=len(search_laws.ROUNDS), metavar="N", help="run the first N")
    options = parser.parse_args()
    rounds = search_laws.ROUNDS[: options.rounds]
    takes(60 + 2 * len(rounds) ** 2)
    discovery = search_laws.discover(rounds, say)
    judged = [*search_laws.judge_laws(discovery.laws)]
    guards = [search_laws.compare_guard(one, find(EXACT_LAWS, one.name)) for one in judged]
    rows = [
        (one.name, str(one.operators), one.standing, one.axioms, *guard)
        for one, guard in zip(judged, guards, strict=True)
    ]
    print(table(rows, search_laws.COLUMNS, left=(0, 2, 3, 4, 5)))
    tabled(options.csv, [search_laws.COLUMNS, *rows])
    reached = [
        one for one in judged if one.standing.startswith(("found", "follows")) and "narrower" not in one.standing
    ]
    figures = [
        Figure(f"reached by {len(discovery.laws)} found laws, of {len(judged)}", len(reached)),
        Figure(
            "of enumerated kinds, and not reached in these rounds",
            sum(one.standing == search_laws.MISSED for one in judged),
        ),
        Figure("proved by axioms", sum(bool(one.axioms) for one in judged)),
        Figure("found laws that are proved", sum(bool(one.chain) for one in discovery.laws)),
        *guard_figures(guards),
    ]
    concluded(options, figures)


def guard_figures(guards: list[search_laws.ComparedGuard]) -> list[Figure]:
    """Count the guards that are equal, weaker, and tighter than truth needs, and those that are wrong."""
    kinds = Counter(one.words.split(" ")[0] for one in guards)
    reasons = sum(bool(one.reason) for one in guards)
    return [
        Figure("guards as wide as numbers allow", kinds[search_laws.EQUAL]),
        Figure("guards weaker than those found", kinds["weaker"]),
        Figure("guards that are tighter, with a reason", reasons),
        Figure("guards that are tighter, without a reason", kinds[search_laws.TIGHTER] - reasons, most=0),
        Figure("guards that are too weak", kinds["too"], most=0),
    ]


# ---- payoff

MEASURED_COLUMNS = "family", "law", "saved, predicted", "ms without", "ms with", "saved, measured", "quartiles", ""


def measure_payoff() -> None:
    """Print what laws that discovery finds save in the searches of families: `python benchmarks/extraction.py payoff
    --csv OUT`.

    Proved laws of a few rounds, without those whose sides cost the same on every machine, enter the search of each
    family, together and each alone. Predicted savings of time and stored bytes are ranked, the first ten are run, with
    and without the law in turn. Beside them stand the seconds and nodes that a law costs the search. Last comes what
    dominates each program: the shares of its kernels in the predicted time."""
    parser = Parser(measure_payoff)
    parser.add_argument("--families", type=command.listed, default=[*payoff.FAMILIES], help="bert,mixture, and others")
    parser.add_argument("--rounds", type=count, default=len(payoff.ROUNDS), metavar="N", help="run the first N")
    parser.add_argument("--runs", type=count, default=41, metavar="N", help="runs of each program that is measured")
    options = parser.parse_args()
    command.named("families", options.families, payoff.FAMILIES)
    rounds = payoff.ROUNDS[: options.rounds]
    takes(20 * len(rounds) + 60 * len(options.families))
    found = payoff.find_laws(rounds, say)
    paying = payoff.list_paying(found, say)
    say("\n".join(map(payoff.describe_found, paying)))
    candidates = list[payoff.Candidate]()
    for name in options.families:
        candidates += payoff.search_family(name, [one.law for one in paying])
        say(name)
    rows = [payoff.row_of(one) for one in candidates]
    print(table(rows, payoff.COLUMNS, left=(0, 1)))
    tabled(options.csv, [payoff.COLUMNS, *rows])
    measured = [(one, payoff.measure_candidate(one, options.runs)) for one in payoff.rank(candidates)[:10]]
    print(table([measured_row(*pair) for pair in measured], MEASURED_COLUMNS, left=(0, 1, 7)))
    print_dominating(candidates)
    concluded(options, payoff_figures(len(found), len(paying), measured))


def measured_row(one: payoff.Candidate, taken: payoff.Measured) -> tuple[str, ...]:
    """Return a row of what was predicted and measured."""
    return (
        one.family,
        one.payoff.law,
        f"{100 * one.payoff.saved:.2f} %",
        f"{1e3 * taken.without:.3f}",
        f"{1e3 * taken.including:.3f}",
        f"{100 * taken.saved:.1f} %",
        f"{100 * taken.low:.1f} to {100 * taken.high:.1f} %",
        "" if taken.beyond_noise else "below noise",
    )


def print_dominating(candidates: list[payoff.Candidate]) -> None:
    """Print the largest shares of kernels in the time of each family's program."""
    rows = []
    for one in {one.family: one for one in candidates}.values():
        shares = payoff.share_kernels(one.plain.structure)
        rows.append((one.family, ", ".join(f"{name} {100 * part:.0f} %" for name, part in [*shares.items()][:5])))
    print(table(rows, ["family", "shares of the predicted time"], left=(0, 1)))


def payoff_figures(found: int, paying: int, measured: list[tuple[payoff.Candidate, payoff.Measured]]) -> list[Figure]:
    """Count the laws, and those that save 3 % of predicted and of measured time."""
    best = [one for one, taken in measured if one.payoff.saved >= 0.03 and taken.saved >= 0.03 and taken.beyond_noise]
    return [
        Figure("proved laws, none of which follows from others", found),
        Figure("of these with sides of different prices", paying),
        Figure("savings measured", len(measured)),
        Figure("save 3 % of predicted and of measured time", len(best)),
    ]


if __name__ == "__main__":
    command.run_parts(measure_extraction, measure_peer_laws, measure_xla_rules, measure_search_laws, measure_payoff)
