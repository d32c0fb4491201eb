"""The flat reading of an operator, in terms of the algebra alone: every value written out from its input, every
composition with one matrix or one entrywise function on its right, no shift of zeros, no gain of ones. The e-graph
holds terms in this form."""

from collections.abc import Iterator
from functools import reduce
from operator import matmul

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.operators import I, const, repeat, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import H, ShapeError, Space, T
from opmatrix.algebra.term import KINDS, Operator, adjoint


def flat(term: Operator, x: Operator, memo: dict[tuple[Operator, Operator], Operator] | None = None) -> Operator:
    """Return an operator behind x, pushed to the leaves. Linear sub-terms are left as they are: they are matrices."""
    memo = {} if memo is None else memo
    if (term, x) not in memo:
        memo[term, x] = _flat(term, x, memo)
    return memo[term, x]


def _flat(term: Operator, x: Operator, memo: dict[tuple[Operator, Operator], Operator]) -> Operator:
    match term.kind.name:
        case "I":
            return x
        case "const" | "related" | "entered":
            return term
        case "pick" if x.constant and x.uniform:  # the same row, in any space
            return x
        case "given" | "by_distance":
            return seen_from(term, x.out.rows, x)
        case "symbol" if not term.linear and term.into.cols != x.out.cols:
            return term
        case "compose":
            before, after = term.children
            entering = flat(before, x, memo)
            return for_each_head(flat(after, entering, memo), entering, after)
        case "weight" if (table := read_table(x, term)) is not None:
            return table
        case "diag":
            return scale_columns(x, const(term.args[0]))
        case "mul" if scales_columns(term):
            return scale_columns(*(flat(child, x, memo) for child in term.children))
    if term.linear or not term.children or term.kind.matrix:
        return x @ term
    if term.kind.name == "add":
        a, b = (flat(child, x, memo) for child in term.children)
        if a.kind.name == "by_distance":
            a, b = b, a  # laws and kernels expect a bias as the last term
        return add_constant(add_constant(widen_constant(a, b) + widen_constant(b, a), a, b), b, a)
    return term.kind(*(flat(child, x, memo) for child in term.children), *term.attributes)


def for_each_head(made: Operator, x: Operator, after: Operator) -> Operator:
    """Return a term written behind x in as many heads as it needs. A constant row, which reads nothing of x, fits any
    number of heads, and has one by itself."""
    if made.out.heads is not H or not made.constant:
        return made
    heads = (x @ after).out.heads
    if not isinstance(heads, int) or heads == 1:
        return made
    repeated: Operator = made @ repeat(heads)
    return repeated


def read_table(x: Operator, term: Operator) -> Operator | None:
    """Return a field of the batch times the rows of a table, with the matrices between them, such as `place`, applied
    to the table: a kernel gathers them. None if x is no such field, or if the matrices between hold numbers or fixed
    sizes."""
    field, *between = factors(x)
    data = term.args[0]
    if field.kind is not KINDS["given"] or not between or x.out.heads != 1 or len(data.shape) != 2:
        return None
    chain: Operator = reduce(matmul, between)
    if (
        not chain.linear
        or chain.storable
        or any(isinstance(attribute, Data) for node in chain.walk() for attribute in node.attributes)
    ):
        return None
    name, rows = f"{data.label}_behind_{chain}", field.out.cols
    if isinstance(data, Promised):
        return field @ weight(Promised(name, (rows, data.shape[1])))
    return field @ weight(Data(dense(adjoint(chain, rows), data.array.T, dtype=data.array.dtype).T, name))


def seen_from(field: Operator, rows: object, x: Operator) -> Operator:
    """Return a field of the rows of a space, which x was picked into. Raises ShapeError where they were pooled."""
    if rows is T:
        return field
    picked = (node for node in x.walk() if node.kind.name == "pick" and node.out.rows is rows)
    if (picking := next(picked, None)) is None:
        raise ShapeError(f"{field} of rows of space {rows}: they were pooled, not picked, and have no {field.args[0]}")
    return seen_from(field, picking.into.rows, x) @ picking


def scales_columns(term: Operator) -> bool:
    """True if a product of two terms is its first one with columns times a constant row."""
    value, c = term.children
    return bool(c.constant and c.uniform and (not term.linear or value is I)) and not (is_cut(c) and promised(c))


def is_cut(c: Operator) -> bool:
    """True if a constant row was cut into heads."""
    return bool(c.children) and c.out.heads not in (1, H)


def scale_columns(x: Operator, c: Operator) -> Operator:
    """Return x with its columns times a constant row; x itself where the row is ones. A row that was cut into heads is
    stored as one row of each head: behind x it would be cut again."""
    if is_cut(c) and not promised(c):
        c = const(dense(c, np.zeros((1, 1))))
    scaled: Operator = x @ (I * c)
    return x if full(c, 1) and same_columns(scaled, x) else scaled


def promised(term: Operator) -> bool:
    """True if a term reads arrays that are only promised."""
    return any(isinstance(attribute, Promised) for node in term.walk() for attribute in node.attributes)


def add_constant(total: Operator, x: Operator, c: Operator) -> Operator:
    """Return the sum of x and c; x itself where c is zeros. A single column keeps its number: the eps of a norm may be
    0."""
    return (
        x if full(c, 0) and same_columns(total, x) and x.out.cols != 1 and not isinstance(x.out.cols, Space) else total
    )


def full(c: Operator, number: int) -> bool:
    """True if a term is a row of this number. A row that adds 0 or scales by 1 is removed; no fact is read from it. A
    promised row has no numbers yet, and the result is False."""
    return c.kind.name == "const" and not isinstance(c.args[0], Promised) and bool((c.args[0].array == number).all())


def same_columns(a: Operator, x: Operator) -> bool:
    """True if a has the columns and heads of x: a row that fits any number of heads adds none."""
    return a.out.cols == x.out.cols and a.out.heads in (x.out.heads, H)


def widen_constant(c: Operator, other: Operator) -> Operator:
    """Return a number that is added to every column as a row as wide as the other, so that a law may send it through a
    matrix."""
    wide = other.out.cols
    if not (
        c.constant and c.uniform and c.out.cols == 1 and c.out.heads in (1, H) and isinstance(wide, int) and wide > 1
    ):
        return c
    wider: Operator = (
        const(np.full(wide, c.args[0].array.item())) if c.kind.name == "const" else c @ weight(np.ones((1, wide)))
    )
    return wider


def factors(term: Operator) -> Iterator[Operator]:
    """Yield the factors of a composition, left to right, along its left spine: embeddings, then one for each layer."""
    behind = list[Operator]()  # a loop, no recursion: there may be a thousand layers
    while term.kind is KINDS["compose"]:
        term, last = term.children
        behind.append(last)
    yield term
    yield from reversed(behind)
