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
    return any(isinstance(one, sympy.Basic) and not one.is_number for one in each)


def is_array(*each: Quantity) -> bool:
    """Whether one of them is what numpy's functions are of: an array, or a column that is traced."""
    return any(hasattr(one, "__array_ufunc__") for one in each)


def round_up(one: Quantity) -> Quantity:
    """The next whole number, element by element."""
    if is_symbolic(one): return sympy.ceiling(one)
    return np.ceil(one) if is_array(one) else float(np.ceil(float(one)))


def binary_log(one: Quantity) -> Quantity:
    """How often a quantity is halved until it is one, element by element."""
    if is_symbolic(one): return sympy.log(one, 2)
    return np.log2(one) if is_array(one) else float(np.log2(float(one)))


def soft_most(one: Quantity, other: Quantity) -> Quantity:
    """The larger of two positive quantities, a little more where they are alike: the root of the sum of fourth
    powers."""
    return (one ** 4 + other ** 4) ** 0.25


def step_at(one: Quantity, bound: float) -> Quantity:
    """1 where a whole number is at least a bound, which is a whole number, too, else 0."""
    return least(most(one - bound + 1, 0), 1)


class Formula(NamedTuple):
    """A sum of products of powers of sizes, as they are read off a model: coefficients, and powers by names."""
    terms: tuple[tuple[float, Powers], ...]

    @classmethod
    def of(cls, e: sympy.Expr) -> Formula:
        """What an expression is. Raises InputError for one that is no such sum."""
        found = []
        for term, count in sympy.expand(e).as_coefficients_dict().items():
            powers = {} if term == 1 else term.as_powers_dict()
            if not all(base.is_Symbol and power.is_Integer for base, power in powers.items()):
                raise InputError(f"planner: {term} is no product of powers of sizes")
            found.append((float(count), tuple(sorted((str(base), int(power)) for base, power in powers.items()))))
        return cls(tuple(sorted((each for each in found if each[0]), key=lambda each: each[1])))

    def at(self, sizes: Mapping[str, Quantity]) -> Quantity:
        """The sum at sizes of any kind."""
        return add_all(count * multiply(sizes[name] ** power for name, power in powers) for count, powers in self.terms)

    def __str__(self) -> str:
        def one(count: float, powers: Powers) -> str:
            return "·".join([f"{count:.6g}", *(name if power == 1 else f"{name}^{power}" for name, power in powers)])
        return " + ".join(one(*each) for each in self.terms) or "0"


def add_all(each: Iterable[Quantity]) -> Quantity: return sum(each, 0)


def multiply(each: Iterable[Quantity]) -> Quantity:
    found: Quantity = 1
    for one in each: found = found * one
    return found
