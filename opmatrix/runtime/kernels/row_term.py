"""A term that goes through rows one by one, as a kernel of its own (opmatrix/runtime/codegen,
formats/kernels/generated): written and compiled when a program that has it first runs, and cached."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import UNIT
from formats.core.sizes import T, size
from formats.machine.prices import Price, Timed, Work
from opmatrix.algebra.batch.batch import Fields
from opmatrix.algebra.batch.extents import Extents
from opmatrix.algebra.positions.patterns import FAR
from opmatrix.runtime.declarations.arguments import ARRAY_NAMES, VALUE_NAMES, Doubles, TermOperands, split_operands
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.kernel import Arguments, Restricted, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import Array, Heads, Rows, States
from opmatrix.runtime.declarations.padded import Padded

if TYPE_CHECKING:
    from formats.kernels.generated.rowwise.row_bounds import RowsBefore
    from formats.kernels.generated.rowwise.row_kernel import RowKernel
    from formats.machine.calibration import Grid, Numbers

moved, simple, slow, deep, of_merges, loops = map(size, ("moved", "simple", "slow", "deep", "merged", "loops"))
of_writes, looked_at = map(size, ("written", "operands"))
NARROW_ROWS, MANY_ROWS = 64, 2048  # columns of narrow timed values; rows of long ones
MOST_TIMED = 2**19  # the most numbers of a timed value
NEAR_NUMBERS = 2**20  # numbers, about, that the caches of a core hold
STREAMED = T * (moved + of_writes)  # a cache line is read before it is written
SLOW = 8  # a division or a root counts as this many operations


def find_kernel(term: str, operands: TermOperands, carried: bool = False) -> "RowKernel":
    """Return the kernel of a term over these operands, arrays or shapes. A program without a term imports no code that
    reads one."""
    from opmatrix.runtime.codegen.term_kernel import term_kernel

    values, arrays = operands
    return term_kernel(term, tuple(map(count_columns, values)), tuple(tuple(array.shape) for array in arrays), carried)


def read_padded(a: Arguments) -> Padded:
    """Read the term of a step at padded values. A program without a term imports no code that reads one."""
    from opmatrix.runtime.padded_terms import read_term

    return read_term(a)


def count_columns(value: Any) -> tuple[int, int]:
    """Return the heads, and the columns of one."""
    if isinstance(value, Rows | Heads):
        return getattr(value, "heads", 1), value.cols
    return (1, value.shape[1]) if value.ndim == 2 else value.shape[1:]


def run_rows(out: Any, *, term: str, **operands: Any) -> None:
    """Launch the kernel of the term."""
    values, arrays = split_operands(operands)
    find_kernel(term, (values, arrays))(values, [np.ascontiguousarray(array, np.float32) for array in arrays], out)


def declared_signature(batched: bool = False, states: Sequence[str] = ()) -> Signature:
    """Return the signature: optional values, arrays and states, and the term; with `batched` the batch before them."""
    kinds = dict.fromkeys(VALUE_NAMES, Rows | Heads) | dict.fromkeys(ARRAY_NAMES, Array) | dict.fromkeys(states, States)
    both = Parameter.POSITIONAL_OR_KEYWORD
    operands = [Parameter(name, both, default=None, annotation=kind) for name, kind in kinds.items()]
    first = [Parameter(name, both) for name in ("out", *["batch"] * batched)]
    return Signature([*first, *operands, Parameter("term", Parameter.KEYWORD_ONLY, annotation=str)])


def run_shifted(out: NDArray[np.float32], batch: Fields, *, term: str, **operands: object) -> None:
    """Launch the kernel of a term that reads rows before."""
    values, arrays = split_operands(operands)
    constants = [np.ascontiguousarray(array, np.float32) for array in arrays]
    find_kernel(term, (values, arrays))(values, constants, out, batch.field("positions", FAR))


run_shifted.__signature__ = declared_signature(batched=True)  # type: ignore[attr-defined]
run_rows.__signature__ = declared_signature()  # type: ignore[attr-defined]    # a function has one


def time_terms(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls of some kernels, with little work and with much, over these rows; over narrow ones, in which
    loops take most of the time; and over many, in which memory does."""
    from opmatrix.runtime.codegen.sample_terms import SAMPLES

    sizes = [*product((NARROW_ROWS, *grid.widths), (*grid.rows, MANY_ROWS))]
    for number, (text, values) in enumerate(SAMPLES):
        for p, rows in sizes[number % 2 :: 2]:
            row_kernel = find_kernel(text, ([np.empty((0, p))] * values, []))
            if rows * p > MOST_TIMED or rows * max(values * p, row_kernel.root.cols) > numbers.count:
                continue
            operands = [*numbers.some(values, rows, p)]
            yield (
                {"T": rows, **row_kernel.counts._asdict()},
                partial(row_kernel, operands, [], numbers.room(rows, row_kernel.root.cols)),
            )


