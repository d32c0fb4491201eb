"""Comparison of Python functions: two compute the same, as far as can be seen, if they are the same code over the same
values."""

from __future__ import annotations

from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np

from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.data import Data


class Immutable:
    """A thing that cannot be changed, equal to another where its parts are: functions over equal ones compute alike."""


IMMUTABLE = int, str, bytes, bool, type(None), Data, Relation, Immutable


def compute_alike(one: object, other: object, compared: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """True if two functions are one, or have the same code, equal defaults and equal values that they close over. An
    object that cannot be inspected, such as one of a custom class, is equal to itself alone. `compared`: pairs that are
    being compared."""
    if one is other or (id(one), id(other)) in compared:
        return True
    if isinstance(one, MethodType):
        return bool(one == other)
    if not (isinstance(one, FunctionType) and isinstance(other, FunctionType)):
        return False
    if one.__code__ != other.__code__ or one.__globals__ is not other.__globals__:
        return False
    inside = compared | {(id(one), id(other))}
    return (
        equal_values(one.__defaults__, other.__defaults__, inside)
        and equal_values(one.__kwdefaults__, other.__kwdefaults__, inside)
        and equal_values(one.__closure__, other.__closure__, inside)
    )


def equal_values(one: Any, other: Any, compared: frozenset[tuple[int, int]]) -> bool:
    """True if two values that functions hold are equal and stay so: a mutable value is equal to itself alone, arrays
    apart."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    match one:
        case CellType():
            try:
                return equal_values(one.cell_contents, other.cell_contents, compared)
            except ValueError:
                return False  # one of them is still empty
        case tuple():
            return len(one) == len(other) and all(equal_values(a, b, compared) for a, b in zip(one, other, strict=True))
        case np.ndarray():
            return Data(one) == Data(other) if one.dtype.kind in "fiub" else False
        case np.generic():
            return bool(one.tobytes() == other.tobytes())
        case float():
            return bool(one.hex() == other.hex())
        case FunctionType() | MethodType():
            return compute_alike(one, other, compared)
    return isinstance(one, IMMUTABLE) and bool(one == other)
