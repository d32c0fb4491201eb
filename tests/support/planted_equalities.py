"""False equalities made from the declarations of true laws: each agrees with its law but for one condition, a guard or
an order. A judgement of laws must refuse all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from law_mutants import mutants
from sympy import Symbol
from true_laws import TRUE_LAWS

from opmatrix.algebra import monoids
from opmatrix.algebra.operators import const, ones, product, relu, turn
from opmatrix.algebra.positions.patterns import everyone
from opmatrix.algebra.term import Operator
from rewrites.discovery.stated_laws import Situation, differences
from rewrites.laws import EXACT_LAWS
from rewrites.laws.law import Law, Sides, h, k, n, p, q

LAWS = *EXACT_LAWS, *TRUE_LAWS
FAR, CERTAIN = 1e-3, 1e-8  # differences of sides that are far apart, and that are not equal
Variables = Mapping[str, Any]
Change = Callable[[Operator, Law, Variables], Operator]  # a right side, its law, its variables -> another right side


class PlantedEquality(NamedTuple):
    """A false law, and in words what is wrong with it."""

    wrong: str
    law: Law

    def __str__(self) -> str:
        return f"{self.law.name}: {self.wrong}"


def list_planted(laws: Sequence[Law] = LAWS) -> Iterator[PlantedEquality]:
    """Yield every false equality of these laws."""
    for law in laws:
        for wrong, (change, witness) in CHANGES.items():
            made = change_right(law, change)
            if witness.magnitude <= law.largest and is_planted(made, witness):
                yield PlantedEquality(wrong, made)
        yield from widen_guards(law)
        yield from list_far(law)


def change_right(law: Law, change: Change) -> Law:
    """Return a law with another right side."""

    def body(**variables: Any) -> Sides:
        """Build both sides, the first right one changed."""
        left, (first, *rest) = law.of(variables)
        return left, (change(first, law, variables), *rest)

    body.__name__, body.__annotations__ = law.name, law.variables
    return replace(law, body=body, without=(), canonical=False)


def is_planted(made: Law, witness: Situation) -> bool:
    """True if a changed law holds in some trial of a check, and a trial at its witness shows that it is false."""
    try:
        agree = min(islice(differences(made, USUAL, np.random.default_rng(7)), 20), default=np.inf) < 1e-6
    except (TypeError, ValueError, LookupError):
        return False
    return agree and max(islice(differences(made, witness, np.random.default_rng(8)), 20), default=0.0) > CERTAIN


# ---- sizes


def double_beyond_thirty(right: Operator, law: Law, variables: Variables) -> Operator:
    """Twice the right side where it has more than thirty columns."""
    cols = right.out.cols
    return right + right if isinstance(cols, int) and cols > 30 else right


def double_off_samples(right: Operator, law: Law, variables: Variables) -> Operator:
    """Twice the right side at other sizes than those that checks draw."""
    cols, usual = right.out.cols, SAMPLED[law]
    return right + right if isinstance(cols, int) and cols != usual else right


def double_at_equal_sizes(right: Operator, law: Law, variables: Variables) -> Operator:
    """Twice the right side where two sizes of the law are the same number."""
    sizes = dict[Symbol, int]()
    for name, sort in law.variables.items():
        cols = getattr(getattr(variables[name], "out", None), "cols", None)
        if sort.sizes and isinstance(sort.last, Symbol) and isinstance(cols, int):
            sizes[sort.last] = cols
    return right + right if len({*sizes.values()}) < len(sizes) else right


def find_columns(law: Law) -> object:
    """Return the columns of the first right side at the sizes of checks."""
    return law.of(law.drawn(np.random.default_rng(0)))[1][0].out.cols


SAMPLED = {law: find_columns(law) for law in LAWS}


# ---- numbers and rows


def scale_by_little(right: Operator, law: Law, variables: Variables) -> Operator:
    """The right side, larger by a ten millionth."""
    return right * (1 + 1e-7)


def find_value(law: Law, variables: Variables) -> Operator:
    """Return the first value of a law. Raises TypeError where there is none."""
    values = [one for name, one in variables.items() if law.variables[name].name == "value"]
    if not values:
        raise TypeError("there is no value")
    return values[0]


def pool(column: Operator, over: Any, where: Any = everyone) -> Operator:
    """Merge the rows of a column that a row sees, all alike."""
    one = const(1.0)
    return product(product(one, turn(one)), column, over, where)


def double_at_one_row(right: Operator, law: Law, variables: Variables) -> Operator:
    """Twice the right side where a batch has one row."""
    rows = pool(const(1.0), monoids.sum)
    return right + right * ((rows * -1.0 + 2.0) @ relu)


def double_at_equal_rows(right: Operator, law: Law, variables: Variables) -> Operator:
    """Twice the right side where all rows of the first value are the same: the variance of their sums is zero."""
    column = find_value(law, variables) @ ones
    mean = pool(column, monoids.mean)
    variance = pool(column * column, monoids.mean) + mean * mean * -1.0
    return right + right * ((variance * -1e12 + 1.0) @ relu)


def add_without_keys(right: Operator, law: Law, variables: Variables) -> Operator:
    """One more than the right side in rows that see no key of an open pattern."""
    patterns = [variables[name] for name, sort in law.variables.items() if sort.name == "where" and not sort.sizes]
    if not patterns:
        raise TypeError("there is no open pattern")
    (pattern,) = patterns
    return right + (pool(const(1.0), monoids.mean, pattern) * -1.0 + 1.0)


def double_at_large_numbers(right: Operator, law: Law, variables: Variables) -> Operator:
    """Twice the right side, or more, in rows in which the first value sums to more than a hundred."""
    column = find_value(law, variables) @ ones
    return right + right * ((column * column + -1e4) @ relu)


USUAL = Situation("")
EQUAL = dict.fromkeys((h, k, n, p, q), 6)
ODD, WIDE = {h: 3, k: 11, n: 10, p: 5, q: 7}, {h: 2, k: 32, n: 34, p: 44, q: 55}
CHANGES: dict[str, tuple[Change, Situation]] = {
    "fails beyond 30 columns": (double_beyond_thirty, Situation("", WIDE, (6, 1))),
    "holds at the sizes of checks alone": (double_off_samples, Situation("", ODD, (5, 2))),
    "fails at equal sizes": (double_at_equal_sizes, Situation("", EQUAL)),
    "off by less than a millionth": (scale_by_little, USUAL),
    "fails at one row": (double_at_one_row, Situation("", ODD, (1,))),
    "fails at equal rows": (double_at_equal_rows, Situation("", tied=True)),
    "fails at large numbers": (double_at_large_numbers, Situation("", magnitude=1000.0)),
    "fails in a row without keys": (add_without_keys, USUAL),
}  # what is wrong, and a situation that shows it


# ---- guards and order


def widen_guards(law: Law) -> Iterator[PlantedEquality]:
    """Yield a law with each sort that its declaration says is too wide; where its sides are made of parts of a stored
    matrix, they fit for no other operator, and the law is true wherever it can be tried."""
    for other in law.without:

        def body(**variables: Any) -> tuple[Any, Any]:
            """Build the sides of the law."""
            return law.body(**variables)

        body.__name__, body.__annotations__ = law.name, law.variables | other
        words = ", ".join(f"{name}: {sort}" for name, sort in other.items())
        wide = replace(law, body=body, without=(), canonical=False)
        if are_far(wide):
            yield PlantedEquality(f"too wide a guard, {words}", wide)


def are_far(law: Law) -> bool:
    """True if the sides of a law are far apart in a trial in which they fit."""
    return max(islice(law.differences(np.random.default_rng(99)), 20), default=0.0) > FAR


WRONG = {"order": "wrong order", "operand": "wrong order", "guard": "too wide a guard", "linear": "too wide a guard"}


def list_far(law: Law) -> Iterator[PlantedEquality]:
    """Yield the mutants of a law in a guard or in an order whose sides are then far apart."""
    for one in mutants([law]):
        if one.kind in WRONG and are_far(one.law):
            yield PlantedEquality(f"{WRONG[one.kind]}, {one.change}", one.law)
