"""The kernel of a step that merges the rows of sequences in order: made from its text and the shapes of its operands,
once."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache

from formats.kernels.generated.folding.scan_kernel import ScanKernel
from formats.kernels.generated.folding.scan_text import ScanPlan
from formats.kernels.generated.rowwise.row_values import RowValue
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.nodes import scan
from opmatrix.algebra.shapes import Shape, T
from opmatrix.algebra.term import Operator
from opmatrix.runtime.codegen.checked_promises import check_own_pattern
from opmatrix.runtime.codegen.fold_reading import folding_of
from opmatrix.runtime.codegen.growing import find_region, heads_of_value, number_arrays, over_symbols
from opmatrix.runtime.codegen.row_reading import NotByRows, read_rows
from opmatrix.runtime.terms import measured, parse_operator

KEPT_SCANS = 256
ENTRYWISE = {"literal", "value", "const", "cols", "split", "wide", "repeat", "map"}  # values made column by column


@lru_cache(KEPT_SCANS)
def scanned_term(
    text: str, values: tuple[tuple[int, int], ...], arrays: tuple[tuple[int, ...], ...], carries: bool = False
) -> ScanKernel:
    """Return the kernel of a term over values of these heads and columns, and arrays of these shapes; `carries`:
    sequences begin where their states have left them. Raises ValueError for a text that is no term, NotByRows for a
    term that is no scan of entries of rows."""
    promised = [Promised(f"c{k}", shape) for k, shape in enumerate(arrays)]
    shapes = [Shape(heads, T, cols) for heads, cols in values]
    term = parse_operator(text, shapes, promised)
    expected = measured(term, shapes)
    names = {f"x{k}": RowValue("value", heads, cols, extra=k) for k, (heads, cols) in enumerate(values)}
    plan = read_scan(term, names, {data: k for k, data in enumerate(promised)})
    if (plan.heads, plan.cols) != (expected.heads, expected.cols):
        raise NotByRows(f"{plan.heads} x {plan.cols} numbers a row, but its shape is {expected}")
    return ScanKernel(plan, carries)


def read_scan(term: Operator, values: Mapping[str, RowValue], arrays: Mapping[Data, int]) -> ScanPlan:
    """Return the plan of a scan at these values. Raises NotByRows for another term, for operands that are not made
    column by column, and for a monoid that counts rows or gives several columns."""
    if term.kind is not scan:
        raise NotByRows("it is no scan", term)
    a, b, over, where = term.args
    left, right = (read_rows(side, values, arrays) for side in (a, b))
    if other := {node.op for side in (left, right) for node in side.walk()} - ENTRYWISE:
        raise NotByRows(f"{min(other)} is not made column by column", term)
    folding = folding_of(over)
    if over.indexed or folding.width != 1:
        raise NotByRows(f"{over.__name__} counts rows, or gives several columns", term)
    check_own_pattern(where)
    return ScanPlan(left, right, folding, len(values), len(arrays), where.whole)


def scan_kernel_of(term: Operator, used: Sequence[Operator]) -> str | None:
    """Return the kernel that computes a term over these values of rows; None if it is no scan that a kernel is written
    for."""
    values = {
        f"x{k}": RowValue("value", heads_of_value(part), int(part.out.cols), extra=k) for k, part in enumerate(used)
    }
    try:
        read_scan(over_symbols(term, used), values, number_arrays(term))
    except NotByRows:
        return None
    return "scan_term"


def find_scan_region(
    term: Operator, values: Collection[Operator], ends: Callable[[Operator], bool]
) -> list[Operator] | None:
    """Return the values over which a scan and what makes its pairs, entry by entry, are one kernel, chosen from
    `values`: both sides grow down to where `ends` is true, or to themselves. None if there is no such kernel."""
    if term.kind is not scan:
        return None
    regions = ([side] if ends(side) else find_region(side, values, ends) or [side] for side in term.children)
    used = [*dict.fromkeys(part for region in regions for part in region if not part.constant)]
    return used if {*used} <= {*values} and scan_kernel_of(term, used) else None
