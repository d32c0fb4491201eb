"""Rules of the vector-Jacobian product: for each operation, the cotangents of its operands, the gradient of its stored
array, and the values that these read. Linear matrices go back by the adjoint that their kind declares, functions of one
number by the derivative declared beside them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.attributes import brief
from opmatrix.algebra.batch.relations import GIVEN
from opmatrix.algebra.batch.traced import Operation, TracedValue
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import cols, const, diag, ones, over, reciprocal, weight
from opmatrix.algebra.operators import share
from opmatrix.algebra.positions.patterns import everyone
from opmatrix.algebra.shapes import LiveSize, Shape, Space
from opmatrix.algebra.term import Operator, adjoint, read
from opmatrix.autodiff.backward_kinds import derivative, derivative_of, widen
from opmatrix.autodiff.delta_vjp import UP_TO_ROW, DeltaPass, negative, row_behind, scanned_back

if TYPE_CHECKING:
    from opmatrix.autodiff.pullback import Pull

PullRule: TypeAlias = Callable[["Pull", int, Operation, TracedValue], None]
PULLS: dict[str, PullRule] = {}


def pulls(*ops: str) -> Callable[[PullRule], PullRule]:
    """Declare how cotangents go back through operations."""

    def enter(rule: PullRule) -> PullRule:
        """Register the rule of these operations."""
        for op in ops:
            PULLS[op] = rule
        return rule

    return enter


def refuse(what: object) -> InputError:
    """Return the error of an operation that no rule pulls back, with the remedy."""
    return InputError(
        f"pullback: {brief(what)} has no pullback: leave it out, or declare one (opmatrix/autodiff/vjp_rules.py)"
    )


def fitted_to(g: TracedValue, shape: Shape) -> TracedValue:
    """Return the cotangent of a value that was spread over heads or columns: their sum."""
    if shape.heads == 1 and g.shape.heads != 1:
        g = g.total()
    return g.act(ones()) if shape.cols == 1 and g.shape.cols != 1 else g


@pulls("input", "given", "related", "entered", "by_distance")
def pull_source(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """End here: a value from outside has no operands."""


@pulls("act")
def pull_act(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Pull back through a matrix kind: by the derivative of a function, the transpose of a weight, or the declared
    adjoint. Raises InputError for any other."""
    matrix = line.more[0]
    if not line.args:
        pull.learn(matrix, lambda: fitted_to(g, Shape(count_heads(matrix), 1, matrix.args[0].shape[-1])).summed())
        return
    x, kind = line.args[0], matrix.kind
    if matrix.entrywise and not matrix.linear:
        derivative_of(matrix)
        pull.give(x, lambda: g * pull.value(x, at).act(derivative(matrix)))
    elif kind is weight:
        pull.give(x, lambda: fitted_to(g.act(weight(matrix.args[0].T)), pull.shape(x)))
        pull.learn(matrix, lambda: fitted_heads(pull.value(x, at).outer(g), count_heads(matrix)))
    elif kind is diag:
        pull.give(x, lambda: g.act(matrix))
        pull.learn(matrix, lambda: fitted_heads((pull.value(x, at) * g).summed(), 1))
    elif kind is over:
        pull_over(pull, x, at, matrix, g)
    elif matrix.kind.name == "ones":
        pull.give(x, lambda: g.act(widen(pull.shape(x).cols)))
    elif kind.adjoint is not None:
        pull.give(x, lambda: adjoined(pull, x, matrix, g))
    else:
        raise refuse(matrix)


def count_heads(matrix: Operator) -> int:
    """Return the number of heads of a stored array."""
    return matrix.args[0].shape[0] if len(matrix.args[0].shape) == 3 else 1


def fitted_heads(g: TracedValue, heads: int) -> TracedValue:
    """Sum a cotangent over its heads if the array has one matrix for all of them."""
    return g.total() if heads == 1 and g.shape.heads != 1 else g


def adjoined(pull: Pull, x: int, matrix: Operator, g: TracedValue) -> TracedValue:
    """Apply the matrix's adjoint to the cotangent."""
    result: TracedValue = read(adjoint(matrix, pull.shape(x).cols), g, {})
    return result


