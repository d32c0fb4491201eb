"""The kernels of a call, and their arguments as shapes, which is the form that prices need. Programs name the same
kernels (rewrites/search/emit.py)."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from formats.core.sizes import size
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.runtime.declarations.kernel import Arguments, Declared, in_heads
from opmatrix.runtime.declarations.operands import Cache, Heads, Rows, Scores, Value
from opmatrix.runtime.kernels import KERNELS

if TYPE_CHECKING:
    from rewrites.lowering.lower import KernelCall, Lowering

TABLE = "table"  # prefix of operands that rows are gathered from: table0 ...


class CallVariables(NamedTuple):
    """The variables of a call, as the attributes of its implementation read them."""

    lowering: "Lowering"
    bound: dict[str, Any]

    def columns(self, name: str) -> int:
        """Return the number of columns of a value, or of the result of an operator."""
        return self.lowering.columns(self.bound[name])

    def kept(self, name: str) -> int:
        """Return an upper bound of the nonzero numbers in a row of a value, all heads together."""
        return min(self.lowering.columns(self.bound[name]), self.lowering.matcher.kept(self.bound[name]))

    def number(self, name: str) -> int:
        """Return the number that a variable is bound to."""
        return int(self.lowering.template.values[self.bound[name]])

    def pattern(self, name: str) -> Pattern:
        """Return the pattern that a variable is bound to."""
        pattern: Pattern = self.lowering.template.values[self.bound[name]]
        return pattern

    def picked(self, name: str) -> str:
        """Return the name of the row that a value picks of every sequence."""
        return self.lowering.matcher.picked[self.bound[name]]

    def field(self, name: str) -> str:
        """Return the field of the batch that a one-hot value is built from."""
        members = self.lowering.graph.members[self.bound[name]]
        field = next(node.attributes[0] for node in members if node.kind == "given")
        return str(self.lowering.template.values[field])


def table_number(operand: str) -> str:
    """Return the number of the table that an operand is, as text, where rows are gathered from it; an empty text for a
    weight of a product."""
    return operand.removeprefix(TABLE) if operand.startswith(TABLE) else ""


def multiplied(bound: Mapping[str, int], operand: str) -> int:
    """Return the class that a weight of a call is multiplied by, or that chooses rows of a table."""
    return bound[f"field{number}" if (number := table_number(operand)) else "x"]


def list_kernels(call: "KernelCall") -> list[Declared]:
    """Return the kernels of a call, in the order in which they run."""
    return [KERNELS[name] for name in call.implementation.named]


def attributes(lowering: "Lowering", call: "KernelCall", declared: Declared) -> dict[str, float | str]:
    """Return the attributes that an implementation gives a kernel."""
    at = CallVariables(lowering, dict(call.bound))
    return {
        name: value(at) if callable(value) else value
        for name, value in call.implementation.attributes.items()
        if name in declared.attributes
    }


def shapes(lowering: "Lowering", cls: int, call: "KernelCall") -> Iterator[tuple[Declared, Arguments, Value]]:
    """Yield the kernels of a call, each with its arguments and its result as prices see them. Values are shapes, one
    for all operands of a class, patterns are themselves, a weight is None, and other constants and numbers are True."""
    bound = dict(call.bound)
    known: dict[tuple[str, str, object], object] = {}
    before: Value | None = None
    for declared in list_kernels(call):
        arguments = dict.fromkeys(declared.operands) | {
            name: attribute.default for name, attribute in declared.attributes.items()
        }
        arguments |= attributes(lowering, call, declared)
        arguments |= {f"c{k}": data for k, data in enumerate(call.implementation.data(lowering.template.values))}
        if before is not None:
            arguments[next(name for name in declared.operands if name not in bound)] = before
        for name, at in bound.items():
            if name in declared.operands or name in declared.attributes:
                wanted, sort = declared.wanted(name), call.implementation.variables[name].name
                read = argument(lowering, wanted, sort, at)
                arguments[name] = known.setdefault((str(wanted), sort, at), read)
        before = shaped(lowering, cls, declared.result)
        yield declared, declared.record(**arguments), before


def argument(lowering: "Lowering", wanted: object, sort: str, at: Any) -> object:
    """Return a variable of this sort as prices see it, for an operand of the type `wanted`."""
    if sort in ("value", "scores"):
        return shaped(lowering, at, wanted)
    return lowering.template.values[at] if sort in ("where", "relation") else None if sort == "matrix" else True


def shaped(lowering: "Lowering", cls: int, wanted: object) -> Value:
    """Return the shape of a class, as a value of this type."""
    heads, row, space = int(lowering.matcher.heads[cls]), lowering.columns, size(str(lowering.matcher.rows[cls]))
    if wanted is Scores:
        return Scores(heads)
    if wanted is Cache:
        return Cache(heads, row(cls) // heads)
    return Heads(heads, row(cls) // heads, space=space) if in_heads(wanted, heads) else Rows(row(cls), space=space)
