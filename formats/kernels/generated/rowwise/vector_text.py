"""What texts of kernels have in common: variables that hold vectors of 16 numbers, constants, graphs of numbers."""
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn
from formats.kernels.generated.rowwise.stored import Stores

IN_TEXT = 8                                                 # sizes up to it stand in the text
OPERATORS = "+", "-", "*", "/"
EXTREMES = {"largest_of": "larger", "smallest_of": "smaller"}   # of anything; of what the second of is not NaN


@dataclass
class VectorText:
    """What is written: lines, the words of sizes, and the constants."""
    lines: list[str] = field(default_factory=list, kw_only=True)
    sizes: dict[int, str] = field(default_factory=dict, kw_only=True)
    literals: dict[str, str] = field(default_factory=dict, kw_only=True)
    indent: int = field(default=3, kw_only=True)
    count: int = field(default=0, kw_only=True)
    ordered: bool = field(default=False, kw_only=True)      # no number that is compared is NaN
    stores: Stores = field(default_factory=Stores, kw_only=True)

    def put(self, line: str) -> None: self.lines.append("    " * self.indent + line)

    def name(self, code: str) -> str:
        """A new variable that holds an expression."""
        self.count += 1
        self.put(f"v{self.count} = {code}")
        return f"v{self.count}"

    def size(self, number: int) -> str:
        """A size as the text says it."""
        if number <= IN_TEXT: return str(number)
        return self.sizes.setdefault(number, f"n{len(self.sizes)}")

    def literal(self, value: float) -> str:
        """A float32 number as a constant of the text."""
        return self.literals.setdefault(float(np.float32(value)).hex(), f"K{len(self.literals)}")

    def operation(self, op: str, args: list[str]) -> str:
        """A variable that holds an operation of others."""
        code = SCALAR_OPERATIONS[op].code
        if all(each.startswith("K") for each in args): args = [f"in_all_lanes({args[0]})", *args[1:]]
        if code in OPERATORS: return self.name(f"{args[0]} {code} {args[1]}")
        if code in EXTREMES and args[0].startswith("K"): args = args[::-1]
        if code in EXTREMES and (self.ordered or args[1].startswith("K")): code = EXTREMES[code]
        return self.name(f"{code}({', '.join(args)})")

    def graph(self, graph: NumberGraph, inputs: list[str]) -> list[str]:
        """The outputs of a graph of numbers, of variables."""
        return graph.fill(inputs, self.literal, lambda node, args: self.operation(node.op, args))

    def emit(self, ends: Iterable[StandIn], held: dict[int, str]) -> list[str]:
        """Variables of numbers, of those that are held: by id, all that is written is added to them."""
        def one(node: StandIn) -> str:
            if (found := held.get(id(node))) is None:
                literal = node.op == "literal"
                found = self.literal(node.value) if literal else self.operation(node.op, [*map(one, node.args)])
                held[id(node)] = found
            return found
        return [*map(one, ends)]

    def assign(self, names: list[str], found: list[str]) -> None:
        """All at once: none is read after it was written."""
        kept = [self.name(each) if each in names and each != name else each
                for name, each in zip(names, found, strict=True)]
        for name, each in zip(names, kept, strict=True):
            if name != each: self.put(f"{name} = {each}")

    def vector(self, word: str) -> str:
        """A variable or a constant as a vector, which may be stored."""
        return self.name(f"in_all_lanes({word})") if word.startswith("K") else word

    def within(self, head: str, body: Callable[[], None]) -> None:
        """A line that begins a block, and what is in it."""
        self.put(head)
        self.indent += 1
        start = len(self.lines)
        body()
        if len(self.lines) == start: self.put("pass")
        self.indent -= 1

    def constants(self) -> list[str]:
        """The lines that declare the constants."""
        return [f"{name} = f4({number_words(float.fromhex(value))})" for value, name in self.literals.items()]


def number_words(value: float) -> str:
    return "np.nan" if value != value else f"{'-' * (value < 0)}np.inf" if abs(value) == np.inf else repr(value)
