"""Equations of terms as laws, and the judgement of laws on numbers: random operators of each sort, at the sizes of a
check and at special ones."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, sympify

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.term import Operator, substitute
from rewrites.discovery.exact_values import INEXACT, compare_exactly, draw_whole, make_polynomial
from rewrites.discovery.fingerprints import DrawnValues, drop_head
from rewrites.discovery.small_terms import sort_of, state_variable, variables_of
from rewrites.discovery.witnesses import WITNESSES, list_monoids
from rewrites.egraph.egraph import is_lone
from rewrites.egraph.law_matches import build_over, describe_mismatch, find_mismatch
from rewrites.laws.instances import relate
from rewrites.laws.law import ROWS, Law, Sides, Sort, apart, h, input_columns, k, list_ways, n, p, q
from rewrites.verify.user_laws import find_obstacle

TRIALS, WITNESS_TRIALS = 40, 6  # most trials of a law in each situation, and with each witness
EXACT_TRIALS, MOST_TRIED = 3, 40  # trials in fractions of a law, and draws among which they are looked for
SIDES_APART = 1e-9  # the largest relative difference of its sides
EQUAL_SIZES, LARGE_SIZES = dict.fromkeys((h, k, n, p, q), 4), {h: 2, k: 47, n: 38, p: 34, q: 41}


class Situation(NamedTuple):
    """Sizes, sequence lengths and a magnitude of inputs at which laws are tried; `tied`: all rows are equal."""

    words: str
    sizes: Mapping[Expr, int] = {}
    lengths: tuple[int, ...] = ROWS
    magnitude: float = 1.0
    tied: bool = False


SITUATIONS = (
    Situation("at different sizes"),
    Situation("with large numbers", magnitude=1000.0),
    Situation("with small numbers", magnitude=0.001),
    Situation("at one row", lengths=(1,)),
    Situation("at equal sizes", EQUAL_SIZES),
    Situation("at as many rows as columns", EQUAL_SIZES, (4,)),
    Situation("at large sizes", LARGE_SIZES, (3, 4, 1) * 5),
    Situation("with equal rows", tied=True),
)


class Verdict(NamedTuple):
    """The outcome of a judgement: the number of trials in which both sides agreed, and how they differ, or why no graph
    can use the law; empty if neither."""

    trials: int
    refuted: str = ""
    unusable: str = ""


@dataclass(frozen=True)
class StatedEquation:
    """Two terms over variables of the pool that agreed in every draw; `size` is their number of operators."""

    left: Operator
    right: Operator
    size: int
    headed: bool = False  # scores, values and constants have several heads
    widened: tuple[tuple[str, Sort], ...] = ()  # variables of wider sorts than those of the pool

    @property
    def names(self) -> list[str]:
        """The variables, in the order in which they occur."""
        return variables_of(self.left, self.right)

    @property
    def sorts(self) -> dict[str, Sort]:
        """The sort of each variable."""
        sorts = {name: sort_of(name) for name in self.names}
        sorts = {name: add_heads(sort) for name, sort in sorts.items()} if self.headed else sorts
        return sorts | dict(self.widened)

    def widen(self, name: str, sort: Sort) -> "StatedEquation":
        """Return the equation with a variable of a wider sort."""
        wider = replace(self, widened=(*self.widened, (name, sort)))
        symbol = state_variable(name, drop_heads(sort))
        if not isinstance(symbol, Operator):
            return wider
        by = {node: symbol for node in self.walk() if node.args[:1] == (name,)}
        return replace(wider, left=substitute(self.left, by), right=substitute(self.right, by))

    def walk(self) -> Iterator[Operator]:
        """Yield the symbols of both sides."""
        yield from (node for side in (self.left, self.right) for node in side.walk() if node.kind.name == "symbol")

    def law(self, name: str) -> Law:
        """Return the law of the equation, from the larger side to the smaller one; both ways where that ends."""
        return make_law(name, self, self.sorts, both=self.reversible)

    @property
    def reversible(self) -> bool:
        """True if the sides are equally large, or if the larger one has no part that the smaller one matches: written
        for the smaller, it is not rewritten again."""
        if count_operators(self.left) == count_operators(self.right):
            return True
        bound = {*variables_of(self.left)} == {*variables_of(self.right)}
        return bound and not any(is_matched(self.right, part, {}) for part in self.left.walk())

    def undirected(self, name: str) -> Law:
        """Return the law without the facts that only direct laws, both ways."""
        plain = {
            name: replace(sort, facts=tuple(fact for fact in sort.facts if fact != "act"))
            for name, sort in self.sorts.items()
        }
        return make_law(name, self, plain, both=not is_lone(self.right))


def add_heads(sort: Sort) -> Sort:
    """Return scores, values and constants of several heads; other sorts as they are."""
    if sort.name in ("scores", "level"):
        return sort[h]
    return sort[(h, *sort.sizes)] if sort.name in ("value", "constant") else sort


def drop_heads(sort: Sort) -> Sort:
    """Return a sort of several heads as that of one head."""
    return replace(sort, sizes=sort.sizes[1:]) if sort.sizes[:1] == (h,) and len(sort.sizes) > 1 else sort


def count_operators(term: Operator) -> int:
    """Return the number of operators of a term."""
    return bool(term.children) + sum(map(count_operators, term.children))


def is_matched(pattern: Operator, term: Operator, bound: dict[Operator, Operator]) -> bool:
    """True if a term is an instance of a pattern, whatever the sorts of its variables and its attributes. `bound`: the
    variables so far, and what they stand for."""
    if pattern.kind.name == "symbol":
        return bound.setdefault(pattern, term) is term
    same = pattern.kind is term.kind and len(pattern.children) == len(term.children)
    return same and all(is_matched(a, b, bound) for a, b in zip(pattern.children, term.children, strict=True))


def make_law(name: str, equation: StatedEquation, sorts: dict[str, Sort], both: bool) -> Law:
    """Return a law of both sides over variables of these sorts."""

    def body(**variables: object) -> Sides:
        """Build both sides over the variables."""
        return (build_over(equation.left, variables),), (build_over(equation.right, variables),)

    body.__name__, body.__annotations__ = name, sorts
    return Law(body, both=both)


def try_law(law: Law, seed: int) -> Verdict:
    """Try a law in every situation, until it fails; then in fractions."""
    trials = 0
    for number, situation in enumerate(SITUATIONS):
        if situation.magnitude > law.largest:
            continue
        for difference in differences(law, situation, np.random.default_rng([seed, number])):
            if not difference <= SIDES_APART:
                return Verdict(trials, f"{situation.words} the sides differ by {difference:.3g}")
            trials += 1
    for difference in islice(exact_differences(law, seed), EXACT_TRIALS):
        if difference:
            return Verdict(trials, f"in fractions the sides differ by {difference:.3g}")
        trials += 1
    return Verdict(trials)


def judge(law: Law, seed: int) -> Verdict:
    """Try a law on numbers; if it holds, at the sizes that a graph may match."""
    verdict = try_law(law, seed)
    if verdict.refuted or not verdict.trials:
        return verdict._replace(refuted=verdict.refuted or "the sides fit in no trial")
    return verdict._replace(unusable=find_misuse(law))


def find_misuse(law: Law) -> str:
    """Say why no graph can use a law that holds, as at the sizes that one may match; empty if one can."""
    sorts = find_mismatch(law)
    return find_obstacle(law) or (describe_mismatch(sorts) if sorts else "")


def differences(law: Law, situation: Situation, rng: np.random.Generator) -> Iterator[float]:
    """Yield the difference of the sides of a law in each trial of a situation in which they fit."""
    sorts = {name: resize_sort(sort, situation.sizes) for name, sort in law.sorts.items()}
    batch = make_batch(situation.lengths)
    for variables in chain(draw_often(law, sorts, rng), draw_witnesses(law, sorts, rng)):
        try:
            sides = law.of(variables)
            yield compare_at(sides, draw_input(situation, input_columns(sides), rng), batch)
        except (TypeError, ValueError, LookupError):
            continue


def exact_differences(law: Law, seed: int) -> Iterator[float]:
    """Yield the difference of the sides of a law, computed in fractions, in each of the first trials that has exact
    results. Differences that floats cannot see are not 0."""
    sorts, rng = law.sorts, draw_whole(seed)
    for variables in islice(chain(draw_witnesses(law, sorts, rng), draw_often(law, sorts, rng)), MOST_TRIED):
        try:
            sides = law.of({name: make_polynomial(one, sorts[name]) for name, one in variables.items()})
        except INEXACT:
            continue
        if (difference := compare_exactly(sides, rng)) is not None:
            yield difference


def draw_often(law: Law, sorts: dict[str, Sort], rng: np.random.Generator) -> Iterator[DrawnValues]:
    """Yield draws of all variables in every combination of their ways, again and again up to the number of trials."""
    ways = prod(max(1, len(list_ways(sort))) for sort in sorts.values())
    for _ in range(max(1, TRIALS // ways)):
        yield from law.trials(rng, TRIALS, **sorts)


def draw_witnesses(law: Law, sorts: dict[str, Sort], rng: np.random.Generator) -> Iterator[DrawnValues]:
    """Yield draws of all variables with each witness that has the flags of a monoid."""
    for name, sort in sorts.items():
        for monoid in WITNESSES if sort.name == "over" else ():
            if monoid in list_monoids(sort):
                yield from (law.drawn(rng, **sorts) | {name: monoid} for _ in range(WITNESS_TRIALS))


def resize_sort(sort: Sort, sizes: Mapping[Expr, int]) -> Sort:
    """Return a sort at other sizes; flags stay."""
    if not sizes or any(isinstance(size, str) for size in sort.sizes):
        return sort
    return replace(sort, sizes=tuple(sympify(size).subs(sizes, simultaneous=True) for size in sort.sizes))


def make_batch(lengths: tuple[int, ...]) -> Batch:
    """Return a batch of sequences of these lengths, with the relations of a check."""
    return Batch([np.zeros(length, int) for length in lengths], relations=relate(sum(lengths)))


def draw_input(situation: Situation, columns: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw the input of a trial: rows of a batch x columns."""
    rows = sum(situation.lengths)
    x = rng.normal(size=(1 if situation.tied else rows, columns)) * situation.magnitude
    return np.broadcast_to(x, (rows, columns)).copy()


def compare_at(sides: Sides, x: NDArray[np.float64], batch: Batch) -> float:
    """Return the largest relative difference of the sides at an input; infinite where their shapes differ."""
    with np.errstate(all="ignore"):
        pairs = [[drop_head(dense(side, x, batch)) for side in pair] for pair in zip(*sides, strict=True)]
    return max(apart(a, b) if a.shape == b.shape else np.inf for a, b in pairs)
