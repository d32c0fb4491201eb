"""The lines of a term as training runs them: shares of softmax are a value of their own, entries are dropped where a
rate is given, and the lines that belong to a unit, such as a norm, are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.attributes import brief
from opmatrix.algebra.batch.mixtures import Mixture, contracts, find_mixtures
from opmatrix.algebra.batch.traced import Operation, Trace, TracedValue, renumber
from opmatrix.algebra.data import Data
from opmatrix.algebra.positions.distances import SLOPES
from opmatrix.algebra.positions.patterns import Pattern, everyone, sequence
from opmatrix.algebra.shapes import Shape, Space
from opmatrix.algebra.term import NAMES, Operator, read
from opmatrix.autodiff.backward_kinds import drop

VIEWS = "split", "join", "turn", "repeat"  # operations that reorder the numbers of a value
SOURCES = "given", "related", "by_distance"  # operations whose result every rank knows without computing


class Forward(NamedTuple):
    """The forward pass: its lines, the line of its result, the lines that units read and the lines inside units, the
    tables of rotations, and the pattern under which backward products merge tokens: within sequences where forward
    stays within them."""

    values: tuple[TracedValue, ...]
    result: int
    unit_inputs: frozenset[int]
    inside: frozenset[int]
    tables: frozenset[Data]
    within: Pattern

    @property
    def trace(self) -> Trace:
        """The trace that all its values belong to."""
        return self.values[0].trace

    def line(self, at: int) -> Operation:
        """Return the operation of a value by its number."""
        return self.values[at].line

    def free(self, at: int) -> bool:
        """True if a value is computed from the batch's positions and kinds alone, such as the angles by which heads
        turn."""
        line = self.line(at)
        return line.op in SOURCES or (line.op in ("act", "add", "mul", "turn") and all(map(self.free, line.args)))

    def masked(self, at: int) -> bool:
        """True if a value is 0 wherever a row does not see another: shares are."""
        line = self.line(at)
        return line.op == "shares" or (line.op == "dropped" and self.masked(line.args[0]))

    def source(self, at: int) -> int:
        """Return the line whose numbers a line has in another order."""
        while self.line(at).op in VIEWS:
            at = self.line(at).args[0]
        return at

    def between_tokens(self, at: int) -> bool:
        """True if a value has a number for each pair of rows, as scores do."""
        shape = self.line(at).shape
        return isinstance(shape.rows, Space) and isinstance(shape.cols, Space)


def is_unit(node: Operator) -> bool:
    """True if a term is a named operator that rows go through one by one, with few numbers of its own, such as a
    norm."""
    return (
        node in NAMES
        and node.row_wise
        and not node.linear
        and not node.entrywise
        and not node.constant
        and not any(isinstance(a, Data) and a.shape != (1,) for part in node.walk() for a in part.attributes)
    )


def traced_forward(
    term: Operator, x: Shape, dropout: float = 0, routed: bool = False, fixed_tables: bool = False
) -> Forward:
    """Trace the lines of a term at x. With `routed` a mixture is one line, of rows and their gate. With
    `fixed_tables` no table by distance learns, so any is taken. With a dropout rate,
    entries are dropped from shares of softmax, and from a branch that is added to the value it was computed from
    through a stored matrix; masks are called "dropout 0" and so on, in order."""
    memo: dict[tuple[Operator, TracedValue], TracedValue] = {}
    start = Trace().write("input", (), (), x)
    result: TracedValue = read(term, start, memo)
    training = TrainingTrace(result.trace.lines, dropout, fixed_tables)
    mixtures = find_mixtures(training.lines) if routed else {}
    apart = frozenset[int]().union(*(m.inside for m in mixtures.values()))
    for at in renumber(training.lines, {0, result.at}):
        if at in apart:
            continue
        if at in mixtures:
            training.write_mixture(at, mixtures[at])
        else:
            training.write_line(at)
    unit_inputs, inside = training.find_units(memo)
    return Forward(
        tuple(TracedValue(training.trace, at) for at in range(len(training.trace.lines))),
        training.traced[result.at].at,
        unit_inputs,
        inside,
        rotation_tables(term),
        token_pattern(training.trace.lines),
    )


class TrainingTrace:
    """A trace of lines as training runs them. `traced`: number of a line -> its value in this trace."""

    def __init__(self, lines: Sequence[Operation], dropout: float, fixed_tables: bool = False) -> None:
        self.lines, self.dropout, self.fixed_tables = lines, dropout, fixed_tables
        self.trace, self.traced = Trace(), dict[int, TracedValue]()
        self.masks = 0  # masks of dropout, so far

    def write_mixture(self, at: int, mixture: Mixture) -> None:
        """Write a mixture as one line, of rows and their gate."""
        rows, gate = self.traced[mixture.rows], self.traced[mixture.gate]
        self.traced[at] = rows.then("mixture", gate, more=(mixture,), shape=self.lines[at].shape)

    def write_line(self, at: int) -> None:
        """Write a line, with shares of softmax as a value, and entries dropped from shares and from branches. Raises
        InputError for a line without a backward."""
        line, args = self.lines[at], [self.traced[a] for a in self.lines[at].args]
        if line.op == "by_distance" and line.more[0].name != SLOPES and not self.fixed_tables:
            raise InputError(
                f"pullback: by_distance({brief(line.more[0])}): the gradient of a learned table is a sum "
                "along diagonals, which is not implemented: use a fixed one, such as alibi's slopes"
            )
        if self.weighs(line):
            shares = self.drop_entries(args[0].shares(line.more[1]))
            self.traced[at] = shares.product(args[1], monoids.sum, line.more[1])
            return
        branch = find_branch(self.lines, *line.args) if self.dropout and line.op == "add" else None
        if branch is None:
            self.traced[at] = self.trace.write(line.op, tuple(a.at for a in args), line.more, line.shape, line.level)
            return
        args[branch] = self.drop_entries(args[branch])
        self.traced[at] = args[0] + args[1]

    def weighs(self, line: Operation) -> bool:
        """True if a line is a product over softmax whose scores are computed."""
        if line.op != "product" or line.more[0] is not monoids.softmax:
            return False
        return self.lines[line.args[0]].op not in SOURCES

    def drop_entries(self, value: TracedValue) -> TracedValue:
        """Return a value with entries dropped by the next mask; as it is without dropout."""
        if not self.dropout:
            return value
        self.masks += 1
        return value.dropped(*drop(f"dropout {self.masks - 1}", self.dropout).args)

    def find_units(
        self, memo: Mapping[tuple[Operator, TracedValue], TracedValue]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Return the lines that units read, and the lines inside units. `memo`: term, line it reads -> its line."""
        inputs, inside = set[int](), set[int]()
        for (node, start), end in memo.items():
            if start.at == end.at or not is_unit(node):
                continue
            if start.at not in self.traced or end.at not in self.traced:
                continue
            inputs.add(self.traced[start.at].at)
            between = lines_between(self.lines, start.at, end.at)
            inside |= {self.traced[at].at for at in between if at in self.traced}
        return frozenset(inputs), frozenset(inside)


