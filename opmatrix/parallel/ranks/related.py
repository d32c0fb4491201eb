"""Products with a relation on a rank: its entries alone, of the rows that the rank has. What they multiply is counted
at the rows that are gathered."""
from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.relations import Sparse
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.monoid import Monoid
from opmatrix.parallel.sharding.axis_states import widths

HeldRows: TypeAlias = NDArray[np.int64]                          # which rows of a whole value a rank has, ascending


class Merged(NamedTuple):
    """What the rows of a relation carry, and the multiplications and additions that it took."""
    carrier: tuple[Numeric, ...]
    flops: int


def merge_entries(over: type[Monoid], relation: Sparse, numbers: Numeric, right: Numeric, held: HeldRows) -> Merged:
    """The carriers of a product: the first entry of every row, then the second. `numbers` are those of the entries, the
    last axis of them, `right` the rows `held` of the right operand."""
    counts, columns = np.diff(relation.starts), right.shape[-1]
    lead: tuple[int, ...] = np.broadcast_shapes(numbers.shape[:-1], right.shape[:-2])
    total = [np.full((*lead, len(counts), width), unit, np.float64)
             for unit, width in zip(over.unit(), widths(over, columns), strict=True)]
    flops = 0
    for k in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > k)
        entries = relation.starts[rows] + k
        at = relation.at[entries]
        came = right[..., locate(held, at), :]
        flops += 2 * int(np.prod(lead)) * len(at) * columns
        fresh = over.lifted(numbers[..., entries, None], came, at[:, None])
        found = over.merged(tuple(each[..., rows, :] for each in total), fresh)
        for place, (each, new) in enumerate(zip(total, found, strict=True)):
            if np.shape(new)[-1:] not in ((), (1,), each.shape[-1:]):       # a rank of a place beside each number
                total[place] = each = np.repeat(each, np.shape(new)[-1], -1)
            each[..., rows, :] = new
    return Merged(tuple(total), flops)


def locate(held: HeldRows, wanted: HeldRows) -> HeldRows:
    """Where rows lie among those that are held."""
    at = np.searchsorted(held, wanted)
    assert (at < len(held)).all() and (held[at] == wanted).all(), "an entry names a row that is not here"
    return at


def pick_held(x: Numeric, held: HeldRows, wanted: HeldRows) -> Numeric:
    """Rows that are wanted, and zeros for those that other ranks have."""
    at = np.searchsorted(held, wanted)
    there = at < len(held)
    there[there] = held[at[there]] == wanted[there]
    found = np.zeros((*x.shape[:-2], len(wanted), x.shape[-1]))
    found[..., there, :] = x[..., at[there], :]
    return found


def dense_window(relation: Sparse, cols: slice) -> Numeric:
    """What a rank has of a relation as a matrix, zeros where there is no entry."""
    found: Numeric = relation.dense()[:, cols]
    return found
