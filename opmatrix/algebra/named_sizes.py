"""The sizes of a term that have names instead of numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from formats.core.errors import InputError
from opmatrix.algebra.attributes import brief
from opmatrix.algebra.data import Data, LiveNumber
from opmatrix.algebra.shapes import is_named
from opmatrix.algebra.term import Operator

if TYPE_CHECKING:
    import sympy


def find_symbols(attribute: object) -> list[sympy.Symbol]:
    """Return the symbols in a size, or in a number that is made of sizes, by name."""
    if isinstance(attribute, LiveNumber):
        attribute = attribute.expression
    return sorted(getattr(attribute, "free_symbols", ()), key=str)


def find_names(term: Operator) -> Iterator[tuple[Operator, sympy.Symbol]]:
    """Yield every node where a size has a name, with the name."""
    for node in term.walk():
        if node.kind.name == "symbol":
            continue  # it stands for any operator, and is refused as such
        for attribute in node.attributes:
            sizes = (attribute, *(attribute.shape if isinstance(attribute, Data) else ()))
            yield from ((node, symbol) for size in sizes for symbol in find_symbols(size) if is_named(symbol))


class UnnumberedSize(InputError, TypeError):
    """A size that has a name, where a number is needed."""


def require_numbers(term: Operator) -> None:
    """Raise InputError for a size that has a name, where only numbers will do."""
    for node, name in find_names(term):
        raise UnnumberedSize(f"{brief(node)}: {name} is the name of a size: a number is needed here")
