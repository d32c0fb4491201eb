"""Values whose rows follow from those before them, on a rank that has all rows of a sequence."""

from __future__ import annotations

import numpy as np

from opmatrix.algebra.data import Numeric
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.positions.visibility import corrected_rows

READS_AND_WRITES = (
    6  # operations of a state's number at each row: a read by its key, what is added, a read by its query
)


def merge_rows(over: type[Monoid], where: Pattern, u: Numeric, v: Numeric) -> Numeric:
    """Merge the rows of each sequence with those before them, in float64; operands of fewer heads are copied."""
    shape = np.broadcast_shapes(u.shape, v.shape)
    left, right = (np.broadcast_to(x, shape) for x in (u, v))
    return np.asarray(over.scan(left, right, where.whole), np.float64)


def correct_states(*operands: Numeric) -> tuple[Numeric, int]:
    """Pass the rows of each sequence through a state that each corrects, and count the operations; operands of fewer
    heads are copied."""
    shape = np.broadcast_shapes(*(x.shape[:-1] for x in operands))
    parts = [np.broadcast_to(x, (*shape, x.shape[-1])) for x in operands]
    result = np.stack([corrected_rows(*rows) for rows in zip(*parts, strict=True)])
    return result, READS_AND_WRITES * result.size * parts[0].shape[-1]
