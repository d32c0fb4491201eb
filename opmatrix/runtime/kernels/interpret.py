"""A term of the algebra that no other kernel computes, in float64 (opmatrix/runtime/interpreted.py)."""
from typing import Any

from formats.core.epilogue import UNIT
from formats.core.sizes import size
from opmatrix.extents import Extents
from opmatrix.runtime import seen
from opmatrix.runtime.arguments import split_operands
from opmatrix.runtime.by_sequence import LEAST_SHARE, Doubles
from opmatrix.runtime.costs import Costs
from opmatrix.runtime.kernel import Arguments, kernel
from opmatrix.runtime.operands import Array, Heads, Rows

READING = 8                                                 # passes of a kernel that a number of a node is taken to be
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

    limits, relations = seen.fields_of_term, seen.relations_of_term

    def keeps(a) -> bool: return '"keep_top"' in a.term
    reference = exact

    def bound(a) -> Doubles:
        """Computed in float64 and rounded once."""
        return 2 * UNIT * abs(exact(a)) + LEAST_SHARE

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """So many passes over all the numbers that its nodes make, T² ones too."""
        from opmatrix.regions.counted_numbers import count_numbers
        values, arrays = split_operands(a)
        shapes = tuple((getattr(each, "heads", 1), str(each.space), each.cols) for each in values)
        numbers = count_numbers(a.term, shapes, tuple(tuple(each.shape) for each in arrays))
        found = numbers.subs({each: extents[size(str(each))] for each in numbers.free_symbols})
        each = READING * found / (rows := extents[out.space])
        return [("pointwise.norm", {"T": rows, "p": float(each) if each.is_number else each})]
