"""Columns of two values side by side, in every head."""

from typing import Any

import numpy as np

from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.costs import one_pass
from opmatrix.runtime.declarations.fitting import copied, same
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads
from opmatrix.runtime.declarations.padded import Padded
from opmatrix.runtime.declarations.pullbacks import Cotangents


@kernel(prices={})
class beside_columns(Arguments):
    """The columns of x, and behind them those of y."""

    def run(out: Any, x: Heads, y: Heads) -> None:
        """Copy both."""
        np.concatenate([x, y], -1, out)

    def shape(a) -> Heads:
        """Return the heads, and the columns of both. Raises ValueError for heads, or rows, that differ."""
        same("y heads", a.y.heads, a.x.heads)
        same("y rows", a.y.space, a.x.space)
        return Heads(a.x.heads, a.x.cols + a.y.cols, space=a.x.space)

    def reference(a) -> Doubles:
        """Put both side by side in float64."""
        return np.concatenate([a.x, a.y], -1)

    def padded(a) -> Padded:
        """Put both side by side."""
        return np.concatenate([a.x, a.y], -1)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the columns of g that are those of x, and those of y."""
        return {"x": g[..., : a.x.shape[2]], "y": g[..., a.x.shape[2] :]}

    bound, cost, leading = copied, one_pass("pick"), "x"
