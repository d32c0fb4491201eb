"""Symbolic sizes, and arrays as annotations: `f4[n, p]` declares a stored array, `f4[n, p].bytes` is its size in bytes.

The sizes below are the usual ones; a format that needs another makes it with `size`. Any expression of sizes is a size
too: `u4[p + 1]`, `f4[blocks, r, c]`, `u1[p, n / group * kept]`. It evaluates without sympy, exactly; only a caller
that needs an expression of sympy imports it."""

import ast
import linecache
import math
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    import sympy

__all__ = [
    "Array",
    "Max",
    "Min",
    "Number",
    "Size",
    "SizeError",
    "T",
    "blocks",
    "c",
    "ceiling",
    "f2",
    "f4",
    "f8",
    "floor",
    "group",
    "i4",
    "i8",
    "k",
    "kept",
    "m",
    "n",
    "nnz",
    "p",
    "r",
    "size",
    "u1",
    "u2",
    "u4",
    "unsigned",
]

V = TypeVar("V")
Term: TypeAlias = "Size | int | float | Fraction | sympy.Expr"  # operands of expressions of sizes
Expression: TypeAlias = "Size | sympy.Expr"  # results of expressions of sizes
Acts: TypeAlias = Mapping[str, Callable[..., Any]]
PYTHON_NUMBERS = int, float, Fraction
MARKS: Acts = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "": lambda number: number,
}
ON_NUMBERS: Acts = {
    **MARKS,
    "/": lambda a, b: Fraction(a) / b,
    "ceiling": math.ceil,
    "floor": math.floor,
    "Min": min,
    "Max": max,
}
UINT16_MAX = 65535  # the largest number in two bytes


class SizeError(TypeError):
    """An annotation that is no array of sizes. Names the file, the line and the token."""


@dataclass(frozen=True)
class Size:
    """An integer of at least `least`, not yet known and identified by its name; or an operation on sizes. Attributes
    that this class lacks are read from its sympy expression: `size.free_symbols`, `size.subs(n, 3)`."""

    name: str
    parts: "tuple[Term, ...]" = ()
    least: int = 1

    def at(self, sizes: "Mapping[Size, int]") -> int | Fraction:
        """Evaluate exactly: an int, or a Fraction if the value is not an integer. KeyError names a size that `sizes`
        lacks."""
        value: int | Fraction = self.read(lambda each: sizes[each], ON_NUMBERS)
        return int(value) if value == int(value) else value

    def read(self, name: Callable[["Size"], V], acts: Acts) -> V:
        """Fold the expression: `name` maps a named size, `acts` maps an operation."""
        if self.is_Symbol:
            return name(self)
        value: V = acts[self.name](*(part.read(name, acts) if isinstance(part, Size) else part for part in self.parts))
        return value

    @property
    def is_Symbol(self) -> bool:
        """True for a named size, which has no parts; the name is that of sympy's attribute."""
        return not self.parts

    @property
    def is_positive(self) -> bool | None:
        """True if the size is certainly above 0; None where sympy cannot decide."""
        return self.least > 0 if self.is_Symbol else self._sympy_().is_positive

    @cached_property
    def expression(self) -> "sympy.Expr":
        """The size as a sympy expression; names become integer symbols, positive or nonnegative."""
        import sympy

        functions = {name: getattr(sympy, name) for name in ("ceiling", "floor", "Min", "Max")}
        return self.read(
            lambda each: sympy.Symbol(each.name, integer=True, **{"positive" if each.least else "nonnegative": True}),
            {**MARKS, **functions, "/": operator.truediv, "": sympy.sympify},
        )

    def _sympy_(self) -> "sympy.Expr":
        return self.expression

    def __str__(self) -> str:
        return self.name if self.is_Symbol else str(self.expression)

    def __repr__(self) -> str:
        return str(self)

    def __hash__(self) -> int:
        return hash(self.name) if self.is_Symbol else hash(self.expression)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, PYTHON_NUMBERS):
            return bool(self.expression == other)
        if not isinstance(other, Size):
            return NotImplemented
        if self.is_Symbol or other.is_Symbol:
            return (self.name, self.parts, self.least) == (other.name, other.parts, other.least)
        return bool(self.expression == other.expression)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.expression, name)

    def __neg__(self) -> "Size":
        return make_size("*", -1, self)

    def __add__(self, other: "Term") -> "Size":
        return make_size("+", self, other)

    def __radd__(self, other: "Term") -> "Size":
        return make_size("+", other, self)

    def __sub__(self, other: "Term") -> "Size":
        return make_size("-", self, other)

    def __rsub__(self, other: "Term") -> "Size":
        return make_size("-", other, self)

    def __mul__(self, other: "Term") -> "Size":
        return make_size("*", self, other)

    def __rmul__(self, other: "Term") -> "Size":
        return make_size("*", other, self)

    def __truediv__(self, other: "Term") -> "Size":
        return make_size("/", self, other)

    def __rtruediv__(self, other: "Term") -> "Size":
        return make_size("/", other, self)

    def __floordiv__(self, other: "Term") -> "Size":
        return make_size("//", self, other)

    def __mod__(self, other: "Term") -> "Size":
        return make_size("%", self, other)

    def __pow__(self, other: "Term") -> "Size":
        return make_size("**", self, other)

    def __ceil__(self) -> "Size":
        return make_size("ceiling", self)

    def __lt__(self, other: "Term") -> "sympy.Basic":
        return self.expression < other

    def __le__(self, other: "Term") -> "sympy.Basic":
        return self.expression <= other

    def __gt__(self, other: "Term") -> "sympy.Basic":
        return self.expression > other

    def __ge__(self, other: "Term") -> "sympy.Basic":
        return self.expression >= other


