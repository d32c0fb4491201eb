"""What a row becomes, as a graph of values: each of so many heads of so many columns, made of others.

`value` k and `const` k are operands, `literal` a number, `index` the numbers of columns; `map` an operation, entry by
entry; `fold` what a row is merged to; `cols`, `place`, `beside`, `split`, `join`, `repeat`, `wide` move numbers,
`total` adds heads up, `times` multiplies by a matrix that is an operand."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple
from weakref import WeakValueDictionary

from formats.kernels.generated.rowwise.scalars import NumberGraph, walk_made

ABREAST = 16                                         # numbers that are computed at a time
SMALL_MATRIX = 4096                                         # numbers of a matrix that a row is multiplied by here


class Merging(NamedTuple):
    """How so many columns are merged: the unit, the graph of two carriers, whether their order is free."""
    unit: tuple[float, ...]
    merge: NumberGraph
    commutative: bool
    cols: int


class RowValue:
    """A value of each row; equal ones are one."""
    __slots__ = ("__weakref__", "args", "cols", "extra", "heads", "op")
    made: ClassVar[WeakValueDictionary[tuple[Any, ...], RowValue]] = WeakValueDictionary()
    op: str
    args: tuple[RowValue, ...]
    heads: int
    cols: int
    extra: Any

    def __new__(cls, op: str, heads: int, cols: int, *args: RowValue, extra: Any = None) -> RowValue:
        key = op, heads, cols, *map(id, args), extra
        if (found := cls.made.get(key)) is None:
            found = super().__new__(cls)
            found.op, found.heads, found.cols, found.args, found.extra = op, heads, cols, args, extra
            cls.made[key] = found
        return found

    def walk(self) -> Iterator[RowValue]:
        """Every value once, those that others are made of first."""
        return walk_made([self])


def literal(value: float) -> RowValue: return RowValue("literal", 1, 1, extra=float(value))


def mapped(op: str, *args: RowValue) -> RowValue:
    """An operation of values, entry by entry; one head or one column meets any."""
    heads, cols = (max(getattr(each, name) for each in args) for name in ("heads", "cols"))
    for each in args:
        if each.heads not in (1, heads) or each.cols not in (1, cols):
            raise ValueError(f"{each.heads} x {each.cols} meets {heads} x {cols}")
    return RowValue("map", heads, cols, *args, extra=op)


def graphed(graph: NumberGraph, *args: RowValue) -> list[RowValue]:
    """The outputs of a graph of numbers, of values entry by entry."""
    return graph.fill(args, literal, lambda node, made: mapped(node.op, *made))


def folded(merging: Merging, carriers: list[RowValue]) -> list[RowValue]:
    """The numbers of the carrier that each row of each head is merged to."""
    fold = RowValue("fold", max(each.heads for each in carriers), 1, *carriers, extra=merging)
    return [RowValue("part", fold.heads, 1, fold, extra=k) for k in range(len(carriers))]
