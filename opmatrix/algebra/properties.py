"""The properties of operators, each declared once, by two arrays that are equal where it holds. Kinds declare in
nodes.py which of them they have; laws require them by name, and the properties that a graph knows of its classes are
derived from them."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.shapes import H
from opmatrix.algebra.term import PROPERTIES, RowFunction, holding

__all__ = ["PROPERTIES"]

HeadRows: TypeAlias = NDArray[np.float64]  # heads x rows x columns


def weights(x: HeadRows) -> HeadRows:
    """Return a number for each row of each head."""
    return np.linspace(0.5, 2, x[..., 0].size).reshape(*x.shape[:-1], 1)


def splice_halves(x: HeadRows, y: HeadRows, axis: int) -> HeadRows:
    """Return the first half of x, then the second half of y."""
    (first, _), (_, second) = (np.array_split(a, 2, axis) for a in (x, y))
    return np.concatenate([first, second], axis)


def first_half(x: HeadRows, axis: int) -> HeadRows:
    """Return the first half along an axis, the larger one where they differ."""
    return np.array_split(x, 2, axis)[0]


def repeat_first(x: HeadRows, axis: int) -> HeadRows:
    """Repeat the first entry along an axis over its whole length."""
    return np.repeat(x.take([0], axis), x.shape[axis], axis)


@holding()
def splits(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """cuts the columns of one head into several heads"""
    return f(x), x.reshape(x.shape[-2], len(f(x)), -1).swapaxes(0, 1)


@holding(measured=lambda a: a.out.cols == 1)
def column(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """gives one column"""
    return f(x), f(x)[..., :1]


@holding("column")
def level(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """gives columns that are all the same"""
    return f(x), repeat_first(f(x), -1)


@holding(measured=lambda a: a.constant and a.uniform)
def by_key(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """gives rows that are all the same: as scores, the same for every query"""
    return f(x), repeat_first(f(x), -2)


@holding()
def linear(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """is x @ W with one matrix W a head, the same for every row: licenses distributing, folding and the adjoint"""
    r, s = weights(x), -(weights(x) ** 2)
    return f(r * np.roll(x, 1, -2) + s * y), r * np.roll(f(x), 1, -2) + s * f(y)


@holding()
def stacked(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """takes one head, whose columns go through a matrix for each of several heads"""
    return linear.sides(f, x, y)


@holding("stacked", measured=lambda a: a.linear and (isinstance(a.into.cols, int) or not isinstance(a.out.cols, int)))
def storable(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """is x @ W with numbers W of known sizes, one matrix or one for each head that comes out, which can be stored and
    turned"""
    return linear.sides(f, x, y)


@holding(measured=lambda a: a.storable and a.out.heads in (1, H))
def single(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """is one matrix, no stack of one for each head"""
    return f(x), f(x)[:1]


@holding("linear", "storable")
def row_linear(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """acts on each row of a head by a matrix of its own, which may depend on the row's position; numbers of rows pass
    it"""
    r, s = weights(x), -(weights(x) ** 2)
    return f(r * x + s * y), r * f(x) + s * f(y)


@holding("row_linear")
def additive(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """(x + y) @ A = x @ A + y @ A; heads, join and total are additive, but move numbers between heads"""
    return f(x + y), f(x) + f(y)


@holding("linear", "storable", "diagonal")
def row_wise(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """row i of the output depends on row i of the input alone, and has no column for each row, as rows that are
    picked have other columns then"""
    return first_half(f(splice_halves(x, y, -2)), -2), first_half(f(x), -2)


@holding("row_wise")
def selective(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """each row of the output depends on one row of the input at most"""
    found, own, other = f(splice_halves(x, y, -2)), f(x), f(y)
    near, far = (
        np.nan_to_num(abs(found - each), nan=0.0, posinf=np.inf).max(-1, keepdims=True) for each in (own, other)
    )
    return found, np.where(near <= far, own, other)


@holding("linear", "storable", "entrywise")
def uniform(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """every row goes through the same function, whatever its position"""
    return f(repeat_first(x, -2)), repeat_first(f(x), -2)


@holding("entrywise")
def diagonal(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """entry (i, j) of the output depends on entry (i, j) of the input alone"""
    return first_half(f(splice_halves(x, y, -1)), -1), first_half(f(x), -1)


@holding()
def entrywise(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """is diagonal with the same function for every column"""
    return f(abs(x)[..., ::-1])[..., ::-1], f(abs(x))  # a root has no value elsewhere


@holding("additive")
def positively_homogeneous(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """(c x) @ A = c (x @ A) for every number c > 0"""
    return f(2.5 * x), 2.5 * f(x)


@holding("additive")
def maps_zero_to_zero(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """0 @ A = 0"""
    return f(0 * x), np.zeros_like(f(x))


@holding()
def keeps_order(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """of two numbers of a row the larger stays the larger, and equal ones stay equal"""
    rises = np.diff(f(np.sort(x, -1) / 8), axis=-1) > 0  # of small numbers: large ones, rounded, may become equal
    return rises.astype(float), np.ones(rises.shape)


@holding()
def constant(f: RowFunction, x: HeadRows, y: HeadRows) -> tuple[HeadRows, HeadRows]:
    """does not depend on x (it may depend on the batch)"""
    return f(y), f(x)
