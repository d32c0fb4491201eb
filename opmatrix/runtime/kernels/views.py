"""Views, which copy no numbers: a row's columns as heads, heads as columns again, some columns alone."""

from typing import Annotated, Any

import numpy as np

from formats.core.choices import Range
from opmatrix.algebra.batch.signature import WIDEST
from opmatrix.runtime.declarations.arguments import Doubles
from opmatrix.runtime.declarations.fitting import copied
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Heads, Rows
from opmatrix.runtime.declarations.padded import Padded, into_heads, out_of_heads
from opmatrix.runtime.declarations.pullbacks import Cotangents
from opmatrix.runtime.kernels.repeat import Count

Place = Annotated[int, Range(int, 0, WIDEST)]


def divide(x: Any, heads: int) -> Any:
    """View rows (T, h d) as heads (T, h, d)."""
    return x.reshape(len(x), heads, -1)


def flatten(x: Any) -> Any:
    """View heads (T, h, d) as rows (T, h d)."""
    return x.reshape(len(x), -1)


def cut(x: Any, lo: int, hi: int) -> Any:
    """View columns lo to hi of each row, hi excluded."""
    return x[:, lo:hi]


@kernel()
class heads(Arguments):
    """A row's columns as equal blocks."""

    part = "dividing"

    @staticmethod
    def run(x: Rows, *, heads: Count) -> Any:
        """View rows as heads: no numbers move."""
        return divide(x, heads)

    def shape(a) -> Heads:
        """Return the heads. Raises ValueError if they do not divide the columns."""
        if a.heads < 1 or a.x.cols % a.heads:
            raise ValueError(f"{a.heads} heads do not divide x of {a.x}")
        return Heads(a.heads, a.x.cols // a.heads, a.x.apart)

    def reference(a) -> Any:
        """View rows as heads, in float64."""
        return divide(a.x, a.heads)

    def padded(a) -> Padded:
        """Divide columns into heads."""
        return into_heads(a.x, a.heads)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g in the shape of x."""
        return {"x": g.reshape(len(g), *a.x.shape)}

    bound = copied


@kernel()
class join(Arguments):
    """Blocks side by side again."""

    part = "flattening"

    @staticmethod
    def run(x: Heads) -> Any:
        """View heads as rows: no numbers move."""
        return flatten(x)

    def shape(a) -> Rows:
        """Return rows of all heads' columns."""
        return Rows(a.x.heads * a.x.cols, a.x.apart)

    def reference(a) -> Any:
        """View heads as rows, in float64."""
        return flatten(a.x)

    def padded(a) -> Padded:
        """Join heads to columns."""
        return out_of_heads(a.x)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g in the shape of x."""
        return {"x": g.reshape(len(g), *a.x.shape)}

    bound = copied


@kernel()
class columns(Arguments):
    """Columns lo to hi, hi excluded."""

    part = "narrowing"

    @staticmethod
    def run(x: Rows, *, lo: Place, hi: Place) -> Any:
        """View a range of columns: no numbers move."""
        return cut(x, lo, hi)

    def shape(a) -> Rows:
        """Return rows as far apart as those of x. Raises ValueError for columns that x does not have."""
        if not 0 <= a.lo < a.hi <= a.x.cols:
            raise ValueError(f"x of {a.x} has no columns {a.lo} to {a.hi}")
        return Rows(a.hi - a.lo, a.x.apart or a.x.cols)

    def reference(a) -> Any:
        """View a range of columns, in float64."""
        return cut(a.x, a.lo, a.hi)

    def padded(a) -> Padded:
        """Take a range of columns."""
        return a.x[..., a.lo : a.hi]

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g among zeros."""
        x = np.zeros((len(g), *a.x.shape), g.dtype)
        x[:, :, a.lo : a.hi] = g
        return {"x": x}

    bound = copied
