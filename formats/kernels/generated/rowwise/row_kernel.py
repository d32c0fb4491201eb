"""A value of each row as a kernel: its text, its record, its call, and the operations that it counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from formats.core.arrays import as_contiguous, readable, separate, writable
from formats.host.threads import threads
from formats.kernels.attentions.heads import heads_of
from formats.kernels.engine.from_text import TextKernel, enter_text
from formats.kernels.engine.launch import ROOM, address, filled, launch, step
from formats.kernels.engine.pool import POOL
from formats.kernels.generated.rowwise.row_expressions import OPERANDS
from formats.kernels.generated.rowwise.row_loops import SLOW, Loops
from formats.kernels.generated.rowwise.row_text import RowText
from formats.kernels.generated.rowwise.row_values import ABREAST, RowValue
from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalar_graphs import count_waiting

SHIFTED = 2.0  # operations of a number of a row before: it is loaded, and chosen or not
OVERLAPPING = 20.0  # operations of a number that overlap with the next
HOME = "formats.kernels.generated.rowwise.row_lanes"  # the vocabulary of the texts


class Counts(NamedTuple):
    """Operations for one row. `simple`: simple operations; `slow`: divisions and roots; `deep`: operations on the
    critical path of one number beyond those that overlap with the next number; `merged`: operations of merges, each of
    which waits for the one before; `loops` over columns; `moved`: numbers read and written; `written`: numbers written.
    `operands`, for a call of any number of rows: operands that are checked, values twice, as the result must not
    overlap them."""

    simple: float
    slow: float
    deep: float
    merged: float
    loops: float
    moved: float
    written: float
    operands: float


class CarriedRows(NamedTuple):
    """The rows before new ones: of each value by its number the states (states, heads, kept · columns), which hold the
    last rows of a sequence side by side; for each new row (T) its number among those of its sequence, and the state
    that the sequence had before them."""

    states: Mapping[int, np.ndarray]
    ages: np.ndarray
    sources: np.ndarray

    def locate(self, rows: int, values: Sequence[int]) -> list[int]:
        """Return the words of a record: addresses of both columns, of each state its address and steps. ValueError for
        columns of other rows."""
        places = [locate_positions(self.ages, rows), locate_positions(self.sources, rows)]
        for k in values:
            state = self.states[k]
            places += heads_of(f"held{k}", state, len(state), state.shape[1])
        return places

    def locate_states(self, rows: int) -> tuple[int, ...]:
        """Return the words of the one state of a result: its address and steps, the address of the states before."""
        [state] = self.states.values()
        return *heads_of("states", state, len(state), state.shape[1]), locate_positions(self.sources, rows)


@dataclass(frozen=True, eq=False)
class RowKernel:
    """The kernel of a value over `values` operands and `arrays` arrays. `carried`: its rows are new rows of sequences,
    whose last rows before are held in states."""

    root: RowValue
    values: int
    arrays: int
    carried: bool = False

    @cached_property
    def written(self) -> RowText:
        return RowText(self.root, self.values, self.arrays, self.carried)

    @cached_property
    def text(self) -> str:
        return self.written.whole()

    @cached_property
    def function(self) -> TextKernel:
        """The compiled kernel."""
        return enter_text(self.text, HOME)

    @cached_property
    def operands(self) -> dict[tuple[str, int], RowValue]:
        """The values and arrays that it reads, by kind and number."""
        return operands_of(self.root)

    def __call__(
        self,
        values: Sequence[np.ndarray],
        arrays: Sequence[np.ndarray],
        out: np.ndarray,
        before: np.ndarray | CarriedRows | None = None,
    ) -> np.ndarray:
        """Compute out (T, columns), or (T, heads, columns), from values with as many rows. A kernel that reads rows
        before needs the positions of rows in their sequences, which follow one another, or the states of sequences.
        ValueError for arrays that do not fit."""
        T, wanted = len(out), (self.root.heads, self.root.cols)
        if (out.shape[1:] if out.ndim == 3 else (1, *out.shape[1:])) != wanted:
            raise ValueError(f"out: {out.shape} is not (rows, {wanted[0]}, {wanted[1]})")
        writable("out", out)
        places = locate_operands(self.operands, values, arrays, out)
        if isinstance(before, CarriedRows):
            places += before.locate(T, self.written.shifted_values)
        elif self.written.shifts:
            places.append(locate_positions(before, T))
        if not out.size:
            return out
        workers = threads()
        rows = max(1, -(-T // (4 * workers)))
        with POOL.lock:
            room = ROOM.reserve(self.written.room, workers) if self.written.room else (0, 0)
            record = filled(
                *places,
                *locate_rows("out", out, T),
                *room,
                T,
                rows,
                *self.written.sizes,
                *(at for at, _ in self.written.places.values()),
            )
            launch(workers, (self.function, record, -(-T // rows)))
        return out

    @cached_property
    def counts(self) -> Counts:
        """Operations for one row, from its loops; columns are rounded up to whole vectors."""
        loops = Loops(self.root)
        simple = slow = deep = merged = 0.0
        for loop in loops.loops:
            numbers = loop.heads * -(-loop.cols // ABREAST) * ABREAST
            seen: set[int] = set()  # values that items of a loop share count once
            for number in loop.items:
                entry = loops.items[number]
                if entry.node.op == "times":
                    simple += entry.node.args[0].cols * entry.node.heads * -(-entry.node.cols // ABREAST) * ABREAST
                if entry.node.op == "total":
                    numbers *= entry.node.args[0].heads
                if entry.node.op == "fold":
                    blocks, held = numbers + 4 * ABREAST * loop.heads, len(entry.node.args)
                    merged += blocks * count_waiting(entry.node.extra.merge, held)
                for part, _ in entry.parts:
                    if entry.node.op in ("beside", "place"):
                        numbers, seen = loop.heads * -(-part.cols // ABREAST) * ABREAST, set()  # its own columns
                    a, b = count_inside(loops, part, part is entry.node, seen)
                    simple, slow = simple + numbers * a, slow + numbers * b
                    deep += numbers * max(a + SLOW * b - OVERLAPPING, 0.0)
        read = sum(node.heads * node.cols for node in self.root.walk() if node.op == "value")
        wrote = self.root.heads * self.root.cols
        return Counts(
            simple,
            slow,
            deep,
            merged,
            float(sum(loop.heads for loop in loops.loops)),
            read + wrote,
            wrote,
            2.0 * self.values + self.arrays,
        )


def operands_of(*roots: RowValue) -> dict[tuple[str, int], RowValue]:
    """Return the values and arrays that expressions of a row read, by kind and number."""
    return {(node.op, node.extra): node for root in roots for node in root.walk() if node.op in OPERANDS}


def locate_operands(
    read: Mapping[tuple[str, int], RowValue],
    values: Sequence[np.ndarray],
    arrays: Sequence[np.ndarray],
    out: np.ndarray,
) -> list[int]:
    """Return the words of operands: of each value its address and steps, of each array its address. ValueError for
    arrays that do not fit, or that share memory with `out`."""
    places, T = list[int](), len(out)
    for k, value in enumerate(values):
        node = read.get(("value", k))
        if node is not None and value.shape not in ((T, node.cols), (T, node.heads, node.cols)):
            raise ValueError(f"x{k}: {value.shape} is not ({T}, {node.heads}, {node.cols})")
        places += locate_rows(f"x{k}", value, T)
        separate(out, over=False, **{f"x{k}": value})
    for k, array in enumerate(arrays):
        readable(f"c{k}", array, array.shape)
        node = read.get(("const", k))
        if node is not None and array.size != node.heads * node.cols:
            raise ValueError(f"c{k}: {array.shape} is not ({node.heads}, {node.cols})")
        if not array.flags.c_contiguous:
            raise ValueError(f"c{k}: it is not contiguous: give a copy")
        places.append(address(array))
    return places


def count_inside(loops: Loops, node: RowValue, own: bool, seen: set[int]) -> tuple[float, float]:
    """Count simple and slow operations of an expression at one number; a load is one."""
    if id(node) in seen:
        return 0.0, 0.0
    seen.add(id(node))
    if node.op == "shift":
        return SHIFTED, 0.0
    if (id(node) in loops.kept and not own) or not node.args:
        return float(node.op != "literal"), 0.0
    function = SCALAR_OPERATIONS[node.extra] if node.op == "map" else None
    simple, slow = (function.simple, function.slow) if function else (0.0, 0.0)
    for arg in node.args:
        a, b = count_inside(loops, arg, False, seen)
        simple, slow = simple + a, slow + b
    return simple, slow


def locate_rows(name: str, value: np.ndarray, rows: int) -> tuple[int, int, int]:
    """Return the address, the step from row to row, and the step from head to head, in numbers."""
    if value.ndim == 3:
        return heads_of(name, value, rows, value.shape[1])
    readable(name, value, value.shape)
    if len(value) != rows:
        raise ValueError(f"{name}: {len(value)} rows, where {rows} are needed")
    return address(value), step(value), value.shape[1]


def locate_positions(positions: np.ndarray | None, rows: int) -> int:
    """Return the address of the positions of rows. ValueError for positions of other rows, and without any."""
    if positions is None or positions.shape != (rows,):
        given = None if positions is None else positions.shape
        raise ValueError(f"positions: {given}, where one for each of {rows} rows is needed")
    return address(as_contiguous("positions", positions, np.int64))
