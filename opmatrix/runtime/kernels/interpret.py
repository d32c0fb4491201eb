"""A term of the algebra that no other kernel computes, in float64 (opmatrix/runtime/interpreted.py)."""
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from formats.core.epilogue import UNIT
from formats.core.head_blocks import count_held
from formats.core.sizes import size
from opmatrix.algebra.batch.extents import Extents
from opmatrix.runtime import seen
from opmatrix.runtime.declarations.arguments import split_operands
from opmatrix.runtime.declarations.by_sequence import LEAST_SHARE, Doubles
from opmatrix.runtime.declarations.costs import Costs
from opmatrix.runtime.declarations.kernel import Arguments, kernel
from opmatrix.runtime.declarations.operands import Array, Heads, Rows

if TYPE_CHECKING:
    from opmatrix.runtime.codegen.counted_numbers import TermWork, ValueSize

READING = 8                                                 # passes of a kernel that a number of a node is taken to be
TWICE_AS_WIDE = 2                                           # float64 numbers in the room of two of float32
OneValue = Rows | Heads | None
Read = Array | None


def exact(a: Arguments) -> Doubles:
    """The term read in float64. Whatever runs no term imports nothing that reads one, sympy among it."""
    from opmatrix.runtime import interpreted
    return interpreted.exact(a)


def at_extents(number: Any, extents: Extents) -> Any:
    """A number in sizes of spaces as it is at these extents."""
    found = number.subs({each: extents[size(str(each))] for each in number.free_symbols})
    return float(found) if found.is_number else found


class TermBuffer(NamedTuple):
    """Bytes of the values that a term makes, which are there until it is read, those of many heads some at a time, and
    of one more of each while it is made."""
    values: "tuple[ValueSize, ...]"

    def at(self, extents: Extents) -> int:
        held = (count_held(each.heads, at_extents(each.numbers, extents)) for each in self.values)
        return int(2 * np.float64().nbytes * sum(held))


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

    def scratch(a) -> TermBuffer: return TermBuffer(count_term(a).values)

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """Passes over all the numbers that its nodes make, T² ones too, and its products, in numbers twice as
        wide as those of kernels."""
        work = count_term(a)
        def pass_over(numbers: Any) -> tuple[str, dict[str, float]]:
            rows = extents[out.space]
            return "pointwise.norm", {"T": rows, "p": READING * at_extents(numbers, extents) / rows}
        found = [pass_over(work.numbers)]
        for rows, inner, columns, ordinary in work.products:
            sizes = dict(zip("Tnp", (at_extents(each, extents) for each in (rows, inner, columns)), strict=True))
            found += TWICE_AS_WIDE * [("linear.dense", sizes)] if ordinary else [pass_over(rows * inner * columns)]
        return found


def count_term(a: Arguments) -> "TermWork":
    """Count the work of reading its term."""
    from opmatrix.runtime.codegen.counted_numbers import count_work
    values, arrays = split_operands(a)
    shapes = tuple((getattr(each, "heads", 1), str(each.space), each.cols) for each in values)
    return count_work(a.term, shapes, tuple(tuple(each.shape) for each in arrays))
