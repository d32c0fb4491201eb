"""The vocabulary of formulas: the node kinds, and the operators that are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from numbers import Real
from operator import matmul
from typing import Any

import numpy as np

from formats.core.activation import ACTIVATIONS as RECORDS
from formats.core.activation import names_called
from formats.core.errors import InputError
from opmatrix.algebra import nodes
from opmatrix.algebra.attributes import LEAST_SQUARE, check_eps, check_least, whole_of
from opmatrix.algebra.batch.batch import FIELDS
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.batch.signature import FLOAT, Port
from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoids import decay as decay
from opmatrix.algebra.monoids import logsumexp, mean, softmax
from opmatrix.algebra.monoids import max as maximum
from opmatrix.algebra.monoids import min as minimum
from opmatrix.algebra.nodes import add as add
from opmatrix.algebra.nodes import (
    at_distances,
    by_distance,
    cols,
    const,
    delta_rule,
    diag,
    exp,
    gated_delta_rule,
    gated_linear_attention,
    heads,
    keep_top,
    linear_attention,
    magnitude,
    over,
    pick,
    place,
    product,
    reciprocal,
    repeat,
    rotate,
    scan,
    shift,
    turn,
    weight,
)
from opmatrix.algebra.nodes import combinator as combinator
from opmatrix.algebra.nodes import join as join
from opmatrix.algebra.nodes import mul as mul
from opmatrix.algebra.positions.lags import LARGEST_LAG
from opmatrix.algebra.positions.patterns import Pattern, pattern_of
from opmatrix.algebra.shapes import LiveSize, N, Shape, ShapeError, T, brief, divides, quotient
from opmatrix.algebra.term import PROPERTIES, Operator, Value, factor, named, operator

__all__ = [
    "ACTIVATIONS",
    "I",
    "affine",
    "at_distances",
    "attention",
    "attention_capped",
    "attention_sunk",
    "blocks",
    "by_distance",
    "capped",
    "centre",
    "clamped_factor",
    "clamped_gate",
    "col",
    "cols",
    "compose",
    "const",
    "conv",
    "cumsum",
    "decay",
    "delta_rule",
    "diag",
    "diagonal",
    "exp",
    "gated_delta_rule",
    "gated_linear_attention",
    "gelu",
    "gelu_tanh",
    "given",
    "grouped",
    "heads",
    "keep_top",
    "layernorm",
    "linear_attention",
    "magnitude",
    "maximum",
    "mean",
    "minimum",
    "ones",
    "over",
    "pick",
    "place",
    "product",
    "reciprocal",
    "relation",
    "relu",
    "repeat",
    "rmsnorm",
    "rotary",
    "rotate",
    "row",
    "rsqrt",
    "scan",
    "segsum",
    "share",
    "shift",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "square",
    "sum_heads",
    "symbol",
    "tanh",
    "total",
    "transpose",
    "turn",
    "unit_length",
    "weight",
    "zero",
]

I: Operator = nodes.I()
ones: Operator = nodes.ones()
total: Operator = nodes.total()
share: Operator = nodes.share()  # row-wise softmax
sum_heads, transpose = total, turn  # the names that numpy's users look for
zero: Operator = named("zero", ones * 0.0)  # as wide as the value it meets; linear whatever its number
centre: Operator = named("centre", I - mean)
cumsum: Operator = named("cumsum", scan(const(1.0), I))  # of each sequence, up to each row
# sums of a column behind each row up to another: exp of them are decays between rows (Dao and Gu 2024, listing 1)
segsum: Operator = named("segsum", cumsum + product(const(1.0), turn(cumsum * -1.0)))

gelu, gelu_tanh, log1p_relu, relu, rsqrt, sigmoid, silu, softplus, square, tanh = map(
    nodes.SCALAR_FUNCTIONS.__getitem__,
    ("gelu", "gelu_tanh", "log1p_relu", "relu", "rsqrt", "sigmoid", "silu", "softplus", "square", "tanh"),
)
clamped_factor, clamped_gate = map(nodes.SCALAR_FUNCTIONS.__getitem__, ("clamped_factor", "clamped_gate"))
globals().update(nodes.SCALAR_FUNCTIONS)  # and all others that have a record
__all__ += sorted(nodes.SCALAR_FUNCTIONS.keys() - {*__all__})
DEFAULT_BASE = 10000.0  # base of rotations: Su et al. 2021, section 3.2.2
ACTIVATIONS = {called: nodes.SCALAR_FUNCTIONS[name] for called, name in names_called(RECORDS.values()).items()}


def compose(first: object, *rest: object) -> Any:
    """Compose first @ .. @ last."""
    return reduce(matmul, rest, factor(first))


def row(*parts: object) -> Any:
    """Put the results of the parts side by side: [A B ..]."""
    if not parts:
        raise ShapeError("row(): no parts: give at least one operator")
    return reduce(nodes.row, map(factor, parts))


def col(*parts: object) -> Operator:
    """Add up the results of the parts: [A; B; ..]. The columns of x are cut into one block for each part."""
    total: Operator = reduce(add, [cols(lo, hi, n) @ part for part, lo, hi, n in spans("col", parts)])
    return total


def diagonal(*parts: object) -> Operator:
    """Put each part on the diagonal: every block of columns goes through its own part."""
    blocks: Operator = row(*(cols(lo, hi, n) @ part for part, lo, hi, n in spans("diagonal", parts)))
    return blocks


def blocks(table: Sequence[Sequence[object]]) -> Operator:
    """Build a matrix of operators, by rows: x @ [[A, B], [C, D]] is x1 @ [A B] + x2 @ [C D]. None is a block of
    zeros."""
    if len({len(line) for line in table} - {0}) != 1 or not all(table):
        raise ShapeError(
            f"blocks: lines of {', '.join(str(len(line)) for line in table) or 'no'} blocks: give at "
            "least one line, all of equally many blocks, None for a block of zeros"
        )
    columns = zip(*table, strict=True)
    known = ((factor(part).out.cols for part in column if part is not None) for column in columns)
    widths: list[LiveSize] = [next(column_widths, None) for column_widths in known]
    if None in widths:
        raise ShapeError(
            f"blocks: column {widths.index(None)} is all None, so its width is unknown: give an operator in it"
        )

    def filled(line: Sequence[object]) -> list[object]:
        """Replace None in a line by zeros of its column's width."""
        return [
            zero @ (weight(np.zeros((1, w))) if isinstance(w, int) else place(0, w)) if part is None else part
            for part, w in zip(line, widths, strict=True)
        ]

    return col(*(row(*filled(line)) for line in table))


