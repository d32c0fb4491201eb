"""Operators read as the values that they give: two operators are equal if they give the same value at every x. So
proofs read both at one unknown value. A composition is then applied factor by factor, and a sum of operators is a sum
of values."""

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

PURE = {*LASTING.values(), below, behind, joined, left, right, with_heads}  # kinds that read x through operands alone
# a number in them fits as many heads as what it meets has
SPREADING = {KINDS[name] for name in ("add", "product", "scan")}


def read_both(one: Operator, other: Operator) -> tuple[Operator, Operator]:
    """Return the values of two operators at a symbol whose name neither of them uses; the operators themselves if no
    shape fits both."""
    nodes = [node for side in (one, other) for node in side.walk()]
    names = {str(node.args[0]) for node in nodes if node.kind.name == "symbol"}
    one, other = (hide_absence(side, names) for side in (one, other))
    sizes = {
        str(symbol)
        for node in nodes
        for attribute in (*node.attributes, *node.into, *node.out)
        for symbol in getattr(attribute, "free_symbols", ())
    }
    columns = next((side.into.cols for side in (one, other) if side.into.cols is not N), size(untaken("n", sizes)))
    heads = next((side.into.heads for side in (one, other) if side.into.heads is not H), H)
    reader = Reader(symbol(untaken("x", names), None, Shape(heads, T, columns)))
    try:
        return reader.read(one, reader.x), reader.read(other, reader.x)
    except ShapeError:
        return one, other


@dataclass
class Reader:
    """A reader of terms at x, with a memory. A kind that reads x through its operands is applied to the values of its
    operands."""

    x: Operator
    known: dict[tuple[Operator, Operator], Operator] = field(default_factory=dict)

    def read(self, term: Operator, at: Operator) -> Operator:
        """Return the value of a term at a value."""
        if (value := self.known.get((term, at))) is None:
            value = self.known[term, at] = self.push(term, at)
        return value

    def push(self, term: Operator, at: Operator) -> Operator:
        """Return the value of one node at a value, from the values of its parts."""
        match term.kind.name, term.args:
            case "I", _:
                return at
            case "compose", (first, then):
                return self.read(then, self.read(first, at))
            case "mul", (a, b) if not term.constant and (is_number(a) or is_number(b)):  # laws write factors so
                a, b = (b, a) if is_number(a) else (a, b)
                product: Operator = self.read(a, at) @ (I * b)
                return product
        if term.kind in PURE and term.kind.at_x:
            parts = term.children[: term.kind.at_x]
            spread = term.kind in SPREADING and at.out.rows == self.x.out.rows and not all(map(is_number, parts))
            read = (part if spread and is_number(part) else self.read(part, at) for part in parts)
            value: Operator = term.kind(*read, *term.args[term.kind.at_x :])
        else:
            alone = term.constant and at.out[:2] == self.x.out[:2] and (term.uniform or not is_picked(at))
            value = term if alone else at @ term
        return value


def hide_absence(term: Operator, names: Container[str]) -> Operator:
    """Return the term with a symbol of its own in place of each relation over whose entries a product merges. As the
    left operand of a product a relation determines which entries are absent, and over monoids other than the sum an
    absent entry is not zero; laws of values know numbers only."""
    rebuilt: dict[Operator, Operator] = {}
    for node in term.walk():
        children = [rebuilt[child] for child in node.children]
        if node.kind is KINDS["product"] and node.args[2] is not monoids.sum and (told := find_relation(node.args[0])):
            shape = Shape(1, space(told.rows), space(told.cols))
            children[0] = symbol(untaken(f"entries of {told}", names), None, shape, constant=True)
        same = all(new is old for new, old in zip(children, node.children, strict=True))
        rebuilt[node] = node if same else Operator(node.kind, *children, *node.attributes)
    return rebuilt[term]


def find_relation(term: Operator) -> Relation | None:
    """Return the relation that a term ends in, whatever is composed before it; None if it is no relation."""
    while term.kind is KINDS["compose"]:
        term = term.args[1]
    return term.args[0] if term.kind is KINDS["related"] else None


def are_numbers(*terms: Operator) -> bool:
    """True if values of these terms are their numbers alone. Rows that were picked have positions and sequences of
    their own, which a sum takes from its first operand, and which some node may read."""
    nodes = {node for term in terms for node in term.walk()}
    placed = [KINDS[name] for name in ("given", "rotate", "by_distance", "at_distances", "shift")]
    return not any(map(is_picked, terms)) or not any(
        node.kind in placed
        or any(isinstance(attribute, Pattern) and attribute != everyone for attribute in node.attributes)
        for node in nodes
    )


def is_picked(term: Operator) -> bool:
    """True if its rows may be other rows than those of the input, or in another order."""
    return any(node.kind is KINDS["pick"] for node in term.walk())


def is_number(term: Operator) -> bool:
    """True if it is one number, whatever x is."""
    return bool(term.constant and term.uniform and term.column)
