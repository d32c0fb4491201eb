"""Node kinds that only rewriting adds: a transposed matrix, a matrix cut by heads, joined matrices and the parts of
their product. Their attributes never hold a size, so one graph serves every size."""

import numpy as np
from sympy import Expr, sympify

from opmatrix.algebra.data import Data
from opmatrix.algebra.nodes import ReadAt, every
from opmatrix.algebra.operators import I, cols, combinator, const, symbol, weight
from opmatrix.algebra.oracles import DenseReading, dense
from opmatrix.algebra.shapes import H, N, Shape, ShapeError, T
from opmatrix.algebra.term import Child, Operator


def as_array(term: Operator, width: Expr | int | None = None) -> np.ndarray:
    """Return the float64 numbers of a linear operator (in x out, or heads x in x out) or of a constant one (1 x
    columns). `width` is the input width, for a first factor that takes any width, such as centring."""
    if term.constant and width is None:
        return np.asarray(dense(term, np.zeros((1, 1))))
    width = term.into.cols if width is None else width
    match term.kind.name:
        case "weight":  # no product with an identity: the numbers are stored
            return np.asarray(term.args[0].array, np.float64)
        case "adjoint":
            [turned] = term.children
            return as_array(turned, None if isinstance(turned.into.cols, int) else width).swapaxes(-1, -2)
        case "compose":
            first, then = term.children
            if (
                I in first.children
                and first.kind.name == "mul"
                and all(factor is I or factor.constant for factor in first.children)
            ):
                numbers = as_array(then, width)
                rows = dense(first, np.ones((1, int(width)))).swapaxes(-1, -2)
                in_place = numbers.flags.owndata and numbers.flags.writeable  # a copy, just widened to float64
                in_place = in_place and np.broadcast_shapes(rows.shape, numbers.shape) == numbers.shape
                return np.asarray(np.multiply(rows, numbers, out=numbers if in_place else None))
            return np.asarray(dense(then, as_array(first, width)))
    return np.asarray(dense(term, np.eye(int(width))))


def transposed(term: Operator, x: Shape | DenseReading) -> Operator:
    """Return the linear operator with rows and columns exchanged, in every head; a shape needs no numbers."""
    if isinstance(x, Shape):
        into, out = (Shape(term.out.heads, T, cols) for cols in (term.out.cols, term.into.cols))
        return symbol("adjoint", into, out, linear=True)
    width = None if isinstance(term.into.cols, int) else x.array.shape[-1]  # an operator of any width is square
    turned: Operator = weight(Data(as_array(term, width).swapaxes(-1, -2)))
    return turned


def cut_rows(term: Operator, heads: int, x: Shape | DenseReading) -> Operator:
    """Return one block of rows of a matrix for each head."""
    if isinstance(x, Shape):
        if term.into.cols is N:  # any width: here that of all heads together
            return symbol(
                "by_head", Shape(heads, T, x.cols), Shape(heads, T, term(Shape(1, T, heads * x.cols)).cols), linear=True
            )
        rows = term.into.cols // heads if isinstance(term.into.cols, int) else term.into.cols / heads
        return symbol("by_head", Shape(heads, T, rows), Shape(heads, T, term.out.cols), linear=True)
    numbers = as_array(term, None if isinstance(term.into.cols, int) else heads * x.array.shape[-1])
    blocks: Operator = weight(Data(numbers.reshape(heads, -1, numbers.shape[-1])))
    return blocks


def cut_block(
    term: Operator, before: Expr | int, rows: Expr | int, total: Expr | int, x: Shape | DenseReading
) -> Operator:
    """Return `rows` rows of a matrix of `total`, behind the first `before`."""
    if isinstance(x, Shape):
        out = term(Shape(1, T, total)) if term.into.cols is N else term.out
        return symbol("block", Shape(1, T, rows), Shape(1, T, out.cols), linear=True)
    start, count, width = (int(sympify(number)) for number in (before, rows, total))
    block: Operator = weight(Data(as_array(term, width if term.into.cols is N else None)[start : start + count]))
    return block


def read_as(term: Operator, child: Operator, x: ReadAt) -> ReadAt:
    """Read a child at another input than its parent's, with the parent's remembered results."""
    return Child(term, child.memo)(x)


