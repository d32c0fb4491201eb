"""Rotations by positions among the steps of a rank: a traced term has them as single operations, and kernels rotate a
value at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opmatrix.algebra.batch.traced import Operation, trace
from opmatrix.algebra.data import Data
from opmatrix.algebra.nodes import rotate, weight
from opmatrix.algebra.shapes import Shape, T
from opmatrix.parallel.sharding.redistribute import RankStep


class Rotation(NamedTuple):
    """The step that is rotated, the tables, the number of columns behind it that stay as they are, and `angles`, a
    step that reads the positions."""

    turned: int
    cos: Data
    sin: Data
    rest: int
    angles: int


def find_rotation(steps: Sequence[RankStep], at: int) -> Rotation | None:
    """Return the rotation whose last step this is; None for any other step."""
    if steps[at].op != "beside":
        return None
    for rest in (False, True):
        turned = at if not rest else steps[at].args[0]
        first, second = along(steps, turned, 0, 0), along(steps, turned, 0, 1, 0)
        cos, sin, x = along(steps, first, 1), along(steps, second, 1), along(steps, first, 0, 0)
        if cos is None or sin is None or x is None:
            continue
        if not all(steps[k].op == "act" and steps[k].more[0].kind is weight for k in (cos, sin)):
            continue
        tables = steps[cos].more[0].args[0], steps[sin].more[0].args[0]
        if tables[0].shape != tables[1].shape:
            continue
        columns = int(steps[x].dims.cols)
        more = columns - 2 * tables[0].shape[1]
        if more < 0 or bool(more) != rest:
            continue
        lines, out = trace(rotate(*tables, more), Shape(steps[x].dims.heads, T, columns))
        if is_traced(lines, out, steps, at, x):
            return Rotation(x, *tables, more, steps[cos].args[0])
    return None


def along(steps: Sequence[RankStep], at: int | None, *path: int) -> int | None:
    """Return the step reached by going to an operand, to an operand of that, and so on; None if there is none."""
    for k in path:
        if at is None or k >= len(steps[at].args):
            return None
        at = steps[at].args[k]
    return at


def is_traced(lines: Sequence[Operation], line: int, steps: Sequence[RankStep], at: int, x: int) -> bool:
    """True if a step computes the same as a traced line, with `x` as the input."""
    traced, step = lines[line], steps[at]
    if traced.op == "input":
        return at == x
    return (traced.op, traced.more, len(traced.args)) == (step.op, step.more, len(step.args)) and all(
        is_traced(lines, a, steps, b, x) for a, b in zip(traced.args, step.args, strict=True)
    )
