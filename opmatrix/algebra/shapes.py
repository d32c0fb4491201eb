"""A shape is heads x rows x columns; a size is an int or a live symbol, so a model has shapes before it has rows."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

from opmatrix.algebra.attributes import brief as brief
from opmatrix.algebra.batch.live import H as H
from opmatrix.algebra.batch.live import Live as Live
from opmatrix.algebra.batch.live import LiveSize as LiveSize
from opmatrix.algebra.batch.live import N as N
from opmatrix.algebra.batch.live import S as S
from opmatrix.algebra.batch.live import Space as Space
from opmatrix.algebra.batch.live import T as T
from opmatrix.algebra.batch.live import find_spaces as find_spaces
from opmatrix.algebra.batch.live import space as space

if TYPE_CHECKING:
    import sympy

    from opmatrix.algebra.batch.relations import Relation
    from opmatrix.algebra.batch.signature import Port
    from opmatrix.algebra.data import Data
    from opmatrix.algebra.term import Operator


def size(name: str) -> sympy.Symbol:
    """Return a live size: a positive integer that is not fixed yet."""
    import sympy

    return sympy.Symbol(name, integer=True, positive=True)


class ShapeError(TypeError):
    """An error: two sizes that should be equal are not. The text names the operation, both shapes and the axis."""


class Needs(Exception):
    """A signal: an unknown size of the input must be the size that was found."""

    def __init__(self, unknown: LiveSize, found: LiveSize) -> None:
        self.sizes = {unknown: found}


def expression(n: LiveSize) -> sympy.Expr:
    """Return a size as an expression. Raises ShapeError for text: to read it as an expression would run it."""
    import sympy

    try:
        return sympy.sympify(n, strict=True)
    except sympy.SympifyError:
        raise ShapeError(f"{brief(repr(n))} is no size: a whole number, or an expression of sizes") from None


def as_int(n: LiveSize) -> LiveSize:
    """Return an integer of sympy as an int, the symbol of a live size as that size, and anything else as it is."""
    if isinstance(n, int | Live):
        return n
    plain: LiveSize = int(n) if getattr(n, "is_Integer", False) else getattr(n, "live", n)
    return plain


RESERVED = {live.name: live for live in (H, N, S, T)}  # names that no size of a model may have


def is_named(n: LiveSize) -> bool:
    """True if a size has names for numbers, and all of them are a model's own."""
    return (
        not isinstance(n, int | Live)
        and bool(n.free_symbols)
        and all(symbol == size(symbol.name) and symbol.name not in RESERVED for symbol in n.free_symbols)
    )


def certain(claim: object) -> bool:
    """True if a claim about sizes holds for all their values; a claim about symbols may be open."""
    return bool(claim == True)  # noqa: E712    # `bool` of an open one raises


def quotient(n: LiveSize, parts: LiveSize) -> LiveSize:
    """Return the size of each of `parts` equal parts of n."""
    if isinstance(n, int) and isinstance(parts, int):
        return n // parts
    return as_int(expression(n) / expression(parts))


def divides(parts: LiveSize, n: LiveSize) -> bool:
    """True if n falls into `parts` equal parts. Named sizes may stand for numbers that do, so False means that no
    numbers do."""
    if isinstance(n, int) and isinstance(parts, int):
        return n % parts == 0
    return (expression(n) / expression(parts)).is_integer is not False


def root(a: LiveSize, b: LiveSize, unknown: LiveSize) -> LiveSize | None:
    """Return the positive whole number or expression at which a equals b, linear in the unknown; None where there is
    none."""
    for one, other in ((a, b), (b, a)):
        if one is unknown and (isinstance(other, int) or (other.is_Symbol and other is not unknown)):
            return other
    if isinstance(a, int | Live) and isinstance(b, int | Live):
        return None
    import sympy

    left, right = expression(a), expression(b)
    if not (left.has(unknown) or right.has(unknown)):
        return None
    difference = left - right  # sympy imports its tensors, 0.05 s, for its first sum
    if not difference.has(unknown):
        return None
    at_zero = difference.subs(unknown, 0)
    slope = difference.subs(unknown, 1) - at_zero
    if slope == 0 or difference.subs(unknown, 2) != at_zero + 2 * slope:
        return None
    solution = sympy.cancel(-at_zero / slope)
    return None if solution.is_integer is False or solution.is_positive is False else as_int(solution)


