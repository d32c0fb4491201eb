"""Equality by the laws: two operators are equal if both end in one class of the e-graph; no number is evaluated.

    proof = prove(product(turn(a), b), turn(product(turn(b), a)))

They are also equal if all their entries have one form, as polynomials of functions of polynomials
(rewrites/proofs/entry_forms.py). An equation that is not proved is tried with numbers (rewrites/proofs/refute.py): one
place where the two differ refutes it. If none is found, the question stays open: the laws may not suffice, or the
budget was spent; `tried` lists the attempts."""

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import sympy

from opmatrix.algebra import monoids
from opmatrix.algebra.shapes import H, N
from opmatrix.algebra.term import KINDS, Operator
from rewrites.egraph.egraph import ENGINES, SCHEDULE, EgglogEngine, engine, rules
from rewrites.egraph.template import Template, quoted, spell_values
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law
from rewrites.laws.proving import cancelling, values
from rewrites.laws.spelling import spelled
from rewrites.proofs.entry_proofs import compare_entries
from rewrites.proofs.reading import are_numbers, read_both
from rewrites.proofs.refute import TRIED_NUMBERS, Counterexample, refute

if TYPE_CHECKING:
    from egglog.bindings import _Command

PROOFS_PER_ENGINE = 100  # proofs per engine
UNREAD = "positions or sequences of picked rows are read, which laws of values do not cover"
BASE = 1 << 32  # above any number of equal sizes in a sum


def operands(node: str) -> str:
    """Return the conditions for the sizes of the operands of a node."""
    second = "(= k (tall b)) (= p (wide b))" if " b" in node else ""
    return f"(= m (tall a)) (= n (wide a)) {second}"


# Rows and columns of a class as whole numbers, from those of its parts: m by n and k by p. Spread values have none.
SIZED = {
    "add a b": ("(= m k) (= n p)", "m", "n"),
    "mul a b": ("(= m k) (= n p)", "m", "n"),
    "row a b": ("(= m k)", "m", "(+ n p)"),
    "below a b": ("(= n p)", "(+ m k)", "n"),
    "left a b": ("", "m", "p"),
    "right a b": ("", "m", "(- n p)"),
    'product a b "sum" w': ("", "m", "p"),
    "compose a f": ("(entrywise f)", "m", "n"),
    "turn a": ("", "n", "m"),
    "unit a": ("", "n", "n"),
}
DERIVED = {node.split()[0] for node in SIZED}
# Heads of a class: those of its parts, if these agree; and those before a function of entries.
AS_MANY = ("add a b", "mul a b", "row a b", "below a b", 'product a b "sum" w', "turn a")
ANY_HEADS = BASE  # heads of a node that keeps those of its input
FACTS = "\n".join(
    [
        *(f"(function {fact} (Op) BigInt :merge old)" for fact in ("tall", "wide", "deep")),
        *(
            f"(rule ((= e (K_{node})) (= h (deep a)) {'(= h (deep b))' if ' b' in node else ''}) ((set (deep e) h)) "
            ":ruleset facts)"
            for node in AS_MANY
        ),
        "(relation narrow (Op))",
        *(f'(rule ((= (deep e) (from-string "{heads}"))) ((narrow e)) :ruleset facts)' for heads in (1, ANY_HEADS)),
        "(rule ((= e (K_compose a f)) (entrywise f) (= h (deep a)) (= i (deep f)) (= i (from-string "
        f'"{ANY_HEADS}"))) ((set (deep e) h)) :ruleset facts)',
        *(
            f"(rule ((= e (K_{node})) {operands(node)} {where}) ((set (tall e) {rows}) (set (wide e) {columns})) "
            ":ruleset facts)"
            for node, (where, rows, columns) in SIZED.items()
        ),
    ]
)


def literal_facts(laws: Sequence[Law]) -> str:
    """Return the facts of the numbers that laws write: each has one column, and as many heads as its input."""
    written = {
        quoted(spelled(term.args[0]))
        for law in laws
        for side in law.sides()
        for root in side
        for term in root.walk()
        if term.kind.name == "const" and term.args[0].shape == (1,)
    }
    return "\n".join(
        f'(rule ((= e (K_{leaf}))) ({fact} (set (deep e) (from-string "{ANY_HEADS}"))) :ruleset facts)'
        for leaf, fact in (("I", ""), *((f"const {name}", "(column e)") for name in sorted(written)))
    )


