"""The common part of kernel texts: variables that hold vectors of 16 numbers, constants, graphs of numbers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from formats.kernels.generated.rowwise.scalar_functions import SCALAR_OPERATIONS
from formats.kernels.generated.rowwise.scalars import NumberGraph, StandIn
from formats.kernels.generated.rowwise.stored import Stores

IN_TEXT = 8  # sizes up to this are numbers in the text
OPERATORS = "+", "-", "*", "/"
EXTREMES = {"largest_of": "larger", "smallest_of": "smaller"}  # for any numbers: if the second is not NaN


@dataclass
class VectorText:
    """A kernel text under construction: its lines, the words of sizes, and the constants."""

    lines: list[str] = field(default_factory=list, kw_only=True)
    sizes: dict[int, str] = field(default_factory=dict, kw_only=True)
    literals: dict[str, str] = field(default_factory=dict, kw_only=True)
    indent: int = field(default=3, kw_only=True)
    count: int = field(default=0, kw_only=True)
    ordered: bool = field(default=False, kw_only=True)  # no number that is compared is NaN
    stores: Stores = field(default_factory=Stores, kw_only=True)

    def framed(self, name: str, fields: Iterable[str], body: Iterable[str]) -> str:
        """Return the whole text: constants, the record of a call with these words, and a function of one item."""
        head = [
            *self.constants(),
            "",
            f"RECORD = np.dtype(words({' '.join(fields)!r}))",
            "",
            "",
            f"def {name}(item, worker, arguments):",
            "    c = record(arguments, RECORD)",
        ]
        return "\n".join([*head, *body, ""])

    def put(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def name(self, code: str) -> str:
        """Assign an expression to a new variable, and return the variable."""
        self.count += 1
        self.put(f"v{self.count} = {code}")
        return f"v{self.count}"

    def size(self, number: int) -> str:
        """Return a size as the text spells it: a number, or the word of a large one."""
        if number <= IN_TEXT:
            return str(number)
        return self.sizes.setdefault(number, f"n{len(self.sizes)}")

    def literal(self, value: float) -> str:
        """Return the constant of the text for a float32 number."""
        return self.literals.setdefault(float(np.float32(value)).hex(), f"K{len(self.literals)}")

    def operation(self, op: str, args: list[str]) -> str:
        """Return a variable that holds an operation on others."""
        code = SCALAR_OPERATIONS[op].code
        if all(arg.startswith("K") for arg in args):
            args = [f"in_all_lanes({args[0]})", *args[1:]]
        if code in OPERATORS:
            return self.name(f"{args[0]} {code} {args[1]}")
        if code in EXTREMES and args[0].startswith("K"):
            args = args[::-1]
        if code in EXTREMES and (self.ordered or args[1].startswith("K")):
            code = EXTREMES[code]
        return self.name(f"{code}({', '.join(args)})")

    def graph(self, graph: NumberGraph, inputs: list[str]) -> list[str]:
        """Return the outputs of a graph of numbers, applied to variables."""
        return graph.fill(inputs, self.literal, lambda node, args: self.operation(node.op, args))

    def emit(self, ends: Iterable[StandIn], held: dict[int, str]) -> list[str]:
        """Return the variables of numbers, given the variables in `held`, by id of node; each new variable is added to
        `held`."""

        def one(node: StandIn) -> str:
            if (variable := held.get(id(node))) is None:
                literal = node.op == "literal"
                variable = self.literal(node.value) if literal else self.operation(node.op, [*map(one, node.args)])
                held[id(node)] = variable
            return variable

        return [*map(one, ends)]

    def assign(self, names: list[str], found: list[str]) -> None:
        """Assign all values at once: no variable is read after it was written."""
        sources = [
            self.name(source) if source in names and source != name else source
            for name, source in zip(names, found, strict=True)
        ]
        for name, source in zip(names, sources, strict=True):
            if name != source:
                self.put(f"{name} = {source}")

    def vector(self, word: str) -> str:
        """Return a variable or a constant as a vector, which may be stored."""
        return self.name(f"in_all_lanes({word})") if word.startswith("K") else word

    def within(self, head: str, body: Callable[[], None]) -> None:
        """Write a line that begins a block, and the lines in it."""
        self.put(head)
        self.indent += 1
        start = len(self.lines)
        body()
        if len(self.lines) == start:
            self.put("pass")
        self.indent -= 1

    def constants(self) -> list[str]:
        """Return the lines that declare the constants."""
        return [f"{name} = f4({number_words(float.fromhex(value))})" for value, name in self.literals.items()]


def number_words(value: float) -> str:
    return "np.nan" if value != value else f"{'-' * (value < 0)}np.inf" if abs(value) == np.inf else repr(value)
