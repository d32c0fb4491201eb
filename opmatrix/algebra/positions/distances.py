"""Tables of numbers by distance, which attention adds to the score of a pair of tokens (Raffel et al. 2020, section
2.1; Press et al. 2022)."""

import numpy as np

from formats.core.errors import InputError
from opmatrix.algebra.attributes import whole_of
from opmatrix.algebra.data import Data, Numeric, Promised
from opmatrix.algebra.nodes import by_distance
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator

__all__ = ["alibi", "bucketed"]

SLOPES = "alibi_slopes"  # the name of a table that is no weight


def list_slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi: powers of 2^(-8 / h) for a power of two h. For other numbers of heads they are the
    slopes of the power of two below, and then every second slope of the power of two above (Press et al. 2022, and
    their published code)."""
    whole_of(heads, "alibi: heads", 1)
    below = 1 << (heads.bit_length() - 1)

    def powers(h: int) -> list[float]:
        """Return the h slopes 2^(-8 k / h), k from 1 to h."""
        return [2.0 ** (-8.0 * (k + 1) / h) for k in range(h)]

    return powers(below) + powers(2 * below)[::2][: heads - below]


def alibi(heads: LiveSize, most: LiveSize) -> Operator:
    """Build attention with linear biases (Press et al. 2022): in every head its slope times minus the distance, exact
    up to `most` positions apart, as many as a model has. Where a size has no number yet the table is promised."""
    heads, most = whole_of(heads, "alibi: heads", 1), whole_of(most, "alibi: most", 1)
    if isinstance(heads, int) and isinstance(most, int):
        table = Data(np.outer(list_slopes(heads), -abs(np.arange(-most, most + 1.0))), SLOPES)
    else:
        table = Promised(SLOPES, (heads, 2 * most + 1))
    bias: Operator = by_distance(table, most)
    return bias


def number_buckets(distances: Numeric, count: int, farthest: int, both: bool) -> Numeric:
    """Return the bucket of each distance, key - query: half of the buckets for single distances, the others ever wider
    up to the farthest one. With `both` ways, half of all buckets are for keys behind the query. Computed in float32, as
    files were trained."""
    per_side = count // 2 if both else count
    away = abs(distances) if both else np.maximum(-distances, 0)
    single = per_side // 2
    grown = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(single)) / np.float32(np.log(farthest / single))
    wide = single + (grown * np.float32(per_side - single)).astype(np.int64)
    return np.asarray(
        np.where(away < single, away, np.minimum(wide, per_side - 1)) + per_side * (both & (distances > 0))
    )


def bucketed(numbers: Data, farthest: int = 128, both: bool = True) -> Operator:
    """Build T5's bias (Raffel et al. 2020, section 2.1): `numbers` has a row for each bucket and a column for each
    head. From the farthest distance on all keys are in one bucket. `both`: keys before the query and behind it have
    buckets of their own, as an encoder needs. Raises InputError for too few buckets."""
    numbers, farthest = Data.of(numbers), whole_of(farthest, "bucketed: farthest", 2)
    count, heads = numbers.shape if len(numbers.shape) == 2 else (0, 0)
    if not isinstance(count, int) or count < 4 * (1 + both) // 2 or farthest <= count // (2 + 2 * both):
        raise InputError(
            f"bucketed: numbers of {numbers.shape} for distances up to {farthest}: give a row for each of "
            "at least 4 buckets, a column for each head, and a distance beyond the buckets of single distances"
        )
    name = f"{numbers.name or 'bias'} by distance"
    if isinstance(numbers, Promised):
        table: Data = Promised(name, (heads, 2 * farthest + 1))
    else:
        at = number_buckets(np.arange(-farthest, farthest + 1), count, farthest, both)
        table = Data(np.ascontiguousarray(numbers.array[at].T), name)
    bias: Operator = by_distance(table, farthest)
    return bias
