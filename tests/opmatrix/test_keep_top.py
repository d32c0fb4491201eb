"""`keep_top`: what it keeps, in every reading; what it refuses; what it declares; the routes of a reading."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from partitioned import compared, planned

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Promised
from opmatrix.algebra.operators import I, const, heads, keep_top, product, relu, share, square, tanh, total, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.routes import Route, Routes, keep_taken, largest, noted
from opmatrix.algebra.shapes import Shape, ShapeError, T
from opmatrix.algebra.term import Data, formula
from opmatrix.parallel.sharding.mesh import Mesh
from rewrites.egraph.template import Template
from rewrites.proofs.enclosure import Between, enclose
from rewrites.proofs.equations import prove

RNG = np.random.default_rng(0)
scores = arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.integers(-2, 2).map(float))
few = settings(max_examples=60, deadline=None, derandomize=True)


def kept(row, k):
    """The places of the k largest, by the definition: of equal ones the first."""
    return sorted(range(len(row)), key=lambda j: (-row[j], j))[:k]


@few
@forall(scores, st.data())
def test_the_largest_are_kept_and_of_equal_ones_the_first(x, data):
    k = data.draw(st.integers(1, x.shape[1]))
    found = dense(keep_top(I, I, k), x)
    wanted = np.array([[v if j in kept(row, k) else 0.0 for j, v in enumerate(row)] for row in x])
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(entrywise(keep_top(I, I, k), x)[0].astype(float), wanted)
    np.testing.assert_array_equal(entrywise(keep_top(I, I, k), x, number=Fraction)[0].astype(float), wanted)
    np.testing.assert_array_equal(dense(keep_top(I, I, k), x, dtype=np.float32), wanted)


@few
@forall(scores, st.data())
def test_each_head_has_its_own(x, data):
    h = data.draw(st.sampled_from([h for h in range(1, x.shape[1] + 1) if x.shape[1] % h == 0]))
    k = data.draw(st.integers(1, x.shape[1] // h))
    term = keep_top(heads(h), heads(h), k) @ heads(h).T
    parts = [dense(keep_top(I, I, k), part) for part in np.split(x, h, 1)]
    np.testing.assert_array_equal(dense(term, x), np.concatenate(parts, 1))
    np.testing.assert_array_equal(entrywise(term, x)[0].astype(float), np.concatenate(parts, 1))


def test_one_head_serves_all_and_a_number_all_columns():
    x = RNG.normal(size=(3, 4))
    mask = dense(keep_top(const(1.0), I, 2), x)
    assert (mask.sum(1) == 2).all() and set(mask.flat) == {0.0, 1.0}
    two = weight(RNG.normal(size=(2, 4, 4)))
    np.testing.assert_array_equal(
        dense(keep_top(I, two, 1), x), [dense(keep_top(I, weight(each), 1), x) for each in two.args[0].array]
    )


def test_a_row_with_no_number_in_it_is_none():
    x = np.array([[1.0, np.nan, 2.0], [1.0, -np.inf, 2.0]])
    wanted = [[np.nan] * 3, [1.0, 0.0, 2.0]]
    np.testing.assert_array_equal(dense(keep_top(I, I, 2), x), wanted)
    np.testing.assert_array_equal(entrywise(keep_top(I, I, 2), x)[0].astype(float), wanted)
    infinite = keep_top(const([np.inf, 1.0, 1.0]), I, 1)
    assert dense(infinite, x[1:]).tolist() == [[0.0, 0.0, 1.0]], "what is not kept is 0, whatever it was"


def test_intervals_say_what_they_know():
    x = np.array([[1.0, 3.0, 2.0]])
    found = enclose(keep_top(I, I, 1), x, Batch([[0]]))
    for each, wanted in zip(found.flat, (0, 3, 0), strict=True):
        assert each.holds(wanted) and each.high - each.low < 1e-12
    near = keep_top(I, I * 0.1 * 10.0 + I * 0.3, 1)  # rounding does not tell 0.1 + 0.2 from 0.3 here
    found = enclose(near, np.array([[1.0, 1.0]]), Batch([[0]]))
    assert all(isinstance(each, Between) and each.holds(0.0) and each.holds(1.0) for each in found.flat)


W, V = weight(RNG.normal(size=(6, 8))), weight(RNG.normal(size=(6, 4)))


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: keep_top(W, W, 0), r"keep_top: k = 0 of 8 columns: give 1 to 8"),
        (lambda: keep_top(W, W, 9), r"keep_top: k = 9 of 8 columns"),
        (lambda: keep_top(I, I, 7)(np.zeros((2, 6))), r"k = 7 of 6 columns"),
        (lambda: keep_top(W @ heads(4), W @ heads(4), 3), r"k = 3 of 2 columns"),
        (lambda: keep_top(W, V, 2), r"columns 8 ≠ 4"),
        (lambda: keep_top(W @ heads(2), V, 2), r"one number to rank by for each"),
        (lambda: keep_top(W, W @ V.T @ V @ tanh, 2), "columns"),
        (lambda: keep_top(W, W, 2.0), r"k is 2.0: it must be a whole number"),
    ],
)
def test_what_does_not_fit_is_refused(make, said):
    with pytest.raises((ShapeError, TypeError), match=said):
        make()


def test_what_it_declares():
    rows = keep_top(W @ share, W, 2)
    assert rows.row_wise and rows.uniform and not (rows.constant or rows.maps_zero_to_zero or rows.entrywise)
    assert keep_top(W, W @ tanh, 2).maps_zero_to_zero
    assert keep_top(W, W, 2).positively_homogeneous and not keep_top(W, W + const(np.ones(8)), 2).positively_homogeneous
    assert keep_top(W, const(np.arange(8.0)), 2).additive and not keep_top(W, W, 2).additive
    mixed = formula(lambda x: product(x @ x.T, x, where=sequence))
    assert not keep_top(W, mixed @ W, 2).row_wise
    assert share.keeps_order and (tanh @ share).keeps_order and (tanh + 1.0).keeps_order and not relu.keeps_order


def test_a_promised_stack_turns_within_its_heads():
    for shape in ((8, 3, 5), (3, 5)):
        assert Promised("W", shape).T.shape == Data(np.zeros(shape)).T.shape
        assert Promised("W", shape).T.T.shape == shape


@pytest.mark.parametrize("experts, k, n, f", [(8, 2, 32, 16), (64, 8, 256, 96), (4, 4, 16, 8), (128, 1, 64, 48)])
def test_small_sizes_keep_no_more_than_there_are(experts, k, n, f):
    term = W_in(n) @ layer(RNG, n, experts, k, f)
    template = Template.of({"full": term})
    small = template.small_sizes()
    assert small[experts] < experts or experts == 4
    for made in template.instance(template.shrunken(lambda shape: RNG.normal(size=shape))).values():
        if made.kind.name == "keep_top":
            assert made.args[2] <= made.out.cols == small[experts]
        if made.kind.name == "weight" and len(made.shape) == 3:
            assert made.shape[0] == small[experts]


def W_in(n, vocabulary=64):
    return weight(RNG.normal(size=(vocabulary, n)))


def layer(rng, n, experts, k, f):
    """A layer of gated experts of which each row goes through k, and the row itself."""

    def some(*shape):
        return weight((rng.normal(size=shape) / shape[-2] ** 0.5).astype(np.float32))

    router, up, beside, down = some(n, experts), some(experts, n, f), some(experts, n, f), some(experts, f, n)

    def of(x):
        p = x @ router @ share
        gate = keep_top(p, p, k)
        return x + (((x @ up @ tanh) * (x @ beside)) @ down * (gate @ heads(experts))) @ total

    return formula(of)


def test_a_layer_is_what_its_experts_are_row_by_row():
    rng = np.random.default_rng(1)
    term, x = layer(rng, 6, 5, 2, 4), rng.normal(size=(7, 6))
    router, up, beside, down = weights(term)
    for row, found in zip(x, dense(term, x), strict=True):
        z = row @ router
        p = np.exp(z) / np.exp(z).sum()
        wanted = row + sum(p[e] * ((np.tanh(row @ up[e]) * (row @ beside[e])) @ down[e]) for e in np.argsort(-p)[:2])
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def weights(term):
    """Router, up, beside and down of a layer."""
    found = [node.args[0].array.astype(float) for node in term.walk() if node.kind.name == "weight"]
    (router,) = (each for each in found if each.ndim == 2)
    (down,) = (each for each in found if each.ndim == 3 and each.shape[1] == 4)
    up, beside = (each for each in found if each.ndim == 3 and each.shape[1] == 6)
    return router, up, beside, down


@pytest.mark.parametrize(
    "axes",
    [dict(dp=(2, "data")), dict(tp=(2, "tensor")), dict(cp=(2, "ring")), dict(dp=(2, "data"), tp=(2, "sequence"))],
    ids=str,
)
def test_it_is_split_by_rows(axes):
    """Each rank's rows go their own ways; no row of scores crosses."""
    term = W_in(16) @ layer(np.random.default_rng(2), 16, 4, 2, 8)
    found = compared(term, Mesh.of(**axes))
    assert found.error < 1e-12 and not found.differences


