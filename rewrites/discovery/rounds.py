"""Rounds of discovery: the terms of some kinds are enumerated, those that agree in fingerprints are equations, and an
equation is taken if it holds on numbers and does not follow from those that were taken before it.

A round is bounded by terms and nodes alone, so the list of laws depends on the seed, never on the machine. Seconds
decide only whether another round begins."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, islice

from opmatrix.algebra.term import Operator
from rewrites.discovery.derived import Consequences
from rewrites.discovery.fingerprints import Fingerprints, probed
from rewrites.discovery.proved_laws import prove_equation
from rewrites.discovery.small_terms import (
    INTERCHANGEABLE,
    LETTERS,
    VALUE,
    Bank,
    SmallTerm,
    list_leaves,
    uses_first,
    variable,
    variables_of,
)
from rewrites.discovery.stated_laws import StatedEquation, count_operators, judge
from rewrites.discovery.widened import widen_equation
from rewrites.laws.law import Law
from rewrites.proofs.refute import instance

TERMS_PER_ROUND = 4000
KINDS_PER_ROUND = 3


@dataclass(frozen=True)
class FoundLaw:
    """A law that was found: the equation, the trials that it passed, and the chain that proves it; empty if none
    does."""

    law: Law
    equation: StatedEquation
    trials: int
    chain: tuple[str, ...]

    @property
    def standing(self) -> str:
        """The proof in words, or that it is a conjecture."""
        return f"proved by {', '.join(self.chain)}" if self.chain else f"conjecture, {self.trials} trials"


@dataclass
class RoundCounts:
    """Numbers of one round: terms, equations that agreed, laws taken, and equations dropped by reason. `cut` names the
    kind that was growing when the terms were spent."""

    kinds: tuple[str, ...]
    size: int
    terms: int = 0
    equations: int = 0
    laws: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    cut: str = ""

    def __str__(self) -> str:
        dropped = ", ".join(f"{count} {why}" for why, count in sorted(self.dropped.items()))
        return (
            f"{', '.join(self.kinds)} to {self.size}: {self.terms} terms, {self.equations} equations, {self.laws} taken"
            + (f", {dropped}" if dropped else "")
            + (f"; cut at {self.terms} terms, {self.cut} was growing" if self.cut else "")
        )


@dataclass
class Discovery:
    """The laws found so far, and what they follow from."""

    kinds: tuple[str, ...]
    size: int
    seed: int = 0
    laws: list[FoundLaw] = field(default_factory=list)
    refuted: list[tuple[StatedEquation, str]] = field(default_factory=list)
    seen: set[tuple[Operator, Operator]] = field(default_factory=set)
    done: int = 0  # rounds that ended

    def __post_init__(self) -> None:
        self.prints = Fingerprints.of(self.seed)
        self.deriver = Consequences()

    def rounds(self) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield the kinds and the size of each round: small terms of few kinds first."""
        for size in range(1, self.size + 1):
            for number in range(1, min(KINDS_PER_ROUND, len(self.kinds)) + 1):
                yield from ((kinds, size) for kinds in combinations(self.kinds, number))

    def run(self, seconds: float) -> Iterator[RoundCounts]:
        """Run the rounds that did not end yet, until the seconds are spent when one would begin."""
        start = time.perf_counter()
        for kinds, size in islice(self.rounds(), self.done, None):
            if time.perf_counter() - start > seconds:
                return
            counts = self.run_round(kinds, size)
            self.done += 1
            yield counts

    def resume(self, done: int, equations: Sequence[StatedEquation]) -> None:
        """Go on behind the rounds that ended, with the laws of these equations: each is judged and proved again. The
        same laws follow as without an interruption, as a round drops what follows from laws, whenever these came."""
        self.done = done
        for equation in equations:
            self.consider(equation, RoundCounts((), 0))

    def run_round(self, kinds: tuple[str, ...], size: int) -> RoundCounts:
        """Enumerate the terms of a round, and take the laws among its equations."""
        counts = RoundCounts(kinds, size)
        equations = sort_equations(self.agree(counts))
        counts.equations = len(equations)
        self.take(equations, counts)
        return counts

    def take(self, equations: Sequence[StatedEquation], counts: RoundCounts) -> None:
        """Take the laws among equations, in their order: those that hold and do not follow from laws before."""
        while equations := self.deriver.open_among(equations):
            first = equations.pop(0)
            if self.deriver.open_in_graph([first]):  # alone: many in one graph may spend its nodes
                self.consider(first, counts)

    def agree(self, counts: RoundCounts) -> Iterator[StatedEquation]:
        """Yield the equations of terms that agree in fingerprints, each once in any letters. Only the first of equal
        terms is an operand of larger ones."""
        bank, classes = Bank(counts.kinds), dict[tuple[str, bytes], list[SmallTerm]]()
        for entry in islice(self.enumerate(bank, counts), TERMS_PER_ROUND + 1):
            if counts.terms == TERMS_PER_ROUND:
                counts.cut = entry.term.kind.name
                return
            counts.terms += 1
            term = self.prints.probe(entry)
            if term is None or not (first := self.prints.at(term, 0)):
                continue
            same = classes.setdefault((entry.role, first), [])
            twin = next((one for one in same if self.prints.equal(probed(one), term)), None)
            if twin is None:
                same.append(entry)
                bank.add(entry)
            elif entry.role == VALUE or not entry.term.constant:
                yield from self.orient(probed(twin), term)

    def enumerate(self, bank: Bank, counts: RoundCounts) -> Iterator[SmallTerm]:
        """Yield leaves, then terms by size; of the largest only those in the first letters."""
        yield from list_leaves(counts.kinds)
        for size in range(1, counts.size + 1):
            entries = bank.list_terms(size)
            yield from entries if size < counts.size else (entry for entry in entries if uses_first(entry.term))

    def orient(self, one: Operator, other: Operator) -> Iterator[StatedEquation]:
        """Yield the equation from the larger term to the smaller in the first letters, unless it was met before."""
        larger, smaller = (other, one) if count_operators(other) >= count_operators(one) else (one, other)
        if {*variables_of(smaller)} - {*variables_of(larger)}:
            larger, smaller = smaller, larger
        left, right = rename(larger, smaller)
        if left is not right and not {(left, right), (right, left)} & self.seen:
            self.seen.add((left, right))
            yield StatedEquation(left, right, count_operators(left) + count_operators(right))

    def consider(self, equation: StatedEquation, counts: RoundCounts) -> None:
        """Judge an equation that does not follow from the laws so far; take it if it holds and a graph can use it, of
        one head or of several, under the widest guards that hold."""
        name = f"{equation.left.kind.name}_{len(self.laws) + 1}"
        verdict = judge(equation.law(name), self.seed)
        if verdict.unusable and {"s", "t"} & {*equation.names}:
            equation = replace(equation, headed=True)
            verdict = judge(equation.law(name), self.seed)
        if verdict.refuted:
            counts.dropped["refuted"] += 1
            self.refuted.append((equation, verdict.refuted))
        elif verdict.unusable:
            counts.dropped["of no use to a graph"] += 1
        else:
            counts.laws += 1
            equation, law = widen_equation(equation, name, self.seed)
            self.laws.append(FoundLaw(law, equation, verdict.trials, prove_equation(equation)))
            self.deriver.add(equation.undirected(name))

    def drop_derived(self) -> None:
        """Drop the laws that follow from others, the first ones first: small ones often follow from later ones."""
        for one in [*self.laws]:
            others = [other for other in self.laws if other is not one]
            deriver = Consequences([other.equation.undirected(other.law.name) for other in others])
            if others and not deriver.open_in_graph([one.equation]):
                self.laws = others

    def summary(self, seconds: float) -> str:
        """Return the numbers of laws, of equations that numbers refuted, and of terms that were left out, and the
        seconds."""
        proved = sum(bool(one.chain) for one in self.laws)
        left_out = "".join(f", {count} terms {why}" for why, count in sorted(self.prints.left_out.items()))
        return (
            f"{len(self.laws)} laws, {proved} of them proved; {len(self.refuted)} equations refuted{left_out}; "
            f"{seconds:.0f} s"
        )


