"""Sizes that an input or a batch brings, known by identity. sympy, whose import takes most of an algebra's, is
imported when one is first calculated with: by terms whose other sizes are whole numbers, never."""
from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import sympy

LiveSize: TypeAlias = Union[int, "sympy.Expr"]              # `m + 1` is a size, and a Live, which stands for its symbol


class Live:
    """A positive whole number that nobody has fixed yet; arithmetic gives expressions of sympy, in which its symbol
    equals it, and has its hash. What is not found here its symbol answers."""

    is_Symbol = True

    def __init__(self, name: str) -> None: self.name = name
    def __str__(self) -> str: return self.name
    __repr__ = __str__

    @cached_property
    def expression(self) -> sympy.Symbol:
        """Its symbol of sympy."""
        made = symbol_class(type(self).__name__)(self.name, integer=True, positive=True)
        made.live = self
        return made

    def _sympy_(self) -> sympy.Symbol: return self.expression

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"): raise AttributeError(name)
        return getattr(self.expression, name)

    def __neg__(self) -> sympy.Expr: return -self.expression
    def __add__(self, other: LiveSize) -> sympy.Expr: return self.expression + other
    def __radd__(self, other: LiveSize) -> sympy.Expr: return other + self.expression
    def __sub__(self, other: LiveSize) -> sympy.Expr: return self.expression - other
    def __rsub__(self, other: LiveSize) -> sympy.Expr: return other - self.expression
    def __mul__(self, other: LiveSize) -> sympy.Expr: return self.expression * other
    def __rmul__(self, other: LiveSize) -> sympy.Expr: return other * self.expression
    def __truediv__(self, other: LiveSize) -> sympy.Expr: return self.expression / other
    def __rtruediv__(self, other: LiveSize) -> sympy.Expr: return other / self.expression
    def __floordiv__(self, other: LiveSize) -> sympy.Expr: return self.expression // other
    def __mod__(self, other: LiveSize) -> sympy.Expr: return self.expression % other
    def __pow__(self, other: float) -> sympy.Expr: return self.expression ** other
    def __lt__(self, other: LiveSize) -> sympy.Basic: return self.expression < other
    def __le__(self, other: LiveSize) -> sympy.Basic: return self.expression <= other
    def __gt__(self, other: LiveSize) -> sympy.Basic: return self.expression > other
    def __ge__(self, other: LiveSize) -> sympy.Basic: return self.expression >= other


class Space(Live):
    """A named set of rows, whose number is live: T tokens, S sequences, others by name."""


@cache
def space(name: str) -> Space:
    """The space of that name."""
    return Space(name)


T, S = space("T"), space("S")                               # tokens and sequences of the batch
H, N = Live("H"), Live("N")                                 # heads and columns of an input nobody has fixed yet


@cache
def symbol_class(of: str) -> Any:
    """What the symbols of such sizes are in expressions: symbols that have the hash of their size, `live`."""
    import sympy
    return type(of, (sympy.Symbol,), {"__slots__": ("live",), "__hash__": lambda self: hash(self.live)})


def find_spaces(n: LiveSize) -> set[Space]:
    """The spaces whose rows a size counts."""
    if isinstance(n, int): return set()
    return {each.live for each in n.free_symbols if isinstance(getattr(each, "live", None), Space)}
