"""Random well-typed terms, for whoever wants to try something on all of them: `random_term(rng)`."""

import numpy as np

from opmatrix.algebra import monoids
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import (
    I,
    attention,
    blocks,
    centre,
    col,
    cols,
    const,
    diag,
    diagonal,
    gelu,
    given,
    heads,
    keep_top,
    layernorm,
    mean,
    over,
    place,
    product,
    reciprocal,
    relu,
    rotate,
    row,
    rsqrt,
    scan,
    share,
    shift,
    silu,
    softplus,
    square,
    tanh,
    total,
    weight,
    zero,
)
from opmatrix.algebra.positions.patterns import causal, everyone, mask, sequence, window
from opmatrix.algebra.term import Data, formula

FUNCTIONS = (relu, gelu, silu, tanh, square, softplus, (square + 0.5) @ rsqrt, (square + 0.5) @ reciprocal)
POLYNOMIAL = (relu, square)
SUMS = (monoids.sum, monoids.mean, monoids.softmax, monoids.logsumexp, monoids.moments, monoids.sumsq, monoids.max)
RATIONAL = (monoids.sum, monoids.mean, monoids.sumsq, monoids.rectify, monoids.moments, monoids.moments.mean)


def random_batch(rng):
    """Three sentences of unequal length; one has a single token."""
    return Batch([rng.integers(0, 9, n) for n in (3, 1, 2)], [rng.integers(0, 2, n) for n in (3, 1, 2)])


