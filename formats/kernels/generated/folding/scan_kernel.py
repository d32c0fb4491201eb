"""Rows of a sequence merged in order, as a kernel: its text, its record, its call, the operations that it counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.core.arrays import writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import Layout, sequences
from formats.kernels.engine.from_text import TextKernel, enter_text
from formats.kernels.engine.launch import ROOM, Record, address, filled, launch
from formats.kernels.engine.pool import POOL
from formats.kernels.generated.folding.fold_kernel import FOLD_HOME
from formats.kernels.generated.folding.scan_text import ScanPlan, ScanText
from formats.kernels.generated.rowwise.row_kernel import CarriedRows, Counts, locate_operands, locate_rows, operands_of
from formats.kernels.generated.rowwise.row_values import ABREAST, RowValue
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalar_graphs import count_waiting, count_work

LEAST_VECTORS, MOST_VECTORS = 16, 64  # vectors of an item: narrower ones skip through memory, wider ones fill a cache


class ScanItems(NamedTuple):
    """The items of a sequence: `parts` ranges of columns of `groups` ranges of heads, of so many columns and heads."""

    parts: int
    groups: int
    columns: int
    share: int

    @classmethod
    def of(cls, plan: ScanPlan, count: int, workers: int) -> "ScanItems":
        """Return items as wide as rows: rows are then read as they lie in memory. They are narrower where few sequences
        leave workers without one, and where carriers would fill a cache."""
        vectors = -(-plan.cols // ABREAST)
        width = plan.heads * vectors
        cuts = max(min(-(-workers // count), width // LEAST_VECTORS), -(-width // MOST_VECTORS))
        groups = min(plan.heads, cuts)
        parts = min(vectors, -(-cuts // groups))
        columns, share = -(-vectors // parts), -(-plan.heads // groups)
        return cls(-(-vectors // columns), -(-plan.heads // share), ABREAST * columns, share)


@dataclass(frozen=True, eq=False)
class ScanKernel:
    """The kernel of a scan. The bits of a sequence depend on that sequence alone. `carries`: sequences begin where
    states have left them."""

    plan: ScanPlan
    carries: bool = False

    @cached_property
    def written(self) -> ScanText:
        return ScanText(plan=self.plan, carries=self.carries)

    @property
    def text(self) -> str:
        return self.written.whole()

    @cached_property
    def function(self) -> TextKernel:
        """The compiled kernel."""
        return enter_text(self.text, FOLD_HOME)

    @cached_property
    def operands(self) -> dict[tuple[str, int], RowValue]:
        """The values and arrays that it reads, by kind and number."""
        return operands_of(self.plan.left, self.plan.right)

    def __call__(
        self,
        values: Sequence[np.ndarray],
        arrays: Sequence[np.ndarray],
        out: np.ndarray,
        starts: np.ndarray | Layout,
        before: CarriedRows | None = None,
    ) -> np.ndarray:
        """Compute out (T, columns), or (T, heads, columns); `starts` are the rows at which sequences begin; `before`
        has their states. ValueError for arrays that do not fit."""
        plan, T = self.plan, len(out)
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != (plan.heads, plan.cols):
            raise ValueError(f"out: {out.shape} is not (rows, {plan.heads}, {plan.cols})")
        writable("out", out)
        places = locate_operands(self.operands, values, arrays, out)
        begins: Record = sequences(starts).starts
        if begins[-1] != T:
            raise ValueError(f"starts: sequences end at row {begins[-1]}, but out has {T} rows")
        if not out.size:
            return out
        workers, written = threads(), self.written
        cut = ScanItems.of(plan, len(begins) - 1, workers)
        step = 4 * cut.share * cut.columns
        with POOL.lock:
            room = ROOM.reserve(step * len(written.live), workers)
            sizes = len(begins) - 1, *cut, step, plan.heads, plan.cols, *written.sizes
            carried = () if before is None else before.locate_states(T)
            record = filled(*places, *carried, *locate_rows("out", out, T), *room, address(begins), *sizes)
            launch(workers, (self.function, record, (len(begins) - 1) * cut.parts * cut.groups))
        return out

    @cached_property
    def counts(self) -> Counts:
        """Operations for one row; columns are rounded up to whole vectors, and merges wait for those of the row
        before."""
        plan, folding = self.plan, self.plan.folding
        numbers = plan.heads * -(-plan.cols // ABREAST) * ABREAST
        graphs = [count_work(graph) for graph in (folding.lift, folding.merge, folding.finish)]
        maps = [SCALAR_OPERATIONS[node.extra] for side in plan[:2] for node in side.walk() if node.op == "map"]
        graphs += [(function.simple, function.slow) for function in maps]
        simple, slow = (numbers * sum(work) for work in zip(*graphs, strict=True))
        read = sum(node.heads * node.cols for (op, _), node in self.operands.items() if op == "value")
        wrote = plan.heads * plan.cols
        return Counts(
            simple + 2 * numbers,
            slow,
            0.0,
            numbers / self.written.many * count_waiting(folding.merge, len(folding.unit)),
            float(plan.heads),
            read + wrote,
            wrote,
            2.0 * plan.values + plan.arrays,
        )
