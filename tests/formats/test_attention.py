"""Attention against float64, within the bound of its roundings: whole, in three steps, and in bfloat16."""

from itertools import pairwise

import numpy as np
import pytest
from arrays import numbers, room, within
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import kernels
from formats.core.epilogue import gamma
from formats.kernels.attentions import attending
from formats.kernels.attentions import attending_halves as halves
from formats.kernels.engine.compiled import FUNCTIONS


def attended(q, k, v, scale):
    """(softmax(scale q kᵀ) v, a bound on its error) in float64, of some queries against all keys of their sequence."""
    q, k, v = (part.astype(np.float64).swapaxes(0, 1) for part in (q, k, v))
    s = scale * q @ k.swapaxes(1, 2)
    doubt = gamma(q.shape[2] + 2) * abs(scale) * (abs(q) @ abs(k).swapaxes(1, 2))
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    # e^s is off by a factor e^(2 doubt) at most, exp by 2 units, s - top by a rounding of |s - top| <= 2 max|s|
    wrong = 2 * doubt.max(-1, keepdims=True) + gamma(4) * (1 + abs(s).max(-1, keepdims=True)) + gamma(k.shape[1] + 4)
    bound = (2 * np.expm1(2 * wrong) + gamma(k.shape[1] + 4)) * (p @ abs(v))
    return (p @ v).swapaxes(0, 1), bound.swapaxes(0, 1)


def oracle(q, k, v, starts, scale):
    """(attention, a bound on its error), sequence by sequence."""
    parts = [attended(q[a:b], k[a:b], v[a:b], scale) for a, b in pairwise(starts) if a < b]
    nothing = np.zeros((0, q.shape[1], v.shape[2]))
    return tuple(np.concatenate([nothing, *part]) for part in zip(*parts, strict=True)) or (nothing, nothing)


def in_parts(q, k, v, starts, scale, out):
    h, lengths = q.shape[1], np.diff(starts)
    flat = room(h * int((lengths**2).sum()))
    kernels.scores(kernels.scale(np.ascontiguousarray(q), scale, room(*q.shape)), k, starts, flat)
    kernels.softmax(flat, starts, h, flat)
    return kernels.values(flat, v, starts, out)


@pytest.mark.parametrize("lengths", [[1], [5, 0, 17], [300, 1, 64, 257], [256], [0], [700]])
@pytest.mark.parametrize("h, d, e", [(1, 1, 1), (3, 32, 32), (2, 20, 7)])
def test_attention(rng, lengths, h, d, e):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    T = int(starts[-1])
    wide = numbers(rng, T, h * (2 * d + e) + 3)
    q, k, v = (
        np.lib.stride_tricks.as_strided(wide[:, at:], (T, h, w), (wide.strides[0], 4 * w, 4))
        for at, w in ((0, d), (h * d, d), (2 * h * d, e))
    )
    want, bound = oracle(q, k, v, starts, d**-0.5)
    within(kernels.attention(q, k, v, starts, room(T, h, e), d**-0.5), want, bound)
    within(in_parts(q, k, v, starts, d**-0.5, room(T, h, e)), want, bound)


def test_attention_over_large_scores_and_long_rows(rng):
    """Maxima that rise from tile to tile: the carrier is rescaled, nothing overflows."""
    T, starts = 1500, np.array([0, 1500])
    q, k, v = numbers(rng, T, 2, 16), numbers(rng, T, 2, 16), numbers(rng, T, 2, 16)
    k *= np.linspace(0, 20, T, dtype=np.float32)[:, None, None]
    want, bound = oracle(q, k, v, starts, 1.0)
    within(kernels.attention(q, k, v, starts, room(T, 2, 16)), want, bound)


def test_attention_over_a_long_sequence(rng):
    """4096 tokens, checked for a query here and there."""
    q, k, v = (numbers(rng, 4096, 2, 8) for _ in range(3))
    out, some = kernels.attention(q, k, v, np.array([0, 4096]), room(4096, 2, 8), 0.35), [0, 127, 128, 4095]
    within(out[some], *attended(q[some], k, v, 0.35))


