"""Sums of every kind: any split agrees, what is absent is the unit, and a promise that is not kept is found out."""

import numpy as np
import pytest

from opmatrix.algebra import monoids
from opmatrix.algebra.monoids import (
    MONOIDS,
    Monoid,
    concat,
    logsumexp,
    max,
    mean,
    moments,
    rectify,
    softmax,
    sum,
    sumsq,
    topk,
)
from opmatrix.algebra.operators import I, centre, ones, over, product, relu, square, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.term import formula


class minplus(Monoid):
    """Shortest paths: declared here and nowhere else."""

    identity, idempotent = np.inf, True

    def lift(x, w):
        return x + w

    def merge(a, b):
        return np.minimum(a, b)

    def distributes(w):
        return True


def both(A, x, batch=None):
    """What the two oracles agree on."""
    d, e = dense(A, x, batch), entrywise(A, x, batch)
    np.testing.assert_allclose(d, e.reshape(d.shape).astype(float), rtol=1e-11, atol=1e-12)
    return d


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("monoid", (*MONOIDS, minplus), ids=lambda m: m.__name__)
def test_any_split_of_the_sum_agrees(monoid, rng):
    for _ in range(3):
        monoid.check(rng)


def test_what_each_is(rng):
    x, w = rng.normal(size=(3, 5)), rng.normal(size=(5, 2))
    each = x[:, :, None] * w
    for monoid, want in (
        (sum, each.sum(1)),
        (max, each.max(1)),
        (mean, each.mean(1)),
        (sumsq, (each**2).sum(1)),
        (moments, each.var(1)),
        (moments.variance, each.var(1)),
        (moments.mean, each.mean(1)),
        (logsumexp, np.log(np.exp(each).sum(1))),
        (rectify, np.maximum(each, 0).max(1)),
        (softmax, np.exp(x) @ w / np.exp(x).sum(1, keepdims=True)),
        (topk(2), np.sort(each, 1)[:, :-3:-1].swapaxes(1, 2).reshape(3, -1)),
        (topk(2).indices, each.argsort(1)[:, :-3:-1].swapaxes(1, 2).reshape(3, -1)),
        (concat, each.swapaxes(1, 2).reshape(3, -1)),
    ):
        np.testing.assert_allclose(monoid.product(x, w), want, rtol=1e-12, err_msg=monoid.__name__)


def test_largest_first_and_among_equals_the_first():
    x, one = np.array([[2.0, 7.0, 7.0, -1.0]]), np.ones((4, 1))
    for tile in (1, 2, 3):
        assert topk(3).product(x, one, tile=tile).tolist() == [[7, 7, 2]]
        assert topk(3).indices.product(x, one, tile=tile).tolist() == [[1, 2, 0]]
    seen = np.array([[True, False, True, False]])
    assert topk(3).product(x, one, seen).tolist() == [[7, 2, -np.inf]]
    assert topk(3).indices.product(x, one, seen).tolist() == [[2, 0, -1]]


def test_a_score_of_minus_infinity_is_absent(rng):
    z, v = rng.normal(size=(3, 5)), rng.normal(size=(5, 2))
    z[:, 2], z[1] = -np.inf, -np.inf
    for tile in (1, 2, 5):
        np.testing.assert_allclose(softmax.product(z, v, tile=tile), softmax.closed(z, v))
    np.testing.assert_array_equal(softmax.product(z, v)[1], 0)
    np.testing.assert_allclose(softmax.product(z, v), softmax.product(np.where(z > -np.inf, z, 0), v, z > -np.inf))


def test_huge_scores_do_not_overflow():
    z, v = np.array([[1e4, 1e4 - 1, -1e4]]), np.array([[1.0], [2.0], [3.0]])
    for found in (softmax.product(z, v), softmax.closed(z, v)):
        np.testing.assert_allclose(found, (1 + 2 / np.e) / (1 + 1 / np.e))
    np.testing.assert_allclose(logsumexp.product(z, np.ones((3, 1))), 1e4 + np.log(1 + 1 / np.e))


def test_both_masks_count_where_sizes_are_equal(rng):
    """A mask of scores and one of entries have the same shape here, and mean different things."""
    x, w, mask = rng.normal(size=(4, 4)), rng.normal(size=(4, 4)), rng.random((4, 4)) < 0.5
    np.testing.assert_allclose(sum.product(x, w, seen=mask), (x * mask) @ w)
    np.testing.assert_allclose(sum.product(x, w, present=mask), x @ (w * mask))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("over", [sum, mean, softmax])
