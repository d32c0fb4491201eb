"""Terms that read rows before, for the new rows of a session's sequences: what came before is a state, the last rows of
a value, which is replaced in each step. A new state lies beside the one before, so a step that is interrupted has
changed none."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from formats import kernels as compiled
from opmatrix.algebra.batch.extents import Extents, S
from opmatrix.algebra.data import Numeric
from opmatrix.runtime.declarations.arguments import STATE_NAMES, Doubles, split_operands
from opmatrix.runtime.declarations.by_sequence import sentence_rows
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.fitting import copied
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads, Rows, States
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.kernels.row_term import (
    ask_rows,
    asked_rows,
    count_columns,
    declared_signature,
    find_kernel,
    in_shape,
    read_padded,
    rows_bound,
    rows_cost,
    rows_meaning,
)
from opmatrix.runtime.kernels.scan_term import find_scan, scan_bound, scan_cost

if TYPE_CHECKING:
    from formats.kernels.generated.folding.scan_kernel import ScanKernel
    from formats.kernels.generated.rowwise.row_bounds import RowsBefore
    from formats.kernels.generated.rowwise.row_kernel import CarriedRows, RowKernel

V = TypeVar("V")


class NewRows(Protocol):
    """A batch of new rows: the rows at which sequences begin; for each row its number among the new ones of its
    sequence, and the states before the first and behind this one, 0 for none."""

    starts: NDArray[np.int64]
    ages: NDArray[np.int64]
    sources: NDArray[np.int64]
    targets: NDArray[np.int64]


def states_of(held: Mapping[str, V]) -> dict[int, V]:
    """Return the states of a step by the number of their value."""
    return {k: held[name] for k, name in enumerate(STATE_NAMES) if held.get(name) is not None}


def rows_before_new(batch: NewRows, held: Mapping[str, Numeric]) -> "CarriedRows":
    """Return the rows before those of a batch of new rows."""
    from formats.kernels.generated.rowwise.row_kernel import CarriedRows

    return CarriedRows(states_of(held), batch.ages, batch.sources)


def states_before(a: Arguments) -> "RowsBefore":
    """Return the function that gives the rows before those of a batch of new rows."""
    from formats.kernels.generated.rowwise.row_bounds import rows_carried

    return rows_carried(*rows_before_new(a.batch, vars(a)))


def rows_kernel(a: Arguments) -> "RowKernel":
    """Return the kernel of a step's term for these operands, which reads rows before."""
    return find_kernel(a.term, split_operands(a), True)


def run_carried_rows(out: NDArray[np.float32], batch: NewRows, *, term: str, **operands: NDArray[np.float32]) -> None:
    """Launch the kernel of a term that reads rows before, among new rows or in states."""
    values, arrays = split_operands(operands)
    constants = [np.ascontiguousarray(array, np.float32) for array in arrays]
    find_kernel(term, (values, arrays), True)(values, constants, out, rows_before_new(batch, operands))


def run_carried_scan(out: NDArray[np.float32], batch: NewRows, *, term: str, **operands: NDArray[np.float32]) -> None:
    """Launch the kernel of a scan that goes on from states."""
    values, arrays = split_operands(operands)
    constants = [np.ascontiguousarray(array, np.float32) for array in arrays]
    find_scan(term, (values, arrays), True)(values, constants, out, batch.starts, rows_before_new(batch, operands))


run_carried_rows.__signature__ = declared_signature(True, STATE_NAMES)  # type: ignore[attr-defined]
run_carried_scan.__signature__ = declared_signature(True, STATE_NAMES[:1])  # type: ignore[attr-defined]


def in_one_head(x: object) -> Numeric:
    """Return rows (T, columns) as those of one head."""
    rows = np.asarray(x)
    return rows if rows.ndim == 3 else rows[:, None]