@pytest.mark.parametrize("columns", [2, 16, 40, 64])
def test_what_recurs_is_added_up_as_nearly_as_what_does_not(rng, columns):
    """Few tokens, again and again: roundings of one long sum would all point one way, and grow with the keys."""
    T, many = 3000, 2
    q, k, v = (numbers(rng, 5, many, columns)[rng.permutation(np.arange(T) % 5)] for _ in range(3))
    out = kernels.attention(q, k, v, np.array([0, T]), room(T, many, columns), 0.3)
    want = attended(q, k, v, 0.3)[0]
    assert np.linalg.norm(out - want) <= 3e-6 * np.linalg.norm(want)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 110), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([1, 3, 50, 256]),
    st.integers(0, 2**32 - 1),
)
def test_attention_of_any_batch(lengths, h, d, e, tile, seed):
    """Whatever the tiles of keys; nothing beside out is written."""
    rng, starts = np.random.default_rng(seed), np.concatenate([[0], np.cumsum(lengths)])
    T = int(starts[-1])
    q, k, v, around = numbers(rng, T, h, d), numbers(rng, T, h, d), numbers(rng, T, h, e), room(T + 2, h + 1, e + 3)
    want, bound = oracle(q, k, v, starts, 0.3)
    kernels.attention(q, k, v, starts, around[1:-1, :-1, 1:-2], 0.3, tile=tile)
    within(around[1:-1, :-1, 1:-2].copy(), want, bound)
    around[1:-1, :-1, 1:-2] = np.nan
    assert np.isnan(around).all()


@pytest.mark.parametrize("items", [1, 2, 3, 17, 60])
@pytest.mark.parametrize("lengths", [[0, 3, 0, 90, 1, 0], [40] * 30, [700], [0, 0, 5]])
def test_items_of_attention_hold_every_unit(rng, lengths, items, monkeypatch):
    """However many there are, the numbers are the same."""
    starts = np.concatenate([[0], np.cumsum(lengths)])
    q, k, v = (numbers(rng, int(starts[-1]), 3, 5) for _ in range(3))
    monkeypatch.setattr(attending, "pieces", lambda *_: 1)
    whole = kernels.attention(q, k, v, starts, room(*q.shape))
    monkeypatch.setattr(attending, "pieces", lambda *_: items)
    assert (kernels.attention(q, k, v, starts, room(*q.shape)) == whole).all()


def test_attention_of_what_is_no_number(rng):
    """NaN in a query stays with its row; scores that are far apart leave no NaN."""
    q, k, v, starts = numbers(rng, 50, 1, 4), numbers(rng, 50, 1, 4), numbers(rng, 50, 1, 4), np.array([0, 50])
    q[7] = np.nan
    assert np.isnan(kernels.attention(q, k, v, starts, room(50, 1, 4))).all(2).ravel().nonzero()[0].tolist() == [7]
    q[7], k[5] = 100, 100
    within(kernels.attention(q, k, v, starts, room(50, 1, 4)), *oracle(q, k, v, starts, 1.0))


def seen_by(n, reach):
    """Which keys each of n queries sees."""
    apart = np.arange(n) - np.arange(n)[:, None]
    return (-reach[0] <= apart) & (apart <= reach[1])


