"""Backward lines read as numbers, one after the other, and as terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.traced import Operation
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.nodes import add, const, gated_delta_rule, given, keep_top, mul, product, row, scan, symbol, turn
from opmatrix.algebra.oracles import DenseReading, ReadInput, check_input
from opmatrix.algebra.term import KINDS, Operator
from opmatrix.autodiff.backward_kinds import ahead, dropped, fold, shares

if TYPE_CHECKING:
    from opmatrix.autodiff.pullback import Pulled

COTANGENT = "cotangent"  # the input by which backward begins


def computed_lines(
    pulled: Pulled, x: ReadInput, batch: Batch | None, cotangent: Numeric | None
) -> tuple[Numeric, dict[int, Numeric]]:
    """Compute the result of forward and the lines of gradients, in float64; a value is held as long as another line
    reads it."""
    lines = pulled.lines
    x, batch = check_input(pulled.term(pulled.result), x, batch)
    start = DenseReading(x.astype(np.float64) if hasattr(x, "toarray") else np.asarray(x, np.float64), batch)
    wanted = {pulled.result, *pulled.gradients.values(), *(() if pulled.x is None else (pulled.x,))}
    lasts = {arg: at for at, line in enumerate(lines) for arg in line.args}
    held: dict[int, DenseReading] = {}
    g = None if cotangent is None else np.asarray(cotangent, np.float64)
    for at, line in enumerate(lines):
        args = [held[a] for a in line.args]
        if at == 0:
            held[at] = start
        elif line.op == "entered" and line.more[0].name == COTANGENT:
            held[at] = cotangent_of(held[pulled.result], g)
        else:
            held[at] = computed_line(line, start, args)
        for arg in {*line.args} - wanted - {0}:
            if lasts[arg] == at:
                del held[arg]
    return held[pulled.result].array, {at: held[at].array for at in wanted}


def cotangent_of(result: DenseReading, g: Numeric | None) -> DenseReading:
    """Return the cotangent of a result: ones, if no g is given. Raises InputError for a g of another shape."""
    value = result.array
    if g is None:
        return result.of(np.ones_like(value))
    if g.shape != value.shape:
        raise InputError(f"pullback: the cotangent has shape {g.shape}, but the output of forward {value.shape}")
    return result.of(g)


METHODS = {"add": "__add__", "mul": "__mul__"}


def computed_line(line: Operation, start: DenseReading, args: Sequence[DenseReading]) -> DenseReading:
    """Compute a line from its operands; a line without operands from the batch of `start`."""
    if line.op == "act" and not args:
        return start.of(np.atleast_2d(line.more[0].args[0].array))
    if line.op in SUMS:
        return SUMS[line.op](*args)
    operate = getattr(args[0] if args else start, METHODS.get(line.op, line.op))
    computed: DenseReading = operate(*args[1:], *line.more)
    return computed


def sum_rows(x: DenseReading) -> DenseReading:
    """Sum over the rows of each head: one row is left."""
    return x.of(x.array.sum(-2, keepdims=True))


def sum_outer(x: DenseReading, g: DenseReading) -> DenseReading:
    """Compute xᵀ g, the sum over rows of outer products; x may be a sparse selection."""
    left = x.value.T if hasattr(x.value, "toarray") else x.array.swapaxes(-1, -2)
    return g.of(left @ g.array)


def same(x: DenseReading) -> DenseReading:
    """Return the value itself: saving it changes no numbers."""
    return x


SUMS: dict[str, Callable[..., DenseReading]] = {"summed": sum_rows, "outer": sum_outer, "kept": same}


def term_of(lines: Sequence[Operation], at: int) -> Operator:
    """Return a line as a term in x."""
    terms: dict[int, Operator] = {}
    todo = [at]
    while todo:
        here = todo[-1]
        missing = [a for a in lines[here].args if a not in terms]
        if missing:
            todo += missing
        else:
            terms[todo.pop()] = as_term(lines[here], *(terms[a] for a in lines[here].args))
    return terms[at]


OF_OPERANDS: dict[str, Callable[..., Operator]] = {
    "add": add,
    "mul": mul,
    "turn": turn,
    "beside": row,
    "product": product,
    "scan": scan,
    "delta_rule": gated_delta_rule,
    "keep_top": keep_top,
    "shares": shares,
}


def as_term(line: Operation, *args: Operator) -> Operator:
    """Return the result of an operation on terms, as a term."""
    term: Operator
    match line.op:
        case "input":
            term = KINDS["I"]()
        case "act" if not args:
            term = line.more[0]
        case "act":
            term = through(args[0], line.more[0])
        case name if name in OF_OPERANDS:
            term = OF_OPERANDS[name](*args, *line.more)
        case "outer":
            term = product(turn(args[0]), args[1], monoids.sum)
        case "summed":
            term = product(turn(const(1.0)), args[0], monoids.sum)
        case "kept":
            [term] = args
        case "given":
            term = given(*line.more)
        case "related" | "entered" | "by_distance":
            term = KINDS[line.op](*line.more)
        case "symbol":
            term = through(args[0], symbol(*line.more, ()))
        case "dropped":
            term = through(args[0], dropped(*line.more))
        case "shift" if line.more[0] < 0:
            term = through(args[0], ahead(-line.more[0]))
        case "fold":
            term = through(args[0], fold(*line.more))
        case _:
            term = through(args[0], KINDS[{"split": "heads"}.get(line.op, line.op)](*line.more))
    return term


def through(x: Operator, operator: Operator) -> Operator:
    """Put an operator behind a value, whatever the value's rows are."""
    if "I" in (operator.kind.name, x.kind.name):
        return x if operator.kind.name == "I" else operator
    composed: Operator = KINDS["compose"](x, operator)
    return composed
