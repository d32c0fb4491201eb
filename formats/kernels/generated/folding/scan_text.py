"""The text of a kernel that merges the rows of a sequence in order, column by column: 16 columns a vector, a few
vectors in registers, one pass over the rows."""

from dataclasses import dataclass, field
from typing import NamedTuple

from formats.kernels.generated.folding.fold_plan import Folding, MergeStep
from formats.kernels.generated.rowwise.row_expressions import RowExpressions
from formats.kernels.generated.rowwise.row_values import RowValue
from formats.kernels.generated.rowwise.scalars import NumberGraph
from formats.kernels.generated.rowwise.stored import StoredColumns

ABREAST_CARRIERS = 4  # carriers of vectors of columns in registers at a time


class ScanPlan(NamedTuple):
    """Rows merged in order: the expressions of both numbers of a pair, over so many values and arrays, and the merge.
    `whole`: each row gets the merge of all rows of its sequence."""

    left: RowValue
    right: RowValue
    folding: Folding
    values: int
    arrays: int
    whole: bool

    @property
    def heads(self) -> int:
        return max(self.left.heads, self.right.heads)

    @property
    def cols(self) -> int:
        return max(self.left.cols, self.right.cols)


def live_carriers(step: MergeStep) -> list[int]:
    """Return the numbers of a carrier on the left that results need: those that `finish` reads, and those from which
    these are merged."""
    live: set[int] = set()
    fresh = {int(node.value) for node in step.folding.finish.walk() if node.op == "input"}
    while fresh:
        live |= fresh
        read = {id(node) for node in NumberGraph(0, tuple(step.merged[k] for k in live)).walk()}
        fresh = {k for k, carrier in enumerate(step.carriers) if id(carrier) in read} - live
    return sorted(live)


@dataclass
class ScanText(RowExpressions):
    """Text of a kernel. An item is a range of columns of a head of a sequence."""

    plan: ScanPlan
    indent: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        self.step = MergeStep(self.plan.folding)
        self.live = live_carriers(self.step)
        self.shared = [*self.step.by_score] if self.plan.left.cols == 1 else []
        self.many = max(1, ABREAST_CARRIERS // max(1, len({*self.live} - {*self.shared})))
        self.write()

    def write(self) -> None:
        """Write an item: whole vectors of its columns, a few at a time, and the rest one by one."""
        self.put("at, head = item // (c.parts * c.heads), item // c.parts % c.heads")
        self.put("begins, col = longs(c.starts, c.S + 1), item % c.parts * c.columns")
        self.put("begin, end, last = begins[at], begins[at + 1], min(col + c.columns, c.p)")
        self.within(f"while col + {16 * self.many} <= last:", lambda: self.write_columns(self.many, "None"))
        self.within("while col < last:", self.write_last)

    def write_last(self) -> None:
        self.put("lanes = min(16, last - col)")
        self.write_columns(1, "lanes")

    def write_columns(self, many: int, lanes: str) -> None:
        """Write a few vectors of columns: empty carriers, then the rows, each merged and stored."""
        names = [{k: f"a{0 if k in self.shared else n}_{k}" for k in self.live} for n in range(many)]
        for name, k in {name: k for carriers in names for k, name in carriers.items()}.items():
            self.put(f"{name} = in_all_lanes({self.literal(self.plan.folding.unit[k])})")
        self.within("for row in range(begin, end):", lambda: self.block(lambda: self.write_row(names, lanes)))
        if self.plan.whole:
            finished = [self.finish(carriers) for carriers in names]
            self.within("for row in range(begin, end):", lambda: self.keep_row(finished, lanes))
        self.stores.check("out", 1, 16 * many)
        self.put(f"col += {16 * many}")

    def write_row(self, names: list[dict[int, str]], lanes: str) -> None:
        """Write the merge of a row into the carriers, and its result unless all rows have the same."""
        for k in range(self.plan.values):
            self.put(f"x{k} = c.x{k} + 4 * row * c.x{k}_row")
        fresh: dict[str, str] = {}
        for n, carriers in enumerate(names):
            fresh |= self.merge(n, carriers, lanes)
        self.assign([*fresh], [*fresh.values()])
        if not self.plan.whole:
            self.keep_row([self.finish(carriers) for carriers in names], lanes)

    def merge(self, n: int, carriers: dict[int, str], lanes: str) -> dict[str, str]:
        """Return the variables of the carriers of a vector of columns after this row, by the carriers' names."""
        step, at = self.step, f"col + {16 * n}" if n else "col"
        held = {id(step.carriers[k]): name for k, name in carriers.items()}
        held[id(step.score)] = self.value(self.plan.left, "head", at, lanes)
        held[id(step.factor)] = self.value(self.plan.right, "head", at, lanes)
        merged = self.emit([step.merged[k] for k in carriers], held)
        return dict(zip(carriers.values(), map(self.vector, merged), strict=True))

    def finish(self, carriers: dict[int, str]) -> str:
        """Return the variable of the finished carriers of a vector of columns."""
        count = len(self.plan.folding.unit)
        [finished] = self.graph(self.plan.folding.finish, [carriers.get(k, "") for k in range(count)])
        return self.vector(finished)

    def keep_row(self, finished: list[str], lanes: str) -> None:
        """Write the result of a row."""
        self.put("out = c.out + 4 * (row * c.out_row + head * c.out_head + col)")
        for n, vector in enumerate(finished):
            self.put(f"keep({vector}, out + {64 * n}, {lanes})")
            self.stores.add("out", StoredColumns(1, 16 * n, 16 * n + 16))

    @property
    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        values = [f"x{k}{what}" for k in range(self.plan.values) for what in ("", "_row", "_head")]
        arrays = [f"c{k}" for k in range(self.plan.arrays)]
        return [*values, *arrays, *"out out_row out_head starts S heads parts columns p".split(), *self.sizes.values()]

    def whole(self) -> str:
        """Return the whole text."""
        return "\n".join(
            [
                *self.constants(),
                "",
                f"RECORD = np.dtype(words({' '.join(self.fields)!r}))",
                "",
                "",
                "def rows_in_order(item, worker, arguments):",
                "    c = record(arguments, RECORD)",
                *(f"    {name} = c.{name}" for name in self.sizes.values()),
                *self.lines,
                "",
            ]
        )
