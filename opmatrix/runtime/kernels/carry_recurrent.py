"""Linear attention for the new rows of a session's sequences: each goes on from the state behind its last row, which is
replaced in each step. The next state is written beside the one before, by a pass of its own over the new keys and
values, so a step that is interrupted has changed none."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from formats import kernels as compiled
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.by_sequence import Doubles, sentence_rows
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.kernel import Arguments, Restricted, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import Heads, States, Vector
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.kernels.carry import NewRows
from opmatrix.runtime.kernels.recurrent import (
    RowState,
    StatePasses,
    check_decays,
    cost_recurrent,
    pass_padded,
    read_passes,
    row_factors,
    shape_recurrent,
)


def run_carried_recurrent(
    out: NDArray[np.float32],
    batch: NewRows,
    q: Heads,
    k: Heads,
    v: Heads,
    decays: Heads | None = None,
    rates: Vector | None = None,
    betas: Heads | None = None,
    s0: States | None = None,
    *,
    where: str = "sequence & causal",
) -> None:
    """Launch the compiled recurrence over new rows, from the states of their sequences."""
    factors = row_factors(decays, rates, len(out), out.shape[1])
    compiled.recurrent(q, k, v, batch.starts, out, factors, False, (s0, batch.sources), betas)


def run_keep_states(
    out: NDArray[np.float32],
    batch: NewRows,
    k: Heads,
    v: Heads,
    state: States,
    decays: Heads | None = None,
    rates: Vector | None = None,
    betas: Heads | None = None,
) -> None:
    """Copy the states to `out` unless they are `out` itself, and write the new ones."""
    if out is not cast(object, state):
        out[...] = state
    factors = row_factors(decays, rates, len(k), out.shape[1])
    compiled.leave_states(k, v, batch.starts, (out, batch.sources), batch.targets, factors, betas)


def begin_from(batch: NewRows, states: Doubles, columns: int) -> Callable[[slice], Doubles]:
    """Return the function that gives the state (heads, d, e) before the rows of a sequence; e: `columns`."""

    def begin(rows: slice) -> Doubles:
        """Return the state before some rows; that of sequence 0 is all zeros, as its own state says."""
        state: Doubles = states[batch.sources[rows.start] if rows.start < rows.stop else 0]
        return np.reshape(state, (len(state), -1, columns))

    return begin


def passes_of(a: Arguments, of: Arguments, states: Doubles) -> StatePasses:
    """Return the passes of new rows in the numbers of `of`, from states."""
    return StatePasses.of(of, states.shape[1], begin_from(a.batch, states, of.v.shape[2]))


def left_states(a: Arguments, of: Arguments) -> Iterator[tuple[int, RowState]]:
    """Yield the number of each state that new rows leave, and the state, in the numbers of `of`."""
    passes = passes_of(a, of, of.state)
    for rows in sentence_rows(a.batch):
        for target, state in zip(a.batch.targets[rows], passes.behind(rows), strict=True):
            if target:
                yield target, state


def passed_operands(a: Arguments, before: Padded) -> tuple[int, ...]:
    """Return which values pass through a state, by their identities."""
    return tuple(map(id, (a.k, a.v, a.decays, a.rates, a.betas, before)))


@kernel(launches=True, row_mixing=True, prices={})
class carried_recurrent(Arguments):
    """Each query of new rows times the state of its sequence up to its row."""

    run = run_carried_recurrent

    def padded(a) -> Padded:
        """Pass rows through the state (batch, heads, d, e) of each sequence, which leaves the next one."""
        a.batch.left[passed_operands(a, a.s0)], read = pass_padded(a, a.s0, a.q)
        return read

    def shape(a) -> Heads:
        """Return the heads and the columns of v. Raises ValueError for operands or states that do not fit."""
        out = shape_recurrent(a)
        check_state(a.s0, out.heads, a.k.cols * a.v.cols)
        return out

    def reference(a) -> Doubles:
        """Pass the new rows of each sequence through its state in float64."""
        passes = passes_of(a, a, a.s0)
        return np.stack([row.numbers for row in read_passes(a, a, passes)])

    def bound(a) -> Doubles:
        """Return a running error of every operation on the state, in the kernel's own order, read by the query."""
        passes = passes_of(a, a.exact, a.exact.s0)
        return np.stack([row.error for row in read_passes(a, a.exact, passes)])

    def cost(a, out: Heads, extents: Extents) -> Costs:
        """Return the price of the recurrence over as many rows."""
        return cost_recurrent(a, out.heads, extents)

    @staticmethod
    def restrict(arguments: Mapping[str, Doubles], values: Sequence[str], batch: Batch, at: RowNumbers) -> Restricted:
        """Restrict to some queries, which read states of all keys and values."""
        return {**arguments, "q": arguments["q"][at], "at": at}, batch


@kernel(launches=True, row_mixing=True, inplace="state", prices={})
class keep_states(Arguments):
    """States behind the last new rows of each sequence: that before them, with their keys and values, times their
    decays; other states stay."""

    part, run = "sums", run_keep_states

    def padded(a) -> Padded:
        """Return the state that the rows leave, if they have passed through it, else pass them."""
        passed = a.batch.left.get(passed_operands(a, a.state))
        return pass_padded(a, a.state, a.k)[0] if passed is None else passed

    def shape(a) -> States:
        """Return the shape of the states. Raises ValueError if they do not fit."""
        check_state(a.state, a.state.heads, a.k.cols * a.v.cols)
        check_decays(a, a.state.heads)
        for name in ("k", "v", "decays", "betas"):
            if (x := getattr(a, name)) is not None and a.state.heads % x.heads:
                raise ValueError(f"{name} heads: {x.heads}, which do not divide {a.state.heads} of the states")
        return States(*a.state)

    def reference(a) -> Doubles:
        """Return the states, the new ones as rows in float64 leave them."""
        states: Doubles = a.state.copy()
        for target, state in left_states(a, a):
            states[target] = state.numbers.reshape(states.shape[1:])
        return states

    def bound(a) -> Doubles:
        """Return a running error of every operation, in the kernel's own order; 0 for states that stay."""
        errors = np.zeros(a.state.shape)
        for target, state in left_states(a, a.exact):
            errors[target] = np.broadcast_to(state.error, state.numbers.shape).reshape(errors.shape[1:])
        return errors

    def cost(a, out: States, extents: Extents) -> Costs:
        """Return the price of the recurrence over as many rows."""
        return cost_recurrent(a, out.heads, extents)


def check_state(states: States | None, heads: int, numbers: int) -> None:
    """Raise ValueError unless states hold so many numbers in each of these heads."""
    if states is None or (states.heads, states.cols) != (heads, numbers):
        raise ValueError(f"states: {states} are not {numbers} numbers of {heads} heads")
