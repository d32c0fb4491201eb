"""Every node kind, once. A matrix kind *is* its entry function; an entrywise one *is* its function; a combinator *is*
its body."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from formats.core.activation import ACTIVATIONS
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import FIELDS
from opmatrix.algebra.batch.relations import Relation
from opmatrix.algebra.batch.signature import Port
from opmatrix.algebra.data import Data
from opmatrix.algebra.monoid import Monoid, Scalars
from opmatrix.algebra.positions.lags import Lag
from opmatrix.algebra.positions.patterns import Pattern, causal, everyone, sequence
from opmatrix.algebra.positions.visibility import check_scores
from opmatrix.algebra.properties import PROPERTIES
from opmatrix.algebra.shapes import LiveSize, N, Shape, ShapeError, T, as_int, brief, certain
from opmatrix.algebra.term import KINDS, Body, Kind, Operator, adjoint

ReadAt: TypeAlias = Any  # x where a term is read: a Shape, arrays, entries
ScalarBody: TypeAlias = Callable[[Scalars], Scalars]
Cell: TypeAlias = float | ScalarBody | None  # an entry: a factor, a function of a number, or None
Sizes: TypeAlias = tuple[LiveSize, ...]


def matrix(shape: Body, dense: Body | None, linear: bool | Body = True, **more: bool | Body) -> Callable[[Body], Kind]:
    """Declare an operator matrix by its entry (i, j): a number, a function, or None where there is none."""

    def declare(entry: Body) -> Kind:
        """Make the kind of an entry function: row by row, the same in every row."""
        return Kind(entry, shape, dense, linear=linear, row_wise=True, uniform=True, **more)  # type: ignore[arg-type]

    return declare


DERIVATIVES: dict[str, ScalarBody] = {}  # derivatives of functions of one number, by the names of their kinds


def scalar_function(derivative: ScalarBody | None = None, **properties: bool) -> Callable[[ScalarBody], Operator]:
    """Declare a diagonal operator: f on the diagonal, no entries elsewhere. Without a derivative no gradient goes
    through it."""

    def declare(f: ScalarBody) -> Operator:
        """Make the operator of a scalar function, and store its derivative."""

        def entry(i: int, j: int) -> Cell:
            return f if i == j else None

        def of_each(u: Scalars) -> Scalars:
            if np.shape(values := f(u)) == u.shape:
                return values
            raise ShapeError(
                f"{f.__name__}: for {brief(u.shape)} entries it returns {brief(np.shape(values))}: a scalar "
                "function returns one number for each entry"
            )

        entry.__name__, entry.__doc__, entry.__module__ = f.__name__, f.__doc__, getattr(f, "__module__", "")
        operator: Operator = matrix(lambda n: (n, n), of_each, linear=False, entrywise=True, **properties)(entry)()
        if derivative is not None:
            DERIVATIVES[operator.kind.name] = derivative
        return operator

    return declare


# Matrices of numbers. `adjoint` is called with n, the number of columns coming in.


def slice_size(n: LiveSize, lo: LiveSize, hi: LiveSize, what: str) -> None:
    """Raise ShapeError unless columns lo to hi lie inside n, as far as that is known. A named size that could be larger
    than a number n is refused too: in laws, two sizes would be taken for one."""
    if any(map(certain, (lo < 0, hi <= lo, n is not N and hi > n))) or (isinstance(n, int) and not certain(hi <= n)):
        raise ShapeError(f"{what}: columns {lo} to {hi} of {n}")


def cols_shape(n: LiveSize, lo: LiveSize, hi: LiveSize, of: LiveSize | None) -> Sizes:
    """Return the sizes of a range of columns. Raises ShapeError if it is not within n, or within `of`."""
    n = n if of is None else of
    slice_size(n, lo, hi, f"@ cols({lo}, {hi})")
    return n, as_int(hi - lo)


def place_shape(k: LiveSize, lo: LiveSize, n: LiveSize) -> Sizes:
    """Return the sizes of k columns placed in n. Raises ShapeError if they are not within n."""
    if k is not N:
        slice_size(n, lo, lo + k, f"@ place({lo}, {n})")
    return k, n


def pad_columns(x: Scalars, lo: int, n: int) -> Scalars:
    """Put the columns of x at lo.. among n columns of zeros."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(lo, n - lo - x.shape[-1])])


