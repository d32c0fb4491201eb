"""Rows before: shifts of every lag and convolutions by definition, gradients, splits over ranks, refusals."""

import numpy as np
import pytest
from partitioned import VOCABULARY, compared, random_arrays

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.data import Promised
from opmatrix.algebra.operators import (
    I,
    conv,
    diag,
    gelu,
    given,
    heads,
    pick,
    product,
    relation,
    row,
    shift,
    silu,
    sum_heads,
    weight,
)
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.lags import LAGS, LARGEST_LAG
from opmatrix.algebra.shapes import ShapeError
from opmatrix.autodiff.backward_kinds import ahead
from opmatrix.autodiff.pullback import pullback
from opmatrix.inference.cached_terms import cached_model
from opmatrix.parallel.sharding.mesh import Mesh
from rewrites.egraph.layers import parts


def lengths_at(k):
    """Lengths of sequences on both sides of a lag."""
    return [1, max(k - 1, 1), k, k + 1, 64]


def numbered(lengths):
    """A batch of these lengths."""
    return om.Batch([np.zeros(length, int) for length in lengths])


def shifted(x, lengths, k):
    """Each sequence by itself: k rows of zeros, then its first rows; for k below 0 the other way."""
    parts = np.split(x, np.cumsum(lengths)[:-1])
    padded = [np.concatenate([np.zeros((abs(k), x.shape[1])), part, np.zeros((abs(k), x.shape[1]))]) for part in parts]
    return np.concatenate([part[abs(k) - k : len(part) - abs(k) - k] for part in padded])


@pytest.mark.parametrize("k", LAGS)
def test_a_shift_reads_the_row_before_in_its_sequence(k):
    rng, lengths = np.random.default_rng(k), lengths_at(k)
    x, batch = rng.normal(size=(sum(lengths), 3)), numbered(lengths)
    np.testing.assert_array_equal(dense(shift(k), x, batch), shifted(x, lengths, k))
    np.testing.assert_array_equal(dense(ahead(k), x, batch), shifted(x, lengths, -k))
    stacked = rng.normal(size=(2, sum(lengths), 3))
    np.testing.assert_array_equal(dense(shift(k), stacked, batch)[1], shifted(stacked[1], lengths, k))


@pytest.mark.parametrize("k", LAGS[::5])
def test_both_oracles_agree(k):
    rng, lengths = np.random.default_rng(k), [2, 1, k + 2]
    x, batch = rng.integers(-9, 10, (sum(lengths), 4)), numbered(lengths)
    whole = weight(rng.integers(-9, 10, (4, 3)))
    for term in (shift(k), ahead(k), heads(2) @ shift(k) @ sum_heads, whole @ shift(k)):
        np.testing.assert_array_equal(dense(term, x, batch), entrywise(term, x, batch)[0].astype(float))


def test_a_shift_is_additive_and_no_row_is_infinite_for_another():
    term, batch = shift(2), numbered([4, 3])
    assert term.additive and term.selective and term.maps_zero_to_zero and not (term.row_wise or term.uniform)
    x = np.full((7, 1), np.inf)
    assert dense(term, x, batch)[:, 0].tolist() == [0, 0, np.inf, np.inf, 0, 0, np.inf]


@pytest.mark.parametrize("taps", (1, 2, 4, LARGEST_LAG + 1))
def test_a_convolution_is_the_sum_of_rows_before(taps):
    rng, lengths = np.random.default_rng(taps), lengths_at(taps)
    x, w = rng.normal(size=(sum(lengths), 3)), rng.normal(size=(taps, 3))
    wanted = sum((x if k == 0 else shifted(x, lengths, k)) * w[k] for k in range(taps))
    np.testing.assert_allclose(dense(conv(w), x, numbered(lengths)), wanted, rtol=1e-12, atol=1e-12)
    promised = conv(Promised("w", (taps, 3)))
    assert promised.out.cols == 3 and str(conv(om.Data(w, "w"))).count("w_") == taps


def test_gradients_are_those_of_differences():
    rng = np.random.default_rng(0)
    arrays = {"W": rng.normal(size=(VOCABULARY, 4)), "w": rng.normal(size=(3, 4))}
    batch, g = om.Batch([[1, 2, 3, 4, 5], [6], [7, 8]]), rng.normal(size=(8, 4))

    def made(W, w):
        return weight(om.Data(W, "W")) @ conv(om.Data(w, "w")) @ silu

    found = pullback(made(**arrays), tokens=True).at(batch, cotangent=g)
    pulled = {"W": found.arrays["W"], "w": np.concatenate([np.atleast_2d(found.arrays[f"w[{k}]"]) for k in range(3)])}
    for name, array in arrays.items():
        way, step = rng.normal(size=array.shape), 1e-5
        ends = [(dense(made(**arrays | {name: array + t * way}), batch) * g).sum() for t in (step, -step)]
        np.testing.assert_allclose((pulled[name] * way).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("name", ("data", "zero3", "tensor", "sequence", "ring", "ulysses", "rows"))
@pytest.mark.parametrize("ranks", (2, 3))
def test_ranks_shift_as_one_does(name, ranks):
    at = random_arrays()
    inner = weight(at("up", 12, 18)) @ conv(at("taps", 4, 18)) @ gelu @ weight(at("down", 18, 12))
    model = weight(at("table", VOCABULARY, 12)) @ (I + inner)
    result = compared(model, Mesh.of(x=(ranks, name)), sequences=6)
    assert result.agrees, result


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: shift(0), ValueError, "shift: k is 0: it must be a whole number from 1 on"),
        (lambda: shift(-1), ValueError, "shift: k is -1: it must be a whole number from 1 on"),
        (lambda: shift(17), ValueError, "shift: k is 17: it must be a whole number from 1 to 16"),
        (lambda: shift(1.5), TypeError, "shift: k is 1.5: it must be a whole number"),
        (lambda: shift(True), TypeError, "shift: k is True: it must be a whole number"),
        (lambda: dense(shift(3), np.ones((4, 2))), TypeError, r"shift\(3\) depends on the batch: give one"),
        (lambda: pick("last") @ shift(1), ShapeError, "shift: rows of S: only tokens follow one another"),
        (lambda: product(given("members"), I) @ shift(1), ShapeError, "row-wise|rows of S"),
        (lambda: conv(np.ones(4)), ShapeError, r"conv: weights \(4,\): give 1 to 17 rows"),
        (lambda: conv(np.ones((18, 4))), ShapeError, r"conv: weights \(18, 4\): give 1 to 17 rows"),
        (lambda: cached_model(weight(np.ones((4, 4))) @ shift(1)), InputError, r"shift\(1\): no term expresses states"),
    ],
)
def test_what_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_rows_in_another_order_are_not_shifted_in_a_program():
    moved = weight(np.ones((VOCABULARY, 4))) @ pick(relation("moved", "T", "T")) @ shift(1)
    with pytest.raises(InputError, match="pick after this operator"):
        parts(row(moved, moved) @ diag(np.arange(8.0)))
