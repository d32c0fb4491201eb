"""Terms from text: JSON of nodes, each attribute of the type that its kind's annotation declares, and no term so large
that reading it once would take too long."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar, get_args

import numpy as np

from formats.disk.files import parse_json
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import Relation, relation
from opmatrix.algebra.batch.signature import WIDEST
from opmatrix.algebra.custom.custom_names import find_named, is_own_name
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.operators import symbol
from opmatrix.algebra.positions.lags import Lag, lag_of
from opmatrix.algebra.positions.patterns import Pattern, everyone, parse
from opmatrix.algebra.shapes import H, Live, LiveSize, N, Shape, ShapeError, Space, T, expression, find_spaces, space
from opmatrix.algebra.term import Operator, read
from opmatrix.runtime.codegen.custom_things import find_kind

Item = TypeVar("Item")
MAX_LETTERS, MAX_NODES, MAX_NESTING = 1 << 17, 1000, 100  # characters; nodes; depth of nodes
READINGS = 10_000  # readings of nodes, each at one value
ASSUMED_ROWS, MAX_NUMBERS = 1024, 1 << 30  # the most numbers of a value of ASSUMED_ROWS rows
MAX_MERGES = 1 << 24  # the most numbers that one reading merges one by one


def parse_operator(text: str, shapes: Sequence[Shape], arrays: Sequence[object]) -> Operator:
    """Parse the term of a text over values of these shapes: `["value", k]` is the k-th, {"array": k} the k-th array.
    Raises ValueError that describes the fault."""
    if len(text) > MAX_LETTERS:
        raise ValueError(f"term: {len(text):,} characters; it may have {MAX_LETTERS:,}")
    nodes: list[Operator] = []
    readings: dict[Operator, int] = {}
    depths: dict[Operator, int] = {}
    try:
        if not isinstance(entries := parse_json(text, "term"), list) or not 0 < len(entries) <= MAX_NODES:
            raise ValueError(f"it is no list of 1 to {MAX_NODES} nodes")
        for entry in entries:
            nodes.append(operator := node(entry, nodes, shapes, arrays))
            first, *others = operator.children or (operator,)
            depths[operator] = max([depths.get(first, 0), *(depths[child] + 1 for child in others)])
            readings[operator] = read_at_once(operator, readings)
            if depths[operator] > MAX_NESTING:
                raise ValueError(f"nodes are nested {depths[operator]} deep; at most {MAX_NESTING} are allowed")
            if (count := readings[operator]) > READINGS:
                raise ValueError(f"nodes are read {count:,} times; at most {READINGS:,} are allowed")
    except FAULTS as error:
        raise ValueError(describe_error(error)) from None
    return nodes[-1]


FAULTS = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError


def describe_error(error: Exception) -> str:
    """Return the message of an error in a term, with one `term: ` in front."""
    return f"term: {str(error).removeprefix('term: ') or type(error).__name__}"


def node(entry: object, nodes: Sequence[Operator], shapes: Sequence[Shape], arrays: Sequence[object]) -> Operator:
    """Build one node from nodes before it."""
    match entry:
        case ["value", k]:
            return symbol(f"x{k}", Shape(), pick_item(k, shapes))
        case ["value", k, str(rows)]:
            return symbol(f"x{k}", Shape(), pick_item(k, shapes)._replace(rows=space(check_name(rows))))
        case [str(name), list(children), list(attributes)] if name != "symbol" and (kind := find_kind(name)):
            declared = [parameter.annotation for parameter in kind.signature.parameters.values()][kind.arity :]
            if len(children) != kind.arity or len(attributes) != len(declared):
                raise ValueError(f"{entry!r:.80} is no {name}{kind.signature}")
            values = (attribute(value, wanted, arrays) for value, wanted in zip(attributes, declared, strict=True))
            operator = Operator(kind, *(pick_item(k, nodes) for k in children), *values)
            for size in (*operator.into, *operator.out):
                bounded(size)
            return operator
    raise ValueError(f"{entry!r:.80} is not a node")


def pick_item(k: object, among: Sequence[Item]) -> Item:
    """Return the k-th item. Raises ValueError if there is none."""
    if type(k) is int and 0 <= k < len(among):
        return among[k]
    raise ValueError(f"{k!r:.80} is not an index below {len(among)}")


def attribute(given: object, wanted: object, arrays: Sequence[object]) -> object:
    """Return an attribute of the type that a kind's annotation names. Raises ValueError for any other value."""
    match given:
        case {"array": k} if wanted is Data:
            return data_of(pick_item(k, arrays))
        case {"pattern": str(form), "arrays": list(places)} if wanted is Pattern:
            return parse(form, [pick_item(k, arrays) for k in places])
        case {"over": str(name)} if wanted is type:
            return find_monoid(name)
        case {"relation": [str(name), str(rows), str(cols)]} if wanted is Relation:
            return relation(check_name(name), check_name(rows), check_name(cols))
    if wanted is Lag and type(given) is int:
        return lag_of(given, "shift: k")
    if isinstance(given, str) and given in get_args(wanted):
        return given
    if wanted is int or int in get_args(wanted):
        if type(given) is int and 0 <= given <= WIDEST:
            return given
        if given is None and wanted is not int:
            return None
    raise ValueError(f"{given!r:.80} is no {getattr(wanted, '__name__', wanted)}")


