"""Equality by the laws: two operators are equal where both end in one class of the e-graph. No number is evaluated."""
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sympy

from formats.shapes import N
from opmatrix.term import Kind, Operator
from rewrites.egraph import SCHEDULE, engine, rules
from rewrites.law import Law
from rewrites.laws import values
from rewrites.template import Template

BASE = 1 << 32                                              # above any number of equal sizes in a sum


def read(node: str) -> str:
    """The sizes of the operands of a node."""
    second = "(= k (tall b)) (= p (wide b))" if " b" in node else ""
    return f"(= m (tall a)) (= n (wide a)) {second}"


# Rows and columns of a class as whole numbers, from those of its parts: m by n and k by p. What spreads has none.
SIZED = {
    "add a b": ("(= m k) (= n p)", "m", "n"),
    "mul a b": ("(= m k) (= n p)", "m", "n"),
    "row a b": ("(= m k)", "m", "(+ n p)"),
    "below a b": ("(= n p)", "(+ m k)", "n"),
    "left a b": ("", "m", "p"),
    "right a b": ("", "m", "(- n p)"),
    "product a b o w": ("", "m", "p"),
    "compose a f": ("(entrywise f)", "m", "n"),
    "turn a": ("", "n", "m"),
    "unit a": ("", "n", "n"),
}
DERIVED = {node.split()[0] for node in SIZED}
FACTS = "\n".join([
    "(function tall (Op) BigInt :merge old) (function wide (Op) BigInt :merge old)",
    "(rule ((= e (K_mul f s)) (entrywise f) (constant s) (column s)) ((entrywise e)) :ruleset facts)",
    *(f"(rule ((= e (K_{node})) {read(node)} {where}) ((set (tall e) {rows}) (set (wide e) {columns})) :ruleset facts)"
      for node, (where, rows, columns) in SIZED.items())])
# What a kind that commutes and associates makes of its operands, whatever their order: a bag of what it did not make.
BAGS = "(sort Bag (MultiSet Op))"
BAG = """
(constructor bag_{0} (Bag) Op)
(function made_{0} (Op) bool :merge (or old new))
(rule ((= e (K_{0} a b))) ((set (made_{0} e) true) (set (made_{0} a) false) (set (made_{0} b) false)) :ruleset facts)
(rule ((= false (made_{0} a))) ((union a (bag_{0} (multiset-of a)))) :ruleset {1} :name "{2}")
(rule ((= e (K_{0} a b)) (= a (bag_{0} A)) (= b (bag_{0} B))) ((union e (bag_{0} (multiset-sum A B)))) :ruleset {1} :name "{3}")
"""


def both(law: Law) -> Iterator[tuple[Operator, Operator]]:
    """The two sides of a law without guards about a kind of node with two operands and nothing else."""
    (left, *more), (right, *_) = law.sides()
    if left.kind is right.kind and left.kind.arity == 2 == len(left.args) and not more and not law.guards:
        yield left, right


def commuting(laws: Sequence[Law]) -> dict[Kind, Law]:
    """The kinds of node whose operands may stand in any order, and the laws that say so."""
    return {a.kind: law for law in laws for a, b in both(law) if a.args == b.args[::-1]}


def associating(laws: Sequence[Law]) -> dict[Kind, Law]:
    """The kinds of node whose operands may be grouped anyhow, and the laws that say so."""
    return {a.kind: law for law in laws for a, b in both(law) if a.kind is a.args[0].kind is b.args[1].kind
            and (*a.args[0].args, a.args[1]) == (b.args[0], *b.args[1].args)}


def written(laws: Sequence[Law]) -> Iterator[str]:
    """The laws as rules. Two that make a kind commute and associate are one, over bags of operands."""
    orders, chains = commuting(laws), associating(laws)
    bags = [kind for kind in orders if kind in chains]
    yield BAGS
    yield from (BAG.format(kind.name, chains[kind].phase, orders[kind].name, chains[kind].name) for kind in bags)
    inside = {law.name for kind in bags for law in (orders[kind], chains[kind])}
    yield from (rule for law in laws if law.name not in inside for rule in rules(law))


