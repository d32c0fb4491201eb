"""Mixtures of experts in the lines of a term: the body that each expert applies to a row, and the gate whose columns
declare the rows that are routed to it. As written every expert gets every row, and a zero of the gate removes the
answer; ranks compute only the answers with a gate that is not zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.data import Data
from opmatrix.algebra.term import Operator
from opmatrix.parallel.sharding.axis_states import AxisState, Cut, Partial
from opmatrix.parallel.sharding.carrying import Cuttable

# ---- one expert on an axis that shards weights


class BodyStates(NamedTuple):
    """The placements of the lines of a body on an axis."""

    values: tuple[AxisState, ...]  # placement of the value of each line
    stored: tuple[AxisState, ...]  # placement of the stored numbers of each line


def cut_body(body: Sequence[Operation]) -> BodyStates | None:
    """Shard the first weights of an expert by columns and the next by rows, so that each rank has a part of every
    answer. Returns None if no weights can be sharded so."""
    carried = Cuttable(body)
    values, stored = list[AxisState](), list[AxisState]()
    for at, line in enumerate(body):
        operands = [values[a] for a in line.args]
        if any(isinstance(state, Partial) for state in operands):
            return None  # answers go on behind the sum
        cut = next((state for state in operands if isinstance(state, Cut)), None)
        states = cut_line(line, cut, carried.carry[at])
        if states is None:
            return None
        values.append(states[0])
        stored.append(states[1])
        if cut is not None and line.op in ("add", "mul"):
            for arg in line.args:
                if is_stored_row(body[arg]):
                    values[arg] = stored[arg] = cut
    return BodyStates(tuple(values), tuple(stored)) if isinstance(values[-1], Partial) else None


def cut_line(line: Operation, cut: Cut | None, carried: bool) -> tuple[AxisState, AxisState] | None:
    """Return the placements of a line's value and of its stored numbers, if an operand is sharded by `cut`; None if the
    line cannot take it. `carried`: columns of the line may be sharded."""
    if line.op != "act" or not line.args:
        return cut, cut
    matrix = line.more[0]
    if not contracts(matrix):
        return (cut, cut) if matrix.entrywise or matrix.diagonal or cut is None else None
    if cut is not None:
        return Partial(monoids.sum), Cut("rows", cut.units)
    columns = Cut("cols", line.shape.cols) if carried else None
    return columns, columns


def is_stored_row(line: Operation) -> bool:
    """True if a line is a stored row of more than one column."""
    return line.op == "act" and not line.args and bool(line.shape.cols != 1)


def is_stack(data: object) -> bool:
    """True if the object is an array with a matrix for each expert."""
    return isinstance(data, Data) and len(data.shape) == 3


def stacks(matrix: Operator) -> bool:
    """True if one of a matrix's arrays is a stack, with a matrix for each expert."""
    return any(map(is_stack, matrix.args))
