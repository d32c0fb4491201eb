"""Equality by the laws: two operators are equal where both end in one class of the e-graph. No number is evaluated."""
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import sympy

from formats.shapes import N
from opmatrix.term import Operator
from rewrites.egraph import engine, rules, saturate
from rewrites.law import Law
from rewrites.laws import values
from rewrites.template import Template

BASE = 1 << 32                                              # above any number of equal sizes in a sum

# The size of a class, as one whole number: a size is a sum of monomials, and every monomial has a power of BASE.
SIZES = """
(function tall (Op) BigInt :merge old)
(function wide (Op) BigInt :merge old)
(rule ((= e (K_add a b)) (= m (tall a)) (= m (tall b)) (= n (wide a)) (= n (wide b))) ((set (tall e) m) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_mul a b)) (= m (tall a)) (= m (tall b)) (= n (wide a)) (= n (wide b))) ((set (tall e) m) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_compose a f)) (entrywise f) (= m (tall a)) (= n (wide a))) ((set (tall e) m) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_product a b o w)) (= m (tall a)) (= n (wide b))) ((set (tall e) m) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_turn a)) (= m (tall a)) (= n (wide a))) ((set (tall e) n) (set (wide e) m)) :ruleset facts)
(rule ((= e (K_row a b)) (= m (tall a)) (= n (wide a)) (= p (wide b))) ((set (tall e) m) (set (wide e) (+ n p))) :ruleset facts)
(rule ((= e (K_below a b)) (= m (tall a)) (= p (tall b)) (= n (wide a))) ((set (tall e) (+ m p)) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_left a c)) (= m (tall a)) (= n (wide c))) ((set (tall e) m) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_right a c)) (= m (tall a)) (= n (wide a)) (= p (wide c))) ((set (tall e) m) (set (wide e) (- n p))) :ruleset facts)
(rule ((= e (K_unit a)) (= n (wide a))) ((set (tall e) n) (set (wide e) n)) :ruleset facts)
(rule ((= e (K_mul f s)) (entrywise f) (constant s) (column s)) ((entrywise e)) :ruleset facts)
"""


@dataclass(frozen=True)
class Proof:
    """Whether two operators are equal by laws: which fired, how often; what was cut by a budget, so that nothing is
    said where `proved` is false; the seconds it took."""

    proved: bool
    laws: dict[str, int]
    cut: tuple[str, ...]
    seconds: float

    def __bool__(self) -> bool:
        return self.proved


class Prover:
    """An engine that knows these laws; each proof has a graph of its own."""

    def __init__(self, laws: Sequence[Law] = values.LAWS) -> None:
        self.laws, self.engine = tuple(laws), engine(())
        self.run("\n".join([SIZES, *(rule for law in laws for rule in rules(law))]))

    def run(self, program: str) -> Any:
        return self.engine.run_program(*self.engine.parse_program(program))

    def prove(self, left: Operator, right: Operator, *, budget: int = 3000, rounds: int = 50) -> Proof:
        """Whether both end in one class within so many nodes, and rounds a phase."""
        start = time.perf_counter()
        template = sized(Template.of(roots := {"left": left, "right": right}), roots)
        graph = saturate(template, self.laws, budget=budget, rounds=rounds, shared=self.engine)
        return Proof(graph.named["$left"] == graph.named["$right"], dict(graph.matches), tuple(graph.cut),
                     time.perf_counter() - start)


def sized(template: Template, roots: dict[str, Operator]) -> Template:
    """The template of these operators, with the rows and columns of all their terms."""
    names, powers, lines = dict[Any, int | None](), {1: 0}, list[str]()
    terms = dict.fromkeys(term for root in roots.values() for term in root.walk())
    for entry, term in zip(template.entries, terms, strict=True):
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


def prove(left: Operator, right: Operator, **limits: int) -> Proof:
    """Whether two operators are equal by the laws of values; `limits` are those of Prover.prove."""
    return prover().prove(left, right, **limits)