def rotation_tables(term: Operator) -> frozenset[Data]:
    """Return the tables of the rotations of a term."""
    rotations = (node for node in term.walk() if node.kind.name == "rotate")
    return frozenset(data for node in rotations for data in node.attributes if isinstance(data, Data))


def token_pattern(lines: Sequence[Operation]) -> Pattern:
    """Return the pattern under which backward products merge tokens: within sequences where all shares are."""
    patterns = [line.more[0] for line in lines if line.op == "shares"]
    return sequence if patterns and all(pattern.within for pattern in patterns) else everyone


def is_product(line: Operation) -> bool:
    """True if a line multiplies a value by a stored matrix that is more than its diagonal."""
    return line.op == "act" and bool(line.args) and contracts(line.more[0]) and not line.more[0].diagonal


def ancestors(lines: Sequence[Operation], of: int) -> set[int]:
    """Return the lines that a line is computed from, itself among them."""
    reached, todo = set[int](), [of]
    while todo:
        if (at := todo.pop()) in reached:
            continue
        reached.add(at)
        todo += lines[at].args
    return reached


def lines_between(lines: Sequence[Operation], start: int, end: int) -> set[int]:
    """Return the lines on the ways from one line to another, without both."""
    between: set[int] = {start}
    for at in sorted(ancestors(lines, end)):
        if at > start and any(a in between for a in lines[at].args):
            between.add(at)
    return between - {start, end}


def find_branch(lines: Sequence[Operation], one: int, other: int) -> int | None:
    """Return which of two operands was computed from the other through a stored matrix, as 0 or 1; None where neither
    was."""
    for branch, (u, v) in enumerate(((one, other), (other, one))):
        way = {*lines_between(lines, v, u), u} if not lines[v].level and v in ancestors(lines, u) else set()
        if u != v and any(lines[at].op == "act" and lines[at].args and contracts(lines[at].more[0]) for at in way):
            return branch
    return None


def arrays_of(lines: Iterable[Operation]) -> dict[Data, Any]:
    """Return the stored arrays of lines, of more than one number, each with its operator."""
    arrays: dict[Data, Any] = {}
    for line in lines:
        if line.op != "act":
            continue
        for data in line.more[0].args:
            if isinstance(data, Data) and data.shape != (1,):
                arrays.setdefault(data, line.more[0])
    return arrays
