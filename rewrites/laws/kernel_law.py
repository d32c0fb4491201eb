"""The class of implementation laws: kernels, and the term that they compute, which the float64 oracle reads too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I
from opmatrix.algebra.term import Operator
from opmatrix.runtime.declarations.operands import Stack
from opmatrix.runtime.kernels import KERNELS
from rewrites.laws.flat import flat
from rewrites.laws.law import IMPLEMENTATION, Sort, scalar, stand_in

if TYPE_CHECKING:
    from rewrites.lowering.calls import CallVariables


READ_BY_DISTANCE = {"distances": "by_distance", "relative": "at_distances"}  # sort -> the kind of its nodes
STACK = "stack"  # layout with a matrix for each head


@dataclass(frozen=True, eq=False)
class Implementation:
    """`kernels`, one or several in turn, compute `body`; empty where no kernel runs, as heads are columns side by side.
    Each kernel takes the variables that its signature names; the operand that it still lacks is the result of the
    kernel before. An attribute may be a function of the call's variables (rewrites/lowering/calls.py). `single`: one
    operator alone, which an import without fusion runs."""

    name: str
    kernels: str | tuple[str, ...]
    body: Callable[..., Operator]
    variables: dict[str, Sort]
    attributes: "dict[str, float | str | Callable[[CallVariables], float | str]]" = field(default_factory=dict)
    single: bool = False
    source: str = ""
    kind: str = IMPLEMENTATION

    @cached_property
    def named(self) -> tuple[str, ...]:
        """The kernels, in turn."""
        return (self.kernels,) if isinstance(self.kernels, str) else self.kernels

    def over(self, operands: Mapping[str, object]) -> Operator:
        """Return the term that the kernel computes, over these operands."""
        return self.body(**operands)

    def data(self, values: Mapping[str, object]) -> list[Data]:
        """Return the arrays that its kernel reads beside its variables, from a template's table."""
        return []

    @cached_property
    def pattern(self) -> Operator:
        """The flat term over symbols, one for each variable."""
        return flat(self.over({name: stand_in(name, sort) for name, sort in self.variables.items()}), I)

    @cached_property
    def root(self) -> str:
        """The kind of node that the pattern begins with."""
        return self.pattern.kind.name

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The kinds of nodes that a graph must have for the pattern to match anywhere."""
        named = {sort.name for sort in self.variables.values()}
        known = {kind for sort, kind in READ_BY_DISTANCE.items() if sort in named}
        return frozenset(node.kind.name for node in self.pattern.walk()) - {"symbol"} | known

    @cached_property
    def layout(self) -> str:
        """The layout of matrices of heads in its kernel: a stack, one above the other, or side by side."""
        if any(operand.annotation is Stack for kernel in self.named for operand in KERNELS[kernel].operands.values()):
            return STACK
        return "rows" if "x" in self.variables and len(self.variables["x"].sizes) == 2 else "columns"

    def row(self) -> tuple[str, ...]:
        """Return name, kind, statement, guard, source: the row of `opmatrix laws`."""
        options = "".join(f", {key}={value!r}" for key, value in self.attributes.items() if not callable(value))
        statement = f"{', '.join(self.named) or 'view'}({', '.join(self.variables)}{options}) = {self.pattern}"
        return self.name, self.kind, statement, "", self.source


def declared(law: Implementation) -> Implementation:
    """Return the law itself. Raises TypeError for a scalar where no graph has one: a number that is added is a row as
    wide as the other term, which is one number for a column alone."""
    for name in (name for name, sort in law.variables.items() if sort == scalar):
        number = stand_in(name, scalar)
        for node in law.pattern.walk():
            if (
                number in node.children
                and node not in (I * number, number * I)
                and any(child.out.cols != 1 for child in node.children)
            ):
                raise TypeError(
                    f"law {law.name.removeprefix('_')}: the scalar {name} is matched only as a "
                    f"factor, I * {name}, or added to one column: declare it constant, a row"
                )
    return law
