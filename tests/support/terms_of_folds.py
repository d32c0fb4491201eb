"""Products over monoids that no kernel was written for, each with its operands and what it is by numpy."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

import opmatrix as om
from opmatrix.algebra import monoids
from opmatrix.algebra.batch.relations import relation
from opmatrix.algebra.monoid import Monoid
from opmatrix.algebra.nodes import by_distance, product, related, symbol, turn
from opmatrix.algebra.operators import const, heads, over, tanh, weight
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.interpreted import write_term

REACH, MOST = 8, 5  # of windows, on both sides; the distances that a table has
EDGES = relation("edges", "T", "T")


class minplus(Monoid):
    """The shortest way: what is passed is added up."""

    identity, idempotent = np.inf, True

    def lift(x, w):
        return x + w

    def merge(a, b):
        return np.minimum(a, b)


class Case(NamedTuple):
    """A kernel's name, its text, its operands by name, and what it is by numpy."""

    kernel: str
    text: str
    operands: dict
    by_hand: object


def value(k, cols):
    return symbol(f"x{k}", Shape(), Shape(1, T, cols), ())


def draw(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def by_shares(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cases(rng, lengths, n=48, p=24, h=3, edges=5):
    """The products by name, over sequences of these lengths; and their batch."""
    starts, rows = np.cumsum([0, *lengths]), sum(lengths)
    parts = [slice(a, b) for a, b in pairwise(starts)]
    x, y, c, d = value(0, n), value(1, n), value(1, 1), value(0, n // h)
    W, U = draw(rng, n, p), draw(rng, n, 16)
    at = np.sort(rng.integers(0, rows, (rows, edges)), 1)
    near = draw(rng, h, 2 * MOST + 1)
    table = np.zeros((rows, rows))
    table[np.arange(rows)[:, None], at] = rng.uniform(0.5, 2, (rows, edges))
    batch = om.Batch([[0] * length for length in lengths], relations={"edges": table})
    links = batch.relation(EDGES)
    one = x @ const(1.0)

    def by_steps(x):
        out = np.full((len(x), p), np.inf, np.float32)
        for k in range(n):
            np.minimum(out, x[:, k : k + 1] + W[k], out=out)
        return out

    def by_logs(x):
        z = x[:, :, None] * U
        top = z.max(1)
        return top + np.log(np.exp(z - top[:, None]).sum(1))

    def by_top(q, c):
        found = [(q[at] @ q[at].T) * c[at].T for at in parts]
        found = [np.pad(each, ((0, 0), (0, 1)), constant_values=-np.inf) for each in found]
        return np.concatenate([np.sort(np.partition(each, -2, 1)[:, -2:], 1)[:, ::-1] for each in found])

    def by_shifts(x):
        out = x.copy()
        for at in parts:
            for k in range(1, min(REACH, at.stop - at.start - 1) + 1):
                lo, hi = slice(at.start, at.stop - k), slice(at.start + k, at.stop)
                np.maximum(out[lo], x[hi], out=out[lo])
                np.maximum(out[hi], x[lo], out=out[hi])
        return out

    def by_edges(x):
        return np.minimum.reduceat(x[links.at] + links.numbers.astype(np.float32)[:, None], links.starts[:-1])

    def by_caps(x, y):
        q, k = (each.reshape(rows, h, -1).swapaxes(0, 1) for each in (x, y))
        out = np.empty_like(q)
        for at in parts:
            s = np.tanh(q[:, at] @ k[:, at].swapaxes(1, 2)) * 2
            s[:, ~np.tri(at.stop - at.start, dtype=bool)] = -np.inf
            out[:, at] = by_shares(s) @ k[:, at]
        return out.swapaxes(0, 1)

    def by_ways(x, y):
        q, k = (each.reshape(rows, h, -1) for each in (x, y))
        out = np.full_like(q, np.inf)
        for at in parts:
            for o in range(-REACH, REACH + 1):
                length = at.stop - at.start - abs(o)
                if length <= 0:
                    continue
                lo, hi = (slice(start, start + length) for start in (at.start + max(-o, 0), at.start + max(o, 0)))
                way = np.tanh((q[lo] * k[hi]).sum(-1)) + near[:, np.clip(o, -MOST, MOST) + MOST]
                np.minimum(out[lo], way[..., None] + k[hi], out=out[lo])
        return out

    q, k = x @ heads(h), y @ heads(h)
    named = {
        "min-plus": ("fold_rows", x @ over(weight(W), minplus), [x], by_steps),
        "log-sum-exp": ("fold_rows", x @ over(weight(U), monoids.logsumexp), [x], by_logs),
        "top-2 over keys": ("fold_batch", product(product(d, turn(d)), c, monoids.topk(2), sequence), [d, c], by_top),
        "sliding max": (
            "fold_term",
            product(product(one, turn(one)), x, monoids.max, sequence & window(REACH)),
            [x],
            by_shifts,
        ),
        "shortest paths": ("fold_entries", product(related(EDGES), x, minplus), [x], by_edges),
        "capped attention": (
            "fold_term",
            product(product(q, turn(k)) @ tanh * 2.0, k, monoids.softmax, sequence & causal),
            [x, y],
            by_caps,
        ),
        "ways by distance": (
            "fold_term",
            product(product(q, turn(k)) @ tanh + by_distance(near, MOST), k, minplus, sequence & window(REACH)),
            [x, y],
            by_ways,
        ),
    }
    made = {}
    for name, (kernel, term, values, by_hand) in named.items():
        text, arrays = write_term(term, {each: k for k, each in enumerate(values)})
        given = [draw(rng, rows, int(each.out.cols)) for each in values]
        operands = {f"x{k}": each for k, each in enumerate(given)}
        operands |= {f"c{k}": np.atleast_1d(np.asarray(each.array, np.float32)) for k, each in enumerate(arrays)}
        made[name] = Case(kernel, text, operands, lambda given=given, by_hand=by_hand: by_hand(*given))
    return made, batch
