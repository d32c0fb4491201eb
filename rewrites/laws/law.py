"""A law is a function that returns both sides. Over symbols it is a rewrite, over operators a check. The annotation of
a variable is its guard: `W: matrix[n, p]` promises a linear operator, `A: operator[n, p]` promises no property.

Facts that direct laws (rewrites/laws/facts.py) never make one true: `act`, it depends on the input, keeps rules from
rewriting stored values. Every other fact is needed for truth, as a counterexample in `without` shows, unless the law's
docstring says that the law is true of any such variable."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sympy

from formats.core.arrays import settled
from opmatrix import body
from opmatrix.algebra.data import Data
from opmatrix.algebra.nodes import at_distances, by_distance
from opmatrix.algebra.operators import const, given, ones, product, rotate, symbol, turn, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import Shape, T, brief, space
from opmatrix.algebra.term import Operator
from rewrites.laws.guards import read_guard
from rewrites.laws.instances import CHOICES, INSTANCES, Ends, has_facts, make_instance, mix, split_heads
from rewrites.laws.instances import INPUT as INPUT
from rewrites.laws.instances import ROWS as ROWS
from rewrites.laws.instances import bent as bent
from rewrites.laws.instances import ragged as ragged

NORMALISE, SIMPLIFY, SELECT, RESTRUCTURE, MARK, JOIN = "normalise", "simplify", "select", "restructure", "mark", "join"
FLAGS = shift_invariant, normalised, right_linear, reflexive, up_to_each = (  # flags of monoids and patterns, as guards
    "shift_invariant",
    "normalised",
    "right_linear",
    "reflexive",
    "up_to_each",
)
FITTING = (prefix,) = ("prefix",)  # flags without which a law does not fit: a scan takes no other patterns
OF_MONOID = "_over"  # suffix of a monoid's flag that has a property's name
EXACT, IMPLEMENTATION, APPROXIMATE, PARTITION = "exact", "implementation", "approximate", "partition"
h, k, n, p, q = sympy.symbols("h k n p q", integer=True, positive=True)
few = sympy.Symbol("few", integer=True, positive=True)  # number of largest numbers kept in a row
MOST_TRIALS = 300  # most combinations of variables in a check
SAMPLE = {h: 2, k: 7, n: 6, p: 4, q: 3, few: 2}  # sizes in a check: all different, none is 1


SortSize: TypeAlias = sympy.Expr | int | str  # a size; a flag in sorts of attributes
SidesOf = Callable[..., tuple[Any, Any]]  # variables -> two sides, each one operator or several
Sides = tuple[tuple[Operator, ...], tuple[Operator, ...]]


@dataclass(frozen=True)
class Sort:
    """The sort of a variable: facts that its class must have, and the sizes, heads first if it has several. `spread`:
    one head may serve several heads of a kernel. Its rows are of this `space`; of one common space where none is
    named."""

    name: str
    facts: tuple[str, ...] = ()
    sizes: tuple[SortSize, ...] = ()
    spread: bool = False
    space: str = ""

    def __getitem__(self, sizes: "SortSize | tuple[SortSize, ...]") -> "Sort":
        return replace(self, sizes=sizes if isinstance(sizes, tuple) else (sizes,))

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.sizes))}]" if self.sizes else self.name

    @property
    def heads(self) -> sympy.Expr | int:
        """The heads of a value or a row; 1 if it has one size."""
        return self.sizes[0] if len(self.sizes) > 1 else 1

    @property
    def last(self) -> Any:
        """The columns, or the number that a count is."""
        return self.sizes[-1] if self.sizes else None


value = Sort("value", ("act",))  # depends on the input: [columns] or [heads, columns]
matrix = Sort("matrix", ("storable",))  # a linear operator: [in, out] or [heads, in, out]
choice = Sort("choice")  # a matrix, one 1 a column, no two in a row: [in, out]
constant = Sort("constant", ("constant", "uniform"))  # the same row for every input
placed = Sort("placed", ("constant",))  # a row of numbers for each position
column = Sort("column", ("act", "column"))  # a value with one column
scalar = Sort("scalar", ("constant", "uniform", "column"))  # one number
scores = Sort("scores", ("act",))  # a value with a column for each row: [heads]
level = Sort("level", ("act", "level"))  # scores whose columns are all the same: [heads]
alike_rows = Sort("alike_rows", ("by_key",))  # a value whose rows are all the same: [columns] or [heads, columns]
distances = Sort("distances", ("distant",), spread=True)  # a number for each pair of tokens by distance: [heads]
rotation = Sort("rotation", ("row_linear", "turning"))  # a matrix for each position: [in, out]
relative_matrix = Sort("relative", ("row_linear", "turning"))  # a matrix of columns by distance: [heads, in]
operator = Sort("operator")  # any operator
array = Sort("array")  # numbers of any rows and columns: [rows, columns]
varying = Sort("varying", ("act",))  # a value that can be read at any width, but no constant
entrywise = Sort("entrywise", ("entrywise",))
lag = Sort("lag")  # a number of rows that a shift reads back
count = Sort("count")  # a number of heads, h or the named one
by_rows = Sort("operator", ("row_wise",))  # acts on each row by itself, at its position
mixing = Sort("mixing")  # mixes rows
relation = Sort("relation")  # one with exactly one entry a row; [square]: within a space
any_relation = Sort("any_relation")  # a relation with any entries
over = Sort("over")  # a monoid; over[normalised] names a flag it must have
where = Sort("where")  # a pattern; where[reflexive]


@dataclass(frozen=True)
class Name:
    """An attribute variable of a law: a monoid, a pattern or a relation, from tokens to rows R."""

    name: str
    rows, cols = "R", "T"

    @property
    def __name__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


def is_variable(attribute: object) -> bool:
    """True if an attribute of a pattern is a variable: a Name, or a symbol of a size, but no space."""
    return isinstance(attribute, Name) or type(attribute) is sympy.Symbol


def list_summands(attribute: object) -> tuple[str, ...]:
    """Return the names of the variables that an attribute of a pattern is the sum of; empty for any other."""
    return tuple(sorted(map(str, attribute.args))) if isinstance(attribute, sympy.Add) else ()


def attribute_over(attribute: object, variables: Mapping[str, int]) -> object:
    """Return an attribute of a pattern where its variables have these values."""
    if names := list_summands(attribute):
        return sum(variables[name] for name in names)
    return variables[str(attribute)] if is_variable(attribute) else attribute


@cache
def sampled(size: sympy.Expr | int) -> int:
    """Return the number that a check uses for a size."""
    return int(sympy.sympify(size).subs(SAMPLE))


class Draw(NamedTuple):
    """Random numbers for one variable of a check."""

    rng: np.random.Generator
    variable: str

    def numbers(self, *shape: sympy.Expr | int) -> Data:
        """Draw normal numbers of a shape, at the sizes that checks use."""
        return Data(self.rng.normal(size=[*map(sampled, shape)]), self.variable)

    def weight(self, *shape: sympy.Expr | int) -> Operator:
        """Draw a matrix, or a stack of them."""
        return weight(self.numbers(*shape))

    def ends(self, *shape: sympy.Expr | int) -> Ends:
        """Return the drawing source with the columns and heads of a shape, for special operators."""
        *heads, columns, out = map(sampled, shape)
        return Ends(self.numbers, columns, out, *heads)

    def choice(self, rows: int, cols: int) -> Operator:
        """Draw a matrix that selects columns in random order."""
        return weight(Data(np.eye(rows)[:, self.rng.permutation(rows)[:cols]], self.variable))

    def scores(self, heads: sympy.Expr | int, keys: Sort) -> Operator:
        """Draw scores of heads as q kᵀ, with keys of this sort."""
        return product(drawn(self.rng, value[heads, n], "a"), turn(drawn(self.rng, keys[heads, n], "b")))


Way: TypeAlias = Callable[[Draw, Sort], object]  # a way to draw an operator of a sort


class Variable(NamedTuple):
    """A sort of variable: its symbol in a rewrite, by its name; an operator for it in a check, as general as the sort;
    and the ends of special operators, which have more properties."""

    symbol: Callable[[str, Sort], object]
    sample: Way | None = None
    special: Callable[[Draw, Sort], Ends] | None = None


SymbolShapes = tuple[Shape | sympy.Expr | None, Shape | sympy.Expr | int]  # shapes before and behind an operator


def typed_symbol(shapes: Callable[[Sort], SymbolShapes], **facts: bool) -> Callable[[str, Sort], Operator]:
    """Return a function that builds a symbol with these facts, with the shapes before and behind it from a sort."""
    return lambda name, sort: symbol(name, *shapes(sort), **facts)


def row_shapes(sort: Sort) -> SymbolShapes:
    """Return the shapes around rows of a space: any before, heads and columns behind."""
    return None, Shape(sort.heads, space(sort.space or "T"), sort.last)


def score_shapes(sort: Sort) -> SymbolShapes:
    """Return the shapes around scores: any before, rows of a space × tokens behind."""
    return None, Shape(sort.last, space(sort.space or "T"), T)


def column_shapes(sort: Sort) -> SymbolShapes:
    """Return the shapes around one column: any before, a single column behind."""
    return None, 1


def square_shapes(sort: Sort) -> SymbolShapes:
    """Return equal shapes before and behind an operator of one size."""
    return sort.last, sort.last


def matrix_shapes(sort: Sort) -> SymbolShapes:
    """Return the shapes around a matrix: its rows before, its columns behind, in as many heads as its stack has."""
    *stack, rows, cols = sort.sizes
    return rows, Shape((stack or [1])[0], T, cols)


VARIABLES = {
    "value": Variable(
        typed_symbol(row_shapes),
        lambda d, sort: d.weight(*sort.sizes[:-1], INPUT, sort.last) @ bent,
        lambda d, sort: d.ends(*sort.sizes[:-1], INPUT, sort.last),
    ),
    "varying": Variable(
        typed_symbol(row_shapes), lambda d, sort: ones @ d.weight(*sort.sizes[:-1], 1, sort.last) @ bent
    ),
    "array": Variable(
        typed_symbol(lambda sort: (None, Shape(1, *sort.sizes))),
        lambda d, sort: product(turn(d.weight(INPUT, sort.heads)), d.weight(INPUT, sort.last)),
    ),
    "scores": Variable(typed_symbol(score_shapes), lambda d, sort: d.scores(sort.last, value)),
    "level": Variable(typed_symbol(score_shapes), lambda d, sort: d.scores(sort.last, constant)),
    "constant": Variable(
        typed_symbol(row_shapes, constant=True, uniform=True),
        lambda d, sort: split_heads(const(d.numbers(sort.heads * sort.last)), sampled(sort.heads)),
    ),
    "alike_rows": Variable(
        typed_symbol(row_shapes, by_key=True),
        lambda d, sort: split_heads(const(d.numbers(sort.heads * sort.last)), sampled(sort.heads)),
    ),
    "placed": Variable(
        typed_symbol(row_shapes, constant=True),
        lambda d, sort: split_heads(
            given("positions", max(ROWS)) @ d.weight(max(ROWS), sort.heads * sort.last), sampled(sort.heads)
        ),
    ),
    "column": Variable(typed_symbol(column_shapes), lambda d, sort: d.weight(INPUT, 1) @ bent),
    "scalar": Variable(typed_symbol(column_shapes, constant=True, uniform=True), lambda d, sort: const(d.numbers(1))),
    "matrix": Variable(
        typed_symbol(matrix_shapes, linear=True),
        lambda d, sort: d.weight(*sort.sizes),
        lambda d, sort: d.ends(*sort.sizes),
    ),
    "choice": Variable(typed_symbol(matrix_shapes, linear=True), lambda d, sort: d.choice(*map(sampled, sort.sizes))),
    "operator": Variable(typed_symbol(matrix_shapes), None, lambda d, sort: d.ends(*sort.sizes)),
    "mixing": Variable(typed_symbol(matrix_shapes), lambda d, sort: mix(d.weight(*sort.sizes))),
    "rotation": Variable(
        typed_symbol(square_shapes, row_linear=True, row_wise=True),
        lambda d, sort: rotate(*(d.numbers(max(ROWS), sort.last / 2) for _ in range(2))),
    ),
    "relative": Variable(
        typed_symbol(lambda sort: (sort.last, Shape(sort.heads, T, T)), row_linear=True),
        lambda d, sort: at_distances(d.numbers(*sort.sizes, 5)),
    ),
    "distances": Variable(
        typed_symbol(score_shapes, constant=True), lambda d, sort: by_distance(d.numbers(sort.last, 5), 2)
    ),
    "entrywise": Variable(lambda name, sort: symbol(name, *square_shapes(sort), **dict.fromkeys(sort.facts, True))),
    "lag": Variable(
        lambda name, sort: sympy.Symbol(name, integer=True, positive=True), lambda d, sort: 1 + int(d.rng.integers(3))
    ),
    "count": Variable(lambda name, sort: sort.last or h, lambda d, sort: sampled(sort.last or h)),
}
ATTRIBUTE = Variable(lambda name, sort: Name(name))


def stand_in(variable: str, sort: Sort) -> Any:
    """Return the symbol of a variable in a rewrite."""
    return VARIABLES.get(sort.name, ATTRIBUTE).symbol(variable, sort)


@cache
def list_ways(sort: Sort) -> tuple[Way, ...]:
    """Return the ways to draw a variable of this sort: the general one, where it has the facts, else every special one
    that has them."""
    _, sample, special = VARIABLES.get(sort.name, ATTRIBUTE)
    probe = Draw(np.random.default_rng(0), "_")
    if sample is not None and has_facts(sample(probe, sort), sort.facts):
        return (sample,)
    if special is None:
        return tuple(lambda d, sort, each=option: each for option in choices(sort))
    return tuple(
        lambda d, sort, each=instance: make_instance(each, special(d, sort))
        for instance in INSTANCES
        if has_facts(make_instance(instance, special(probe, sort)), sort.facts)
    )


def drawn(rng: np.random.Generator, sort: Sort, variable: str, way: int | None = None) -> object:
    """Return an operator that the variable may be in a check, drawn in this one of its ways, by default the first, or
    any choice of an attribute. Values depend on the input; operators need not be linear."""
    ways = list_ways(sort)
    if not ways:
        raise TypeError(f"{variable}: no way to draw a {sort.name}")
    if way is None:
        way = int(rng.integers(len(ways))) if sort.name in CHOICES else 0
    return ways[way](Draw(rng, variable), sort)


def choices(sort: Sort) -> list[object]:
    """Return every monoid, pattern or function that a variable of this sort may be: those that have its flags. Empty
    for other sorts."""
    flags = sort.sizes if sort.name != "entrywise" else ()
    return [
        option
        for option in CHOICES.get(sort.name, ())
        if all(getattr(option, str(flag).removesuffix(OF_MONOID), False) for flag in (*flags, *sort.facts))
    ]


class FunctionDeclaration:
    """A declaration by a function `body`: it has the function's name and docstring."""

    body: Callable[..., object]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.body.__name__

    @property
    def doc(self) -> str:
        """The docstring of the function; empty if there is none."""
        return inspect.getdoc(self.body) or ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} {self.name}>"


