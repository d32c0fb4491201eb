"""Sizes that an input or a batch brings, known by identity. sympy, whose import takes most of the algebra's import
time, is imported only when a size is first calculated with; terms whose other sizes are whole numbers never import
it."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Union

if TYPE_CHECKING:
    import sympy

LiveSize: TypeAlias = Union[int, "sympy.Expr"]  # `m + 1` is a size, and a Live, which stands for its symbol


class Live:
    """A positive whole number that is not fixed yet. Arithmetic gives expressions of sympy, in which its symbol equals
    it, and has its hash. An attribute that is not found here is looked up in its symbol."""

    is_Symbol = True

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @cached_property
    def expression(self) -> sympy.Symbol:
        """Its symbol of sympy."""
        symbol = symbol_class(type(self).__name__)(self.name, integer=True, positive=True)
        symbol.live = self
        return symbol

    def _sympy_(self) -> sympy.Symbol:
        return self.expression

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.expression, name)

    def __neg__(self) -> sympy.Expr:
        return -self.expression

    def __add__(self, other: LiveSize) -> sympy.Expr:
        return self.expression + other

    def __radd__(self, other: LiveSize) -> sympy.Expr:
        return other + self.expression

    def __sub__(self, other: LiveSize) -> sympy.Expr:
        return self.expression - other

    def __rsub__(self, other: LiveSize) -> sympy.Expr:
        return other - self.expression

    def __mul__(self, other: LiveSize) -> sympy.Expr:
        return self.expression * other

    def __rmul__(self, other: LiveSize) -> sympy.Expr:
        return other * self.expression

    def __truediv__(self, other: LiveSize) -> sympy.Expr:
        return self.expression / other

    def __rtruediv__(self, other: LiveSize) -> sympy.Expr:
        return other / self.expression

    def __floordiv__(self, other: LiveSize) -> sympy.Expr:
        return self.expression // other

    def __mod__(self, other: LiveSize) -> sympy.Expr:
        return self.expression % other

    def __pow__(self, other: float) -> sympy.Expr:
        return self.expression**other

    def __lt__(self, other: LiveSize) -> sympy.Basic:
        return self.expression < other

    def __le__(self, other: LiveSize) -> sympy.Basic:
        return self.expression <= other

    def __gt__(self, other: LiveSize) -> sympy.Basic:
        return self.expression > other

    def __ge__(self, other: LiveSize) -> sympy.Basic:
        return self.expression >= other


class Space(Live):
    """A named set of rows, whose number is live: T tokens, S sequences, others by name."""


@cache
def space(name: str) -> Space:
    """Return the space of that name."""
    return Space(name)


T, S = space("T"), space("S")  # tokens and sequences of the batch
H, N = Live("H"), Live("N")  # heads and columns of an input, not fixed yet


@cache
def symbol_class(of: str) -> Any:
    """Return the class of the symbols of such sizes in expressions: symbols that have the hash of their size,
    `live`."""
    import sympy

    return type(of, (sympy.Symbol,), {"__slots__": ("live",), "__hash__": lambda self: hash(self.live)})


def find_spaces(n: LiveSize) -> set[Space]:
    """Return the spaces whose rows a size counts."""
    if isinstance(n, int):
        return set()
    return {symbol.live for symbol in n.free_symbols if isinstance(getattr(symbol, "live", None), Space)}
