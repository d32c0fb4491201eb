"""A value of each row, as a graph of values: each has a number of heads and of columns, and is computed from others.

`value` k and `const` k are operands, `literal` a number, `index` the numbers of columns; `map` is an operation, entry
by entry; `fold` merges a row; `cols`, `place`, `beside`, `split`, `join`, `repeat`, `wide` move numbers, `total` adds
heads up, `times` multiplies by a matrix that is an operand; `shift` is an operand in the row some rows before, zeros
where the sequence has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from formats.kernels.generated.rowwise.scalars import NumberGraph, walk_made

ABREAST = 16  # numbers that are computed at a time
SMALL_MATRIX = 4096  # most numbers of a matrix that multiplies rows here


class Merging(NamedTuple):
    """A merge of `cols` columns: the unit, the graph of two carriers, and True if their order is free."""

    unit: tuple[float, ...]
    merge: NumberGraph
    commutative: bool
    cols: int


class RowValue:
    """A value of each row; equal values are one object."""

    __slots__ = ("__weakref__", "args", "cols", "extra", "heads", "op")
    made: ClassVar[WeakValueDictionary[tuple[Any, ...], RowValue]] = WeakValueDictionary()
    op: str
    args: tuple[RowValue, ...]
    heads: int
    cols: int
    extra: Any

    def __new__(cls, op: str, heads: int, cols: int, *args: RowValue, extra: Any = None) -> RowValue:
        key = op, heads, cols, *map(id, args), extra
        if (value := cls.made.get(key)) is None:
            value = super().__new__(cls)
            value.op, value.heads, value.cols, value.args, value.extra = op, heads, cols, args, extra
            cls.made[key] = value
        return value

    def walk(self) -> Iterator[RowValue]:
        """Yield every value once, arguments first."""
        return walk_made([self])


def literal(value: float) -> RowValue:
    return RowValue("literal", 1, 1, extra=float(value))


def mapped(op: str, *args: RowValue) -> RowValue:
    """Apply an operation to values, entry by entry; one head or one column is broadcast."""
    heads, cols = (max(getattr(arg, name) for arg in args) for name in ("heads", "cols"))
    for arg in args:
        if arg.heads not in (1, heads) or arg.cols not in (1, cols):
            raise ValueError(f"shapes {arg.heads} x {arg.cols} and {heads} x {cols} do not broadcast")
    return RowValue("map", heads, cols, *args, extra=op)


def graphed(graph: NumberGraph, *args: RowValue) -> list[RowValue]:
    """Return the outputs of a graph of numbers, applied to values entry by entry."""
    return graph.fill(args, literal, lambda node, made: mapped(node.op, *made))


def folded(merging: Merging, carriers: list[RowValue]) -> list[RowValue]:
    """Return the numbers of the carrier into which each row of each head is merged."""
    fold = RowValue("fold", max(carrier.heads for carrier in carriers), 1, *carriers, extra=merging)
    return [RowValue("part", fold.heads, 1, fold, extra=k) for k in range(len(carriers))]
