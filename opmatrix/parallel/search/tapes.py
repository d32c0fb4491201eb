"""Arithmetic traced once and run over columns of numbers: common subexpressions are computed once, for any number of
results, block by block in buffers that stay in a near cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

TapeNumbers: TypeAlias = "NDArray[np.float64]"
TAPE_ROWS = 2048  # rows of a block: 16 kB a buffer

UFUNCS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.true_divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "ceil": np.ceil,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "log2": np.log2,
    "exp": np.exp,
    "power": np.power,
}
COMMUTE = {"add", "multiply", "maximum", "minimum"}
NEUTRAL = {"add": 0.0, "subtract": 0.0, "multiply": 1.0, "divide": 1.0}  # right operands; left, too, if commuting


class Tape:
    """A trace of operations, each stored once: its name, and the places of its operands. Columns and numbers have
    places, too."""

    def __init__(self, *names: str) -> None:
        self.nodes: list[tuple[Any, ...]] = []
        self.places: dict[tuple[Any, ...], int] = {}
        self.columns = {name: TracedColumn(self, self.place(("column", name))) for name in names}

    def place(self, node: tuple[Any, ...]) -> int:
        """Return the place of a node; a new node is appended."""
        at = self.places.get(node)
        if at is None:
            at = self.places[node] = len(self.nodes)
            self.nodes.append(node)
        return at

    def write(self, op: str, one: Any, other: Any) -> Any:
        """Trace an operation of two operands, at least one of them traced. Operations without effect are not
        recorded."""
        if type(one) is TracedColumn:
            a = one.at
            if type(other) is not TracedColumn:
                if op in NEUTRAL and other == NEUTRAL[op]:
                    return one
                if op == "multiply" and other == 0:
                    return 0.0
        else:
            if op in COMMUTE and op in NEUTRAL and one == NEUTRAL[op]:
                return other
            if op in ("multiply", "divide") and one == 0:
                return 0.0
            a = self.place(("number", float(one)))
        b = other.at if type(other) is TracedColumn else self.place(("number", float(other)))
        if op in COMMUTE and b < a:
            a, b = b, a
        return TracedColumn(self, self.place((op, a, b)))


class TracedColumn:
    """A column on a tape. Arithmetic and numpy's functions of it are recorded there."""

    __slots__ = "at", "tape"

    def __init__(self, tape: Tape, at: int) -> None:
        self.tape, self.at = tape, at

    def __add__(self, other: Any) -> Any:
        return self.tape.write("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.tape.write("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.tape.write("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.tape.write("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.tape.write("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.tape.write("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.tape.write("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.tape.write("divide", other, self)

    def __neg__(self) -> Any:
        return self.tape.write("multiply", -1.0, self)

    def __pow__(self, power: float) -> Any:
        if power != int(power):
            return self.tape.write("power", self, power)
        if power < 0:
            return 1.0 / self**-power
        product: Any = self if power else 1.0
        for _ in range(int(power) - 1):
            product = product * self
        return product

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        name = "divide" if ufunc is np.true_divide else ufunc.__name__
        if method != "__call__" or more or name not in UFUNCS:
            return NotImplemented
        if len(inputs) == 2:
            return self.tape.write(name, *inputs)
        return TracedColumn(self.tape, self.tape.place((name, self.at)))


class CompiledTape:
    """Some results of a tape as a program over columns. Only their operations are computed, and a buffer is reused once
    its last reader has run. Results that are numbers stay numbers."""

    def __init__(self, tape: Tape, results: Sequence[Any]) -> None:
        self.results = [result.at if type(result) is TracedColumn else float(result) for result in results]
        needed, stack = set[int](), [place for place in self.results if type(place) is int]
        while stack:
            at = stack.pop()
            if at in needed:
                continue
            needed.add(at)
            if tape.nodes[at][0] not in ("column", "number"):
                stack += tape.nodes[at][1:]
        self.names = [(at, str(tape.nodes[at][1])) for at in sorted(needed) if tape.nodes[at][0] == "column"]
        self.numbers = {at: np.float64(tape.nodes[at][1]) for at in needed if tape.nodes[at][0] == "number"}
        self.steps: list[tuple[Callable[..., Any], tuple[int, ...], int]] = []
        self.buffers = self.allot(tape, [at for at in sorted(needed) if tape.nodes[at][0] in UFUNCS])
        self.held: dict[int, TapeNumbers] = {}

    def allot(self, tape: Tape, order: Sequence[int]) -> int:
        """Append the steps, each with the buffer that it fills, and return the number of buffers."""
        uses = Counter(arg for at in order for arg in {*tape.nodes[at][1:]})
        uses.update(result for result in self.results if type(result) is int)  # a result is read at the end
        buffers, free, count = dict[int, int](), list[int](), 0
        for at in order:
            op, *args = tape.nodes[at]
            places = tuple(buffers[place] if place in buffers else -1 - place for place in args)
            for operand in {*args} & buffers.keys():
                uses[operand] -= 1
                if not uses[operand]:
                    free.append(buffers[operand])
            if not free:
                free.append(count)
                count += 1
            buffers[at] = free.pop()
            self.steps.append((UFUNCS[op], places, buffers[at]))
        self.places = {at: buffers[at] if at in buffers else -1 - at for at in self.results if type(at) is int}
        return count

    def __call__(self, columns: Mapping[str, TapeNumbers], out: TapeNumbers) -> None:
        """Fill a row of `out` for each result. The columns are as long as its rows."""
        rows = out.shape[1]
        for start in range(0, rows, TAPE_ROWS):
            end = min(start + TAPE_ROWS, rows)
            self.run({name: columns[name][start:end] for _, name in self.names}, out[:, start:end])

    def run(self, columns: Mapping[str, TapeNumbers], out: TapeNumbers) -> None:
        """Run the steps on one block of rows."""
        if not self.held or len(self.held[0]) != out.shape[1]:
            self.held = {at: np.empty(out.shape[1]) for at in range(self.buffers)}
        held: dict[int, Any] = {
            **self.held,
            **{-1 - at: number for at, number in self.numbers.items()},
            **{-1 - at: columns[name] for at, name in self.names},
        }
        for run, places, into in self.steps:
            run(*[held[place] for place in places], out=held[into])
        for row, result in enumerate(self.results):
            out[row] = held[self.places[result]] if type(result) is int else result