def untaken(name: str, taken: Container[str]) -> str:
    """Return the name, or where it is taken the first with a number behind it that is free."""
    numbered = (f"{name}_{number}" for number in count(2))
    return next(candidate for candidate in chain([name], numbered) if candidate not in taken)


def equal_sizes(a: LiveSize, b: LiveSize) -> bool:
    """True for expressions of sizes that are equal as fractions, however they are written."""
    if isinstance(a, int | Live) or isinstance(b, int | Live):
        return False
    import sympy

    return bool(sympy.cancel(expression(a) - expression(b)) == 0)


def agree(
    a: LiveSize, b: LiveSize, axis: str, left: object, right: object, *doing: object, spread: bool = False
) -> LiveSize:
    """Return the one size that both axes have; a size of one spreads where allowed, so there unknown heads are one.
    Raises Needs for an unknown size, ShapeError for sizes that differ."""
    if a is b or a == b:
        return a
    if spread and (a == 1 or b == 1):
        return b if a == 1 else a
    for unknown in (H, N):
        if (solution := root(a, b, unknown)) is not None:
            raise Needs(unknown, 1 if spread and unknown is H else solution)
    if equal_sizes(a, b):
        return a
    raise ShapeError(f"{' '.join(map(brief, doing))}: {left} against {right}: {axis} {a} ≠ {b}")


def expect(rows: LiveSize, origin: Space) -> None:
    """Raise Needs where rows of T must be the rows of another space: T stands for any space until a relation tells
    which."""
    if rows is T and origin is not T:
        raise Needs(T, origin)


def is_fixed_value(term: Operator, columns: LiveSize) -> bool:
    """True if an operator on the right of a value with so many columns is meant as a value, not to be applied: it needs
    no x, and its rows are of no space, or are the rows that the columns stand for."""
    if not term.constant or term.uniform:
        return False
    return not isinstance(term.out.rows, Space) or bool(term.out.rows is columns)


class Reading(Protocol):
    """A value of x at which a term is read: a shape, arrays, entries."""

    def act(self, matrix: Operator, /) -> Self:
        """Apply an operator matrix to this value."""


R = TypeVar("R", bound=Reading)


class Memo(Protocol[R]):
    """The results of terms that were read at some x."""

    def get(self, key: tuple[Operator, R], /) -> R | None:
        """Return the known result of a term at x; None if it was not read yet."""

    def __setitem__(self, key: tuple[Operator, R], found: R, /) -> None: ...


