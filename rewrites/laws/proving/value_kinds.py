"""Node kinds of values alone, which no model needs and proofs about values do: rows above rows, the identity matrix."""

from functools import reduce

import numpy as np
from sympy import sympify

from opmatrix.algebra.data import Data
from opmatrix.algebra.nodes import PRESERVED, ReadAt
from opmatrix.algebra.operators import cols, combinator, const
from opmatrix.algebra.shapes import Shape, ShapeError
from opmatrix.algebra.term import Operator


@combinator(
    at_x=2,
    constant=lambda a, b: a.constant and b.constant,
    **{name: PRESERVED[name] for name in ("additive", "positively_homogeneous", "maps_zero_to_zero")},
)
def below(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """The rows of a above those of b."""
    return a(x).turn().beside(b(x).turn()).turn()


@combinator(constant=True)
def unit(x: ReadAt, a: Operator) -> ReadAt:
    """The identity matrix, with a row for each column that a gives."""
    n = a.term.out.cols
    if isinstance(x, Shape):
        return Shape(1, n, n)
    if not sympify(n).is_Integer:
        raise ShapeError(f"unit: the number of columns, {n}, is unknown")
    columns = (x.act(const(Data(row))).turn().act(cols(0, 1)) for row in np.eye(int(n)))
    return reduce(lambda left, right: left.beside(right), columns)
