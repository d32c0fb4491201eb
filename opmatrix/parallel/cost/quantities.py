"""Arithmetic that is read as numbers, as arrays of them, or as expressions: one declaration for all three."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import sympy

from formats.core.errors import InputError
from formats.machine.collectives import Quantity as Quantity
from opmatrix.parallel.schedules.closed_forms import least as least
from opmatrix.parallel.schedules.closed_forms import most as most

Powers: TypeAlias = tuple[tuple[str, int], ...]


def is_symbolic(*each: Quantity) -> bool:
    """True if one of these is an expression whose symbols have no numbers."""
    return any(isinstance(one, sympy.Basic) and not one.is_number for one in each)


def is_array(*each: Quantity) -> bool:
    """True if one of the quantities takes numpy's functions: an array, or a traced column."""
    return any(hasattr(one, "__array_ufunc__") for one in each)


def round_up(one: Quantity) -> Quantity:
    """Return the next whole number, element by element."""
    if is_symbolic(one):
        return sympy.ceiling(one)
    return np.ceil(one) if is_array(one) else float(np.ceil(float(one)))


def binary_log(one: Quantity) -> Quantity:
    """Return the logarithm to base 2, element by element."""
    if is_symbolic(one):
        return sympy.log(one, 2)
    return np.log2(one) if is_array(one) else float(np.log2(float(one)))


def soft_most(one: Quantity, other: Quantity) -> Quantity:
    """Return a smooth maximum of two positive quantities: the root of the sum of fourth powers. It is a little more
    than the larger one where they are alike."""
    return (one**4 + other**4) ** 0.25


def step_at(one: Quantity, bound: float) -> Quantity:
    """Return 1 where a whole number is at least `bound`, a whole number, too; else 0."""
    return least(most(one - bound + 1, 0), 1)


class Formula(NamedTuple):
    """A sum of products of powers of sizes, as read off a model: coefficients, and powers by names."""

    terms: tuple[tuple[float, Powers], ...]

    @classmethod
    def of(cls, e: sympy.Expr) -> Formula:
        """Convert an expression. Raises InputError for one that is not a sum of products of powers."""
        terms = []
        for term, count in sympy.expand(e).as_coefficients_dict().items():
            powers = {} if term == 1 else term.as_powers_dict()
            if not all(base.is_Symbol and power.is_Integer for base, power in powers.items()):
                raise InputError(f"planner: {term} is not a product of powers of sizes")
            terms.append((float(count), tuple(sorted((str(base), int(power)) for base, power in powers.items()))))
        return cls(tuple(sorted((pair for pair in terms if pair[0]), key=lambda each: each[1])))

    def at(self, sizes: Mapping[str, Quantity]) -> Quantity:
        """Evaluate the sum at sizes of any kind."""
        return add_all(count * multiply(sizes[name] ** power for name, power in powers) for count, powers in self.terms)

    def __str__(self) -> str:
        def one(count: float, powers: Powers) -> str:
            """Write one term: its coefficient and the powers of sizes."""
            return "·".join([f"{count:.6g}", *(name if power == 1 else f"{name}^{power}" for name, power in powers)])

        return " + ".join(one(*term) for term in self.terms) or "0"


def add_all(each: Iterable[Quantity]) -> Quantity:
    """Add quantities from the left, 0 if there are none."""
    return sum(each, 0)


def multiply(each: Iterable[Quantity]) -> Quantity:
    """Multiply quantities from the left, 1 if there are none."""
    product: Quantity = 1
    for one in each:
        product = product * one
    return product
