"""Refutation: two operators that differ at one x are not equal, even if no law shows it. Symbols become operators with
their declared properties, sizes become small numbers, all different, then one of them 1. Inputs are random numbers of
several sizes, special ones and ties, and numbers around those that the operators hold."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count
from math import inf
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, sympify

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import I, const, gelu, heads, ones, product, relu, turn, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.shapes import H, N, Shape, Space, T, untaken
from opmatrix.algebra.term import Operator
from rewrites.egraph.template import Template
from rewrites.laws.law import INPUT, ROWS, Name, bent
from rewrites.proofs.enclosure import Between, Undecided, around, enclose
from rewrites.verify.graphs import batch as draw_batch

MIN_DIFFERENCE = 1e-12  # relative: smaller differences refute no equation
FREE = (N, T, H)  # sizes that an input determines
GRID = 1 << 10  # drawn numbers are multiples of one over this
Difference = tuple[
    NDArray[np.float64],
    tuple[int, ...],
    float | tuple[int, ...],
    float | tuple[int, ...],
    tuple[Operator, Operator],
    Batch,
]
FAULTS = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, StopIteration, RuntimeError


@dataclass(frozen=True)
class Counterexample:
    """A counterexample: at x (rows, columns), with these operators for their symbols, the entry (row, column) of the
    result is `left` in one and `right` in the other; or, with no entry, the shapes are. `sides` are the two over those
    operators, `batch` is their input."""

    x: NDArray[np.float64]
    symbols: dict[str, Operator]
    entry: tuple[int, ...]
    left: float | tuple[int, ...]
    right: float | tuple[int, ...]
    sides: tuple[Operator, Operator]
    batch: Batch

    def __str__(self) -> str:
        named = ", ".join(f"{name} = {term}" for name, term in self.symbols.items())
        differs = f"the shape is {self.left} and {self.right}"
        if self.entry:
            differs = f"entry {', '.join(map(str, self.entry))} is {self.left:.10g} and {self.right:.10g}"
        x = np.array2string(self.x, precision=6, threshold=20, separator=", ").replace("\n", "")
        return f"{differs} at x = {x}{f' with {named}' if named else ''}"


# ---- inputs

TrialFloats: TypeAlias = NDArray[np.float64]
RowsColumns: TypeAlias = tuple[int, int]
SPECIAL = 0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5
FEW_ROWS, ONE_TOKEN = (2, 1), (1,)  # lengths of sequences: few rows are quick to enclose
SIZES_TRIED = (1e3, 1e-3, 1e6, 1e-6, 1e9, 1e-9, 1e12)  # sizes of numbers, beside 1


@dataclass(frozen=True)
class Scene:
    """One way in which operators are tried: the lengths of sequences, the number of the size that is 1, the number of
    the operator chosen for a symbol, and the function that draws inputs."""

    draw: Callable[[np.random.Generator, RowsColumns, Sequence[float]], TrialFloats]
    lengths: tuple[int, ...] = FEW_ROWS
    single: int | None = None
    kind: int = 0  # number of the operator among those that fit a symbol


def draw_normal(size: float) -> Callable[[np.random.Generator, RowsColumns, Sequence[float]], TrialFloats]:
    """Return a function that draws random numbers of this size."""
    return lambda rng, shape, held: coarsen(2 * rng.normal(size=shape)) * size


def draw_special(rng: np.random.Generator, shape: RowsColumns, held: Sequence[float]) -> TrialFloats:
    """Draw zeros, ones, twos and halves, of both signs, with ties."""
    return rng.choice(SPECIAL, shape)


def draw_zeros(rng: np.random.Generator, shape: RowsColumns, held: Sequence[float]) -> TrialFloats:
    """Return an input of zeros."""
    return np.zeros(shape)


def draw_alike(rng: np.random.Generator, shape: RowsColumns, held: Sequence[float]) -> TrialFloats:
    """Draw rows whose columns are all the same."""
    return np.broadcast_to(coarsen(rng.normal(size=(shape[0], 1))), shape)


def draw_positive(rng: np.random.Generator, shape: RowsColumns, held: Sequence[float]) -> TrialFloats:
    """Draw numbers of at least 1/8."""
    return abs(coarsen(3 * rng.normal(size=shape))) + 0.125


def draw_negative(rng: np.random.Generator, shape: RowsColumns, held: Sequence[float]) -> TrialFloats:
    """Draw numbers of at most -1/8."""
    return -draw_positive(rng, shape, held)


def draw_around(rng: np.random.Generator, shape: RowsColumns, held: Sequence[float]) -> TrialFloats:
    """Draw numbers near those that the operators hold, and near one over them, of both signs."""
    able = [number for one in held or (1.0,) for number in (one, 1 / one)]
    near = rng.choice(able, shape) * rng.choice((1.0, -1.0), shape)
    drawn: TrialFloats = near * rng.choice((1.0, 2.0, 0.5), shape) + coarsen(rng.normal(size=shape))
    return drawn


SCENES = (
    Scene(draw_normal(1.0)),
    Scene(draw_normal(1.0), ROWS, kind=1),
    Scene(draw_special, kind=2),
    Scene(draw_positive, kind=3),
    Scene(draw_negative),
    Scene(draw_zeros, kind=1),
    Scene(draw_around),
    Scene(draw_around, kind=1),
    Scene(draw_alike),
    *(Scene(draw_normal(size)) for size in SIZES_TRIED),
    Scene(draw_normal(1.0), ONE_TOKEN, kind=1),
    *(Scene(draw_normal(1.0), single=single) for single in range(3)),
    Scene(draw_special, ROWS),
    Scene(draw_normal(4.0), ROWS),
)
TRIED_NUMBERS = (
    f"{len(SCENES)} inputs, of sizes {min(SIZES_TRIED):g} to {max(SIZES_TRIED):g}, zeros, ties; "
    f"relative differences below {MIN_DIFFERENCE:g} are not seen"
)
MOST_ENCLOSED = 6  # inputs at which intervals are computed


def refute(left: Operator, right: Operator, draws: int = len(SCENES), seed: int = 0) -> Counterexample | None:
    """Find a place where the two differ by more than rounding explains: their intervals share no number there, their
    exact values differ, or one has no value. None if no draw finds one, or if a symbol has declared properties that
    none of the drawn operators has."""
    if any(
        isinstance(attribute, Name) for term in (left, right) for node in term.walk() for attribute in node.attributes
    ):
        return None  # variables of a law stand for any monoid
    with np.errstate(all="ignore"):
        return find_difference(left, right, draws, seed)


def find_difference(left: Operator, right: Operator, draws: int, seed: int) -> Counterexample | None:
    """Return the first counterexample in which both differ for certain; None if no scene has one."""
    held, enclosed = held_numbers(left, right), 0
    for draw, scene in enumerate(SCENES[:draws]):
        rng = np.random.default_rng([seed, draw])
        try:
            symbols = meanings([left, right], rng, scene)
            one, other = (instance(term, symbols) for term in (left, right))
            trial = Trial.of(one, other, rng, scene, held)
            if not trial.seems_different():
                continue
            enclosed += 1
            differing = trial.difference()
        except FAULTS:  # sizes, operators or numbers do not fit
            continue
        if differing is not None:
            names = dict[str, Operator]()
            for leaf, term in symbols.items():
                if isinstance(leaf, Operator) and isinstance(term, Operator):
                    names[untaken(str(leaf.args[0]), names)] = term
            return Counterexample(differing[0], names, *differing[1:])
        if enclosed == MOST_ENCLOSED:
            break
    return None


def held_numbers(*terms: Operator) -> list[float]:
    """Return the absolute values of the single numbers that operators hold, without zero."""
    attributes = [attribute for term in terms for node in term.walk() for attribute in node.attributes]
    magnitudes = {
        abs(float(attribute.array.item()))
        for attribute in attributes
        if isinstance(attribute, Data) and not isinstance(attribute, Promised) and attribute.shape == (1,)
    }
    return sorted(number for number in magnitudes if 0 < number < np.inf)


@dataclass(frozen=True)
class Trial:
    """Two operators without symbols, and an input."""

    one: Operator
    other: Operator
    x: TrialFloats
    batch: Batch

    @classmethod
    def of(
        cls, one: Operator, other: Operator, rng: np.random.Generator, scene: Scene, held: Sequence[float]
    ) -> "Trial":
        """Draw an input, and a batch whose lengths are those of the scene, for two operators."""
        columns = next((int(term.into.cols) for term in (one, other) if term.into.cols is not N), INPUT)
        batch = draw_batch(Template.of({"one": one, "other": other}), rng, scene.lengths)
        return cls(one, other, scene.draw(rng, (batch.rows, columns), held), batch)

    @cached_property
    def values(self) -> tuple[TrialFloats, TrialFloats]:
        """The results of both operators at the input."""
        a, b = (np.asarray(dense(term, self.x, self.batch)) for term in (self.one, self.other))
        return a, b

    @property
    def shapes_differ(self) -> bool:
        """True if two axes of the results have different lengths, neither of which is 1."""
        a, b = self.values
        return any(1 not in pair and pair[0] != pair[1] for pair in zip(a.shape[::-1], b.shape[::-1], strict=False))

    def seems_different(self) -> bool:
        """True if float64 tells them apart, or only one of them has a value."""
        if self.shapes_differ:
            return True
        a, b = np.broadcast_arrays(*self.values)
        far = (abs(a - b) > MIN_DIFFERENCE * np.maximum(abs(a), abs(b))) & np.isfinite(a) & np.isfinite(b)
        return bool((far | (np.isnan(a) != np.isnan(b))).any())

    def difference(self) -> Difference | None:
        """Return (x, entry, the number of one, of the other, both, the batch) where they differ most; None if no entry
        differs for certain."""
        a, b = self.values
        sides = (self.one, self.other), self.batch
        if self.shapes_differ:
            return self.x, (), a.shape, b.shape, *sides
        a, b = np.broadcast_arrays(a, b)
        gaps = gaps_of(self.one, self.other, self.x, self.batch).reshape(a.shape)
        if not (gaps > 0).any():
            return None
        at = tuple(int(i) for i in np.unravel_index(np.argmax(gaps), gaps.shape))
        return self.x, at, float(a[at]), float(b[at]), *sides


def gaps_of(one: Operator, other: Operator, x: NDArray[np.float64], given: Batch) -> NDArray[np.float64]:
    """Return the certain distance of two operators at x, entry by entry; zero where it is not known."""
    stored = not all(is_sure(term) for term in (one, other))
    try:
        a, b = np.broadcast_arrays(*(enclose(term, x, given) for term in (one, other)))
        least = np.zeros(a.shape)
        if stored:
            least += MIN_DIFFERENCE * np.vectorize(size_of, [float])(a, b).max(-1, keepdims=True, initial=0)
        gaps = np.vectorize(gap, [float])(a, b)
        gaps = np.where(gaps > least, gaps, 0.0)
        if (gaps > 0).any():
            return np.asarray(gaps)
    except Undecided:
        pass
    if stored:
        return np.zeros(np.broadcast_shapes(*(dense(term, x, given).shape for term in (one, other))))
    a, b = (entrywise(term, x, given, Fraction) for term in (one, other))
    pairs = np.vectorize(
        lambda u, v: float(abs(u - v)) if abs(u - v) > MIN_DIFFERENCE * max(abs(u), abs(v)) else 0.0, [float]
    )
    return np.asarray(pairs(*np.broadcast_arrays(a, b)))


def size_of(a: Between, b: Between) -> float:
    """Return the larger absolute value of two numbers, rounded up; zero if it is not known."""
    return max(abs(a).high, abs(b).high) if a.finite and b.finite else 0.0


def gap(a: Between, b: Between) -> float:
    """Return the least difference of two intervals, if it is more than the rounding of the numbers; inf if exactly one
    of them has no value for certain."""
    if (a.undefined and b.finite) or (b.undefined and a.finite):
        return inf
    if not (a.finite and b.finite):
        return 0.0
    apart = max(a.low - b.high, b.low - a.high)
    return apart if apart > MIN_DIFFERENCE * max(abs(a).high, abs(b).high) else 0.0


def is_sure(term: Operator) -> bool:
    """True if every number of a term is exact as written, so that none may be a rounded one."""
    arrays = (attribute.array for node in term.walk() for attribute in node.attributes if isinstance(attribute, Data))
    return all(around(number).low == around(number).high for array in arrays for number in array.flat)


def coarsen(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers of few bits near these: products of them do not round."""
    return np.round(numbers * GRID) / GRID


