"""A law is a function that returns both sides. Symbols in: a rewrite. Operators in: a check. The annotation of a
variable is its guard: `W: matrix[n, p]` promises a linear operator, `A: operator[n, p]` promises nothing.

What directs laws (rewrites/laws/facts.py) is never what makes one true: `act`, it depends on the input, keeps rules
from rewriting what is only stored. Every other fact is, unless the law's docstring says so; then the law has a
counterexample in `without`."""
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product as cartesian
from typing import Any

import numpy as np
import sympy

from formats.core.activation import ACTIVATIONS
from opmatrix import patterns
from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data
from opmatrix.algebra.nodes import SCALAR_FUNCTIONS
from opmatrix.algebra.operators import (
    I,
    const,
    given,
    ones,
    product,
    rotate,
    symbol,
    tanh,
    turn,
    weight,
)
from opmatrix.algebra.operators import heads as split
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import Shape, T, brief, space
from opmatrix.algebra.term import Operator
from opmatrix.batch import Batch
from opmatrix.patterns import Pattern
from opmatrix.relations import GIVEN, HELD
from opmatrix.relations import relation as made_relation

NORMALISE, SIMPLIFY, SELECT, RESTRUCTURE, MARK, JOIN = "normalise", "simplify", "select", "restructure", "mark", "join"
FLAGS = shift_invariant, normalised, right_linear, reflexive = (             # of monoids and patterns, as guards
    "shift_invariant", "normalised", "right_linear", "reflexive")
EXACT, IMPLEMENTATION, APPROXIMATE, PARTITION = "exact", "implementation", "approximate", "partition"
h, k, n, p, q = sympy.symbols("h k n p q", integer=True, positive=True)
SAMPLE = {h: 2, k: 7, n: 6, p: 4, q: 3}                      # sizes of a check: all different, none is 1
ROWS, INPUT = (4, 1, 3), 5                                  # three sequences of unequal length, five input columns


class sharp(monoids.softmax):
    """Softmax of twice the scores: a second monoid with its flags."""
    closed = None                                           # type: ignore[assignment]
    def lift(z: Any, v: Any) -> Any: return monoids.softmax.lift(2 * z, v)


Sides = tuple[tuple[Operator, ...], tuple[Operator, ...]]
earlier = Pattern("earlier", lambda query, key: key.position < query.position)          # the first token sees nobody
bent = I + tanh                                              # neither linear nor bounded


@dataclass(frozen=True)
class Sort:
    """What a variable may stand for: facts that its class must have, and the sizes, heads first if it has several.
    `spread`: to a kernel one head will do for several; its rows are of this `space`, of one and the same where none is
    named."""

    name: str
    facts: tuple[str, ...] = ()
    sizes: tuple[Any, ...] = ()
    spread: bool = False
    space: str = ""

    def __getitem__(self, sizes: Any) -> "Sort":
        return replace(self, sizes=sizes if isinstance(sizes, tuple) else (sizes,))

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.sizes))}]" if self.sizes else self.name


value = Sort("value", ("act",))                             # what some input gives: [columns] or [heads, columns]
matrix = Sort("matrix", ("storable",))                      # a linear operator: [in, out] or [heads, in, out]
choice = Sort("choice")                                     # a matrix with one 1 in each column, no two in one row:
                                                            # [in, out]
constant = Sort("constant", ("constant", "uniform"))        # the same row whatever the input
placed = Sort("placed", ("constant",))                      # a row of numbers for each position
column = Sort("column", ("act", "column"))                  # a value with one column
scalar = Sort("scalar", ("constant", "uniform", "column"))  # one number
scores = Sort("scores", ("act",))                           # a value with a column for each row: [heads]
level = Sort("level", ("act", "level"))                     # scores whose columns are all the same: [heads]
rotation = Sort("rotation", ("row_linear", "turning"))      # a matrix for each position: [in, out]
operator = Sort("operator")                                 # anything
array = Sort("array")                                       # numbers of any rows and columns: [rows, columns]
varying = Sort("varying", ("act",))                         # a value that can be read at any width, but no constant
entrywise = Sort("entrywise", ("entrywise",))
count = Sort("count")                                       # a number of heads, h or the one that is named
by_rows = Sort("operator", ("row_wise",))                   # what goes through each row by itself, at its position
mixing = Sort("mixing")                                     # what does not
relation = Sort("relation")                                 # a relation with exactly one entry a row; relation[square]
                                                            # within a space
