"""A term of the algebra that no other kernel computes, in float64 (opmatrix/runtime/interpreted.py)."""
from typing import Any

from formats.core.epilogue import UNIT
from formats.core.sizes import size
from opmatrix.extents import Extents
from opmatrix.runtime import seen
from opmatrix.runtime.by_sequence import LEAST_SHARE, Doubles
from opmatrix.runtime.costs import Costs, one_pass
from opmatrix.runtime.kernel import Arguments, kernel
from opmatrix.runtime.operands import Array, Heads, Rows

READING = 50                                                # passes that reading a term is taken to cost
OneValue = Rows | Heads | None
Read = Array | None


def exact(a: Arguments) -> Doubles:
    """The term read in float64. Whatever runs no term imports nothing that reads one, sympy among it."""
    from opmatrix.runtime import interpreted
    return interpreted.exact(a)


@kernel(row_mixing=True, changes_space=True, prices={})
class interpret(Arguments):
    """What no other kernel computes: a term of the algebra over these values and arrays, in float64, rounded once."""

    def run(out: Any, batch: Any, x0: OneValue = None, x1: OneValue = None, x2: OneValue = None, x3: OneValue = None,
            x4: OneValue = None, x5: OneValue = None, x6: OneValue = None, x7: OneValue = None, c0: Read = None,
            c1: Read = None, c2: Read = None, c3: Read = None, c4: Read = None, c5: Read = None, c6: Read = None,
            c7: Read = None, *, term: str) -> None:
        out[...] = exact(Arguments(**{name: each for name, each in locals().items() if name != "out"}))

    def shape(a) -> Rows | Heads:
        from opmatrix.runtime import interpreted
        given = interpreted.shape(a)
        cols, rows = int(given.cols), size(str(given.rows))
        return Rows(cols, space=rows) if given.heads == 1 else Heads(int(given.heads), cols, space=rows)

    limits = seen.fields_of_term

    def keeps(a) -> bool: return '"keep_top"' in a.term
    reference = exact

    def bound(a) -> Doubles:
        """Computed in float64 and rounded once."""
        return 2 * UNIT * abs(exact(a)) + LEAST_SHARE

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """Many passes; what it really costs nobody has measured, but it is the last resort."""
        return one_pass("pointwise.norm")(a, out, extents) * READING