ROUND = "(run-schedule (saturate (run facts))) (run {} 1) (print-size)"


@dataclass(frozen=True)
class Proof:
    """Whether two operators are equal by laws; how often each matched; nodes; which law was growing when the budget was
    spent, so that nothing is said where `proved` is false; the seconds it took."""

    proved: bool
    matches: dict[str, int]
    nodes: int
    cut: str
    seconds: float

    def __bool__(self) -> bool:
        return self.proved


class Prover:
    """An engine that knows these laws. Every proof has a graph of its own."""

    def __init__(self, laws: Sequence[Law] = values.LAWS) -> None:
        self.laws, self.engine = tuple(laws), engine(())
        self.run("\n".join([FACTS, *written(laws)]))
        phases = {law.phase for law in laws}
        self.rounds = [self.engine.parse_program(ROUND.format(phase)) for phase in dict.fromkeys(SCHEDULE) if phase in phases]

    def run(self, program: str) -> None:
        self.engine.run_program(*self.engine.parse_program(program))

    def prove(self, left: Operator, right: Operator, budget: int = 3000) -> Proof:
        """Whether both end in one class before the graph has more nodes than the budget."""
        start, roots = time.perf_counter(), {"left": left, "right": right}
        self.run("(push)\n" + sized(Template.of(roots), roots).text)
        try:
            proved, matches, nodes = self.saturate(budget)
        finally:
            self.run("(pop)")
        growing = max(matches, key=lambda law: matches[law], default="") if nodes > budget and not proved else ""
        return Proof(proved, dict(matches), nodes, growing and f"at {nodes} nodes {growing} was growing",
                     time.perf_counter() - start)

    def saturate(self, budget: int) -> tuple[bool, Counter[str], int]:
        """Rounds of each phase until nothing changes in any; whether left is right, matches by law, nodes."""
        matches, nodes, still = Counter[str](), 0, 0
        while still < len(self.rounds):
            for commands in self.rounds:
                still += 1
                while nodes <= budget and not self.equal():
                    _, done, sizes = self.engine.run_program(*commands)
                    matches.update(done.report.num_matches_per_rule)
                    nodes = sum(count for name, count in sizes.sizes if name.startswith("K_"))
                    if not done.report.updated:
                        break
                    still = 0
        return self.equal(), matches, nodes

    def equal(self) -> bool:
        return bool(self.engine.lookup_function("$left", []) == self.engine.lookup_function("$right", []))


def sized(template: Template, roots: dict[str, Operator]) -> Template:
    """The template of these operators, with the rows and columns of all their terms."""
    names, powers, lines = dict[Any, int | None](), {1: 0}, list[str]()
    terms = dict.fromkeys(term for root in roots.values() for term in root.walk())
    for entry, term in zip(template.entries, terms, strict=True):
        if term.kind.name in DERIVED and (term.kind.name != "compose" or term.children[1].entrywise):
            continue                                        # the engine finds them
        for fact, size in (("tall", term.out.rows), ("wide", term.out.cols)):
            if size not in names:
                names[size] = number(size, powers)
            if names[size] is not None:
                lines.append(f'(set ({fact} {entry.name}) (from-string "{names[size]}"))')
    return replace(template, text="\n".join([template.text, *lines]))


def number(size: Any, powers: dict[Any, int]) -> int | None:
    """A size as a whole number, different for different sizes; none for one that is not known."""
    terms = sympy.expand(size).as_coefficients_dict() if isinstance(size, sympy.Expr) else {1: size}
    if N in getattr(size, "free_symbols", ()):
        return None
    if not all(isinstance(c, int) or c.is_Integer for c in terms.values()):
        terms = {size: 1}
    return sum(int(c) * BASE ** powers.setdefault(m, len(powers)) for m, c in terms.items())


@cache
def prover() -> Prover:
    return Prover()


def prove(left: Operator, right: Operator, budget: int = 3000) -> Proof:
    """Whether two operators are equal by the laws of values: both end in one class before the graph has more nodes than
    the budget."""
    return prover().prove(left, right, budget)
