"""Fingerprints of terms: the results of the oracle, rounded, on a few small ragged inputs. Sizes of the variables all
differ, so that no equality of sizes passes for one of terms. Terms with the same rounded results are compared once more
in exact numbers, where both are polynomials or quotients of these."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import ShapeError
from opmatrix.algebra.term import KINDS, Operator
from rewrites.discovery.exact_values import (
    INEXACT,
    ExactReader,
    ExactResult,
    differ_exactly,
    draw_whole,
    make_polynomial,
)
from rewrites.discovery.small_terms import FOLLOWS, LETTERS, OPEN_ATTRIBUTES, OVER, PROBED_BY, SmallTerm, variable
from rewrites.discovery.witnesses import list_monoids, squared_share, squared_weights
from rewrites.laws.law import INPUT, ROWS, choices, drawn, is_variable, list_ways, ragged

DRAW_COUNT = 3  # draws of all variables that a fingerprint is made of
EXACT_MONOIDS = {
    "M": monoids.sumsq,
    "L": monoids.sum,
    "S": squared_share,
    "N": squared_weights,
}  # of those with the flags of a variable, one with exact results, if any has
KEPT_DIGITS = 8  # of each number, relative to the largest one of a result

DrawnValues: TypeAlias = dict[str, Any]  # variable -> an operator, a monoid or a pattern


@dataclass
class DrawnVariables:
    """One draw: an operator for each variable, a monoid or pattern for each attribute, the input."""

    variables: DrawnValues
    x: NDArray[np.float64] | NDArray[np.int64]  # whole numbers where results are exact
    batch: Batch
    built: dict[Operator, Operator] = field(default_factory=dict)

    def over(self, term: Operator) -> Operator:
        """Return a term over what was drawn for its variables."""
        if (operator := self.built.get(term)) is None:
            operator = self.built[term] = self.build(term)
        return operator

    def build(self, term: Operator) -> Operator:
        """Build the node of a term over the operators of its operands."""
        if term.kind.name == "symbol":
            drawn_one: Operator = self.variables[str(term.args[0])]
            return drawn_one
        attributes = [self.variables[str(one)] if is_variable(one) else one for one in term.attributes]
        return Operator(term.kind, *map(self.over, term.children), *attributes)

    def run(self, term: Operator) -> NDArray[np.float64]:
        """Return the oracle's result, in float64. Raises TypeError or ValueError where sizes do not fit."""
        with np.errstate(all="ignore"):
            return drop_head(np.asarray(dense(self.over(term), self.x, self.batch), np.float64))


