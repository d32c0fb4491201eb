"""Mixtures of experts in the lines of a term: what each expert does with a row, and the gate whose columns say which
rows ask it. As written every expert is given every row, and a gate's zero takes its answer away."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize, as_int, certain, expression
from opmatrix.algebra.term import Operator


def contracts(matrix: Operator) -> bool:
    """Whether an operator is a stored matrix whose rows may be cut: it merges what comes in."""
    return not matrix.constant and not matrix.diagonal and not matrix.entrywise and any(
        isinstance(each, Data) for each in matrix.args)


class Mixture(NamedTuple):
    """`rows` are what experts are given and `gate` whom each of them asks, lines both; so many `experts`, of which a
    row asks so many. `body` is what one of them does: its line 0 is the rows, its last one their answers. `inside` are
    the lines that nothing else reads."""
    rows: int
    gate: int
    experts: LiveSize
    asked: LiveSize
    body: tuple[Operation, ...]
    inside: frozenset[int]


def find_mixtures(lines: Sequence[Operation]) -> dict[int, Mixture]:
    """The mixtures of a term by the line that sums them."""
    readers: list[list[int]] = [[] for _ in lines]
    for at, line in enumerate(lines):
        for arg in line.args: readers[arg].append(at)
    found = (mixture_at(lines, readers, at) for at, line in enumerate(lines) if line.op == "total")
    return {at: each for at, each in found if each is not None}


def mixture_at(lines: Sequence[Operation], readers: Sequence[Sequence[int]],
               at: int) -> tuple[int, Mixture | None]:
    """The mixture that a sum of heads is of, if it is of one: answers, a head each, times a column of a gate each."""
    [product] = lines[at].args
    if lines[product].op != "mul": return at, None
    for answers, column in (lines[product].args, lines[product].args[::-1]):
        gate = lines[column]
        if gate.op != "split" or gate.shape.cols != 1 or lines[gate.args[0]].shape.heads != 1: continue
        count = gate.more[0]
        own, rows = body_of(lines, answers, count)
        inside = {each for each in own if lines[each].args} | {product, column}
        if len(rows) != 1 or lines[answers].level or readers[product] != [at] or any(
                reader not in inside for each in inside - {product} for reader in readers[each]): continue
        if not all(lines[each].op in ("act", "add", "mul") for each in own): continue
        [given] = rows
        place = {given: 0} | {each: k for k, each in enumerate(own, 1)}
        body = (Operation("input", (), (), lines[given].shape), *(
            lines[each]._replace(args=tuple(place[a] for a in lines[each].args),
                                 shape=lines[each].shape._replace(heads=1)) for each in own))
        return at, Mixture(given, gate.args[0], count, kept_columns(lines, gate.args[0]), body, frozenset(inside))
    return at, None


def body_of(lines: Sequence[Operation], answers: int, count: LiveSize) -> tuple[list[int], set[int]]:
    """The lines that experts' answers are made by, in order, and the values that all experts are given."""
    own, rows, todo = set[int](), set[int](), [answers]
    while todo:
        if (at := todo.pop()) in own or at in rows: continue
        if lines[at].shape.heads == count or (lines[at].op == "act" and not lines[at].args):
            own.add(at)
            todo += lines[at].args
        else: rows.add(at)
    return sorted(own), rows


def kept_columns(lines: Sequence[Operation], at: int) -> LiveSize:
    """How many numbers of a row are not 0 at most, in each head."""
    line = lines[at]
    match line.op:
        case "keep_top": return line.more[0]
        case "mul":
            kept = [kept_columns(lines, a) for a in line.args if lines[a].shape.cols != 1]
            return next((each for each in kept if all(each == other or certain(each <= other) for other in kept)),
                        line.shape.cols)
        case "join": return as_int(expression(kept_columns(lines, line.args[0])) * line.more[0])
        case "act" if line.args and (line.more[0].diagonal or (
            line.more[0].entrywise and line.more[0].maps_zero_to_zero)): return kept_columns(lines, line.args[0])
    return line.shape.cols
