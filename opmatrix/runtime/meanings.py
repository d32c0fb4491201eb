"""What kernels mean, in float64 numpy: slow and obvious, the oracle of each. It shares no arithmetic with them."""
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace as Bound
from typing import Any

import numpy as np
from numpy.typing import NDArray

from formats.core.stage import reference
from opmatrix.patterns import Pattern, parse
from opmatrix.relations import parse_relation
from opmatrix.runtime.shape_rules import turned_tables

Exact = NDArray[np.float64]


def multiplied(a: Bound) -> dict[str, Any]:
    """x and the weight as the weight's format multiplies them."""
    return dict(zip(("x", "weight"), a.weight.operands(a.x), strict=True)) if hasattr(a.weight, "operands") else {}


def halved(a: Bound) -> dict[str, Any]:
    """q, times the scale in powers of two, k and v as attention in bfloat16 reads them."""
    if a.number_type == "float32": return {}
    from formats.kernels.mixing.attending_halves import operands
    q, k, v = operands(a.q, a.k, a.v, a.scale)
    return {"q": q, "k": k, "v": v, "scale": 1.0}


def looked(a: Bound) -> list[Exact]:
    """One row of each table, chosen by its field."""
    tables = [table.T if columns else table for table, columns in zip(a.tables, turned_tables(a), strict=True)]
    return [table[a.batch.field(field, len(table))] for field, table in zip(a.fields.split(","), tables, strict=True)]


def chosen(a: Bound) -> Exact:
    """The sum of one row of each table."""
    return np.asarray(sum(looked(a)))


def rotated(a: Bound) -> Exact:
    """Pairs of columns as complex numbers, times what lies on the unit circle."""
    at, k = a.batch.field("positions", len(a.cos)), a.cos.shape[1]
    if a.rows != "all": at = at[a.batch.starts[:-1] if a.rows == "first" else a.batch.starts[1:] - 1]
    pairs = (a.x[..., :k] + 1j * a.x[..., k:2 * k]) * (a.cos + 1j * a.sin)[at][:, None]
    return np.concatenate([pairs.real, pairs.imag, a.x[..., 2 * k:]], -1)


def each_head(a: Bound) -> Exact:
    """The epilogue of each head by itself."""
    return reference(a.x.reshape(-1, a.x.shape[2]), a).reshape(a.x.shape)


def sentences(batch: Any) -> Iterator[slice]:
    """The rows of each sentence."""
    yield from (slice(lo, hi) for lo, hi in pairwise(batch.starts))


def asked(a: Bound) -> Iterator[tuple[Any, NDArray[np.int64], slice]]:
    """Of each sentence the queries that are asked for: where they lie in q, their rows of the batch, and the rows of
    its keys. All of them, or those `at` some rows of the batch, which q then has alone."""
    at = None if getattr(a, "at", None) is None else a.at.astype(np.int64)
    for keys in sentences(a.batch):
        if at is None: yield keys, np.arange(keys.start, keys.stop), keys
        elif len(rows := at[(found := slice(*np.searchsorted(at, (keys.start, keys.stop))))]): yield found, rows, keys


def squares(flat: Exact, batch: Any) -> Iterator[tuple[slice, Exact]]:
    """The rows of each sentence, and its scores (heads, length, length)."""
    lengths = np.diff(batch.starts)
    heads = len(flat) // int(lengths @ lengths)
    parts = np.split(flat, heads * np.cumsum(lengths ** 2)[:-1])
    for rows, part, n in zip(sentences(batch), parts, lengths, strict=True): yield rows, part.reshape(heads, n, n)