def pull_over(pull: Pull, x: int, at: int, matrix: Operator, g: TracedValue) -> None:
    """Pull back through a reduction of rows by a monoid: by its adjoint where it is linear; to the first of the
    largest, or smallest, numbers; by shares for logsumexp."""
    a, m = matrix.args
    n = pull.shape(x).cols
    if m is monoids.logsumexp and a.kind.name == "ones":
        pull.give(x, lambda: read(share, pull.value(x, at), {}) * g)
    elif m in (monoids.max, monoids.min) and a.kind.name == "ones":

        def order(x: TracedValue) -> TracedValue:
            """Return x, or its negative for `min`, so that the wanted number is the largest."""
            return x if m is monoids.max else x * x.act(const(-1.0))

        pull.give(x, lambda: g.act(widen(n)).keep_top(order(pull.value(x, at)), 1))
    elif m.scale is not None and a.kind.name == "ones":
        mean_of = const(m.scale(n))
        pull.give(x, lambda: g.act(widen(n)) * g.act(mean_of))
    elif m.ordinary:
        pull.give(x, lambda: adjoined(pull, x, a, g))
    else:
        raise refuse(matrix)


@pulls("add")
def pull_add(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Hand the cotangent to both operands, summed where an operand was spread."""
    for operand in line.args:
        pull.give(operand, partial(fitted_to, g, pull.shape(operand)))


@pulls("mul")
def pull_mul(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Multiply the cotangent by the other operand, for each."""
    u, v = line.args
    pull.give(u, lambda: fitted_to(g * pull.value(v, at), pull.shape(u)))
    pull.give(v, lambda: fitted_to(g * pull.value(u, at), pull.shape(v)))


@pulls("keep_top")
def pull_keep_top(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Pull back to the entries that were taken. The choice of the largest entries is not smooth, so `by` gets no
    cotangent."""
    s, by = line.args
    pull.give(s, lambda: fitted_to(g.keep_top(pull.value(by, at), line.more[0]), pull.shape(s)))


@pulls("turn")
def pull_turn(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Exchange rows and columns of the cotangent."""
    pull.give(line.args[0], g.turn)


@pulls("beside")
def pull_beside(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Give each operand its own columns of the cotangent."""
    p, q = (pull.shape(a).cols for a in line.args)
    for arg, (lo, hi) in zip(line.args, ((0, p), (p, p + q)), strict=True):
        pull.give(arg, partial(columns_of, g, lo, hi, p + q, pull.shape(arg)))


def columns_of(g: TracedValue, lo: LiveSize, hi: LiveSize, n: LiveSize, shape: Shape) -> TracedValue:
    """Return columns lo to hi of n, summed if the operand was spread."""
    return fitted_to(g.act(cols(lo, hi, n)), shape)


@pulls("split")
def pull_split(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Put the heads of the cotangent side by side."""
    pull.give(line.args[0], lambda: g.join(line.more[0]))


@pulls("join")
def pull_join(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Divide the columns of the cotangent into heads."""
    pull.give(line.args[0], lambda: g.split(line.more[0]))


@pulls("repeat")
def pull_repeat(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Sum the cotangent over the copies of each head."""
    pull.give(line.args[0], lambda: g.fold(pull.shape(line.args[0]).heads))


@pulls("fold")
def pull_fold(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Copy the cotangent of a sum to all heads of its group."""
    pull.give(line.args[0], lambda: g.repeat(pull.shape(line.args[0]).heads))


@pulls("total")
def pull_total(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Copy the cotangent of the sum to all heads."""
    pull.give(line.args[0], lambda: g.repeat(pull.shape(line.args[0]).heads))


@pulls("dropped")
def pull_dropped(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Drop the same entries of the cotangent, by forward's mask."""
    pull.mask(at)
    pull.give(line.args[0], lambda: g.dropped(*line.more))


@pulls("pick")
def pull_pick(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Return rows to the places where they were picked."""
    pull.give(line.args[0], lambda: g.related(line.more[0]).turn().product(g, monoids.sum, everyone))


@pulls("shift")
def pull_shift(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Shift the cotangent the other way."""
    pull.give(line.args[0], lambda: g.shift(-line.more[0]))


@pulls("scan")
def pull_scan(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Pull back through a scan by the scan of the cotangent from the last row on: sums of all that read a row, for a
    sum; over `decay` they shrink by the factors of the rows behind, h(t) = a(t) h(t - 1) + b(t) (Martin and Cundy 2018,
    section 2.2). Raises InputError for other monoids."""
    (a, b), (over_, where) = line.args, line.more
    if over_ is monoids.sum:
        seen = g.act(const(1.0)).scan(g, monoids.sum, where) if where.whole else scanned_back(g.act(const(1.0)), g)
        pull.give(a, lambda: fitted_to(seen * pull.value(b, at), pull.shape(a)))
        pull.give(b, lambda: fitted_to(seen * pull.value(a, at), pull.shape(b)))
    elif over_ is monoids.decay:
        factors, before = pull.value(a, at), UP_TO_ROW
        if where.whole:  # the last row alone is read, by all
            total = g.act(const(1.0)).scan(g, monoids.sum, where)
            g = total + negative(total.shift(-1))
        read_by = scanned_back(row_behind(factors), g)
        pull.give(b, lambda: fitted_to(read_by, pull.shape(b)))
        result = factors.scan(pull.value(b, at), over_, before) if where.whole else pull.value(at, at)
        pull.give(a, lambda: fitted_to(read_by * result.shift(1), pull.shape(a)))
    else:
        raise refuse(f"a scan over {name_of(over_)}")


@pulls("delta_rule")
def pull_delta_rule(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Pull back through the delta rule: what rows wrote goes back by the delta rule from the last row on."""
    q, k, v, betas, decays = (pull.value(operand, at) for operand in line.args)
    rows = DeltaPass(q, k, v, betas, decays, g)
    backward = rows.for_queries, rows.for_keys, rows.for_values, rows.for_betas, rows.for_decays
    for operand, make in zip(line.args, backward, strict=True):
        pull.give(operand, partial(fitted_back, pull, operand, make))


def fitted_back(pull: Pull, operand: int, make: Callable[[], TracedValue]) -> TracedValue:
    """Return a cotangent, summed where its operand was spread."""
    return fitted_to(make(), pull.shape(operand))


@pulls("shares")
def pull_shares(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """P (g - the sum of a row of P g)."""

    def back() -> TracedValue:
        """Return P (g - the row sums of P g), P the saved shares."""
        P = pull.value(at, at)
        return P * (g + negative((P * g).act(ones())))

    pull.give(line.args[0], back)


@pulls("product")
def pull_product(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Pull back through a product over a sum: each operand's cotangent is a product with the other operand, transposed.
    Tokens are merged within sequences where forward does so."""
    (u, v), over_ = line.args, line.more[0]
    if over_ is monoids.mean and is_membership(pull, u):
        pull_average(pull, at, line, g)
        return
    if over_ is not monoids.sum:
        raise refuse(f"a product over {name_of(over_)}")
    if pull.forward.line(u).op != "related" and line.more[1] is not everyone and not pull.forward.masked(u):
        raise refuse(f"a product over sum where {line.more[1]}")
    pairs = all(isinstance(n, Space) for n in g.shape.size)
    within = pull.forward.within
    pull.give(
        u,
        lambda: fitted_heads(
            g.product(pull.value(v, at).turn(), monoids.sum, within if pairs else everyone), pull.shape(u).heads
        ),
    )

    def right() -> TracedValue:
        """Multiply the transposed left operand by the cotangent; for scores, the cotangent's transpose by the left
        operand."""
        if pairs:
            cotangent = g.turn().product(pull.value(u, at), monoids.sum, within).turn()
        else:
            left = pull.value(u, at).turn()
            both = all(isinstance(n, Space) for n in left.shape.size) and pull.forward.line(u).op != "related"
            cotangent = left.product(g, monoids.sum, within if both else everyone)
        return fitted_heads(cotangent, pull.shape(v).heads)

    pull.give(v, right)


def is_membership(pull: Pull, at: int) -> bool:
    """True for the rows of a batch by sequence: a 1 for each row of a sequence, 0 elsewhere."""
    line = pull.forward.line(at)
    return line.op == "related" and line.more[0] == GIVEN["members"]


def pull_average(pull: Pull, at: int, line: Operation, g: TracedValue) -> None:
    """Share the cotangent of a sequence's mean equally among its rows."""
    u, v = line.args

    def back() -> TracedValue:
        """Return the cotangent over the count of rows, for each of the rows."""
        members = pull.value(u, at)
        return members.turn().product(g * members.act(ones()).act(reciprocal), monoids.sum, everyone)

    pull.give(v, back)


def name_of(over_: type[Monoid]) -> str:
    """Return the name of a monoid for error texts."""
    return over_.__name__


def teaches(matrix: Operator) -> Data | None:
    """Return the stored array of an operator that learns; None for any other operator, and for one number, such as a
    scale."""
    if matrix.kind not in (weight, diag, const):
        return None
    data: Data = matrix.args[0]
    return data if data.shape != (1,) else None
