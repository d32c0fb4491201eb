"""Operators of every kind that a guard of a law may require: for each property some that have it, and few others."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from formats.core.activation import ACTIVATIONS
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.relations import GIVEN, HELD, relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import SCALAR_FUNCTIONS
from opmatrix.algebra.operators import (
    I,
    const,
    diag,
    given,
    heads,
    maximum,
    ones,
    over,
    pick,
    product,
    relu,
    rotate,
    share,
    shift,
    softplus,
    tanh,
    turn,
    weight,
)
from opmatrix.algebra.positions import patterns
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import PROPERTIES, Operator

ROWS, INPUT = (4, 1, 3), 5  # three sequences of unequal length, five input columns
SWAPPED = relation("swapped", "T", "T")  # the tokens of a batch backwards
BEHIND = relation("behind", "T", "T")  # rows with one entry up to all; random weights in a check
GAPS = relation("gaps", "T", "T")  # every other row has no entry


def relate(rows: int) -> dict[str, NDArray[np.float64]]:
    """Return the relations of a batch of so many rows, by name."""
    triangle, weights = np.tri(rows)[::-1], np.random.default_rng(1).normal(size=(rows, 1))
    gaps = np.arange(rows)[:, None] % 2
    behind = triangle * weights
    return {SWAPPED.name: np.eye(rows)[::-1], HELD.name: triangle, BEHIND.name: behind, GAPS.name: behind * gaps}


RELATED = relate(sum(ROWS))
SCATTERED = np.random.default_rng(0).integers(0, 2, (max(ROWS), max(ROWS)))
earlier = Pattern("earlier", lambda query, key: key.position < query.position)  # the first token sees no key
bent = I + tanh  # neither linear nor bounded
DrawNumbers: TypeAlias = Callable[..., Data]  # draws random numbers of a shape


class sharp(monoids.softmax):
    """Softmax of twice the scores: a second monoid with its flags."""

    closed = None  # type: ignore[assignment]

    def lift(z: Any, v: Any) -> Any:
        """Lift as softmax does, with twice the score."""
        return monoids.softmax.lift(2 * z, v)


ALL: list[type[Monoid]] = [*monoids.MONOIDS, sharp]
CHOICES: dict[str, Sequence[object]] = dict(
    entrywise=[SCALAR_FUNCTIONS[name] for name, activation in sorted(ACTIVATIONS.items()) if activation.everywhere]
    + [share],
    over=[monoid for monoid in ALL if monoid.width == 1 and not monoid.indexed],
    where=[
        earlier,
        patterns.causal,
        patterns.sequence,
        patterns.everyone,
        patterns.window(1),
        patterns.causal & patterns.sequence,
        patterns.among(HELD),
        patterns.mask(SCATTERED),
        patterns.mask(SCATTERED | np.eye(max(ROWS), dtype=int)) & patterns.sequence,
    ],
    relation=[GIVEN["last"], GIVEN["first"], SWAPPED],
    any_relation=[BEHIND, GAPS, SWAPPED, GIVEN["last"]],
)


def split_heads(row: Operator, count: int) -> Operator:
    """Divide a row into heads, unless there is one."""
    return row if count == 1 else row @ heads(count)


def mix(x: Operator) -> Operator:
    """Multiply x by its own scores, x xᵀ x: each row of the result depends on all rows."""
    return product(product(x, turn(x)), x)


def sum_alike(scores: Operator, x: Operator) -> Operator:
    """Sum all rows of x times a column of scores: all rows of the result are alike, and depend on all rows."""
    return product(product(const(1.0), turn(scores)), x)


def ragged() -> Batch:
    """Return the batch of a check, with the relations that a variable may be."""
    return Batch([np.zeros(length, int) for length in ROWS], relations=RELATED)


class Ends(NamedTuple):
    """The input columns, output columns and output heads of an operator, and random numbers for it."""

    numbers: DrawNumbers
    columns: int
    out: int
    heads: int = 1

    @property
    def matrix(self) -> Operator:
        """A matrix of random numbers, one for each head."""
        stack = [self.heads] if self.heads > 1 else []
        return weight(self.numbers(*stack, self.columns, self.out))

    @property
    def row(self) -> Operator:
        """A constant row of random numbers."""
        return split_heads(const(self.numbers(self.heads * self.out)), self.heads)

    @property
    def placed(self) -> Operator:
        """A row of random numbers for each position."""
        rows = weight(self.numbers(max(ROWS), self.heads * self.out))
        return split_heads(given("positions", max(ROWS)) @ rows, self.heads)

    @property
    def angles(self) -> Data:
        """Random numbers for the rotations of half the columns."""
        return self.numbers(max(ROWS), self.columns // 2)


Instance: TypeAlias = Callable[[Ends], Operator]
INSTANCES: tuple[Instance, ...] = (
    lambda of: of.matrix @ bent,  # row-wise, with no other property
    lambda of: mix(of.matrix),  # no property at all
    lambda of: sum_alike(weight(of.numbers(of.columns, 1)), of.matrix),  # rows that are all alike
    lambda of: of.matrix,
    lambda of: ones @ weight(of.numbers(of.heads, 1, of.out)),  # a matrix with the number of input rows
    lambda of: of.matrix @ relu,  # homogeneous for positive numbers
    lambda of: of.matrix @ tanh,  # maps zero to zero
    lambda of: of.matrix @ softplus,
    lambda of: of.row,
    lambda of: of.placed,  # constant, and another row at each position
    lambda of: of.matrix * of.placed,  # a matrix for each position
    lambda of: of.matrix * of.placed @ relu,
    lambda of: (of.matrix @ bent) * of.placed,
    lambda of: of.matrix @ pick(SWAPPED),  # one row, from another position
    lambda of: of.matrix @ bent @ pick(SWAPPED),
    lambda of: of.matrix @ shift(1),  # of the row before
    lambda of: product(given(BEHIND), of.matrix),  # additive, and mixes rows
    lambda of: product(given(BEHIND), of.matrix @ relu),
    lambda of: product(given(BEHIND), of.matrix @ tanh),
    lambda of: product(given(BEHIND), of.placed),
    lambda of: I * 2.0,  # a single number, at any width
    lambda of: I + I,
    lambda of: bent,
    lambda of: relu,
    lambda of: tanh,
    lambda of: softplus,
    lambda of: softplus + given("positions", max(ROWS)) @ weight(of.numbers(max(ROWS), 1)),
    lambda of: share,  # keeps the order of a row, and reads the whole row
    lambda of: diag(of.numbers(of.columns)),
    lambda of: diag(of.numbers(of.columns)) @ bent,
    lambda of: diag(of.numbers(of.columns)) @ relu,
    lambda of: diag(of.numbers(of.columns)) @ tanh,
    lambda of: rotate(of.angles, of.angles),
    lambda of: weight(of.numbers(of.columns, of.heads * of.out)) @ heads(max(2, of.heads)),
    lambda of: heads(max(2, of.heads)),  # moves numbers between heads
    lambda of: ones,  # one column
    lambda of: over(ones, maximum),
)


def make_instance(instance: Instance, ends: Ends) -> Operator | None:
    """Return the operator of an instance between these ends; None where its ends differ."""
    try:
        term = instance(ends)
        shape = term(Shape(1, T, ends.columns))
    except (TypeError, ValueError):
        return None
    return term if shape == Shape(ends.heads, T, ends.out) else None


def list_facts(term: Operator) -> Iterator[str]:
    """Yield the properties that a term has."""
    yield from (name for name in PROPERTIES if getattr(term, name))


def has_facts(term: Any, facts: tuple[str, ...]) -> bool:
    """True if a term has all of these facts that are properties, and is no constant row where it must depend on an
    input; False for None."""
    if term is None or ("act" in facts and term.constant and term.uniform):
        return False
    return all(getattr(term, fact) for fact in facts if fact in PROPERTIES)
