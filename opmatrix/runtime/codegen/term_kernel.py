"""The kernel of a step's term: made of its text and the shapes of what it reads, once."""
from functools import lru_cache

from formats.kernels.generated.rowwise.row_kernel import RowKernel
from formats.kernels.generated.rowwise.row_values import RowValue
from opmatrix.algebra.data import Promised
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.codegen.row_reading import read_rows
from opmatrix.runtime.terms import measured, parse_operator

KEPT_KERNELS = 512


@lru_cache(KEPT_KERNELS)
def term_kernel(text: str, values: tuple[tuple[int, int], ...], arrays: tuple[tuple[int, ...], ...]) -> RowKernel:
    """The kernel of a term over values of so many heads and columns, and arrays of these shapes. Raises ValueError for
    what is no term, NotByRows for one that does not go through rows one by one."""
    promised = [Promised(f"c{k}", shape) for k, shape in enumerate(arrays)]
    shapes = [Shape(heads, T, cols) for heads, cols in values]
    term = parse_operator(text, shapes, promised)
    given = measured(term, shapes)                          # which refuses what would be too large
    names = {f"x{k}": RowValue("value", heads, cols, extra=k) for k, (heads, cols) in enumerate(values)}
    found = read_rows(term, names, {data: k for k, data in enumerate(promised)})
    if (found.heads, found.cols) != (given.heads, given.cols):
        raise ValueError(f"term: {found.heads} x {found.cols} of a row, where it gives {given}")
    return RowKernel(found, len(values), len(arrays))
