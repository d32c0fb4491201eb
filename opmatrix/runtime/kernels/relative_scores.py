"""Scores of attention with products by distance (He et al. 2021)."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from formats import kernels as compiled
from formats.core.epilogue import gamma
from formats.core.sizes import T
from formats.core.stage import SMALLEST
from formats.machine.prices import S2, Price, Timed, Work, d, h, up
from opmatrix.runtime.declarations.by_sequence import Doubles, in_groups, most_heads, sentence_rows
from opmatrix.runtime.declarations.costs import by_scores
from opmatrix.runtime.declarations.fitting import SCORED, heads_of, same, timed_batches
from opmatrix.runtime.declarations.kernel import Arguments, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import Array, Heads, Scores
from opmatrix.runtime.declarations.padded import Padded, group_heads, multiply_distances, score_keys

if TYPE_CHECKING:
    from formats.machine.calibration import Numbers

TIMED_DISTANCES = 1025  # columns of a timed table: 512 on each side, as DeBERTa has
PRODUCTS = 4  # products of a tile, relative to those of queries and keys alone


@timed_batches
def time_relative(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    """Make the timed call of the scores of h heads of d columns, with both tables."""
    q, out = numbers.some(starts[-1], h, d), numbers.fresh(h * int(sizes["S2"]))
    table = numbers.fresh(h, d, TIMED_DISTANCES)
    return sizes, lambda: compiled.relative_scores(q, q, starts, out, table, table)


def times_columns(x: Doubles, table: Doubles | None) -> Doubles:
    """Return x times the columns of a table, chosen by how far tokens lie behind rows of x, (heads, rows, tokens);
    zeros without a table."""
    rows, heads = len(x), x.shape[1]
    if table is None:
        return np.zeros((heads, rows, rows))
    at, count = np.arange(rows), table.shape[2]
    places = np.clip(at - at[:, None] + count // 2, 0, count - 1)
    products = x.swapaxes(0, 1) @ table
    return np.take_along_axis(products, np.broadcast_to(places, (heads, rows, rows)), -1)


def sum_scores(q: Doubles, k: Doubles, ahead: Doubles | None, behind: Doubles | None) -> Doubles:
    """Return q kᵀ of one sentence plus the products by distance, (heads, length, length)."""
    scores: Doubles = q.swapaxes(0, 1) @ k.swapaxes(0, 1).swapaxes(1, 2)
    return scores + times_columns(q, ahead) + times_columns(k, behind).swapaxes(1, 2)


def all_scores(a: Arguments, of: Arguments, absolute: bool = False) -> Doubles:
    """Return the scores of all sentences, flat, in the numbers of `of`, or in their sizes."""
    size = np.abs if absolute else np.asarray
    q, k = (in_groups(size(x), most_heads(of.q, of.k)) for x in (of.q, of.k))
    ahead, behind = (None if table is None else size(table) for table in (of.ahead, of.behind))
    return np.concatenate([sum_scores(q[rows], k[rows], ahead, behind).ravel() for rows in sentence_rows(a.batch)])


@kernel(
    row_mixing=True,
    price=Price(
        SCORED,
        lambda tile: Work(2 * PRODUCTS * S2 * h * up(d, tile[1]), S2 * h, 2 * T * h * d + S2 * h),
        time_relative,
        recorded=False,
    ),
)
class relative_scores(Arguments):
    """q kᵀ within each sentence, plus q times a column of one table by distance, and k times one of another."""

    def run(out: Any, batch: Any, q: Heads, k: Heads, ahead: Array | None = None, behind: Array | None = None) -> None:
        """Launch the compiled products of queries, keys and tables within sequences."""
        compiled.relative_scores(q, k, batch.starts, out, ahead, behind)

    def shape(a) -> Scores:
        """Return scores of all heads. Raises ValueError if q and k have different columns, heads that do not divide, or
        tables of another shape."""
        same("k columns", a.k.cols, a.q.cols)
        heads = heads_of(q=a.q, k=a.k)
        for name in ("ahead", "behind"):
            if isinstance(table := getattr(a, name), np.ndarray):
                same(f"{name} axes", table.ndim, 3)
                same(f"{name} heads and columns", table.shape[:2], (heads, a.q.cols))
        return Scores(heads)

    def reference(a) -> Doubles:
        """Multiply queries, keys and tables in float64, and choose columns by distance."""
        return all_scores(a, a)

    def padded(a) -> Padded:
        """Multiply queries, keys and tables, and choose columns by distance."""
        heads, at = max(a.q.shape[2], a.k.shape[2]), a.batch.positions
        total = score_keys(a.q, a.k, heads)
        q, k = (np.swapaxes(group_heads(x, heads), 1, 2) for x in (a.q, a.k))
        if a.ahead is not None:
            total = total + multiply_distances(q, a.ahead, at)
        return total if a.behind is None else total + np.swapaxes(multiply_distances(k, a.behind, at), 2, 3)

    def bound(a) -> Doubles:
        """Return γ_(d+3) of the sum of all products of sizes: the errors of the products and their sum; for numbers
        below any normal number, the least number times the count of operations."""
        columns = a.q.shape[2]
        return np.asarray(gamma(columns + 3) * all_scores(a, a.exact, True) + 3 * (columns + 3) * SMALLEST)

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `relative_scores` takes another path."""
        return compiled.borders("relative_scores")

    cost = by_scores("relative_scores", "q", "k")
