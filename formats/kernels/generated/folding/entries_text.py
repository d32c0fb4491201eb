"""The text of a kernel that merges rows by scores which are the same for all columns: the entries of a sparse matrix,
or one fixed score for the rows that a query sees. It works on vectors of 16 columns, row after row."""

from dataclasses import dataclass, field

from formats.kernels.generated.folding.fold_plan import FoldPlan, MergeStep
from formats.kernels.generated.folding.fold_sizes import CHUNK_COLUMNS, UNIT_SIDE
from formats.kernels.generated.rowwise.scalars import NumberGraph
from formats.kernels.generated.rowwise.stored import StoredColumns, Stores
from formats.kernels.generated.rowwise.vector_text import VectorText

ROWS_OF_ITEM, ABREAST_VECTORS = 16, 4  # rows of an item; vectors of columns in registers at a time


@dataclass
class EntriesText(VectorText):
    """Text of a kernel that merges the rows named by the entries of a sparse matrix."""

    plan: FoldPlan
    places: dict[str, int] = field(default_factory=dict)
    indent: int = field(default=1, kw_only=True)
    name_of_row = "at[e]"  # the text's expression for the row that is merged

    def __post_init__(self) -> None:
        self.step = MergeStep(self.plan.folding, self.plan.sole)
        self.many = max(1, ABREAST_VECTORS // max(1, len(self.step.by_factor)))
        self.room = 64 * self.plan.folding.width
        self.write()

    def write(self) -> None:
        """Write an item: 16 rows of a head."""
        word = self.plan.right.word
        self.put("head = item % c.heads")
        self.put("begins, at, p = longs(c.starts, c.T + 1), longs(c.at, c.count), c.p")
        self.put(f"y = c.{word} + 4 * (head // c.{word}_of * c.{word}_head)")
        self.put(f"begin = item // c.heads * {ROWS_OF_ITEM}")

        def row() -> None:
            self.put("low, high = begins[row], begins[row + 1]")
            self.put("out = c.out + 4 * (row * c.out_row + head * c.out_head)")
            self.write_row()

        self.within(f"for row in range(begin, min(begin + {ROWS_OF_ITEM}, c.T)):", row)

    def write_row(self) -> None:
        """Write the loops over the p columns of a row: merge the entries low to high of the rows at y, and store the
        result at out."""
        self.put("col = 0")
        self.within(f"while col + {16 * self.many} <= p:", lambda: self.write_columns(self.many, "None"))
        self.within("while col < p:", self.write_last)

    def write_last(self) -> None:
        self.put("lanes = min(16, p - col)")
        self.write_columns(1, "lanes")

    def score(self) -> str:
        return self.name("one_number(c.numbers + 4 * e)")

    def write_columns(self, many: int, lanes: str) -> None:
        """Write a few vectors of columns, merged over all entries of a row; the parts that depend on scores alone are
        computed once for all columns."""
        step, folding = self.step, self.plan.folding
        names = [[f"a{n if k in step.by_factor else ''}_{k}" for k in range(len(folding.unit))] for n in range(many)]
        units = {name: unit for carriers in names for name, unit in zip(carriers, folding.unit, strict=True)}
        for name, unit in units.items():
            self.put(f"{name} = in_all_lanes({self.literal(unit)})")

        def entry() -> None:
            self.put(f"x = y + 4 * ({self.name_of_row} * c.{self.plan.right.word}_row + col)")
            needed = {id(node) for node in NumberGraph(0, tuple(step.merged)).walk()}
            shared = {id(step.carriers[k]): names[0][k] for k in step.by_score}
            if id(step.score) in needed and step.score.op == "input":
                shared[id(step.score)] = self.score()
            if id(step.index) in needed:
                shared[id(step.index)] = self.name(f"in_all_lanes(f4({self.name_of_row}))")
            of_scores = self.emit([*(step.merged[k] for k in step.by_score), *step.stored], shared)
            fresh_carriers = {
                names[0][k]: self.vector(value) for k, value in zip(step.by_score, of_scores, strict=False)
            }
            for n, carriers in enumerate(names):
                held = shared | {id(step.carriers[k]): carriers[k] for k in step.by_factor}
                held[id(step.factor)] = self.name(f"get(x + {64 * n}, {lanes})")
                of_factors = self.emit([step.merged[k] for k in step.by_factor], held)
                fresh_carriers |= {
                    carriers[k]: self.vector(fresh) for k, fresh in zip(step.by_factor, of_factors, strict=True)
                }
            self.assign([*fresh_carriers], [*fresh_carriers.values()])

        self.within("for e in range(low, high):", entry)
        self.stores = Stores()  # only the columns that this call writes
        for n, carriers in enumerate(names):
            self.write_found(self.graph(folding.finish, carriers), 16 * n, lanes)
        self.stores.check("out", 1, 16 * many * folding.width)
        self.put(f"col += {16 * many}")

    def write_found(self, found: list[str], behind: int, lanes: str) -> None:
        """Store the finished numbers of a few columns, several numbers of a column side by side."""
        self.stores.add("out", StoredColumns(1, len(found) * behind, len(found) * (behind + 16)))
        if len(found) == 1:
            self.put(f"keep({self.vector(found[0])}, out + 4 * (col + {behind}), {lanes})")
            return
        self.put("kept = c.room + worker * c.apart")
        for k, number in enumerate(found):
            self.put(f"keep({self.vector(number)}, kept + {64 * k}, None)")
        width, count = len(found), "16" if lanes == "None" else lanes
        self.put(
            f"line, numbers = floats(out + 4 * {width} * (col + {behind}), {width} * {count}), "
            f"floats(kept, 16 * {width})"
        )

        def spread() -> None:
            for k in range(width):
                self.put(f"line[{width} * i + {k}] = numbers[{16 * k} + i]")

        self.within(f"for i in range({count}):", spread)

    @property
    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        word = self.plan.right.word
        return [
            word,
            f"{word}_row",
            f"{word}_head",
            f"{word}_of",
            *"out out_row out_head starts at numbers count T heads p room apart".split(),
        ]

    def whole(self) -> str:
        """Return the whole text."""
        return self.framed("fold_of_entries", self.fields, self.lines)


class WindowText(EntriesText):
    """Text of a kernel that merges the rows that a query sees, which are consecutive."""

    name_of_row = "(start + e)"

    def write(self) -> None:
        """Write an item: 64 queries of a head of a sequence, and up to 192 columns."""
        word, width = self.plan.right.word, self.plan.folding.width
        self.put(f"part, head = item % c.chunks * {CHUNK_COLUMNS}, item // c.chunks % c.heads")
        self.put("start, length, query = unit_at(c.starts, c.S, item // (c.chunks * c.heads))")
        self.put("if query < 0: return")
        self.put(f"y = c.{word} + 4 * (head // c.{word}_of * c.{word}_head + part)")
        self.put(f"p = min({CHUNK_COLUMNS}, c.p - part)")
        if self.plan.sole is None:
            heads = [
                self.name(f"one_number(c.{leaf.left.word} + 4 * {'head' if leaf.left.heads > 1 else 0})")
                for leaf in self.plan.leaves
            ]
            [score] = self.graph(self.plan.score, heads)
            self.put(f"score = {self.vector(score)}")

        def row() -> None:
            self.put("low, high = max(0, row - c.behind), min(length, row + c.ahead + 1)")
            self.put(f"out = c.out + 4 * ((start + row) * c.out_row + head * c.out_head + part * {width})")
            self.write_row()

        self.within(f"for row in range(query, min(query + {UNIT_SIDE}, length)):", row)

    def score(self) -> str:
        return "score"

    @property
    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        return [*self.plan.words, *"out out_row out_head starts S heads chunks behind ahead p room apart".split()]
