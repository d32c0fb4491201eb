"""The text of a kernel that makes rows: Python over vectors of 16 numbers, as those written by hand are.

Sizes above 8 are words of its record, so one text serves all widths; columns beyond the last whole vector are a vector
of fewer lanes."""
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from formats.kernels.generated.rowwise.row_loops import IN_PLACE_OPS, Loop, Loops
from formats.kernels.generated.rowwise.row_values import Merging, RowValue
from formats.kernels.generated.rowwise.stored import StoredColumns
from formats.kernels.generated.rowwise.vector_text import IN_TEXT, VectorText

LANE_STEPS = 1, 2, 4, 8                                     # of lanes that are merged, one after another


@dataclass
class RowText(VectorText):
    """What is written: lines, and how the record of a call is laid out."""
    root: RowValue
    values: int
    arrays: int
    seen: dict[tuple[int, str, str], str] = field(default_factory=dict)
    places: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)   # of kept values: bytes, and a word
    room: int = 0
    written_heads: int = 1                                  # of the loop that is being written
    written_columns: tuple[int, int] = (0, 0)               # ... and its columns: the first, and where they end

    def __post_init__(self) -> None:
        self.loops = Loops(self.root)
        self.kept = self.loops.number
        for number, item in enumerate(self.loops.items): self.reserve(number, item.node)
        for loop in self.loops.loops: self.write_loop(loop)
        self.check_stored()

    def check_stored(self) -> None:
        """Raises ValueError where a number of the result, or of what is kept, is stored by no line."""
        for item in self.loops.items:
            node = item.node
            if self.is_variable(node): continue
            parts = len(node.args) if node.op == "fold" and node is not self.loops.root else 1
            for part in range(parts): self.stores.check(self.word(node, part), node.heads, node.cols)

    def reserve(self, number: int, node: RowValue) -> None:
        """Room for what an item makes: none for single numbers of one head, which are variables, and for the result."""
        if node is self.loops.root or self.is_variable(node): return
        parts = len(node.args) if node.op == "fold" else 1
        for k in range(parts):
            self.places[id(node), k] = self.room, f"s{len(self.places)}"
            self.room += 4 * -(-(node.heads * node.cols + 16) // 16) * 16

    # ---- where numbers are

    def is_variable(self, node: RowValue) -> bool:
        """Whether what is kept is one number of a row, which the loop that makes it leaves in a variable."""
        return node.heads == 1 and node.cols == 1 and node.op not in IN_PLACE_OPS and node is not self.loops.root

    def address(self, node: RowValue, h: str, at: str, part: int = 0) -> str:
        """Address at which the number of a head and a column of an operand or a kept value is read."""
        if node.op == "value": return join_sum(f"x{node.extra}", scaled(h, f"c.x{node.extra}_head"), at)
        if node.op == "const":
            return join_sum(f"c.c{node.extra}", scaled(h, self.size(node.cols)), at)
        return self.place(node, h, at, part)

    def place(self, node: RowValue, h: str, at: str, part: int = 0) -> str:
        """Address at which the number of a head and a column of a kept value is stored: never in an operand, which the
        result may be as it is."""
        step = self.row_step(h) if node is self.loops.root else scaled(h, self.size(node.cols))
        return join_sum(self.word(node, part), step, at)

    def word(self, node: RowValue, part: int = 0) -> str:
        """The word of where a kept value lies: the result, or scratch."""
        return "out" if node is self.loops.root else self.places[id(node), part][1]

    def keep(self, vector: str, node: RowValue, h: str, at: str, lanes: str, start: int = 0, part: int = 0) -> None:
        """A vector of columns stored as those of a kept value, from a column on."""
        place = self.place(node, h, plus(at, self.size(start) if start else ""), part)
        self.put(f"keep({vector}, {place}, {lanes})")
        first, last = self.written_columns
        base, _, _ = place.partition(" ")
        self.stores.add(base, StoredColumns(self.written_heads, start + first, start + last))

    def row_step(self, h: str) -> str:
        """A head of the result: beside the one before where heads are joined."""
        joined = self.loops.root is not self.root
        return scaled(h, self.size(self.loops.root.cols) if joined else "c.out_head")

    def stored(self, node: RowValue, h: str, at: str, lanes: str, part: int = 0) -> str:
        """A kept value or an operand at a place."""
        if self.is_variable(node) and id(node) in self.kept:
            return f"t{self.kept[id(node)]}_{part}"
        if node.cols == 1: return self.name(f"one_number({self.address(node, h, '0', part)})")
        return self.name(f"get({self.address(node, h, at, part)}, {lanes})")

    # ---- expressions

    def value(self, node: RowValue, h: str, at: str, lanes: str, own: bool = False) -> str:
        """The vector of a value at a head and from a column on."""
        h, at = ("0" if node.heads == 1 else h), ("0" if node.cols == 1 else at)
        if (found := self.seen.get(key := (id(node), h, at))) is None:
            self.seen[key] = found = self.expression(node, h, at, lanes, own)
        return found

    def lanes(self, node: RowValue, h: str, at: str, lanes: str, own: bool = False) -> str:
        """A value as a vector that may be stored or merged, where it is a constant too."""
        found = self.value(node, h, at, lanes, own)
        return self.name(f"in_all_lanes({found})") if found.startswith("K") else found

    def expression(self, node: RowValue, h: str, at: str, lanes: str, own: bool) -> str:
        if id(node) in self.kept and not own: return self.stored(node, h, at, lanes)
        match node.op:
            case "literal": return self.literal(node.extra)
            case "value" | "const": return self.stored(node, h, at, lanes)
            case "index": return self.name(f"lane_numbers(f4({at}))")
            case "part": return self.stored(node.args[0], h, at, lanes, node.extra)
            case "cols":
                return self.value(node.args[0], h, plus(at, self.size(node.extra) if node.extra else ""), lanes)
            case "split": return self.value(node.args[0], "0", plus(scaled(h, self.size(node.cols)), at), lanes)
            case "wide": return self.value(node.args[0], h, "0", lanes)
            case "repeat":
                each = node.heads // node.args[0].heads
                return self.value(node.args[0], f"({h} // {self.size(each)})", at, lanes)
            case "join": return self.flat(node.args[0], at, lanes)
            case "map": return self.operation(node.extra, [self.value(each, h, at, lanes) for each in node.args])
        raise ValueError(f"{node.op}: no such value")

    def flat(self, node: RowValue, at: str, lanes: str) -> str:
        """Columns of the heads of a value, side by side, as they lie."""
        return self.name(f"get({self.address(node, '0', at)}, {lanes})")

    # ---- loops

    def write_loop(self, loop: Loop) -> None:
        """A loop over heads, and columns within them."""
        items = [(number, self.loops.items[number]) for number in loop.items]
        body = {"beside": self.write_beside, "place": self.write_place, "total": self.write_total,
                "times": self.write_times}.get(items[0][1].node.op)
        heads = loop.heads > 1
        if heads:
            self.put(f"for h in range({self.size(loop.heads)}):")
            self.indent += 1
        h = "h" if heads else "0"
        self.written_heads = loop.heads
        if body: body(items[0][1].node, h)
        else: self.write_items(loop, h)
        if heads: self.indent -= 1

    def columns(self, cols: int, body: Callable[[str, str], None]) -> None:
        """A body for each whole vector of so many columns, and for what is left."""
        whole = cols // 16 * 16
        if cols <= IN_TEXT: return self.block_of((0, cols), partial(body, "0", str(cols)))
        self.put(f"for at in range(0, {self.size(cols)} // 16 * 16, 16):")
        self.indent += 1
        self.block_of((0, whole), partial(body, "at", "None"))
        self.indent -= 1
        self.put(f"if {self.size(cols)} % 16:")
        self.indent += 1
        self.put(f"at, lanes = {self.size(cols)} // 16 * 16, {self.size(cols)} % 16")
        self.block_of((whole, cols), partial(body, "at", "lanes"))
        self.indent -= 1
        return None

    def block_of(self, columns: tuple[int, int], body: Callable[[], None]) -> None:
        """A block that is run for each vector of these columns."""
        self.written_columns = columns
        self.block(body)

    def block(self, body: Callable[[], None]) -> None:
        """Lines whose variables nobody reads behind them."""
        before, self.seen = self.seen, {}
        start = len(self.lines)
        body()
        if len(self.lines) == start: self.put("pass")
        self.seen = before

    def write_items(self, loop: Loop, h: str) -> None:
        """Values that are stored, and folds, of one loop."""
        items = [(number, self.loops.items[number]) for number in loop.items]
        folds = [(number, item.node) for number, item in items if item.node.op == "fold"]
        for number, node in folds:
            for k, unit in enumerate(node.extra.unit): self.put(f"a{number}_{k} = in_all_lanes({self.literal(unit)})")

        def body(at: str, lanes: str) -> None:
            for number, item in items:
                if item.node.op == "fold": self.merge_block(number, item.node, h, at, lanes)
                else: self.store(number, item.node, h, at, lanes)
        self.columns(loop.cols, body)
        for number, node in folds: self.close_fold(number, node, h)

    def store(self, number: int, node: RowValue, h: str, at: str, lanes: str) -> None:
        """A value where it is kept."""
        found = self.lanes(node, h, at, lanes, own=True)
        if self.is_variable(node): self.put(f"t{number}_0 = first_lane({found})")
        else: self.keep(found, node, h, at, lanes)

    def merge_block(self, number: int, node: RowValue, h: str, at: str, lanes: str) -> None:
        """16 more numbers into the carriers of a fold, the unit where there are none."""
        merging: Merging = node.extra
        fresh = []
        for each, unit in zip(node.args, merging.unit, strict=True):
            found = self.lanes(each, h, at, lanes)
            fresh.append(found if lanes == "None" else self.name(f"cut({found}, {lanes}, {self.literal(unit)})"))
        if not merging.commutative: fresh = self.merge_lanes(merging, fresh)
        held = [f"a{number}_{k}" for k in range(len(fresh))]
        for name, found in zip(held, self.graph(merging.merge, [*held, *fresh]), strict=True):
            self.put(f"{name} = {found}")

    def merge_lanes(self, merging: Merging, carriers: list[str]) -> list[str]:
        """Neighbours, then pairs of them, and so on: the first lane has all, in order."""
        for distance in LANE_STEPS:
            behind = [self.name(f"down{distance}({each})") for each in carriers]
            carriers = self.graph(merging.merge, [*carriers, *behind])
        return carriers

    def close_fold(self, number: int, node: RowValue, h: str) -> None:
        """One carrier of 16."""
        found = [f"a{number}_{k}" for k in range(len(node.args))]
        if node.extra.commutative: found = self.merge_lanes(node.extra, found)
        self.written_columns = 0, 1
        for k, each in enumerate(found):
            if node.heads == 1: self.put(f"t{number}_{k} = first_lane({each})")
            else: self.keep(each, node, h, "0", "1", part=k)

    def write_beside(self, node: RowValue, h: str) -> None:
        """Columns of several values, side by side."""
        for part, start in zip(node.args, node.extra, strict=True):
            def body(at: str, lanes: str, part: RowValue = part, start: int = start) -> None:
                self.keep(self.lanes(part, h, at, lanes), node, h, at, lanes, start)
            self.columns(part.cols, body)

    def write_place(self, node: RowValue, h: str) -> None:
        """Columns among zeros."""
        def zero(at: str, lanes: str) -> None:
            self.keep(f"in_all_lanes({self.literal(0.0)})", node, h, at, lanes)

        def body(at: str, lanes: str) -> None:
            self.keep(self.lanes(node.args[0], h, at, lanes), node, h, at, lanes, node.extra)
        self.columns(node.cols, zero)
        self.columns(node.args[0].cols, body)

    def write_total(self, node: RowValue, h: str) -> None:
        """All heads, added up."""
        heads = self.size(node.args[0].heads)

        def body(at: str, lanes: str) -> None:
            self.put(f"a = in_all_lanes({self.literal(0.0)})")
            self.put(f"for k in range({heads}):")
            self.indent += 1
            self.block(lambda: self.put(f"a = a + {self.value(node.args[0], 'k', at, lanes)}"))
            self.indent -= 1
            self.keep("a", node, "0", at, lanes)
        self.columns(node.cols, body)

    def write_times(self, node: RowValue, h: str) -> None:
        """A row times a matrix: sums of 16 columns at a time."""
        x, (array, stacked) = node.args[0], node.extra
        n, p = self.size(x.cols), self.size(node.cols)

        def body(at: str, lanes: str) -> None:
            self.put(f"a = in_all_lanes({self.literal(0.0)})")
            own = "0" if x.heads == 1 else h
            matrix = scaled(scaled(h, n), p) if stacked else "0"
            self.put(f"for i in range({n}):")
            self.indent += 1
            alone = self.is_variable(x) and id(x) in self.kept
            at_x = "i" if x.cols > 1 else "0"
            one = f"t{self.kept[id(x)]}_0" if alone else f"one_number({self.address(x, own, at_x)})"
            self.put(f"a = fused({one}, get({join_sum(f'c.c{array}', matrix, f'i * {p} + {at}')}, {lanes}), a)")
            self.indent -= 1
            self.keep("a", node, h, at, lanes)
        self.columns(node.cols, body)

    # ---- the whole

    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        values = [f"x{k}{what}" for k in range(self.values) for what in ("", "_row", "_head")]
        return [*values, *(f"c{k}" for k in range(self.arrays)), "out", "out_row", "out_head", "room", "apart", "T",
                "rows", *self.sizes.values(), *(name for _, name in self.places.values())]

    def whole(self) -> str:
        """All of the text."""
        sizes = [f"{name} = c.{name}" for name in self.sizes.values()]
        rooms = [f"{name} = base + c.{name}" for _, name in self.places.values()]
        rows = [f"x{k} = c.x{k} + 4 * row * c.x{k}_row" for k in range(self.values)]
        head = [*self.constants(), "", f"RECORD = np.dtype(words({' '.join(self.fields())!r}))", "", "",
                "def rows_of_term(item, worker, arguments):", "    c = record(arguments, RECORD)"]
        inside = [*sizes, *(["base = c.room + worker * c.apart", *rooms] if rooms else [])]
        loop = ["    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):",
                *(f"        {each}" for each in (*rows, "out = c.out + 4 * row * c.out_row"))]
        lines = [line[4:] for line in self.lines]
        return "\n".join([*head, *(f"    {each}" for each in inside), *loop, *lines, ""])


def plus(one: str, other: str) -> str:
    """A sum of two words, either of which may be nothing."""
    parts = [each for each in (one, other) if each not in ("", "0")]
    return " + ".join(parts) or "0"


def scaled(one: str, by: str) -> str:
    return "0" if "0" in (one, by) else one if by == "1" else by if one == "1" else f"{one} * {by}"


def join_sum(base: str, *offsets: str) -> str:
    """An address, so many numbers behind a base."""
    inside = " + ".join(each for each in offsets if each not in ("", "0"))
    return f"{base} + 4 * ({inside})" if inside else base