ROUND = "(run-schedule (saturate (run facts))) (run {} 1) (print-size)"


@dataclass(frozen=True)
class Attempt:
    """One way in which a proof was tried, and its outcome."""

    way: str
    outcome: str = ""

    def __str__(self) -> str:
        return f"{self.way}{f' ({self.outcome})' if self.outcome else ''}"


@dataclass(frozen=True)
class Proof:
    """The outcome of a proof by laws: if it is `proved`; the matches of each rule; the number of nodes; the rule that
    was growing when the budget was spent; the seconds it took; a counterexample, if one was found; the attempts, the
    last of which proved it; and the next thing to try if all failed. Prints as `verdict` does, a refutation with the
    difference first."""

    proved: bool
    matches: dict[str, int]
    nodes: int
    cut: str
    seconds: float
    at: Counterexample | None = None
    tried: tuple[Attempt, ...] = ()
    next: str = ""

    def __bool__(self) -> bool:
        return self.proved

    @property
    def verdict(self) -> str:
        """The verdict: proved, refuted or not found."""
        return "proved" if self.proved else "refuted" if self.at else "not found"

    def __str__(self) -> str:
        if self.at:
            return f"refuted: {self.at}"
        if self.proved:
            return f"proved by {self.tried[-1]}" if self.tried else "proved"
        tried = f"; tried: {', '.join(map(str, self.tried))}" if self.tried else ""
        return f"not found{f': {self.cut}' if self.cut else ''}{tried}{f'; next: {self.next}' if self.next else ''}"


class Prover:
    """An engine that knows these laws. Every proof has a graph of its own."""

    def __init__(self, laws: Sequence[Law] = values.VALUE_LAWS) -> None:
        self.laws = tuple(laws)
        self.acts = any("act" in sort.facts for law in laws for sort in law.variables.values())
        self.renew()

    def renew(self) -> None:
        """Make a fresh engine: a proof was once missed after 399 others in one engine, never after a few."""
        used = {law.phase for law in self.laws}
        self.engine, self.proofs = engine((), later=self.laws), 0
        self.run("\n".join([FACTS, literal_facts(self.laws), *(rule for law in self.laws for rule in rules(law))]))
        self.phases = [
            self.engine.parse_program(ROUND.format(phase)) for phase in dict.fromkeys(SCHEDULE) if phase in used
        ]

    def refresh(self) -> None:
        """Make a fresh engine if this one has made enough proofs."""
        if self.proofs == PROOFS_PER_ENGINE:
            self.renew()

    def run(self, program: str) -> None:
        """Run commands of egglog."""
        self.engine.run_program(*self.engine.parse_program(program))

    def prove(self, left: Operator, right: Operator, budget: int = 3000) -> Proof:
        """Test if both end in one class before the graph has more nodes than the budget."""
        self.refresh()
        self.proofs += 1
        start, roots = time.perf_counter(), {"left": left, "right": right}
        template = spell_values(Template.of(roots, inputs(left, right) if self.acts else ()), self.laws)
        self.run("(push)\n" + add_sizes(template, roots).text)
        try:
            search = ProofSearch(self.engine, budget)
            search.saturate(self.phases)
            proved, growing = search.equal(), search.growing()
        finally:
            self.run("(pop)")
        return Proof(proved, dict(search.matches), search.nodes, "" if proved else growing, time.perf_counter() - start)


@dataclass
class ProofSearch:
    """One proof under way: matches by rule, nodes, and the largest number of nodes."""

    engine: EgglogEngine
    budget: int
    matches: Counter[str] = field(default_factory=Counter)
    nodes: int = 0

    def equal(self) -> bool:
        """True if both sides are in one class."""
        return bool(self.engine.lookup_function("$left", []) == self.engine.lookup_function("$right", []))

    def saturate(self, phases: "Sequence[Sequence[_Command]]") -> None:
        """Run rounds of the first phase that still changes the graph, until none does, both sides are equal, or the
        budget is spent."""
        at = 0
        while at < len(phases) and self.nodes <= self.budget and not self.equal():
            at = 0 if self.changed(phases[at]) else at + 1

    def changed(self, phase: "Sequence[_Command]") -> bool:
        """Run one round of a phase. True if it changes anything."""
        _, done, sizes = self.engine.run_program(*phase)
        self.matches.update(Counter({name: n for name, n in done.report.num_matches_per_rule.items() if n}))
        self.nodes = sum(count for name, count in sizes.sizes if name.startswith("K_"))
        return bool(done.report.updated)

    def growing(self) -> str:
        """Return the rule that was growing when the budget was spent, in words; empty if it was not spent."""
        most = max(self.matches, key=lambda name: self.matches[name], default="")
        return f"at {self.nodes} nodes {most} was growing" if self.nodes > self.budget else ""