def make_size(name: str, *parts: Term) -> Size:
    """Make an operation on sizes and numbers. NotImplemented for operands of other types, such as sympy's, which then
    handle the operation themselves."""
    if not all(isinstance(part, (Size, *PYTHON_NUMBERS)) for part in parts):
        return NotImplemented  # type: ignore[no-any-return]
    return Size(name, parts)


def size_function(name: str) -> Callable[..., Expression]:
    """Make the function of this name for sizes, or for expressions of sympy."""

    def of(*parts: Term) -> Expression:
        """Apply the function to sizes; where these decline, to expressions of sympy."""
        if (result := make_size(name, *parts)) is not NotImplemented:
            return result
        import sympy

        return getattr(sympy, name)(*parts)

    return of


ceiling, floor, Min, Max = map(size_function, ("ceiling", "floor", "Min", "Max"))


def size(name: str, least: int = 1) -> Size:
    """Make a new size: an integer of at least 1, or of at least 0 for a count of entries that may be absent."""
    return Size(name, (), 1 if least else 0)


T, S, m, n, k, p = map(size, "TSmnkp")  # of a batch: rows, sequences; of a product: rows, inputs, inner axis, outputs
r, c = map(size, "rc")  # rows and columns of a tile; r also the rank of a product
kept, group = map(size, ("kept", "group"))  # N and M of an N:M pattern
nnz, blocks = size("nnz", 0), size("blocks", 0)  # stored numbers, stored tiles


@dataclass(frozen=True)
class Number:
    """The storage of one number: name and dtype. Where it counts up to a `limit` that two bytes do not hold, it is
    stored in four. `number[sizes]` declares an array."""

    name: str
    stored: np.dtype
    limit: "Expression | None" = None

    def dtype(self, sizes: Mapping[Size, int]) -> np.dtype:
        """Return the dtype, once sizes are known."""
        return np.dtype("u4") if self.limit is not None and sizes[self.limit] > UINT16_MAX else self.stored

    @property
    def bytes(self) -> "int | sympy.Expr":
        """Bytes of one number, as an expression where they depend on a size."""
        if self.limit is None:
            return self.stored.itemsize
        import sympy

        return sympy.Piecewise((self.stored.itemsize, sympy.sympify(self.limit) <= UINT16_MAX), (4, True))

    def __getitem__(self, sizes: "Expression | int | tuple[Expression | int, ...]") -> "Array":
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)
        for axis, length in enumerate(sizes):
            if complaint := wrong(length):
                raise SizeError(f"{complaint}\n{underlined(sys._getframe(1), axis)}")
        return Array(self, tuple(map(as_size, sizes)))

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Array:
    """A declared array: numbers of one kind over sizes, in C order. A sympy expression may be one of the sizes."""

    number: Number
    shape: tuple[Expression, ...]

    @property
    def count(self) -> "sympy.Expr":
        """The count of its numbers, as an expression in the sizes."""
        import sympy

        return sympy.Mul(*self.shape)

    @property
    def bytes(self) -> "sympy.Expr":
        """The bytes that it stores, as an expression in the sizes."""
        return self.number.bytes * self.count

    def __repr__(self) -> str:
        return f"{self.number}[{', '.join(map(str, self.shape))}]"