over = Sort("over")                                         # a monoid; over[normalised] names a flag it must have
where = Sort("where")                                       # a pattern; where[reflexive]


@dataclass(frozen=True)
class Name:
    """An attribute variable of a law: a monoid, a pattern or a relation that nobody has chosen yet, from tokens to rows
    R."""

    name: str
    rows, cols = "R", "T"

    @property
    def __name__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


def is_variable(attribute: Any) -> bool:
    """Whether an attribute of a pattern stands for others: a Name does, and a symbol of a size, but no space."""
    return isinstance(attribute, Name) or type(attribute) is sympy.Symbol


def stand_in(variable: str, sort: Sort) -> Any:
    """The symbol that stands for a variable in a rewrite."""
    *heads, last = sort.sizes or (None,)
    match sort.name:
        case "value" | "varying":
            return symbol(variable, None, Shape((heads or [1])[0], space(sort.space or "T"), last))
        case "array":
            return symbol(variable, None, Shape(1, *sort.sizes))
        case "scores" | "level":
            return symbol(variable, None, Shape(last, T, T))
        case "constant":
            return symbol(variable, None, Shape((heads or [1])[0], T, last), constant=True, uniform=True)
        case "placed":
            return symbol(variable, None, Shape((heads or [1])[0], T, last), constant=True)
        case "column":
            return symbol(variable, None, 1)
        case "scalar":
            return symbol(variable, None, 1, constant=True, uniform=True)
        case "matrix" | "operator" | "mixing" | "choice":
            *stack, rows, cols = sort.sizes
            return symbol(variable, rows, Shape((stack or [1])[0], T, cols), linear=sort.name in ("matrix", "choice"))
        case "rotation":
            return symbol(variable, last, last, row_linear=True)
        case "entrywise":
            return symbol(variable, last, last, entrywise=True)
        case "count":
            return last or h
    return Name(variable)


@cache
def sampled(size: Any) -> int:
    """The number that a check puts for a size."""
    return int(sympy.sympify(size).subs(SAMPLE))


def drawn(rng: np.random.Generator, sort: Sort, variable: str) -> Any:
    """An operator that the variable may be in a check: values depend on the input, operators are not linear."""
    def numbers(*shape: Any) -> Data:
        return Data(rng.normal(size=[*map(sampled, shape)]), variable)
    *heads, last = sort.sizes or (None,)
    match sort.name:
        case "value":
            return weight(numbers(*heads, INPUT, last)) @ bent
        case "array":
            rows, columns = (weight(numbers(INPUT, size)) for size in sort.sizes)
            return product(turn(rows), columns)
        case "varying":
            return ones @ weight(numbers(*heads, 1, last)) @ bent
        case "constant":
            return const(numbers(heads[0] * last)) @ split(SAMPLE[heads[0]]) if heads else const(numbers(last))
        case "placed":
            rows = given("positions", max(ROWS)) @ weight(numbers(max(ROWS), (heads or [1])[0] * last))
            return rows @ split(SAMPLE[heads[0]]) if heads else rows
        case "rotation":
            return rotate(*(numbers(max(ROWS), last / 2) for _ in range(2)))
        case "column":
            return weight(numbers(INPUT, 1)) @ bent
        case "scalar":
            return const(numbers(1))
        case "scores" | "level":
            keys = constant if sort.name == "level" else value
            return product(drawn(rng, value[last, n], "a"), turn(drawn(rng, keys[last, n], "b")))
        case "matrix":
            return weight(numbers(*sort.sizes))
        case "choice":
            count, chosen = (SAMPLE[size] for size in sort.sizes)
            return weight(Data(np.eye(count)[:, rng.permutation(count)[:chosen]], variable))
        case "operator":
            return weight(numbers(*sort.sizes)) @ bent
        case "mixing":
            x = weight(numbers(*sort.sizes))
            return product(product(x, turn(x)), x)
        case "count":
            return int(sympy.sympify(last or h).subs(SAMPLE))
    if able := choices(sort):
        return able[rng.integers(len(able))]
    raise TypeError(f"{variable}: no way to draw a {sort.name}")


