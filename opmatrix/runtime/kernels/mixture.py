"""Mixtures of experts: each row by the few stacked matrices that its gate names."""

from collections.abc import Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from formats import kernels as compiled
from formats.core.activation import COMPILED
from formats.core.choices import OneOf, Range
from formats.core.epilogue import UNIT, gamma
from formats.core.sizes import T, n, p, size
from formats.core.stage import SMALLEST, is_given
from formats.core.stage import bound as bound_stages
from formats.core.stage import pullback as pull_stages
from formats.core.stage import reference as apply_stages
from formats.machine.prices import Price, Timed, Work
from formats.storage.stacked import Stacked
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, times_experts
from opmatrix.runtime.declarations.fitting import TIMED_ROUTERS, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import FLOAT_BYTES, BufferSize, Heads, Rows, Stack, Vector
from opmatrix.runtime.declarations.padded import Padded, activate_rows, into_heads
from opmatrix.runtime.declarations.pullbacks import Cotangents, dense_numbers
from opmatrix.runtime.declarations.telling import LARGEST_DECADE, SQUARED_DECADE, telling_values
from opmatrix.runtime.kernels.gate import in_columns

if TYPE_CHECKING:
    from formats.machine.calibration import Grid, Numbers

Activated = Annotated[str, OneOf(("", *COMPILED))]
Most = Annotated[int, Range(int, 1, 2**20)]
BYTE_STEP = 1 / 127  # step of a row in bytes, relative to its largest number
TOLD_ROWS, EXPERTS_TOLD = 5, 64  # rows of a telling batch; experts that get all rows or one
EXPERTS_COUNTED = 20  # experts that get no row, one, two and so on
TOLD_SHARES = 1e-30, 1e-6, 1e6
WORD_BYTES = 72  # bytes of a row's place: its matrix, slot, row, two tiles
k, E = size("k"), size("E")  # experts that a row names, and all experts


def bias_rows(bias: Any, count: int) -> Any:
    """Return the bias of each of `count` matrices, from their biases one after another."""
    return None if bias is None else bias.reshape(count, -1)


class Matrices:
    """The matrices of a stack, read one at a time in float64, and rows as they are multiplied: all of a large stack at
    once would be twice its size in float32."""

    def __init__(self, stack: Any) -> None:
        self.stack = stack

    def operands(self, e: int, x: Doubles) -> tuple[Doubles, Doubles]:
        """Return two matrices whose product is the kernel's result for these rows, but for the roundings of its
        sums."""
        if isinstance(self.stack, Stacked):
            read, W = self.stack[e].operands(x)
            return np.asarray(read), np.asarray(W)
        return x, np.asarray(self.stack[e], np.float64)

    def multiply(self, e: int, x: Doubles) -> Doubles:
        """Multiply rows by matrix e in float64, x as the kernel reads it."""
        read, W = self.operands(e, x)
        return read @ W

    def bound(self, e: int, x: Doubles, read: Doubles, W: Doubles) -> Doubles:
        """Bound the error of a product, relative to the exact product of `read` and W."""
        if isinstance(self.stack, Stacked):
            return np.asarray(self.stack[e].bound(x, (read, W)))
        return np.asarray(gamma(len(W)) * (abs(read) @ abs(W)) + len(W) * SMALLEST)

    def spread(self, e: int, x: Doubles, read: Doubles, error: Doubles) -> Doubles:
        """Bound the error of the rows as they are read if x has an error: a number near the middle between two stored
        ones may become either. Rows are scaled by their largest number, whose own error affects all; if columns are
        mixed before, any number may be near a middle."""
        if not (isinstance(self.stack, Stacked) and self.stack.rounds):
            return error
        largest = abs(x).max(1, keepdims=True)
        relative = (error / np.maximum(largest, SMALLEST)).max(1, keepdims=True) + 4 * UNIT
        if self.stack.form.rounds_otherwise():
            apart = abs(read).max(1, keepdims=True) * (BYTE_STEP + read.shape[1] * relative)
        else:
            moved = np.where(abs(x) == largest, 0.0, error + 2 * relative * abs(x))
            apart = np.maximum(*(abs(self.operands(e, x + way * moved)[0] - read) for way in (1, -1)))
        return np.asarray(apart + 2 * relative * abs(read))