def data_of(array: object) -> Data:
    """Return an array as an attribute. For an array that broadcasts one number, which stands for a weight that does not
    exist yet, only the shape is kept: a copy would be as large as the weight."""
    if isinstance(array, Data):
        return array
    if isinstance(array, np.ndarray) and array.size > 1 and not any(array.strides):
        return Promised("array", array.shape)
    return Data(array)


def check_name(name: str) -> str:
    """Return the name of a relation or a space. Raises ValueError for an invalid one."""
    if re.fullmatch(r"[A-Za-z]\w{0,39}", name, re.ASCII):
        return name
    raise ValueError(f"{name!r:.80} is no name of up to 40 letters, digits and _")


def find_monoid(name: str) -> type[Monoid]:
    """Return a monoid by its name in texts."""
    return find_named(name, type) if is_own_name(name) else monoids.called(name)


# ---- bounds on its size


def bounded(size: LiveSize) -> None:
    """Raise ShapeError for a size outside 1 to WIDEST. Sizes that are not fixed yet are parts of expressions, whose
    numbers may neither grow without limit nor vanish."""
    if not 1 / WIDEST <= size_at(size, 2, H, N) <= WIDEST:
        raise ShapeError(f"{size!s:.80} is no size from 1 to {WIDEST:,}")


def read_at_once(term: Operator, readings: dict[Operator, int]) -> int:
    """Return the number of readings of nodes when this one is read once: each once at one value, and the second part of
    a composition at another."""
    seen, todo, count = {term}, [term], 0
    while todo:
        last, count = todo.pop(), count + 1
        children = () if last.kind.matrix else last.children
        if last.kind.name == "compose":
            children, count = children[:1], count + readings[children[1]]
        todo += [child for child in children if child not in seen]
        seen.update(children)
    return count


