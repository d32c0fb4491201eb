"""Hidden units and heads in a model's term: weights whose inputs can be removed together with all that makes them.

Choosing columns, `x @ P` with one 1 in each column of P, passes whatever treats columns alike
(rewrites/laws/choosing.py) and folds into the weights before it. So an approximation of one weight alone, D ≈ P Pᵀ Ď
with rows of zeros, makes its neighbours smaller, and exactly so: nothing else of the model changes."""
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, const, heads, repeat, weight
from opmatrix.algebra.term import Operator

UNITS, HEADS = "units", "heads"                             # what is removed: columns one by one, or by whole heads
MOVES = "heads", "join", "repeat", "total", "row"           # kinds that move columns, or heads
Places = NDArray[np.intp]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """`node` is `makes @ reads` in a factor of a model: D, in `reads`, multiplies what `makes` gives, which `before`
    leads to from the factor's input. Inputs of D go by `group` columns: 1 for a hidden unit, more for a head, or for
    heads that share keys."""

    node: Operator
    before: Operator
    what: str
    group: int

    @property
    def makes(self) -> Operator: return self.node.children[0]
    @property
    def weight(self) -> Data: return split(self.node.children[1])[0]        # type: ignore[index]
    @property
    def bias(self) -> Data | None: return split(self.node.children[1])[1]   # type: ignore[index]

    @property
    def groups(self) -> int:
        return self.weight.shape[0] // self.group

    def cut(self, left: Places, numbers: Numbers, bias: Numbers | None) -> Operator:
        """The node where D has only these inputs left, with these numbers (len(left), p), and this bias (p,) if any."""
        made = chosen(self.makes, left)
        assert made is not None
        return made @ self.reads(numbers, bias)

    def zeroed(self, numbers: Numbers, bias: Numbers | None) -> Operator:
        """The node where D has these numbers (n, p), some rows of which may be 0."""
        return self.makes @ self.reads(numbers, bias)

    def reads(self, numbers: Numbers, bias: Numbers | None) -> Operator:
        matrix: Operator = weight(Data(numbers.astype(np.float32), self.weight.label))
        if bias is None or self.bias is None: return matrix
        shifted: Operator = matrix + const(Data(bias.astype(np.float32), self.bias.label))
        return shifted


def pairs(term: Operator, before: Operator = I) -> Iterator[Pair]:
    """Every pair of a factor, those that others read first."""
    if term.kind.name != "compose":
        for child in term.children: yield from pairs(child, before)
        return
    makes, reads = term.children
    yield from pairs(makes, before)
    yield from pairs(reads, before @ makes)
    if (found := split(reads)) is not None and (grouped := group(makes, found[0].shape[0])) is not None:
        if chosen(makes, np.arange(found[0].shape[0])) is not None: yield Pair(term, before @ makes, *grouped)


def split(term: Operator) -> tuple[Data, Data | None] | None:
    """The matrix and the bias of a weight with or without one; None of anything else."""
    if term.kind.name == "weight": return (term.args[0], None) if len(term.args[0].shape) == 2 else None
    if term.kind.name != "add": return None
    first, second = sorted(term.children, key=lambda each: each.kind.name, reverse=True)
    matrix = split(first) if first.kind.name == "weight" else None
    return (matrix[0], second.args[0]) if matrix is not None and second.kind.name == "const" else None


def group(term: Operator, n: int) -> tuple[str, int] | None:
    """What the n columns that a value ends in are, and how many go together: those of a head behind a join, single
    ones behind a function of entries; None where they are neither."""
    if term.kind.name == "mul": return next(filter(None, (group(each, n) for each in term.children)), None)
    if term.kind.name != "compose": return None
    last = term.children[1]
    if last.kind.name == "join": return HEADS, n // last.args[0] * shared(term.children[0])
    if last.entrywise and not last.linear: return UNITS, 1
    return group(last, n)


def shared(term: Operator) -> int:
    """How many heads of a value share one of keys and values."""
    composed = (each.children for each in term.walk() if each.kind.name == "compose")
    return max((last.args[0] // first.out.heads for first, last in composed if last.kind.name == "repeat"), default=1)


def chosen(term: Operator, at: Places) -> Operator | None:
    """`term @ P`, where P chooses the columns `at`, without P: weights are smaller. None where P passes something
    only as itself."""
    args, made = term.args, None
    match term.kind.name:
        case "weight" if len(args[0].shape) == 2: made = weight(Data(args[0].array[:, at], args[0].label))
        case "const": made = const(of(args[0], at))
        case "add" | "mul":
            both = [each if each.column else chosen(each, at) for each in term.children]
            made = None if None in both else term.kind(*both)
        case "compose" if args[1].kind.name == "join":
            size = args[0].out.cols
            kept = at[::size] // size
            by_head = headed(args[0], kept, args[1].args[0]) if np.array_equal(at, spread(kept, size)) else None
            made = by_head and by_head @ heads(len(kept)).T
        case "compose":
            first, last = args
            made = chosen(first, at) if last.entrywise else chosen(last, at)
            made = made and (made @ last if last.entrywise else first @ made)
    return made


def headed(term: Operator, kept: Places, h: int) -> Operator | None:
    """A value of h heads with only these heads, computed head by head from smaller weights; None where heads are not
    apart."""
    args, made = term.args, None
    if term.constant and alike(term): return term
    match term.kind.name:
        case "product" | "add" | "mul" | "turn":
            every = [headed(each, kept, h) for each in term.children]
            made = None if None in every else term.kind(*every, *term.attributes)
        case "compose" if args[1].kind.name == "heads":
            made = chosen(args[0], spread(kept, args[0].out.cols // h))
            made = made and made @ heads(len(kept))
        case "compose" if args[1].kind.name == "repeat":
            share = h // (own := args[0].out.heads)
            whole = np.unique(kept // share)
            made = headed(args[0], whole, own) if np.array_equal(kept, spread(whole, share)) else None
            made = made and made @ repeat(len(kept))
        case "compose" if alike(args[1]):
            made = headed(args[0], kept, h)
            made = made and made @ args[1]
    return made


def spread(groups: Places, size: int) -> Places:
    """The columns of groups of so many."""
    return (groups[:, None] * size + np.arange(size)).ravel()


def of(row: Data, at: Places) -> Data:
    """The numbers of a row in some columns; one number stands for any."""
    return row if row.shape == (1,) else Data(row.array[..., at], row.label)


def alike(term: Operator) -> bool:
    """Whether an operator does the same to every head."""
    def plain(each: Operator) -> bool: return all(len(each.args[k].shape) < 3 for k in each.kind.data)
    return all(each.kind.name not in MOVES and plain(each) for each in term.walk())
