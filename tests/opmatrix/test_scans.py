"""Rows merged with those before them: both oracles, the kernel and programs agree with a loop, over any monoid."""

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

import opmatrix as om
from opmatrix.algebra import monoids
from opmatrix.algebra.nodes import symbol
from opmatrix.algebra.shapes import Shape, T
from opmatrix.runtime.codegen.scanned_term import scanned_term
from opmatrix.runtime.interpreted import write_term
from opmatrix.runtime.kernels import KERNELS

LENGTHS = 1, 2, 63, 64, 65, 127, 128, 129
PREFIX, WHOLE = om.sequence & om.causal, om.sequence
few = settings(max_examples=40, deadline=None, derandomize=True)


class affine(om.Monoid):
    """h <- a h + b."""

    identity, commutative = (1.0, 0.0), False

    def lift(a, b):
        return a, b

    def merge(one, other):
        return one[0] * other[0], other[0] * one[1] + other[1]

    def finish(a, h):
        return h


class maxplus(om.Monoid):
    """The longest path."""

    identity, idempotent = -np.inf, True

    def lift(a, b):
        return a + b

    def merge(one, other):
        return np.maximum(one, other)


class turning(om.Monoid):
    """Products of 2 × 2 matrices [[a, b], [0.5, 1]]; their corner."""

    identity, commutative = (1.0, 0.0, 0.0, 1.0), False

    def lift(a, b):
        return a, b, 0.5 + 0 * a, 1.0 + 0 * b

    def merge(one, other):
        (a, b, c, d), (e, f, g, h) = one, other
        return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h

    def finish(a, b, c, d):
        return b


class latest(om.Monoid):
    """The last number whose mark is above 0."""

    identity, commutative, idempotent = (0.0, 0.0), False, True

    def lift(a, b):
        return 1.0 * (a > 0), np.where(a > 0, b, 0.0)

    def merge(one, other):
        return np.maximum(one[0], other[0]), np.where(other[0] > 0, other[1], one[1])

    def finish(mark, value):
        return value


OWN = affine, maxplus, turning, latest
ANY = *OWN, *(over for over in monoids.MONOIDS if over.width == 1 and not over.indexed)


def looped(over, a, b, lengths, whole=False):
    """The scan by definition: one number after another, in Python."""
    a, b = np.broadcast_arrays(a, b)
    out, begin = np.zeros(a.shape), 0
    for length in lengths:
        for j in np.ndindex(a.shape[1:]):
            total = over.unit()
            for t in range(begin, begin + length):
                total = over.merged(total, over.lifted(float(a[t][j]), float(b[t][j])))
                out[t][j] = over.finish(*total)
            out[(slice(begin, begin + length), *j)] = (
                out[begin + length - 1][j] if whole else out[begin : begin + length][(slice(None), *j)]
            )
        begin += length
    return out


def kernel(over, where=PREFIX, heads=1, left=3, right=3):
    """The kernel of a scan of two values, and its term."""
    a, b = (symbol(f"x{k}", Shape(1, T, 1), Shape(heads, T, n), ()) for k, n in enumerate((left, right)))
    term = om.scan(a, b, over, where)
    text, _ = write_term(term, {a: 0, b: 1})
    return scanned_term(text, ((heads, left), (heads, right)), ()), text


def of_lengths(lengths):
    return om.Batch([np.zeros(length, int) for length in lengths])


def run(written, a, b, lengths):
    plan = written.plan
    shape = (len(a), plan.cols) if plan.heads == 1 else (len(a), plan.heads, plan.cols)
    return written([a, b], [], np.full(shape, np.nan, np.float32), np.cumsum([0, *lengths]))


def numbers(rng, lengths, *shape, low=-1.0):
    return rng.uniform(low, 1, (sum(lengths), *shape)).astype(np.float32)


def bounded(written, text, a, b, lengths):
    """A kernel's result, held to its own bound."""
    declared = KERNELS["scan_term"]
    out = run(written, a, b, lengths)
    bound = declared.call(dict(x0=a, x1=b), dict(term=text), of_lengths(lengths)) if hasattr(declared, "call") else None
    return out, bound


@pytest.mark.parametrize("over", OWN, ids=lambda over: over.__name__)
def test_they_are_monoids(over):
    over.check(np.random.default_rng(0))


@few
@forall(st.integers(0, 2**32 - 1))
def test_oracles_are_the_loop(seed):
    rng = np.random.default_rng(seed)
    over, where = ANY[rng.integers(len(ANY))], (PREFIX, WHOLE)[rng.integers(2)]
    lengths = rng.integers(1, 6, 3).tolist()
    A, B = (om.weight(rng.normal(size=(4, n))) for n in (rng.choice([1, 3]), 3))
    x, batch = rng.normal(size=(sum(lengths), 4)), of_lengths(lengths)
    wanted = looped(over, x @ A.args[0].array, x @ B.args[0].array, lengths, where is WHOLE)
    term = om.scan(A, B, over, where)
    np.testing.assert_allclose(om.dense(term, x, batch), wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(om.entrywise(term, x, batch)[0].astype(float), wanted, rtol=1e-12, atol=1e-12)