@combinator(linear=lambda a: a.linear, storable=lambda a: a.storable)
def adjoint(x: ReadAt, a: Operator) -> ReadAt:
    """The transposed matrix of every head."""
    return read_as(transposed(a.term, x), a, x)


@combinator(linear=lambda a, h: a.linear, storable=lambda a, h: a.storable)
def by_head(x: ReadAt, a: Operator, h: int) -> ReadAt:
    """Head i times the i-th block of rows of the matrix."""
    return read_as(cut_rows(a.term, h, x), a, x)


@combinator(linear=lambda a, v, w: a.linear, storable=lambda a, v, w: a.storable)
def first_rows(x: ReadAt, a: Operator, v: Operator, w: Operator) -> ReadAt:
    """The rows of a matrix by which v is multiplied, where w stands behind it."""
    n, k = v.term.out.cols, w.term.out.cols
    return read_as(cut_block(a.term, 0, n, n + k, x), a, x)


@combinator(linear=lambda a, v, w: a.linear, storable=lambda a, v, w: a.storable)
def last_rows(x: ReadAt, a: Operator, v: Operator, w: Operator) -> ReadAt:
    """The rows of a matrix by which w is multiplied, where it stands behind v."""
    n, k = v.term.out.cols, w.term.out.cols
    return read_as(cut_block(a.term, n, k, n + k, x), a, x)


def count_columns(term: Operator) -> tuple[Expr | int, Expr | int]:
    """Return the number of heads of a term, and the columns of all of them."""
    heads = 1 if term.out.heads is H else term.out.heads
    return heads, heads * term.out.cols


def flattened(a: Operator, x: ReadAt) -> ReadAt:
    """Return the result of a child, its heads side by side."""
    heads, _ = count_columns(a.term)
    return a(x) if heads == 1 else a(x).join(heads)


@combinator(
    at_x=2,
    **every("linear", "storable", "constant", "uniform", "row_wise"),
    single=lambda a, b: a.storable and b.storable,
)
def joined(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """All columns of `a`, its heads side by side, and behind them those of b, which may have another number of
    heads."""
    return flattened(a, x).beside(flattened(b, x))


@combinator(
    at_x=2, **every("additive", "constant", "uniform", "row_wise", "positively_homogeneous", "maps_zero_to_zero")
)
def with_heads(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """The heads of `a`, and behind them those of b, of as many columns each."""
    (first, _), (last, _) = count_columns(a.term), count_columns(b.term)
    if isinstance(x, Shape):
        if a(x).cols != b(x).cols:
            raise ShapeError(f"heads of {a(x).cols} columns with heads of {b(x).cols}")
        return a(x)._replace(heads=first + last)
    return flattened(a, x).beside(flattened(b, x)).split(first + last)


@combinator(at_x=1)
def left(x: ReadAt, y: Operator, a: Operator) -> ReadAt:
    """The first columns of y, as many as `a` has, in as many heads."""
    heads, columns = count_columns(a.term)
    first = y(x).act(cols(0, columns))
    return first if heads == 1 else first.split(heads)


@combinator(at_x=1)
def right(x: ReadAt, y: Operator, a: Operator) -> ReadAt:
    """The columns of y behind those of `a`."""
    return y(x).act(cols(count_columns(a.term)[1], y.term.out.cols))


@combinator(at_x=1)
def behind(x: ReadAt, y: Operator, a: Operator, b: Operator) -> ReadAt:
    """The columns of y behind those of `a`, which are those of b, in as many heads."""
    (_, before), (heads, columns), width = count_columns(a.term), count_columns(b.term), y.term.out.cols
    if sympify(before + columns - width).expand() != 0:
        raise ShapeError(f"{columns} columns after the first {before}, but there are {width} in all")
    last = y(x).act(cols(before, width))
    return last if heads == 1 else last.split(heads)


@combinator(constant=True, uniform=True)
def blank(x: ReadAt, a: Operator) -> ReadAt:
    """Zeros, as wide as what `a` gives: the bias of a product that has none."""
    heads, columns = 1 if a.term.out.heads is H else a.term.out.heads, a.term.out.cols
    if isinstance(x, Shape):
        return Shape(heads, x.rows, columns)
    return x.act(const(Data(np.zeros(int(columns) if heads == 1 else (int(heads), 1, int(columns))))))