class Grower:
    """Grows terms. `exact` keeps to what has rational values; `tokens` allows products of values."""

    def __init__(self, rng, exact=False, tokens=True):
        self.rng, self.exact, self.tokens, self.made = rng, exact, tokens, 0

    def pick(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def data(self, *shape):
        """Some arrays have names, some do not; a rational one has few digits."""
        numbers = self.rng.normal(size=shape) / shape[0] ** 0.5
        self.made += 1
        return Data(
            np.round(numbers * 8) / 8 if self.exact else numbers, self.pick(None, f"w.{self.made}", f"W{self.made}")
        )

    def pattern(self):
        return self.pick(
            everyone,
            sequence,
            sequence & causal,
            sequence & (causal | window(1)),
            window(1),
            mask(Data(np.tri(3), "tri")) & sequence,
            mask(np.ones((3, 3)) - np.eye(3)),
        )

    def leaf(self, n, p):
        """One operator matrix from n to p columns."""
        rng, found = (
            self.rng,
            [
                lambda: weight(self.data(n, p)),
                lambda: weight(self.data(p, n).T),
                lambda: const(self.data(p)),
                lambda: given(self.pick("tokens", "positions", "kinds"), 9) @ weight(self.data(9, p)),
                lambda: over(weight(self.data(n, p)), self.pick(*(RATIONAL if self.exact else SUMS))),
            ],
        )
        if n == p:
            found += [
                lambda: I,
                lambda: self.pick(*(POLYNOMIAL if self.exact else FUNCTIONS)),
                lambda: diag(self.data(n)),
                lambda: centre,
            ]
        if n == p and n % 2 == 0:
            found += [lambda: rotate(self.data(3, n // 2), self.data(3, n // 2))]
        if n == p and self.tokens:
            found += [lambda: shift(self.pick(1, 2))]
        if n == p and n > 2:
            found += [lambda: rotate(self.data(3, 1), self.data(3, 1), n - 2)]
        if n == p and not self.exact:
            found += [lambda: layernorm(0.25), lambda: share]
        if p > 1:
            found += [lambda: keep_top(*(weight(self.data(n, p)) for _ in "sy"), int(rng.integers(1, p + 1)))]
        if n > p:
            found += [lambda: cols(lo := int(rng.integers(n - p + 1)), lo + p)]
        if n < p:
            found += [lambda: place(int(rng.integers(p - n + 1)), p)]
        if p == n * n:
            found += [lambda: over(I @ weight(self.data(n, n)), monoids.concat)]
        if p == 2 and n > 2 and not self.exact:
            found += [lambda: over(weight(self.data(n, 1)), self.pick(monoids.topk(2), monoids.topk(2).indices))]
        return self.pick(*found)()

    def term(self, n, p, depth):
        """A term of at most that depth."""
        if depth <= 0:
            return self.leaf(n, p)
        less, k, rng = depth - 1, int(self.rng.integers(2, 6)), self.rng
        grow = lambda n, p: self.term(n, p, less)
        found = [
            lambda: grow(n, k) @ grow(k, p),
            lambda: grow(n, p) + grow(n, p),
            lambda: grow(n, p) * grow(n, p),
            lambda: grow(n, p) - grow(n, p),
            lambda: grow(n, p) * self.pick(0.5, -1.0, 2.0),
            lambda: -grow(n, p),
            lambda: grow(n, p) + self.pick(0.5, zero, mean),
            lambda: const(self.data(p)) + grow(n, p),
            lambda: weight(self.data(3, n, p)) @ total,
            lambda: self.by_head(n, p, less),
        ]
        if p > 1:
            found += [lambda: row(grow(n, q := int(rng.integers(1, p))), grow(n, p - q)), lambda: self.split(n, p)]
        if n > 3:
            found += [lambda: col(weight(self.data(2, p)) @ grow(p, p), weight(self.data(n - 2, p)))]
        if n > 3 and p > 3:
            found += [lambda: diagonal(weight(self.data(2, p - 2)), weight(self.data(n - 2, 2)))]
        if n > 3 and p > 3:
            found += [
                lambda: blocks(
                    [
                        [weight(self.data(2, p - 2)), None],
                        [weight(self.data(n - 2, p - 2)) @ relu, self.data(n - 2, 2).array],
                    ]
                )
            ]
        if self.tokens:
            found += [lambda: self.mixed(n, p, less)] * 2
        return self.pick(*found)()

    def split(self, n, p):
        """Through heads and back, where they divide."""
        h = next((h for h in (3, 2) if p % h == 0), 1)
        return (
            weight(self.data(n, p))
            @ heads(h)
            @ self.pick(relu, I, weight(self.data(h, p // h, p // h)), I + const(self.data(h, 1, p // h)))
            @ heads(h).T
        )

    def by_head(self, n, p, depth):
        """A stack of weights, and a sum over heads."""
        return weight(self.data(2, n, 3)) @ self.pick(relu, square) @ weight(self.data(2, 3, p)) @ total

    def mixed(self, n, p, depth):
        """A product of values: tokens see tokens."""
        Q, K, V = (self.term(n, k, depth - 1) for k in (4, 4, p))
        one = monoids.sum if self.exact else self.pick(monoids.softmax, monoids.sum, monoids.mean)
        where, s = self.pattern(), self.pick(0.5, 0.25)
        choices = [
            lambda: formula(lambda x: product((x @ Q) @ (x @ K).T * s, x @ V, over=one, where=where)),
            lambda: formula(
                lambda x: product((x @ Q - 0.5) @ (x @ K + x @ Q).T, x @ V, over=one, where=where) @ centre + x @ V
            ),
            lambda: (
                formula(lambda x: ((x @ Q) @ x.T @ (x @ V)) * 0.125)
                if n == 4
                else formula(lambda x: (x @ Q).T.T @ weight(self.data(4, p)))
            ),
        ]
        choices += [lambda: scan(V, self.term(n, p, depth - 1), one, self.pick(sequence, sequence & causal))]
        if p % 2 == 0 and not self.exact and isinstance(Q.into.cols, int):  # how wide a query is must be known
            choices += [lambda: attention(Q, K, self.term(n, p, depth - 1), 2, where)]
        return self.pick(*choices)()


def random_term(rng, n=5, p=3, depth=3, exact=False, tokens=True):
    """A random operator from n to p columns; see Grower."""
    return Grower(rng, exact, tokens).term(n, p, depth)
