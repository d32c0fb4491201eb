"""Arithmetic of closed forms, for numbers, arrays and expressions alike, and the bubble of one chain."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formats.machine.collectives import Quantity


def is_expression(number: Quantity) -> bool:
    """True for an expression of sympy, which has symbols."""
    return hasattr(number, "free_symbols")


def one_part(number: Quantity, of: Any) -> Quantity:
    """Return number / of: exactly, but for arrays."""
    if any(is_expression(one) or hasattr(one, "__array_ufunc__") for one in (number, of)):
        return number / of
    from fractions import Fraction

    return number * Fraction(1, of)


def most(*each: Quantity) -> Quantity:
    """Return the largest of numbers, expressions, or arrays, element by element."""
    return extreme(each, max, "maximum", "Max")


def least(*each: Quantity) -> Quantity:
    """Return the smallest of numbers, expressions, or arrays, element by element."""
    return extreme(each, min, "minimum", "Min")


def extreme(each: tuple[Quantity, ...], plain: Callable[..., Any], elementwise: str, symbolic: str) -> Quantity:
    """Return the extreme of numbers by a function of Python, of arrays by one of numpy, of expressions by one of
    sympy. Neither library is imported for numbers, as the command line reads schedules before it may be."""
    if any(map(is_expression, each)):
        import sympy

        return getattr(sympy, symbolic)(*each)
    if not any(hasattr(one, "__array_ufunc__") for one in each):
        return plain(each)
    import numpy as np

    return reduce(getattr(np, elementwise), each)


def rounds(p: Quantity, m: Quantity, v: Quantity, F: Quantity, B: Quantity, W: Quantity) -> Quantity:
    """Return the bubble of 1F1B and GPipe: every stage waits for a forward and a backward pass of a virtual stage on
    all other stages, (p − 1)(F + B + W) / v, which is (p − 1) / (v m) of the work (Huang et al. 2019; Narayanan et al.
    2021, section 2.2)."""
    return (p - 1) * (F + B + W) * one_part(1, v)