def masked(q, k, v, starts, scale, reach):
    """(attention, a bound on its error) over what is seen, sequence by sequence; heads are shared where there are
    fewer."""
    heads = max(part.shape[1] for part in (q, k, v))
    q, k, v = (part.astype(np.float64).repeat(heads // part.shape[1], 1).swapaxes(0, 1) for part in (q, k, v))
    found, off = [np.zeros((heads, 0, v.shape[2]))] * 2
    for a, b in pairwise(starts):
        s, sees = scale * q[:, a:b] @ k[:, a:b].swapaxes(1, 2), seen_by(b - a, reach)
        size = np.where(sees, abs(scale) * (abs(q[:, a:b]) @ abs(k[:, a:b]).swapaxes(1, 2)), 0)
        p = (
            np.where(sees, np.exp(s - np.where(sees, s, -1e9).max(-1, keepdims=True, initial=-1e9)), 0)
            if sees.any()
            else 0 * s
        )
        p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
        wrong = gamma(2 * q.shape[2] + b - a + 16) * (1 + 2 * size.max(-1, keepdims=True, initial=0))
        found = np.concatenate([found, p @ v[:, a:b]], 1)
        off = np.concatenate([off, 4 * np.expm1(2 * wrong) * (p @ abs(v[:, a:b]))], 1)
    return found.swapaxes(0, 1), off.swapaxes(0, 1)


REACHES = [(2**40, 2**40), (2**40, 0), (0, 0), (3, 3), (7, 0), (200, 150), (-1, -1), (0, 2**40)]


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("heads", [(1, 1, 1), (4, 2, 2), (6, 1, 1), (6, 3, 3), (1, 4, 4), (4, 4, 1)])
def test_attention_of_masks_and_shared_heads(rng, heads, reach):
    """Whole and in three steps; rows without keys give zeros."""
    lengths, most = [1, 300, 5, 0, 140], max(heads)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    T = int(starts[-1])
    q, k, v = (numbers(rng, T, h, width) for h, width in zip(heads, (6, 6, 5), strict=True))
    want, bound = masked(q, k, v, starts, 0.4, reach)
    within(kernels.attention(q, k, v, starts, room(T, most, 5), 0.4, reach), want, bound)
    if heads[0] >= heads[1]:
        flat = kernels.scores(q, k, starts, room(max(heads[:2]) * int(np.dot(lengths, lengths))), 0.4)
        kernels.softmax(flat, starts, max(heads[:2]), flat, reach)
        within(kernels.values(flat, v, starts, room(T, most, 5)), want, bound)
    if reach == (-1, -1):
        assert not want.any()


HALF = 2.0**-9  # what rounding to bfloat16 costs


def in_halves(q, k, v, starts, scale, reach):
    """(attention, a bound on its error in bfloat16): two roundings of a score's factors, of exponentials and of v."""
    found, off = [], []
    for a, b in pairwise(starts):
        s, size = (
            abs(scale) * np.einsum("qhd,khd->hqk", *parts) for parts in ((q[a:b], k[a:b]), (abs(q[a:b]), abs(k[a:b])))
        )
        s, sees = s * np.sign(scale), seen_by(b - a, reach)
        top = np.where(sees, s, -np.inf).max(-1, keepdims=True, initial=-1e9)
        p = np.where(sees, np.exp(np.minimum(s - top, 0)), 0)
        p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
        wrong = (2.1 * HALF + gamma(q.shape[2] + 4)) * np.where(sees, size, 0).max(
            -1, keepdims=True, initial=0
        ) + 1.5 * HALF
        found.append(np.einsum("hqk,khd->qhd", p, v[a:b]))
        off.append(np.einsum("hqk,khd->qhd", (np.expm1(2 * wrong) + 2 * HALF) * p, abs(v[a:b])))
    return np.concatenate(found), np.concatenate(off)


@pytest.mark.parametrize(
    "kernel", sorted({kernel.name for kernel in (halves.attend_halves, halves.attend_halves_matrix)})
)
@pytest.mark.parametrize("reach", [(2**40, 2**40), (2**40, 0), (40, 3), (-1, -1)])
@pytest.mark.parametrize(
    "lengths, h, d, e, tile", [([1, 0, 13, 31], 3, 32, 32, 256), ([300, 77], 2, 40, 50, 96), ([65], 1, 1, 1, 1)]
)
def test_attention_in_halves(rng, kernel, reach, lengths, h, d, e, tile, monkeypatch):
    """By vectors and by matrix registers; nothing beside out is written."""
    monkeypatch.setattr(halves, "attend_halves_matrix", FUNCTIONS[kernel])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    T = int(starts[-1])
    q, k, v, around = numbers(rng, T, h, d), numbers(rng, T, h, d), numbers(rng, T, h, e), room(T + 2, h + 1, e + 3)
    out = around[1:-1, :-1, 1:-2]
    within(
        kernels.attention_halves(q, k, v, starts, out, 0.3, reach, tile).copy(),
        *in_halves(*(part.astype(np.float64) for part in (q, k, v)), starts, 0.3, reach),
    )
    out[...] = np.nan
    assert np.isnan(around).all()


def test_attention_in_halves_rounds_to_nearest(rng):
    """Equal weights: the mean of v in bfloat16; shared heads find theirs; NaN stays with its key."""
    v, starts = numbers(rng, 64, 2, 5), np.array([0, 64])
    rounded = ((v.view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32)
    nothing = np.zeros((64, 4, 8), np.float32)
    got = kernels.attention_halves(nothing, nothing[:, :1], v, starts, room(64, 4, 5))
    assert abs(got - rounded.mean(0, dtype=np.float64).repeat(2, 0)).max() < 1e-6
    v[3, 1, 2] = np.nan
    got = kernels.attention_halves(nothing, nothing, v, starts, room(64, 4, 5))
    assert (np.isnan(got).nonzero()[1:] == np.array([[2, 3] * 64, [2] * 128])).all() and np.isnan(got).sum() == 128


def test_heads_that_do_not_divide_are_named(rng):
    q, k, starts = numbers(rng, 4, 3, 2), numbers(rng, 4, 2, 2), np.array([0, 4])
    with pytest.raises(ValueError, match="k: its 2 heads do not divide 3"):
        kernels.attention(q, k, k, starts, room(4, 3, 2))
