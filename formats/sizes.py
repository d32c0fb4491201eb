"""Sizes are live symbols and an array is an annotation: `f4[n, p]` says what is stored, `f4[n, p].bytes` what it costs.

The sizes below are the usual ones; a format that needs another makes it with `size`. Any sympy expression of sizes is
a size too: `u4[p + 1]`, `f4[blocks, r, c]`, `u1[p, n / group * kept]`."""
import ast
import difflib
import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import sympy

from .shapes import T

__all__ = ["Array", "Number", "SizeError", "T", "blocks", "c", "f2", "f4", "f8", "group", "i4", "i8", "k", "kept", "m",
           "n", "nnz", "p", "r", "size", "u1", "u2", "u4", "unsigned"]


class SizeError(TypeError):
    """An annotation that is no array of sizes: names the file, the line and the token."""


def size(name: str, least: int = 1) -> sympy.Symbol:
    """A new size: an integer symbol, at least 1, or at least 0 for a count of what may be absent."""
    return sympy.Symbol(name, integer=True, **{"positive" if least else "nonnegative": True})


m, n, k, p = map(size, "mnkp")                               # rows; inputs, contracted axis, outputs of a product
r, c = map(size, "rc")                                       # rows and columns of a tile; r also the rank of a product
kept, group = map(size, ("kept", "group"))                   # N and M of an N:M pattern
nnz, blocks = size("nnz", 0), size("blocks", 0)              # stored numbers, stored tiles


@dataclass(frozen=True)
class Number:
    """How one number is stored: name, bytes, and the dtype once sizes are known. `number[sizes]` declares an array."""
    name: str
    bytes: sympy.Expr
    dtype: Callable[[Mapping[sympy.Symbol, int]], np.dtype[Any]]

    def __getitem__(self, sizes: Any) -> "Array":
        sizes = sizes if isinstance(sizes, tuple) else (sizes,)
        for axis, given in enumerate(sizes):
            if complaint := wrong(given):
                raise SizeError(f"{complaint}\n{underlined(sys._getframe(1), axis)}")
        return Array(self, tuple(map(sympy.sympify, sizes)))

    def __str__(self) -> str: return self.name
    def __repr__(self) -> str: return self.name


@dataclass(frozen=True)
class Array:
    """A declared array: numbers of one kind over sizes, in C order."""
    number: Number
    shape: tuple[sympy.Expr, ...]

    @property
    def count(self) -> sympy.Expr:
        """How many numbers, as an expression in the sizes."""
        return sympy.Mul(*self.shape)

    @property
    def bytes(self) -> sympy.Expr:
        """What it stores, as an expression in the sizes."""
        return self.number.bytes * self.count

    def __repr__(self) -> str: return f"{self.number}[{', '.join(map(str, self.shape))}]"


def plain(name: str) -> Number:
    dtype = np.dtype(name)
    return Number(name, sympy.Integer(dtype.itemsize), lambda sizes: dtype)


f2, f4, f8, i4, i8, u1, u2, u4 = map(plain, ("f2", "f4", "f8", "i4", "i8", "u1", "u2", "u4"))


def unsigned(limit: sympy.Symbol) -> Number:
    """The narrowest of u2 and u4 that can name one of `limit` things: unsigned, so a kernel needs no sign extension."""
    name = f"unsigned({limit})"
    width = sympy.Piecewise((2, limit <= 65535), (4, True))
    return Number(name, width, lambda sizes: np.dtype("u2" if sizes[limit] <= 65535 else "u4"))


def wrong(given: Any) -> str:
    """What is the matter with a size; empty if nothing is."""
    if isinstance(given, str):
        return f"the size {given!r} is text; write {suggest(given) or 'a size'} without quotes"
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
    """The known size that a name was probably meant to be; empty if none is near."""
    known = [name for name, value in globals().items() if isinstance(value, sympy.Symbol)]
    return next(iter(difflib.get_close_matches(name, known, 1, 0.5)), "")


def underlined(frame: FrameType, axis: int) -> str:
    """file:line of the annotation that a frame evaluates, its source, and a caret under the given one of its sizes."""
    code, place = frame.f_code, f"  {frame.f_code.co_filename}:{frame.f_lineno}"
    first, last, left, right = list(code.co_positions())[frame.f_lasti // 2]
    source = linecache.getline(code.co_filename, frame.f_lineno).rstrip()
    if not source or first != last or left is None: return place
    match ast.parse(source.encode()[left:right].decode(), mode="eval").body:
        case ast.Subscript(slice=ast.Tuple(elts=tokens)): token = tokens[axis]
        case ast.Subscript(slice=token): pass
        case _: return place
    caret = " " * (left + token.col_offset) + "^" * ((token.end_col_offset or 0) - token.col_offset)
    indent = len(source) - len(source.lstrip())
    return f"{place}\n  {source[indent:]}\n  {caret[indent:]}"