def rows_shape(a: Arguments) -> Rows | Heads:
    """Return the rows or heads of the written kernel's result. Writing it checks that all its arrays are stored."""
    root = kernel_of(a).written.root  # `written` runs the writer, which checks that all is stored
    return Rows(root.cols) if root.heads == 1 else Heads(root.heads, root.cols)


def ask_rows(arguments: Mapping[str, Any], values: Sequence[str], batch: Fields, at: RowNumbers) -> Restricted:
    """Restrict to some rows of the result, with unchanged values."""
    return {**arguments, "at": at}, batch


def rows_meaning(a: Arguments, before: "RowsBefore | None" = None) -> Doubles:
    """Evaluate the term row by row in float64; `before` gives the rows before those of a value."""
    from formats.kernels.generated.rowwise.row_bounds import mean_rows

    return in_shape(mean_rows(kernel_of(a).root, *split_operands(a), count_rows(a), before))


def rows_bound(a: Arguments, before: "RowsBefore | None" = None) -> Doubles:
    """Return a running error of every operation, in the kernel's own order."""
    from formats.kernels.generated.rowwise.row_bounds import bound_rows

    meant, error = bound_rows(kernel_of(a).root, *split_operands(a.exact), count_rows(a.exact), before)
    return in_shape(error) + UNIT * in_shape(abs(meant)) * 1e-6


def rows_cost(a: Arguments, out: Rows | Heads, extents: Extents) -> Costs:
    """Return the price by the numbers moved for a row, operations of each kind, loops."""
    return [("row_term", {"T": extents[out.space], **kernel_of(a).counts._asdict()})]


@kernel(
    launches=True,
    price=Price(
        (
            STREAMED * STREAMED / (STREAMED + NEAR_NUMBERS),
            T * simple,
            T * slow,
            T * deep,
            T * of_merges,
            T * loops,
            looked_at,
        ),
        lambda tile: Work(vector=T * (simple + SLOW * slow + of_merges), moved=T * moved),
        time_terms,
        common=False,
    ),
)
class row_term(Arguments):
    """A term that goes through rows one by one, over these values and arrays, in a kernel of its own."""

    run = run_rows

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares."""
        return rows_shape(a)

    def reference(a) -> Doubles:
        """Evaluate the term row by row in float64."""
        return rows_meaning(a)

    padded = read_padded

    def bound(a) -> Doubles:
        """Return a running error of every operation, in the kernel's own order."""
        return rows_bound(a)

    cost = rows_cost


@kernel(launches=True, row_mixing=True, carried_variant="carried_rows", prices={})
class shifted_term(Arguments):
    """A term that reads rows of these values, and rows before them in their sequences, in a kernel of its own."""

    run, cost = run_shifted, rows_cost

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares."""
        return rows_shape(a)

    restrict = ask_rows

    def carried(a) -> dict[str, int]:
        """Return the most rows before that it reads of each value."""
        most: dict[str, int] = {}
        for node in kernel_of(a).written.shifts:
            name = f"x{node.args[0].extra}"
            most[name] = max(node.extra, most.get(name, 0))
        return most

    def limits(a) -> dict[str, int]:
        """Name the positions of rows: rows before the first of a sequence are zeros."""
        return {"positions": FAR}

    def reference(a) -> Doubles:
        """Evaluate the term row by row in float64."""
        return asked_rows(a, rows_meaning(a, places_before(a)))

    padded = read_padded

    def bound(a) -> Doubles:
        """Return a running error of every operation, in the kernel's own order."""
        return asked_rows(a, rows_bound(a, places_before(a)))


def kernel_of(a: Arguments) -> "RowKernel":
    """Return the kernel of a step's term for these operands."""
    return find_kernel(a.term, split_operands(a))


def places_before(a: Arguments) -> "RowsBefore":
    """Return the function that gives the rows before those of a batch."""
    from formats.kernels.generated.rowwise.row_bounds import rows_before

    return rows_before(a.batch.positions)


def count_rows(a: Arguments) -> int:
    """Return the rows of the batch, which a term of arrays alone has, too; 1 without a batch."""
    batch = getattr(a, "batch", None)
    return 1 if batch is None else int(batch.rows)


def asked_rows(a: Arguments, numbers: Doubles) -> Doubles:
    """Return the rows of a result that are asked for; all of them by default."""
    at = getattr(a, "at", None)
    return numbers if at is None else numbers[at.astype(np.int64)]  # readings have all arrays in float64


def in_shape(found: Doubles) -> Doubles:
    """Return numbers of (rows, heads, columns) in the shape of the step's result."""
    return found[:, 0] if found.shape[1] == 1 else found
