"""The values of a row that are stored, and the loops that compute them. A value that several loops need and that costs
much is kept in scratch; all others are recomputed where they are read. Loops over equally many numbers become one if
none waits for another."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from formats.kernels.generated.rowwise.row_values import RowValue
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS

IN_PLACE_OPS = "beside", "place", "total", "times"  # operations that store in place, even a single number
LOOPED = "fold", *IN_PLACE_OPS  # operations with a loop of their own
VIEWS = "cols", "split"  # views of one column, read as a number in a wider loop
WORTH = 6.0  # operations from which a shared value is stored
SLOW = 8.0  # simple operations that a division or a root is worth


@dataclass(eq=False)
class LoopItem:
    """A value that a loop computes and stores, in scratch or in the result."""

    node: RowValue
    parts: list[tuple[RowValue, int]]  # (value, first column) to store; carriers of a fold
    heads: int
    cols: int
    after: set[int] = field(default_factory=set)  # items that it reads at other places than its own
    beside: set[int] = field(default_factory=set)  # items that it reads only at its own place


@dataclass(eq=False)
class Loop:
    """Items that one loop over heads and columns computes."""

    heads: int
    cols: int
    items: list[int]


class Loops:
    """The items of a value in order, by node, and the loops that compute them."""

    def __init__(self, root: RowValue) -> None:
        self.root = root.args[0] if root.op == "join" and root.args[0].op not in ("value", "const") else root
        self.nodes = [*self.root.walk()]
        self.kept = {id(self.root)} | {id(node) for node in self.nodes if node.op in LOOPED}
        self.kept |= {
            id(node.args[0])
            for node in self.nodes
            if node.op in ("join", "times") and node.args[0].op not in ("value", "const")
        }
        self.keep_shared()
        self.items: list[LoopItem] = []
        self.number: dict[int, int] = {}
        for node in self.nodes:
            if id(node) in self.kept:
                self.enter(node)
        self.loops = self.arrange()

    def own(self, node: RowValue) -> float:
        """Count the operations of a value at each of its numbers, without those of its arguments."""
        function = SCALAR_OPERATIONS[node.extra] if node.op == "map" else None
        return function.simple + SLOW * function.slow if function else 0.0

    def keep_shared(self) -> None:
        """Keep values that several loops would recompute, and single numbers that a loop over many columns reads."""
        readers: dict[int, set[tuple[int, int]]] = {id(node): set() for node in self.nodes}
        work: dict[int, float] = {}
        for node in self.nodes:
            inside = sum(work[id(arg)] for arg in node.args if id(arg) not in self.kept)
            work[id(node)] = self.own(node) + inside
        for node in reversed(self.nodes):
            several = len({reader for reader, _ in readers[id(node)]}) > 1 and work[id(node)] >= WORTH
            single = node.cols == 1 and any(cols > 1 for _, cols in readers[id(node)])
            if (node.op == "map" and (several or single)) or (node.op in VIEWS and single):
                self.kept.add(id(node))
            for arg in node.args:
                mine = {(id(node), reading_columns(node))} if id(node) in self.kept else readers[id(node)]
                readers[id(arg)] |= mine

    def enter(self, node: RowValue) -> None:
        """Add the item of a node, with the items that it reads."""
        parts, cols = [(node, 0)], node.cols
        match node.op:
            case "fold":
                parts, cols = [(arg, 0) for arg in node.args], node.extra.cols
            case "beside":
                parts = [*zip(node.args, node.extra, strict=True)]
            case "place" | "total" | "times":
                parts = [(node.args[0], 0)]
        entry = LoopItem(node, parts, node.heads, cols)
        for part, _ in parts:
            plain = node.op == "fold" or part is node
            for kept_node, at in self.read(part, node.heads, cols, plain, part is node):
                (entry.beside if at else entry.after).add(self.number[id(kept_node)])
        entry.beside -= entry.after
        self.number[id(node)] = len(self.items)
        self.items.append(entry)

    def read(self, part: RowValue, heads: int, cols: int, here: bool, own: bool) -> Iterator[tuple[RowValue, bool]]:
        """Yield the kept values that an expression reads, each with True if it is read at the very place where it is
        computed."""
        seen: set[tuple[int, bool]] = set()
        todo = [(part, here, own)]
        while todo:
            node, here, own = todo.pop()
            if (id(node), here) in seen:
                continue
            seen.add((id(node), here))
            if id(node) in self.kept and not own:
                yield node, here and node.op == "map" and (node.heads, node.cols) == (heads, cols)
            else:
                todo += [(arg, here and node.op == "map", False) for arg in node.args]

    def arrange(self) -> list[Loop]:
        """Group items into loops, each as early as its inputs allow."""
        loops: list[Loop] = []
        where: list[int] = []
        for number, entry in enumerate(self.items):
            first = max(
                [*(where[earlier] + 1 for earlier in entry.after), *(where[earlier] for earlier in entry.beside)],
                default=0,
            )
            simple = entry.node.op in ("map", "fold")
            position = next((at for at in range(first, len(loops)) if simple and self.joins(loops[at], entry)), None)
            if position is None:
                loops.append(Loop(entry.heads, entry.cols, []))
                position = len(loops) - 1
            loops[position].items.append(number)
            where.append(position)
        return loops

    def joins(self, loop: Loop, item: LoopItem) -> bool:
        """True if an item may be computed by an existing loop."""
        return (loop.heads, loop.cols) == (item.heads, item.cols) and all(
            self.items[number].node.op in ("map", "fold") for number in loop.items
        )


def reading_columns(node: RowValue) -> int:
    """Count the columns over which a kept value reads its arguments."""
    return int(node.extra.cols) if node.op == "fold" else node.cols
