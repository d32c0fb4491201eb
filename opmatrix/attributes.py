"""What people give for an attribute of a term, a monoid, a pattern or a small number, as the term holds it; what cannot
be meant is refused here, in words of who wrote it. What stands for an attribute in a law passes."""
from __future__ import annotations

import inspect
from numbers import Real
from typing import Any, NoReturn

import numpy as np

from formats.core.epilogue import EPS
from formats.core.errors import InputError
from opmatrix.shapes import Space, brief


def bind(name: str, signature: inspect.Signature, *args: Any, **named: Any) -> inspect.BoundArguments:
    """The arguments of a call, with defaults. Raises TypeError, which says how what is called so is written."""
    try: bound = signature.bind(*args, **named)
    except TypeError as error: raise TypeError(f"{name}({', '.join(signature.parameters)}): {error}") from None
    bound.apply_defaults()
    return bound


def monoid_of(given: Any, where: str) -> Any:
    """A monoid, or the one of that name. Raises TypeError for what is none."""
    if isinstance(given, str):
        from opmatrix.monoids import MONOIDS, called
        try: return called(given)
        except ValueError:
            known = ", ".join(sorted(each.__name__ for each in MONOIDS))
            raise TypeError(f"{where}: there is no monoid {given!r}: {known}, or a subclass of Monoid") from None
    if hasattr(given, "merge") or not (isinstance(given, type | int | float) or is_term(given)): return given
    raise TypeError(f"{where}: {brief(given)} is no monoid: give one of opmatrix.monoids, or a subclass of Monoid")


def pattern_of(given: Any, where: str) -> Any:
    """A pattern. Raises TypeError for what is none, such as its name."""
    if hasattr(given, "sees") or not (isinstance(given, str | type | int | float | list | tuple | np.ndarray | None)
                                      or is_term(given) or hasattr(given, "__code__")): return given
    from opmatrix import patterns
    if isinstance(given, str) and hasattr(getattr(patterns, given, None), "sees"):
        raise TypeError(f"{where}: where={given!r} is a text, no pattern: give opmatrix.{given} itself")
    words = brief(given.tolist() if isinstance(given, np.ndarray) else given)
    raise TypeError(f"{where}: where={words} is no pattern: give one such as sequence & causal, or mask(table)")


def is_term(given: Any) -> bool:
    """Whether it is an operator or a value of the algebra."""
    return hasattr(given, "kind") or hasattr(type(given), "made")


def is_fixed_value(term: Any, columns: Any) -> bool:
    """Whether an operator on the right of a value of so many columns is meant as a value, not to be applied: one that
    needs no x, whose rows are no tokens, or are what the columns stand for."""
    if not term.constant or term.uniform: return False
    return not isinstance(term.out.rows, Space) or term.out.rows is columns


def check_eps(name: str, eps: Any) -> None:
    """Raises InputError unless the number that is added to a mean of squares is one that kernels take; what stands for
    one in a law passes."""
    least, most = EPS
    if isinstance(eps, str | bool) or (isinstance(eps, Real) and not least <= float(eps) <= most):
        raise InputError(f"{name}({eps!r}): eps is added to a mean of squares before its root is divided by, in "
                         f"float32: give a number from {least:.2g} to {most:.2g}, such as 1e-5")


def refuse_constant_sum(over: Any) -> NoReturn:
    """Raises TypeError for the sum of a row over a monoid whose weights sum to one: it is 1, whatever the row holds."""
    name = over.__name__
    raise TypeError(f"x @ {name}: {name} weighs values by scores, and a row of scores alone sums to 1 whatever it "
                    f"holds: give both, product(scores, values, over={name}); each row's own {name} is x @ share")