class Later:
    """A class attribute that is computed on first access."""

    def __init__(self, find: Callable[[], object]) -> None:
        self.find = find

    def __get__(self, instance: object, owner: type) -> object:
        if not hasattr(self, "found"):
            self.found = self.find()
        return self.found


def total_bytes(fields: Mapping[str, Array]) -> "sympy.Expr":
    """Return the bytes of all these arrays, as one expression."""
    import sympy

    return sympy.expand(sympy.Add(*(array.bytes for array in fields.values())))


f2, f4, f8, i4, i8, u1, u2, u4 = (
    Number(name, np.dtype(name)) for name in ("f2", "f4", "f8", "i4", "i8", "u1", "u2", "u4")
)


def unsigned(limit: "Expression | int") -> Number:
    """Choose the narrower of u2 and u4 that can index `limit` entries. It is unsigned, so a kernel needs no sign
    extension."""
    return Number(f"unsigned({limit})", np.dtype("u2"), as_size(limit))


def as_size(given: "Expression | int") -> Expression:
    """Convert a size to one of this module where it is a number or a name."""
    if isinstance(given, Size):
        return given
    if isinstance(given, int):
        return Size("", (given,))
    return size(given.name, given.is_positive) if given.is_Symbol else given


def wrong(given: object) -> str:
    """Describe the fault of a size; empty if there is none."""
    if isinstance(given, Size):
        return ""
    if isinstance(given, str):
        return f"the size {given!r} is text; write {suggest(given) or 'a size'} without quotes"
    if type(given) is int and given >= 0:
        return ""
    import sympy

    if not isinstance(given, sympy.Expr | int) or isinstance(given, bool):
        return f"the size {given!r} is a {type(given).__name__}, not a whole number or a size such as n, p or nnz"
    expression = sympy.sympify(given)
    for symbol in sorted(expression.free_symbols, key=str):
        if not (symbol.is_integer and symbol.is_nonnegative):
            hint = f" or did you mean {near}?" if (near := suggest(symbol.name)) else ""
            return f"the size {symbol} is not known to be a whole number: make it with size({symbol.name!r}){hint}"
    if expression.is_number and not (expression.is_integer and expression.is_nonnegative):
        return f"the size {given} is not a whole number >= 0"
    return ""


def suggest(name: str) -> str:
    """Return the known size that a name was probably meant to be; empty if none is near."""
    import difflib

    known = [name for name, value in globals().items() if isinstance(value, Size)]
    return next(iter(difflib.get_close_matches(name, known, 1, 0.5)), "")


def underlined(frame: FrameType, axis: int) -> str:
    """Return file:line of the annotation that a frame evaluates, its source, and a caret under the size at `axis`."""
    code, place = frame.f_code, f"  {frame.f_code.co_filename}:{frame.f_lineno}"
    first, last, left, right = list(code.co_positions())[frame.f_lasti // 2]
    source = linecache.getline(code.co_filename, frame.f_lineno).rstrip()
    if not source or first != last or left is None:
        return place
    match ast.parse(source.encode()[left:right].decode(), mode="eval").body:
        case ast.Subscript(slice=ast.Tuple(elts=tokens)):
            token = tokens[axis]
        case ast.Subscript(slice=token):
            pass
        case _:
            return place
    caret = " " * (left + token.col_offset) + "^" * ((token.end_col_offset or 0) - token.col_offset)
    indent = len(source) - len(source.lstrip())
    return f"{place}\n  {source[indent:]}\n  {caret[indent:]}"


def declared_array(cls: type, name: str, given: object) -> Array:
    """Return the annotation of a field; TypeError if it is no array."""
    if isinstance(given, Array):
        return given
    why = "text (is there a `from __future__ import annotations`?)" if isinstance(given, str) else type(given).__name__
    raise TypeError(f"{cls.__name__}.{name} is annotated with {given!r}, {why}; write an array such as f4[n, p]")
