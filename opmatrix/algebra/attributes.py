"""Checks of the attributes that a caller gives for a term; each returns the attribute as the term holds it. A value
that cannot be meant is refused here, in the caller's words. A stand-in for an attribute in a law passes."""

from __future__ import annotations

import inspect
from numbers import Real
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from formats.core.epilogue import EPS
from formats.core.errors import InputError

LEAST_SQUARE = 2.0**-1022  # the smallest normal number of float64


# common types that are neither a monoid, a pattern nor a size; any other object may stand for one in laws
STRANGERS = (
    type(None),
    type,
    bool,
    int,
    float,
    str,
    bytes,
    list,
    tuple,
    set,
    dict,
    np.ndarray,
    np.generic,
    BuiltinFunctionType,
    FunctionType,
    ModuleType,
)


def brief(thing: object, limit: int = 100) -> str:
    """Return a thing in words for a message, on one line, shortened where it is long; a term as readers have it."""
    words = (repr(thing) if hasattr(thing, "kind") else str(thing)).replace("\n", " ")
    return words if len(words) <= limit else f"{words[: limit - 20]} … {words[-16:]}"


def bind(name: str, signature: inspect.Signature, *args: object, **named: object) -> inspect.BoundArguments:
    """Bind the arguments of a call, with defaults. Raises TypeError, whose text shows the parameters of `name`."""
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        raise TypeError(f"{name}({', '.join(signature.parameters)}): {error}") from None
    bound.apply_defaults()
    return bound


def whole_of(given: object, where: str, least: int | None = None) -> Any:
    """Return a whole number from `least` on as an int of Python; a stand-in for one in a law stays. Raises ValueError
    for a number below `least`, TypeError for anything else."""
    if getattr(given, "is_Integer", False):
        given = int(given)  # type: ignore[call-overload]    # an integer of sympy
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if least is None or given >= least:
            return int(given)
        raise ValueError(f"{where} is {given}: it must be a whole number from {least} on")
    if not isinstance(given, STRANGERS) and not hasattr(given, "into"):
        return given  # such as a size to come
    raise TypeError(
        f"{where} is {brief(repr(given))}: it must be a whole number" + f" from {least} on" * (least is not None)
    )


def is_term(given: object) -> bool:
    """True if it is an operator or a value of the algebra."""
    return hasattr(given, "kind") or hasattr(type(given), "made")


def check_eps(name: str, eps: object) -> None:
    """Raise InputError unless kernels take this number, which is added to a mean of squares; a stand-in for one in a
    law passes."""
    refuse_outside(name, "eps is added to a mean of squares under a root, in float32", eps, *EPS)


def check_least(eps: object) -> None:
    """Raise InputError unless kernels take this number, which is added to the square of a length."""
    refuse_outside("unit_length", "it is added to the square of a length under a root", eps, LEAST_SQUARE, EPS[1])


def refuse_outside(name: str, what: str, given: Any, least: float, most: float) -> None:
    """Raise InputError for a number outside `least` to `most`, and for a value that is no number. `name` is the
    operator that it is an argument of, `what` its purpose."""
    one = given.item() if isinstance(given, np.ndarray) and given.size == 1 else given
    number = isinstance(one, Real) and not isinstance(one, bool)
    if (number and not least <= one <= most) or (not number and isinstance(one, STRANGERS)):
        raise InputError(
            f"{name}({brief(repr(given))}): {what}: give a number from {least:.2g} to {most:.2g}, such as 1e-5"
        )
