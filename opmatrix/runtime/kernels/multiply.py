"""x @ W: rows times a weight in any format, and an epilogue on each chunk of rows while it is in cache."""

from collections.abc import Collection
from typing import Any

from formats.core.epilogue import Epilogue
from formats.core.stage import STAGES
from formats.core.stage import bound as bound_stages
from formats.core.stage import reference as apply_stages
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, behind_product, stage_prices, times_format
from opmatrix.runtime.declarations.fitting import after, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import FLOAT_BYTES, BufferSize, Rows, Weight
from opmatrix.runtime.declarations.padded import Padded, apply_padded_stages
from opmatrix.runtime.declarations.pullbacks import Cotangents, dense_numbers, pull_epilogue


def apply_weight(x: Any, weight: Any, out: Any, e: Epilogue) -> None:
    """Multiply rows by a weight into `out`, by the kernel of the weight's format."""
    weight.matmul(x, out=out, epilogue=e)


@kernel(stages=STAGES, launches=True, prices={})
class linear(Arguments):
    """x @ W in whatever format W has; the epilogue runs on each chunk of rows while it is in cache."""

    part = "weights"

    def run(out: Any, x: Rows, weight: Weight, *, epilogue: Epilogue) -> None:
        """Multiply by the weight's own kernel, which runs the epilogue too."""
        apply_weight(x, weight, out, epilogue)

    def shape(a) -> Rows:
        """Return rows of the weight's outputs. Raises ValueError if x has other columns than the weight inputs."""
        same("x columns", a.x.cols, a.weight.shape[0])
        return after(a, a.weight.shape[1])

    def reads(a) -> dict[str, object]:
        """Return x and the weight as the weight's format multiplies them."""
        return dict(zip(("x", "weight"), a.weight.operands(a.x), strict=True)) if hasattr(a.weight, "operands") else {}

    def reference(a) -> Doubles:
        """Multiply in float64 and apply the stages."""
        return apply_stages(a.x @ a.weight, a)

    def padded(a) -> Padded:
        """Multiply by the numbers that the weight stores, and apply the stages; x is not rounded."""
        return apply_padded_stages(a.x @ a.weight, a)

    def bound(a) -> Doubles:
        """Return the error bound of the format, carried through the epilogue."""
        x, W = a.exact.x, a.exact.weight
        return bound_stages(x @ W, a.weight.bound(a.x, (x, W)), a, a.weight.rounds)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g Wᵀ behind the epilogue's pullback."""
        W = dense_numbers(a.weight)
        g, beside = pull_epilogue(a, lambda: a.x @ W, g)
        return {"x": g @ W.T, **beside}

    def product_pullback(a, g: Doubles) -> Doubles:
        """Return the cotangents of x @ W, before the epilogue."""
        return pull_epilogue(a, lambda: a.x @ dense_numbers(a.weight), g)[0]

    def cost(a, out: Rows, extents: Extents) -> Costs:
        """Return the price of the format's product, then of the epilogue."""
        rows = extents[out.space]
        first = [] if a.weight is None else times_format(a.weight.name, a.weight.sizes, rows)
        return first + [
            (name, {"T": rows, "p": out.cols})
            for name in behind_product(stage_prices(a), a.weight is not None and a.weight.rounds)
        ]

    def scratch(a) -> BufferSize:
        """Return the bytes that a product of two factors stores between them."""
        return BufferSize(FLOAT_BYTES * a.weight.scratch(), 0)

    def borders(a) -> Collection[int]:
        """Return the rows at which the kernel of the weight's format takes another path."""
        return frozenset(a.weight.borders())
