"""What people give for an attribute of a term, a monoid, a pattern or a small number, as the term holds it; what cannot
be meant is refused here, in words of who wrote it. What stands for an attribute in a law passes."""
from __future__ import annotations

import inspect
from numbers import Real
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn

import numpy as np

from formats.core.epilogue import EPS
from formats.core.errors import InputError

LEAST_SQUARE = 2.0 ** -1022                                         # the least number of float64 that has all its bits


# what people have at hand, and which is neither a monoid, a pattern nor a size; anything else may stand for one in laws
STRANGERS = (type(None), type, bool, int, float, str, bytes, list, tuple, set, dict, np.ndarray, np.generic,
             BuiltinFunctionType, FunctionType, ModuleType)


def brief(thing: object, limit: int = 100) -> str:
    """A thing in words for a message, on one line, cut where it is long; a term as readers have it."""
    words = (repr(thing) if hasattr(thing, "kind") else str(thing)).replace("\n", " ")
    return words if len(words) <= limit else f"{words[:limit - 20]} … {words[-16:]}"


def bind(name: str, signature: inspect.Signature, *args: Any, **named: Any) -> inspect.BoundArguments:
    """The arguments of a call, with defaults. Raises TypeError, which says how what is called so is written."""
    try: bound = signature.bind(*args, **named)
    except TypeError as error: raise TypeError(f"{name}({', '.join(signature.parameters)}): {error}") from None
    bound.apply_defaults()
    return bound


def monoid_of(given: Any, where: str) -> Any:
    """A monoid, or the one of that name. Raises TypeError for what is none."""
    if isinstance(given, str):
        from opmatrix.algebra.monoids import MONOIDS, called
        try: return called(given)
        except ValueError:
            known = ", ".join(sorted(each.__name__ for each in MONOIDS))
            raise TypeError(f"{where}: there is no monoid {given!r}: {known}, or a subclass of Monoid") from None
    if hasattr(given, "merge") or not (isinstance(given, STRANGERS) or is_term(given)): return given
    from opmatrix.algebra import monoids
    namesake = getattr(given, "__name__", "")               # of Python's own sum and max
    one = f"opmatrix.algebra.monoids.{namesake}" if hasattr(getattr(monoids, namesake, None), "merge") else (
        "one of opmatrix.algebra.monoids, or a subclass of Monoid")
    raise TypeError(f"{where}: {brief(given)} is no monoid: give {one}")


def pattern_of(given: Any, where: str) -> Any:
    """A pattern. Raises TypeError for what is none, such as its name."""
    from opmatrix import patterns
    from opmatrix.relations import Relation
    if isinstance(given, Relation):
        raise TypeError(f"{where}: where={given} is a relation, no pattern: give among({given.name}), whom its entries "
                        "let see")
    if hasattr(given, "sees") or not (isinstance(given, STRANGERS) or is_term(given)): return given
    if isinstance(given, str) and hasattr(getattr(patterns, given, None), "sees"):
        raise TypeError(f"{where}: where={given!r} is a text, no pattern: give opmatrix.{given} itself")
    words = brief(given.tolist() if isinstance(given, np.ndarray) else given)
    raise TypeError(f"{where}: where={words} is no pattern: give one such as sequence & causal, or mask(table)")


def whole_of(given: Any, where: str, least: int | None = None) -> Any:
    """A whole number as Python's own, from `least` on; what stands for one in a law. Raises TypeError or ValueError for
    another number and for what is none."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if least is None or given >= least: return int(given)
        raise ValueError(f"{where} is {given}: it must be a whole number from {least} on")
    if not isinstance(given, STRANGERS) and not hasattr(given, "into"): return given      # such as a size to come
    raise TypeError(f"{where} is {brief(repr(given))}: it must be a whole number"
                    + f" from {least} on" * (least is not None))


def is_term(given: Any) -> bool:
    """Whether it is an operator or a value of the algebra."""
    return hasattr(given, "kind") or hasattr(type(given), "made")


def is_fixed_value(term: Any, columns: Any) -> bool:
    """Whether an operator on the right of a value of so many columns is meant as a value, not to be applied: one that
    needs no x, whose rows are no tokens, or are what the columns stand for."""
    if not term.constant or term.uniform: return False
    from opmatrix.algebra.shapes import Space  # with sympy, which nothing that only runs needs
    return not isinstance(term.out.rows, Space) or term.out.rows is columns


def check_eps(name: str, eps: Any) -> None:
    """Raises InputError unless the number that is added to a mean of squares is one that kernels take; what stands for
    one in a law passes."""
    what = "eps is added to a mean of squares before its root is divided by, in float32"
    refuse_outside(f"{name}({brief(repr(eps))}): {what}", eps, *EPS)


def check_least(eps: Any) -> None:
    """The same of what is added to the square of a length."""
    what = "it is added to the square of a length before its root is divided by"
    refuse_outside(f"unit_length({brief(repr(eps))}): {what}", eps, LEAST_SQUARE, EPS[1])


def refuse_outside(words: str, given: Any, least: float, most: float) -> None:
    """Raises InputError for a number outside, and for what is no number."""
    one = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
    number = isinstance(one, Real) and not isinstance(one, bool)
    if (number and not least <= one <= most) or (not number and isinstance(one, STRANGERS)):
        raise InputError(f"{words}: give a number from {least:.2g} to {most:.2g}, such as 1e-5")


def refuse_constant_sum(over: Any) -> NoReturn:
    """Raises TypeError for the sum of a row over a monoid whose weights sum to one: it is 1, whatever the row holds."""
    from opmatrix.algebra.monoids import is_known
    name = over.__name__
    raise TypeError(f"x @ {name}: {name} weighs values by scores, and a row of scores alone sums to 1 whatever it "
                    f"holds: give both, product(scores, values, over={name})"
                    + f"; each row's own {name} is x @ share" * is_known(over))
