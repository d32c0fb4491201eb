"""Every number times a factor."""
from typing import Any

import numpy as np

from formats import kernels as compiled
from formats.core.epilogue import gamma
from formats.core.sizes import T, p
from formats.machine.prices import Price, Work
from opmatrix.runtime.arguments import Doubles
from opmatrix.runtime.costs import one_pass
from opmatrix.runtime.fitting import ONE_PASS, passes
from opmatrix.runtime.kernel import Arguments, kernel
from opmatrix.runtime.operands import Rows


@kernel(launches=True, inplace="x", price=Price(
    ONE_PASS, lambda tile: Work(vector=T * p, moved=2 * T * p), passes(lambda x, out: compiled.scale(x, 0.5, out))))
class scale(Arguments):
    """Every number times a factor."""

    def run(out: Any, x: Rows, *, factor: float) -> None: compiled.scale(x, factor, out)

    def shape(a) -> Rows:
        if a.x.apart: raise ValueError(f"x: its rows are columns of a wider value, {a.x.apart} numbers apart")
        return Rows(a.x.cols)

    def reference(a) -> Doubles: return np.asarray(a.x * a.factor)

    def bound(a) -> Doubles:
        """The factor is rounded, and the product."""
        return np.asarray(gamma(2) * abs(a.exact.x * a.factor))
    cost = one_pass("scale")
