"""Rows of each sequence merged in order over any monoid, in a kernel of its own (opmatrix/runtime/codegen,
formats/kernels/generated): one pass over the rows; written and compiled when a program that has it first runs, and
cached."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import UNIT
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles, TermOperands, split_operands
from opmatrix.runtime.declarations.by_sequence import sentence_rows
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads, Rows
from opmatrix.runtime.kernels.row_term import (
    ask_rows,
    asked_rows,
    count_columns,
    declared_signature,
    in_shape,
    read_padded,
)

if TYPE_CHECKING:
    from formats.kernels.generated.folding.scan_kernel import ScanKernel


def find_scan(term: str, operands: TermOperands, carries: bool = False) -> "ScanKernel":
    """Return the kernel of a term over these operands, arrays or shapes. A program without a scan imports no code that
    reads one."""
    from opmatrix.runtime.codegen.scanned_term import scanned_term

    values, arrays = operands
    return scanned_term(term, tuple(map(count_columns, values)), tuple(tuple(array.shape) for array in arrays), carries)


def run_scan(out: NDArray[np.float32], batch: Batch, *, term: str, **operands: NDArray[np.float32]) -> None:
    """Launch the kernel of the term for the sequences of the batch."""
    values, arrays = split_operands(operands)
    constants = [np.ascontiguousarray(array, np.float32) for array in arrays]
    find_scan(term, (values, arrays))(values, constants, out, batch.starts)


run_scan.__signature__ = declared_signature(batched=True)  # type: ignore[attr-defined]    # a function has one


def kernel_of(a: Arguments) -> "ScanKernel":
    """Return the kernel of a step's term for these operands."""
    return find_scan(a.term, split_operands(a))


@kernel(launches=True, row_mixing=True, carried_variant="carried_scan", prices={})
class scan_term(Arguments):
    """Rows of each sequence merged in order over any monoid, column by column, in a kernel of its own."""

    run = run_scan

    def shape(a) -> Rows | Heads:
        """Return the rows or heads of the written kernel's result. Writing it checks that all its columns are
        stored."""
        plan = kernel_of(a).written.plan  # `written` runs the writer, which checks that all is stored
        return Rows(plan.cols) if plan.heads == 1 else Heads(plan.heads, plan.cols)

    def reference(a) -> Doubles:
        """Evaluate the term in float64, row after row."""
        from opmatrix.runtime import interpreted

        return asked_rows(a, interpreted.exact(a))

    padded, restrict = read_padded, ask_rows

    def carried(a) -> dict[str, int]:
        """Return one row of the result. Raises ValueError for a scan that needs more than that to go on."""
        if not kernel_of(a).plan.continues:
            raise ValueError("its last result is not all that later rows need")
        return {"out": 1}

    def bound(a) -> Doubles:
        """Return a running error of every operation, in the kernel's own order."""
        return scan_bound(a, kernel_of(a))

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """Return the price of a kernel of rows: numbers moved for a row, operations of each kind, merges that wait."""
        return scan_cost(kernel_of(a), out, extents)


def scan_bound(a: Arguments, scan: "ScanKernel", begun: Mapping[int, Doubles] = MappingProxyType({})) -> Doubles:
    """Return a running error of every operation of a scan, in the kernel's own order; `begun`: the results before the
    rows of sequences that have had some."""
    from formats.kernels.generated.folding.scan_bounds import bound_scan

    meant, error = bound_scan(scan.plan, *split_operands(a.exact), [*sentence_rows(a.batch)], begun)
    return asked_rows(a, in_shape(error) + UNIT * in_shape(abs(meant)) * 1e-6)


def scan_cost(scan: "ScanKernel", out: Rows | Heads, extents: Extents) -> Costs:
    """Return the price of a scan as of a kernel of rows."""
    return [("row_term", {"T": extents[out.space], **scan.counts._asdict()})]
