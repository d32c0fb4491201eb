"""Arithmetic of closed forms, for numbers, arrays and expressions alike, and the bubble of one chain."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from typing import Any, TypeAlias

FormulaNumber: TypeAlias = Any  # an int, float, Fraction, array or expression of sympy


def is_expression(number: FormulaNumber) -> bool:
    return hasattr(number, "free_symbols")


def one_part(number: FormulaNumber, of: FormulaNumber) -> FormulaNumber:
    return number / of if is_expression(of) else number * Fraction(1, of)


def most(*each: FormulaNumber) -> FormulaNumber:
    """Return the largest of numbers, expressions, or arrays, element by element."""
    if any(map(is_expression, each)):
        import sympy

        return sympy.Max(*each)
    if not any(hasattr(e, "__array_ufunc__") for e in each):
        return max(each)
    import numpy as np

    return reduce(np.maximum, each)


def least(*each: FormulaNumber) -> FormulaNumber:
    """Return the smallest of numbers, expressions, or arrays, element by element."""
    if any(map(is_expression, each)):
        import sympy

        return sympy.Min(*each)
    if not any(hasattr(e, "__array_ufunc__") for e in each):
        return min(each)
    import numpy as np

    return reduce(np.minimum, each)


def rounds(
    p: FormulaNumber, m: FormulaNumber, v: FormulaNumber, F: FormulaNumber, B: FormulaNumber, W: FormulaNumber
) -> FormulaNumber:
    """Return the bubble of 1F1B and GPipe: every stage waits for a forward and a backward pass of a virtual stage on
    all other stages, (p − 1)(F + B + W) / v, which is (p − 1) / (v m) of the work (Huang et al. 2019; Narayanan et al.
    2021, section 2.2)."""
    return (p - 1) * (F + B + W) * one_part(1, v)
