"""The kernels that a call stands for, and what they are given: as shapes, which is what prices ask for. Programs name
the same (rewrites/search/emit.py)."""
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from formats.core.sizes import size
from opmatrix.runtime.declarations.kernel import Arguments, Declared, in_heads
from opmatrix.runtime.declarations.operands import Cache, Heads, Rows, Scores, Value
from opmatrix.runtime.kernels import KERNELS

if TYPE_CHECKING:
    from rewrites.lowering.lower import KernelCall, Lowering

TABLE = "table"                                             # operands from which rows are gathered: table0, table1 ...


class CallVariables(NamedTuple):
    """What attributes of a call ask about its variables."""

    lowering: "Lowering"
    bound: dict[str, Any]

    def columns(self, name: str) -> int:
        """Numbers in a row of a value, or of what an operator gives."""
        return self.lowering.columns(self.bound[name])

    def kept(self, name: str) -> int:
        """How many numbers of a row of a value are not 0, at most, of all heads together."""
        return min(self.lowering.columns(self.bound[name]), self.lowering.matcher.kept(self.bound[name]))

    def number(self, name: str) -> int:
        """A number that a variable is."""
        return int(self.lowering.template.values[self.bound[name]])

    def picked(self, name: str) -> str:
        """Which row of every sequence a value is."""
        return self.lowering.matcher.picked[self.bound[name]]

    def field(self, name: str) -> str:
        """The field of the batch that a one-hot value is made of."""
        members = self.lowering.graph.members[self.bound[name]]
        field = next(node.attributes[0] for node in members if node.kind == "given")
        return str(self.lowering.template.values[field])


def table_number(operand: str) -> str:
    """The number of the table that an operand is, from which rows are gathered; nothing for a weight that is
    multiplied by."""
    return operand.removeprefix(TABLE) if operand.startswith(TABLE) else ""


def multiplied(bound: Mapping[str, int], operand: str) -> int:
    """The class of what a weight of a call is multiplied by, or of what chooses rows of a table."""
    return bound[f"field{number}" if (number := table_number(operand)) else "x"]


def list_kernels(call: "KernelCall") -> list[Declared]:
    """The kernels of a call, in the order in which they run."""
    return [KERNELS[name] for name in call.implementation.named]


def attributes(lowering: "Lowering", call: "KernelCall", declared: Declared) -> dict[str, float | str]:
    """The attributes that an implementation gives a kernel."""
    at = CallVariables(lowering, dict(call.bound))
    return {name: value(at) if callable(value) else value for name, value in call.implementation.attributes.items()
            if name in declared.attributes}


def shapes(lowering: "Lowering", cls: int, call: "KernelCall") -> Iterator[tuple[Declared, Arguments, Value]]:
    """The kernels of a call, each with its arguments and its result as prices see them: values as shapes, patterns as
    they are, no weight; of other constants and numbers, that they are there."""
    bound = dict(call.bound)
    before: Value | None = None
    for declared in list_kernels(call):
        found = dict.fromkeys(declared.operands) | {name: each.default for name, each in declared.attributes.items()}
        found |= attributes(lowering, call, declared)
        found |= {f"c{k}": data for k, data in enumerate(call.implementation.data(lowering.template.values))}
        if before is not None: found[next(name for name in declared.operands if name not in bound)] = before
        for name, at in bound.items():
            if name in declared.operands or name in declared.attributes:
                found[name] = argument(lowering, declared.wanted(name), call.implementation.variables[name].name, at)
        before = shaped(lowering, cls, declared.result)
        yield declared, declared.record(**found), before


def argument(lowering: "Lowering", wanted: object, sort: str, at: Any) -> object:
    """A variable of this sort, where an operand of this type is wanted, as prices see it."""
    if sort in ("value", "scores"): return shaped(lowering, at, wanted)
    return lowering.template.values[at] if sort in ("where", "relation") else None if sort == "matrix" else True


def shaped(lowering: "Lowering", cls: int, wanted: object) -> Value:
    """The shape of a class, as a value of this type."""
    heads, row, space = int(lowering.matcher.heads[cls]), lowering.columns, size(str(lowering.matcher.rows[cls]))
    if wanted is Scores: return Scores(heads)
    if wanted is Cache: return Cache(heads, row(cls) // heads)
    return Heads(heads, row(cls) // heads, space=space) if in_heads(wanted, heads) else Rows(row(cls), space=space)
