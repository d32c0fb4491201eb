"""Interpretation of terms that no kernel computes: a term as text that a program can hold, evaluated in float64 and
rounded once.

A text is JSON: nodes in order, children first, each [kind, children by number, attributes]; `["value", k]` is the k-th
value that the step reads, `["value", k, "S"]` one with rows of space S, an attribute {"array": k} its k-th array.
Custom kinds and monoids are named by name and digest."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.data import Data
from opmatrix.algebra.oracles import DenseReading
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.positions.visibility import needed
from opmatrix.algebra.shapes import Shape, ShapeError, Space, T, space
from opmatrix.algebra.term import Operator, read
from opmatrix.runtime.codegen.custom_things import name_kind, name_monoid
from opmatrix.runtime.declarations.arguments import Arguments, Doubles, split_operands
from opmatrix.runtime.terms import measured, parse_operator

UNWRITABLE = (
    "it is user-defined and has no name: declare it by @pattern (opmatrix.algebra.positions.patterns), or "
    "evaluate the term itself, x @ term"
)


def write_term(term: Operator, values: Mapping[Operator, int]) -> tuple[str, list[Data]]:
    """Return a term as text over values that stand for some of its parts, and the arrays that it contains."""
    nodes: list[list[Any]] = []
    arrays: list[Data] = []
    numbers: dict[Operator, int] = {}

    def attribute(given: object) -> Any:
        """Return an attribute as JSON: arrays by their numbers, patterns and relations in words. Raises InputError for
        a pattern that no file can hold."""
        if isinstance(given, Data):
            if given not in arrays:
                arrays.append(given)
            return {"array": arrays.index(given)}
        if isinstance(given, Pattern):
            if not given.stated:
                raise InputError(f"pattern {given}: {UNWRITABLE}")
            return {"pattern": given.text, "arrays": [attribute(data)["array"] for data in given.data]}
        if isinstance(given, Relation):
            return {"relation": [given.name, given.rows, given.cols]}
        if not isinstance(given, type):
            return given
        return {"over": name_monoid(given)}

    def add(node: Operator) -> int:
        """Append a node behind its children, once; return its number."""
        if node not in numbers:
            entry = (
                ["value", values[node], *([str(node.out.rows)] if node.out.rows is not T else [])]
                if node in values
                else [
                    name_kind(node.kind),
                    [add(child) for child in node.children],
                    [attribute(a) for a in node.attributes],
                ]
            )
            nodes.append(entry)
            numbers[node] = len(nodes) - 1
        return numbers[node]

    add(term)
    return json.dumps(nodes, separators=(",", ":")), arrays


def is_writable(term: Operator) -> bool:
    """True if a term can be written: a pattern that was not declared by a name has no text."""
    return all(
        attribute.stated for node in term.walk() for attribute in node.attributes if isinstance(attribute, Pattern)
    )


@dataclass(frozen=True, eq=False)
class AtValues(DenseReading):
    """Whole arrays, in which symbols stand for the values of a step."""

    values: Sequence[Doubles] = field(default=())

    def symbol(self, name: str, into: Shape, out: Shape) -> Self:
        """Return the value of a step, with the batch's rows of its space."""
        value = self.values[int(name[1:])]
        return replace(self, value=value, batch=needed(self.batch, name).space(str(out.rows), value.shape[-2]))


def shape(a: Arguments) -> Shape:
    """Return the shape of a step's result, from the shapes of its values."""
    values, arrays = split_operands(a)
    shapes = [Shape(getattr(value, "heads", 1), space(str(value.space)), value.cols) for value in values]
    result = measured(parse_operator(a.term, shapes, arrays), shapes)
    if not isinstance(result.heads, int) or not isinstance(result.cols, int) or not isinstance(result.rows, Space):
        raise ShapeError(f"term: it gives {result}, no rows of a space and of known size")
    return result


def exact(a: Arguments) -> Doubles:
    """Compute the meaning of a step: rows x columns, or rows x heads x columns."""
    values, arrays = split_operands(a)
    turned = [value if value.ndim == 2 else value.swapaxes(0, 1) for value in map(as_float64, values)]
    shapes = [Shape(len(value) if value.ndim == 3 else 1, T, value.shape[-1]) for value in turned]
    x = AtValues(np.zeros((a.batch.rows, 1)), a.batch, values=turned)
    result = read(parse_operator(a.term, shapes, arrays), x, {}).array
    return np.asarray(
        result.swapaxes(0, 1) if result.ndim == 3 and len(result) > 1 else result.reshape(result.shape[-2:])
    )


def as_float64(value: object) -> Doubles:
    """Convert an operand to float64."""
    return np.asarray(value, np.float64)