class Raised(NamedTuple):
    """The stages of a first product of an expert: its bias, in whatever precision it comes, and the function."""

    bias: Doubles | None
    activation: str

    @classmethod
    def of(cls, a: Arguments, e: int) -> "Raised":
        """Take the bias of expert e, if there is one, and the function of all experts."""
        bias = bias_rows(a.bias, a.gate.shape[1])
        return cls(None if bias is None else bias[e], a.activation)

    @classmethod
    def beside(cls, a: Arguments, e: int) -> "Raised":
        """Take the bias and the function of the factor of expert e."""
        bias = bias_rows(a.beside_bias, a.gate.shape[1])
        return cls(None if bias is None else bias[e], a.beside_activation)


def routed(gate: Doubles) -> Iterator[tuple[int, Any]]:
    """Yield the matrices that rows name, with the rows of each."""
    for e in range(gate.shape[1]):
        if len(rows := np.flatnonzero(gate[:, e])):
            yield e, rows


def named_too_many(a: Arguments) -> Any:
    """Return a mask of the rows that name more matrices than `most`."""
    return np.count_nonzero(in_columns(a.gate), 1) > a.most


def time_routing(grid: "Grid", numbers: "Numbers") -> Iterator[Timed]:
    """Yield timed calls with matrices so small that only rows and tiles take time."""
    for count, most in TIMED_ROUTERS:
        up, down = numbers.fresh(count, 16, 16), numbers.fresh(count, 16, 256)
        for rows in (1, 16, 256):
            x, out, gate = numbers.some(rows, 16), numbers.room(rows, 256), np.zeros((rows, count), np.float32)
            for at in range(rows):
                gate[at, np.random.default_rng(at).permutation(count)[:most]] = 0.5
            yield (
                {"T": rows, "n": 16, "p": 256, "k": most, "E": count},
                partial(compiled.experts, x, gate, up, down, out, most=most),
            )