@matrix(lambda n: (n, n), lambda x: x, entrywise=True, storable=True, keeps_order=True, adjoint=lambda n: KINDS["I"]())
def I(i: int, j: int) -> Cell:  # noqa: E743
    """The identity: x itself."""
    return 1 if i == j else None


@matrix(
    lambda n: (n, 1),
    lambda x: x.sum(-1, keepdims=True),
    adjoint=lambda n: KINDS["weight"](np.ones((1, n))) if isinstance(n, int) else None,
)
def ones(i: int, j: int) -> Cell:
    """One column of ones: the sum of a row; `over(ones, m)`, or the monoid m alone, reduces a row by m."""
    return 1


def weight_shape(n: LiveSize, w: Data) -> Sizes:
    """Return the array's shape, (rows, columns) or (heads, rows, columns). Raises ShapeError for other numbers of
    axes."""
    if len(w.shape) not in (2, 3):
        raise ShapeError(
            f"weight: an array of shape {w.shape}: a matrix is (rows, columns), one for each head (heads, "
            "rows, columns); one row is const(..)"
        )
    return w.shape


@matrix(weight_shape, lambda x, w: x @ w, adjoint=lambda n, w: KINDS["weight"](w.T))
def weight(i: int, j: int, w: Data) -> Cell:
    """Entries "multiply by w[i, j]": the ordinary product. An array with three axes is one matrix for each head."""
    return w[i, j]


def diag_shape(n: LiveSize, g: Data) -> Sizes:
    """Return (p, p) for an array of p numbers. Raises ShapeError for more axes."""
    if len(g.shape) != 1:
        raise ShapeError(f"diag: {g.shape} is no row of numbers: a matrix is weight(..)")
    return g.shape * 2


@matrix(diag_shape, lambda x, g: x * g, diagonal=True, adjoint=lambda n, g: KINDS["diag"](g))
def diag(i: int, j: int, g: Data) -> Cell:
    """Every column times its number."""
    return g[i] if i == j else None


@matrix(
    cols_shape,
    lambda x, lo, hi, of: x[..., lo:hi],
    adjoint=lambda n, lo, hi, of: None if n is N else KINDS["place"](lo, n),
)
def cols(i: int, j: int, lo: int, hi: int, of: int | None = None) -> Cell:
    """Columns lo to hi, without hi; of any number of columns, or of `of` columns."""
    return 1 if i == lo + j else None


@matrix(place_shape, pad_columns, adjoint=lambda k, lo, n: None if k is N else cols(lo, lo + k, n))
def place(i: int, j: int, lo: int, n: int) -> Cell:
    """From column lo on in n columns, zeros elsewhere."""
    return 1 if j == lo + i else None


def broadcast_shape(x: Scalars, b: Scalars) -> Sizes:
    """As many rows as x has, and as many heads as either."""
    return (*np.broadcast_shapes(x.shape[:-2], b.shape[:-2]), x.shape[-2], b.shape[-1])


def const_shape(n: LiveSize, b: Data) -> Sizes:
    """Return the sizes of a constant row, heads first if it has several. Raises ShapeError for an array of several
    rows."""
    if len(b.shape) > 1 and b.shape[-2] != 1:
        raise ShapeError(f"const: {b.shape} is no row of numbers: a matrix is weight(..), as in @ W")
    return (*b.shape[:-2], n, b.shape[-1])


@matrix(const_shape, lambda x, b: np.broadcast_to(b, broadcast_shape(x, b)), linear=False, constant=True, by_key=True)
def const(i: int, j: int, b: Data) -> Cell:
    """The row b whatever x is: constant functions in the first row of the matrix. One number stands for any width.
    Zeros are a row like any other: no property is read from numbers."""
    return (lambda u: b[(0, j)[-len(b.shape) :]]) if i == 0 else None


def over_shape(n: LiveSize, a: Operator, m: type[Monoid]) -> Sizes:
    """Return the sizes of a's matrix, its columns times those that finish gives. Raises TypeError if a is no matrix
    kind."""
    if not a.kind.matrix:
        raise TypeError(f"over: {brief(a)} is not a single matrix of entries")
    *stack, rows, p = a.shape_of(n)
    return (*stack, rows, p * m.count(n))


