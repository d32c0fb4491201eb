"""Kernels with an epilogue: a head, which the kernel starts with, then stages over the rows that the head computes. A
stage is declared once, by a function of the rows y and its operands. A chain of stages behind a head is an
implementation, built when a graph contains it (rewrites/lowering/kernel_matches.py)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, lru_cache, reduce
from operator import add, or_

from formats.core.stage import STAGES as FUSED
from opmatrix.algebra.operators import I, layernorm, rmsnorm, total
from opmatrix.algebra.term import Operator
from opmatrix.runtime.kernels import KERNELS
from rewrites.laws.kernel_law import Implementation, declared
from rewrites.laws.law import Sort, constant, entrywise, h, k, matrix, n, p, q, scalar, value, varying

FIELDS = [field for stage in FUSED for field in stage.operands]  # operands of epilogues, in the order of kernels
selection = Sort("value", ("given",))  # a one-hot value, by a field of the batch
StageRows = varying[p]  # rows before a stage, in one head or several

# formulas that are built for every kernel that may end in them
MADE_NORM, MADE_RMS = (lru_cache(64, typed=True)(formula) for formula in (layernorm, rmsnorm))


# Stages that may follow in the same pass over a row.
def bias(rows: StageRows, bias: constant[p]):
    return rows + bias


def activate(rows: StageRows, activation: entrywise[p]):
    return rows @ activation


def times(rows: StageRows, times: value[p]):
    return rows * times


def residual(rows: StageRows, residual: value[p]):
    return rows + residual


def norm(rows: StageRows, eps: scalar):
    return rows @ MADE_NORM(eps)


def rms(rows: StageRows, eps: scalar):
    return rows @ MADE_RMS(eps)


def gained(rows: StageRows, gain: constant[p]):
    return rows @ (I * gain)


def affine(rows: StageRows, gain: constant[p], shift: constant[p]):
    return rows @ (I * gain) + shift


def stage(body: Callable[..., Operator]) -> Implementation:
    """Return the implementation of one more function of a head's rows, for the kernels that have its operands."""
    sorts = dict(body.__annotations__)
    kernels = [
        name
        for name in dict.fromkeys(head.named[0] for head in HEADS)
        if sorts.keys() - {"rows"} <= KERNELS[name].operands.keys() | KERNELS[name].attributes.keys()
    ]
    return declared(
        Implementation(f"_{body.__name__}", (*kernels,), body, sorts, {"norm": "rms"} if body is rms else {})
    )


def table_rows(count: int) -> Implementation:
    """Return the implementation of the sum of one row from each of `count` tables."""
    sizes = (n, q, k)[:count]
    fields = {f"field{i}": selection[size] for i, size in enumerate(sizes)}
    tables = {f"table{i}": matrix[size, p] for i, size in enumerate(sizes)}

    def body(**o: Operator) -> Operator:
        """Add one row of each table, chosen by its field."""
        return reduce(add, (o[field] @ o[table] for field, table in zip(fields, tables, strict=True)))

    return Implementation(
        f"embed{count}",
        "embed",
        body,
        fields | tables,
        {"fields": lambda at: ",".join(map(at.field, fields))},
        count == 1,
    )


# Heads: products of a plain value, and of heads that are joined again, tables; plain rows, and rows of heads.
ITSELF = Implementation("itself", "pointwise", lambda x: x, dict(x=value[p]))
HEADS = (
    Implementation("linear", "linear", lambda x, weight: x @ weight, dict(x=value[n], weight=matrix[n, p]), {}, True),
    Implementation(
        "linear_from_heads",
        "linear",
        lambda x, weight: (x @ weight) @ total,
        dict(x=value[h, q], weight=matrix[h, q, p]),
        {},
        True,
    ),
    ITSELF,
    Implementation(
        "heads", "pointwise_heads", lambda x: x, dict(x=value[h, p]), source="of single heads (Henry et al. 2020)"
    ),
    *map(table_rows, (1, 2, 3)),
)


STAGES = tuple(map(stage, (bias, activate, times, residual, norm, rms, gained, affine)))
if unlawful := [
    fused.__name__ for fused in FUSED if not any(fused.operands.keys() & stage.variables.keys() for stage in STAGES)
]:
    raise TypeError(f"stage {unlawful[0]}: rewrites/laws/epilogues.py has no law for it, a function of its operands")
NORM_STAGES = (norm, affine), (rms, gained)  # operators of models


@cache
def precedes(first: Implementation, second: Implementation) -> bool:
    """True if a kernel may run one stage before another: in the order of epilogues, except that a residual may come
    before a bias, as sums commute."""
    one, other = (min(FIELDS.index(name) for name in step.variables if name != "rows") for step in (first, second))
    return one < other or (first.body, second.body) == (residual, bias)


@cache
def chain_stages(head: Implementation, *stages: Implementation) -> Implementation | None:
    """Return the implementation of these stages behind a head; None if its kernel lacks one of them, or the chain is
    empty."""
    bare = head.pattern.kind.name == "symbol"
    if not all(head.named[0] in step.named for step in stages) or (bare and not stages):
        return None

    def body(**operands: object) -> Operator:
        """Apply the stages to the head's rows, each with its operands."""
        rows = head.over({name: operands[name] for name in head.variables})
        for step in stages:
            rows = step.over({name: (operands | {"rows": rows})[name] for name in step.variables})
        return rows

    sorts = {name: sort for step in stages for name, sort in step.variables.items()}
    bodies = tuple(step.body for step in stages)
    return replace(
        head,
        name="".join(step.name for step in (head, *stages)).removeprefix("itself_"),
        body=body,
        variables=head.variables | {name: sorts[name] for name in FIELDS if name in sorts},
        attributes=reduce(or_, (step.attributes for step in stages), head.attributes),
        single=head.single if not stages else bare and (len(stages) == 1 or (head is ITSELF and bodies in NORM_STAGES)),
    )


def epilogues(after: tuple[Implementation, ...] = ()) -> Iterator[tuple[Implementation, ...]]:
    """Yield every chain of stages that ends with these."""
    yield after
    for step in STAGES:
        if all(precedes(step, other) for other in after):
            yield from epilogues((step, *after))
