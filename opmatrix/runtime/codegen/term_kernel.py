"""The kernel of a step's term: made from its text and the shapes of its operands, once."""

from functools import lru_cache

from formats.kernels.generated.rowwise.row_kernel import RowKernel
from formats.kernels.generated.rowwise.row_values import RowValue
from opmatrix.algebra.data import Promised
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.codegen.row_reading import read_rows
from opmatrix.runtime.terms import measured, parse_operator

KEPT_KERNELS = 512


@lru_cache(KEPT_KERNELS)
def term_kernel(
    text: str, values: tuple[tuple[int, int], ...], arrays: tuple[tuple[int, ...], ...], carried: bool = False
) -> RowKernel:
    """Return the kernel of a term over values of these heads and columns, and arrays of these shapes; `carried`: rows
    before the first new one of a sequence are those of its state. Raises ValueError for a text that is no term,
    NotByRows for a term that does not go through rows one by one."""
    promised = [Promised(f"c{k}", shape) for k, shape in enumerate(arrays)]
    shapes = [Shape(heads, T, cols) for heads, cols in values]
    term = parse_operator(text, shapes, promised)
    expected = measured(term, shapes)  # refuses a term that would be too large
    names = {f"x{k}": RowValue("value", heads, cols, extra=k) for k, (heads, cols) in enumerate(values)}
    value = read_rows(term, names, {data: k for k, data in enumerate(promised)})
    if (value.heads, value.cols) != (expected.heads, expected.cols):
        raise ValueError(f"term: {value.heads} x {value.cols} numbers a row, but its shape is {expected}")
    return RowKernel(value, len(values), len(arrays), carried)
