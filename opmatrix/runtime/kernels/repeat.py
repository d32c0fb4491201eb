"""Heads that serve groups of others, one copy for each."""

from typing import Annotated, Any

from formats.core.choices import Range
from opmatrix.algebra.batch.signature import WIDEST
from opmatrix.runtime.declarations.by_sequence import Doubles, in_groups
from opmatrix.runtime.declarations.costs import one_pass
from opmatrix.runtime.declarations.fitting import copied
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads
from opmatrix.runtime.declarations.padded import Padded, group_heads
from opmatrix.runtime.declarations.pullbacks import Cotangents, into_groups

Count = Annotated[int, Range(int, 1, WIDEST)]


def copy_heads(x: Any, out: Any) -> None:
    """Copy each head of x (T, g, d) into its group of neighbouring heads of `out` (T, h, d)."""
    out.reshape(len(x), x.shape[1], -1, x.shape[2])[...] = x[:, :, None]


@kernel(prices={})
class repeat(Arguments):
    """Each head so many times in a row that there are `heads` of them."""

    def run(out: Any, x: Heads, *, heads: Count) -> None:
        """Copy each head into its group."""
        copy_heads(x, out)

    def shape(a) -> Heads:
        """Return `heads` heads. Raises ValueError if those of x do not divide them."""
        if a.heads < 1 or a.heads % a.x.heads:
            raise ValueError(f"x heads: {a.x.heads}, which do not divide {a.heads}")
        return Heads(a.heads, a.x.cols)

    def reference(a) -> Doubles:
        """Repeat each head in float64."""
        return in_groups(a.x, a.heads)

    def padded(a) -> Padded:
        """Repeat each head."""
        return group_heads(a.x, a.heads)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the sums of g over the copies of each head."""
        return {"x": into_groups(g, a.x.shape[1])}

    bound, cost = copied, one_pass("pick")