def drop_head(result: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a result without the axis of a single head."""
    return result[0] if result.ndim == 3 and len(result) == 1 else result


def draw_exact(seed: int) -> DrawnVariables:
    """Draw all variables once as polynomials of whole numbers, and monoids that have exact results, if any has."""
    rng = draw_whole(seed, DRAW_COUNT)
    variables: DrawnValues = {name: make_polynomial(drawn(rng, sort, name, 0), sort) for name, sort in LETTERS.items()}
    variables |= {name: draw_relation(name, 0) for name in ("E", "F")}
    variables |= {name: choices(OPEN_ATTRIBUTES[name])[0] for name in ("P", "Q")} | EXACT_MONOIDS
    return DrawnVariables(variables, rng.normal(size=(sum(ROWS), INPUT)), ragged())


def draw_variables(seed: int) -> list[DrawnVariables]:
    """Draw the draws of a seed: operators in a different way in each."""
    return [draw_once(np.random.default_rng([seed, number]), number) for number in range(DRAW_COUNT)]


def draw_once(rng: np.random.Generator, number: int) -> DrawnVariables:
    """Draw all variables once; monoids and patterns in turn, so that no two variables are the same in every
    draw."""
    variables: DrawnValues = {
        name: drawn(rng, sort, name, number % len(list_ways(sort))) for name, sort in LETTERS.items()
    }
    variables |= {name: draw_relation(name, number) for name in ("E", "F")}
    draw = DrawnVariables(variables, rng.normal(size=(sum(ROWS), INPUT)), ragged())
    for place, names in enumerate(OVER, number):
        monoid = names[0]
        several = list(list_finite(draw, names))
        monoids = list(dict.fromkeys(option[monoid] for option in several))
        several = [option for option in several if option[monoid] is monoids[place % len(monoids)]]
        variables |= several[number % len(several)]
    return draw


def draw_relation(name: str, number: int) -> object:
    """Return the relation of a variable in one draw: of those that checks use the most general, or, where each row has
    one entry, each in turn."""
    known = choices(OPEN_ATTRIBUTES[name])
    return known[number % len(known)] if name == "F" else known[0]


def list_finite(draw: DrawnVariables, names: tuple[str, str]) -> Iterator[DrawnValues]:
    """Yield the choices of a monoid and a pattern whose product of a draw's scores is finite."""
    monoid, pattern = names
    known = {pattern: [draw.variables[pattern]]} if pattern in draw.variables else {}
    for one in list_monoids(OPEN_ATTRIBUTES[monoid]):
        for other in known.get(pattern, choices(OPEN_ATTRIBUTES[pattern])):
            term = Operator(KINDS["product"], draw.variables["s"], draw.variables["x"], one, other)
            with np.errstate(all="ignore"):
                if np.isfinite(dense(term, draw.x, draw.batch)).all():
                    yield {monoid: one, pattern: other}


def probed(entry: SmallTerm) -> Operator:
    """Return a term as a value: an operator is applied to a value of the columns that it takes."""
    if entry.role != FOLLOWS:
        return entry.term
    return apply_in_turn(variable(PROBED_BY.get(entry.term.into.cols, "x")), entry.term)


def apply_in_turn(at: Operator, term: Operator) -> Operator:
    """Return a value with an operator behind it, a composition factor by factor, as graphs write values."""
    if term.kind.name != "compose":
        return Operator(KINDS["compose"], at, term)
    first, then = term.args
    return apply_in_turn(apply_in_turn(at, first), then)


@dataclass
class Fingerprints:
    """Results of terms in the draws of a seed, rounded, and in the draw of exact numbers. `left_out` counts the terms
    whose sizes do not fit, and those with a result that is not finite."""

    draws: list[DrawnVariables]
    exact: DrawnVariables
    known: dict[tuple[Operator, int], bytes] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    apart: int = 0  # pairs with the same rounded results that exact numbers tell apart

    @classmethod
    def of(cls, seed: int) -> "Fingerprints":
        """Return the fingerprints in the draws of a seed."""
        return cls(draw_variables(seed), draw_exact(seed))

    def __post_init__(self) -> None:
        self.reader = ExactReader(self.exact.x.astype(np.int64), self.exact.batch)

    def at(self, term: Operator, draw: int) -> bytes:
        """Return the rounded result of a value in one draw; empty where it has none."""
        if (term, draw) not in self.known:
            self.known[term, draw] = self.compute(term, self.draws[draw])
        return self.known[term, draw]

    def compute(self, term: Operator, draw: DrawnVariables) -> bytes:
        """Run the oracle in a draw, and round."""
        try:
            result = draw.run(term)
        except (TypeError, ValueError):
            self.left_out["do not fit"] += 1
            return b""
        if not np.isfinite(result).all():
            self.left_out["are not finite"] += 1
            return b""
        return round_off(result)

    def probe(self, entry: SmallTerm) -> Operator | None:
        """Return a term as a value; None for an operator that fits no value of the columns that it takes."""
        try:
            return probed(entry)
        except ShapeError:
            self.left_out["do not fit"] += 1
            return None

    def equal(self, one: Operator, other: Operator) -> bool:
        """True if two values agree in every draw, also in exact numbers where both have them."""
        if any(self.at(one, draw) != self.at(other, draw) or not self.at(one, draw) for draw in range(len(self.draws))):
            return False
        differ = differ_exactly(self.read_exactly(one), self.read_exactly(other))
        self.apart += differ
        return not differ

    def read_exactly(self, term: Operator) -> ExactResult | None:
        """Return the exact result of a value; None where it has none."""
        try:
            polynomial = self.exact.over(term)
        except INEXACT:
            return None
        return self.reader.read(polynomial)


def round_off(result: NDArray[np.float64]) -> bytes:
    """Return the shape and the numbers of a result, rounded relative to its largest number."""
    largest = abs(result).max(initial=0.0)
    scale = 2.0 ** np.ceil(np.log2(largest)) if largest > 0 else 1.0
    digits = np.round(result / scale, KEPT_DIGITS) + 0.0  # no negative zero
    return f"{result.shape} {scale}".encode() + digits.tobytes()
