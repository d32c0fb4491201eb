"""Which values of a row are kept, and the loops that make them: what several loops need and is much work is kept in
scratch, all else is computed where it is read; loops over equally many numbers are one where none waits for another."""
from collections.abc import Iterator
from dataclasses import dataclass, field

from formats.kernels.generated.rowwise.row_values import RowValue
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS

IN_PLACE_OPS = "beside", "place", "total", "times"          # what writes its numbers where they lie, one of them too
LOOPED = "fold", *IN_PLACE_OPS                              # what takes a loop of its own
VIEWS = "cols", "split"                                     # of one column of several, read as a number in a wider loop
WORTH = 6.0                                                 # operations of what is computed once rather than twice
SLOW = 8.0                                                  # of them that a division or a root is worth


@dataclass(eq=False)
class LoopItem:
    """A value that is made by a loop: where its numbers go is scratch, or the result."""
    node: RowValue
    parts: list[tuple[RowValue, int]]                       # what is stored, each from a column on; carriers of a fold
    heads: int
    cols: int
    after: set[int] = field(default_factory=set)            # items that it reads, in other places than it is at
    beside: set[int] = field(default_factory=set)           # ... and those that it reads where it is


@dataclass(eq=False)
class Loop:
    """Items that one loop over heads and columns makes."""
    heads: int
    cols: int
    items: list[int]


class Loops:
    """The items of a value in order, by node, and the loops that make them."""

    def __init__(self, root: RowValue) -> None:
        self.root = root.args[0] if root.op == "join" and root.args[0].op not in ("value", "const") else root
        self.nodes = [*self.root.walk()]
        self.kept = {id(self.root)} | {id(each) for each in self.nodes if each.op in LOOPED}
        self.kept |= {id(each.args[0]) for each in self.nodes if each.op in ("join", "times")
                      and each.args[0].op not in ("value", "const")}
        self.keep_shared()
        self.items: list[LoopItem] = []
        self.number: dict[int, int] = {}
        for node in self.nodes:
            if id(node) in self.kept: self.enter(node)
        self.loops = self.arrange()

    def own(self, node: RowValue) -> float:
        """Operations of a value at each of its numbers, without what it is made of."""
        function = SCALAR_OPERATIONS[node.extra] if node.op == "map" else None
        return function.simple + SLOW * function.slow if function else 0.0

    def keep_shared(self) -> None:
        """Keeps what several loops would compute, and what is one number in a loop over many."""
        readers: dict[int, set[tuple[int, int]]] = {id(each): set() for each in self.nodes}
        work: dict[int, float] = {}
        for node in self.nodes:
            inside = sum(work[id(each)] for each in node.args if id(each) not in self.kept)
            work[id(node)] = self.own(node) + inside
        for node in reversed(self.nodes):
            several = len({reader for reader, _ in readers[id(node)]}) > 1 and work[id(node)] >= WORTH
            single = node.cols == 1 and any(cols > 1 for _, cols in readers[id(node)])
            if (node.op == "map" and (several or single)) or (node.op in VIEWS and single): self.kept.add(id(node))
            for each in node.args:
                mine = {(id(node), reading_columns(node))} if id(node) in self.kept else readers[id(node)]
                readers[id(each)] |= mine

    def enter(self, node: RowValue) -> None:
        """An item, and what it reads."""
        parts, cols = [(node, 0)], node.cols
        match node.op:
            case "fold": parts, cols = [(each, 0) for each in node.args], node.extra.cols
            case "beside": parts = [*zip(node.args, node.extra, strict=True)]
            case "place" | "total" | "times": parts = [(node.args[0], 0)]
        item = LoopItem(node, parts, node.heads, cols)
        for part, _ in parts:
            plain = node.op == "fold" or part is node
            for each, at in self.read(part, node.heads, cols, plain, part is node):
                (item.beside if at else item.after).add(self.number[id(each)])
        item.beside -= item.after
        self.number[id(node)] = len(self.items)
        self.items.append(item)

    def read(self, part: RowValue, heads: int, cols: int, here: bool, own: bool) -> Iterator[tuple[RowValue, bool]]:
        """The kept values that an expression reads, each with whether at the very place where it is computed."""
        seen: set[tuple[int, bool]] = set()
        todo = [(part, here, own)]
        while todo:
            node, here, own = todo.pop()
            if (id(node), here) in seen: continue
            seen.add((id(node), here))
            if id(node) in self.kept and not own:
                yield node, here and node.op == "map" and (node.heads, node.cols) == (heads, cols)
            else: todo += [(each, here and node.op == "map", False) for each in node.args]

    def arrange(self) -> list[Loop]:
        """Items into loops, each as early as what it reads allows."""
        loops: list[Loop] = []
        where: list[int] = []
        for number, item in enumerate(self.items):
            first = max([*(where[each] + 1 for each in item.after), *(where[each] for each in item.beside)], default=0)
            simple = item.node.op in ("map", "fold")
            found = next((at for at in range(first, len(loops)) if simple and self.joins(loops[at], item)), None)
            if found is None:
                loops.append(Loop(item.heads, item.cols, []))
                found = len(loops) - 1
            loops[found].items.append(number)
            where.append(found)
        return loops

    def joins(self, loop: Loop, item: LoopItem) -> bool:
        """Whether an item may be made by a loop that there is."""
        return ((loop.heads, loop.cols) == (item.heads, item.cols)
                and all(self.items[each].node.op in ("map", "fold") for each in loop.items))


def reading_columns(node: RowValue) -> int:
    """Over how many columns a kept value reads what it is made of."""
    return int(node.extra.cols) if node.op == "fold" else node.cols