SWAPPED = made_relation("swapped", "T", "T")                # the tokens of a batch backwards
# matrices of relations, in a check
RELATED = {SWAPPED.name: np.eye(sum(ROWS))[::-1], HELD.name: np.tri(sum(ROWS))[::-1]}
SCATTERED = np.random.default_rng(0).integers(0, 2, (max(ROWS), max(ROWS)))
ALL: list[Any] = [*monoids.MONOIDS, sharp]
CHOICES: dict[str, list[Any]] = dict(
    entrywise=[SCALAR_FUNCTIONS[name] for name, each in sorted(ACTIVATIONS.items()) if each.everywhere],
    over=[each for each in ALL if each.width == 1 and not each.indexed],
    where=[earlier, patterns.causal, patterns.sequence, patterns.everyone, patterns.window(1),
           patterns.causal & patterns.sequence,
           patterns.among(HELD), patterns.mask(SCATTERED),
           patterns.mask(SCATTERED | np.eye(max(ROWS), dtype=int)) & patterns.sequence],
    relation=[GIVEN["last"], GIVEN["first"], SWAPPED])


def ragged() -> Batch:
    """The batch of a check, with the relations that a variable may be."""
    return Batch([np.zeros(length, int) for length in ROWS], relations=RELATED)


def choices(sort: Sort) -> list[Any]:
    """Every monoid, pattern or function that a variable of this sort may be: those that have its flags; none of other
    sorts."""
    flags = sort.sizes if sort.name != "entrywise" else ()
    return [each for each in CHOICES.get(sort.name, ()) if all(getattr(each, flag) for flag in flags)]


class Declared:
    """What a function `body` declares: its name and its docstring."""

    body: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.body.__name__

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.body) or ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"


