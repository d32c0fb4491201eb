"""A product over a monoid as a kernel: its text, its record, its call, and what it counts."""
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.core.arrays import readable, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import EVERY, Layout, Reach, clipped, sequences
from formats.kernels.engine.compiled import FUNCTIONS
from formats.kernels.engine.from_text import TextKernel
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

FOLD_HOME = "formats.kernels.generated.folding.fold_lanes"    # what texts are written in the words of


class FoldCounts(NamedTuple):
    """What one score of a head takes, with the pairs that are merged by it: simple operations, divisions and roots; and
    the numbers of a row that are read and written."""
    simple: float
    slow: float
    moved: float


@dataclass(frozen=True, eq=False)
class FoldKernel:
    """The kernel of a product."""
    plan: FoldPlan

    @cached_property
    def written(self) -> FoldText | EntriesText:
        """Its text: by columns where what scores say is one for all of them, else by queries."""
        if self.plan.sparse: return EntriesText(plan=self.plan)
        return (WindowText if self.plan.ranged and self.plan.fixed else FoldText)(plan=self.plan)

    @property
    def text(self) -> str: return self.written.whole()

    @cached_property
    def function(self) -> TextKernel:
        """The kernel, once it is compiled; it is known by its name like all others."""
        found = TextKernel(self.text, FOLD_HOME)
        FUNCTIONS[found.name] = found
        return found

    def __call__(self, values: Sequence[np.ndarray], arrays: Sequence[np.ndarray], out: np.ndarray,
                 starts: "np.ndarray | Layout | None" = None, reach: Reach = EVERY,
                 mask: Mask | None = None) -> np.ndarray:
        """out (T, columns), or (T, heads, columns). Where the plan is masked, `starts` are the rows at which sequences
        begin; a query sees so many keys behind it and ahead, or what a mask of positions holds. ValueError for what
        does not fit."""
        plan, T = self.plan, len(out)
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != (plan.heads, plan.cols):
            raise ValueError(f"out: {out.shape} is not (rows, {plan.heads}, {plan.cols})")
        writable("out", out)
        words: dict[str, int] = {}
        for each in plan.operands: words |= self.locate(each, values, arrays, T)
        separate(out, over=False, **{f"x{k}": value for k, value in enumerate(values)})
        if mask is not None and mask.block != BLOCK: raise ValueError(f"{mask!r}: blocks of {BLOCK} are needed")
        if not out.size: return out
        if plan.masked:
            if starts is None: raise ValueError("starts: rows at which sequences begin are needed")
            begins: Record = sequences(starts).starts
            if begins[-1] != T: raise ValueError(f"starts: sequences end at row {begins[-1]}, where out has {T} rows")
        else: begins = filled(0, T)
        lines, count = address(begins), len(begins) - 1
        places = dict(zip(("out", "out_row", "out_head"), locate_rows("out", out, T), strict=True))
        chunks = -(-plan.right.cols // CHUNK_COLUMNS)
        blocks = [*map(address, mask.arrays().values())] if mask is not None else [0, 0, 0, 0]
        behind, ahead = clipped(reach)
        workers, written = threads(), self.written
        with POOL.lock:
            room, apart = ROOM.reserve(written.room, workers)
            words |= places | dict(starts=lines, S=count, heads=plan.heads, chunks=chunks,
                                   keys=T if plan.keys is None else plan.keys, behind=behind, ahead=ahead, room=room,
                                   apart=apart, p=plan.right.cols)
            words |= dict(zip(("ptr", "idx", "edge", "bits"), blocks, strict=True))
            words |= {name: size for size, name in written.sizes.items()}
            words |= {f"at_{word}": at for word, at in written.places.items()}
            units = T // UNIT_SIDE + count if plan.masked else -(-T // UNIT_SIDE)
            launch(workers, (self.function, filled(*(words[name] for name in written.fields)),
                             units * plan.heads * chunks))
        return out

    def gather(self, values: Sequence[np.ndarray], out: np.ndarray, starts: np.ndarray, at: np.ndarray,
               numbers: np.ndarray) -> np.ndarray:
        """out (R, columns), or (R, heads, columns), of the rows that the entries of a sparse matrix name: row i has
        those from starts[i] to starts[i + 1], of the rows `at`, which there are, and with these numbers, as float32."""
        plan, rows, word = self.plan, len(out), self.plan.right.word
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != (plan.heads, plan.cols):
            raise ValueError(f"out: {out.shape} is not (rows, {plan.heads}, {plan.cols})")
        writable("out", out)
        value = values[plan.right.number]
        words = self.locate(plan.right, values, [], len(value))
        separate(out, over=False, **{word: value})
        begins, names = (np.ascontiguousarray(each, np.int64) for each in (starts, at))
        given = np.ascontiguousarray(numbers, np.float32)
        if len(begins) != rows + 1: raise ValueError(f"starts: of {len(begins) - 1} rows, where out has {rows}")
        if not out.size: return out
        words |= dict(zip(("out", "out_row", "out_head"), locate_rows("out", out, rows), strict=True))
        workers, written = threads(), self.written
        with POOL.lock:
            room, apart = ROOM.reserve(written.room, workers)
            words |= dict(starts=address(begins), at=address(names), numbers=address(given), count=len(names), T=rows,
                          heads=plan.heads, p=plan.right.cols, room=room, apart=apart)
            launch(workers, (self.function, filled(*(words[name] for name in written.fields)),
                             -(-rows // ROWS_OF_ITEM) * plan.heads))
        return out

    def locate(self, each: FoldOperand, values: Sequence[np.ndarray], arrays: Sequence[np.ndarray],
               rows: int) -> dict[str, int]:
        """The words of an operand: where it lies, and what its heads serve."""
        word, heads = each.word, self.plan.heads
        if each.kind == OF_ARRAY:
            array = arrays[each.number]
            readable(word, array, array.shape)
            if not array.flags.c_contiguous: raise ValueError(f"{word}: its numbers do not lie side by side")
            return {word: address(array), f"{word}_head": array.size // each.heads if each.heads > 1 else 0}
        value = values[each.number]
        wanted = rows, each.heads, each.cols
        if value.shape != wanted and (value.ndim != 2 or value.shape != (rows, each.heads * each.cols)):
            raise ValueError(f"{word}: {value.shape} is not {wanted}")
        at, row, head = locate_rows(word, value, rows)
        if value.ndim == 2: head = each.cols
        return {word: at, f"{word}_row": row, f"{word}_head": head, f"{word}_of": heads // each.heads}

    @cached_property
    def counts(self) -> FoldCounts:
        """By the graphs of scores and of merges, columns as many as are merged at a time."""
        plan, p = self.plan, self.plan.right.cols
        step = self.written.step
        if isinstance(self.written, EntriesText):           # what is of scores alone takes a vector, as columns do
            once, wide = (-(-p // by) * 16 for by in (16 * self.written.many, 16))
            simple, slow = (once * a + wide * b for a, b in zip(*step.work, strict=True))
            return FoldCounts(simple, slow, (plan.right.cols + plan.cols) * plan.heads)
        chunks, many = -(-p // CHUNK_COLUMNS), self.written.many
        own, each = step.work
        if self.written.told: each = each[0] - compared(step), each[1]      # a minimum of numbers is one instruction
        simple, slow = count_work(plan.score)
        for leaf in plan.leaves:
            if leaf.kind != "pairs" or leaf.inner is None: continue
            a, b = count_pairs(leaf.inner)
            simple, slow = simple + leaf.left.cols * a, slow + leaf.left.cols * b
        columns = -(-p // many) * many if step.by_factor else 0
        simple, slow = chunks * (simple + own[0]) + columns * each[0], chunks * (slow + own[1]) + columns * each[1]
        read = sum(each.heads * each.cols for each in plan.operands if each.kind != OF_ARRAY)
        return FoldCounts(simple, slow, read + plan.heads * plan.cols)
