"""A product for each head, with its own matrix."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from formats import kernels as compiled
from formats.core.epilogue import gamma
from formats.core.sizes import T, n, p
from formats.core.stage import SMALLEST
from formats.machine.prices import Price, Timed, Work, h, up
from formats.storage.stacked import Stacked
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, times_format, times_stack
from opmatrix.runtime.declarations.fitting import same, timed_batches
from opmatrix.runtime.declarations.kernel import Arguments, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import FLOAT_BYTES, BufferSize, Heads, Stack
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.declarations.pullbacks import Cotangents, dense_numbers

if TYPE_CHECKING:
    from formats.machine.calibration import Numbers


def multiply_heads(x: Doubles, weight: Doubles) -> Doubles:
    """Multiply x (T, h, n) by weight (h, n, p) head by head: (T, h, p). One head of x serves all."""
    return (x.swapaxes(0, 1) @ weight).swapaxes(0, 1)


@timed_batches
def time_heads(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    """Make the timed call of h heads, each times a d × d matrix."""
    x, weight, out = numbers.some(starts[-1], h, d), numbers.fresh(h, d, d), numbers.room(starts[-1], h, d)
    return {"T": len(x), "h": h, "n": d, "p": d}, lambda: compiled.headwise(x, weight, out)


@kernel(
    launches=True,
    price=Price(
        (T * h * n * p, h * n * p, T * h * (n + p)),
        lambda tile: Work(2 * h * up(T, tile[0]) * up(n, tile[1]) * up(p, tile[2]), 0, h * n * p + T * h * (n + p)),
        time_heads,
    ),
)
class headwise(Arguments):
    """x @ W for each head with its own W, an array or a stack in whatever format; an x of one head serves all."""

    def run(out: Any, x: Heads, weight: Stack) -> None:
        """Multiply by the stack's own kernels, or by the compiled `headwise` for an array."""
        if isinstance(weight, Stacked):
            weight.matmul(x, out)
        else:
            compiled.headwise(x, weight, out)

    def shape(a) -> Heads:
        """Return the heads and columns of the weight. Raises ValueError if x has other columns, or several heads but
        not as many."""
        heads, rows, cols = a.weight.shape
        same("x columns", a.x.cols, rows)
        if a.x.heads != 1:
            same("x heads", a.x.heads, heads)
        return Heads(heads, cols)

    def reads(a) -> dict[str, object]:
        """Return x and the matrices as the format multiplies them."""
        if not isinstance(a.weight, Stacked):
            return {}
        return dict(zip(("x", "weight"), a.weight.operands(a.x), strict=True))

    def reference(a) -> Doubles:
        """Multiply head by head in float64."""
        return multiply_heads(a.x, a.weight)

    def padded(a) -> Padded:
        """Multiply head by head by the numbers that the stack stores."""
        by_head = np.swapaxes(a.x, -3, -2) if a.x.ndim > 3 else np.expand_dims(a.x, -2)
        product = by_head @ a.weight
        return np.swapaxes(product, -3, -2) if a.x.ndim > 3 else product[..., 0, :]

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g Wᵀ of each head, summed where one head of x serves all."""
        W = dense_numbers(a.weight)
        x = (g.swapaxes(1, 2) @ W.swapaxes(1, 2)).swapaxes(1, 2)
        return {"x": x if a.x.shape[1] == len(W) else x.sum(2, keepdims=True)}

    def bound(a) -> Doubles:
        """Bound the error: by the stack's format, or that of sums of n products of float32 numbers."""
        if isinstance(a.weight, Stacked):
            return a.weight.bound(a.x, (a.exact.x, a.exact.weight))
        deep = a.x.shape[2]
        return np.asarray(gamma(deep) * multiply_heads(abs(a.exact.x), abs(a.exact.weight)) + deep * SMALLEST)

    def cost(a, out: Heads, extents: Extents) -> Costs:
        """Return the price: one kernel for an array; for a stack the format's own, once a head."""
        if a.weight is None:
            return []
        if not isinstance(a.weight, Stacked):
            return times_stack(a.weight.shape, extents[out.space])
        return len(a.weight) * times_format(a.weight.name, a.weight.sizes, extents[out.space])

    def scratch(a) -> BufferSize:
        """Return the bytes that the product of one head allocates in its format."""
        return BufferSize(FLOAT_BYTES * a.weight.scratch() if isinstance(a.weight, Stacked) else 0, 0)

    def borders(a) -> Collection[int]:
        """Return the rows at which the kernels of the stack's format, or `headwise`, take another path."""
        return a.weight.borders() if isinstance(a.weight, Stacked) else compiled.borders("headwise")
