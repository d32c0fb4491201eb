"""What the text of a term calls its arrays, symbols and sizes: identifiers that nothing else is called."""
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

MAX_LITERAL = 10                                            # numbers of an array that is written out

Leaf: TypeAlias = Data | Operator | Pattern | type[Monoid] | sympy.Symbol       # what has to be named


class SizeWriter(StrPrinter):                               # type: ignore[misc]
    """An expression of sizes as Python, with roots as powers."""
    def __init__(self, words: Mapping[sympy.Symbol, str]) -> None:
        super().__init__()
        self.words = words

    def _print_Symbol(self, symbol: sympy.Symbol) -> str: return self.words.get(symbol, str(symbol.name))
    def _print_floor(self, of: sympy.floor) -> str: return f"(({self._print(of.args[0])})//1)"
    def _print_Pow(self, power: sympy.Pow, rational: bool = True) -> str:
        return str(super()._print_Pow(power, rational=True))


def has_name(data: Data) -> bool:
    """Whether somebody gave the array a name."""
    return bool(data.name or (data.base and data.base.name))

def is_scalar(data: Data) -> bool: return data.shape == (1,) and not data.name

def literal(data: Data) -> bool:
    """Whether an array is written out."""
    if isinstance(data, Promised) or has_name(data) or data.shape == (1,) or len(data.shape) > 2: return False
    array = data.array
    plain = array.dtype in (np.float64, np.int64, bool) and 0 < array.size < MAX_LITERAL
    return plain and bool(np.isfinite(array).all())



def label_leaves(nodes: list[Operator], names: Mapping[str, Iterable[object]]) -> dict[Leaf, str]:
    """A name of its own for every size, array and symbol, and for sums and patterns of one's own: an identifier that
    nothing else is called, such as what is said by its name, with these arguments."""
    found: dict[Leaf, str] = {}
    taken = {*vocabulary(), *names, "x"}
    said = [a for node in nodes if node.kind.name != "symbol" for a in node.attributes]
    sizes = dict.fromkeys(symbol for a in (*said, *chain(*names.values())) for symbol in find_symbols(a))
    for leaf in dict.fromkeys([*sizes, *(leaf for node in nodes for leaf in leaves(node))]):
        name = spelt(leaf)
        while normal(name) in taken or keyword.iskeyword(name): name += "_"
        found[leaf] = name
        taken.add(normal(name))
    return found

def spelt(leaf: Leaf) -> str:
    """What a leaf would be called, were it alone."""
    match leaf:
        case Data(): return leaf.label
        case Operator(): return identifier(leaf.args[0])
        case Pattern(): return identifier(leaf.form)
        case sympy.Symbol(): return identifier(leaf.name)
    return identifier(leaf.__name__)

def leaves(node: Operator) -> list[Leaf]:
    """What a node is printed with that has to be named: a symbol, arrays, sums and patterns of one's own."""
    if node.kind.name == "symbol": return [node]
    own: list[Leaf] = []
    for a in node.attributes if node.kind.arity else node.args:
        if isinstance(a, Data): own.append(a)
        elif isinstance(a, Pattern): own += a.data if a.ours else [*a.data, a]
        elif hasattr(a, "merge") and not is_known(a): own.append(a)
    return [each.base or each if isinstance(each, Data) else each for each in own
            if not isinstance(each, Data) or not (is_scalar(each) or literal(each))]

def identifier(name: str) -> str:
    plain = re.sub(r"\W", "_", name)
    return plain if plain.isidentifier() else f"_{plain}"

def normal(name: str) -> str:
    """As Python reads identifiers."""
    return unicodedata.normalize("NFKC", name)

def vocabulary() -> dict[str, Any]:
    """What the text of a term is written with, besides its own leaves: the names of the front door, and kinds."""
    public = {name: getattr(module, name) for module in (patterns, operators) for name in module.__all__}
    kinds = {name: kind if kind.signature.parameters else kind() for name, kind in KINDS.items()}
    return {**kinds, **public, "formula": formula, "monoids": monoids}

