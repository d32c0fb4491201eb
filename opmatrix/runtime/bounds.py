"""How far a kernel may be from its meaning on the same operands: one bound for each kernel of the runtime, entry by
entry, for any order of summation (Higham 2002, sections 3.1 to 3.5). Sums and products of terms cost γ_n |A| |B|; what
follows carries that error through its derivative."""
from dataclasses import fields
from itertools import pairwise
from types import SimpleNamespace as Arguments
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.core.epilogue import UNIT, Epilogue, gamma
from opmatrix.relations import parse_relation
from opmatrix.runtime import meanings
from opmatrix.runtime.meanings import asked, chosen, grouped, held, looked, pooled, sentences, squares, unseen
from opmatrix.runtime.seen import pattern

Bound = NDArray[np.float64]
BF16 = 1.01 * 2.0 ** -8 + 2.0 ** -12                        # a share as bfloat16, its exponential and its mass to 2^-13
                                                            # each
FLUSHED = 2.0 ** -126                                       # what is smaller may count as 0
TINY = 2.0 ** -125                                          # what flushing exponentials to zero may lose of one of them


def epilogue(a: Arguments) -> Epilogue:
    """What the kernel does after its product."""
    parts = (part.name for part in fields(Epilogue))
    return Epilogue(**{part: value for part in parts if (value := getattr(a, part, None)) is not None})


def linear(a: Arguments) -> Bound:
    """x @ W in any format: what the format says of itself, through the epilogue."""
    x, W = a.exact.x, a.exact.weight
    return epilogue(a).bound(x @ W, a.weight.bound(a.x, (x, W)), a.weight.rounds)


def pointwise(a: Arguments) -> Bound:
    return epilogue(a).bound(a.x, np.zeros(a.x.shape))


def pointwise_heads(a: Arguments) -> Bound:
    rows: Bound = a.x.reshape(-1, a.x.shape[2])
    return epilogue(a).bound(rows, np.zeros(rows.shape)).reshape(a.x.shape)


def scale(a: Arguments) -> Bound:
    """The factor is rounded, and the product."""
    size: Bound = abs(a.exact.x * a.factor)
    return gamma(2) * size


def embed(a: Arguments) -> Bound:
    rows = looked(a.exact)
    return epilogue(a).bound(chosen(a.exact), gamma(len(rows)) * np.sum(np.abs(rows), axis=0))


def rotate(a: Arguments) -> Bound:
    """Two products, and their sum."""
    at, k = a.batch.positions, a.cos.shape[1]
    if a.rows != "all": at = at[a.batch.starts[:-1] if a.rows == "first" else a.batch.starts[1:] - 1]
    x, c, s = abs(a.exact.x), abs(a.exact.cos)[at][:, None], abs(a.exact.sin)[at][:, None]
    size: Bound = np.concatenate([x[..., :k] * c + x[..., k:2 * k] * s, x[..., :k] * s + x[..., k:2 * k] * c,
                                  0 * x[..., 2 * k:]], -1)
    return gamma(2) * size


def scores(a: Arguments) -> Bound:
    """γ_(d+2) |q| |k|ᵀ |scale|: the products, their sum and the factor."""
    doubt = gamma(a.q.shape[2] + 2) * abs(float(a.exact.scale))
    return doubt * np.concatenate([size.ravel() for size in sizes(a)])


def sizes(a: Arguments) -> list[Bound]:
    """|q| |k|ᵀ of each sentence: heads x queries x keys."""
    return [np.einsum("qhd,khd->hqk", *(abs(part[rows]) for part in pair(a))) for rows in sentences(a.batch)]


def pair(a: Arguments) -> tuple[Bound, Bound]:
    """q and k, each with as many heads as there are."""
    heads = max(operand.shape[1] for name in "qkv" if (operand := getattr(a, name, None)) is not None)
    return grouped(a.exact.q, heads), grouped(a.exact.k, heads)


def softmax(a: Arguments) -> Bound:
    """A share is a quotient of exponentials: see `shares`."""
    return np.concatenate([shares(part, 0.0, unseen(a.batch, rows, pattern(a)))[1].ravel()
                           for rows, part in squares(a.exact.x, a.batch)])


def values(a: Arguments) -> Bound:
    parts = [gamma(part.shape[-1]) * np.einsum("hqk,khd->qhd", abs(part), abs(grouped(a.exact.v[rows], len(part))))
             for rows, part in squares(a.exact.p, a.batch)]
    return np.concatenate(parts)