class Shape(NamedTuple):
    """The reading of a term that only looks at sizes."""

    heads: LiveSize = H
    rows: LiveSize = T
    cols: LiveSize = N

    def __str__(self) -> str:
        return ("" if self.heads in (1, H) else f"{self.heads}·") + f"({self.rows} × {self.cols})"

    def pointwise(self, other: Shape, doing: str) -> Shape:
        """Equal rows; heads and columns of one spread."""
        return Shape(
            agree(self.heads, other.heads, "heads", self, other, doing, spread=True),
            agree(self.rows, other.rows, "rows", self, other, doing),
            agree(self.cols, other.cols, "columns", self, other, doing, spread=True),
        )

    def __add__(self, other: Shape) -> Shape:  # type: ignore[override]
        return self.pointwise(other, "+")

    def __mul__(self, other: Shape) -> Shape:  # type: ignore[override]
        return self.pointwise(other, "*")

    def keep_top(self, by: Shape, k: LiveSize) -> Shape:
        """Keep the k largest of each row by other numbers, which have as many columns; one head of the values may serve
        all."""
        shape = self.pointwise(by, "keep_top by")
        if shape.heads is H:  # where a constant was added, which has as many heads as are asked for
            shape = shape._replace(heads=by.heads)
        if shape != by:
            raise ShapeError(f"keep_top by: {self} by {by}: give one number to rank by for each entry")
        if certain(k < 1) or (by.cols is not N and certain(k > by.cols)):
            raise ShapeError(f"keep_top: k = {k} of {by.cols} columns: give 1 to {by.cols}")
        return shape

    def act(self, matrix: Operator) -> Shape:
        """Apply an operator matrix, or a stack of matrices with one for each head."""
        *heads, rows, cols = matrix.shape_of(self.cols)
        agree(self.cols, rows, "columns against rows", self, f"({rows} × {cols})", "@", matrix)
        matrix_heads = heads[0] if heads else self.heads
        return Shape(agree(self.heads, matrix_heads, "heads", self, matrix, "@", matrix, spread=True), self.rows, cols)

    def symbol(self, name: str, into: Shape, out: Shape) -> Shape:
        """Apply an operator of which only the sizes are known. One that takes anything gives the shape that it
        declares, and declared rows that are no tokens stay."""
        if into.cols is not N:
            agree(self.cols, into.cols, "columns", self, into, "@", name)
        heads = self.heads if out.heads is H else out.heads
        if into.cols is not N:
            heads = agree(self.heads, heads, "heads", self, out, "@", name, spread=True)
        rows = self.rows if out.rows is T else out.rows
        return Shape(heads, rows, self.cols if out.cols is N else out.cols)

    def pick(self, relation: Relation) -> Shape:
        """Pick one of these rows for each row of the relation."""
        expect(self.rows, origin := space(relation.cols))
        agree(self.rows, origin, "rows against columns", self, relation, "@ pick")
        return Shape(self.heads, space(relation.rows), self.cols)

    def shift(self, k: LiveSize) -> Shape:
        """Return the same shape. Raises ShapeError for rows that are not tokens, as these have no row before them."""
        if self.rows is not T:
            raise ShapeError(f"shift: rows of {self.rows}: only tokens follow one another in a sequence")
        return self

    def backwards(self) -> Shape:
        """Return the same shape. Raises ShapeError for rows that are not tokens."""
        if self.rows is not T:
            raise ShapeError(f"backwards: rows of {self.rows}: only tokens follow one another in a sequence")
        return self

    def entered(self, port: Port) -> Shape:
        """Return the shape of an input: heads, space and columns of its port."""
        return Shape(port.heads, space(port.space), port.columns)

    def related(self, relation: Relation) -> Shape:
        """Return the shape of a relation: one head, its row space, its column space."""
        return Shape(1, space(relation.rows), space(relation.cols))

    @property
    def size(self) -> tuple[LiveSize, LiveSize]:
        """The rows and columns, without the heads."""
        return self.rows, self.cols

    def spread(self, rows: LiveSize, cols: LiveSize) -> Shape:
        """Return the shape of a value that is the same in all its rows, or columns: where its size and the wanted one
        are both spaces, it takes the wanted one."""

        def of(has: LiveSize, wanted: LiveSize) -> LiveSize:
            """Return the wanted size where both are spaces, else the size that is there."""
            return wanted if isinstance(has, Space) and isinstance(wanted, Space) else has

        return Shape(self.heads, of(self.rows, rows), of(self.cols, cols))

    def total(self) -> Shape:
        """Return the shape of the sum of all heads: one head."""
        return Shape(1, self.rows, self.cols)

    def given(self, field: str, cols: LiveSize) -> Shape:
        """Return the shape of one-hot rows of a field: one head of `cols` columns."""
        return Shape(1, self.rows, cols)

    def by_distance(self, table: Data, most: LiveSize) -> Shape:
        """A number for each pair of tokens, in as many heads as the table has rows."""
        if self.rows is not T:
            raise ShapeError(f"by_distance: rows of {self.rows}: distances are between tokens")
        if len(table.shape) != 2 or certain(most < 1) or certain(table.shape[1] != 2 * most + 1):
            shown = " × ".join(map(str, table.shape))
            raise ShapeError(
                f"by_distance: a table of {shown} for distances up to {most}: give a row for each head, "
                f"of {2 * most + 1} columns, from -{most} to {most}"
            )
        if not table.is_finite:
            raise ShapeError(
                "by_distance: the table has numbers that are not finite: hide keys by a pattern (where=) instead"
            )
        return Shape(table.shape[0], T, T)

    def at_distances(self, table: Data) -> Shape:
        """A number for each pair of tokens, in as many heads as the table has matrices."""
        if self.rows is not T:
            raise ShapeError(f"at_distances: rows of {self.rows}: distances are between tokens")
        if len(table.shape) != 3:
            shown = " × ".join(map(str, table.shape))
            raise ShapeError(
                f"at_distances: a table of {shown}: give heads × columns of x × a column for each distance"
            )
        heads, rows, _ = table.shape
        agree(self.heads, heads, "heads", self, brief(table.shape), "@ at_distances", spread=True)
        agree(self.cols, rows, "columns against rows", self, brief(table.shape), "@ at_distances")
        return Shape(heads, T, T)

    def turn(self) -> Shape:
        """Exchange rows and columns."""
        return Shape(self.heads, self.cols, self.rows)

    def beside(self, other: Shape) -> Shape:
        """Put columns next to columns."""
        return Shape(
            agree(self.heads, other.heads, "heads", self, other, "row"),
            agree(self.rows, other.rows, "rows", self, other, "row"),
            as_int(self.cols + other.cols),
        )

    def product(self, other: Shape, over: object, where: object) -> Shape:
        """Multiply value by value: columns of the left against rows of the right."""
        doing = "product over", getattr(over, "__name__", over)
        if isinstance(self.cols, Space):
            expect(other.rows, self.cols)
        heads = agree(self.heads, other.heads, "heads", self, other, *doing, spread=True)
        agree(self.cols, other.rows, "columns against rows", self, other, *doing)
        width = getattr(over, "width", 1)  # columns that finish gives; None for one a row
        return Shape(
            heads,
            self.rows,
            other.cols if width == 1 else as_int(other.cols * (other.rows if width is None else width)),
        )

    def scan(self, other: Shape, over: object, where: object) -> Shape:
        """Merge the rows that each row sees, column by column. Raises ShapeError for rows that are not tokens, for a
        pattern that is no prefix of a sequence, and for a monoid without a width."""
        width, doing = getattr(over, "width", 1), f"scan over {getattr(over, '__name__', over)}"
        both = self.pointwise(other, doing)
        if both.rows is not T:
            raise ShapeError(f"{doing}: rows of {both.rows}: it merges the tokens of a sequence in order")
        if not getattr(where, "prefix", True):
            raise ShapeError(
                f"{doing} where {where}: a scan merges the rows of a sequence up to each row, where=sequence & causal, "
                f"or all of them, where=sequence; any pattern: product(scores, values, where={where})"
            )
        if width is None:
            raise ShapeError(f"{doing}: it gives as many columns as rows are merged: use a monoid of a fixed width")
        return both if width == 1 else both._replace(cols=as_int(both.cols * width))

    def delta_rule(self, keys: Shape, values: Shape, betas: Shape, decays: Shape) -> Shape:
        """Correct a state by rows, which queries read. Raises ShapeError for rows that are not tokens, and for heads
        and columns that do not fit."""
        heads = self.heads
        for name, shape in dict(q=self, k=keys, v=values, betas=betas, decays=decays).items():
            heads = agree(heads, shape.heads, "heads", self, shape, f"delta rule: {name}", spread=True)
            if name in "qkv" and shape.rows is not T:
                raise ShapeError(f"delta rule: {name} has rows of {shape.rows}: it passes tokens of sequences in order")
        columns = agree(self.cols, keys.cols, "columns", self, keys, "delta rule: k")
        agree(betas.cols, 1, "columns", betas, 1, "delta rule: betas")
        if decays.cols != 1:
            agree(decays.cols, columns, "columns", decays, keys, "delta rule: decays")
        return values._replace(heads=heads)

    def split(self, h: LiveSize) -> Shape:
        """Split columns into h heads."""
        agree(self.heads, 1, "heads", self, f"heads({h})", "@", f"heads({h})")
        if certain(h < 1) or not divides(h, self.cols):
            raise ShapeError(f"@ heads({h}): {self} has {self.cols} columns, which {h} heads do not divide")
        return Shape(h, self.rows, quotient(self.cols, h))

    def repeat(self, h: LiveSize) -> Shape:
        """Repeat each head for a group of equal size, so that there are h heads."""
        if self.heads is not H and (certain(h < 1) or not divides(self.heads, h)):
            raise ShapeError(f"@ repeat({h}): {self} has {self.heads} heads, which do not divide {h}")
        return Shape(h, self.rows, self.cols)

    def fold(self, h: LiveSize) -> Shape:
        """Sum groups of heads, so that there are h heads."""
        if self.heads is not H and (certain(h < 1) or not divides(h, self.heads)):
            raise ShapeError(f"@ fold({h}): {self} has {self.heads} heads, which {h} groups do not divide")
        return Shape(h, self.rows, self.cols)

    def shares(self, where: object) -> Shape:
        """Return the same shape: shares replace scores one by one."""
        return self

    def dropped(self, name: str, rate: float) -> Shape:
        """Return the same shape: a dropout zeroes and scales entries."""
        return self

    def join(self, h: LiveSize) -> Shape:
        """Put heads side by side."""
        agree(self.heads, h, "heads", self, f"join({h})", "@", f"join({h})")
        return Shape(1, self.rows, as_int(self.cols * h))
