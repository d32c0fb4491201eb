"""The text of expressions of a row: a vector of 16 numbers of a value, at a head and from a column on."""

from collections.abc import Callable
from dataclasses import dataclass, field

from formats.kernels.generated.rowwise.row_values import RowValue
from formats.kernels.generated.rowwise.vector_text import VectorText

OPERANDS = "value", "const"  # values that a call gives


@dataclass
class RowExpressions(VectorText):
    """A kernel text in which values of a row are written as vectors; those in `kept` are stored, and read there."""

    seen: dict[tuple[int, str, str], str] = field(default_factory=dict, kw_only=True)
    kept: dict[int, int] = field(default_factory=dict, kw_only=True)  # stored values by id, with their numbers
    carried = False

    def address(self, node: RowValue, h: str, at: str, part: int = 0) -> str:
        """Return the address at which the number of a head and a column of an operand is read."""
        if node.op == "value":
            return join_sum(f"x{node.extra}", scaled(h, f"c.x{node.extra}_head"), at)
        return join_sum(f"c.c{node.extra}", scaled(h, self.size(node.cols)), at)

    def stored(self, node: RowValue, h: str, at: str, lanes: str, part: int = 0) -> str:
        """Return the variable of a stored value at a place."""
        if node.cols == 1:
            return self.name(f"one_number({self.address(node, h, '0', part)})")
        return self.name(f"get({self.address(node, h, at, part)}, {lanes})")

    def value(self, node: RowValue, h: str, at: str, lanes: str, own: bool = False) -> str:
        """Return the vector of a value at a head, from a column on."""
        h, at = ("0" if node.heads == 1 else h), ("0" if node.cols == 1 else at)
        if (vector := self.seen.get(key := (id(node), h, at))) is None:
            self.seen[key] = vector = self.expression(node, h, at, lanes, own)
        return vector

    def lanes(self, node: RowValue, h: str, at: str, lanes: str, own: bool = False) -> str:
        """Return a value as a vector that may be stored or merged, even if it is a constant."""
        vector = self.value(node, h, at, lanes, own)
        return self.name(f"in_all_lanes({vector})") if vector.startswith("K") else vector

    def expression(self, node: RowValue, h: str, at: str, lanes: str, own: bool) -> str:
        if id(node) in self.kept and not own:
            return self.stored(node, h, at, lanes)
        match node.op:
            case "literal":
                return self.literal(node.extra)
            case "value" | "const":
                return self.stored(node, h, at, lanes)
            case "shift":
                return self.shifted(node, h, at, lanes)
            case "index":
                return self.name(f"lane_numbers(f4({at}))")
            case "part":
                return self.stored(node.args[0], h, at, lanes, node.extra)
            case "cols":
                return self.value(node.args[0], h, plus(at, self.size(node.extra) if node.extra else ""), lanes)
            case "split":
                return self.value(node.args[0], "0", plus(scaled(h, self.size(node.cols)), at), lanes)
            case "wide":
                return self.value(node.args[0], h, "0", lanes)
            case "repeat":
                group = node.heads // node.args[0].heads
                return self.value(node.args[0], f"({h} // {self.size(group)})", at, lanes)
            case "join":
                return self.flat(node.args[0], at, lanes)
            case "map":
                return self.operation(node.extra, [self.value(arg, h, at, lanes) for arg in node.args])
        raise ValueError(f"{node.op}: no such operation")

    def shifted(self, node: RowValue, h: str, at: str, lanes: str) -> str:
        """Load columns of an operand in a row before, zeros where the sequence has none: a row that exists is read in
        its place. The state of a sequence without rows holds zeros."""
        number, lag = node.args[0].extra, node.extra
        step = f"x{number}_{lag}_head" if self.carried else f"c.x{number}_head"
        place = join_sum(f"x{number}_{lag}", scaled(h, step), at)
        there = self.name(f"one_number({place})" if node.cols == 1 else f"get({place}, {lanes})")
        if self.carried:
            return there
        return self.name(f"lanes_of(has{lag}, {there}, {self.literal(0.0)})")

    def flat(self, node: RowValue, at: str, lanes: str) -> str:
        """Load columns of the heads of a value, side by side, as they are stored."""
        return self.name(f"get({self.address(node, '0', at)}, {lanes})")

    def block(self, body: Callable[[], None]) -> None:
        """Write lines whose variables are not read after them."""
        before, self.seen = self.seen, {}
        start = len(self.lines)
        body()
        if len(self.lines) == start:
            self.put("pass")
        self.seen = before


def plus(one: str, other: str) -> str:
    """Return the sum of two words, either of which may be empty or 0."""
    parts = [word for word in (one, other) if word not in ("", "0")]
    return " + ".join(parts) or "0"


def scaled(one: str, by: str) -> str:
    return "0" if "0" in (one, by) else one if by == "1" else by if one == "1" else f"{one} * {by}"


def join_sum(base: str, *offsets: str) -> str:
    """Return an address, `offsets` numbers behind a base."""
    inside = " + ".join(offset for offset in offsets if offset not in ("", "0"))
    return f"{base} + 4 * ({inside})" if inside else base