@dataclass(frozen=True, eq=False)
class BoundedShape:
    """A value's shape, with everything but the number of rows known, and the space whose places its rows have: picked
    rows stand where they stood. Raises ShapeError for a value with too many numbers, or with too many merges in
    Python."""

    shape: Shape
    values: Sequence[Shape] = ()
    stands: LiveSize = T

    def of(self, shape: Shape, steps: int = 1) -> "BoundedShape":
        """Check the size of a result, and make its reading. Raises ShapeError for too many numbers or merges."""
        count = prod(map(count_size, shape))
        if count > MAX_NUMBERS or steps > MAX_MERGES:
            raise ShapeError(
                f"{shape} of {ASSUMED_ROWS} rows is {count:,} numbers, merged in {steps:,} steps: too many"
            )
        return BoundedShape(shape, self.values, self.stands)

    def __add__(self, other: "BoundedShape") -> "BoundedShape":
        return self.of(self.shape + other.shape)

    def __mul__(self, other: "BoundedShape") -> "BoundedShape":
        return self.of(self.shape * other.shape)

    def keep_top(self, by: "BoundedShape", k: int) -> "BoundedShape":
        """Check the size of kept entries."""
        return self.of(self.shape.keep_top(by.shape, k))

    def turn(self) -> "BoundedShape":
        """Check the size of an exchange of rows and columns."""
        return self.of(self.shape.turn())

    def beside(self, other: "BoundedShape") -> "BoundedShape":
        """Check the size of columns side by side."""
        return self.of(self.shape.beside(other.shape))

    def split(self, h: int) -> "BoundedShape":
        """Check the size of a value divided into heads."""
        return self.of(self.shape.split(h))

    def join(self, h: int) -> "BoundedShape":
        """Check the size of heads put side by side."""
        return self.of(self.shape.join(h))

    def repeat(self, h: int) -> "BoundedShape":
        """Check the size of all copies of heads."""
        return self.of(self.shape.repeat(h))

    def total(self) -> "BoundedShape":
        """Check the size of the sum of heads."""
        return self.of(self.shape.total())

    def given(self, field: str, cols: int) -> "BoundedShape":
        """Check the size of one-hot rows, zeros too."""
        return self.of(self.shape.given(field, cols))

    def related(self, relation: Relation) -> "BoundedShape":
        """Check the size of a relation as a full matrix."""
        return replace(self.of(self.shape.related(relation)), stands=space(relation.rows))

    def by_distance(self, table: Data, most: int) -> "BoundedShape":
        """Check the size of a table by distance, one number for each pair of rows."""
        return self.of(self.shape.by_distance(table, most))

    def at_distances(self, table: Data) -> "BoundedShape":
        """Check the size of a number for each pair of rows."""
        return self.of(self.shape.at_distances(table))

    def scan(self, other: "BoundedShape", over: type[Monoid], where: Pattern) -> "BoundedShape":
        """Check the size of rows merged in order, and count their merges."""
        return self.of(self.shape.scan(other.shape, over, where), ASSUMED_ROWS * merging(over, 1))

    def delta_rule(self, *others: "BoundedShape") -> "BoundedShape":
        """Check the size of rows that read a state, and count the numbers of the states of all rows."""
        shape = self.shape.delta_rule(*(each.shape for each in others))
        return self.of(shape, ASSUMED_ROWS * others[0].shape.cols)

    def pick(self, relation: Relation) -> "BoundedShape":
        """Check the size of the picked rows."""
        return self.of(self.shape.pick(relation))

    def shift(self, k: int) -> "BoundedShape":
        """Check the size of shifted rows."""
        return self.of(self.shape.shift(k))

    @property
    def size(self) -> tuple[LiveSize, LiveSize]:
        """The rows and columns of the value."""
        return self.shape.size

    @property
    def heads(self) -> LiveSize:
        """The heads of the value."""
        return self.shape.heads

    def spread(self, rows: LiveSize, cols: LiveSize) -> "BoundedShape":
        """Check the size of a value spread to more rows or columns."""
        return self.of(self.shape.spread(rows, cols))

    def symbol(self, name: str, into: Shape, out: Shape) -> "BoundedShape":
        """Check the size of a step's value."""
        return replace(self.of(self.values[int(name[1:])]), stands=out.rows)

    def act(self, term: Operator) -> "BoundedShape":
        """Check the size after a matrix kind, and count its merges in Python if it has no whole-array form."""
        *stack, n, p = map(count_size, term.shape_of(self.shape.cols))
        steps = 1 if term.kind.dense else prod((*stack, n, p)) * merging(term.args[1], n)
        return self.of(self.shape.act(term), steps)

    def product(self, other: "BoundedShape", over: type[Monoid], where: Pattern) -> "BoundedShape":
        """Check a product's size and pattern, and count its merges in Python if the monoid has no closed form. Raises
        ShapeError for scores that do not fit the pattern."""
        seen, sizes = where.relation, self.shape[1:]
        wanted = (space(seen.rows), space(seen.cols)) if seen else (T, T)
        stands = all(isinstance(size, Space) for size in sizes) and (self.stands, other.stands) == wanted
        if where is not everyone and sizes != wanted and not stands:
            raise ShapeError(f"product where {where}: scores are {self.shape}")
        inner = count_size(self.shape.cols)
        return self.of(self.shape.product(other.shape, over, where), 1 if over.closed else inner * merging(over, inner))


def count_size(size: LiveSize) -> int:
    """Return a size for ASSUMED_ROWS rows."""
    return int(size_at(size, ASSUMED_ROWS))


def size_at(size: LiveSize, number: int, *others: Live) -> LiveSize:
    """Return a size if every space has `number` rows, and `others` are as large. Whole numbers and a single live size
    are computed without sympy, which takes most of the time."""
    if isinstance(size, int):
        return size
    if isinstance(size, Space) or size in others:
        return number
    return expression(size).subs(dict.fromkeys({*find_spaces(size), *others}, number))


def merging(over: type[Monoid], count: int) -> int:
    """Return the steps in Python of one merge of `count` numbers."""
    return int(count if over.width is None else over.width**2)


def measured(term: Operator, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of a term's result over values of these shapes. Raises ValueError if it is too large."""
    try:
        result: BoundedShape = read(term, BoundedShape(Shape(1, T, 1), shapes), {})
    except FAULTS as error:
        raise ValueError(describe_error(error)) from None
    return result.shape