def attention(a: Arguments) -> Bound:
    """The same in one pass: doubtful scores, shares, and their sum over the values, rescaled from tile to tile.
    bfloat16 rounds the shares, too, but for those of queries all of whose scores are surely 0: e^0 is 1, which nothing
    rounds."""
    parts, (q, k), rounding = [], pair(a), 0.0 if a.number_type == "float32" else BF16
    for at, queries, keys in asked(a):
        exact = meanings.products(q[at], k[keys]) * a.exact.scale
        size = meanings.products(abs(q[at]), abs(k[keys])) * abs(a.exact.scale)
        hidden = unseen(a.batch, keys, pattern(a), queries)
        rounded = rounding * np.where(hidden, False, size > 0).any(-1, keepdims=True)
        share, doubt = shares(exact, gamma(a.q.shape[2] + 2) * size, hidden)
        merges = -(-share.shape[-1] // a.tile) - 1           # each fades mass and values once more
        total = doubt + (gamma(share.shape[-1] + 4 + 2 * merges) + rounded) * (share + doubt)
        parts.append(meanings.sums(total, abs(grouped(a.exact.v[keys], len(share)))) + (rounding > 0) * FLUSHED)
    return np.concatenate(parts)


def attention_cached(a: Arguments) -> Bound:
    """The same, row by row, over what its sequence has cached, some pages at a time."""
    heads = max(each.shape[1] for each in (a.q, a.k, a.v))
    slots = a.batch.slots if a.rows == "all" else a.batch.slots[a.batch.starts[1:] - 1]
    found = []
    for q, slot in zip(grouped(a.exact.q, heads), slots, strict=True):
        k, v = (grouped(each[held(slot, a.batch.before)], heads) for each in (a.exact.k, a.exact.v))
        exact, size = (np.einsum("hd,khd->hk", *each) for each in ((q, k), (abs(q), abs(k))))
        share, doubt = shares(exact * a.scale, gamma(k.shape[2] + 2) * abs(a.scale) * size, np.zeros(exact.shape, bool))
        # every page may fade what was before it
        total = doubt + gamma(3 * share.shape[-1] + 4) * (share + doubt)
        found.append(np.einsum("hk,khd->hd", total, abs(v)))
    return np.array(found)


def shares(s: Bound, doubt: Any, unseen: NDArray[np.bool_]) -> tuple[Bound, Bound]:
    """Softmax of the scores that are seen, known to within `doubt`, and how far off it may be.

    An exponent s - top is off by twice the doubt and a rounding of at most |s - top| <= 2 max |s|, the exponential
    itself by 2 units, the mass by γ of its terms; a share is such a quotient, so it is off by a factor e^(2 wrong)."""
    doubt, size = np.where(unseen, 0.0, doubt), np.where(unseen, 0.0, abs(s))
    top = np.where(unseen, -np.inf, s).max(-1, keepdims=True)
    share = np.where(unseen, 0.0, np.exp(np.minimum(s - np.where(top > -np.inf, top, 0.0), 0.0)))
    share /= np.maximum(share.sum(-1, keepdims=True), TINY)
    wrong = 2 * np.max(doubt, -1, keepdims=True) + gamma(4) * (1 + size.max(-1, keepdims=True))
    return share, np.expm1(2 * (wrong + gamma(s.shape[-1] + 4))) * share + np.where(unseen, 0.0, TINY)


def headwise(a: Arguments) -> Bound:
    size: Bound = abs(a.exact.x).swapaxes(0, 1) @ abs(a.exact.weight)
    return gamma(a.x.shape[2]) * size.swapaxes(0, 1)


def interpret(a: Arguments) -> Bound:
    """Computed in float64 and rounded once."""
    return 2 * UNIT * abs(meanings.read(a)) + TINY


def pool(a: Arguments) -> Bound:
    """Computed in float64, with a norm too, and rounded once: what float64 itself rounds is seen where a sum
    cancels."""
    found, size = meanings.unit(pooled(a.exact), a.unit), pooled(Arguments(**vars(a.exact) | {"x": abs(a.exact.x)}))
    doubt = 2 * len(a.x) * 2.0 ** -52
    return np.asarray(2 * UNIT * abs(found) + doubt * (size if a.unit is None else 1.0) + TINY)


def unit_length(a: Arguments) -> Bound:
    size: Bound = abs(meanings.unit(a.exact.x, a.unit))
    return 2 * UNIT * size + TINY


def link(a: Arguments) -> Bound:
    """A product for each entry, whose number is rounded, a sum and a quotient."""
    found = a.batch.relation(parse_relation(a.relation))
    out = np.zeros((found.shape[0], a.x.shape[1]))
    for i, (low, high) in enumerate(pairwise(found.starts)):
        parts = abs(found.numbers[low:high, None] * a.exact.x[found.at[low:high]])
        if low < high:
            out[i] = gamma(3 + (high - low) * (a.over != "max")) * (parts.max(0) if a.over == "max" else parts.sum(0))
    return out


def attend_once(a: Arguments) -> Bound:
    """As attention, of one query: doubtful scores, shares, and their sum over the values."""
    heads, parts = max(a.q.shape[1], a.k.shape[1], a.v.shape[1]), []
    for s, rows in enumerate(sentences(a.batch)):
        at = 0 if a.query == "first" else rows.stop - rows.start - 1
        q, k, v = (grouped(each, heads) for each in (a.exact.q[s:s + 1], a.exact.k[rows], a.exact.v[rows]))
        exact, size = (np.einsum("qhd,khd->hqk", *pair) * abs(float(a.exact.scale))
                       for pair in ((q, k), (abs(q), abs(k))))
        share, doubt = shares(exact * np.sign(a.exact.scale), gamma(a.q.shape[2] + 2) * size,
                              unseen(a.batch, rows, pattern(a))[at:at + 1])
        total = doubt + gamma(share.shape[-1] + 4) * (share + doubt)
        parts.append(np.einsum("hqk,khd->qhd", total, abs(v)))
    return np.concatenate(parts)


def copied(a: Arguments) -> Bound:
    """Numbers as they are."""
    return np.zeros(1)
