"""Attention in three steps, whose scores are stored: q kᵀ, softmax, p v."""

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from formats import kernels as compiled
from formats.core.epilogue import gamma
from formats.core.sizes import T
from formats.core.stage import SMALLEST
from formats.machine.prices import S2, Price, Timed, Work, d, h, up
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.batch.extents import WHOLE
from opmatrix.algebra.positions.patterns import parse
from opmatrix.runtime import seen
from opmatrix.runtime.declarations.by_sequence import (
    Doubles,
    bound_shares,
    in_groups,
    most_heads,
    near_keys,
    sentence_rows,
    softened,
    squares,
    unseen,
)
from opmatrix.runtime.declarations.costs import by_scores
from opmatrix.runtime.declarations.fitting import SCORED, fit_bias, heads_of, same, timed_batches
from opmatrix.runtime.declarations.kernel import Arguments, RowNumbers, kernel
from opmatrix.runtime.declarations.operands import Array, Heads, Scores
from opmatrix.runtime.declarations.padded import Padded, bias_scores, score_keys, share_seen
from opmatrix.runtime.declarations.padded import weigh_values as weigh_padded
from opmatrix.runtime.declarations.pullbacks import Cotangents, into_groups, softmax_pullback

if TYPE_CHECKING:
    from formats.machine.calibration import Numbers


