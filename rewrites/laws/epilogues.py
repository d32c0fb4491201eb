"""Kernels with an epilogue: a head, what the kernel starts with, then stages over the rows that it gives. A stage is
declared once, by a function of the rows y and its operands; a chain of stages behind a head is an implementation, made
when a graph is found to hold it (rewrites/compiler/match.py)."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, reduce
from operator import add
from typing import Any

from formats.core.epilogue import STAGES as FUSED
from opmatrix.operators import I, layernorm, rmsnorm, total
from opmatrix.runtime.kernels import KERNELS
from opmatrix.term import Operator
from rewrites.compiler.flat import flat
from rewrites.law import (
    IMPLEMENTATION,
    Sort,
    constant,
    entrywise,
    h,
    k,
    matrix,
    n,
    operator,
    p,
    q,
    scalar,
    stand_in,
    value,
)
from rewrites.laws.kernel_law import Implementation, find_kinds

FIELDS = [field for stage in FUSED for field in stage.fields]       # operands of epilogues, as kernels come to them
ROWS = "_"                                                  # what a stage is applied to, in its pattern
selection = Sort("value", ("given",))                       # a one-hot value, by a field of the batch


# What may follow in the same pass over a row.
def bias(y, bias: constant[p]): return y + bias
def activate(y, activation: entrywise[p]): return y @ activation
def times(y, times: value[p]): return y * times
def residual(y, residual: value[p]): return y + residual
def norm(y, eps: scalar): return y @ layernorm(eps)
def rms(y, eps: scalar): return y @ rmsnorm(eps)
def gained(y, gain: constant[p]): return y @ (I * gain)
def affine(y, gain: constant[p], shift: constant[p]): return y @ (I * gain) + shift


@dataclass(frozen=True, eq=False)
class Stage:
    """What a kernel makes of its rows y by one more function, which kernels that have its operands can do."""

    body: Callable[..., Operator]

    @property
    def name(self) -> str:
        return self.body.__name__

    @cached_property
    def operands(self) -> dict[str, Sort]:
        return dict(self.body.__annotations__)

    @cached_property
    def variables(self) -> dict[str, Sort]:
        """Its rows, which may be anything, and its operands."""
        return {ROWS: operator} | self.operands

    @cached_property
    def pattern(self) -> Operator:
        """The flat term over symbols."""
        operands = {name: stand_in(name, sort) for name, sort in self.operands.items()}
        return flat(self.body(stand_in(ROWS, value[p]), **operands), I)

    @cached_property
    def kinds(self) -> frozenset[str]:
        return find_kinds(self.pattern)

    def precedes(self, other: "Stage") -> bool:
        """Whether a kernel may run it before another: in the order of epilogues, where a residual may come before a
        bias, as sums commute."""
        first, second = (FIELDS.index(next(iter(each.operands))) for each in (self, other))
        return first < second or (self.body, other.body) == (residual, bias)

    def row(self) -> tuple[str, ...]:
        """What it adds to an implementation's name, kind, statement, guard, source: the row of `opmatrix laws`."""
        kernels = ", ".join(dict.fromkeys(head.named[0] for head in HEADS if accepts(head, self)))
        statement = f"{kernels}({', '.join(self.variables)}) = {self.pattern}"
        return f"_{self.name}", IMPLEMENTATION, statement, "", ""


STAGES = tuple(map(Stage, (bias, activate, times, residual, norm, rms, gained, affine)))
NORMS = (norm, affine), (rms, gained)                       # operators of models


def table_rows(count: int) -> Implementation:
    """The sum of one row of each of so many tables."""
    sizes = (n, q, k)[:count]
    fields = {f"field{i}": selection[size] for i, size in enumerate(sizes)}
    tables = {f"table{i}": matrix[size, p] for i, size in enumerate(sizes)}

    def body(**o: Any) -> Any:
        return reduce(add, (o[field] @ o[table] for field, table in zip(fields, tables, strict=True)))
    return Implementation(f"embed{count}", "embed", body, fields | tables,
                          {"fields": lambda at: ",".join(map(at.field, fields))}, count == 1)


# Products of a plain value and of heads that are joined again, tables; rows as they are, and those of heads.
ITSELF = Implementation("itself", "pointwise", lambda x: x, dict(x=value[p]))
HEADS = (
    Implementation("linear", "linear", lambda x, weight: x @ weight, dict(x=value[n], weight=matrix[n, p]), {}, True),
    Implementation("linear_from_heads", "linear", lambda x, weight: (x @ weight) @ total,
                   dict(x=value[h, q], weight=matrix[h, q, p]), {}, True), ITSELF,
    Implementation("heads", "pointwise_heads", lambda x: x, dict(x=value[h, p]),
                   source="of single heads (Henry et al. 2020)"), *map(table_rows, (1, 2, 3)))


def accepts(head: Implementation, stage: Stage) -> bool:
    """Whether the kernel of a head has the operands of a stage."""
    kernel = KERNELS[head.named[0]]
    return all(name in kernel.operands or name in kernel.attributes for name in stage.operands)


@cache
def chain(head: Implementation, *stages: Stage) -> Implementation | None:
    """The implementation of these stages behind a head; none where its kernel cannot do them, or does nothing."""
    bare = head.pattern.kind.name == "symbol"
    if not all(accepts(head, stage) for stage in stages) or (bare and not stages): return None

    def body(**operands: Any) -> Operator:
        def then(y: Operator, stage: Stage) -> Operator:
            return stage.body(y, **{name: operands[name] for name in stage.operands})
        return reduce(then, stages, head.over({name: operands[name] for name in head.variables}))
    names = [head.name, *(stage.name for stage in stages)][head is ITSELF:]
    operands = {name: sort for stage in stages for name, sort in stage.operands.items()}
    return replace(head, name="_".join(names), body=body,
                   variables=head.variables | {name: operands[name] for name in FIELDS if name in operands},
                   attributes=head.attributes | ({"norm": "rms"} if any(each.body is rms for each in stages) else {}),
                   single=head.single if not stages else (bare and len(stages) == 1)
                   or (head is ITSELF and tuple(each.body for each in stages) in NORMS))


def epilogues(after: tuple[Stage, ...] = ()) -> Iterator[tuple[Stage, ...]]:
    """Every chain of stages that ends with these."""
    yield after
    for stage in STAGES:
        if all(map(stage.precedes, after)): yield from epilogues((stage, *after))