def rename(*terms: Operator) -> tuple[Operator, ...]:
    """Return terms in the first letters of each sort, in the order in which they occur."""
    letters = dict[Operator, Operator]()
    used: Counter[str] = Counter()
    for name in variables_of(*terms):
        if name in LETTERS:
            group = INTERCHANGEABLE[name]
            letters[variable(name)] = variable(group[used[group[0]]])
            used[group[0]] += 1
    return tuple(instance(term, {}, letters) for term in terms)


def sort_equations(equations: Iterator[StatedEquation]) -> list[StatedEquation]:
    """Return equations from the smallest to the largest; of equal ones the most general first, which has the most
    variables of the least demanding sorts."""
    order = list(LETTERS)

    def key(equation: StatedEquation) -> tuple[int, int, int, str]:
        """Return the size, then the number of facts and flags, then that of variables, then the variables."""
        names = equation.names
        facts = [fact for sort in equation.sorts.values() for fact in sort.facts if fact != "act"]
        demands = len(facts) + sum(map(is_flagged, names))
        return equation.size, demands, -len(names), spell_order(names, order)

    return sorted(equations, key=key)


def is_flagged(name: str) -> bool:
    """True for a monoid or pattern of which a flag is asked."""
    return name in ("L", "S", "N", "Q")


def spell_order(names: Sequence[str], order: list[str]) -> str:
    """Return the places of the variables in the pool, as a text that sorts."""
    return " ".join(f"{order.index(name) if name in order else len(order):03}{name}" for name in names)
