"""Operators as what they give: two are equal where they give the same at every x, so proofs read both at one value of
which nothing is known. A composition is then applied factor by factor, and a sum of operators is one of values."""
from collections.abc import Container
from dataclasses import dataclass, field

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.nodes import LASTING
from opmatrix.algebra.operators import I, symbol
from opmatrix.algebra.positions.patterns import Pattern, everyone
from opmatrix.algebra.shapes import H, N, Shape, ShapeError, T, size, space, untaken
from opmatrix.algebra.term import KINDS, Operator
from rewrites.laws.kinds import behind, joined, left, right, with_heads
from rewrites.laws.proving.value_kinds import below

PURE = {*LASTING.values(), below, behind, joined, left, right, with_heads}   # kinds that read x through operands alone


def read_both(one: Operator, other: Operator) -> tuple[Operator, Operator]:
    """What two operators give at a value that nothing else in them is called as; themselves where none fits both."""
    nodes = [node for side in (one, other) for node in side.walk()]
    names = {str(node.args[0]) for node in nodes if node.kind.name == "symbol"}
    one, other = (hide_absence(side, names) for side in (one, other))
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
        """What one node gives at a value, from what its parts give."""
        match term.kind.name, term.args:
            case "I", _:
                return at
            case "compose", (first, then):
                return self.read(then, self.read(first, at))
            case "mul", (a, b) if not term.constant and (is_number(a) or is_number(b)):     # as laws write it
                a, b = (b, a) if is_number(a) else (a, b)
                made: Operator = self.read(a, at) @ (I * b)
                return made
        if term.kind in PURE and term.kind.at_x:
            read = (self.read(child, at) for child in term.children[:term.kind.at_x])
            found: Operator = term.kind(*read, *term.args[term.kind.at_x:])
        else:
            alone = term.constant and at.out[:2] == self.x.out[:2] and (term.uniform or not is_picked(at))
            found = term if alone else at @ term
        return found


def hide_absence(term: Operator, names: Container[str]) -> Operator:
    """The term with a value of its own for each relation over whose entries a product merges. As the left operand of a
    product a relation tells what is absent, and over other monoids than the sum that is not zero; laws of values know
    numbers alone."""
    made: dict[Operator, Operator] = {}
    for node in term.walk():
        children = [made[child] for child in node.children]
        if node.kind is KINDS["product"] and node.args[2] is not monoids.sum and (told := find_relation(node.args[0])):
            shape = Shape(1, space(told.rows), space(told.cols))
            children[0] = symbol(untaken(f"entries of {told}", names), None, shape, constant=True)
        same = all(new is old for new, old in zip(children, node.children, strict=True))
        made[node] = node if same else Operator(node.kind, *children, *node.attributes)
    return made[term]


def find_relation(term: Operator) -> Relation | None:
    """The relation that a term is, whatever comes before it."""
    while term.kind is KINDS["compose"]:
        term = term.args[1]
    return term.args[0] if term.kind is KINDS["related"] else None


def are_numbers(*terms: Operator) -> bool:
    """Whether values of these terms are their numbers alone: rows that were picked have positions and sequences of
    their own, which a sum takes from its first operand, and something may read."""
    nodes = {node for term in terms for node in term.walk()}
    placed = [KINDS[name] for name in ("given", "rotate", "by_distance")]
    return not any(map(is_picked, terms)) or not any(node.kind in placed
                                 or any(isinstance(each, Pattern) and each != everyone for each in node.attributes)
                                 for node in nodes)


def is_picked(term: Operator) -> bool:
    """Whether rows of it are not those that come in, or not in their order."""
    return any(node.kind is KINDS["pick"] for node in term.walk())


def is_number(term: Operator) -> bool:
    """Whether it is one number, whatever x is."""
    return bool(term.constant and term.uniform and term.column)
