"""Refutation: two operators that differ at one x are not equal, whatever laws reach. Symbols become operators that have
the properties declared of them, sizes become small numbers, all different."""
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol, sympify

from opmatrix.data import Data
from opmatrix.operators import const, gelu, heads, ones, product, relu, turn, weight
from opmatrix.oracles import dense
from opmatrix.patterns import Batch
from opmatrix.shapes import H, N, Shape, Space, T
from opmatrix.term import Operator
from rewrites.law import INPUT, ROWS, Name, apart, bent

MIN_DIFFERENCE = 1e-6                                       # relative: far above what float64 rounds
FREE = (N, T, H)                                            # sizes that an input gives


@dataclass(frozen=True)
class Counterexample:
    """Where two operators differ: at x (rows, columns), with these operators for their symbols, the entry (row, column)
    of the result is `left` of one and `right` of the other; or, with no entry, the shape is."""

    x: NDArray[np.float64]
    symbols: dict[str, Operator]
    entry: tuple[int, ...]
    left: Any
    right: Any

    def __str__(self) -> str:
        said = ", ".join(f"{name} = {term}" for name, term in self.symbols.items())
        return (f"at x = {np.array2string(self.x, precision=3, threshold=20)}{f' with {said}' if said else ''}: "
                + (f"entry {', '.join(map(str, self.entry))} is {self.left:.6g} and {self.right:.6g}" if self.entry else
                   f"the shape is {self.left} and {self.right}"))


def refute(left: Operator, right: Operator, draws: int = 3, seed: int = 0) -> Counterexample | None:
    """A place where the two differ by more than float64 rounds; none where they agree in all draws, or where something
    has declared properties that none of the drawn operators has."""
    if any(isinstance(attribute, Name) for term in (left, right) for node in term.walk()
           for attribute in node.attributes):
        return None                                         # a law's own variables stand for any monoid
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        try:
            symbols = meanings([left, right], rng)
            one, other = (instance(term, symbols) for term in (left, right))
            found = differing(one, other, rng)
        except (TypeError, StopIteration):                  # no sizes or operators that fit
            continue
        if found is not None:
            return Counterexample(found[0], {name: term for name, term in symbols.items()
                                             if isinstance(term, Operator)}, *found[1:])
    return None


def differing(one: Operator, other: Operator, rng: np.random.Generator) -> tuple[Any, ...] | None:
    """(x, entry, the number of one, of the other) where two operators without symbols differ most; none where they
    agree."""
    columns = next((int(term.into.cols) for term in (one, other) if term.into.cols is not N), INPUT)
    x, batch = 2 * rng.normal(size=(sum(ROWS), columns)), Batch([rng.integers(0, columns, length) for length in ROWS])
    with np.errstate(all="ignore"):
        a, b = (dense(term, x, batch) for term in (one, other))
        if any(1 not in pair and pair[0] != pair[1] for pair in zip(a.shape[::-1], b.shape[::-1], strict=False)):
            return x, (), a.shape, b.shape
        if not apart(a, b) > MIN_DIFFERENCE:
            return None
    a, b = np.broadcast_arrays(a, b)
    off = np.nan_to_num(abs(a - b), nan=np.inf)
    at = tuple(int(i) for i in np.unravel_index(off.argmax(), off.shape))
    return x, at, float(a[at]), float(b[at])


def meanings(terms: list[Operator], rng: np.random.Generator) -> dict[str, Any]:
    """An operator for each symbol of these terms, by name, and a number for each size. StopIteration where none has the
    declared properties."""
    nodes = [node for term in terms for node in term.walk()]
    leaves = {str(node.args[0]): node for node in nodes if node.kind.name == "symbol"}
    named = {size for node in nodes for given in (*node.attributes, *node.into, *node.out)
             if hasattr(given, "free_symbols") for size in given.free_symbols} - {*FREE}
    sizes = {size: 2 + number for number, size in enumerate(sorted(named, key=str))}
    return {str(size): number for size, number in sizes.items()} | {
        name: next(made for made in draw_operators(leaf, sizes, rng)
                   if all(getattr(made, fact) for fact in leaf.args[3]))
        for name, leaf in leaves.items()}


def draw_operators(leaf: Operator, sizes: dict[Symbol, int], rng: np.random.Generator) -> Iterator[Operator]:
    """Operators of a symbol's sizes, those with the fewest properties first."""
    def known(size: Any) -> Any: return size if size in FREE else int(sympify(size).subs(sizes))
    into, out = (Shape(*map(known, shape)) for shape in leaf.args[1:3])
    stack = () if out.heads in (1, H) else (out.heads,)
    columns, names = INPUT if into.cols is N else into.cols, count(1)

    def matrix(rows: int, cols: int) -> Operator:
        made: Operator = weight(Data(rng.normal(size=(*stack, rows, cols)), f"{leaf.args[0]}{next(names)}"))
        return made
    if out.rows is not T:                                   # numbers of any rows, not one for each token
        yield product(turn(matrix(columns, out.rows)), matrix(columns, out.cols))
        return
    if out.cols is T:                                       # a column for each token
        yield product(matrix(columns, 3) @ bent, turn(matrix(columns, 3) @ bent))
        yield product(matrix(columns, 3) @ bent, turn(const(Data(rng.normal(size=3), f"{leaf.args[0]}{next(names)}"))))
        return
    if out.cols is N or (into.cols is not N and into.cols == out.cols):
        yield from (bent, gelu, relu)
    if out.cols is not N:
        yield matrix(columns, out.cols) @ bent
        if into.cols is N: yield ones @ matrix(1, out.cols) @ bent
        yield matrix(columns, out.cols)
        row: Operator = const(Data(rng.normal(size=out.cols * (stack or (1,))[0]), f"{leaf.args[0]}{next(names)}"))
        yield row @ heads(stack[0]) if stack else row


def instance(term: Operator, by: dict[Any, Any], memo: dict[Operator, Operator] | None = None) -> Operator:
    """The term over other variables: symbols by name, monoids, patterns and numbers of heads too."""
    memo = {} if memo is None else memo
    for node in term.walk():
        if node in memo:
            continue
        children = [memo[child] for child in node.children]
        attributes = [by.get(str(a), a) if isinstance(a, Name | Symbol) else a for a in node.attributes]
        if node.kind.name == "symbol":
            memo[node] = by.get(str(node.args[0]), node)
        else:
            follows = node.kind.name == "compose" and isinstance(children[0].out.rows, Space)
            memo[node] = children[0] @ children[1] if follows else node.kind(*children, *attributes)
    return memo[term]
