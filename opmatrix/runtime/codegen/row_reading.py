"""A term read at values of rows: the result of each row, for a term that goes through rows one by one."""

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
    """A node that does not go through rows one by one here, with the reason; `traced`: because a user's function could
    not be traced, which the text says with its place."""

    def __init__(self, said: str, node: Operator | None = None, traced: bool = False) -> None:
        super().__init__(said)
        self.node, self.traced = node, traced


@dataclass(frozen=True, eq=False)
class RowReading:
    """A value of each row; `values` by the names of symbols, `arrays` the number of each array that is an operand."""

    value: RowValue
    values: Mapping[str, RowValue]
    arrays: Mapping[Data, int]

    def of(self, value: RowValue) -> RowReading:
        """Make a reading of another value, over the same operands."""
        return replace(self, value=value)

    @property
    def size(self) -> tuple[object, int]:
        """The rows of a batch, and the value's columns."""
        return T, self.value.cols

    @property
    def heads(self) -> int:
        """The heads of the value."""
        return self.value.heads

    def spread(self, rows: object, cols: int) -> RowReading:
        """Repeat a value that is equal in all columns over `cols` columns."""
        value = self.value
        if cols == value.cols:
            return self
        first = value if value.cols == 1 else RowValue("cols", value.heads, 1, value, extra=0)
        return self.of(RowValue("wide", value.heads, cols, first))

    def __add__(self, other: RowReading) -> RowReading:
        return self.of(mapped("add", self.value, other.value))

    def __mul__(self, other: RowReading) -> RowReading:
        return self.of(mapped("mul", self.value, other.value))

    def beside(self, other: RowReading) -> RowReading:
        """Put columns side by side."""
        return self.of(put_beside([self.value, other.value]))

    def split(self, h: int) -> RowReading:
        """Divide the columns into h heads."""
        return self.of(RowValue("split", h, self.value.cols // h, self.value))

    def join(self, h: int) -> RowReading:
        """Put heads side by side; values and constants are copied first."""
        value = self.value
        if value.heads == 1:
            return self
        copied = mapped("copy", value) if value.op in ("value", "const") else value
        return self.of(RowValue("join", 1, value.heads * value.cols, copied))

    def repeat(self, h: int) -> RowReading:
        """Repeat the heads, unless there are h already."""
        value = self.value
        return self.of(value if value.heads == h else RowValue("repeat", h, value.cols, value))

    def total(self) -> RowReading:
        """Sum the heads, unless there is one."""
        value = self.value
        return self.of(value if value.heads == 1 else RowValue("total", 1, value.cols, value))

    def symbol(self, name: str, into: Shape, out: Shape) -> RowReading:
        """Return the value of a step."""
        return self.of(self.values[name])

    def refuse(self, *given: object, **named: object) -> NoReturn:
        """Raise NotByRows: the operation mixes rows or reads the batch."""
        raise NotByRows("it mixes rows, or reads the batch")

    turn = product = scan = delta_rule = given = related = entered = pick = at_distances = refuse

    def shift(self, k: int) -> RowReading:
        """Return the value of a step in the row k before. Raises NotByRows for any other value."""
        value = self.value
        if value.op != "value":
            raise NotByRows("rows before are read of the values of steps alone")
        return self.of(RowValue("shift", value.heads, value.cols, value, extra=int(k)))

    def keep_top(self, by: object, k: int) -> NoReturn:
        """Raise NotByRows: another kernel keeps the largest numbers of rows."""
        raise NotByRows("keep_top has another kernel")

    def act(self, term: Operator) -> RowReading:
        """Return the result of a matrix of operators on a row."""
        try:
            return self.of(self.acted(term, term.kind.name, term.args))
        except (Untraceable, NotByRows) as error:
            raise NotByRows(str(error), term, isinstance(error, Untraceable)) from None

    def acted(self, term: Operator, name: str, args: tuple[Any, ...]) -> RowValue:
        """Return the value after a matrix kind, as code by rows. Raises NotByRows for a kind that has none."""
        x = self.value
        match name:
            case "I":
                return x
            case "ones":
                return merge_row(monoids.sum, x)[0]
            case "weight":
                return self.times(*args)
            case "diag":
                return mapped("mul", x, self.array(args[0]))
            case "const":
                return self.array(args[0])
            case "cols":
                lo, hi = args[0], args[1]
                return x if (lo, hi) == (0, x.cols) else RowValue("cols", x.heads, hi - lo, x, extra=lo)
            case "place":
                return RowValue("place", x.heads, args[1], x, extra=args[0])
            case "over":
                return put_beside(self.merged(*args))
        if term.entrywise:
            [output] = graphed(traced_function(term.kind.body(0, 0, *args)), x)
            return RowValue("wide", x.heads, x.cols, output) if output.op == "literal" else output
        raise NotByRows(f"{term.kind} has no generated code for rows")

    def array(self, data: Data) -> RowValue:
        """Return a constant: a row of numbers, or one for each head."""
        if data not in self.arrays:  # a number in the body of a kind
            if data.shape not in ((), (1,)):
                raise NotByRows(f"an array of {data.shape} that the step does not have")
            return literal(data.array.item())
        shape = data.shape or (1,)
        heads = shape[0] if len(shape) == 3 else 1
        return RowValue("const", heads, shape[-1], extra=self.arrays[data])

    def times(self, data: Data) -> RowValue:
        """Return a row times a small matrix: a larger one is a product of its own, in any format."""
        *stack, n, p = data.shape
        if n * p > SMALL_MATRIX:
            raise NotByRows(f"a matrix of {n} x {p} is too large for a row kernel")
        return RowValue(
            "times",
            max(self.value.heads, *stack, 1),
            p,
            self.value,
            extra=(self.arrays[data], bool(stack) and stack[0] > 1),
        )

    def merged(self, matrix: Operator, over: type[Monoid]) -> list[RowValue]:
        """Return a row merged by a monoid instead of summed."""
        match matrix.kind.name:
            case "ones":
                return merge_row(over, self.value)
            case "I":
                return finish_each(over, self.value, literal(1.0))
            case "diag":
                return finish_each(over, self.value, self.array(matrix.args[0]))
        raise NotByRows(f"{matrix.kind} over {over.__name__} has no generated code for rows")


def put_beside(parts: list[RowValue]) -> RowValue:
    """Return the columns of several values, side by side."""
    if len(parts) == 1:
        return parts[0]
    heads, starts = max(part.heads for part in parts), [0]
    for part in parts:
        starts.append(starts[-1] + part.cols)
    return RowValue("beside", heads, starts[-1], *parts, extra=tuple(starts[:-1]))


@cache
def traced_function(function: Callable[[Any], Any]) -> NumberGraph:
    """Trace the graph of a function of one number and check it against the function. Raises Untraceable."""
    name = function.__name__
    if name in SCALAR_OPERATIONS and name in ACTIVATIONS and ACTIVATIONS[name].function is function:
        return NumberGraph(1, (StandIn(name, StandIn("input")),))  # its vector code is faster than that of its graph
    graph = trace_numbers(function)
    check_traced(graph, function)
    return graph


def read_rows(term: Operator, values: Mapping[str, RowValue], arrays: Mapping[Data, int]) -> RowValue:
    """Return the result of a term at these values. Raises NotByRows."""
    reading: RowReading = read(term, RowReading(literal(0.0), values, arrays), {})
    return reading.value
