"""A product over a monoid as a kernel: its text, its record, its call, and the operations that it counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.core.arrays import readable, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import EVERY, Layout, Reach, clipped, sequences
from formats.kernels.engine.from_text import TextKernel, enter_text
from formats.kernels.engine.launch import ROOM, Record, address, filled, launch
from formats.kernels.engine.pool import POOL
from formats.kernels.generated.folding.entries_text import ROWS_OF_ITEM, EntriesText, WindowText
from formats.kernels.generated.folding.fold_order import compared
from formats.kernels.generated.folding.fold_plan import OF_ARRAY, FoldOperand, FoldPlan
from formats.kernels.generated.folding.fold_sizes import CHUNK_COLUMNS, UNIT_SIDE
from formats.kernels.generated.folding.fold_text import FoldText, count_pairs
from formats.kernels.generated.rowwise.row_kernel import locate_rows
from formats.kernels.generated.rowwise.scalar_graphs import count_work
from formats.storage.masks import BLOCK, Mask

FOLD_HOME = "formats.kernels.generated.folding.fold_lanes"  # the vocabulary of the texts


class FoldCounts(NamedTuple):
    """Operations for one score of a head, with the pairs that it merges: simple operations, divisions and roots; and
    the numbers of a row that are read and written."""

    simple: float
    slow: float
    moved: float


@dataclass(frozen=True, eq=False)
class FoldKernel:
    """The kernel of a product over a monoid."""

    plan: FoldPlan

    @cached_property
    def written(self) -> FoldText | EntriesText:
        """The text writer: by columns if the scores are the same for all columns, else by queries."""
        if self.plan.sparse:
            return EntriesText(plan=self.plan)
        return (WindowText if self.plan.ranged and self.plan.fixed else FoldText)(plan=self.plan)

    @property
    def text(self) -> str:
        return self.written.whole()

    @cached_property
    def function(self) -> TextKernel:
        """The compiled kernel."""
        return enter_text(self.text, FOLD_HOME)

    def __call__(
        self,
        values: Sequence[np.ndarray],
        arrays: Sequence[np.ndarray],
        out: np.ndarray,
        starts: "np.ndarray | Layout | None" = None,
        reach: Reach = EVERY,
        mask: Mask | None = None,
    ) -> np.ndarray:
        """Compute out (T, columns), or (T, heads, columns). If the plan is masked, `starts` are the rows at which
        sequences begin, and a query sees the keys within `reach` behind it and ahead, or those that a mask of positions
        holds. ValueError for arrays that do not fit."""
        plan, T = self.plan, len(out)
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != (plan.heads, plan.cols):
            raise ValueError(f"out: {out.shape} is not (rows, {plan.heads}, {plan.cols})")
        writable("out", out)
        words: dict[str, int] = {}
        for operand in plan.operands:
            words |= self.locate(operand, values, arrays, T)
        separate(out, over=False, **{f"x{k}": value for k, value in enumerate(values)})
        if mask is not None and mask.block != BLOCK:
            raise ValueError(f"{mask!r}: blocks of {BLOCK} are needed")
        if not out.size:
            return out
        if plan.masked:
            if starts is None:
                raise ValueError("starts: give the rows at which sequences begin")
            begins: Record = sequences(starts).starts
            if begins[-1] != T:
                raise ValueError(f"starts: sequences end at row {begins[-1]}, but out has {T} rows")
        else:
            begins = filled(0, T)
        lines, count = address(begins), len(begins) - 1
        places = dict(zip(("out", "out_row", "out_head"), locate_rows("out", out, T), strict=True))
        chunks = -(-plan.right.cols // CHUNK_COLUMNS)
        blocks = [*map(address, mask.arrays().values())] if mask is not None else [0, 0, 0, 0]
        behind, ahead = clipped(reach)
        workers, written = threads(), self.written
        with POOL.lock:
            room, apart = ROOM.reserve(written.room, workers)
            words |= places | dict(
                starts=lines,
                S=count,
                heads=plan.heads,
                chunks=chunks,
                keys=T if plan.keys is None else plan.keys,
                behind=behind,
                ahead=ahead,
                room=room,
                apart=apart,
                p=plan.right.cols,
            )
            words |= dict(zip(("ptr", "idx", "edge", "bits"), blocks, strict=True))
            words |= {name: size for size, name in written.sizes.items()}
            words |= {f"at_{word}": at for word, at in written.places.items()}
            units = T // UNIT_SIDE + count if plan.masked else -(-T // UNIT_SIDE)
            launch(
                workers, (self.function, filled(*(words[name] for name in written.fields)), units * plan.heads * chunks)
            )
        return out

    def gather(
        self, values: Sequence[np.ndarray], out: np.ndarray, starts: np.ndarray, at: np.ndarray, numbers: np.ndarray
    ) -> np.ndarray:
        """Compute out (R, columns), or (R, heads, columns), from the rows that the entries of a sparse matrix name. Row
        i merges the entries from starts[i] to starts[i + 1]: rows `at` of the value, which must exist, with `numbers`,
        read as float32."""
        plan, rows, word = self.plan, len(out), self.plan.right.word
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != (plan.heads, plan.cols):
            raise ValueError(f"out: {out.shape} is not (rows, {plan.heads}, {plan.cols})")
        writable("out", out)
        value = values[plan.right.number]
        words = self.locate(plan.right, values, [], len(value))
        separate(out, over=False, **{word: value})
        begins, names = (np.ascontiguousarray(places, np.int64) for places in (starts, at))
        factors = np.ascontiguousarray(numbers, np.float32)
        if len(begins) != rows + 1:
            raise ValueError(f"starts: it describes {len(begins) - 1} rows, but out has {rows}")
        if not out.size:
            return out
        words |= dict(zip(("out", "out_row", "out_head"), locate_rows("out", out, rows), strict=True))
        workers, written = threads(), self.written
        with POOL.lock:
            room, apart = ROOM.reserve(written.room, workers)
            words |= dict(
                starts=address(begins),
                at=address(names),
                numbers=address(factors),
                count=len(names),
                T=rows,
                heads=plan.heads,
                p=plan.right.cols,
                room=room,
                apart=apart,
            )
            launch(
                workers,
                (
                    self.function,
                    filled(*(words[name] for name in written.fields)),
                    -(-rows // ROWS_OF_ITEM) * plan.heads,
                ),
            )
        return out

    def locate(
        self, each: FoldOperand, values: Sequence[np.ndarray], arrays: Sequence[np.ndarray], rows: int
    ) -> dict[str, int]:
        """Return the words of an operand: its address, its steps, and how many heads each of its heads serves."""
        word, heads = each.word, self.plan.heads
        if each.kind == OF_ARRAY:
            array = arrays[each.number]
            readable(word, array, array.shape)
            if not array.flags.c_contiguous:
                raise ValueError(f"{word}: it is not contiguous: give a copy")
            return {word: address(array), f"{word}_head": array.size // each.heads if each.heads > 1 else 0}
        value = values[each.number]
        wanted = rows, each.heads, each.cols
        if value.shape != wanted and (value.ndim != 2 or value.shape != (rows, each.heads * each.cols)):
            raise ValueError(f"{word}: {value.shape} is not {wanted}")
        at, row, head = locate_rows(word, value, rows)
        if value.ndim == 2:
            head = each.cols
        return {word: at, f"{word}_row": row, f"{word}_head": head, f"{word}_of": heads // each.heads}

    @cached_property
    def counts(self) -> FoldCounts:
        """The counts from the graphs of scores and of merges, columns rounded up to those merged at a time."""
        plan, p = self.plan, self.plan.right.cols
        step = self.written.step
        if isinstance(self.written, EntriesText):  # operations on scores fill vectors, as columns do
            once, wide = (-(-p // by) * 16 for by in (16 * self.written.many, 16))
            simple, slow = (once * a + wide * b for a, b in zip(*step.work, strict=True))
            return FoldCounts(simple, slow, (plan.right.cols + plan.cols) * plan.heads)
        chunks, many = -(-p // CHUNK_COLUMNS), self.written.many
        by_score, by_number = step.work
        # a minimum of numbers is one instruction
        if self.written.told:
            by_number = by_number[0] - compared(step), by_number[1]
        simple, slow = count_work(plan.score)
        for leaf in plan.leaves:
            if leaf.kind != "pairs" or leaf.inner is None:
                continue
            a, b = count_pairs(leaf.inner)
            simple, slow = simple + leaf.left.cols * a, slow + leaf.left.cols * b
        columns = -(-p // many) * many if step.by_factor else 0
        simple, slow = (
            chunks * (simple + by_score[0]) + columns * by_number[0],
            chunks * (slow + by_score[1]) + columns * by_number[1],
        )
        read = sum(operand.heads * operand.cols for operand in plan.operands if operand.kind != OF_ARRAY)
        return FoldCounts(simple, slow, read + plan.heads * plan.cols)
