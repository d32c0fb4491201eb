"""Mixtures of experts in the lines of a term: the computation of each expert on a row, and the gate whose columns route
rows to experts. As written every expert is given every row, and a zero of the gate removes its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize, as_int, certain, expression
from opmatrix.algebra.term import Operator


def contracts(matrix: Operator) -> bool:
    """True if an operator is a stored matrix whose rows may be sharded: it merges the columns that come in."""
    return (
        not matrix.constant
        and not matrix.diagonal
        and not matrix.entrywise
        and any(isinstance(arg, Data) for arg in matrix.args)
    )


class Mixture(NamedTuple):
    """A mixture of experts. `rows` is the line that the experts are given and `gate` the line that routes its rows;
    there are `experts` experts, and a row is routed to `asked` of them at most. `body` is the computation of one
    expert: its line 0 is the rows, its last line the answers. `inside` are the lines that no line outside reads."""

    rows: int
    gate: int
    experts: LiveSize
    asked: LiveSize
    body: tuple[Operation, ...]
    inside: frozenset[int]


def find_mixtures(lines: Sequence[Operation]) -> dict[int, Mixture]:
    """Find the mixtures of a term, by the line that sums them."""
    readers: list[list[int]] = [[] for _ in lines]
    for at, line in enumerate(lines):
        for arg in line.args:
            readers[arg].append(at)
    mixtures = (mixture_at(lines, readers, at) for at, line in enumerate(lines) if line.op == "total")
    return {at: mixture for at, mixture in mixtures if mixture is not None}


def mixture_at(lines: Sequence[Operation], readers: Sequence[Sequence[int]], at: int) -> tuple[int, Mixture | None]:
    """Return the line and the mixture whose sum of heads it is, None if it is none: answers, a head each, times a
    column of a gate each."""
    [product] = lines[at].args
    if lines[product].op != "mul":
        return at, None
    for answers, column in (lines[product].args, lines[product].args[::-1]):
        gate = lines[column]
        if gate.op != "split" or gate.shape.cols != 1 or lines[gate.args[0]].shape.heads != 1:
            continue
        count = gate.more[0]
        expert_lines, rows = body_of(lines, answers, count)
        inside = {k for k in expert_lines if lines[k].args} | {product, column}
        if (
            len(rows) != 1
            or lines[answers].level
            or readers[product] != [at]
            or any(reader not in inside for k in inside - {product} for reader in readers[k])
        ):
            continue
        if not all(lines[k].op in ("act", "add", "mul") for k in expert_lines):
            continue
        [rows_at] = rows
        place = {rows_at: 0} | {line: k for k, line in enumerate(expert_lines, 1)}
        body = (
            Operation("input", (), (), lines[rows_at].shape),
            *(
                lines[line]._replace(
                    args=tuple(place[a] for a in lines[line].args), shape=lines[line].shape._replace(heads=1)
                )
                for line in expert_lines
            ),
        )
        return at, Mixture(rows_at, gate.args[0], count, kept_columns(lines, gate.args[0]), body, frozenset(inside))
    return at, None


def body_of(lines: Sequence[Operation], answers: int, count: LiveSize) -> tuple[list[int], set[int]]:
    """Return the lines that compute experts' answers, in order, and the values that all experts are given."""
    body, rows, todo = set[int](), set[int](), [answers]
    while todo:
        if (at := todo.pop()) in body or at in rows:
            continue
        if lines[at].shape.heads == count or (lines[at].op == "act" and not lines[at].args):
            body.add(at)
            todo += lines[at].args
        else:
            rows.add(at)
    return sorted(body), rows


def kept_columns(lines: Sequence[Operation], at: int) -> LiveSize:
    """Return an upper bound of the nonzero numbers of a row, in each head."""
    line = lines[at]
    match line.op:
        case "keep_top":
            return line.more[0]
        case "mul":
            counts = [kept_columns(lines, a) for a in line.args if lines[a].shape.cols != 1]
            return next(
                (count for count in counts if all(count == other or certain(count <= other) for other in counts)),
                line.shape.cols,
            )
        case "join":
            return as_int(expression(kept_columns(lines, line.args[0])) * line.more[0])
        case "act" if line.args and (
            line.more[0].diagonal or (line.more[0].entrywise and line.more[0].maps_zero_to_zero)
        ):
            return kept_columns(lines, line.args[0])
    return line.shape.cols
