"""A term read at values of rows: what each row becomes, where the term goes through rows one by one."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

from formats.core.activation import ACTIVATIONS
from formats.kernels.generated.rowwise.row_values import SMALL_MATRIX, RowValue, graphed, literal, mapped
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalar_graphs import check_traced
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn, Untraceable, trace_numbers
from opmatrix.algebra import monoids
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator, read
from opmatrix.runtime.codegen.merging import finish_each, merge_row


class NotByRows(ValueError):
    """A node that does not go through rows one by one here, and why; `traced`: as a function of somebody's could not be
    followed, which is said with its place."""

    def __init__(self, said: str, node: Operator | None = None, traced: bool = False) -> None:
        super().__init__(said)
        self.node, self.traced = node, traced


@dataclass(frozen=True, eq=False)
class RowReading:
    """A value of each row; `values` by the names of symbols, `arrays` the number of each array that is an operand."""
    value: RowValue
    values: Mapping[str, RowValue]
    arrays: Mapping[Data, int]

    def of(self, value: RowValue) -> RowReading: return replace(self, value=value)
    @property
    def size(self) -> tuple[object, int]: return T, self.value.cols

    def spread(self, rows: object, cols: int) -> RowReading:
        """What is equal in all columns, in so many."""
        own = self.value
        if cols == own.cols: return self
        first = own if own.cols == 1 else RowValue("cols", own.heads, 1, own, extra=0)
        return self.of(RowValue("wide", own.heads, cols, first))

    def __add__(self, other: RowReading) -> RowReading: return self.of(mapped("add", self.value, other.value))
    def __mul__(self, other: RowReading) -> RowReading: return self.of(mapped("mul", self.value, other.value))
    def beside(self, other: RowReading) -> RowReading: return self.of(put_beside([self.value, other.value]))

    def split(self, h: int) -> RowReading:
        return self.of(RowValue("split", h, self.value.cols // h, self.value))

    def join(self, h: int) -> RowReading:
        own = self.value
        if own.heads == 1: return self
        kept = mapped("copy", own) if own.op in ("value", "const") else own
        return self.of(RowValue("join", 1, own.heads * own.cols, kept))

    def repeat(self, h: int) -> RowReading:
        own = self.value
        return self.of(own if own.heads == h else RowValue("repeat", h, own.cols, own))

    def total(self) -> RowReading:
        own = self.value
        return self.of(own if own.heads == 1 else RowValue("total", 1, own.cols, own))

    def symbol(self, name: str, into: Shape, out: Shape) -> RowReading: return self.of(self.values[name])

    def refuse(self, *given: object, **named: object) -> NoReturn: raise NotByRows("it mixes rows, or reads the batch")
    turn = product = given = related = entered = pick = refuse

    def keep_top(self, by: object, k: int) -> NoReturn: raise NotByRows("keep_top has a kernel of its own")

    def act(self, term: Operator) -> RowReading:
        """What a matrix of operators makes of a row."""
        try: return self.of(self.acted(term, term.kind.name, term.args))
        except (Untraceable, NotByRows) as error:
            raise NotByRows(str(error), term, isinstance(error, Untraceable)) from None

    def acted(self, term: Operator, name: str, args: tuple[Any, ...]) -> RowValue:
        x = self.value
        match name:
            case "I": return x
            case "ones": return merge_row(monoids.sum, x)[0]
            case "weight": return self.times(*args)
            case "diag": return mapped("mul", x, self.array(args[0]))
            case "const": return self.array(args[0])
            case "cols":
                lo, hi = args[0], args[1]
                return x if (lo, hi) == (0, x.cols) else RowValue("cols", x.heads, hi - lo, x, extra=lo)
            case "place": return RowValue("place", x.heads, args[1], x, extra=args[0])
            case "over": return put_beside(self.merged(*args))
        if term.entrywise:
            [made] = graphed(traced_function(term.kind.body(0, 0, *args)), x)
            return RowValue("wide", x.heads, x.cols, made) if made.op == "literal" else made
        raise NotByRows(f"{term.kind} has no code by rows")

    def array(self, data: Data) -> RowValue:
        """A row of numbers, or one for each head."""
        if data not in self.arrays:                         # a number that a kind's own body names
            if data.shape not in ((), (1,)): raise NotByRows(f"an array of {data.shape} that no step holds")
            return literal(data.array.item())
        shape = data.shape or (1,)
        heads = shape[0] if len(shape) == 3 else 1
        return RowValue("const", heads, shape[-1], extra=self.arrays[data])

    def times(self, data: Data) -> RowValue:
        """A row times a matrix, where that is small: a larger one is a product of its own, in any format."""
        *stack, n, p = data.shape
        if n * p > SMALL_MATRIX: raise NotByRows(f"a matrix of {n} x {p} is a product of its own")
        return RowValue("times", max(self.value.heads, *stack, 1), p, self.value,
                        extra=(self.arrays[data], bool(stack) and stack[0] > 1))

    def merged(self, matrix: Operator, over: type[Monoid]) -> list[RowValue]:
        """A row merged by a monoid instead of summed."""
        match matrix.kind.name:
            case "ones": return merge_row(over, self.value)
            case "I": return finish_each(over, self.value, literal(1.0))
            case "diag": return finish_each(over, self.value, self.array(matrix.args[0]))
        raise NotByRows(f"{matrix.kind} over {over.__name__} has no code by rows")


def put_beside(parts: list[RowValue]) -> RowValue:
    """Columns of several values, side by side."""
    if len(parts) == 1: return parts[0]
    heads, starts = max(each.heads for each in parts), [0]
    for each in parts: starts.append(starts[-1] + each.cols)
    return RowValue("beside", heads, starts[-1], *parts, extra=tuple(starts[:-1]))


@cache
def traced_function(function: Callable[[Any], Any]) -> NumberGraph:
    """The graph of a function of one number, held against it. Raises Untraceable."""
    name = function.__name__
    if name in SCALAR_OPERATIONS and name in ACTIVATIONS and ACTIVATIONS[name].function is function:
        return NumberGraph(1, (StandIn(name, StandIn("input")),))   # its vector code is quicker than what it says
    graph = trace_numbers(function)
    check_traced(graph, function)
    return graph


def read_rows(term: Operator, values: Mapping[str, RowValue], arrays: Mapping[Data, int]) -> RowValue:
    """What a term gives at these values. Raises NotByRows."""
    found: RowReading = read(term, RowReading(literal(0.0), values, arrays), {})
    return found.value
