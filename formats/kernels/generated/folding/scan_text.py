"""The text of a kernel that merges the rows of a sequence in order, column by column: 16 columns a vector, one pass
over the rows, which are read as they lie in memory. Carriers stay in the scratch of a worker from row to row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from formats.kernels.generated.folding.fold_plan import Folding, MergeStep
from formats.kernels.generated.rowwise.row_expressions import RowExpressions
from formats.kernels.generated.rowwise.row_values import ABREAST, RowValue
from formats.kernels.generated.rowwise.scalars import NumberGraph
from formats.kernels.generated.rowwise.stored import StoredColumns

ABREAST_CARRIERS = 4  # carriers of vectors of columns in registers at a time
FIXED_WORDS = "out out_row out_head room apart starts S parts groups columns share step heads p".split()
CARRIED_WORDS = "states states_row states_head sources".split()


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

    @property
    def continues(self) -> bool:
        """True if its last result is all that later rows need: it is the one carrier that they read, and each column
        has its own."""
        step = MergeStep(self.folding)
        live, finish = live_carriers(step), self.folding.finish.outputs[0]
        alone = self.left.cols == 1 and self.cols > 1 and set(live) <= {*step.by_score}
        return not self.whole and not alone and finish.op == "input" and [int(finish.value)] == live


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
    """Text of a kernel. An item is a range of heads, or of columns of a head, of a sequence. `carries`: sequences begin
    with the rows of states, the last of which is their carrier."""

    plan: ScanPlan
    carries: bool = False
    indent: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        self.step = MergeStep(self.plan.folding)
        self.live = live_carriers(self.step)
        alone = self.plan.left.cols == 1  # a number of the left then serves all columns
        self.shared = [k for k in self.live if alone and k in self.step.by_score]
        self.apart = [k for k in self.live if k not in self.shared]
        self.many = max(1, ABREAST_CARRIERS // max(1, len(self.apart)))
        self.of_scores: dict[int, str] = {}  # variables of what depends on the left alone, by id of node
        self.write()

    def write(self) -> None:
        """Write an item: empty carriers, then each row merged into them."""
        self.put("part, group, at = item % c.parts, item // c.parts % c.groups, item // (c.parts * c.groups)")
        self.put("begins, first, top = longs(c.starts, c.S + 1), part * c.columns, group * c.share")
        self.put("last, bottom = min(first + c.columns, c.p), min(top + c.share, c.heads)")
        self.put("held = c.room + worker * c.apart")
        self.within(f"for at_unit in range(0, c.step, {4 * ABREAST}):", self.write_units)
        if self.carries:
            self.put("source = longs(c.sources + 8 * begins[at], 1)[0]")
            self.within("if source:", self.begin_with_states)
        self.write_rows(self.merge_row)
        if self.plan.whole:
            self.write_rows(self.repeat_row)

    def write_units(self) -> None:
        """Write empty carriers of a vector of columns."""
        for k in self.live:
            unit = self.literal(self.plan.folding.unit[k])
            self.put(f"keep(in_all_lanes({unit}), held + {self.live.index(k)} * c.step + at_unit, None)")

    def begin_with_states(self) -> None:
        """Write the carriers that sequences begin with: the last row of each head of a state."""
        [k] = self.live

        def columns(at: str, lanes: str) -> None:
            self.put(f"keep(get(state + 4 * ({at}), {lanes}), {self.held(k, at)}, {lanes})")

        def head() -> None:
            self.put("place = held + 4 * ((head - top) * c.columns - first)")
            self.put("state = c.states + 4 * (source * c.states_row + (head + 1) * c.states_head - c.p)")
            self.write_columns(columns)

        self.within("for head in range(top, bottom):", head)

    def write_rows(self, body: Callable[[], None]) -> None:
        """Write the loops over rows and their heads."""

        def head() -> None:
            self.put("place = held + 4 * ((head - top) * c.columns - first)")
            self.put("out = c.out + 4 * (row * c.out_row + head * c.out_head)")
            self.block(body)

        def row() -> None:
            for k in range(self.plan.values):
                self.put(f"x{k} = c.x{k} + 4 * row * c.x{k}_row")
            self.within("for head in range(top, bottom):", head)

        self.within("for row in range(begins[at], begins[at + 1]):", row)

    def write_columns(self, body: Callable[[str, str], None]) -> None:
        """Write the loops over columns, for a few whole vectors and for the last ones; each is a call of `body` with
        its first column and its lanes."""

        def whole() -> None:
            for n in range(self.many):
                body(f"col + {ABREAST * n}" if n else "col", "None")
            self.put(f"col += {ABREAST * self.many}")

        def rest() -> None:
            self.put(f"lanes = min({ABREAST}, last - col)")
            body("col", "lanes")
            self.put(f"col += {ABREAST}")

        self.put("col = first")
        self.within(f"while col + {ABREAST * self.many} <= last:", lambda: self.block(whole))
        self.within("while col < last:", lambda: self.block(rest))

    def held(self, k: int, at: str) -> str:
        """Return the address at which a number of the carriers of a vector of columns stays from row to row."""
        return f"place + 4 * ({at}) + {self.live.index(k)} * c.step"

    def merge_row(self) -> None:
        """Write the merge of a row: first the carriers that depend on the left alone, where that is one number."""
        step = self.step
        held = {id(step.carriers[k]): self.name(f"get({self.held(k, 'first')}, None)") for k in self.shared}
        fresh: list[str] = []
        if self.plan.left.cols == 1:
            held[id(step.score)] = self.value(self.plan.left, "head", "0", "None")
            ends = [*(step.merged[k] for k in self.shared), *step.stored]
            fresh = [*map(self.vector, self.emit(ends, held)[: len(self.shared)])]
        self.of_scores, merged = held, dict(zip(self.shared, fresh, strict=True))
        self.write_columns(lambda at, lanes: self.merge_columns(merged, at, lanes))
        for k, vector in merged.items():
            self.put(f"keep({vector}, {self.held(k, 'first')}, None)")

    def merge_columns(self, merged: dict[int, str], at: str, lanes: str) -> None:
        """Write the merge of a vector of columns, and its result unless all rows have the same. `merged`: the carriers
        that are merged already."""
        step, held = self.step, dict(self.of_scores)
        held |= {id(step.carriers[k]): self.name(f"get({self.held(k, at)}, None)") for k in self.apart}
        if id(step.score) not in held:
            held[id(step.score)] = self.value(self.plan.left, "head", at, lanes)
        held[id(step.factor)] = self.value(self.plan.right, "head", at, lanes)
        fresh = map(self.vector, self.emit([step.merged[k] for k in self.apart], held))
        carriers = merged | dict(zip(self.apart, fresh, strict=True))
        for k in self.apart:
            self.put(f"keep({carriers[k]}, {self.held(k, at)}, None)")
        if not self.plan.whole:
            self.store(carriers, at, lanes)

    def repeat_row(self) -> None:
        """Write the result of a whole sequence to a row."""

        def columns(at: str, lanes: str) -> None:
            places = {k: "first" if k in self.shared else at for k in self.live}
            self.store({k: self.name(f"get({self.held(k, place)}, None)") for k, place in places.items()}, at, lanes)

        self.write_columns(columns)

    def store(self, carriers: dict[int, str], at: str, lanes: str) -> None:
        """Write the result of a vector of columns."""
        count = len(self.plan.folding.unit)
        [finished] = self.graph(self.plan.folding.finish, [carriers.get(k, "") for k in range(count)])
        self.put(f"keep({self.vector(finished)}, out + 4 * ({at}), {lanes})")
        first = 0 if at == "col" else int(at.rpartition(" ")[2])
        self.stores.add("out", StoredColumns(1, first, first + ABREAST))
        self.stores.check("out", 1, first + ABREAST)

    @property
    def fields(self) -> list[str]:
        """The words of a call's record, in order."""
        values = [f"x{k}{what}" for k in range(self.plan.values) for what in ("", "_row", "_head")]
        arrays = [f"c{k}" for k in range(self.plan.arrays)]
        carried = [*CARRIED_WORDS] if self.carries else []
        return [*values, *arrays, *carried, *FIXED_WORDS, *self.sizes.values()]

    def whole(self) -> str:
        """Return the whole text."""
        sizes = [f"    {name} = c.{name}" for name in self.sizes.values()]
        return self.framed("rows_in_order", self.fields, [*sizes, *self.lines])
