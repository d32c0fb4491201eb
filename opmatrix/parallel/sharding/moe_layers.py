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
        taken = [values[a] for a in line.args]
        if any(isinstance(state, Partial) for state in taken):
            return None  # answers go on behind the sum
        cut = next((state for state in taken if isinstance(state, Cut)), None)
        out: AxisState = cut
        numbers: AxisState = cut
        if line.op == "act" and line.args:
            if contracts(line.more[0]):
                if cut is not None:
                    out, numbers = Partial(monoids.sum), Cut("rows", cut.units)
                elif carried.carry[at]:
                    out = numbers = Cut("cols", line.shape.cols)
            elif not (line.more[0].entrywise or line.more[0].diagonal) and out is not None:
                return None
        values.append(out)
        stored.append(numbers)
        for arg in line.args if line.op in ("add", "mul") and isinstance(out, Cut) else ():
            if body[arg].args or values[arg] == out:
                continue
            if body[arg].op == "act" and body[arg].shape.cols != 1:
                values[arg] = stored[arg] = out
    return BodyStates(tuple(values), tuple(stored)) if isinstance(values[-1], Partial) else None


def is_stack(data: object) -> bool:
    """True if the object is an array with a matrix for each expert."""
    return isinstance(data, Data) and len(data.shape) == 3


def stacks(matrix: Operator) -> bool:
    """True if one of a matrix's arrays is a stack, with a matrix for each expert."""
    return any(map(is_stack, matrix.args))
