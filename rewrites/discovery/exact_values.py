"""Exact results of polynomial terms: variables are drawn as whole numbers and as polynomials of these, and the oracle
of single entries computes in fractions. Results that differ by less than rounding are told apart."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import square, tanh
from opmatrix.algebra.oracles import Entrywise
from opmatrix.algebra.term import Operator, read, substitute
from rewrites.laws.instances import has_facts, ragged
from rewrites.laws.law import ROWS, Sides, Sort, input_columns

INEXACT = ArithmeticError, LookupError, TypeError, ValueError  # raised where a term has no exact value, or no value
ExactResult: TypeAlias = NDArray[np.object_]  # heads x rows x columns of Fraction or int


class WholeRandom(np.random.Generator):
    """Random numbers of which the normal ones are whole, from -3 to 3 without 0."""

    def normal(self, *, size: object) -> NDArray[np.int64]:  # type: ignore[override]
        """Draw whole numbers of a shape."""
        drawn: NDArray[np.int64] = self.choice([-3, -2, -1, 1, 2, 3], size)  # type: ignore[call-overload]
        return drawn


def draw_whole(*seed: int) -> WholeRandom:
    """Return a source of whole numbers for a seed."""
    return WholeRandom(np.random.PCG64(list(seed)))


def make_polynomial(variable: object, sort: Sort) -> object:
    """Return a drawn variable with a square in place of each tanh. Raises TypeError where it has no longer the facts of
    its sort."""
    if not isinstance(variable, Operator):
        return variable
    polynomial = substitute(variable, {tanh: square})
    if not has_facts(polynomial, sort.facts):
        raise TypeError(f"a square is no {sort}")
    return polynomial


@dataclass
class ExactReader:
    """An input of whole numbers, rows of a batch x columns, and the results of the terms that were read at it."""

    x: NDArray[np.int64]
    batch: Batch
    memo: dict[tuple[Operator, Entrywise], Entrywise] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = Entrywise(np.asarray(self.x, object)[None], self.batch, Fraction)
        self.start = whole.of(whole.value.shape, lambda *at: Fraction(int(whole.value[at])))

    def read(self, term: Operator) -> ExactResult | None:
        """Return the exact result of a term over drawn variables; None where it has none."""
        try:
            result: ExactResult = read(term, self.start, self.memo).value
        except INEXACT:
            return None
        return result if all(isinstance(number, Fraction | int) for number in result.flat) else None


def differ_exactly(one: ExactResult | None, other: ExactResult | None) -> bool:
    """True if both results are exact and differ."""
    return one is not None and other is not None and not np.array_equal(one, other)


def compare_exactly(sides: Sides, rng: WholeRandom) -> float | None:
    """Return the largest difference of the sides of a law over drawn variables, computed in fractions at an input of
    whole numbers; it is 0 only where they are equal. None where a side has no exact result."""
    reader = ExactReader(rng.normal(size=(sum(ROWS), input_columns(sides))), ragged())
    largest = 0.0
    for pair in zip(*sides, strict=True):
        one, other = map(reader.read, pair)
        if one is None or other is None or one.shape != other.shape:
            return None
        largest = max(largest, measure_difference(one, other))
    return largest


def measure_difference(one: ExactResult, other: ExactResult) -> float:
    """Return the largest difference of two exact results of one shape; the least float where that is smaller."""
    largest = abs(one - other).max(initial=0)
    return max(float(largest), np.finfo(float).tiny) if largest else 0.0