def meanings(
    terms: list[Operator], rng: np.random.Generator, scene: Scene = SCENES[0]
) -> dict[Operator | Symbol, Operator | int]:
    """Return an operator for each symbol of these terms, and a number for each size. Raises StopIteration if no drawn
    operator has the declared properties."""
    nodes = [node for term in terms for node in term.walk()]
    leaves = dict.fromkeys(node for node in nodes if node.kind.name == "symbol")
    named = {
        size
        for node in nodes
        for attribute in (*node.attributes, *node.into, *node.out)
        if hasattr(attribute, "free_symbols")
        for size in attribute.free_symbols
        if not hasattr(size, "live")
    }
    order = sorted(named, key=str)
    sizes = {size: 1 if number == scene.single else 2 + number for number, size in enumerate(order)}
    if scene.single is not None and scene.single >= len(order):
        raise StopIteration
    return sizes | {leaf: operator_for(leaf, sizes, rng, scene.kind) for leaf in leaves}


def operator_for(leaf: Operator, sizes: dict[Symbol, int], rng: np.random.Generator, kind: int) -> Operator:
    """Return one of the drawn operators that have the properties of a symbol."""
    able = [drawn for drawn in draw_operators(leaf, sizes, rng) if all(getattr(drawn, fact) for fact in leaf.args[3])]
    if not able:
        raise StopIteration
    return able[kind % len(able)]


