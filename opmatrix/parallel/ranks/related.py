"""Products with a relation on a rank: only its entries, of the rows that the rank has. Their multiplications are
counted at the gathered rows."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opmatrix.algebra.batch.relations import Sparse
from opmatrix.algebra.data import Numeric
from opmatrix.algebra.monoid import Monoid
from opmatrix.parallel.sharding.axis_states import widths

HeldRows: TypeAlias = NDArray[np.int64]  # row numbers of a value that a rank has, ascending


class Merged(NamedTuple):
    """The merged carriers of the rows of a relation."""

    carrier: tuple[Numeric, ...]  # components of the carriers
    flops: int  # multiplications and additions of the merge


def merge_entries(over: type[Monoid], relation: Sparse, numbers: Numeric, right: Numeric, held: HeldRows) -> Merged:
    """Return the carriers of a product: merge the first entry of every row, then the second, and so on. `numbers` are
    those of the entries, along the last axis. `right` are the rows `held` of the right operand."""
    counts, columns = np.diff(relation.starts), right.shape[-1]
    lead: tuple[int, ...] = np.broadcast_shapes(numbers.shape[:-1], right.shape[:-2])
    total = [
        np.full((*lead, len(counts), width), unit, np.float64)
        for unit, width in zip(over.unit(), widths(over, columns), strict=True)
    ]
    flops = 0
    for k in range(int(counts.max(initial=0))):
        rows = np.flatnonzero(counts > k)
        entries = relation.starts[rows] + k
        at = relation.at[entries]
        came = right[..., locate(held, at), :]
        flops += 2 * int(np.prod(lead)) * len(at) * columns
        fresh = over.lifted(numbers[..., entries, None], came, at[:, None])
        merged = over.merged(tuple(part[..., rows, :] for part in total), fresh)
        for place, (part, new) in enumerate(zip(total, merged, strict=True)):
            if np.shape(new)[-1:] not in ((), (1,), part.shape[-1:]):  # widened: a place for each number
                total[place] = part = np.repeat(part, np.shape(new)[-1], -1)
            part[..., rows, :] = new
    return Merged(tuple(total), flops)


def locate(held: HeldRows, wanted: HeldRows) -> HeldRows:
    """Return the positions of rows among the held rows."""
    at = np.searchsorted(held, wanted)
    assert (at < len(held)).all() and (held[at] == wanted).all(), "an entry names a row that this rank does not hold"
    return at


def pick_held(x: Numeric, held: HeldRows, wanted: HeldRows) -> Numeric:
    """Return the wanted rows, with zeros for rows of other ranks."""
    at = np.searchsorted(held, wanted)
    there = at < len(held)
    there[there] = held[at[there]] == wanted[there]
    rows = np.zeros((*x.shape[:-2], len(wanted), x.shape[-1]))
    rows[..., there, :] = x[..., at[there], :]
    return rows


def dense_window(relation: Sparse, cols: slice) -> Numeric:
    """Return a rank's columns of a relation as a matrix, with zeros where there is no entry."""
    matrix: Numeric = relation.dense()[:, cols]
    return matrix


def rows_before(x: Numeric, lag: int) -> Numeric:
    """Return the row `lag` before each row of whole sequences, zeros where there is none; behind it for a lag below
    0."""
    rows = x.shape[-2]
    shifted, kept = np.zeros_like(x), max(rows - abs(lag), 0)
    target, source = (rows - kept, 0) if lag > 0 else (0, rows - kept)
    shifted[..., target : target + kept, :] = x[..., source : source + kept, :]
    return shifted