def test_scores_that_are_cut_by_columns_are_gathered():
    named = weight(Data(RNG.normal(size=(16, 8)), "R"))
    term = W_in(16) @ formula(lambda x: keep_top(x @ named @ share, x @ named, 2))
    plan = planned(term, Mesh.of(tp=(2, "tensor")), cuts={"R": "columns"})
    assert any(rule == "all_gather" for split in plan.splits.values() for step in split.steps for _, rule in step.rules)
    assert compared(term, Mesh.of(tp=(2, "tensor")), cuts={"R": "columns"}).error < 1e-12


# ---- equal or not


@pytest.mark.parametrize(
    "one, other",
    [
        (keep_top(W, W, 2), keep_top(W, W, 3)),
        (keep_top(W, W, 2), keep_top(W, W @ square, 2)),
        (keep_top(W, W, 2), keep_top(W, -W, 2)),
        (keep_top(W, W, 8), W * 2.0),
    ],
)
def test_what_differs_is_refuted(one, other):
    assert prove(one, other).verdict == "refuted"


def test_all_columns_are_all():
    x = RNG.normal(size=(3, 6))
    np.testing.assert_array_equal(dense(keep_top(W, W @ tanh, 8), x), dense(W, x))
    assert Shape(1, T, 8).keep_top(Shape(1, T, 8), 8) == Shape(1, T, 8)