@timed_batches
def time_scores(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    """Make the timed call of the scores of h heads of d columns."""
    q, out = numbers.some(starts[-1], h, d), numbers.fresh(h * int(sizes["S2"]))
    return sizes, lambda: compiled.scores(q, q, starts, out)


@timed_batches
def time_softmax(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    """Make the timed call of the softmax of the scores of h heads."""
    x, out = (numbers.fresh(h * int(sizes["S2"])) for _ in range(2))
    return sizes, lambda: compiled.softmax(x, starts, h, out)


@timed_batches
def time_values(numbers: "Numbers", starts: RowNumbers, sizes: dict[str, float], h: int, d: int) -> Timed:
    """Make the timed call of the products of scores and values."""
    v, out, p = numbers.some(starts[-1], h, d), numbers.room(starts[-1], h, d), numbers.fresh(h * int(sizes["S2"]))
    return sizes, lambda: compiled.values(p, v, starts, out)


def multiply_queries(q: Doubles, k: Doubles, batch: Batch, bias: Doubles | None = None) -> Doubles:
    """Return q kᵀ within each sentence, flat, in as many heads as one of them or a bias has."""
    heads = max(most_heads(q, k), 1 if bias is None else len(bias))
    q, k = (in_groups(operand, heads) for operand in (q, k))
    return np.concatenate([np.einsum("qhd,khd->hqk", q[rows], k[rows]).ravel() for rows in sentence_rows(batch)])


def seen_shares(a: Arguments) -> Iterator[Doubles]:
    """Yield softmax of the scores of each sentence, along the keys that are seen."""
    for rows, part in squares(a.x, a.batch):
        yield softened(np.where(unseen(a.batch, rows, seen.pattern(a)), part.dtype.type(-np.inf), part))


def pair_cotangents(a: Arguments, g: Doubles) -> Iterator[tuple[slice, Doubles]]:
    """Yield the rows of each sentence, and the cotangents of its scores, (K, heads, length, length), of g (K, flat)."""
    by_direction = (squares(flat, a.batch) for flat in g)
    for parts in zip(*by_direction, strict=True):
        yield parts[0][0], np.stack([part for _, part in parts])


def near_rows(bias: Doubles | None, a: Arguments) -> Doubles:
    """Return the numbers of a table by distance for each pair of a sentence, flat as scores; one 0 without a table."""
    if bias is None:
        return np.zeros(1)
    heads, parts = max(most_heads(a.q, a.k), len(bias)), list[Doubles]()
    for rows in sentence_rows(a.batch):
        at = np.arange(rows.stop - rows.start)
        parts.append(np.broadcast_to(near_keys(bias, at[:, None], at), (heads, len(at), len(at))).ravel())
    return np.concatenate(parts)


@kernel(
    row_mixing=True,
    price=Price(
        SCORED,
        lambda tile: Work(2 * S2 * h * up(d, tile[1]), S2 * h, 2 * T * h * d + S2 * h),
        time_scores,
        recorded=False,
    ),
)
class scores(Arguments):
    """q kᵀ · scale within each sentence, plus a bias, a table of numbers by distance."""

    def run(out: Any, batch: Any, q: Heads, k: Heads, bias: Array | None = None, *, scale: float = 1.0) -> None:
        """Launch the compiled products of queries and keys within sequences."""
        compiled.scores(q, k, batch.starts, out, scale, bias)

    def shape(a) -> Scores:
        """Return scores of all heads. Raises ValueError if q and k have different columns, or heads that do not
        divide."""
        same("k columns", a.k.cols, a.q.cols)
        return Scores(fit_bias(a.bias, heads_of(q=a.q, k=a.k)))

    def reference(a) -> Doubles:
        """Multiply queries and keys in float64, scale, and add the bias of each pair."""
        products: Doubles = multiply_queries(a.q, a.k, a.batch, a.bias) * float(a.scale)
        return np.asarray(products + near_rows(a.bias, a))

    def padded(a) -> Padded:
        """Multiply queries and keys of each sequence, scale, and add the bias of each pair."""
        heads = max(a.q.shape[2], a.k.shape[2], 1 if a.bias is None else a.bias.shape[0])
        products = score_keys(a.q, a.k, heads) * a.scale
        return bias_scores(products, a.bias, a.batch.positions, a.batch.positions)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g k and gᵀ q, times the scale, of each sentence."""
        totals = {name: np.zeros((len(g), *getattr(a, name).shape), g.dtype) for name in "qk"}
        for rows, part in pair_cotangents(a, g):
            q, k = (in_groups(x[rows], part.shape[1]).swapaxes(0, 1) for x in (a.q, a.k))
            for name, of_rows in (("q", part @ k), ("k", part.swapaxes(2, 3) @ q)):
                heads = totals[name].shape[2]
                totals[name][:, rows] += into_groups(of_rows.swapaxes(1, 2), heads) * a.scale
        return totals

    def bound(a) -> Doubles:
        """Return γ_(d+2) |q| |k|ᵀ |scale|: the errors of the products, their sum and the factor; for numbers below any
        normal number, the least number times the count of operations."""
        size = abs(float(a.exact.scale)) * multiply_queries(abs(a.exact.q), abs(a.exact.k), a.batch, a.bias)
        spread: Doubles = size + np.abs(near_rows(a.exact.bias, a))
        least = (a.q.shape[2] + 2) * SMALLEST * max(1.0, abs(float(a.exact.scale)))
        return np.asarray(gamma(a.q.shape[2] + 2 + (a.bias is not None)) * spread + least)

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `scores` takes another path."""
        return compiled.borders("scores")

    cost = by_scores("scores", "q", "k")


@kernel(
    row_mixing=True,
    inplace="x",
    price=Price((S2 * h,), lambda tile: Work(0, 8 * S2 * h, 2 * S2 * h), time_softmax, recorded=False),
)
class softmax(Arguments):
    """Each row of scores as positive numbers that sum to one over whom it sees, and zeros."""

    def run(out: Any, batch: Any, x: Scores, *, where: str = "sequence") -> None:
        """Launch the compiled softmax of each row over the reach of the pattern."""
        compiled.softmax(x, batch.starts, len(x) // batch.extents()[WHOLE], out, parse(where).reach)

    def shape(a) -> Scores:
        """Return scores of as many heads. Raises ValueError for a pattern without a reach."""
        seen.check_reach(a)
        return Scores(a.x.heads)

    def reference(a) -> Doubles:
        """Return softmax along the keys that are seen."""
        return np.concatenate([part.ravel() for part in seen_shares(a)])

    def padded(a) -> Padded:
        """Return softmax along the keys that are seen."""
        where = seen.pattern(a)
        return share_seen(a.x, a.batch.seen(where), where.reflexive)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return the cotangents of each sentence's scores, flat."""
        parts = [
            softmax_pullback(shares, part).reshape(len(g), -1)
            for shares, (_, part) in zip(seen_shares(a), pair_cotangents(a, g), strict=True)
        ]
        return {"x": np.concatenate(parts, 1)}

    def bound(a) -> Doubles:
        """Bound the error: a share is a quotient of exponentials, see `bound_shares`."""
        return np.concatenate(
            [
                bound_shares(part, 0.0, unseen(a.batch, rows, seen.pattern(a)))[1].ravel()
                for rows, part in squares(a.exact.x, a.batch)
            ]
        )

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `softmax` takes another path."""
        return compiled.borders("softmax")

    cost = by_scores("softmax", "x")


def weigh_values(p: Doubles, v: Doubles, batch: Batch) -> list[Doubles]:
    """Return p v, sentence by sentence."""
    return [np.einsum("hqk,khd->qhd", part, in_groups(v[rows], len(part))) for rows, part in squares(p, batch)]


@kernel(
    row_mixing=True,
    price=Price(
        SCORED, lambda tile: Work(2 * S2 * h * up(d, tile[1]), 0, 2 * T * h * d + S2 * h), time_values, recorded=False
    ),
)
class values(Arguments):
    """p v within each sentence."""

    def run(out: Any, batch: Any, p: Scores, v: Heads) -> None:
        """Launch the compiled products of scores and values within sequences."""
        compiled.values(p, v, batch.starts, out)

    def shape(a) -> Heads:
        """Return the heads of the scores and the columns of v. Raises ValueError if v's heads do not divide those of
        p."""
        if a.p.heads % a.v.heads:
            raise ValueError(f"v heads: {a.v.heads}, which do not divide the {a.p.heads} of p")
        return Heads(a.p.heads, a.v.cols)

    def reference(a) -> Doubles:
        """Multiply scores and values of each sequence in float64."""
        return np.concatenate(weigh_values(a.p, a.v, a.batch))

    def padded(a) -> Padded:
        """Multiply shares and values of each sequence."""
        return weigh_padded(a.p, a.v)

    def pullback(a, g: Doubles) -> Cotangents:
        """Return g vᵀ, flat, and pᵀ g of each sentence."""
        shares, of_v = list[Doubles](), np.zeros((len(g), *a.v.shape), g.dtype)
        for rows, part in squares(a.p, a.batch):
            v = in_groups(a.v[rows], len(part)).swapaxes(0, 1)
            of_rows = g[:, rows].swapaxes(1, 2)
            shares.append((of_rows @ v.swapaxes(1, 2)).reshape(len(g), -1))
            of_v[:, rows] += into_groups((part.swapaxes(1, 2) @ of_rows).swapaxes(1, 2), a.v.shape[1])
        return {"p": np.concatenate(shares, 1), "v": of_v}

    def bound(a) -> Doubles:
        """Return γ of a sentence's length, times |p| |v|, and the least number for each product."""
        weighed = weigh_values(abs(a.exact.p), abs(a.exact.v), a.batch)
        return np.concatenate([gamma(len(part)) * part + len(part) * SMALLEST for part in weighed])

    def borders(a) -> Collection[int]:
        """Return the rows at which the compiled `values` takes another path."""
        return compiled.borders("values")

    cost = by_scores("values", "p", "v")
