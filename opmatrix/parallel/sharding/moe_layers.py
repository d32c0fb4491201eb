"""Mixtures of experts in the lines of a term: what each expert does with a row, and the gate whose columns say which
rows ask it. As written every expert is given every row, and a gate's zero takes its answer away; ranks compute the
answers alone that a gate asks for."""
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

# ---- one expert on an axis that cuts weights

class BodyStates(NamedTuple):
    """How the value of each line of a body lies on an axis, and its numbers."""
    values: tuple[AxisState, ...]
    stored: tuple[AxisState, ...]


def cut_body(body: Sequence[Operation]) -> BodyStates | None:
    """Columns of the first weights of an expert are cut, and rows of the next, so that each rank has a part of every
    answer; None where nothing can be cut so."""
    carried = Cuttable(body)
    values, stored = list[AxisState](), list[AxisState]()
    for at, line in enumerate(body):
        taken = [values[a] for a in line.args]
        if any(isinstance(state, Partial) for state in taken): return None      # answers go on behind the sum
        cut = next((state for state in taken if isinstance(state, Cut)), None)
        out: AxisState = cut
        own: AxisState = cut
        if line.op == "act" and line.args:
            if contracts(line.more[0]):
                if cut is not None: out, own = Partial(monoids.sum), Cut("rows", cut.units)
                elif carried.carry[at]: out = own = Cut("cols", line.shape.cols)
            elif not (line.more[0].entrywise or line.more[0].diagonal) and out is not None: return None
        values.append(out)
        stored.append(own)
        for arg in line.args if line.op in ("add", "mul") and isinstance(out, Cut) else ():
            if body[arg].args or values[arg] == out: continue
            if body[arg].op == "act" and body[arg].shape.cols != 1: values[arg] = stored[arg] = out
    return BodyStates(tuple(values), tuple(stored)) if isinstance(values[-1], Partial) else None


def is_stack(data: object) -> bool:
    """Whether it is an array that has a matrix for each expert."""
    return isinstance(data, Data) and len(data.shape) == 3


def stacks(matrix: Operator) -> bool: return any(map(is_stack, matrix.args))
