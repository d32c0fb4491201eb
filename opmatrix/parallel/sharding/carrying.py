"""The weights that may be sharded by columns: their output goes, column by column or head by head, to a next weight,
which is then sharded by rows. The lines of a term decide this, so a gate, grouped keys or a missing projection change
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from opmatrix.algebra.batch.mixtures import contracts
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.data import Data
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator


def divisible(matrix: Operator) -> bool:
    """True if columns of the matrix can be left out: no whole number among its attributes refers to columns."""
    return not any(type(attribute) is int or hasattr(attribute, "is_Symbol") for attribute in matrix.attributes)


def asked_of(data: Data, cuts: Mapping[str, str]) -> str | None:
    """Return the requested sharding of a weight, by the first pattern that its name fits; None if it fits no
    pattern."""
    source = data.cut_of or data
    name = (source.base or source).name or ""
    return next((how for pattern, how in cuts.items() if fnmatch(name, pattern)), None)


PASSING = frozenset(
    {"split", "join", "repeat", "turn", "product", "beside", "keep_top", "shares", "dropped", "shift", "backwards"}
)  # operations whose columns or heads are open where those of all operands are


@dataclass(frozen=True)
class Grain:
    """The heads that a value was split into; fewer than the value has if groups share them."""

    heads: LiveSize  # number of heads
    shared: bool = False  # groups of heads share them


class Cuttable:
    """An analysis of lines: if the columns or heads of each line can stay sharded until a weight merges them, and by
    which units."""

    def __init__(self, lines: Sequence[Operation]) -> None:
        self.lines = lines
        self.readers: list[list[int]] = [[] for _ in lines]
        for at, line in enumerate(lines):
            for arg in line.args:
                self.readers[arg].append(at)
        self.grain: list[Grain | None] = []
        self.opened: list[bool] = []
        for line in lines:
            self.grain.append(self.find_grain(line))
            self.opened.append(self.opens(line))
        self.carry = [False] * len(lines)
        self.units: list[Grain | None] = [None] * len(lines)
        for at in range(len(lines) - 1, -1, -1):
            self.carry[at] = bool(self.readers[at]) and all(self.passes(lines[r], r, at) for r in self.readers[at])
            self.units[at] = self.demand(at)

    def own_heads(self, at: int) -> LiveSize | None:
        """Return the number of heads that the columns of a line are split into; None if they are not split."""
        for reader in self.readers[at]:
            line = self.lines[reader]
            heads = line.more[0] if line.op == "split" else self.own_heads(reader)
            if heads is not None:
                return heads
        return None

    def gathers(self, line: Operation) -> bool:
        """True if the line takes rows by a relation, so that columns pass."""
        return line.op == "pick" or (line.op == "product" and self.lines[line.args[0]].op == "related")

    def spread(self, asked: Mapping[int, str]) -> dict[int, str]:
        """Return the sharding of each weight, given that of some weights. Columns or heads that meet those of a weight
        sharded by columns, on the way to a weight sharded by rows, are sharded with it."""
        ways = dict(asked)
        for at, how in asked.items():
            start = self.lines[at].args[0] if how == "rows" else at
            for other in self.together(start) if how in ("columns", "rows") or self.carry[at] else ():
                line = self.lines[other]
                if line.op == "act" and line.args and contracts(line.more[0]) and self.carry[other]:
                    ways.setdefault(other, "whole" if how == "whole" else "columns")
        return ways

    def together(self, start: int) -> set[int]:
        """Return the lines whose columns or heads are sharded if those of one line are."""
        members, todo = set[int](), [start]
        while todo:
            at = todo.pop()
            if at in members:
                continue
            members.add(at)
            line = self.lines[at]
            if not (line.op == "act" and contracts(line.more[0])):
                todo += [arg for arg in line.args if self.carry[arg] and self.opened[arg]]
            if self.carry[at]:
                todo += [
                    r
                    for r in self.readers[at]
                    if self.carry[r] and not (self.lines[r].op == "act" and contracts(self.lines[r].more[0]))
                ]
        return members

    def headed(self, at: int) -> bool:
        """True if a line has several heads."""
        return bool(self.lines[at].shape.heads != 1)

    def find_grain(self, line: Operation) -> Grain | None:
        """Return the units that a line's columns come in: its heads, groups that share heads, or None."""
        if line.op == "split":
            return Grain(line.more[0])
        grains = [g for g in (self.grain[a] for a in line.args) if g]
        if line.op == "repeat":
            return Grain(grains[0].heads, True) if grains else None
        if line.shape.heads == 1 and line.op != "join":
            return None
        return next((g for g in grains if g.shared), grains[0] if grains else None)

    def opens(self, line: Operation) -> bool:
        """True if the columns or heads of the line come from weights that may be sharded."""
        if line.op == "act":
            matrix = line.more[0]
            if not line.args:
                return False
            opened = self.opened[line.args[0]]
            return contracts(matrix) if line.shape.heads == 1 and not (matrix.entrywise or matrix.diagonal) else opened
        if self.gathers(line):
            return self.opened[line.args[-1]]
        if line.op in ("add", "mul", "scan", "delta_rule"):
            return any(self.opened[a] for a in line.args)
        return line.op in PASSING and all(self.opened[a] for a in line.args)

    def passes(self, reader: Operation, at: int, of: int) -> bool:
        """True if a reader can take a line sharded."""
        heads, on = self.headed(of), self.carry[at]
        if self.gathers(reader):
            return on and of == reader.args[-1]
        match reader.op:
            case "act":
                return self.passes_matrix(reader.more[0], at, of)
            case "add" | "mul" | "scan":
                return self.passes_pointwise(reader, at, of)
            case "split" | "join" | "repeat" | "dropped" | "shift" | "backwards":
                return on
            case "turn" | "shares":
                return on and heads
            case "beside" | "keep_top":
                return on and heads and all(self.opened[a] for a in reader.args)
            case "product":
                return on and heads and all(map(self.headed, reader.args))
            case "delta_rule":
                return on and heads
            case "total":
                return True
        return False

    def passes_matrix(self, matrix: Operator, at: int, of: int) -> bool:
        """True if a matrix that reads line `of` can take it sharded."""
        on = self.carry[at]
        if self.headed(of) or matrix.entrywise or matrix.diagonal:
            return on
        return contracts(matrix) and divisible(matrix) and not on  # shard the second of two

    def passes_pointwise(self, reader: Operation, at: int, of: int) -> bool:
        """True if an operation entry by entry can take line `of` sharded."""
        heads, on = self.headed(of), self.carry[at]
        other = next((a for a in reader.args if a != of), of)
        beside = self.lines[other]
        if not heads and self.lines[of].shape.cols == 1:
            return False  # one column is broadcast
        if beside.level or beside.shape.cols == 1:
            return on
        if heads != self.headed(other):
            return on and heads
        return on and self.opened[other]

    def demand(self, at: int) -> Grain | None:
        """Return the units by which columns or heads may be sharded: as many as every reader can take."""
        if not self.carry[at]:
            return None
        wanted = [self.wanted(r) for r in self.readers[at]]
        return next((grain for grain in wanted if grain is not None), None)

    def wanted(self, reader: int) -> Grain | None:
        """Return the units that a reader can take of its operand; None for a weight that merges all columns."""
        line = self.lines[reader]
        if line.op in ("product", "join", "delta_rule") and not self.gathers(line):
            return self.grain[reader]
        if line.op == "total":
            return self.grain[line.args[0]]
        if line.op == "act" and contracts(line.more[0]) and not self.headed(reader):
            return None
        return self.units[reader]
