"""Counts of the numbers that reading a term makes, and of the products that it computes: for every node, also where
rows mix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, NoReturn

import numpy as np
import sympy

from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.shapes import LiveSize, Shape, T, expression, space
from opmatrix.algebra.term import Operator, read
from opmatrix.runtime.terms import parse_operator


class ProductSizes(NamedTuple):
    """A product: `rows` of all heads times a matrix, or a value, of `inner` rows and `columns`. `ordinary`: by a
    product of arrays, else merged number by number."""

    rows: sympy.Expr
    inner: sympy.Expr
    columns: sympy.Expr
    ordinary: bool


class ValueSize(NamedTuple):
    """The heads of a value, and the numbers of all of them."""

    heads: int
    numbers: sympy.Expr


class TermWork(NamedTuple):
    """The work of reading a term: its values, and its products."""

    values: tuple[ValueSize, ...]
    products: tuple[ProductSizes, ...]

    @property
    def numbers(self) -> sympy.Expr:
        """The count of numbers of all values."""
        return sympy.Add(*(value.numbers for value in self.values))


@dataclass(frozen=True, eq=False)
class CountedShape:
    """A value's shape; `made` has the numbers of every value so far, `products` the products so far."""

    shape: Shape
    values: Sequence[Shape]
    made: list[ValueSize]
    products: list[ProductSizes]

    def of(self, shape: Shape) -> CountedShape:
        """Note the numbers of a result, by heads, and make its reading."""
        heads = shape.heads if isinstance(shape.heads, int) else 1
        self.made.append(ValueSize(heads, sympy.Mul(*map(expression, shape))))
        return CountedShape(shape, self.values, self.made, self.products)

    def multiplied(self, out: Shape, ordinary: bool) -> None:
        """Record a product of this value's columns."""
        rows = expression(out.heads) * expression(out.rows)
        self.products.append(ProductSizes(rows, expression(self.shape.cols), expression(out.cols), ordinary))

    def __add__(self, other: CountedShape) -> CountedShape:
        return self.of(self.shape + other.shape)

    def __mul__(self, other: CountedShape) -> CountedShape:
        return self.of(self.shape * other.shape)

    def keep_top(self, by: CountedShape, k: int) -> CountedShape:
        """Count the numbers of kept entries: as many as there are entries."""
        return self.of(self.shape.keep_top(by.shape, k))

    def turn(self) -> CountedShape:
        """Count the numbers of an exchange of rows and columns."""
        return self.of(self.shape.turn())

    def beside(self, other: CountedShape) -> CountedShape:
        """Count the numbers of columns side by side."""
        return self.of(self.shape.beside(other.shape))

    def split(self, h: int) -> CountedShape:
        """Count the numbers of a value divided into heads."""
        return self.of(self.shape.split(h))

    def join(self, h: int) -> CountedShape:
        """Count the numbers of heads put side by side."""
        return self.of(self.shape.join(h))

    def repeat(self, h: int) -> CountedShape:
        """Count the numbers of all copies of heads."""
        return self.of(self.shape.repeat(h))

    def total(self) -> CountedShape:
        """Count the numbers of the sum of heads."""
        return self.of(self.shape.total())

    def given(self, field: str, cols: int) -> CountedShape:
        """Count the numbers of one-hot rows, zeros too."""
        return self.of(self.shape.given(field, cols))

    def related(self, relation: Relation) -> CountedShape:
        """Count the numbers of a relation as a full matrix."""
        return self.of(self.shape.related(relation))

    def by_distance(self, table: Data, most: int) -> CountedShape:
        """Count the numbers of a table by distance, one for each pair of rows."""
        return self.of(self.shape.by_distance(table, most))

    def at_distances(self, table: Data) -> CountedShape:
        """Count the products with all columns of a table, and the numbers of all pairs."""
        heads, _, count = table.shape
        self.multiplied(self.of(Shape(heads, self.shape.rows, count)).shape, True)
        return self.of(self.shape.at_distances(table))

    def scan(self, other: CountedShape, over: type[Monoid], where: Pattern) -> CountedShape:
        """Count the numbers that rows carry, merged in order, and those of the result."""
        shape = self.shape.scan(other.shape, over, where)
        self.of(shape._replace(cols=shape.cols * len(over.unit())))
        return self.of(shape)

    def delta_rule(self, *others: CountedShape) -> CountedShape:
        """Count the numbers of the states of all rows, and those of the result."""
        shape = self.shape.delta_rule(*(each.shape for each in others))
        self.of(shape._replace(cols=shape.cols * others[0].shape.cols))
        return self.of(shape)

    def pick(self, relation: Relation) -> CountedShape:
        """Count the numbers of the picked rows."""
        return self.of(self.shape.pick(relation))

    def shift(self, k: int) -> CountedShape:
        """Count the numbers of shifted rows."""
        return self.of(self.shape.shift(k))

    def entered(self, port: object) -> NoReturn:
        """Raise TypeError: inputs are values of steps, so no term of a step has one."""
        raise TypeError("an input is a value, not a term of a step")

    @property
    def size(self) -> tuple[LiveSize, LiveSize]:
        """The rows and columns of the value."""
        return self.shape.size

    @property
    def heads(self) -> LiveSize:
        """The heads of the value."""
        return self.shape.heads

    def spread(self, rows: LiveSize, cols: LiveSize) -> CountedShape:
        """Count the numbers of a value spread to more rows or columns."""
        return self.of(self.shape.spread(rows, cols))

    def symbol(self, name: str, into: Shape, out: Shape) -> CountedShape:
        """Return the value of a step, which costs no further numbers."""
        return CountedShape(self.values[int(name[1:])], self.values, self.made, self.products)

    def act(self, term: Operator) -> CountedShape:
        """Return the result of a matrix; if it merges numbers one by one, all merged numbers are counted, too."""
        result = self.of(self.shape.act(term))
        if any(isinstance(attribute, Data) and len(attribute.shape) > 1 for attribute in term.attributes):
            self.multiplied(result.shape, True)
        if not term.kind.dense:
            self.of(Shape(result.shape.heads, result.shape.rows, self.shape.cols * result.shape.cols))
        return result

    def product(self, other: CountedShape, over: type, where: Pattern) -> CountedShape:
        """Return the result of a product, and count the scores that it reads."""
        self.of(self.shape)
        result = self.of(self.shape.product(other.shape, over, where))
        self.multiplied(result.shape, getattr(over, "closed", None) is not None)
        return result


@lru_cache(256)
def count_work(text: str, values: tuple[tuple[int, str, int], ...], arrays: tuple[tuple[int, ...], ...]) -> TermWork:
    """Count a term's work over values of these heads, rows of a space and columns, in sizes of spaces."""
    shapes = [Shape(heads, space(rows), cols) for heads, rows, cols in values]
    tables = list_tables(text)  # read when patterns are built; the count of scores covers
    # which rows see which
    term = parse_operator(
        text,
        shapes,
        [np.ones(shape, bool) if k in tables else Promised(f"c{k}", shape) for k, shape in enumerate(arrays)],
    )
    start = CountedShape(Shape(1, T, 1), shapes, [], [])
    read(term, start, {})
    return TermWork(tuple(start.made), tuple(start.products))


def list_tables(text: str) -> set[int]:
    """Return the numbers of the arrays that the patterns of a term contain."""
    attributes = (attribute for _, _, *rest in json.loads(text) for attribute in chain(*rest))
    return {at for attribute in attributes if isinstance(attribute, dict) for at in attribute.get("arrays", ())}