def draw_operators(leaf: Operator, sizes: dict[Symbol, int], rng: np.random.Generator) -> Iterator[Operator]:
    """Yield operators of a symbol's sizes, those with the fewest properties first. All hold drawn numbers, so two
    symbols become two operators."""

    def known(size: Expr) -> Expr | int:
        """Return the drawn number of a size; free sizes stay."""
        return size if size in FREE else int(sympify(size).subs(sizes))

    into, out = (Shape(*map(known, shape)) for shape in leaf.args[1:3])
    stack = () if out.heads in (1, H) else (out.heads,)
    columns, names = INPUT if into.cols is N else into.cols, count(1)

    def matrix(rows: int, cols: int) -> Operator:
        """Draw a matrix with a name of its own."""
        drawn: Operator = weight(Data(coarsen(rng.normal(size=(*stack, rows, cols))), f"{leaf.args[0]}{next(names)}"))
        return drawn

    def scaled() -> Operator:
        """Draw a multiple of the identity, between 1/2 and 2."""
        drawn: Operator = I * float(coarsen(rng.uniform(0.5, 2.0, 1))[0])
        return drawn

    if out.rows is not T:  # a number of rows that is not that of the tokens
        yield product(turn(matrix(columns, out.rows)), matrix(columns, out.cols))
        return
    if out.cols is T:  # a column for each token
        yield product(matrix(columns, 3) @ bent, turn(matrix(columns, 3) @ bent))
        yield product(
            matrix(columns, 3) @ bent, turn(const(Data(coarsen(rng.normal(size=3)), f"{leaf.args[0]}{next(names)}")))
        )
        return
    if out.cols is not N:
        yield matrix(columns, out.cols) @ bent
        yield matrix(columns, out.cols) @ relu
        mixed = matrix(columns, out.cols)
        yield product(product(mixed, turn(mixed)) * 0.125, matrix(columns, out.cols))
        if into.cols is N:
            yield ones @ matrix(1, out.cols) @ bent
    if out.cols is N or (into.cols is not N and into.cols == out.cols):
        yield from (scaled() @ function @ scaled() for function in (bent, gelu, relu))
    if out.cols is not N:
        yield matrix(columns, out.cols)
        row: Any = const(Data(coarsen(rng.normal(size=out.cols * (stack or (1,))[0])), f"{leaf.args[0]}{next(names)}"))
        if stack:
            row = row @ heads(out.heads)
        yield row
    else:
        yield scaled()


def instance(term: Operator, by: dict[Any, Any], memo: dict[Operator, Operator] | None = None) -> Operator:
    """Return the term over other variables: symbols, sizes, and the monoids and patterns that a law leaves open."""
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
    """Return an attribute with numbers for its sizes, if it is an expression of sizes."""
    if not isinstance(attribute, Expr):
        return attribute
    value = attribute.subs({size: number for size, number in by.items() if isinstance(size, Symbol)})
    return int(value) if value.is_Integer else value
