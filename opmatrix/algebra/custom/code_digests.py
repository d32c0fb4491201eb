"""Digests of Python functions: of their operations on stand-ins where these can be noted, else of their code, which
belongs to one version of Python."""

import hashlib
import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, NoReturn

import numpy as np

from opmatrix.algebra.custom.custom_names import DIGITS_OF_DIGEST

TWO_SIDED = "add sub mul floordiv mod pow truediv and or xor lt le gt ge eq ne lshift rshift"
MAX_DEPTH = 8  # levels of calls that are followed


def digest_text(*parts: str) -> str:
    """Return the digest of texts, which are kept apart: the first DIGITS_OF_DIGEST hexadecimal digits of SHA-256."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS_OF_DIGEST]


class Noted:
    """A number that is not known: its text records the operations on it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **more: object) -> "Noted":
        return Noted(f"{ufunc.__name__}.{method}({', '.join(map(note, inputs))}, {sorted(more)})")

    def __abs__(self) -> "Noted":
        return Noted(f"absolute.__call__({self.text}, [])")

    def __neg__(self) -> "Noted":
        return Noted(f"neg({self.text})")

    def __invert__(self) -> "Noted":
        return Noted(f"invert({self.text})")

    def __bool__(self) -> NoReturn:
        raise TypeError("it uses an unknown number as a condition")

    __hash__ = None  # type: ignore[assignment]    # equality is not known


def noted(name: str, turned: bool) -> Callable[[Noted, object], Noted]:
    """Return an operation of two numbers; where it is turned, the second number stands first."""

    def operation(one: Noted, other: object) -> Noted:
        """Note the operation of a stand-in with another operand."""
        sides = (note(other), note(one)) if turned else (note(one), note(other))
        return Noted(f"{name}({', '.join(sides)})")

    return operation


for _ in TWO_SIDED.split():
    setattr(Noted, f"__{_}__", noted(_, False))
    setattr(Noted, f"__r{_}__", noted(_, True))


def note(given: object) -> str:
    """Return an operand as text. Raises TypeError for anything but numbers and arrays."""
    match given:
        case Noted():
            return given.text
        case bool() | int() | float() | np.generic():
            return repr(float(given))
        case np.ndarray():
            return describe_value(given)
    raise TypeError(f"an operand is a {type(given).__name__}, not a number")


def digest_code(*functions: object) -> str:
    """Return a digest of functions and values: of their code, the values that it names in its own module, and the
    values that it holds."""
    return digest_text(f"Python {sys.version_info[:2]}", *map(describe_value, functions))


def describe_value(value: Any, depth: int = 0) -> str:
    """Return a value as text that is the same in every process; of an object that cannot be inspected, its type."""
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case np.generic():
            return f"{value.dtype} {value!r}"
        case np.ndarray():
            return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        case tuple() | list():
            return f"({', '.join(describe_value(element, depth + 1) for element in value)})"
        case CodeType():
            return describe_code(value, depth)
        case staticmethod():
            return describe_value(value.__func__, depth)
        case FunctionType() if depth < MAX_DEPTH:
            held = [cell.cell_contents for cell in value.__closure__ or () if cell_filled(cell)]
            used = [value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__]
            parts = (value.__code__, value.__defaults__, *sorted((value.__kwdefaults__ or {}).items()), *held, *used)
            return f"function({', '.join(describe_value(part, depth + 1) for part in parts)})"
    return getattr(value, "__qualname__", type(value).__qualname__)


def cell_filled(cell: Any) -> bool:
    """True if a closure's cell has a value: one of a variable that is bound later has none yet."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def describe_code(code: CodeType, depth: int) -> str:
    """Return code as text, without its name, its place and its docstring."""
    constants = code.co_consts[1:] if code.co_consts and isinstance(code.co_consts[0], str) else code.co_consts
    return f"{code.co_code.hex()} {code.co_names} {[describe_value(constant, depth + 1) for constant in constants]}"
