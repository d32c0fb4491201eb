"""Attention with capped scores, cap tanh(scale q kᵀ), against float64: lengths, borders, windows, masks, caches; the
same bits alone, beside others and on two threads; what is no cap is refused."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import numbers, operands, paged, room, within
from doors import softly

from formats import Mask, kernels
from formats.host.threads import limit
from formats.kernels.attentions.chunks import CHUNK, PAGE

FAR = 2**40
SCALE, CAP = 0.3, 2.5


def wanted(q, k, v, starts, reach=(FAR, FAR), cap=CAP, scale=SCALE):
    """(attention, a bound on its error), sequence by sequence."""
    most, parts = max(each.shape[1] for each in (q, k, v)), []
    q, k, v = (each.astype(np.float64).repeat(most // each.shape[1], 1).swapaxes(0, 1) for each in (q, k, v))
    for a, b in pairwise(starts):
        ahead = np.arange(b - a) - np.arange(b - a)[:, None]
        seen = (ahead >= -reach[0]) & (ahead <= reach[1])
        scores = cap * np.tanh(scale * q[:, a:b] @ k[:, a:b].swapaxes(1, 2))
        parts.append(softly(scores, v[:, a:b], seen))
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


@pytest.mark.parametrize("lengths", [[1], [3, 5], [47, 48, 49, 130], [600]], ids=str)
@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_attention(rng, lengths, cap):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = operands(rng, T := int(starts[-1]))
    for reach, tile in (((FAR, FAR), 256), ((FAR, 0), 32), ((9, 9), 256)):
        found = kernels.attention(q, k, v, starts, room(T, 4, 24), SCALE, reach, tile, cap=cap)
        within(found, *wanted(q, k, v, starts, reach, cap))


@pytest.mark.parametrize("scale", [1e-30, 1e3, -0.3])
def test_scores_of_any_size_stay_within_the_cap(rng, scale):
    """Products far beyond float32's exponentials are ± cap."""
    q, k, v = operands(rng, 70)
    found = kernels.attention(q, k, v, starts := np.array([0, 70]), room(70, 4, 24), scale, cap=CAP)
    within(found, *wanted(q, k, v, starts, scale=scale))


def test_attention_under_a_mask(rng):
    q, k, v = operands(rng, 200)
    starts = np.array([0, 120, 200])
    found = kernels.attention(q, k, v, starts, room(200, 4, 24), SCALE, mask=Mask.window(128, 20, 16), cap=CAP)
    within(found, *wanted(q, k, v, starts, (20, 20)))


def test_the_same_bits_alone_in_a_batch_and_on_two_threads(rng):
    starts = np.array([0, 70, 370, 375])
    q, k, v = operands(rng, 375)

    def attend(a, b, at):
        return kernels.attention(q[a:b], k[a:b], v[a:b], np.array(at), room(b - a, 4, 24), SCALE, cap=CAP).tobytes()

    with limit(1):
        one = attend(0, 375, starts)
    with limit(2):
        assert attend(0, 375, starts) == one
    assert b"".join(attend(a, b, [0, b - a]) for a, b in pairwise(starts)) == one


@pytest.mark.parametrize("heads, shared", [(4, 2), (3, 1), (1, 1)])
def test_rows_over_caches(heads, shared):
    """Prompts, rows one by one and the last of a sequence have the same bits, which are right; pages do not follow one
    another."""
    rng, T = np.random.default_rng(5), CHUNK + 70
    q, k, v = operands(rng, T, heads, shared)
    caches, slots, before = paged(rng, k, v)
    found = {}
    for threads in (1, 2):
        with limit(threads):
            found[threads] = kernels.attention_cached(q, *caches, slots, before, room(T, heads, 24), SCALE, cap=CAP)
            for at in (0, PAGE, CHUNK - 1, CHUNK, T - 1):
                some = slice(at, at + 1)
                one = kernels.attention_cached(
                    q[some], *caches, slots[some], before, room(1, heads, 24), SCALE, cap=CAP
                )
                assert np.array_equal(one[0], found[threads][at])
    within(found[1], *wanted(q, k, v, [0, T], (FAR, 0)))
    assert np.array_equal(found[1], found[2])
    behind = dict(behind=20, positions=np.arange(T), cap=CAP)
    near = kernels.attention_cached(q, *caches, slots, before, room(T, heads, 24), SCALE, **behind)
    within(near, *wanted(q, k, v, [0, T], (20, 0)))


@pytest.mark.parametrize("last", [True, False])
def test_one_query_of_each_sequence(rng, last):
    starts = np.array([0, 5, 6, 150])
    _, k, v = operands(rng, 150)
    q = numbers(rng, 150, 4, 20)
    at = starts[1:] - 1 if last else starts[:-1]
    exact, bound = (each[at] for each in wanted(q, k, v, starts))
    found = kernels.attend_once(np.ascontiguousarray(q[at]), k, v, starts, room(3, 4, 24), SCALE, last, cap=CAP)
    within(found, exact, bound)


@pytest.mark.parametrize("cap", [-1.0, np.inf, np.nan])
def test_what_is_no_cap_is_refused(rng, cap):
    q, k, v = operands(rng, 8)
    starts, out = np.array([0, 8]), room(8, 4, 24)
    for call in (
        lambda **more: kernels.attention(q, k, v, starts, out, SCALE, **more),
        lambda **more: kernels.attend_once(q[:1], k, v, starts, room(1, 4, 24), SCALE, **more),
    ):
        with pytest.raises(ValueError, match=r"^cap: "):
            call(cap=cap)
        with pytest.raises(ValueError, match=r"^cap: .* without a bias"):
            call(cap=CAP, bias=np.zeros((4, 9), np.float32))
