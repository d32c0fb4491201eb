"""A value of each row as a kernel: its text, its record, its call, and what it counts."""
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.core.arrays import readable, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import heads_of
from formats.kernels.engine.compiled import FUNCTIONS
from formats.kernels.engine.from_text import TextKernel
from formats.kernels.engine.launch import ROOM, address, filled, launch, step
from formats.kernels.engine.pool import POOL
from formats.kernels.generated.rowwise.row_loops import SLOW, Loops
from formats.kernels.generated.rowwise.row_text import RowText
from formats.kernels.generated.rowwise.row_values import ABREAST, RowValue
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalar_graphs import count_waiting

OVERLAPPING = 20.0                                          # operations of a number that those of the next overlap
HOME = "formats.kernels.generated.rowwise.row_lanes"                          # what texts are written in the words of


class Counts(NamedTuple):
    """What one row takes: simple operations, divisions and roots; of these so many as are too far behind one another at
    one number to overlap with those of the next; operations of merges, each of which waits for the one before; loops
    over columns, numbers that are read and written, and written alone. Last what a call takes, whatever its rows:
    operands that are looked at, values twice, as the result must not lie in them."""
    simple: float
    slow: float
    deep: float
    merged: float
    loops: float
    moved: float
    written: float
    operands: float


@dataclass(frozen=True, eq=False)
class RowKernel:
    """The kernel of a value over so many operands, and so many arrays."""
    root: RowValue
    values: int
    arrays: int

    @cached_property
    def written(self) -> RowText: return RowText(self.root, self.values, self.arrays)
    @cached_property
    def text(self) -> str: return self.written.whole()

    @cached_property
    def function(self) -> TextKernel:
        """The kernel, once it is compiled; it is known by its name like all others."""
        found = TextKernel(self.text, HOME)
        FUNCTIONS[found.name] = found
        return found

    @cached_property
    def operands(self) -> dict[tuple[str, int], RowValue]:
        """The values and arrays that it reads, by what they are and their number."""
        return {(node.op, node.extra): node for node in self.root.walk() if node.op in ("value", "const")}

    def __call__(self, values: Sequence[np.ndarray], arrays: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
        """out (T, columns), or (T, heads, columns), of values with as many rows. ValueError for what does not fit."""
        T, wanted = len(out), (self.root.heads, self.root.cols)
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != wanted:
            raise ValueError(f"out: {out.shape} is not (rows, {wanted[0]}, {wanted[1]})")
        writable("out", out)
        places: list[int] = []
        for k, value in enumerate(values):
            node = self.operands.get(("value", k))
            if node is not None and value.shape not in ((T, node.cols), (T, node.heads, node.cols)):
                raise ValueError(f"x{k}: {value.shape} is not ({T}, {node.heads}, {node.cols})")
            places += locate_rows(f"x{k}", value, T)
            separate(out, over=False, **{f"x{k}": value})
        for k, array in enumerate(arrays):
            readable(f"c{k}", array, array.shape)
            node = self.operands.get(("const", k))
            if node is not None and array.size != node.heads * node.cols:
                raise ValueError(f"c{k}: {array.shape} is not ({node.heads}, {node.cols})")
            if not array.flags.c_contiguous: raise ValueError(f"c{k}: its numbers do not lie side by side")
        if not out.size: return out
        workers = threads()
        rows = max(1, -(-T // (4 * workers)))
        with POOL.lock:
            room = ROOM.reserve(self.written.room, workers) if self.written.room else (0, 0)
            record = filled(*places, *map(address, arrays), *locate_rows("out", out, T), *room, T, rows,
                            *self.written.sizes, *(at for at, _ in self.written.places.values()))
            launch(workers, (self.function, record, -(-T // rows)))
        return out

    @cached_property
    def counts(self) -> Counts:
        """What one row takes, by its loops; columns in whole vectors."""
        loops = Loops(self.root)
        simple = slow = deep = merged = 0.0
        for loop in loops.loops:
            numbers = loop.heads * -(-loop.cols // ABREAST) * ABREAST
            seen: set[int] = set()                          # what items of a loop share is computed once
            for number in loop.items:
                item = loops.items[number]
                if item.node.op == "times":
                    simple += item.node.args[0].cols * item.node.heads * -(-item.node.cols // ABREAST) * ABREAST
                if item.node.op == "total": numbers *= item.node.args[0].heads
                if item.node.op == "fold":
                    blocks, held = numbers + 4 * ABREAST * loop.heads, len(item.node.args)
                    merged += blocks * count_waiting(item.node.extra.merge, held)
                for part, _ in item.parts:
                    if item.node.op in ("beside", "place"):
                        numbers, seen = loop.heads * -(-part.cols // ABREAST) * ABREAST, set()     # columns of its own
                    a, b = count_inside(loops, part, part is item.node, seen)
                    simple, slow = simple + numbers * a, slow + numbers * b
                    deep += numbers * max(a + SLOW * b - OVERLAPPING, 0.0)
        read = sum(each.heads * each.cols for each in self.root.walk() if each.op == "value")
        wrote = self.root.heads * self.root.cols
        return Counts(simple, slow, deep, merged, float(sum(loop.heads for loop in loops.loops)), read + wrote, wrote,
                      2.0 * self.values + self.arrays)


def count_inside(loops: Loops, node: RowValue, own: bool, seen: set[int]) -> tuple[float, float]:
    """Simple and slow operations of an expression at one number; a load is one."""
    if id(node) in seen: return 0.0, 0.0
    seen.add(id(node))
    if (id(node) in loops.kept and not own) or not node.args: return float(node.op != "literal"), 0.0
    function = SCALAR_OPERATIONS[node.extra] if node.op == "map" else None
    simple, slow = (function.simple, function.slow) if function else (0.0, 0.0)
    for each in node.args:
        a, b = count_inside(loops, each, False, seen)
        simple, slow = simple + a, slow + b
    return simple, slow


def locate_rows(name: str, value: np.ndarray, rows: int) -> tuple[int, int, int]:
    """Address, numbers from row to row, and from head to head."""
    if value.ndim == 3: return heads_of(name, value, rows, value.shape[1])
    readable(name, value, value.shape)
    if len(value) != rows: raise ValueError(f"{name}: {len(value)} rows, where {rows} are needed")
    return address(value), step(value), value.shape[1]
