"""Hidden units and heads in a model's term: weights whose inputs can be removed together with the weights that compute
them.

Choosing columns, `x @ P` with one 1 in each column of P, passes every operator that treats columns alike
(rewrites/laws/choosing.py) and folds into the weights before it. So an approximation of one weight alone, D ≈ P Pᵀ Ď
with rows of zeros, makes its neighbours smaller, exactly: the rest of the model does not change."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, const, heads, repeat, weight
from opmatrix.algebra.term import Operator
from opmatrix.spectra.measures import RealArray

UNITS, HEADS = "units", "heads"  # kinds of removal: single columns, or whole heads
MOVES = "heads", "join", "repeat", "total", "row"  # kinds that move columns, or heads
HEADWISE = "product", "add", "mul", "turn"  # kinds that take heads one by one
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class CoupledWeights:
    """`node` is `makes @ reads` in a factor of a model: D, in `reads`, multiplies the value of `makes`, and `before`
    leads to `makes` from the factor's input. Inputs of D are removed by `group` columns: 1 for a hidden unit, more for
    a head, or for heads that share keys."""

    node: Operator
    before: Operator
    what: str
    group: int

    @property
    def makes(self) -> Operator:
        """The operator that computes the inputs of D."""
        return self.node.children[0]

    @property
    def weight(self) -> Data:
        """The array of D, whose inputs may be removed."""
        return weight_and_bias(self.node.children[1])[0]  # type: ignore[index]

    @property
    def bias(self) -> Data | None:
        """The row that is added behind D; None if there is none."""
        return weight_and_bias(self.node.children[1])[1]  # type: ignore[index]

    @property
    def groups(self) -> int:
        """The number of groups of inputs."""
        return self.weight.shape[0] // self.group

    def cut(self, left: Indices, numbers: RealArray, bias: RealArray | None) -> Operator:
        """Return the node where D has only the inputs `left`, with these numbers (len(left), p), and this bias (p,) if
        any."""
        chosen = choose_columns(self.makes, left)
        assert chosen is not None
        return chosen @ self.reads(numbers, bias)

    def zeroed(self, numbers: RealArray, bias: RealArray | None) -> Operator:
        """Return the node where D has these numbers (n, p), some rows of which may be 0."""
        return self.makes @ self.reads(numbers, bias)

    def reads(self, numbers: RealArray, bias: RealArray | None) -> Operator:
        """Return D with other numbers, and with its bias if it has one; names stay."""
        matrix: Operator = weight(Data(numbers.astype(np.float32), self.weight.label))
        if bias is None or self.bias is None:
            return matrix
        shifted: Operator = matrix + const(Data(bias.astype(np.float32), self.bias.label))
        return shifted


def coupled_weights(term: Operator, before: Operator = I) -> Iterator[CoupledWeights]:
    """Yield every pair of weights of a factor that lose columns and rows together, inner ones first."""
    if term.kind.name != "compose":
        for child in term.children:
            yield from coupled_weights(child, before)
        return
    makes, reads = term.children
    yield from coupled_weights(makes, before)
    yield from coupled_weights(reads, before @ makes)
    if (matrix := weight_and_bias(reads)) is None:
        return
    n = matrix[0].shape[0]
    if (grouped := group_columns(makes, n)) is not None and choose_columns(makes, np.arange(n)) is not None:
        yield CoupledWeights(term, before @ makes, *grouped)


def weight_and_bias(term: Operator) -> tuple[Data, Data | None] | None:
    """Return the matrix and the bias of a weight with or without one; None for any other term."""
    if term.kind.name == "weight":
        return (term.args[0], None) if len(term.args[0].shape) == 2 else None
    if term.kind.name != "add":
        return None
    first, second = sorted(term.children, key=lambda each: each.kind.name, reverse=True)
    matrix = weight_and_bias(first) if first.kind.name == "weight" else None
    return (matrix[0], second.args[0]) if matrix is not None and second.kind.name == "const" else None


def group_columns(term: Operator, n: int) -> tuple[str, int] | None:
    """Return the kind of the n columns that a value ends in, and the size of a group: heads behind a join, single units
    behind a function of entries; None for other columns."""
    if term.kind.name == "mul":
        return next(filter(None, (group_columns(factor, n) for factor in term.children)), None)
    if term.kind.name != "compose":
        return None
    first, last = term.children
    if last.kind.name == "join":
        return HEADS, n // last.args[0] * heads_per_key(first)
    if last.entrywise and not last.linear:
        return UNITS, 1
    return group_columns(last, n)


def heads_per_key(term: Operator) -> int:
    """Return the number of heads of a value that share one head of keys and values."""
    composed = (node.children for node in term.walk() if node.kind.name == "compose")
    return max((last.args[0] // first.out.heads for first, last in composed if last.kind.name == "repeat"), default=1)


def choose_columns(term: Operator, at: Indices) -> Operator | None:
    """Return `term @ P`, where P chooses the columns `at`, without P: weights are smaller. None where P cannot pass an
    operator."""
    chosen: Operator | None = None
    match term.kind.name:
        case "weight" if len(term.args[0].shape) == 2:
            chosen = weight(choose_entries(term.args[0], at))
        case "const":
            chosen = const(choose_entries(term.args[0], at))
        case "add" | "mul":
            chosen = rebuild(
                term, [operand if operand.column else choose_columns(operand, at) for operand in term.children]
            )
        case "compose":
            first, last = term.children
            if last.kind.name == "join":
                chosen = choose_joined(first, at, last.args[0])
            elif last.entrywise:
                chosen = multiply_both(choose_columns(first, at), last)
            else:
                chosen = multiply_both(first, choose_columns(last, at))
    return chosen


def choose_joined(term: Operator, at: Indices, h: int) -> Operator | None:
    """Return the columns `at` of h heads that are joined: whole heads, else None."""
    size = term.out.cols
    groups = at[::size] // size
    if not np.array_equal(at, spread(groups, size)):
        return None
    return multiply_both(choose_heads(term, groups, h), heads(len(groups)).T)


def choose_heads(term: Operator, kept: Indices, h: int) -> Operator | None:
    """Return a value of h heads with only these heads, computed head by head from smaller weights; None where heads
    cannot be separated."""
    if term.constant and same_for_heads(term):
        return term
    if term.kind.name in HEADWISE:
        return rebuild(term, [choose_heads(child, kept, h) for child in term.children])
    if term.kind.name != "compose":
        return None
    first, last = term.children
    match last.kind.name:
        case "heads":
            return multiply_both(choose_columns(first, spread(kept, first.out.cols // h)), heads(len(kept)))
        case "repeat":
            share = h // first.out.heads
            keys = np.unique(kept // share)
            if not np.array_equal(kept, spread(keys, share)):
                return None
            return multiply_both(choose_heads(first, keys, first.out.heads), repeat(len(kept)))
    return multiply_both(choose_heads(first, kept, h), last) if same_for_heads(last) else None


def multiply_both(first: Operator | None, last: Operator | None) -> Operator | None:
    """Return the product; None if an operand is None."""
    return None if first is None or last is None else first @ last


def rebuild(term: Operator, children: Sequence[Operator | None]) -> Operator | None:
    """Return a term with other children; None if one of them is None."""
    return None if None in children else term.kind(*children, *term.attributes)


def spread(groups: Indices, size: int) -> Indices:
    """Return the columns of these groups, each of `size` columns."""
    return (groups[:, None] * size + np.arange(size)).ravel()


def choose_entries(numbers: Data, at: Indices) -> Data:
    """Return the numbers of a row or a matrix in some columns; a single number broadcasts and stays."""
    return numbers if numbers.shape == (1,) else Data(numbers.array[..., at], numbers.label)


def same_for_heads(term: Operator) -> bool:
    """True if an operator does the same to every head."""

    def plain(each: Operator) -> bool:
        """True if no array of an operator has a matrix for each head."""
        return all(len(each.args[k].shape) < 3 for k in each.kind.data)

    return all(node.kind.name not in MOVES and plain(node) for node in term.walk())