@dataclass(frozen=True, eq=False, repr=False)
class Law(FunctionDeclaration):
    """One law. `both`: it holds as a rewrite in both directions. `canonical`: the left side is never needed again.
    `without`: counterexamples, each with sorts of variables without the guard, so that the law fails. `largest`: the
    magnitude of the numbers of the last sequence of a check; some laws hold for small ones only."""

    body: SidesOf
    kind: str = EXACT
    phase: str = RESTRUCTURE
    both: bool = False
    canonical: bool = False
    when: tuple[str, ...] = ()
    source: str = ""
    without: tuple[dict[str, Sort], ...] = ()
    largest: float = 1000.0

    @property
    def variables(self) -> dict[str, Sort]:
        """The sort of each variable, by the annotations of the function."""
        return dict(self.body.__annotations__)

    @property
    def guards(self) -> tuple[str, ...]:
        """Facts, as egglog text, that the matched classes and attributes must have."""
        facts = [f"({fact} {name})" for name, sort in self.variables.items() for fact in sort.facts]
        flags = [
            f"({flag} {name})"
            for name, sort in self.variables.items()
            if sort.name in ("over", "where")
            for flag in sort.sizes
        ]
        return (*facts, *flags, *self.when)

    def of(self, variables: Mapping[str, object]) -> Sides:
        """Return left and right over these variables; a law may have several of each, equal in pairs."""
        pair = self.body(**variables)
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"law {self.name}: it returns {brief(pair)}: return both sides, left, right")
        left, right = pair
        return (left, right) if isinstance(left, tuple) else ((left,), (right,))

    @cached_property
    def _over_symbols(self) -> Sides:
        return self.of({name: stand_in(name, sort) for name, sort in self.variables.items()})

    def sides(self) -> Sides:
        """Return left and right over symbols."""
        return self._over_symbols

    @property
    def sorts(self) -> dict[str, Sort]:
        """The sorts of its variables, with the facts that conditions require of one variable alone."""
        asked = [guard for condition in self.when if (guard := read_guard(condition))]
        return {
            name: replace(
                sort, facts=(*sort.facts, *(required.fact for required in asked if required.variables == (name,)))
            )
            for name, sort in self.variables.items()
        }

    def drawn(self, rng: np.random.Generator, **other: Sort) -> dict[str, Any]:
        """Return an operator for each variable; `other` widens some sorts."""
        return {name: drawn(rng, sort, name) for name, sort in (self.sorts | other).items()}

    def trials(self, rng: np.random.Generator, most: int = MOST_TRIALS, /, **other: Sort) -> Iterator[dict[str, Any]]:
        """Yield operators for its variables in every combination of the ways to draw each, at most `most` of these."""
        sorts = self.sorts | other
        counts = [max(1, len(list_ways(sort))) for sort in sorts.values()]
        total = prod(counts)
        for number in range(total) if total <= most else rng.choice(total, most, replace=False):
            at = np.unravel_index(number, counts) if counts else ()
            yield {name: drawn(rng, sort, name, int(way)) for (name, sort), way in zip(sorts.items(), at, strict=True)}

    def difference(self, rng: np.random.Generator, **other: Sort) -> float:
        """Return the largest difference of both sides on a random ragged batch. Raises TypeError where they do not
        fit."""
        return self.difference_of(rng, self.drawn(rng, **other))

    def difference_of(self, rng: np.random.Generator, variables: Mapping[str, object]) -> float:
        """Return the largest difference of both sides over these variables."""
        left, right = self.of(variables)
        x = rng.normal(size=(sum(ROWS), input_columns((left, right)))) * np.repeat([1, 1, self.largest], ROWS)[:, None]
        batch = ragged()
        with np.errstate(invalid="ignore", over="ignore"):  # an empty maximum is -inf, and 0 times it is NaN
            return max(apart(dense(a, x, batch), dense(b, x, batch)) for a, b in zip(left, right, strict=True))

    def holds(self, rng: np.random.Generator, tolerance: float = 1e-9, **other: Sort) -> bool:
        """True if both sides agree, with every choice of monoids, patterns, functions and operators that fits."""
        differences = [*self.differences(rng, **other)]
        return bool(differences) and max(differences) <= tolerance

    def differences(self, rng: np.random.Generator, **other: Sort) -> Iterator[float]:
        """Yield the difference of both sides in every trial in which they fit."""
        for variables in self.trials(rng, **other):
            try:
                yield self.difference_of(rng, variables)
            except TypeError:
                continue

    def check(self, rng: np.random.Generator) -> None:
        """Assert that the law holds as declared, and each counterexample fits and fails."""
        assert self.holds(rng), (
            f"{self.name}: the two sides differ on random numbers, of size 1 and "
            f"{self.largest:g}, or do not fit; `difference` says by how much"
        )
        small = replace(self, largest=1.0)  # tanh is negligible beside large numbers
        for other in self.without:
            widened = ", ".join(f"{name}: {sort}" for name, sort in other.items())
            assert any(small.difference(rng, **other) > 1e-3 for _ in range(40)), (
                f"{self.name}: it holds with {widened} too"
            )

    def statement(self, notation: Callable[[Operator], str] = str) -> str:
        """Write both sides with an arrow, double if the law holds as a rewrite in both directions."""
        left, right = self.sides()
        arrow = " ⇄ " if self.both else " → "
        return ", ".join(map(notation, left)) + arrow + ", ".join(map(notation, right))

    def row(self) -> tuple[str, ...]:
        """Return name, kind, statement, guard, source: the row of `opmatrix laws` and of the docs table."""
        guard = ", ".join(g.strip("()").replace(" ", "(", 1) + ")" for g in self.guards)
        return self.name, self.kind, self.statement(), guard, self.source

    def _repr_html_(self) -> str:
        return str(body("display.shown.law_html")(self))


