"""The token that is chosen: against a sorted vocabulary, and against the probabilities that it is drawn with."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from formats.core.errors import InputError
from opmatrix.inference.sampling import Sampling, draw_place, keep_best, keep_share, uniform

SCORES = arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.sampled_from([-np.inf, -3, -1, 0, 0.5, 1, 2, 80]) | st.floats(-30, 30, width=32),
)
DEPTHS = arrays(
    np.float64, st.integers(1, 60), elements=st.sampled_from([0.0, 0.5, 1, 3, 63, 64, 65, 800]) | st.floats(0, 70)
).map(lambda depths: depths - depths.min())


@settings(deadline=None, max_examples=60)
@given(SCORES, st.integers(1, 70))
def test_the_best_are_those_of_a_sorted_vocabulary(scores, count):
    wanted = np.argsort(-scores, kind="stable")[:count]
    assert keep_best(scores, count).tolist() == sorted(wanted.tolist())


@settings(deadline=None, max_examples=60)
@given(DEPTHS, st.floats(1e-3, 1, exclude_max=True))
@example(np.zeros(7), 0.5)
def test_the_share_is_that_of_a_sorted_vocabulary(depths, share):
    """As few as can be of the first in order, but for what the sums round."""
    weights, order = np.exp(-depths), np.argsort(depths, kind="stable")
    kept = keep_share(depths, weights, share)
    assert kept.tolist() == sorted(order[: len(kept)].tolist())
    sums, wanted = weights[order].cumsum(), share * weights.sum()
    assert sums[len(kept) - 1] >= wanted * (1 - 1e-12)
    assert len(kept) == 1 or sums[len(kept) - 2] < wanted * (1 + 1e-12)


def test_a_share_of_a_large_vocabulary(rng):
    """In which many tokens lie in one bin, at the edge of the histogram and in its middle."""
    for scale in (1e-6, 1, 10, 1e3):
        depths = rng.exponential(scale, 50_000)
        depths -= depths.min()
        weights, order = np.exp(-depths), np.argsort(depths, kind="stable")
        for share in (0.01, 0.5, 0.95, 1 - 1e-12):
            kept = keep_share(depths, weights, share)
            count = int(weights[order].cumsum().searchsorted(share * weights.sum() * (1 - 1e-13))) + 1
            assert abs(len(kept) - count) <= 1 or share > 0.999
            assert set(kept.tolist()) == set(order[: len(kept)].tolist())


@pytest.mark.deep(every=5)
@pytest.mark.parametrize(
    "how, kept",
    [
        ({}, [0, 1, 2, 3, 4]),
        (dict(top_k=3), [0, 2, 4]),
        (dict(top_p=0.6), [2, 4]),
        (dict(top_k=3, top_p=0.95), [0, 2, 4]),
        (dict(top_k=1), [4]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_likely(how, kept):
    """Of five tokens, at 2,000 positions of a seed, and from 2,000 seeds."""
    # which takes a second, and is asked for here alone
    from scipy.stats import chisquare

    scores = np.log(np.array([0.15, 0.05, 0.3, 0.05, 0.45], np.float32)) * np.float32(1.5)
    shares = np.zeros(5)
    shares[kept] = np.exp(scores / 1.5, dtype=np.float64)[kept]
    shares /= shares.sum()
    for seeds, positions in (([5], range(2000)), (range(2000), [17])):
        found = [Sampling(1.5, **how, seed=seed).choose(scores, at) for seed in seeds for at in positions]
        counts = np.bincount(found, minlength=5)
        assert not counts[shares == 0].any()
        if len(kept) > 1:
            assert chisquare(counts[kept], 2000 * shares[kept]).pvalue > 1e-3


def test_the_likeliest_token_of_the_lower_id():
    assert Sampling().choose(np.array([1, 3, 2, 3], np.float32), 0) == 1
    assert Sampling(1e-300).choose(np.array([1, 2, 3, 2], np.float32), 0) == 2
    assert Sampling(2.0, top_k=1).choose(np.array([1, 3, 2, 3], np.float32), 0) == 1


def test_a_number_belongs_to_a_seed_and_a_position():
    numbers = [[uniform(seed, position) for position in range(50)] for seed in range(20)]
    assert len({*np.ravel(numbers).tolist()}) == 1000 and 0 <= np.min(numbers) and np.max(numbers) < 1
    scores = np.zeros(1000, np.float32)
    assert Sampling(1.0, seed=3).choose(scores, 7, 2) == Sampling(1.0, seed=5).choose(scores, 7)
    assert Sampling(1.0, seed=3).choose(scores, 7) != Sampling(1.0, seed=5).choose(scores, 7)


def test_what_has_no_weight_is_never_drawn():
    weights = np.array([0, 0.5, 0, 0, 0.5, 0])
    assert [draw_place(weights, number) for number in (0, 0.49, 0.5, 1 - 2.0**-53)] == [1, 1, 4, 4]
    assert draw_place(np.array([1, 1e-30]), 1 - 2.0**-53) == 0


@pytest.mark.parametrize(
    "given, said",
    [
        (dict(temperature=-0.5), "temperature -0.5: give 0 or more"),
        (dict(temperature=np.nan), "temperature nan"),
        (dict(temperature=np.inf), "temperature inf"),
        (dict(top_k=0), "top_k 0: give 1 or more"),
        (dict(top_k=2.5), "top_k 2.5"),
        (dict(top_p=0.0), "top_p 0.0: give a share above 0"),
        (dict(top_p=1.5), "top_p 1.5"),
        (dict(seed=-1), "seed -1"),
        (dict(seed=1 << 64), "below 2"),
    ],
)
def test_what_cannot_be_chosen_by_is_named(given, said):
    with pytest.raises(InputError, match=said):
        Sampling(**given)


def test_scores_that_are_no_numbers():
    with pytest.raises(InputError, match="token 1 at position 9 has the score nan: the model overflows in float32"):
        Sampling(1.0).choose(np.array([1, np.nan, 2], np.float32), 9)
