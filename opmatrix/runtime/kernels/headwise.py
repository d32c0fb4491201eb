"""A product for each head, with its own matrix."""
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from formats import kernels as compiled
from formats.core.epilogue import gamma
from formats.core.sizes import T, n, p
from formats.machine.prices import Price, Timed, Work, h, up
from opmatrix.extents import Extents
from opmatrix.runtime.arguments import Doubles
from opmatrix.runtime.costs import Costs, times_stack
from opmatrix.runtime.fitting import same, timed_batches
from opmatrix.runtime.kernel import Arguments, RowNumbers, kernel
from opmatrix.runtime.operands import Heads, Stack

if TYPE_CHECKING:
    from formats.machine.calibration import Numbers


def multiply_heads(x: Doubles, weight: Doubles) -> Doubles: return (x.swapaxes(0, 1) @ weight).swapaxes(0, 1)


@timed_batches
def time_heads(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    x, weight, out = numbers.some(starts[-1], h, d), numbers.fresh(h, d, d), numbers.room(starts[-1], h, d)
    return {"T": len(x), "h": h, "n": d, "p": d}, lambda: compiled.headwise(x, weight, out)


@kernel(launches=True, price=Price((T * h * n * p, h * n * p, T * h * (n + p)), lambda tile: Work(
    2 * h * up(T, tile[0]) * up(n, tile[1]) * up(p, tile[2]), 0, h * n * p + T * h * (n + p)), time_heads))
class headwise(Arguments):
    """x @ W for each head with its own W; an x of one head serves all."""

    def run(out: Any, x: Heads, weight: Stack) -> None: compiled.headwise(x, weight, out)

    def shape(a) -> Heads:
        heads, rows, cols = a.weight.shape
        same("x columns", a.x.cols, rows)
        if a.x.heads != 1: same("x heads", a.x.heads, heads)
        return Heads(heads, cols)

    def reference(a) -> Doubles: return multiply_heads(a.x, a.weight)

    def bound(a) -> Doubles: return gamma(a.x.shape[2]) * multiply_heads(abs(a.exact.x), abs(a.exact.weight))

    def cost(a, out: Heads, extents: Extents) -> Costs:
        return [] if a.weight is None else times_stack(a.weight.shape, extents[out.space])

    def borders(a) -> Collection[int]: return compiled.borders("headwise")
