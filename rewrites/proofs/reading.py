"""Operators as what they give: two are equal where they give the same at every x, so proofs read both at one value of
which nothing is known. A composition is then applied factor by factor, and a sum of operators is one of values."""
from dataclasses import dataclass, field

from opmatrix.nodes import LASTING
from opmatrix.operators import I, symbol
from opmatrix.shapes import H, N, Shape, ShapeError, T, size, untaken
from opmatrix.term import Operator
from rewrites.compiler.flat import seen_from
from rewrites.compiler.kinds import behind, joined, left, right
from rewrites.proofs.value_kinds import below

PURE = {*LASTING.values(), below, behind, joined, left, right}      # kinds that read x through their operands alone


def read_both(one: Operator, other: Operator) -> tuple[Operator, Operator]:
    """What two operators give at a value that nothing else in them is called as; themselves where none fits both."""
    nodes = [node for side in (one, other) for node in side.walk()]
    names = {str(node.args[0]) for node in nodes if node.kind.name == "symbol"}
    sizes = {str(one) for node in nodes for each in (*node.attributes, *node.into, *node.out)
             for one in getattr(each, "free_symbols", ())}
    columns = next((side.into.cols for side in (one, other) if side.into.cols is not N), size(untaken("n", sizes)))
    heads = next((side.into.heads for side in (one, other) if side.into.heads is not H), H)
    reader = Reader(symbol(untaken("x", names), None, Shape(heads, T, columns)))
    try:
        return reader.read(one, reader.x), reader.read(other, reader.x)
    except ShapeError:
        return one, other


@dataclass
class Reader:
    """Terms at x, whatever reads its operands at x read at the leaves."""

    x: Operator
    known: dict[tuple[Operator, Operator], Operator] = field(default_factory=dict)

    def read(self, term: Operator, at: Operator) -> Operator:
        """What a term gives at a value."""
        if (found := self.known.get((term, at))) is None:
            found = self.known[term, at] = self.push(term, at)
        return found

    def push(self, term: Operator, at: Operator) -> Operator:
        """The same, one node of it."""
        match term.kind.name, term.args:
            case "I", _:
                return at
            case "compose", (first, then):
                return self.read(then, self.read(first, at))
            case "mul", (a, b) if is_number(a) or is_number(b):         # as laws write it
                a, b = (b, a) if is_number(a) else (a, b)
                made: Operator = self.read(a, at) @ (I * b)
                return made
            case "given", _:
                return seen_from(term, at.out.rows, at)
        if term.kind in PURE and term.kind.at_x:
            read = (self.read(child, at) for child in term.children[:term.kind.at_x])
            found: Operator = term.kind(*read, *term.args[term.kind.at_x:])
        else:
            alone = term.constant and at.out[:2] == self.x.out[:2]
            found = term if alone else at @ term
        return found


def is_number(term: Operator) -> bool:
    """Whether it is one number, whatever x is."""
    return bool(term.constant and term.uniform and term.column)