def test_what_is_not_seen_is_left_out_where_it_is_no_number(over, number, rng):
    """A closed form multiplies by 0, and 0 times infinity is no number."""
    x, w, seen = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4, 2)), np.tri(3, 4, dtype=bool)
    wanted = over.product_of_seen(x, w, seen)
    w[1, 2, 0] = w[0, 3, 1] = number
    found = over.product_of_seen(x, w, seen)
    assert np.isfinite(found).all(-1).tolist() == [[True, True, True], [True, True, False]]
    np.testing.assert_allclose(found[:, :2], wanted[:, :2])


def test_a_monoid_of_the_test_runs_everywhere(rng, data, batch):
    x, W = rng.normal(size=(3, 5)), data("W", 5, 4)
    want = (x[:, :, None] + W.array).min(1)
    np.testing.assert_allclose(both(over(weight(W), minplus), x), want)
    for tile in range(1, 6):
        np.testing.assert_allclose(minplus.product(x, W.array, tile=tile), want)
    assert over(weight(W), minplus)[1, 2](3.0) == 3.0 + W.array[1, 2]
    tokens = rng.normal(size=(7, 5))
    from opmatrix.algebra.positions.patterns import causal, sequence

    paths = formula(lambda x: product(x @ x.T, x @ weight(W), over=minplus, where=sequence & causal))
    scores, values = tokens @ tokens.T, tokens @ W.array
    assert np.isfinite(both(paths, tokens, batch)).all()
    np.testing.assert_allclose(both(paths, tokens, batch)[2], (scores[2, :3, None] + values[:3]).min(0))


def test_relu_is_a_generalised_product(rng):
    x = rng.normal(size=(3, 4))
    np.testing.assert_array_equal(both(over(I, rectify), x), both(relu, x))


def test_softmax_is_a_generalised_product(rng):
    x = rng.normal(size=(4, 3))
    weights = np.exp(x @ x.T)
    np.testing.assert_allclose(
        both(formula(lambda x: product(x @ x.T, x, over=softmax)), x), weights @ x / weights.sum(1, keepdims=True)
    )


def test_averages_and_moments(rng):
    x = rng.normal(size=(3, 5))
    np.testing.assert_allclose(both(over(ones, moments), x), both(centre @ square @ mean, x), rtol=1e-12)
    np.testing.assert_allclose(both(over(ones, moments.mean), x), both(over(ones, mean), x), rtol=1e-12)
    np.testing.assert_array_equal(both(over(ones, concat), x), x)
    assert over(ones, topk(2)).out.cols == 2 and over(weight(np.ones((5, 3))), topk(2)).out.cols == 6


BROKEN = {
    "split": dict(identity=0, lift=lambda x, w: x * w, merge=lambda a, b: a + b + a * a * b),
    "identity": dict(identity=1.0, lift=lambda x, w: x * w, merge=lambda a, b: a + b),
    "commutative": dict(identity=np.inf, lift=lambda x, w: x * w, merge=lambda a, b: np.where(a == np.inf, b, a)),
    "idempotent": dict(identity=0, idempotent=True, lift=lambda x, w: x * w, merge=lambda a, b: a + b),
    "linear": dict(identity=-np.inf, linear=True, lift=lambda x, w: x * w, merge=np.maximum),
    "homogeneous": dict(identity=0, homogeneous=True, lift=lambda x, w: x * x * w, merge=lambda a, b: a + b),
    "shift_invariant": dict(identity=0, shift_invariant=True, lift=lambda x, w: x * w, merge=lambda a, b: a + b),
    "normalised": dict(identity=0, normalised=True, lift=lambda x, w: x * w, merge=lambda a, b: a + b),
    "distributes": dict(identity=-np.inf, distributes=lambda w: True, lift=lambda x, w: x * w, merge=np.maximum),
    "closed": dict(
        identity=0, lift=lambda x, w: x * w, merge=lambda a, b: a + b, closed=lambda x, w, seen=None: x @ w + 1
    ),
}


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_found_out(promise, rng):
    with pytest.raises(AssertionError, match=f"wrong breaks its promise.*{promise}"):
        type("wrong", (Monoid,), BROKEN[promise]).check(rng)


def test_the_mean_does_not_weigh_to_one(rng):
    """The weights z / n of a mean sum to the mean of z: only softmax passes a bias on."""
    assert not mean.normalised and softmax.normalised
    assert not np.allclose(mean.product(rng.normal(size=(2, 3)), np.ones((3, 1))), 1)


def test_concat_cannot_leave_out(rng):
    with pytest.raises(TypeError, match="masks are not supported"):
        concat.product(rng.normal(size=(2, 3)), np.ones((3, 1)), np.array([[True, False, True], [True, True, True]]))


def test_an_entry_must_give_what_is_carried():
    with pytest.raises(TypeError, match="relu does not return what softmax carries: 3 numbers"):
        over(relu, monoids.softmax)[0, 0](1.0)
