"""Refutation: two operators that differ at one x are not equal, whatever laws reach. Symbols become operators that have
the properties declared of them, sizes become small numbers, all different."""
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, sympify

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, const, gelu, heads, ones, product, relu, turn, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.shapes import H, N, Shape, Space, T, untaken
from opmatrix.algebra.term import Operator
from opmatrix.batch import Batch
from rewrites.graph.template import Template
from rewrites.law import INPUT, Name, bent
from rewrites.proofs.enclosure import Between, Undecided, around, enclose
from rewrites.verify.graphs import batch as draw_batch

MIN_DIFFERENCE = 1e-6                                       # relative: far above what float64 rounds
FREE = (N, T, H)                                            # sizes that an input gives
GRID = 1 << 10                                             # drawn numbers are parts of this
TRIED_NUMBERS = ""
Difference = tuple[NDArray[np.float64], tuple[int, ...], float | tuple[int, ...], float | tuple[int, ...],
                   tuple[Operator, Operator], Batch]
FAULTS = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, StopIteration, RuntimeError


@dataclass(frozen=True)
class Counterexample:
    """Where two operators differ: at x (rows, columns), with these operators for their symbols, the entry (row, column)
    of the result is `left` of one and `right` of the other; or, with no entry, the shape is. `sides` are the two over
    those operators, `batch` what they were given."""

    x: NDArray[np.float64]
    symbols: dict[str, Operator]
    entry: tuple[int, ...]
    left: float | tuple[int, ...]
    right: float | tuple[int, ...]
    sides: tuple[Operator, Operator]
    batch: Batch

    def __str__(self) -> str:
        said = ", ".join(f"{name} = {term}" for name, term in self.symbols.items())
        return (f"at x = {np.array2string(self.x, precision=3, threshold=20)}{f' with {said}' if said else ''}: "
                + (f"entry {', '.join(map(str, self.entry))} is {self.left:.6g} and {self.right:.6g}" if self.entry else
                   f"the shape is {self.left} and {self.right}"))


def refute(left: Operator, right: Operator, draws: int = 3, seed: int = 0) -> Counterexample | None:
    """A place where the two differ by more than rounding explains, both being finite: their intervals share no number
    there, or their exact values differ. None where there is no such place in all draws, or where something has declared
    properties that none of the drawn operators has."""
    if any(isinstance(attribute, Name) for term in (left, right) for node in term.walk()
           for attribute in node.attributes):
        return None                                         # a law's own variables stand for any monoid
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        try:
            symbols = meanings([left, right], rng)
            one, other = (instance(term, symbols) for term in (left, right))
            found = differing(one, other, rng)
        except FAULTS:                                      # no sizes, operators or numbers that fit
            continue
        if found is not None:
            names = dict[str, Operator]()
            for leaf, term in symbols.items():
                if isinstance(leaf, Operator) and isinstance(term, Operator):
                    names[untaken(str(leaf.args[0]), names)] = term
            return Counterexample(found[0], names, *found[1:])
    return None


def differing(one: Operator, other: Operator, rng: np.random.Generator) -> Difference | None:
    """(x, entry, the number of one, of the other, both, the batch) where two operators without symbols differ most;
    none where they agree, or where it cannot be told. Raises where something does not fit."""
    columns = next((int(term.into.cols) for term in (one, other) if term.into.cols is not N), INPUT)
    given = draw_batch(Template.of({"one": one, "other": other}), rng)
    x = coarsen(2 * rng.normal(size=(given.rows, columns)))
    with np.errstate(all="ignore"):
        a, b = (np.asarray(dense(term, x, given)) for term in (one, other))
        if any(1 not in pair and pair[0] != pair[1] for pair in zip(a.shape[::-1], b.shape[::-1], strict=False)):
            return x, (), a.shape, b.shape, (one, other), given
        a, b = np.broadcast_arrays(a, b)
        far = abs(a - b) > MIN_DIFFERENCE * np.maximum(abs(a), abs(b))
        if not (far & np.isfinite(a) & np.isfinite(b)).any():
            return None
        gaps = gaps_of(one, other, x, given).reshape(a.shape)
    if not (gaps > 0).any():
        return None
    at = tuple(int(i) for i in np.unravel_index(np.argmax(gaps), gaps.shape))
    return x, at, float(a[at]), float(b[at]), (one, other), given


def gaps_of(one: Operator, other: Operator, x: NDArray[np.float64], given: Batch) -> NDArray[np.float64]:
    """How far apart two operators are at x for certain, entry by entry: zero where that is not known."""
    try:
        a, b = (enclose(term, x, given) for term in (one, other))
        found = np.vectorize(gap, [float])(*np.broadcast_arrays(a, b))
        if (found > 0).any():
            return np.asarray(found)
    except Undecided:
        pass
    if not all(is_sure(term) for term in (one, other)):
        return np.zeros(np.broadcast_shapes(*(dense(term, x, given).shape for term in (one, other))))
    a, b = (entrywise(term, x, given, Fraction) for term in (one, other))
    pairs = np.vectorize(lambda u, v: float(abs(u - v)) if abs(u - v) > MIN_DIFFERENCE * max(abs(u), abs(v)) else 0.0,
                         [float])
    return np.asarray(pairs(*np.broadcast_arrays(a, b)))