def inputs(*terms: Operator) -> list[Operator]:
    """Return the leaves that are values of the input, for laws with the condition `act`."""
    return [leaf for term in terms for leaf in term.walk() if not (leaf.children or leaf.constant or leaf.linear)]


def add_sizes(template: Template, roots: dict[str, Operator]) -> Template:
    """Return the template of these operators, with the rows and columns that the engine does not derive itself."""
    codes: dict[Hashable, int | None] = {}
    powers, lines = {sympy.S.One: 0, H: 1}, []
    terms = dict.fromkeys(term for root in roots.values() for term in root.walk())
    for entry, term in zip(template.entries, terms, strict=True):
        sizes = () if is_derived(term) else (("tall", term.out.rows), ("wide", term.out.cols))
        for fact, size in (*sizes, ("deep", term.out.heads)):
            if size not in codes:
                codes[size] = encode_size(size, powers)
            if codes[size] is not None:
                lines.append(f'(set ({fact} {entry.name}) (from-string "{codes[size]}"))')
    return replace(template, text="\n".join([template.text, *lines]))


def is_derived(term: Operator) -> bool:
    """True if the engine derives its sizes from those of its parts, by SIZED."""
    match term.kind.name, term.args:
        case "compose", (_, f):
            return bool(f.entrywise)
        case "product", (_, _, over, _):
            return over is monoids.sum
    return term.kind.name in DERIVED


def encode_size(size: sympy.Expr | int, powers: dict[sympy.Expr, int]) -> int | None:
    """Return a size as a whole number, different for different sizes; None if it is not known."""
    expression = sympy.expand(size)
    if expression.has(N):
        return None
    terms = expression.as_coefficients_dict()
    if not all(count.is_Integer for count in terms.values()):
        terms = {expression: 1}
    return int(sum(int(count) * BASE ** powers.setdefault(one, len(powers)) for one, count in terms.items()))


@lru_cache(maxsize=4)
def prover(kinds: tuple[str, ...], laws: tuple[Law, ...], whose: object) -> Prover:
    """Return the engine of a thread that knows these laws and these kinds of node."""
    return Prover(laws)


def prove(left: Operator, right: Operator, budget: int = 3000, laws: Sequence[Law] | None = None) -> Proof:
    """Test if two operators are equal: proved if laws lead from one to the other before a graph has more nodes than
    the budget, or if all their entries have one form; refuted if numbers differ, else not found. Without `laws` these
    are tried in turn: the laws of values (`rewrites.laws.proving.values.VALUE_LAWS`), entries as polynomials, the laws
    of the search (`opmatrix.laws`), numbers, and the laws of values with laws of numbers that cancel. With `laws` all
    of them are tried, then the sets of them that the package has together, and all without subsuming terms, so that
    more laws lose no proof. Both sides are read at one unknown value. Raises TypeError for a side that is no operator.
    """
    for side, operand in (("left", left), ("right", right)):
        if not isinstance(operand, Operator):
            raise TypeError(
                f"prove: the {side} side is {operand!r}, not an operator: give terms, such as weight(A) @ relu"
            )
    return TriedEquation(left, right, budget).answer(tuple(laws) if laws is not None else None)