def grouped(x: Exact, heads: int) -> Exact:
    """Each head so many times in a row that there are so many."""
    return x.repeat(heads // x.shape[1], 1)


def scored(a: Bound) -> Exact:
    """q kᵀ · scale, flat."""
    heads = max(a.q.shape[1], a.k.shape[1], *([a.v.shape[1]] if hasattr(a, "v") else []))
    q, k = grouped(a.q, heads), grouped(a.k, heads)
    parts = [np.einsum("qhd,khd->hqk", q[rows], k[rows]) for rows in sentences(a.batch)]
    return np.asarray(np.concatenate([part.ravel() for part in parts]) * a.scale)


def recalled(a: Bound) -> Exact:
    """softmax(q kᵀ · scale) v, of each row over what its sequence has cached."""
    heads = max(a.q.shape[1], a.k.shape[1], a.v.shape[1])
    found = []
    slots = a.batch.slots if a.rows == "all" else a.batch.slots[a.batch.starts[1:] - 1]
    for q, slot in zip(grouped(a.q, heads), slots, strict=True):
        k, v = (grouped(each[held(slot, a.batch.before)], heads) for each in (a.k, a.v))
        found.append(np.einsum("hk,khd->hd", softened(np.einsum("hd,khd->hk", q, k) * a.scale), v))
    return np.array(found)


def held(slot: int, before: NDArray[np.int64]) -> list[int]:
    """The rows of a cache that a sequence holds up to one of them."""
    from formats.kernels.mixing.caches import PAGE
    page, rows = slot // PAGE, slot % PAGE + 1
    found: list[int] = []
    while page >= 0:
        found = [*range(page * PAGE, page * PAGE + rows), *found]
        page, rows = int(before[page]), PAGE
    return found


def appended(a: Bound) -> Exact:
    """A cache with rows of x in their slots."""
    found: Exact = a.cache.copy()
    found[a.batch.slots] = a.x
    return found


def unseen(batch: Any, rows: slice, where: Pattern, queries: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Which tokens of a sentence do not see which: a row for each of these queries, or of all."""
    at = np.arange(rows.start, rows.stop)
    queries = at if queries is None else queries
    return np.broadcast_to(~np.asarray(where.sees(batch.token(queries[:, None]), batch.token(at))),
                           (len(queries), len(at)))


def shared(x: Exact, batch: Any, where: Pattern) -> Exact:
    """Softmax along the keys that are seen, flat."""
    found = []
    for rows, part in squares(x, batch):
        found.append(softened(np.where(unseen(batch, rows, where), -np.inf, part)).ravel())
    return np.concatenate(found)


def softened(scores: Exact) -> Exact:
    """Softmax along the last axis, of which scores of -inf have no share; zeros where there are no others."""
    top = scores.max(-1, keepdims=True)
    shares = np.exp(scores - np.where(top > -np.inf, top, 0))
    mass = shares.sum(-1, keepdims=True)
    return np.asarray(shares / np.where(mass == 0, 1, mass))


def attended(a: Bound, where: Pattern) -> Exact:
    """softmax(q kᵀ · scale) v of the queries that are asked for, over what each sees."""
    heads, found = max(each.shape[1] for each in (a.q, a.k, a.v)), []
    for at, queries, keys in asked(a):
        q, k, v = (grouped(each, heads) for each in (a.q[at], a.k[keys], a.v[keys]))
        scores = np.where(unseen(a.batch, keys, where, queries), -np.inf, products(q, k) * a.scale)
        found.append(sums(softened(scores), v))
    return np.concatenate(found)


def products(q: Exact, k: Exact) -> Exact:
    """(heads, queries, keys): q kᵀ of every head."""
    return q.swapaxes(0, 1) @ k.transpose(1, 2, 0)


def sums(p: Exact, v: Exact) -> Exact:
    """(queries, heads, columns): p v of every head."""
    return (p @ v.swapaxes(0, 1)).swapaxes(0, 1)


def weighed(p: Exact, v: Exact, batch: Any) -> Exact:
    """p v, sentence by sentence."""
    return np.concatenate([np.einsum("hqk,khd->qhd", part, grouped(v[rows], len(part)))
                           for rows, part in squares(p, batch)])


def pooled(a: Bound) -> Exact:
    """The rows of each sentence as one."""
    def one(x: Exact) -> Exact:
        places = np.arange(1.0, len(x) + 1)
        match a.how:
            case "first" | "last": return np.asarray(x[0 if a.how == "first" else -1])
            case "max": return np.asarray(x.max(0))
            case "by_place": return np.asarray(places @ x / places.sum())
        return np.asarray(x.sum(0) / {"sum": 1, "mean": len(x), "by_root": len(x) ** 0.5}[a.how])
    return np.stack([one(a.x[rows]) for rows in sentences(a.batch)])


def unit(x: Exact, least: float | None) -> Exact:
    """Rows of length one, where that is asked for."""
    return x if least is None else np.asarray(x / np.sqrt(np.square(x).sum(1, keepdims=True) + least))


def linked(a: Bound) -> Exact:
    """What a relation's entries join, row by row."""
    found = a.batch.relation(parse_relation(a.relation))
    found.meets(len(a.x))
    out = np.full((found.shape[0], a.x.shape[1]), -np.inf if a.over == "max" else 0.0)
    for i, (low, high) in enumerate(pairwise(found.starts)):
        parts = found.numbers[low:high, None] * a.x[found.at[low:high]]
        if low < high:
            out[i] = parts.max(0) if a.over == "max" else parts.sum(0) / (high - low if a.over == "mean" else 1)
    return out


def picked(a: Bound) -> Exact:
    found = a.batch.relation(parse_relation(a.relation))
    found.meets(len(a.x))
    return np.asarray(a.x[found.single()])


def attended_once(a: Bound) -> Exact:
    """Softmax of what one query of each sentence sees, over its values."""
    heads, out = max(a.q.shape[1], a.k.shape[1], a.v.shape[1]), []
    for s, rows in enumerate(sentences(a.batch)):
        at = rows.start if a.query == "first" else rows.stop - 1
        q, k, v = (grouped(each, heads) for each in (a.q[s:s + 1], a.k[rows], a.v[rows]))
        seen = np.broadcast_to(parse(a.where).sees(a.batch.token(at), a.batch.token(np.arange(rows.start, rows.stop))),
                               len(k))
        scores = np.where(seen, np.einsum("hd,khd->hk", q[0], k) * a.scale, -np.inf)
        out.append(np.einsum("hk,khd->hd", softened(scores), v))
    return np.stack(out)


def read(a: Bound) -> Exact:
    """A term of the algebra, which other kernels do without."""
    from opmatrix.runtime import interpreted
    return interpreted.exact(a)


def by_head(x: Exact, weight: Exact) -> Exact:
    return (x.swapaxes(0, 1) @ weight).swapaxes(0, 1)
