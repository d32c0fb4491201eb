"""Attention in float64, sentence by sentence, shared by its kernels: slow and obvious, without arithmetic of the
kernels; and the bound on the rounding of softmax (Higham 2002, sections 3.1 to 3.5)."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import gamma
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.runtime.declarations.arguments import Arguments
from opmatrix.runtime.declarations.arguments import Doubles as Doubles

CAP_ROUNDINGS = 8  # of a tanh, its factor and their product, in halves of a unit
SINK_ROUNDINGS = 8  # of two exponentials, their factors, products and sum, in halves of a unit
LEAST_SHARE = 2.0**-125  # error of a number that is flushed to zero
NO_SHARE = 2.0**-100  # below it the shares of attention are zero (formats/kernels/simd/maths.py)


# ---- rows, and which rows see which


def sentence_rows(batch: Batch) -> Iterator[slice]:
    """Yield the rows of each sentence."""
    yield from (slice(lo, hi) for lo, hi in pairwise(batch.starts))


def asked_queries(a: Arguments) -> Iterator[tuple[slice, NDArray[np.int64], slice]]:
    """Yield, for each sentence, its requested queries: their places in q, their rows of the batch, and the rows of its
    keys. These are all queries, or those `at` some rows of the batch, which q then has alone."""
    at = None if getattr(a, "at", None) is None else a.at.astype(np.int64)
    for keys in sentence_rows(a.batch):
        if at is None:
            yield keys, np.arange(keys.start, keys.stop), keys
        elif len(rows := at[(within := slice(*np.searchsorted(at, (keys.start, keys.stop))))]):
            yield within, rows, keys


def unseen(batch: Batch, rows: slice, where: Pattern, queries: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Return a mask of the tokens of a sentence that do not see each other: a row for each of these queries, or of
    all."""
    at = np.arange(rows.start, rows.stop)
    queries = at if queries is None else queries
    return np.broadcast_to(
        ~np.asarray(where.sees(batch.token(queries[:, None]), batch.token(at))), (len(queries), len(at))
    )


def held(slot: int, before: NDArray[np.int64]) -> list[int]:
    """Return the rows of a cache that a sequence holds up to one of them."""
    from formats.kernels.attentions.chunks import PAGE

    page, rows = slot // PAGE, slot % PAGE + 1
    slots: list[int] = []
    while page >= 0:
        slots = [*range(page * PAGE, page * PAGE + rows), *slots]
        page, rows = int(before[page]), PAGE
    return slots


# ---- heads


def squares(flat: Doubles, batch: Batch) -> Iterator[tuple[slice, Doubles]]:
    """Yield the rows of each sentence, and its scores (heads, length, length)."""
    lengths = np.diff(batch.starts)
    heads = len(flat) // int(lengths @ lengths)
    parts = np.split(flat, heads * np.cumsum(lengths**2)[:-1])
    for rows, part, n in zip(sentence_rows(batch), parts, lengths, strict=True):
        yield rows, part.reshape(heads, n, n)


def most_heads(*values: Doubles) -> int:
    """Return the most heads of values (T, heads, columns): a head of a value with fewer serves a group of the
    others."""
    return max(int(value.shape[1]) for value in values)