def spans(what: str, given: Iterable[object]) -> list[tuple[Any, LiveSize, LiveSize, LiveSize]]:
    """Return every part with the columns that it takes: from, to, and of how many."""
    parts = [factor(part) for part in given]
    if not parts:
        raise ShapeError(f"{what}(): no parts: give at least one operator")
    for k, part in enumerate(parts):
        if getattr(part.into.cols, "has", lambda _: False)(N):
            raise ShapeError(
                f"{what}: block {k}, {brief(part)}, takes any number of columns: put cols(0, n, n) before it"
            )
    ends = list(accumulate((part.into.cols for part in parts), initial=0))
    return [(part, lo, hi, ends[-1]) for part, (lo, hi) in zip(parts, pairwise(ends), strict=True)]


def given(name: object, n: int | None = None, space: object = None, heads: int = 1) -> Operator:
    """Read a value from the batch, independent of x: one-hot rows by a field, `given("tokens", n)`, whose numbers are
    below n; a relation of this name or made by `relation`, such as `given("members")`; the matrix of an input, of n
    columns in each of `heads` heads, `given("features", n, "V")`. Raises ValueError for an input that has the name of a
    field, and for a field that no batch has."""
    source: Operator
    if n is not None:
        whole_of(n, "given: n", 1)
    if space is None and n is not None and isinstance(name, str) and name not in FIELDS:
        raise ValueError(
            f"given {name!r}: the fields of a batch are {', '.join(FIELDS)}; an input of {n} columns has "
            f"rows of a space, given({name!r}, {n}, 'V')"
        )
    if space is None:
        source = nodes.related(name) if n is None else nodes.given(name, n)
    elif name in FIELDS:
        raise ValueError(f"given {name!r}: a batch has a field of this name: rename the input")
    else:
        source = nodes.entered(Port.read(name, [str(space), n, heads, FLOAT]))
    return source


