"""Attention in float64, sentence by sentence, as its kernels share it: slow and obvious, with no arithmetic of theirs;
and how far softmax may round (Higham 2002, sections 3.1 to 3.5)."""
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import gamma
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.runtime.declarations.arguments import Arguments
from opmatrix.runtime.declarations.arguments import Doubles as Doubles

LEAST_SHARE = 2.0 ** -125                                   # what flushing exponentials to zero may lose of one of them


# ---- rows, and who sees whom

def sentence_rows(batch: Batch) -> Iterator[slice]:
    """The rows of each sentence."""
    yield from (slice(lo, hi) for lo, hi in pairwise(batch.starts))


def asked_queries(a: Arguments) -> Iterator[tuple[slice, NDArray[np.int64], slice]]:
    """For each sentence, the queries that are asked for: where they lie in q, their rows of the batch, and the rows of
    its keys. All of them, or those `at` some rows of the batch, which q then has alone."""
    at = None if getattr(a, "at", None) is None else a.at.astype(np.int64)
    for keys in sentence_rows(a.batch):
        if at is None: yield keys, np.arange(keys.start, keys.stop), keys
        elif len(rows := at[(within := slice(*np.searchsorted(at, (keys.start, keys.stop))))]): yield within, rows, keys


def unseen(batch: Batch, rows: slice, where: Pattern, queries: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Which tokens of a sentence do not see which: a row for each of these queries, or of all."""
    at = np.arange(rows.start, rows.stop)
    queries = at if queries is None else queries
    return np.broadcast_to(~np.asarray(where.sees(batch.token(queries[:, None]), batch.token(at))),
                           (len(queries), len(at)))


def held(slot: int, before: NDArray[np.int64]) -> list[int]:
    """The rows of a cache that a sequence holds up to one of them."""
    from formats.kernels.attentions.chunks import PAGE
    page, rows = slot // PAGE, slot % PAGE + 1
    slots: list[int] = []
    while page >= 0:
        slots = [*range(page * PAGE, page * PAGE + rows), *slots]
        page, rows = int(before[page]), PAGE
    return slots


# ---- heads

def squares(flat: Doubles, batch: Batch) -> Iterator[tuple[slice, Doubles]]:
    """The rows of each sentence, and its scores (heads, length, length)."""
    lengths = np.diff(batch.starts)
    heads = len(flat) // int(lengths @ lengths)
    parts = np.split(flat, heads * np.cumsum(lengths ** 2)[:-1])
    for rows, part, n in zip(sentence_rows(batch), parts, lengths, strict=True): yield rows, part.reshape(heads, n, n)


def most_heads(*values: Doubles) -> int:
    """How many heads there are, of values (T, heads, columns): fewer of one serve groups of the others."""
    return max(int(each.shape[1]) for each in values)


def in_groups(x: Doubles, heads: int) -> Doubles:
    """Each head so many times in a row that there are so many."""
    return x.repeat(heads // x.shape[1], 1)


def products(q: Doubles, k: Doubles) -> Doubles:
    """(heads, queries, keys): q kᵀ of every head."""
    return q.swapaxes(0, 1) @ k.transpose(1, 2, 0)


def weigh_heads(p: Doubles, v: Doubles) -> Doubles:
    """(queries, heads, columns): p v of every head."""
    return (p @ v.swapaxes(0, 1)).swapaxes(0, 1)


def near_keys(bias: Doubles | None, queries: NDArray[np.int64] | int, keys: NDArray[np.int64]) -> Doubles | float:
    """(heads, queries, keys), or (heads, keys) of one query: the numbers of a table by distance, which lie at key -
    query, or at the end that is nearer; 0 where there is none."""
    if bias is None: return 0.0
    most = bias.shape[1] // 2
    return np.asarray(bias[:, np.clip(keys - queries, -most, most) + most])


# ---- softmax

def softened(scores: Doubles) -> Doubles:
    """Softmax along the last axis, of which scores of -inf have no share; zeros where there are no others."""
    top = scores.max(-1, keepdims=True)
    shares = np.exp(scores - np.where(top > -np.inf, top, 0))
    mass = shares.sum(-1, keepdims=True)
    return np.asarray(shares / np.where(mass == 0, 1, mass))


def bound_shares(s: Doubles, doubt: Doubles | float, unseen: NDArray[np.bool_]) -> tuple[Doubles, Doubles]:
    """Softmax of the scores that are seen, known to within `doubt`, and how far off it may be.

    An exponent s - top is off by twice the doubt and a rounding of at most |s - top| <= 2 max |s|, the exponential
    itself by 2 units, the mass by γ of its terms; a share is such a quotient, so it is off by a factor e^(2 wrong)."""
    doubt, size = np.where(unseen, 0.0, doubt), np.where(unseen, 0.0, abs(s))
    top = np.where(unseen, -np.inf, s).max(-1, keepdims=True)
    share = np.where(unseen, 0.0, np.exp(np.minimum(s - np.where(top > -np.inf, top, 0.0), 0.0)))
    share /= np.maximum(share.sum(-1, keepdims=True), LEAST_SHARE)
    wrong = 2 * np.max(doubt, -1, keepdims=True) + gamma(4) * (1 + size.max(-1, keepdims=True))
    return share, np.expm1(2 * (wrong + gamma(s.shape[-1] + 4))) * share + np.where(unseen, 0.0, LEAST_SHARE)