def averaged(n: LiveSize, a: Operator, m: type[Monoid]) -> Operator | None:
    """Return the adjoint over a monoid whose products are a multiple of the matrix product, such as a sum or a mean."""
    if flag(m, "ordinary"):
        return adjoint(a, n)
    scale: Body | None = getattr(m, "scale", None)
    return adjoint(a, n) * scale(n) if scale and n is not N else None


@matrix(
    over_shape,
    None,
    adjoint=averaged,
    linear=lambda a, m: a.linear and m.linear,
    positively_homogeneous=lambda a, m: a.linear and m.homogeneous,
)
def over(i: int, j: int, a: Operator, m: type) -> Cell:
    """The entries of a, merged by the monoid m instead of summed."""
    entry: Cell = a.kind.body(i, j, *a.args)
    return entry


# Functions of one number.

SCALAR_FUNCTIONS: dict[str, Operator] = {
    name: scalar_function(record.derivative, **record.properties)(record.function)
    for name, record in ACTIVATIONS.items()
}


@scalar_function(np.exp, keeps_order=True)
def exp(u: Scalars) -> Scalars:
    """e to the power u."""
    return np.exp(u)


@scalar_function(lambda u: -1 / u**2)
def reciprocal(u: Scalars) -> Scalars:
    """One over u."""
    return np.divide(1, u)


@scalar_function(np.sign, positively_homogeneous=True, maps_zero_to_zero=True)
def magnitude(u: Scalars) -> Scalars:
    """u without its sign; abs(A) is A @ magnitude."""
    return np.abs(u)


# Combinators: the properties of the whole follow from the properties of the parts.


def combinator(at_x: int = 0, adjoint: Body | None = None, **properties: bool | Body) -> Callable[[Body], Kind]:
    """Declare a kind by its body: the reading at x, computed from the readings of its children."""
    return lambda body: Kind(body, adjoint=adjoint, at_x=at_x, **properties)  # type: ignore[arg-type]


def every(*names: str) -> dict[str, Body]:
    """Return predicates by name: each property holds where it holds for all operators among the arguments."""

    def holds(name: str) -> Body:
        """Return the predicate of one property: all operators among the arguments have it."""
        return lambda *args: all(getattr(a, name) for a in args if isinstance(a, Operator))

    return {name: holds(name) for name in names}


PRESERVED = every(
    "linear",
    "storable",
    "single",
    "row_linear",
    "additive",
    "row_wise",
    "uniform",
    "positively_homogeneous",
    "maps_zero_to_zero",
)


def is_one_row(a: Operator) -> bool:
    """True if an operator gives one row, the same for every x and in every row."""
    return bool(a.constant and a.uniform)


def holds_scaled(a: Operator, b: Operator, name: str) -> bool:
    """True if one factor has the property and the other does not depend on x."""
    return bool((getattr(a, name) and b.constant) or (getattr(b, name) and a.constant))


def fitted(u: ReadAt, a: Operator, rows: LiveSize, cols: LiveSize) -> ReadAt:
    """Return the reading u of a, spread to the wanted rows, or columns, where u is the same in all of them."""
    size = u.size
    wanted = (rows if is_one_row(a) else size[0], cols if a.level and size[1] != 1 and cols != 1 else size[1])
    return u if wanted == size else u.spread(*wanted)


def met(x: ReadAt, a: Any, b: Any) -> tuple[ReadAt, ReadAt]:
    """Return the readings of both operands at x, with as many rows as each other: a row that is the same everywhere
    belongs to no space."""
    u, v = a(x), b(x)
    if u.size == v.size:
        return u, v
    return fitted(u, a.term, *v.size), fitted(v, b.term, *u.size)


def pointwise(name: str) -> Callable[[Operator, Operator], bool]:
    """Return a predicate: both operands have the property, or one is a single number that spreads."""

    def holds(a: Operator, b: Operator) -> bool:
        """True if one operand has the property and the other too, or is one number that spreads over all."""
        held = [getattr(c, name) for c in (a, b)]
        return any(held) and all(has or (is_one_row(c) and c.column) for has, c in zip(held, (a, b), strict=True))

    return holds


