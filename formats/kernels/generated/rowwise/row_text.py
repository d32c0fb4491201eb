"""The text of a row-wise kernel: Python over vectors of 16 numbers, as in kernels written by hand.

Sizes above 8 are words of its record, so one text serves all widths; columns beyond the last whole vector are a vector
of fewer lanes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from formats.kernels.generated.rowwise.row_expressions import OPERANDS, RowExpressions, join_sum, plus, scaled
from formats.kernels.generated.rowwise.row_loops import IN_PLACE_OPS, Loop, Loops
from formats.kernels.generated.rowwise.row_values import Merging, RowValue
from formats.kernels.generated.rowwise.stored import StoredColumns
from formats.kernels.generated.rowwise.vector_text import IN_TEXT

LANE_STEPS = 1, 2, 4, 8  # distances of lanes that are merged, one after another


@dataclass
class RowText(RowExpressions):
    """Text of a row-wise kernel: its lines, and the layout of the record of a call."""

    root: RowValue
    values: int
    arrays: int
    carried: bool = False  # rows before the first new one are those of states
    places: dict[tuple[int, int], tuple[int, str]] = field(default_factory=dict)  # of a kept value: offset and word
    room: int = 0
    written_heads: int = 1  # heads of the loop that is being written
    written_columns: tuple[int, int] = (0, 0)  # columns of that loop: the first, and the end

    def __post_init__(self) -> None:
        self.shifts = [node for node in self.root.walk() if node.op == "shift"]
        self.loops = Loops(self.root)
        self.kept = self.loops.number
        for number, entry in enumerate(self.loops.items):
            self.reserve(number, entry.node)
        for loop in self.loops.loops:
            self.write_loop(loop)
        self.check_stored()

    def check_stored(self) -> None:
        """Raise ValueError if a number of the result, or of a kept value, is stored by no line."""
        for entry in self.loops.items:
            node = entry.node
            if self.is_variable(node):
                continue
            parts = len(node.args) if node.op == "fold" and node is not self.loops.root else 1
            for part in range(parts):
                self.stores.check(self.word(node, part), node.heads, node.cols)

    def reserve(self, number: int, node: RowValue) -> None:
        """Reserve scratch for an item; none for single numbers of one head, which are variables, nor for the result."""
        if node is self.loops.root or self.is_variable(node):
            return
        parts = len(node.args) if node.op == "fold" else 1
        for k in range(parts):
            self.places[id(node), k] = self.room, f"s{len(self.places)}"
            self.room += 4 * -(-(node.heads * node.cols + 16) // 16) * 16

    # ---- where numbers are

    def is_variable(self, node: RowValue) -> bool:
        """True if a kept value is one number of a row, which its loop leaves in a variable."""
        return node.heads == 1 and node.cols == 1 and node.op not in IN_PLACE_OPS and node is not self.loops.root

    def address(self, node: RowValue, h: str, at: str, part: int = 0) -> str:
        """Return the address at which the number of a head and a column of an operand or a kept value is read."""
        return super().address(node, h, at) if node.op in OPERANDS else self.place(node, h, at, part)

    def place(self, node: RowValue, h: str, at: str, part: int = 0) -> str:
        """Return the address at which the number of a head and a column of a kept value is stored: never in an operand,
        even if the result is an operand as it is."""
        step = self.row_step(h) if node is self.loops.root else scaled(h, self.size(node.cols))
        return join_sum(self.word(node, part), step, at)

    def word(self, node: RowValue, part: int = 0) -> str:
        """Return the word for the place of a kept value: the result, or scratch."""
        return "out" if node is self.loops.root else self.places[id(node), part][1]

    def keep(self, vector: str, node: RowValue, h: str, at: str, lanes: str, start: int = 0, part: int = 0) -> None:
        """Store a vector as columns of a kept value, from a column on."""
        place = self.place(node, h, plus(at, self.size(start) if start else ""), part)
        self.put(f"keep({vector}, {place}, {lanes})")
        first, last = self.written_columns
        base, _, _ = place.partition(" ")
        self.stores.add(base, StoredColumns(self.written_heads, start + first, start + last))

    def row_step(self, h: str) -> str:
        """Return the step to a head of the result, which stands beside the one before if heads are joined."""
        joined = self.loops.root is not self.root
        return scaled(h, self.size(self.loops.root.cols) if joined else "c.out_head")

    def stored(self, node: RowValue, h: str, at: str, lanes: str, part: int = 0) -> str:
        """Return the variable of a kept value or an operand at a place."""
        if self.is_variable(node) and id(node) in self.kept:
            return f"t{self.kept[id(node)]}_{part}"
        return super().stored(node, h, at, lanes, part)

    # ---- loops

    def write_loop(self, loop: Loop) -> None:
        """Write a loop over heads, and over columns within them."""
        items = [(number, self.loops.items[number]) for number in loop.items]
        body = {
            "beside": self.write_beside,
            "place": self.write_place,
            "total": self.write_total,
            "times": self.write_times,
        }.get(items[0][1].node.op)
        heads = loop.heads > 1
        if heads:
            self.put(f"for h in range({self.size(loop.heads)}):")
            self.indent += 1
        h = "h" if heads else "0"
        self.written_heads = loop.heads
        if body:
            body(items[0][1].node, h)
        else:
            self.write_items(loop, h)
        if heads:
            self.indent -= 1

    def columns(self, cols: int, body: Callable[[str, str], None]) -> None:
        """Write a body for each whole vector of `cols` columns, and once more for the remaining columns."""
        whole = cols // 16 * 16
        if cols <= IN_TEXT:
            return self.block_of((0, cols), partial(body, "0", str(cols)))
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
        """Write a block that runs for each vector of these columns."""
        self.written_columns = columns
        self.block(body)

    def write_items(self, loop: Loop, h: str) -> None:
        """Write the stored values and the folds of one loop."""
        items = [(number, self.loops.items[number]) for number in loop.items]
        folds = [(number, entry.node) for number, entry in items if entry.node.op == "fold"]
        for number, node in folds:
            for k, unit in enumerate(node.extra.unit):
                self.put(f"a{number}_{k} = in_all_lanes({self.literal(unit)})")

        def body(at: str, lanes: str) -> None:
            for number, entry in items:
                if entry.node.op == "fold":
                    self.merge_block(number, entry.node, h, at, lanes)
                else:
                    self.store(number, entry.node, h, at, lanes)

        self.columns(loop.cols, body)
        for number, node in folds:
            self.close_fold(number, node, h)

    def store(self, number: int, node: RowValue, h: str, at: str, lanes: str) -> None:
        """Store a value at its place."""
        vector = self.lanes(node, h, at, lanes, own=True)
        if self.is_variable(node):
            self.put(f"t{number}_0 = first_lane({vector})")
        else:
            self.keep(vector, node, h, at, lanes)

    def merge_block(self, number: int, node: RowValue, h: str, at: str, lanes: str) -> None:
        """Merge 16 more numbers into the carriers of a fold; lanes without a number hold the unit."""
        merging: Merging = node.extra
        fresh = []
        for arg, unit in zip(node.args, merging.unit, strict=True):
            vector = self.lanes(arg, h, at, lanes)
            fresh.append(vector if lanes == "None" else self.name(f"cut({vector}, {lanes}, {self.literal(unit)})"))
        if not merging.commutative:
            fresh = self.merge_lanes(merging, fresh)
        held = [f"a{number}_{k}" for k in range(len(fresh))]
        for name, vector in zip(held, self.graph(merging.merge, [*held, *fresh]), strict=True):
            self.put(f"{name} = {vector}")

    def merge_lanes(self, merging: Merging, carriers: list[str]) -> list[str]:
        """Merge neighbours, then pairs of them, and so on: the first lane holds all, in order."""
        for distance in LANE_STEPS:
            behind = [self.name(f"down{distance}({carrier})") for carrier in carriers]
            carriers = self.graph(merging.merge, [*carriers, *behind])
        return carriers

    def close_fold(self, number: int, node: RowValue, h: str) -> None:
        """Merge the 16 lanes of a fold's carriers into one, and store it."""
        carriers = [f"a{number}_{k}" for k in range(len(node.args))]
        if node.extra.commutative:
            carriers = self.merge_lanes(node.extra, carriers)
        self.written_columns = 0, 1
        for k, carrier in enumerate(carriers):
            if node.heads == 1:
                self.put(f"t{number}_{k} = first_lane({carrier})")
            else:
                self.keep(carrier, node, h, "0", "1", part=k)

    def write_beside(self, node: RowValue, h: str) -> None:
        """Write the columns of several values, side by side."""
        for part, start in zip(node.args, node.extra, strict=True):

            def body(at: str, lanes: str, part: RowValue = part, start: int = start) -> None:
                self.keep(self.lanes(part, h, at, lanes), node, h, at, lanes, start)

            self.columns(part.cols, body)

    def write_place(self, node: RowValue, h: str) -> None:
        """Write columns among zeros."""

        def zero(at: str, lanes: str) -> None:
            self.keep(f"in_all_lanes({self.literal(0.0)})", node, h, at, lanes)

        def body(at: str, lanes: str) -> None:
            self.keep(self.lanes(node.args[0], h, at, lanes), node, h, at, lanes, node.extra)

        self.columns(node.cols, zero)
        self.columns(node.args[0].cols, body)

    def write_total(self, node: RowValue, h: str) -> None:
        """Write the sum over all heads."""
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
        """Write a row times a matrix: sums of 16 columns at a time."""
        x, (array, stacked) = node.args[0], node.extra
        n, p = self.size(x.cols), self.size(node.cols)

        def body(at: str, lanes: str) -> None:
            self.put(f"a = in_all_lanes({self.literal(0.0)})")
            head = "0" if x.heads == 1 else h
            matrix = scaled(scaled(h, n), p) if stacked else "0"
            self.put(f"for i in range({n}):")
            self.indent += 1
            alone = self.is_variable(x) and id(x) in self.kept
            at_x = "i" if x.cols > 1 else "0"
            one = f"t{self.kept[id(x)]}_0" if alone else f"one_number({self.address(x, head, at_x)})"
            self.put(f"a = fused({one}, get({join_sum(f'c.c{array}', matrix, f'i * {p} + {at}')}, {lanes}), a)")
            self.indent -= 1
            self.keep("a", node, h, at, lanes)

        self.columns(node.cols, body)

    # ---- the whole

    def fields(self) -> list[str]:
        """Return the words of a call's record, in order."""
        values = [f"x{k}{what}" for k in range(self.values) for what in ("", "_row", "_head")]
        return [
            *values,
            *(f"c{k}" for k in range(self.arrays)),
            *self.batch_fields(),
            "out",
            "out_row",
            "out_head",
            "room",
            "apart",
            "T",
            "rows",
            *self.sizes.values(),
            *(name for _, name in self.places.values()),
        ]

    def batch_fields(self) -> list[str]:
        """Return the words that tell which rows are before a row."""
        if not self.carried:
            return ["positions"] * bool(self.shifts)
        return ["ages", "sources", *(f"held{k}{what}" for k in self.shifted_values for what in ("", "_row", "_head"))]

    @property
    def shifted_values(self) -> list[int]:
        """The numbers of the values of which it reads rows before."""
        return sorted({node.args[0].extra for node in self.shifts})

    def rows_carried(self) -> list[str]:
        """Return the lines that find the rows before a row: among the new rows, or in the state of its sequence, which
        holds the last rows side by side in every head."""
        lines = [f"{word} = longs(c.{word}s + 8 * row, 1)[0]" for word in ("age", "source")]
        for node in self.shifts:
            k, lag, cols = node.args[0].extra, node.extra, self.size(node.cols)
            there = f"c.held{k} + 4 * (source * c.held{k}_row + c.held{k}_head - ({lag} - age) * {cols})"
            lines.append(f"x{k}_{lag} = c.x{k} + 4 * (row - {lag}) * c.x{k}_row if age >= {lag} else {there}")
            lines.append(f"x{k}_{lag}_head = c.x{k}_head if age >= {lag} else c.held{k}_head")
        return [*dict.fromkeys(lines)]

    def rows_before(self) -> list[str]:
        """Return the lines that find the rows before a row: the address of each that is read, the row itself where its
        sequence has none, and a vector that is not 0 where it has."""
        if self.carried:
            return self.rows_carried()
        places = dict.fromkeys((node.args[0].extra, node.extra) for node in self.shifts)
        found = ["position = longs(c.positions + 8 * row, 1)[0]"] if places else []
        for lag in dict.fromkeys(lag for _, lag in places):
            found.append(f"back{lag} = row - {lag} if position >= {lag} else row")
            found.append(f"has{lag} = in_all_lanes(ONE if position >= {lag} else ZERO)")
        return [*found, *(f"x{k}_{lag} = c.x{k} + 4 * back{lag} * c.x{k}_row" for k, lag in places)]

    def whole(self) -> str:
        """Return the whole text."""
        sizes = [f"{name} = c.{name}" for name in self.sizes.values()]
        rooms = [f"{name} = base + c.{name}" for _, name in self.places.values()]
        rows = [f"x{k} = c.x{k} + 4 * row * c.x{k}_row" for k in range(self.values)]
        inside = [*sizes, *(["base = c.room + worker * c.apart", *rooms] if rooms else [])]
        loop = [
            "    for row in range(item * c.rows, min((item + 1) * c.rows, c.T)):",
            *(f"        {line}" for line in (*rows, *self.rows_before(), "out = c.out + 4 * row * c.out_row")),
        ]
        lines = [line[4:] for line in self.lines]
        return self.framed("rows_of_term", self.fields(), [*(f"    {line}" for line in inside), *loop, *lines])
