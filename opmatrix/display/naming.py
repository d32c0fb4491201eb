"""The names of arrays, symbols and sizes in the text of a term: identifiers that name nothing else."""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import sympy
from sympy.printing.str import StrPrinter

from opmatrix.algebra import monoids, operators
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.monoids import is_known
from opmatrix.algebra.named_sizes import find_symbols
from opmatrix.algebra.positions import patterns
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import KINDS, Operator, formula

MAX_LITERAL = 10  # an array of fewer numbers is written out

Leaf: TypeAlias = Data | Operator | Pattern | type[Monoid] | sympy.Symbol  # a thing that needs a name


class SizeWriter(StrPrinter):  # type: ignore[misc]
    """An expression of sizes as Python, with roots as powers."""

    def __init__(self, words: Mapping[sympy.Symbol, str]) -> None:
        super().__init__()
        self.words = words

    def _print_Symbol(self, symbol: sympy.Symbol) -> str:
        return self.words.get(symbol, str(symbol.name))

    def _print_floor(self, of: sympy.floor) -> str:
        return f"(({self._print(of.args[0])})//1)"

    def _print_Pow(self, power: sympy.Pow, rational: bool = True) -> str:
        return str(super()._print_Pow(power, rational=True))


def has_name(data: Data) -> bool:
    """True if the array was given a name."""
    return bool(data.name or (data.base and data.base.name))


def is_scalar(data: Data) -> bool:
    """True if the array is one number without a name, which is written out."""
    return data.shape == (1,) and not data.name


def literal(data: Data) -> bool:
    """True if an array is written out."""
    if isinstance(data, Promised) or has_name(data) or data.shape == (1,) or len(data.shape) > 2:
        return False
    array = data.array
    plain = array.dtype in (np.float64, np.int64, bool) and 0 < array.size < MAX_LITERAL
    return plain and bool(np.isfinite(array).all())


def label_leaves(nodes: list[Operator], names: Mapping[str, Iterable[object]]) -> dict[Leaf, str]:
    """Return a name of its own for every size, array and symbol, and for custom sums and patterns: an identifier that
    names nothing else, such as a family in `names`, which is written by its name with these arguments."""
    labels: dict[Leaf, str] = {}
    taken = {*vocabulary(), *names, "x"}
    attributes = [a for node in nodes if node.kind.name != "symbol" for a in node.attributes]
    sizes = dict.fromkeys(symbol for a in (*attributes, *chain(*names.values())) for symbol in find_symbols(a))
    for leaf in dict.fromkeys([*sizes, *(leaf for node in nodes for leaf in leaves(node))]):
        name = spelt(leaf)
        while normal(name) in taken or keyword.iskeyword(name):
            name += "_"
        labels[leaf] = name
        taken.add(normal(name))
    return labels


def spelt(leaf: Leaf) -> str:
    """Return the name that a leaf would have on its own."""
    match leaf:
        case Data():
            return leaf.label
        case Operator():
            return identifier(leaf.args[0])
        case Pattern():
            return identifier(leaf.form)
        case sympy.Symbol():
            return identifier(leaf.name)
    return identifier(leaf.__name__)


def leaves(node: Operator) -> list[Leaf]:
    """Return the printed parts of a node that need a name: a symbol, arrays, custom sums and patterns."""
    if node.kind.name == "symbol":
        return [node]
    to_name: list[Leaf] = []
    for a in node.attributes if node.kind.arity else node.args:
        if isinstance(a, Data):
            to_name.append(a)
        elif isinstance(a, Pattern):
            to_name += a.data if a.ours else [*a.data, a]
        elif hasattr(a, "merge") and not is_known(a):
            to_name.append(a)
    return [
        leaf.base or leaf if isinstance(leaf, Data) else leaf
        for leaf in to_name
        if not isinstance(leaf, Data) or not (is_scalar(leaf) or literal(leaf))
    ]


def identifier(name: str) -> str:
    """Replace all that identifiers cannot have by underscores; a leading digit gets one in front."""
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"_{plain}"


def normal(name: str) -> str:
    """Return a name as Python reads identifiers."""
    return unicodedata.normalize("NFKC", name)


def vocabulary() -> dict[str, Any]:
    """Return the words of the text of a term, besides its own leaves: the names of the front door, and kinds."""
    public = {name: getattr(module, name) for module in (patterns, operators) for name in module.__all__}
    kinds = {name: kind if kind.signature.parameters else kind() for name, kind in KINDS.items()}
    return {**kinds, **public, "formula": formula, "monoids": monoids}