def by_constant(name: str) -> Callable[[Operator, Operator], bool]:
    """Return a predicate: one factor has the property and the other is the same row for every x and row."""
    return lambda a, b: (getattr(a, name) and is_one_row(b)) or (getattr(b, name) and is_one_row(a))


def flag(over: object, name: str) -> bool:
    """Return a flag of a monoid; False for a monoid that is not chosen yet."""
    return getattr(over, name, False)


def adjoint_of_row(n: LiveSize, a: Operator, b: Operator) -> Operator:
    """The adjoint of columns side by side: each block of columns through its own adjoint, summed."""
    p, q = (c(Shape(cols=n)).cols for c in (a, b))
    blocks: Operator = cols(0, p, p + q) @ adjoint(a, n) + cols(p, p + q, p + q) @ adjoint(b, n)
    return blocks


def sum_adjoint(a: Operator, n: LiveSize, p: LiveSize) -> Operator:
    """The adjoint of a where it spreads to p columns: they are summed first."""
    return adjoint(a, n) if a(Shape(cols=n)).cols == p else ones() @ adjoint(a, n)


def scaling(n: LiveSize, a: Operator, b: Operator, p: LiveSize) -> Operator | None:
    """The adjoint of a times a constant row: times the row first."""
    if is_one_row(b):
        return (I() * b) @ sum_adjoint(a, n, p)
    return (I() * a) @ sum_adjoint(b, n, p) if is_one_row(a) else None