@kernel(
    launches=True,
    price=Price(
        (T * E, T * k, k * T * (n + p)),
        lambda tile: Work(vector=T * E + 2 * T * k * p, moved=T * E + T * k * (n + 2 * p)),
        time_routing,
        common=False,
    ),
)
class experts(Arguments):
    """The sum over the experts e that a row's gate names of gate[e] * (f(x @ up[e] + bias[e]) @ down[e]), + residual,
    where f is a function of each number, times g(x @ beside[e] + beside_bias[e]) where that is given, g another
    function. The others are not read. Biases are the rows of all experts, one after another."""

    def run(
        out: Any,
        x: Rows,
        gate: Heads,
        up: Stack,
        down: Stack,
        bias: Vector | None = None,
        beside: Stack | None = None,
        residual: Rows | None = None,
        beside_bias: Vector | None = None,
        *,
        most: Most,
        activation: Activated = "",
        beside_activation: Activated = "",
    ) -> None:
        """Launch the compiled kernel, which reads the experts that the gate names and no others."""
        by = in_columns(gate)
        bias, beside_bias = (bias_rows(rows, by.shape[1]) for rows in (bias, beside_bias))
        compiled.experts(x, by, up, down, out, beside, activation, most, residual, bias, beside_bias, beside_activation)

    def shape(a) -> Rows:
        """Return rows of the second product's columns. Raises ValueError for the first operand that does not fit the
        stack `up`."""
        (count, rows, hidden), cols = a.up.shape, a.down.shape[2]
        same("gate heads", a.gate.heads, count)
        same("gate columns of a head", a.gate.cols, 1)
        same("x columns", a.x.cols, rows)
        same("down", a.down.shape[:2], (count, hidden))
        for name, bias in (("bias", a.bias), ("beside_bias", a.beside_bias)):
            if bias is not None:
                same(name, bias.shape, (count * hidden,))
        if a.beside is None and (a.beside_bias is not None or a.beside_activation):
            raise ValueError("beside: none, where its bias or its function is given")
        if a.beside is not None:
            same("beside", a.beside.shape, a.up.shape)
        if a.residual is not None:
            same("residual columns", a.residual.cols, cols)
        return Rows(cols)

    def reads(a) -> dict[str, object]:
        """Return stacks as Matrices, read one by one, which read rows as their format does."""
        return {
            name: Matrices(stack) for name in ("up", "down", "beside") if isinstance(stack := getattr(a, name), Stacked)
        }

    def reference(a) -> Doubles:
        """Return the result; a row that names more experts than `most` is NaN."""
        up, down, beside = (
            stack if isinstance(stack, Matrices) else Matrices(stack) for stack in (a.up, a.down, a.beside)
        )
        total = np.zeros((len(a.x), down.stack.shape[2]))
        for e, rows in routed(in_columns(a.gate)):
            y = apply_stages(up.multiply(e, a.x[rows]), Raised.of(a, e))
            if a.beside is not None:
                y = y * apply_stages(beside.multiply(e, a.x[rows]), Raised.beside(a, e))
            total[rows] += a.gate[rows, e] * down.multiply(e, y)
        if a.residual is not None:
            total = total + a.residual
        total[named_too_many(a)] = np.nan
        return total

    def padded(a) -> Padded:
        """Compute every expert for every row, and sum them times the gate, which is 0 for experts not named."""
        x, gate = np.expand_dims(a.x, -3), np.swapaxes(a.gate, -3, -2) if a.gate.ndim > 3 else a.gate
        hidden = raise_padded(x @ a.up, a.bias, a.activation)
        if a.beside is not None:
            hidden = hidden * raise_padded(x @ a.beside, a.beside_bias, a.beside_activation)
        total = (hidden @ a.down * gate).sum(-3)
        return total if a.residual is None else total + a.residual

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangents of x and of the shares of the experts that rows name now; the choice has none."""
        of_x, shares = np.zeros((len(g), *a.x.shape), g.dtype), np.zeros((len(g), *a.gate.shape), g.dtype)
        for e, rows in routed(in_columns(a.gate)):
            x, of_rows = a.x[rows], g[:, rows]
            up, down = (dense_numbers(stack[e]) for stack in (a.up, a.down))
            stages = Raised.of(a, e)
            raised = x @ up
            hidden = apply_stages(raised, stages)
            beside, after = None if a.beside is None else dense_numbers(a.beside[e]), Raised.beside(a, e)
            factor = np.ones_like(hidden) if beside is None else apply_stages(x @ beside, after)
            of_hidden = of_rows @ down.T
            shares[:, rows, e] = (of_hidden * hidden * factor).sum(-1).reshape(shares[:, rows, e].shape)
            of_hidden = of_hidden * a.gate[rows, e].reshape(-1, 1)
            of_x[:, rows] += pull_stages(raised, stages, of_hidden * factor)[0] @ up.T
            if beside is not None:
                of_x[:, rows] += pull_stages(x @ beside, after, of_hidden * hidden)[0] @ beside.T
        return {"x": of_x, "gate": shares, **({} if a.residual is None else {"residual": g})}

    def bound(a) -> Doubles:
        """Bound the errors of products, of the function and of the factor, carried through the second product."""
        up, down, beside = Matrices(a.up), Matrices(a.down), Matrices(a.beside)
        x, gate = np.asarray(a.exact.x), in_columns(np.asarray(a.exact.gate))
        errors, sizes = np.zeros((len(x), a.down.shape[2])), np.zeros((len(x), a.down.shape[2]))
        for e, rows in routed(gate):
            y, error = hidden_rows(a, up, beside, x[rows], e)
            read, W = down.operands(e, y)
            off = down.spread(e, y, read, error)
            lost = off @ abs(W) + down.bound(e, y, abs(read) + off, W)
            weight = abs(gate[rows, e][:, None])
            errors[rows] += weight * lost
            sizes[rows] += weight * (abs(read @ W) + lost)
        if a.residual is not None:
            sizes += abs(a.exact.residual)
        return errors + gamma(a.most + 2) * sizes + SMALLEST

    def cost(a, out: Rows, extents: Extents) -> Costs:
        """Return the price of rows there and back, and of the products with known stacks."""
        rows, count = extents[out.space], a.gate.heads
        most = min(a.most, count)
        costs = [("experts", {"T": rows, "n": a.x.cols, "p": out.cols, "k": most, "E": count})]
        return costs + [
            cost
            for stack in (a.up, a.beside, a.down)
            if stack is not None
            for cost in times_experts(*described(stack), count, most, rows)
        ]

    def telling(a, rng: "np.random.Generator") -> Iterator[dict[str, object]]:
        """Yield rows of every kind among all experts; all rows with one expert, and all but one, for each expert (for
        some, if there are very many); experts of one row, of two, of three and so on; rows that name fewer than they
        may, or none."""
        count, width = len(a.up), a.x.shape[1]
        rest = {} if a.residual is None else {"residual": a.residual.shape[1:]}
        rows = telling_values({"x": (width,), **rest}, rng, LARGEST_DECADE if a.beside is None else SQUARED_DECADE)
        yield {**rows, "gate": in_gates(drawn_gates(len(rows["x"]), count, min(a.most, count), rng), a.gate)}
        for gates in routed_gates(count, min(a.most, count), rng):
            beside = {name: rng.standard_normal((len(gates), *shape), np.float32) for name, shape in rest.items()}
            x = rng.standard_normal((len(gates), width), np.float32)
            yield {**beside, "x": x, "gate": in_gates(gates, a.gate)}

    def scratch(a) -> BufferSize:
        """Return the bytes of the experts' rows, between its stages."""
        (_, n, f), q = a.up.shape, a.down.shape[2]
        return BufferSize(min(a.most, a.gate.heads) * (FLOAT_BYTES * (f + max(n, q)) + WORD_BYTES), 0)

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `experts` takes another path."""
        return compiled.borders("experts")


def raise_padded(y: Padded, bias: Padded, activation: str) -> Padded:
    """Add the biases of experts to products (.., experts, rows, columns), and apply the function."""
    if is_given(bias):
        y = y + np.expand_dims(into_heads(bias, y.shape[-3]), 1)
    return activate_rows(y, activation) if activation else y


def drawn_gates(rows: int, count: int, most: int, rng: "np.random.Generator") -> Any:
    """Return rows that each name `most` drawn experts, with shares that sum to one."""
    order = rng.permuted(np.tile(np.arange(count), (rows, 1)), axis=1)[:, :most]
    gates = np.zeros((rows, count), np.float32)
    np.put_along_axis(gates, order, rng.dirichlet(np.ones(most), rows).astype(np.float32), 1)
    return gates


def routed_gates(count: int, most: int, rng: "np.random.Generator") -> "Iterator[Any]":
    """Yield batches of gates that name experts as rarely and as often as possible."""
    few = np.eye(count, dtype=np.float32)
    ends = {0, count - 1, *rng.permutation(count)[:EXPERTS_TOLD].tolist()}
    for e in sorted(ends):
        yield few[[e] * TOLD_ROWS]  # all rows with one expert
        yield few[[e, *[(e + 1) % count] * (TOLD_ROWS - 1)]]  # one row with one expert, all others with the next
    order = rng.permutation(count)[:EXPERTS_COUNTED]
    counts = np.repeat(order, np.arange(len(order)))
    yield few[rng.permutation(counts)] if len(counts) else few[:1]
    yield few
    yield 0 * few[:1]
    mixed = drawn_gates(TOLD_ROWS * count, count, most, rng)
    yield mixed * (rng.integers(0, 2, mixed.shape) > 0)
    for share in TOLD_SHARES:
        yield np.float32(share) * drawn_gates(TOLD_ROWS, count, most, rng)


def in_gates(gates: Any, like: Any) -> Any:
    """Return gates with the axes of `like`."""
    return gates if like.ndim == 2 else gates[:, :, None]


def described(stack: Any) -> tuple[str, dict[Any, float]]:
    """Return the format of a stack's matrices, and the sizes of each."""
    if isinstance(stack, Stacked):
        return stack.name, dict(stack.sizes)
    return "dense", dict(zip("np", stack.shape[1:], strict=True))


def hidden_rows(a: Arguments, up: Matrices, beside: Matrices, x: Doubles, e: int) -> tuple[Doubles, Doubles]:
    """Return the rows between the two products of an expert, and a bound on their error."""

    def raised(stack: Matrices, stages: Raised) -> tuple[Doubles, Doubles]:
        """Multiply the rows by expert e's matrix, with what follows; return the result and a bound on its error."""
        read, W = stack.operands(e, x)
        y, error = read @ W, stack.bound(e, x, read, W)
        rough = isinstance(stack.stack, Stacked) and stack.stack.rounds
        return apply_stages(y, stages), bound_stages(y, error, stages, rough)

    y, error = raised(up, Raised.of(a, e))
    if a.beside is None:
        return y, error
    v, v_error = raised(beside, Raised.beside(a, e))
    return y * v, error * abs(v) + v_error * (abs(y) + error) + UNIT * (abs(y) + error) * (abs(v) + v_error)