@kernel(launches=True, inplace="state", prices={})
class keep_rows(Arguments):
    """States with the last rows of x: each sequence's new state takes as many rows, up to its last new ones, as it has
    room for; other states stay."""

    part = "last rows"

    def run(out: Any, batch: NewRows, x: Rows | Heads, state: States) -> None:
        """Copy the states to `out` unless they are `out` itself, and write the new ones."""
        if out is not state:
            out[...] = state
        compiled.keep_last(in_one_head(x), batch.ages, batch.sources, batch.targets, out)

    def shape(a) -> States:
        """Return the shape of the states. Raises ValueError if rows of x do not fill them."""
        heads, cols = count_columns(a.x)
        if a.state.heads != heads or a.state.cols % cols:
            raise ValueError(f"state: {a.state} does not hold rows of {heads} heads of {cols} columns")
        return States(*a.state)

    def reference(a) -> Doubles:
        """Return the states, the new ones with the last rows of x."""
        from formats.kernels.generated.rowwise.row_bounds import rows_carried

        x = in_one_head(a.x)
        (_, heads, wide), targets = a.state.shape, a.batch.targets
        before, last = rows_carried({0: a.state}, a.batch.ages, a.batch.sources), wide // x.shape[2]
        rows = np.stack([before(0, x, lag) for lag in reversed(range(last))], 2).reshape(len(x), heads, wide)
        states: Doubles = a.state.copy()
        states[targets[targets > 0]] = rows[targets > 0]
        return states

    def padded(a) -> Padded:
        """Return the next state, (batch, heads, rows, columns): the last rows of x."""
        x = a.x if hasattr(a.shapes.x, "heads") else np.expand_dims(a.x, 2)
        return a.batch.last_rows(np.swapaxes(x, 1, 2), a.state)

    def bound(a) -> Doubles:
        """Return 0: rows are copied."""
        return copied(a)

    def cost(a, out: States, extents: Extents) -> Costs:
        """Return the price of a pass over one state a sequence."""
        return [("scale", {"T": extents[S], "p": out.heads * out.cols})]


@kernel(launches=True, row_mixing=True, prices={})
class carried_rows(Arguments):
    """A term that reads rows of these values, and rows before them, of new rows or in states, in a kernel of its
    own."""

    run, cost, restrict, padded = run_carried_rows, rows_cost, ask_rows, read_padded

    def shape(a) -> Rows | Heads:
        """Return the shape that the written kernel declares. Raises ValueError for states that do not fit."""
        row_kernel = rows_kernel(a)
        root, states, values = row_kernel.written.root, states_of(vars(a)), split_operands(a)[0]
        if [*states] != row_kernel.written.shifted_values:
            raise ValueError(f"states of {[*states]}, but it reads rows before of {row_kernel.written.shifted_values}")
        for node in row_kernel.written.shifts:
            check_states(states[node.args[0].extra], *count_columns(values[node.args[0].extra]), node.extra)
        return Rows(root.cols) if root.heads == 1 else Heads(root.heads, root.cols)

    def reference(a) -> Doubles:
        """Evaluate the term row by row in float64."""
        return asked_rows(a, rows_meaning(a, states_before(a)))

    def bound(a) -> Doubles:
        """Return a running error of every operation, in the kernel's own order."""
        return asked_rows(a, rows_bound(a, states_before(a.exact)))


@kernel(launches=True, row_mixing=True, prices={})
class carried_scan(Arguments):
    """New rows of each sequence merged in order, onto the last result of its state, in a kernel of its own."""

    part = "merging"
    run, restrict, padded = run_carried_scan, ask_rows, read_padded

    def shape(a) -> Rows | Heads:
        """Return the rows or heads of the written kernel's result. Raises ValueError for states that do not fit, and
        for a scan that cannot go on from its last result."""
        plan = scan_kernel(a).written.plan
        if not plan.continues:
            raise ValueError("its last result is not all that later rows need")
        check_states(a.s0, plan.heads, plan.cols, 1)
        return Rows(plan.cols) if plan.heads == 1 else Heads(plan.heads, plan.cols)

    def reference(a) -> Doubles:
        """Merge the rows in float64, row after row."""
        from formats.kernels.generated.folding.scan_bounds import bound_scan

        plan, parts = scan_kernel(a).plan, [*sentence_rows(a.batch)]
        return asked_rows(a, in_shape(bound_scan(plan, *split_operands(a), parts, results_before(a, plan.cols))[0]))

    def bound(a) -> Doubles:
        """Return a running error of every operation, in the kernel's own order."""
        scan = scan_kernel(a)
        return scan_bound(a, scan, results_before(a.exact, scan.plan.cols))

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """Return the price of a kernel of rows: numbers moved for a row, operations of each kind, merges that wait."""
        return scan_cost(scan_kernel(a), out, extents)


def scan_kernel(a: Arguments) -> "ScanKernel":
    """Return the kernel of a step's scan for these operands, which goes on from states."""
    return find_scan(a.term, split_operands(a), True)


def results_before(a: Arguments, columns: int) -> dict[int, Doubles]:
    """Return the last result (heads, columns) of each sequence that has had rows, by its number."""
    sources = a.batch.sources[a.batch.starts[:-1]]
    return {n: a.s0[source][:, -columns:] for n, source in enumerate(sources) if source}


def check_states(states: States, heads: int, cols: int, rows: int) -> None:
    """Raise ValueError unless states hold so many rows, at least, of a value."""
    if states is None or states.heads != heads or states.cols % cols or states.cols < rows * cols:
        raise ValueError(f"states: {states} do not hold {rows} rows of {heads} heads of {cols} columns")
