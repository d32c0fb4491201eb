"""An epilogue alone: of rows, and of each head of each row by itself."""

from typing import Any

import numpy as np

from formats import kernels as compiled
from formats.core.epilogue import Epilogue
from formats.core.stage import STAGES, gain_shift, norm
from formats.core.stage import bound as bound_stages
from formats.core.stage import reference as apply_stages
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import Costs, row_width, stage_prices
from opmatrix.runtime.declarations.fitting import after, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads, Rows
from opmatrix.runtime.declarations.padded import Padded, apply_padded_stages
from opmatrix.runtime.declarations.pullbacks import Cotangents, pull_epilogue


def passes_over(a: Arguments, out: Rows, extents: Extents) -> Costs:
    """Return the price: the first stage is a pass of its own, the others are fused with it; without stages, rows are
    copied."""
    first, *more = stage_prices(a) or ["bias"]
    return [(name, {"T": extents[out.space], "p": row_width(out)}) for name in (f"pointwise.{first}", *more)]


@kernel(stages=STAGES, launches=True, inplace="x", prices={})
class pointwise(Arguments):
    """The epilogue alone, in one pass."""

    part = "entries"

    def run(out: Any, x: Rows, *, epilogue: Epilogue) -> None:
        """Run the epilogue over x in one pass."""
        compiled.pointwise(x, out, epilogue)

    def shape(a) -> Rows:
        """Return the rows of x. Raises ValueError for a stage's operand that does not fit its columns."""
        return after(a, a.x.cols)

    def reference(a) -> Doubles:
        """Apply the stages in float64."""
        return apply_stages(a.x, a)

    def padded(a) -> Padded:
        """Apply the stages."""
        return apply_padded_stages(a.x, a)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangents of x and of the operands by row."""
        g, beside = pull_epilogue(a, lambda: a.x, g)
        return {"x": g, **beside}

    def bound(a) -> Doubles:
        """Bound the error of the stages alone: x is exact."""
        return bound_stages(a.x, np.zeros(a.x.shape), a)

    cost = passes_over


@kernel(stages=(norm, gain_shift), launches=True, inplace="x", prices={})
class pointwise_heads(Arguments):
    """The norm of each head by itself, and a gain and a shift that all of them share, in one pass."""

    part = "norming"

    def run(out: Any, x: Heads, *, epilogue: Epilogue) -> None:
        """Normalise each head, and apply the gain and the shift, in one pass."""
        compiled.pointwise_heads(x, out, epilogue.gain, epilogue.shift, epilogue.eps, epilogue.norm)

    def shape(a) -> Heads:
        """Return the heads of x. Raises ValueError if the gain or the shift is not one number for each column of a
        head."""
        for name in ("gain", "shift"):
            if (row := getattr(a, name)) is not None:
                same(name, row.shape, (a.x.cols,))
        return Heads(a.x.heads, a.x.cols)

    def reference(a) -> Doubles:
        """Apply the stages to each head as if it were a row."""
        return apply_stages(a.x.reshape(-1, a.x.shape[2]), a).reshape(a.x.shape)

    def padded(a) -> Padded:
        """Apply the stages to the last axis, which is a head's columns."""
        return apply_padded_stages(a.x, a)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangent of each head, as that of a row."""
        rows, cols = a.x.reshape(-1, a.x.shape[2]), a.x.shape[2]
        return {"x": pull_epilogue(a, lambda: rows, g.reshape(len(g), -1, cols))[0].reshape(g.shape)}

    def bound(a) -> Doubles:
        """Bound the error of the stages on each head: x is exact."""
        rows = a.x.reshape(-1, a.x.shape[2])
        return bound_stages(rows, np.zeros(rows.shape), a).reshape(a.x.shape)

    cost = passes_over