def symbol(
    name: str, into: LiveSize | Shape | None = None, out: LiveSize | Shape | None = None, **properties: bool
) -> Operator:
    """An operator of which only sizes and properties are known: a border of the graph, or a variable of a law.

    `into` and `out` are columns (sizes may be live) or whole shapes; `into=None` takes any columns, `out=None` gives as
    many as come in. Properties are those of `term.PROPERTIES`, such as `linear=True` or `constant=True`. Examples, for
    a law in sizes n, p, h: a value `symbol("x", None, n)`, a matrix `symbol("W", n, p, linear=True)`, a constant row
    `symbol("b", None, p, constant=True, uniform=True)`, any operator `symbol("A", n, p)`, one matrix for each of h
    heads `symbol("V", n, Shape(h, T, p), linear=True)`. Raises TypeError for a property that does not exist."""
    if unknown := properties.keys() - PROPERTIES:
        raise TypeError(f"symbol {name}: {sorted(unknown)} are not among {[*PROPERTIES]}")
    x = into if isinstance(into, Shape) else Shape() if into is None else Shape(cols=into)
    y = out if isinstance(out, Shape) else x if out is None else Shape(1, T, out)
    declared: Operator = nodes.symbol(name, x, y, tuple(sorted(name for name, holds in properties.items() if holds)))
    return declared


@operator
def layernorm(x: Value, eps: float) -> Value:
    """Ba et al. 2016, eq. 4, without gain and shift. Raises InputError for an eps that float32 has not."""
    check_eps("layernorm", eps)
    normed: Value = x @ (centre * ((centre @ square @ mean + eps) @ rsqrt))
    return normed


@operator
def rmsnorm(x: Value, eps: float) -> Value:
    """Zhang and Sennrich 2019, eq. 4, without gain. Raises InputError for an eps that float32 has not."""
    check_eps("rmsnorm", eps)
    normed: Value = x @ (I * ((square @ mean + eps) @ rsqrt))
    return normed


@operator
def unit_length(x: Value, least: float = LEAST_SQUARE) -> Value:
    """Rows of length one in their directions; `least` is added to the square of the length, so a row of zeros stays.
    Raises InputError for a `least` that kernels do not take."""
    check_least(least)
    made: Value = x @ (I * ((square @ ones + least) @ rsqrt))
    return made


def promised_tables(positions: LiveSize, columns: LiveSize, **said: object) -> tuple[Promised, Promised]:
    """Return promised tables of the cosines and sines by which so many columns turn, where a size has no number yet.
    The keyword arguments enter their names, and tell tables of one shape apart."""
    more = "".join(f" {name}={value}" for name, value in sorted(said.items()))
    cos, sin = (Promised(f"rotary.{part}{more}", (positions, quotient(columns, 2))) for part in ("cos", "sin"))
    return cos, sin


def rotary(positions: LiveSize, columns: LiveSize, base: float = DEFAULT_BASE, rest: LiveSize = 0) -> Operator:
    """Build RoPE for heads of `columns` columns that turn and `rest` that stay, at so many positions: Su et al. 2021,
    section 3.2.2. Where a size has no number yet its tables are promised. Raises ShapeError for an odd number of
    columns, InputError for a base that turns nothing."""
    positions, columns = whole_of(positions, "rotary: positions", 1), whole_of(columns, "rotary: columns", 2)
    if not divides(2, columns):
        raise ShapeError(
            f"rotary: {columns} columns: they rotate in pairs: give an even number of them, and `rest` more that "
            "do not rotate"
        )
    if not (isinstance(base, Real) and 0 < base < np.inf):
        raise InputError(f"rotary: base is {brief(base)}: it must be a number above 0, such as 10000")
    turned: Operator
    if isinstance(positions, int) and isinstance(columns, int):
        angles = np.outer(np.arange(positions), base ** (-np.arange(0, columns, 2) / columns))
        turned = rotate(np.cos(angles), np.sin(angles), rest)
    else:
        more = {} if base == DEFAULT_BASE else dict(rope_theta=base)
        turned = rotate(*promised_tables(positions, columns, **more), rest)
    return turned


def capped(numbers: Operator, cap: float) -> Operator:
    """Return cap · tanh(x / cap) of the results x of an operator, which then lie within ± cap."""
    bounded: Operator = (numbers * (1 / cap)) @ tanh * cap
    return bounded


