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
from opmatrix.runtime.kernels.row_term import read_padded

if TYPE_CHECKING:
    from opmatrix.runtime.codegen.counted_numbers import TermWork, ValueSize

READING = 8  # a number of a node counts as this many passes of a kernel
TWICE_AS_WIDE = 2  # size of a float64, relative to a float32
OneValue = Rows | Heads | None
Read = Array | None


def exact(a: Arguments) -> Doubles:
    """Read the term in float64. A program without a term imports no code that reads one, such as sympy."""
    from opmatrix.runtime import interpreted

    return interpreted.exact(a)


def at_extents(number: Any, extents: Extents) -> Any:
    """Return a number in sizes of spaces, evaluated at these extents."""
    value = number.subs({symbol: extents[size(str(symbol))] for symbol in number.free_symbols})
    return float(value) if value.is_number else value


class TermBuffer(NamedTuple):
    """The bytes of the values that a term makes, which are stored until it is read, those of many heads some at a time,
    and of one more of each while it is made."""

    values: "tuple[ValueSize, ...]"

    def at(self, extents: Extents) -> int:
        """Return twice the bytes of all values that are stored at once, in float64, for a batch of this size."""
        held = (count_held(value.heads, at_extents(value.numbers, extents)) for value in self.values)
        return int(2 * np.float64().nbytes * sum(held))


@kernel(row_mixing=True, changes_space=True, prices={})
class interpret(Arguments):
    """A term of the algebra that no other kernel computes, over these values and arrays, in float64, rounded once."""

    def run(
        out: Any,
        batch: Any,
        x0: OneValue = None,
        x1: OneValue = None,
        x2: OneValue = None,
        x3: OneValue = None,
        x4: OneValue = None,
        x5: OneValue = None,
        x6: OneValue = None,
        x7: OneValue = None,
        c0: Read = None,
        c1: Read = None,
        c2: Read = None,
        c3: Read = None,
        c4: Read = None,
        c5: Read = None,
        c6: Read = None,
        c7: Read = None,
        *,
        term: str,
    ) -> None:
        """Evaluate the term in float64, and round the result to float32."""
        out[...] = exact(Arguments(**{name: each for name, each in locals().items() if name != "out"}))

    def shape(a) -> Rows | Heads:
        """Return the rows or heads of the term's result, in the space of its rows."""
        from opmatrix.runtime import interpreted

        result = interpreted.shape(a)
        cols, rows = int(result.cols), size(str(result.rows))
        return Rows(cols, space=rows) if result.heads == 1 else Heads(int(result.heads), cols, space=rows)

    limits, relations = seen.fields_of_term, seen.relations_of_term

    def keeps(a) -> bool:
        """True if the term keeps the largest numbers of rows somewhere."""
        return '"keep_top"' in a.term

    reference = exact

    padded = read_padded

    def bound(a) -> Doubles:
        """Bound the error of a result that is computed in float64 and rounded once."""
        return 2 * UNIT * abs(exact(a)) + LEAST_SHARE

    def scratch(a) -> TermBuffer:
        """Return the buffer of the values that the term makes."""
        return TermBuffer(count_term(a).values)

    def cost(a, out: Rows | Heads, extents: Extents) -> Costs:
        """Return the price: passes over all the numbers of its nodes, T² ones too, and its products, in numbers twice
        as wide as those of kernels."""
        work = count_term(a)

        def pass_over(numbers: Any) -> tuple[str, dict[str, float]]:
            """Return the price of one pass over this count of numbers, as a norm of rows."""
            rows = extents[out.space]
            return "pointwise.norm", {"T": rows, "p": READING * at_extents(numbers, extents) / rows}

        costs = [pass_over(work.numbers)]
        for rows, inner, columns, ordinary in work.products:
            sizes = dict(zip("Tnp", (at_extents(number, extents) for number in (rows, inner, columns)), strict=True))
            costs += TWICE_AS_WIDE * [("linear.dense", sizes)] if ordinary else [pass_over(rows * inner * columns)]
        return costs


def count_term(a: Arguments) -> "TermWork":
    """Count the work of reading its term."""
    from opmatrix.runtime.codegen.counted_numbers import count_work

    values, arrays = split_operands(a)
    shapes = tuple((getattr(value, "heads", 1), str(value.space), value.cols) for value in values)
    return count_work(a.term, shapes, tuple(tuple(array.shape) for array in arrays))
