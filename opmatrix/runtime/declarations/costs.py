"""Costs of calls of kernels: names of the machine's prices (formats/machine/prices.py), each with its sizes: T rows, S2
scores of one head.

Operands are shapes. A weight that is None is priced elsewhere: by the search, in each form that it may be stored in."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from formats.core.stage import stages_of
from formats.machine.prices import NARROW_SUFFIX, TIMES
from opmatrix.algebra.batch.extents import WHOLE, Extents, PatternPairs, T
from opmatrix.runtime.declarations.arguments import Arguments

Costs = list[tuple[str, dict[str, float]]]
Cost = Callable[[Arguments, Any, Extents], Costs]


def row_width(out: Any) -> int:
    """Return the count of numbers in a row, all heads together."""
    return int(out.cols * getattr(out, "heads", 1))


def one_pass(name: str) -> Cost:
    """Return the cost of a kernel whose time grows with the numbers of its result."""
    return lambda a, out, extents: [(name, {"T": extents[getattr(out, "space", T)], "p": row_width(out)})]


def by_scores(name: str, *operands: str, seen: Callable[[Arguments], PatternPairs] = lambda _: WHOLE) -> Cost:
    """Return the cost of a kernel whose work grows with the scores that are `seen`; `operands` have its columns."""

    def cost(a: Arguments, out: Any, extents: Extents) -> Costs:
        """Return the price by tokens, seen scores, heads and the mean columns of the operands."""
        widths = [operand.cols for operand in (getattr(a, one) for one in operands) if hasattr(operand, "cols")] or [1]
        return [(name, {"T": extents[T], "S2": extents[seen(a)], "h": out.heads, "d": sum(widths) / len(widths)})]

    return cost


def times_format(name: str, sizes: Mapping[Any, float], rows: float) -> Costs:
    """Return the cost of x @ W in a format, where W has these sizes."""
    return [(f"linear.{name}", {"T": rows, **{str(size): count for size, count in sizes.items()}})]


def times_stack(shape: tuple[int, ...], rows: float) -> Costs:
    """Return the cost of x @ W with a matrix for each head: heads × in × out."""
    return [("headwise", {"T": rows, **dict(zip("hnp", shape, strict=True))})]


def times_experts(name: str, sizes: Mapping[Any, float], count: int, most: int, rows: Any) -> Costs:
    """Return the cost of rows times experts: `count` matrices of these sizes in a format, where a row names `most` of
    them. It is a product with each that is named, of an equal share of the rows."""
    touched = count_touched(count, most, rows)
    return [
        (
            f"linear.{name}",
            {"T": rows * most / touched, TIMES: touched, **{str(size): number for size, number in sizes.items()}},
        )
    ]


def count_touched(count: int, most: int, rows: Any) -> Any:
    """Return the mean number of experts, of `count`, that rows name, if each row names `most` and all are named equally
    often."""
    return most if rows == 1 else count * (1 - (1 - most / count) ** rows)


def gather_cost(cols: float, rows: float, panels: str = "") -> Costs:
    """Return the cost of gathering rows of a table; or columns, if the table is in a format's panels."""
    return [(f"gather.{panels}" if panels else "gather", {"T": rows, "p": cols})]


def behind_product(stages: Iterable[str], rounds: bool) -> list[str]:
    """Return the prices of stages that are fused with a product, which may round its operands."""
    return [name + NARROW_SUFFIX if rounds else name for name in stages]


def stage_prices(a: Arguments) -> list[str]:
    """Return the prices of the stages of an epilogue that a kernel is given."""
    return [stage.price for stage in stages_of(a)]