@combinator(
    at_x=1,
    **PRESERVED,
    **every("diagonal", "entrywise", "selective", "keeps_order"),
    constant=lambda a, b: a.constant or b.constant,
    stacked=lambda a, b: (a.storable and (b.splits or b.stacked)) or (a.stacked and b.storable),
    column=lambda a, b: b.column or (a.column and b.entrywise),
    level=lambda a, b: a.level and b.entrywise,
    by_key=lambda a, b: b.by_key or (a.by_key and b.row_wise and b.uniform),
    adjoint=lambda n, a, b: adjoint(b, a(Shape(cols=n)).cols) @ adjoint(a, n),
)
def compose(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """a, then b."""
    return b(a(x))


@combinator(
    at_x=2,
    **PRESERVED,
    **every("constant", "column", "level", "by_key"),
    diagonal=pointwise("diagonal"),
    entrywise=pointwise("entrywise"),
    keeps_order=lambda a, b: (a.keeps_order and (b.keeps_order or b.level)) or (a.level and b.keeps_order),
    adjoint=lambda n, a, b: sum_adjoint(a, n, p := (a(x := Shape(cols=n)) + b(x)).cols) + sum_adjoint(b, n, p),
)
def add(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """The sum, entry by entry."""
    u, v = met(x, a, b)
    return u + v


@combinator(
    at_x=2,
    **every("row_wise", "uniform", "constant", "column", "level", "by_key"),
    diagonal=pointwise("diagonal"),
    entrywise=pointwise("entrywise"),
    linear=by_constant("linear"),
    storable=by_constant("storable"),
    row_linear=lambda a, b: holds_scaled(a, b, "row_linear"),
    additive=lambda a, b: holds_scaled(a, b, "additive"),
    positively_homogeneous=lambda a, b: holds_scaled(a, b, "positively_homogeneous"),
    maps_zero_to_zero=lambda a, b: a.maps_zero_to_zero or b.maps_zero_to_zero,
    adjoint=lambda n, a, b: scaling(n, a, b, (a(x := Shape(cols=n)) * b(x)).cols),
)
def mul(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """The product, entry by entry."""
    u, v = met(x, a, b)
    return u * v


@combinator(at_x=2, **PRESERVED, **every("constant", "stacked", "by_key"), adjoint=adjoint_of_row)
def row(x: ReadAt, a: Operator, b: Operator) -> ReadAt:
    """Columns side by side."""
    u, v = a(x), b(x)
    return fitted(u, a.term, v.size[0], u.size[1]).beside(fitted(v, b.term, u.size[0], v.size[1]))


@combinator(
    at_x=1,
    **every("additive", "constant", "positively_homogeneous", "maps_zero_to_zero"),
    level=lambda a: is_one_row(a) or a.by_key,
    by_key=lambda a: a.level,
)
def turn(x: ReadAt, a: Operator) -> ReadAt:
    """The numbers of a value with rows and columns exchanged."""
    return a(x).turn()


def weighted(name: str) -> Body:
    """Return a predicate: one operand has the property, the monoid is linear in it, and the other operand does not
    depend on x."""
    return lambda a, b, over, where: (
        (flag(over, "linear") and holds_scaled(a, b, name))
        or (flag(over, "right_linear") and a.constant and getattr(b, name))
    )


def kept_zero(a: Operator, b: Operator, over: object, where: Pattern) -> bool:
    """True if the product is linear in an operand that maps zero to zero."""
    return bool((flag(over, "linear") and a.maps_zero_to_zero) or (flag(over, "right_linear") and b.maps_zero_to_zero))


@combinator(
    at_x=2,
    **every("constant"),
    row_wise=lambda a, b, over, where: a.row_wise and b.constant,
    additive=weighted("additive"),
    positively_homogeneous=weighted("positively_homogeneous"),
    maps_zero_to_zero=kept_zero,
    level=lambda a, b, over, where: b.level and flag(over, "right_linear"),
    by_key=lambda a, b, over, where: a.by_key and flag(where, "everything"),
)
def product(x: ReadAt, a: Operator, b: Operator, over: type = monoids.sum, where: Pattern = everyone) -> ReadAt:
    """The generalised product of two values: `product(q @ k.T, v, over=softmax, where=sequence)` is attention,
    `product(given("members"), x, over=mean)` pooling. An absent entry of a relation on the left is left out. Under a
    pattern one row of scores, such as `turn(k)` of one column, serves all rows."""
    u, v = a(x), b(x)
    u = fitted(u, a.term, u.size[0], v.size[0])
    if where is not everyone and u.size[0] == 1 and a.term.out.rows in (1, T):  # no row of another space
        u = x.act(const(1.0)).product(u, monoids.sum, everyone)
    if isinstance(u, Shape):
        check_scores(u, where)
    return u.product(fitted(v, b.term, u.size[1], v.size[1]), over, where)


@combinator(
    at_x=2,
    **every("constant"),
    additive=weighted("additive"),
    positively_homogeneous=weighted("positively_homogeneous"),
    maps_zero_to_zero=kept_zero,
)
def scan(x: ReadAt, a: Operator, b: Operator, over: type = monoids.sum, where: Pattern = sequence & causal) -> ReadAt:
    """Rows merged with those before them, column by column: out[t, j] merges lift(a[s, j], b[s, j]) over the rows s
    that row t sees, in order, and finishes. `scan(const(1.0), x)` is the running sum of each sequence. A row sees its
    sequence up to itself, or all of it, `where=sequence` (Blelloch 1990, section 1)."""
    u, v = met(x, a, b)
    return u.scan(v, over, where)


def columns_apart(u: ReadAt, heads: LiveSize, columns: LiveSize) -> ReadAt:
    """Return a value with a head for each of so many columns of each of its heads."""
    return (u if heads == 1 else u.join(heads)).split(heads * columns)


def read_states(q: ReadAt, k: ReadAt, v: ReadAt, decays: ReadAt | None, where: Pattern) -> ReadAt:
    """Return the product of each query with the state that its row sees, k times each column of v summed over rows, or
    merged over `decay`: a head for each column of v, whose state is as wide as k."""
    if isinstance(q, Shape):
        kept = k.scan(k, monoids.sum, where) if decays is None else decays.scan(k, monoids.decay, where)
        return q.product(kept.turn(), monoids.sum, everyone).product(v, monoids.sum, where)
    count, columns = max(u.heads for u in (q, k, v, decays or v)), v.size[1]
    every_column = count * columns
    v = columns_apart(v if v.heads == count else v.repeat(count), count, columns)
    added = k.repeat(every_column) * v
    if decays is None:
        state = added.act(const(1.0)).scan(added, monoids.sum, where)
    else:
        state = decays.repeat(every_column).scan(added, monoids.decay, where)
    answers = (q.repeat(every_column) * state).act(ones()).join(every_column)
    return answers if count == 1 else answers.split(count)


OF_STATES: dict[str, Body] = dict(
    constant=lambda *args: all(a.constant for a in args[:-1]),
    maps_zero_to_zero=lambda q, k, v, *_: q.maps_zero_to_zero or k.maps_zero_to_zero or v.maps_zero_to_zero,
)


@combinator(at_x=3, **OF_STATES)
def linear_attention(x: ReadAt, q: Operator, k: Operator, v: Operator, where: Pattern = sequence & causal) -> ReadAt:
    """Attention whose scores are products of q and k alone, in the order of T: each row adds k v to a state, from which
    its q reads (Katharopoulos et al. 2020, eq. 16 to 20). A row sees its sequence up to itself, or all of it,
    `where=sequence`. Features are applied before: `linear_attention(q @ relu, k @ relu, v)`."""
    return read_states(q(x), k(x), v(x), None, where)


@combinator(at_x=4, **OF_STATES)
def gated_linear_attention(
    x: ReadAt, q: Operator, k: Operator, v: Operator, decays: Operator, where: Pattern = sequence & causal
) -> ReadAt:
    """Linear attention whose state is multiplied by decays, one number or one for each column of k, before a row adds
    to it (Yang et al. 2024, eq. 3; Sun et al. 2023, RetNet, eq. 6; Dao and Gu 2024, Mamba 2). One of 0 begins anew."""
    return read_states(q(x), k(x), v(x), decays(x), where)


CORRECTED: dict[str, Body] = dict(constant=lambda *args: all(a.constant for a in args))


@combinator(at_x=4, **CORRECTED)
def delta_rule(x: ReadAt, q: Operator, k: Operator, v: Operator, betas: Operator) -> ReadAt:
    """Linear attention whose row adds k times beta times the difference of v and what k reads of the state, so a value
    replaces the one that its key had: S becomes (I - beta k kᵀ) S + beta k vᵀ (Schlag et al. 2021, eq. 24; Yang et al.
    2024, DeltaNet). Betas are one number of each head; keys of unit length keep states from growing."""
    keys, written = k(x), betas(x)
    return q(x).delta_rule(keys, v(x), written, written.act(const(1.0)))


@combinator(at_x=5, **CORRECTED)
def gated_delta_rule(x: ReadAt, q: Operator, k: Operator, v: Operator, betas: Operator, decays: Operator) -> ReadAt:
    """The delta rule on a state that is multiplied by decays before, one number or one for each column of k (Yang et
    al. 2025, Gated DeltaNet, eq. 10). One of 0 begins anew."""
    return q(x).delta_rule(k(x), v(x), betas(x), decays(x))


IN_RECURRENCES = frozenset({"linear_attention", "gated_linear_attention", "delta_rule", "gated_delta_rule"})
KINDS_IN_ORDER = frozenset({"scan", *IN_RECURRENCES})  # kinds that pass rows in their order
BY_POSITION = frozenset({"rotate", "at_distances", "shift"})  # kinds that read the positions of rows


# These are additive but move numbers between heads, so they may not count as linear: the adjoint law would sum
# over heads. The first two are each other's adjoint all the same.
@combinator(additive=True, row_wise=True, uniform=True, splits=True, adjoint=lambda n, h: KINDS["join"](h))
def heads(x: ReadAt, h: int) -> ReadAt:
    """Columns into h heads of equal width."""
    return x.split(h)


@combinator(additive=True, row_wise=True, uniform=True, adjoint=lambda n, h: heads(h))
def join(x: ReadAt, h: int) -> ReadAt:
    """Heads into columns, side by side."""
    return x.join(h)


@combinator(additive=True, row_wise=True, uniform=True)
def repeat(x: ReadAt, h: int) -> ReadAt:
    """Each head of x repeated, so that there are h heads, copies side by side: keys and values that groups of queries
    share (Ainslie et al. 2023, GQA)."""
    return x.repeat(h)


@combinator(additive=True, row_wise=True, uniform=True)
def total(x: ReadAt) -> ReadAt:
    """The sum of all heads."""
    return x.total()


@combinator(row_wise=True, uniform=True, keeps_order=True)
def share(x: ReadAt) -> ReadAt:
    """Softmax of each row of each head: e to the power of its numbers, as shares of their sum. The largest of the row
    is taken from all of it first, so no number is too large."""
    grown = (x + x.act(over(ones(), monoids.max)) * x.act(const(-1.0))).act(exp)
    return grown * grown.act(ones()).act(reciprocal)


@combinator(
    at_x=2,
    **every("row_wise", "uniform", "constant", "column", "by_key"),
    maps_zero_to_zero=lambda s, by, k: s.maps_zero_to_zero,
    additive=lambda s, by, k: s.additive and by.constant,
    row_linear=lambda s, by, k: s.row_linear and by.constant,
    positively_homogeneous=lambda s, by, k: s.positively_homogeneous and (by.positively_homogeneous or by.constant),
)
def keep_top(x: ReadAt, s: Operator, by: Operator, k: int) -> ReadAt:
    """s where `by` is among the k largest of its row, of each head, and 0 elsewhere; of equal ones the first columns
    are taken. A row with a NaN in `by` is NaN. The gate of a mixture of experts (Shazeer et al. 2017) is so made."""
    u, v = met(x, s, by)
    return u.keep_top(v, k)


@combinator(row_linear=True, row_wise=True)
def rotate(x: ReadAt, cos: Data, sin: Data, rest: int = 0) -> ReadAt:
    """Each column of the first half and its partner in the second half, turned by an angle of the row's position: the
    cosines and sines of position p are row p of the tables (Su et al. 2021, RoPE, by halves as LLaMA has it). The last
    `rest` columns stay as they are."""
    if len(cos.shape) != 2 or cos.shape != sin.shape:
        raise ShapeError(
            f"rotate: tables of cosines {cos.shape} and sines {sin.shape}: both are positions × half the columns"
        )
    positions, k = cos.shape
    n = 2 * k + rest
    a, b = x.act(cols(0, k, n)), x.act(cols(k, 2 * k, n))
    c, s = (x.given("positions", positions).act(weight(table)) for table in (cos, sin))
    turned = (a * c + b * s * x.act(const(-1.0))).beside(a * s + b * c)
    return turned.beside(x.act(cols(2 * k, n, n))) if rest else turned


@combinator(constant=True, row_wise=True)
def given(x: ReadAt, field: Literal[*FIELDS], n: int) -> ReadAt:  # type: ignore[valid-type]    # the fields are data
    """One-hot rows that the batch gives, whatever x is: its tokens, positions or kinds, below n."""
    return x.given(field, n)


@combinator(constant=True)
def related(x: ReadAt, relation: Relation) -> ReadAt:
    """The entries of a relation that the batch gives, whatever x is."""
    return x.related(relation)


@combinator(constant=True)
def entered(x: ReadAt, port: Port) -> ReadAt:
    """The matrix that the batch gives for an input, whatever x is."""
    return x.entered(port)


@combinator(constant=True)
def by_distance(x: ReadAt, table: Data, most: int) -> ReadAt:
    """A number for each pair of tokens, whatever x is, chosen by how far the key lies behind the query: in head h that
    of column clip(key - query, -most, most) + most of the table's row h (Shaw et al. 2018, section 3.2)."""
    return x.by_distance(table, most)


@combinator(row_linear=True, selective=True)
def at_distances(x: ReadAt, table: Data) -> ReadAt:
    """x @ W in each head, of which a row has for each token the number of one column, chosen by how far the token lies
    behind the row's: W is table h, of n columns, and the column is clip(key - query + n // 2, 0, n - 1) (Shaw et al.
    2018, eq. 4; He et al. 2021, eq. 4)."""
    return x.at_distances(table)


@combinator(additive=True, selective=True)
def pick(x: ReadAt, relation: Relation) -> ReadAt:
    """The row of x that a relation has as its only entry, for each row of the relation: `x @ pick("last")` are the last
    rows of the sequences. They keep their positions and sequences."""
    return x.pick(relation)


@combinator(additive=True, selective=True)
def shift(x: ReadAt, k: Lag) -> ReadAt:
    """The row k before in the same sequence, for each row; zeros for the first k rows of a sequence. Each column goes
    through one 0/1 matrix, T × T, whose blocks are the sequences."""
    return x.shift(k)


@combinator(0, None, **{name: lambda _, into, out, facts, name=name: name in facts for name in PROPERTIES})
def symbol(x: ReadAt, name: str, into: Shape, out: Shape, facts: tuple) -> ReadAt:  # type: ignore[type-arg]
    """An operator of which only name, sizes and properties are known."""
    return x.symbol(name, into, out)


LASTING = dict(KINDS)  # kinds that files may name: custom kinds come and go