def input_columns(sides: Sides) -> int:
    """Return the input columns of sides that are operators; those of a check where they are values."""
    return next((cols for side in (*sides[0], *sides[1]) if isinstance(cols := side.into.cols, int)), INPUT)


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative to 1 and to the largest entry of its row; infinite where
    only one of them is finite."""
    off, size = settled(*np.broadcast_arrays(a, b))
    if not np.isfinite(off).all():
        return np.inf
    return float((abs(off) / np.maximum(1, abs(size).max(-1, keepdims=True, initial=0))).max(initial=0))


def law(**declared: Any) -> Callable[[SidesOf], Law]:
    """Declare a law by a function of its variables that returns both sides. Raises TypeError where a variable is not
    annotated."""

    def declare(body: SidesOf) -> Law:
        """Make the law of a function. Raises TypeError if a variable is not annotated with a sort."""
        if isinstance(condition := declared.get("when"), str):
            declared["when"] = (condition,)
        new_law = Law(body, **declared)
        if bare := [v for v in inspect.signature(body).parameters if not isinstance(new_law.variables.get(v), Sort)]:
            raise TypeError(f"law {new_law.name}: {bare[0]} has no annotation: give one, such as {bare[0]}: value[n]")
        return new_law

    return declare


def collect(namespace: Mapping[str, object]) -> tuple[Law, ...]:
    """Return the laws of a module, in the order of the file."""
    return tuple(member for member in namespace.values() if isinstance(member, Law))


def find(laws: Sequence[Law], name: str) -> Law:
    """Return the law of that name. Raises KeyError, which lists the known names, for an unknown one."""
    for candidate in laws:
        if candidate.name == name:
            return candidate
    raise KeyError(f"no law {name!r}; there are {', '.join(sorted(known.name for known in laws))}")