def in_groups(x: Doubles, heads: int) -> Doubles:
    """Repeat each head so that there are `heads` heads."""
    return x.repeat(heads // x.shape[1], 1)


def products(q: Doubles, k: Doubles) -> Doubles:
    """Return q kᵀ of every head of q: (heads, queries, keys). A head of k may serve a group of them."""
    (n, heads, d), groups = q.shape, k.shape[1]
    together = q.swapaxes(0, 1).reshape(groups, -1, d)
    return np.asarray((together @ k.transpose(1, 2, 0)).reshape(heads, n, -1))


def weigh_heads(p: Doubles, v: Doubles) -> Doubles:
    """Return p v of every head of p: (queries, heads, columns). A head of v may serve a group of them."""
    (heads, n, m), groups = p.shape, v.shape[1]
    weighed = p.reshape(groups, -1, m) @ v.swapaxes(0, 1)
    return np.asarray(weighed.reshape(heads, n, -1).swapaxes(0, 1))


def near_keys(bias: Doubles | None, queries: NDArray[np.int64] | int, keys: NDArray[np.int64]) -> Doubles | float:
    """Return the numbers of a table by distance, (heads, queries, keys), or (heads, keys) for one query: the number at
    key - query, or at the nearer end of the table; 0 without a table."""
    if bias is None:
        return 0.0
    most = bias.shape[1] // 2
    return np.asarray(bias[:, np.clip(keys - queries, -most, most) + most])


# ---- softmax


def softened(scores: Doubles, margin: Doubles | None = None) -> Doubles:
    """Return softmax along the last axis, in which scores of -inf have no share; zeros if there are no others. With
    margins of heads, the first axis, each row has one more score, less the margin, whose share is left out."""
    if margin is not None:
        return softened(with_sinks(scores, margin))[..., :-1]
    top = scores.max(-1, keepdims=True)
    shares = np.exp(scores - np.where(top > -np.inf, top, 0))
    mass = shares.sum(-1, keepdims=True)
    return np.asarray(shares / np.where(mass == 0, 1, mass))


def with_sinks(scores: Doubles, margin: Doubles) -> Doubles:
    """Return scores (heads, ..) with a column more, less the margin of each head."""
    sinks = -margin.reshape(-1, *(1,) * (scores.ndim - 1))
    return np.concatenate([scores, np.broadcast_to(sinks, (*scores.shape[:-1], 1))], -1)


def cap_scores(cap: float, s: Doubles) -> Doubles:
    """Return cap tanh s of scores; the scores themselves without a cap, 0."""
    return cap * np.tanh(s) if cap else s


def doubt_capped(cap: float, s: Doubles, doubt: Doubles) -> Doubles:
    """Bound the error of `cap_scores` of scores known to within `doubt`: tanh is no steeper than 1, and is computed
    within 2 units, its product and the cap are rounded."""
    return np.asarray(cap * (doubt + gamma(CAP_ROUNDINGS) * abs(np.tanh(s)))) if cap else doubt


def bound_shares(
    s: Doubles, doubt: Doubles | float, unseen: NDArray[np.bool_], margin: Doubles | None = None
) -> tuple[Doubles, Doubles]:
    """Return the softmax of the scores that are seen, known to within `doubt`, and a bound on its error; with margins
    of heads as in `softened`, where a sink is one score more, which rescales the others by one more exponential.

    An exponent s - top is off by twice the doubt and a rounding of at most |s - top| <= 2 max |s|, the exponential
    itself by 2 units, the mass by γ of its terms; a share is such a quotient, so it is off by a factor e^(2 wrong)."""
    if margin is not None:
        one = np.zeros((*np.broadcast_shapes(s.shape, unseen.shape)[:-1], 1))
        doubts = np.concatenate([np.broadcast_to(doubt, s.shape) + gamma(SINK_ROUNDINGS), one], -1)
        hidden = np.concatenate([np.broadcast_to(unseen, s.shape), one > 0], -1)
        share, off = bound_shares(with_sinks(s, margin), doubts, hidden)
        return share[..., :-1], off[..., :-1]
    doubt, size = np.where(unseen, 0.0, doubt), np.where(unseen, 0.0, abs(s))
    top = np.where(unseen, -np.inf, s).max(-1, keepdims=True)
    share = np.where(unseen, 0.0, np.exp(np.minimum(s - np.where(top > -np.inf, top, 0.0), 0.0)))
    share /= np.maximum(share.sum(-1, keepdims=True), LEAST_SHARE)
    wrong = 2 * np.max(doubt, -1, keepdims=True) + gamma(4) * (1 + size.max(-1, keepdims=True))
    return share, np.expm1(2 * (wrong + gamma(s.shape[-1] + 4))) * share + np.where(unseen, 0.0, NO_SHARE)