def gap(a: Between, b: Between) -> float:
    """The least difference of two intervals, where it is more than a number's own rounding."""
    if not (a.finite and b.finite):
        return 0.0
    apart = max(a.low - b.high, b.low - a.high)
    return apart if apart > MIN_DIFFERENCE * max(abs(a).high, abs(b).high) else 0.0


def is_sure(term: Operator) -> bool:
    """Whether all numbers of a term are what somebody wrote down, and none may be a rounded one."""
    arrays = (attribute.array for node in term.walk() for attribute in node.attributes if isinstance(attribute, Data))
    return all(around(number).low == around(number).high for array in arrays for number in array.flat)


def coarsen(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers of few bits near these: products of them do not round."""
    return np.round(numbers * GRID) / GRID


def meanings(terms: list[Operator], rng: np.random.Generator) -> dict[Operator | Symbol, Operator | int]:
    """An operator for each symbol of these terms, and a number for each size. StopIteration where none has the declared
    properties."""
    nodes = [node for term in terms for node in term.walk()]
    leaves = dict.fromkeys(node for node in nodes if node.kind.name == "symbol")
    named = {size for node in nodes for given in (*node.attributes, *node.into, *node.out)
             if hasattr(given, "free_symbols") for size in given.free_symbols if not hasattr(size, "live")}
    sizes = {size: 2 + number for number, size in enumerate(sorted(named, key=str))}
    return sizes | {leaf: next(made for made in draw_operators(leaf, sizes, rng)
                               if all(getattr(made, fact) for fact in leaf.args[3])) for leaf in leaves}


def draw_operators(leaf: Operator, sizes: dict[Symbol, int], rng: np.random.Generator) -> Iterator[Operator]:
    """Operators of a symbol's sizes, those with the fewest properties first. All are of numbers that are drawn, so two
    symbols are two operators."""
    def known(size: Expr) -> Expr | int: return size if size in FREE else int(sympify(size).subs(sizes))
    into, out = (Shape(*map(known, shape)) for shape in leaf.args[1:3])
    stack = () if out.heads in (1, H) else (out.heads,)
    columns, names = INPUT if into.cols is N else into.cols, count(1)

    def matrix(rows: int, cols: int) -> Operator:
        made: Operator = weight(Data(coarsen(rng.normal(size=(*stack, rows, cols))),
                                           f"{leaf.args[0]}{next(names)}"))
        return made

    def scaled() -> Operator:
        made: Operator = I * float(coarsen(rng.uniform(0.5, 2.0, 1))[0])
        return made
    if out.rows is not T:                                   # numbers of any rows, not one for each token
        yield product(turn(matrix(columns, out.rows)), matrix(columns, out.cols))
        return
    if out.cols is T:                                       # a column for each token
        yield product(matrix(columns, 3) @ bent, turn(matrix(columns, 3) @ bent))
        yield product(matrix(columns, 3) @ bent, turn(const(Data(coarsen(rng.normal(size=3)),
                                                                              f"{leaf.args[0]}{next(names)}"))))
        return
    if out.cols is not N:
        yield matrix(columns, out.cols) @ bent
        if into.cols is N: yield ones @ matrix(1, out.cols) @ bent
    if out.cols is N or (into.cols is not N and into.cols == out.cols):
        yield from (scaled() @ function @ scaled() for function in (bent, gelu, relu))
    if out.cols is not N:
        yield matrix(columns, out.cols)
        row: Any = const(Data(coarsen(rng.normal(size=out.cols * (stack or (1,))[0])),
                              f"{leaf.args[0]}{next(names)}"))
        if stack: row = row @ heads(out.heads)
        yield row
    else: yield scaled()


def instance(term: Operator, by: dict[Any, Any], memo: dict[Operator, Operator] | None = None) -> Operator:
    """The term over other variables: symbols, sizes, and the monoids and patterns that a law has not chosen."""
    memo = {} if memo is None else memo
    for node in term.walk():
        if node in memo:
            continue
        children = [memo[child] for child in node.children]
        attributes = [sized(by.get(a, a), by) for a in node.attributes]
        if node.kind.name == "symbol":
            memo[node] = by.get(node, node)
        else:
            follows = node.kind.name == "compose" and isinstance(children[0].out.rows, Space)
            memo[node] = children[0] @ children[1] if follows else node.kind(*children, *attributes)
    return memo[term]


def sized(attribute: object, by: Mapping[Hashable, object]) -> object:
    """An attribute with numbers for its sizes, where it is an expression of them."""
    if not isinstance(attribute, Expr): return attribute
    found = attribute.subs({size: number for size, number in by.items() if isinstance(size, Symbol)})
    return int(found) if found.is_Integer else found