@dataclass
class TriedEquation:
    """One equation while it is tried in several ways."""

    left: Operator
    right: Operator
    budget: int
    tried: list[Attempt] = field(default_factory=list)
    first: Proof | None = None
    start: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.sides = read_both(self.left, self.right)

    def answer(self, laws: tuple[Law, ...] | None) -> Proof:
        """Return the first proof or refutation, or the failed attempts."""
        for way in self.ways() if laws is None else self.ways_of(laws):
            if (proof := way()) is not None:
                return proof
        proof = self.nothing()
        return self.finished(replace(proof, next=self.advise(proof, laws)))

    def nothing(self) -> Proof:
        """Return the outcome of the first laws tried, which is no proof."""
        return Proof(False, {}, 0, UNREAD, 0.0) if self.first is None else self.first

    def finished(self, proof: Proof) -> Proof:
        """Return a proof with all attempts and the seconds since the first."""
        return replace(proof, tried=tuple(self.tried), seconds=time.perf_counter() - self.start)

    def ways(self) -> list[Callable[[], Proof | None]]:
        """Return the ways to try in turn if no laws are passed."""
        if self.left is self.right or are_numbers(self.left, self.right):
            return [
                lambda: self.by("the laws of values", values.VALUE_LAWS),
                self.by_entries,
                lambda: self.by("the laws of the search", EXACT_LAWS),
                self.by_numbers,
                lambda: self.by(
                    "the laws of values and of numbers that cancel",  # last: its rounds grow where
                    values.VALUE_LAWS + cancelling.CANCELLING_LAWS,
                ),
            ]  # nothing cancels
        self.tried.append(Attempt("the laws of values", UNREAD))
        return [lambda: self.by("the laws of the search", EXACT_LAWS), self.by_numbers]

    def ways_of(self, laws: tuple[Law, ...]) -> list[Callable[[], Proof | None]]:
        """Return the ways to try with these laws."""
        parts = [(name, known) for name, known in LAW_SETS if {*known} < {*laws}]
        others = tuple(law for law in laws if not any(law in known for _, known in parts))
        parts += [("the laws that are given beside those", others)] if parts and others else []
        ways = [lambda: self.by("the laws that are given", laws)]
        ways += [partial(self.by, name, known) for name, known in parts]
        if any(law.canonical for law in laws):
            unsubsumed = without_subsuming(laws)
            ways.append(lambda: self.by("the laws that are given, nothing left out", unsubsumed))
        return [*ways, self.by_numbers]

    def by(self, name: str, laws: Sequence[Law]) -> Proof | None:
        """Return a proof by laws; None if there is none."""
        proof = prover(tuple(KINDS), tuple(laws), ENGINES.whose).prove(*self.sides, self.budget)
        outcome = f"{proof.nodes} nodes{f', {proof.cut}' if proof.cut else ''}"
        self.tried.append(Attempt(name, outcome))
        self.first = proof if self.first is None else self.first
        return self.finished(proof) if proof else None

    def by_entries(self) -> Proof | None:
        """Return a proof by entries that have one form; None if there is none."""
        entries = compare_entries(self.left, self.right)
        self.tried.append(Attempt("entries as polynomials", entries.said))
        if not entries.proved:
            return None
        return self.finished(Proof(True, dict.fromkeys(entries.laws, 1), 0, "", 0.0))

    def by_numbers(self) -> Proof | None:
        """Return a proof object with a counterexample; None if none was found."""
        at = refute(self.left, self.right)
        self.tried.append(Attempt("numbers", TRIED_NUMBERS))
        return None if at is None else self.finished(replace(self.nothing(), at=at))

    def advise(self, proof: Proof, laws: tuple[Law, ...] | None) -> str:
        """Return advice for an equation that was neither proved nor refuted."""
        if proof.cut and proof.cut != UNREAD:
            return f"a larger budget than {self.budget} nodes"
        if any(node.kind is KINDS["symbol"] for side in (self.left, self.right) for node in side.walk()):
            return (
                "declare properties of the symbols that make it true, or state a step as a law, "
                "laws=(*opmatrix.laws, step)"
            )
        return "state a step between the sides as a law, laws=(*opmatrix.laws, step)"


LAW_SETS = (
    ("the laws of values", values.VALUE_LAWS),
    ("the laws of the search", EXACT_LAWS),
    ("the laws of values and of numbers that cancel", values.VALUE_LAWS + cancelling.CANCELLING_LAWS),
)


@lru_cache(maxsize=4)
def without_subsuming(laws: tuple[Law, ...]) -> tuple[Law, ...]:
    """Return the laws without subsumption: their left sides may be needed again."""
    return tuple(replace(law, canonical=False) for law in laws)