@dataclass(frozen=True, eq=False, repr=False)
class Law(Declared):
    """One law. `both`: it holds as a rewrite in both directions. `canonical`: the left side is never needed again.
    `without`: counterexamples, each what variables may be instead, without the guard, so that the law fails."""

    body: Callable[..., tuple[Any, Any]]
    kind: str = EXACT
    phase: str = RESTRUCTURE
    both: bool = False
    canonical: bool = False
    when: tuple[str, ...] = ()
    source: str = ""
    without: tuple[dict[str, Sort], ...] = ()

    @property
    def variables(self) -> dict[str, Sort]:
        return dict(self.body.__annotations__)

    @property
    def guards(self) -> tuple[str, ...]:
        """Facts, as egglog text, that the matched classes and attributes must have."""
        facts = [f"({fact} {name})" for name, sort in self.variables.items() for fact in sort.facts]
        flags = [f"({flag} {name})" for name, sort in self.variables.items() if sort.name in ("over", "where")
                 for flag in sort.sizes]
        return (*facts, *flags, *self.when)

    def of(self, variables: dict[str, Any]) -> Sides:
        """Left and right over these; a law may have several of each, equal in pairs."""
        found = self.body(**variables)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise ValueError(f"law {self.name}: it returns {brief(found)}: return both sides, left, right")
        left, right = found
        return (left, right) if isinstance(left, tuple) else ((left,), (right,))

    def sides(self) -> Sides:
        """Left and right over symbols."""
        return self.of({name: stand_in(name, sort) for name, sort in self.variables.items()})

    def drawn(self, rng: np.random.Generator, **other: Sort) -> dict[str, Any]:
        """An operator for each variable; `other` widens what a variable may be."""
        return {name: drawn(rng, other.get(name, sort), name) for name, sort in self.variables.items()}

    def combinations(self, without: Collection[str] = ()) -> Iterator[dict[str, Any]]:
        """Every choice of monoids, patterns and functions that its variables allow, those named left out."""
        able = {name: found for name, sort in self.variables.items() if name not in without
                and (found := choices(sort))}
        for each in cartesian(*able.values()):
            yield dict(zip(able, each, strict=True))

    def difference(self, rng: np.random.Generator, **other: Sort) -> float:
        """How far apart both sides are in float64 on a random ragged batch, relative to 1 and to what they are. Raises
        TypeError where they do not even fit."""
        return self.difference_of(rng, self.drawn(rng, **other))

    def difference_of(self, rng: np.random.Generator, variables: dict[str, Any]) -> float:
        """The same where its variables are these."""
        left, right = self.of(variables)
        x, batch = rng.normal(size=(sum(ROWS), INPUT)), ragged()
        with np.errstate(invalid="ignore"):                 # a maximum over nothing is no number to multiply
            return max(apart(dense(a, x, batch), dense(b, x, batch)) for a, b in zip(left, right, strict=True))

    def holds(self, rng: np.random.Generator, tolerance: float = 1e-9, **other: Sort) -> bool:
        """Whether both sides agree, with every choice of monoids, patterns and functions."""
        try:
            return all(self.difference_of(rng, self.drawn(rng, **other) | each) <= tolerance
                       for each in self.combinations(other))
        except TypeError:
            return False

    def check(self, rng: np.random.Generator) -> None:
        """The law holds as declared, and each counterexample fits and fails."""
        assert self.holds(rng), f"{self.name}: the two sides differ"
        for other in self.without:
            said = ", ".join(f"{name}: {sort}" for name, sort in other.items())
            assert any(self.difference(rng, **other) > 1e-3
                       for _ in range(40)), f"{self.name}: it holds with {said} too"

    def statement(self, notation: Callable[[Operator], str] = str) -> str:
        left, right = self.sides()
        arrow = " ⇄ " if self.both else " → "
        return ", ".join(map(notation, left)) + arrow + ", ".join(map(notation, right))

    def row(self) -> tuple[str, ...]:
        """Name, kind, statement, guard, source: the row of `opmatrix laws` and of the docs table."""
        guard = ", ".join(g.strip("()").replace(" ", "(", 1) + ")" for g in self.guards)
        return self.name, self.kind, self.statement(), guard, self.source


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two arrays, relative to 1 and to the largest entry; infinite where one alone is no
    number."""
    a, b = np.broadcast_arrays(a, b)
    lost = [np.where(np.isfinite(c), 0, c) for c in (a, b)]
    if not np.array_equal(lost[0], lost[1], equal_nan=True):
        return np.inf
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    return float(abs(a - b).max(initial=0) / max(1, abs(a).max(initial=0)))


def law(**declared: Any) -> Callable[[Callable[..., Any]], Law]:
    """Declares a law by a function of its variables that returns both sides. Raises TypeError where a variable is not
    annotated."""
    def declare(body: Callable[..., Any]) -> Law:
        found = Law(body, **declared)
        if bare := [name for name in inspect.signature(body).parameters
                    if not isinstance(found.variables.get(name), Sort)]:
            raise TypeError(f"law {found.name}: {bare[0]} does not say what it stands for: annotate it, such as "
                            f"{bare[0]}: value[n]")
        return found
    return declare


def collect(namespace: dict[str, Any]) -> tuple[Law, ...]:
    """The laws of a module, in the order they stand."""
    return tuple(found for found in namespace.values() if isinstance(found, Law))


def find(laws: Sequence[Law], name: str) -> Law:
    """The law of that name; an unknown one is an error that lists those there are."""
    for found in laws:
        if found.name == name:
            return found
    raise KeyError(f"no law {name!r}; there are {', '.join(sorted(each.name for each in laws))}")