def affine(w: object, b: object) -> Operator:
    """x @ w + b."""
    shifted: Operator = weight(w) + const(b)
    return shifted


def conv(weights: object) -> Operator:
    """Build the causal convolution of each column by itself: row t of the result is the sum over k of x[t - k] w[k],
    with zeros before a sequence; `weights` has a row for each k from 0 on, a column for each column of x. Gu and Dao
    2023, section 3.4, has it before a scan. Raises ShapeError for another number of axes or of rows."""
    data = Data.of(weights)
    if len(data.shape) != 2 or not 1 <= data.shape[0] <= LARGEST_LAG + 1:
        raise ShapeError(f"conv: weights {data.shape}: give 1 to {LARGEST_LAG + 1} rows, of a number for each column")
    first, *rest = (diag(tap_of(data, k)) for k in range(data.shape[0]))
    convolved: Operator = reduce(add, [shift(k) @ tap for k, tap in enumerate(rest, 1)], first)
    return convolved


def tap_of(weights: Data, k: int) -> Data:
    """Return row k of the weights of a convolution, as an array with a name of its own."""
    if isinstance(weights, Promised):
        return Promised(f"{weights.name}[{k}]", weights.shape[1:])
    return Data(weights.array[k], weights.name and f"{weights.name}[{k}]")


@operator
def attention(
    x: Value, Q: Operator, K: Operator, V: Operator, h: int, where: Pattern, turned: Operator | None = None
) -> Value:
    """softmax(q kᵀ / √d) v in every head: Vaswani et al. 2017, eq. 1. Queries and keys may be turned by their
    positions."""
    pattern_of(where, "attention")
    q, k, v = (x @ W @ heads(h) @ by for W, by in ((Q, turned or I), (K, turned or I), (V, I)))
    mixed: Value = product(q @ k.T * q.cols**-0.5, v, over=softmax, where=where) @ heads(h).T
    return mixed


@operator
def grouped(
    x: Value,
    Q: Operator,
    K: Operator,
    V: Operator,
    h: int,
    g: int,
    where: Pattern,
    turned: Operator | None = None,
    keys: Operator | None = None,
) -> Value:
    """Attention of h heads of queries that share g heads of keys and values: Ainslie et al. 2023, section 2.2. Queries
    and keys may be turned by their positions; keys by an operator of their own, where both are normed, too."""
    pattern_of(where, "grouped")
    by_q, by_k = turned or I, keys or turned or I
    q, k, v = x @ Q @ heads(h) @ by_q, x @ K @ heads(g) @ by_k @ repeat(h), x @ V @ heads(g) @ repeat(h)
    mixed: Value = product(q @ k.T * q.cols**-0.5, v, over=softmax, where=where) @ heads(h).T
    return mixed


@operator
def attention_capped(x: Value, q: Operator, k: Operator, v: Operator, where: Pattern, cap: float) -> Value:
    """softmax(cap · tanh(score / cap)) v in every head, with scores q kᵀ / √d, which so lie within ± cap: Gemma Team
    2024, section 2. The operators give queries, keys and values by heads."""
    pattern_of(where, "attention_capped")
    queries = x @ q
    scores = (queries @ (x @ k).T * (queries.cols**-0.5 / cap)) @ tanh * cap
    mixed: Value = product(scores, x @ v, over=softmax, where=where)
    return mixed


@operator
def attention_sunk(x: Value, q: Operator, k: Operator, v: Operator, where: Pattern, margin: Operator) -> Value:
    """softmax(score) v in every head beside a sink, one more key without a value: Xiao et al. 2023, section 3.3, whose
    score is learned. Shares then sum to σ(m + margin), m the logarithm of the sum of e^score over the keys that a row
    sees, and the margin less the sink's score. Scores are q kᵀ / √d; the operators give queries, keys, values and
    margins by heads, of which margins have a column each."""
    pattern_of(where, "attention_sunk")
    queries = x @ q
    scores = queries @ (x @ k).T * queries.cols**-0.5
    mass = product(scores, const(1.0), over=logsumexp, where=where)
    mixed: Value = product(scores, x @ v, over=softmax, where=where)
    sunk: Value = mixed * ((mass + margin) @ sigmoid)
    return sunk
