"""The text of a kernel that merges the rows that a sparse matrix names: vectors of 16 columns, entry after entry."""
from dataclasses import dataclass, field

from formats.folding.fold_plan import FoldPlan, MergeStep
from formats.rowwise.scalars import NumberGraph
from formats.rowwise.vector_text import VectorText

ROWS_OF_ITEM, ABREAST_VECTORS = 16, 4                       # rows of an item; vectors of columns in registers at a time


@dataclass
class EntriesText(VectorText):
    """What is written."""
    plan: FoldPlan
    indent: int = field(default=1, kw_only=True)
    room: int = 0

    def __post_init__(self) -> None:
        self.step = MergeStep(self.plan.folding)
        self.many = max(1, ABREAST_VECTORS // len(self.plan.folding.unit))
        self.room = 64 * self.plan.folding.width
        right = self.plan.right
        self.put("head = item % c.heads")
        self.put("begins, at = longs(c.starts, c.T + 1), longs(c.at, c.count)")

        def row() -> None:
            self.put("low, high, col = begins[row], begins[row + 1], 0")
            self.put(f"y = c.{right.word} + 4 * (head // c.{right.word}_of * c.{right.word}_head)")
            self.put("out = c.out + 4 * (row * c.out_row + head * c.out_head)")
            self.within(f"while col + {16 * self.many} <= c.p:", lambda: self.write_columns(self.many, "None"))
            self.within("while col < c.p:", self.write_last)
        self.put(f"begin = item // c.heads * {ROWS_OF_ITEM}")
        self.within(f"for row in range(begin, min(begin + {ROWS_OF_ITEM}, c.T)):", row)

    def write_last(self) -> None:
        self.put("lanes = min(16, c.p - col)")
        self.write_columns(1, "lanes")

    def write_columns(self, many: int, lanes: str) -> None:
        """A few vectors of columns, merged over all entries of a row."""
        step, folding = self.step, self.plan.folding
        names = [[f"a{n}_{k}" for k in range(len(folding.unit))] for n in range(many)]
        for each in names:
            for name, unit in zip(each, folding.unit, strict=True):
                self.put(f"{name} = in_all_lanes({self.literal(unit)})")

        def entry() -> None:
            self.put(f"x = y + 4 * (at[e] * c.{self.plan.right.word}_row + col)")
            needed = {id(each) for each in NumberGraph(0, tuple(step.merged)).walk()}
            shared = {id(step.score): self.name("one_number(c.numbers + 4 * e)")} if id(step.score) in needed else {}
            if id(step.index) in needed: shared[id(step.index)] = self.name("in_all_lanes(f4(at[e]))")
            for n, each in enumerate(names):
                held = shared | {id(part): name for part, name in zip(step.carriers, each, strict=True)}
                held[id(step.factor)] = self.name(f"get(x + {64 * n}, {lanes})")
                self.assign(each, [*map(self.vector, self.emit(step.merged, held))])
        self.within("for e in range(low, high):", entry)
        for n, each in enumerate(names): self.write_found(self.graph(folding.finish, each), 16 * n, lanes)
        self.put(f"col += {16 * many}")

    def write_found(self, found: list[str], behind: int, lanes: str) -> None:
        """What is finished, several numbers of a column side by side."""
        if len(found) == 1:
            self.put(f"keep({self.vector(found[0])}, out + 4 * (col + {behind}), {lanes})")
            return
        self.put("kept = c.room + worker * c.apart")
        for k, each in enumerate(found): self.put(f"keep({self.vector(each)}, kept + {64 * k}, None)")
        width, count = len(found), "16" if lanes == "None" else lanes
        self.put(f"line, numbers = floats(out + 4 * {width} * (col + {behind}), {width} * {count}), "
                 f"floats(kept, 16 * {width})")

        def spread() -> None:
            for k in range(width): self.put(f"line[{width} * i + {k}] = numbers[{16 * k} + i]")
        self.within(f"for i in range({count}):", spread)

    @property
    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        word = self.plan.right.word
        return [word, f"{word}_row", f"{word}_head", f"{word}_of",
                *"out out_row out_head starts at numbers count T heads p room apart".split()]

    def whole(self) -> str:
        """All of the text."""
        return "\n".join([*self.constants(), "", f"RECORD = np.dtype(words({' '.join(self.fields)!r}))", "", "",
                          "def fold_of_entries(item, worker, arguments):", "    c = record(arguments, RECORD)",
                          *self.lines, ""])
