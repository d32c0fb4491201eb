"""Attention beside sinks, one key more of each head without a value, against float64: lengths, windows, masks, caches;
the same bits alone, beside others and on two threads; margins that are none are refused."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import numbers, operands, paged, room, within
from doors import softly

from formats import Mask, kernels
from formats.host.threads import limit
from formats.kernels.attentions.chunks import CHUNK, PAGE

FAR, SCALE = 2**40, 0.3
MARGINS = {
    "ordinary": np.array([1, -2, 0.5, 3], np.float32),
    "far apart": np.array([60, -60, 90, -90], np.float32),
    "beyond float32's powers": np.array([1e30, -1e30, 3e38, -3e38], np.float32),
}


def wanted(q, k, v, starts, margin, reach=(FAR, FAR)):
    """(attention, a bound on its error), sequence by sequence: a column of scores more, and a row of zeros."""
    parts = []
    q, k, v = (each.astype(np.float64).repeat(len(margin) // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
    for a, b in pairwise(starts):
        ahead = np.arange(b - a) - np.arange(b - a)[:, None]
        seen = np.pad((ahead >= -reach[0]) & (ahead <= reach[1]), ((0, 0), (0, 1)), constant_values=True)
        sinks = np.broadcast_to(-margin.astype(np.float64)[:, None, None], (len(margin), b - a, 1))
        scores = np.concatenate([SCALE * q[:, a:b] @ k[:, a:b].swapaxes(1, 2), sinks], -1)
        values = np.pad(v[:, a:b], ((0, 0), (0, 1), (0, 0)))
        parts.append(softly(scores, values, seen))
    exact, bound = (np.concatenate(each) for each in zip(*parts, strict=True))
    return exact, bound + 2.0**-100 * abs(v).sum((0, 1)).max()


@pytest.mark.parametrize("lengths", [[1], [3, 5], [47, 48, 49, 130], [600]], ids=str)
@pytest.mark.parametrize("margin", MARGINS.values(), ids=MARGINS)
def test_attention(rng, lengths, margin):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = operands(rng, T := int(starts[-1]))
    for reach, tile in (((FAR, FAR), 256), ((FAR, 0), 32), ((9, 9), 256)):
        found = kernels.attention(q, k, v, starts, room(T, 4, 24), SCALE, reach, tile, margin=margin)
        within(found, *wanted(q, k, v, starts, margin, reach))


def test_attention_under_a_mask(rng):
    q, k, v = operands(rng, 200)
    starts, margin = np.array([0, 120, 200]), MARGINS["ordinary"]
    mask = Mask.window(128, 20, 16)
    found = kernels.attention(q, k, v, starts, room(200, 4, 24), SCALE, mask=mask, margin=margin)
    within(found, *wanted(q, k, v, starts, margin, (20, 20)))


def test_the_same_bits_alone_in_a_batch_and_on_two_threads(rng):
    starts = np.array([0, 70, 370, 375])
    q, k, v = operands(rng, 375)

    def attend(a, b, at):
        some = q[a:b], k[a:b], v[a:b]
        margin = MARGINS["ordinary"]
        return kernels.attention(*some, np.array(at), room(b - a, 4, 24), SCALE, margin=margin).tobytes()

    with limit(1):
        one = attend(0, 375, starts)
    with limit(2):
        assert attend(0, 375, starts) == one
    assert b"".join(attend(a, b, [0, b - a]) for a, b in pairwise(starts)) == one


@pytest.mark.parametrize("heads, shared", [(4, 2), (4, 1), (20, 1), (1, 1)])
@pytest.mark.parametrize("sizes", MARGINS)
def test_rows_over_caches(heads, shared, sizes):
    """Prompts, rows one by one and the last of a sequence have the same bits, which are right; pages do not follow one
    another."""
    rng, T = np.random.default_rng(5), CHUNK + 70
    margin = np.resize(MARGINS[sizes], heads)
    q, k, v = operands(rng, T, heads, shared)
    caches, slots, before = paged(rng, k, v)
    found = {}
    for threads in (1, 2):
        with limit(threads):
            found[threads] = kernels.attention_cached(
                q, *caches, slots, before, room(T, heads, 24), SCALE, margin=margin
            )
            for at in (0, PAGE, CHUNK - 1, CHUNK, T - 1):
                some = slice(at, at + 1)
                one = kernels.attention_cached(
                    q[some], *caches, slots[some], before, room(1, heads, 24), SCALE, margin=margin
                )
                assert np.array_equal(one[0], found[threads][at])
    within(found[1], *wanted(q, k, v, [0, T], margin, (FAR, 0)))
    assert np.array_equal(found[1], found[2])
    behind = dict(behind=20, positions=np.arange(T), margin=margin)
    near = kernels.attention_cached(q, *caches, slots, before, room(T, heads, 24), SCALE, **behind)
    within(near, *wanted(q, k, v, [0, T], margin, (20, 0)))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("margin", MARGINS.values(), ids=MARGINS)
def test_one_query_of_each_sequence(rng, last, margin):
    starts = np.array([0, 5, 6, 150])
    _, k, v = operands(rng, 150)
    q = numbers(rng, 150, 4, 20)
    at = starts[1:] - 1 if last else starts[:-1]
    exact, bound = (each[at] for each in wanted(q, k, v, starts, margin))
    some = np.ascontiguousarray(q[at])
    found = kernels.attend_once(some, k, v, starts, room(3, 4, 24), SCALE, last, margin=margin)
    within(found, exact, bound)


def test_a_sink_far_above_all_scores_leaves_nothing_and_one_far_below_changes_nothing(rng):
    q, k, v = operands(rng, 70)
    starts, every = np.array([0, 70]), np.ones(4, np.float32)
    attend = lambda **more: kernels.attention(q, k, v, starts, room(70, 4, 24), SCALE, **more)
    assert not attend(margin=-1e30 * every).any()
    np.testing.assert_allclose(attend(margin=1e30 * every), attend(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "margin", [np.zeros(3, np.float32), np.zeros(4), np.zeros((4, 1), np.float32), np.zeros(8, np.float32)[::2]]
)
def test_margins_that_are_none_are_refused(rng, margin):
    q, k, v = operands(rng, 8)
    starts, out = np.array([0, 8]), room(8, 4, 24)
    slots, before = np.arange(8), np.array([-1])
    k16, v16 = (np.pad(each, ((0, PAGE - 8), (0, 0), (0, 0))) for each in (k, v))
    for call in (
        lambda: kernels.attention(q, k, v, starts, out, SCALE, margin=margin),
        lambda: kernels.attend_once(q[:1], k, v, starts, room(1, 4, 24), SCALE, margin=margin),
        lambda: kernels.attention_cached(q, k16, v16, slots, before, out, SCALE, margin=margin),
    ):
        with pytest.raises(ValueError, match=r"^margin: .* one for each head"):
            call()