# ---- routes


def test_a_reading_takes_what_another_one_took():
    x, other = RNG.normal(size=(5, 6)), RNG.normal(size=(5, 6))
    term = keep_top(W, W, 2) @ weight(RNG.normal(size=(8, 8))) @ keep_top(I, I, 1)
    found, routes = noted(lambda: dense(term, x))
    np.testing.assert_array_equal(found, dense(term, x))
    assert [route.taken.sum() for route in routes] == [10, 5] and all((route.gaps() == 0).all() for route in routes)
    given = {at: route.taken for at, route in enumerate(routes)}
    again, forced = noted(lambda: dense(term, other), given)
    assert all(np.array_equal(a.taken, b.taken) for a, b in zip(routes, forced, strict=True))
    assert ((again != 0) == (found != 0)).all() and forced[0].gaps().max() > 0
    assert not np.array_equal(again, dense(term, other))


def test_gaps_are_what_scores_would_have_to_move():
    by = np.array([[[3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [5.0, 4.5, 4.0]]])
    route = Route(by, np.array([[[True, True, False], [False, True, False], [False, True, False]]]))
    assert route.gaps().tolist() == [1.0, 0.0, 0.5], "the last of 4.5 in place of 5; equal ones are as good"
    assert route.parted(Route(by, largest(by, 1))).tolist() == [True, True, True]
    assert keep_taken(by[0], by[0], route.taken[0])[0].tolist() == [3.0, 1.0, 0.0]


def test_routes_of_sentences_one_by_one_are_those_of_all_rows():
    """The oracle reads sentences one after another where they do not see each other."""
    batch = Batch([[1, 2, 3], [4], [5, 6]])
    layered = formula(lambda x: (y := x + product(x @ x.T, x, where=sequence)) @ keep_top(I, I, 1) + y)
    term = W_in(4, 9) @ layered @ keep_top(I, I, 2)
    _, routes = noted(lambda: dense(term, batch))
    assert [route.by.shape for route in routes] == [(1, 6, 4)] * 2
    given = {at: np.roll(route.taken, 1, -1) for at, route in enumerate(routes)}
    _, forced = noted(lambda: dense(term, batch), given)
    assert all(np.array_equal(route.taken, given[at]) for at, route in enumerate(forced))
    assert Routes(given).found == []
