"""Every kernel against float64, within the bound of its roundings: gamma(k) |A| |B| (Higham 2002, section 3.5)."""
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from scipy.special import ndtr

from formats import kernels
from formats.epilogue import ACTIVATIONS, NOTHING, ROUGH_ERROR, Epilogue, gamma
from formats.kernels import attending, maths, tail
from formats.kernels import attending_halves as halves
from formats.kernels.activations import ACTIVATIONS as KERNEL_ACTIVATIONS
from formats.kernels.activations import ROUGH, each_vector
from formats.kernels.compiled import FUNCTIONS
from formats.kernels.launch import address

FORMS = ["plain", "bias", "gelu", "residual", "norm", "all"]


@pytest.fixture
def rng(): return np.random.default_rng(20240517)


def numbers(rng, *shape): return rng.standard_normal(shape, np.float32)


def room(*shape): return np.full(shape, np.nan, np.float32)


def epilogue(rng, form, T, p):
    bias, residual, gain, shift = numbers(rng, p), numbers(rng, T, p), numbers(rng, p), numbers(rng, p)
    return {"plain": NOTHING, "bias": Epilogue(bias=bias), "gelu": Epilogue(activation="gelu"),
            "residual": Epilogue(bias=bias, residual=residual), "norm": Epilogue(eps=1e-5, gain=gain, shift=shift),
            "all": Epilogue(bias, "gelu", residual, 1e-12, gain, shift)}[form]


def within(got, want, bound):
    """Entrywise, and nothing is left unwritten."""
    assert got.shape == want.shape and not np.isnan(got).any()
    worst = (abs(got - want) - bound).max(initial=-1)
    assert worst <= 0, f"error exceeds its bound by {worst}"


def product_within(got, x, w, after):
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    y, error = x @ w, gamma(len(w) + 2) * (abs(x) @ abs(w))
    within(got, after.reference(y), after.bound(y, error))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("T, n, p", [(1, 384, 1152), (3, 5, 7), (17, 384, 333), (129, 100, 384), (300, 33, 1),
                                     (1000, 7, 65)])
def test_product_dense(rng, T, n, p, form):
    x, w, after = numbers(rng, T, n), numbers(rng, n, p), epilogue(rng, form, T, p)
    product_within(kernels.product_dense(x, w, room(T, p), after), x, w, after)


@pytest.mark.parametrize("T, n, p", [(1, 384, 1152), (17, 1300, 333), (300, 520, 130)])
@pytest.mark.parametrize("form", ["plain", "all"])
def test_product_half(rng, T, n, p, form):
    x, w, after = numbers(rng, T, n), numbers(rng, n, p).astype(np.float16), epilogue(rng, form, T, p)
    product_within(kernels.product_half(x, w, room(T, p), after), x, w, after)


def test_half_widens_every_number(rng):
    """All 63488 finite float16, the subnormal ones too, pass through exactly."""
    w = np.arange(65536, dtype=np.uint16).view(np.float16)
    w = w[np.isfinite(w)].reshape(1, -1)
    assert (kernels.product_half(np.ones((1, 1), np.float32), w, room(1, w.size)) == w).all()


@pytest.mark.parametrize("T", [1, 40, 300])
@pytest.mark.parametrize("form", ["plain", "all"])
def test_product_lowrank(rng, T, form):
    x, u, v, after = numbers(rng, T, 200), numbers(rng, 200, 9), numbers(rng, 9, 310), epilogue(rng, form, T, 310)
    a, b, c = (abs(part).astype(np.float64) for part in (x, u, v))
    y = x.astype(np.float64) @ u @ v
    within(kernels.product_lowrank(x, u, v, room(T, 310), after), after.reference(y),
           after.bound(y, gamma(200 + 9 + 4) * (a @ b @ c)))

def csr(w):
    """ptr, idx, val by column."""
    kept = w.T != 0
    return np.r_[0, np.cumsum(kept.sum(1))].astype(np.uint32), kept.nonzero()[1], w.T[kept]


def blocks(w, r, c):
    """ptr, idx, val by column of tiles, padded at the edges."""
    (n, p), N, P = w.shape, -(-w.shape[0] // r), -(-w.shape[1] // c)
    tiles = np.pad(w, ((0, N * r - n), (0, P * c - p))).reshape(N, r, P, c).transpose(2, 0, 1, 3)
    kept = tiles.any((2, 3))
    return np.r_[0, np.cumsum(kept.sum(1))].astype(np.uint32), kept.nonzero()[1].astype(np.uint32), tiles[kept]


def groups(rng, n, p, kept, group):
    """(idx, val, W): so many numbers of every group of inputs at random places."""
    count = -(-n // group)
    idx = np.sort(rng.permuted(np.tile(np.arange(group), (p, count, 1)), axis=2)[:, :, :kept], axis=2)
    w = np.zeros((p, count, group), np.float32)
    np.put_along_axis(w, idx, numbers(rng, p, count, kept), 2)
    w.reshape(p, -1)[:, n:] = 0
    return idx.reshape(p, -1).astype(np.uint8), np.take_along_axis(w, idx, 2).reshape(p, -1), w.reshape(p, -1)[:, :n].T


SHAPES = [(1, 384, 333), (5, 50, 64), (16, 33, 7), (129, 100, 130), (300, 37, 65)]


@pytest.mark.parametrize("T, n, p", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
def test_product_csr(rng, T, n, p, density):
    x, w, after = numbers(rng, T, n), numbers(rng, n, p) * (rng.random((n, p)) < density), epilogue(rng, "all", T, p)
    ptr, idx, val = csr(w)
    for kind in (np.uint16, np.uint32):
        product_within(kernels.product_csr(x, ptr, idx.astype(kind), val, room(T, p)), x, w, NOTHING)
        product_within(kernels.product_csr(x, ptr, idx.astype(kind), val, room(T, p), after), x, w, after)


@pytest.mark.parametrize("T, n, p", SHAPES)
@pytest.mark.parametrize("r, c", [(16, 16), (4, 4), (1, 16), (32, 5), (8, 1), (3, 100)])
def test_product_block(rng, T, n, p, r, c):
    x, w, after = numbers(rng, T, n), numbers(rng, n, p), epilogue(rng, "all", T, p)
    w *= np.kron(rng.random((-(-n // r), -(-p // c))) < 0.4, np.ones((r, c), bool))[:n, :p]
    product_within(kernels.product_block(x, *blocks(w, r, c), room(T, p)), x, w, NOTHING)
    product_within(kernels.product_block(x, *blocks(w, r, c), room(T, p), after), x, w, after)


@pytest.mark.parametrize("T, n, p", SHAPES)
@pytest.mark.parametrize("kept, group", [(2, 4), (1, 4), (3, 8), (4, 4), (1, 2)])
def test_product_nm(rng, T, n, p, kept, group):
    x, after = numbers(rng, T, n), epilogue(rng, "all", T, p)
    idx, val, w = groups(rng, n, p, kept, group)
    product_within(kernels.product_nm(x, idx, val, room(T, p), group), x, w, NOTHING)
    product_within(kernels.product_nm(x, idx, val, room(T, p), group, after), x, w, after)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.integers(1, 70), st.integers(1, 70), st.integers(1, 20), st.integers(1, 20),
       st.integers(0, 2**32 - 1))
def test_sparse_products_agree(T, n, p, r, c, seed):
    """The same matrix in csr and in tiles of any size."""
    rng = np.random.default_rng(seed)
    x, w = numbers(rng, T, n), numbers(rng, n, p) * (rng.random((n, p)) < 0.3)
    ptr, idx, val = csr(w)
    product_within(kernels.product_csr(x, ptr, idx.astype(np.uint16), val, room(T, p)), x, w, NOTHING)
    product_within(kernels.product_block(x, *blocks(w, r, c), room(T, p)), x, w, NOTHING)


def test_views_with_steps(rng):
    """Columns of a wider buffer are read and written in place."""
    wide, w, out = numbers(rng, 50, 100), numbers(rng, 30, 40), room(50, 64)
    kernels.product_dense(wide[:, 60:90], w, out[:, 7:47])
    product_within(out[:, 7:47], wide[:, 60:90], w, NOTHING)
    assert np.isnan(out[:, :7]).all() and np.isnan(out[:, 47:]).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 80), st.sampled_from(FORMS), st.integers(0, 2**32 - 1))
def test_pointwise(T, p, form, seed):
    rng = np.random.default_rng(seed)
    x, after = numbers(rng, T, p), epilogue(rng, form, T, p)
    within(kernels.pointwise(x, room(T, p), after), after.reference(x), after.bound(x, np.zeros(x.shape)))


def test_pointwise_in_place(rng):
    x, after = numbers(rng, 70, 90), epilogue(rng, "all", 70, 90)
    assert (kernels.pointwise(x.copy(), room(70, 90), after) == kernels.pointwise(y := x.copy(), y, after)).all()


def floats_of(low, high, count, rng):
    """So many float32 of each sign and exponent from low on."""
    bits = (np.arange(low, high)[:, None] + 127 << 23 | rng.integers(0, 1 << 23, (high - low, count))).astype(np.uint32)
    return np.concatenate([bits.view(np.float32).ravel(), -bits.view(np.float32).ravel()])


def whole_range(rng):
    """float32 of all exponents, more where functions bend, and the neighbours of where they are put together."""
    borders = np.array([*tail.EDGES, tail.EDGE, 0.625, 1, 10, 12, 50, 86.6, 87.34, 87.68, 88, 91.8, 104, 110], np.float32)
    near = (borders.view(np.uint32)[:, None] + np.arange(-50, 50).astype(np.uint32)).view(np.float32).ravel()
    return np.concatenate([floats_of(-126, 128, 300, rng), floats_of(-8, 7, 40000, rng), near, -near, [0.0, -0.0],
                           rng.uniform(-14, 14, 300000), rng.uniform(-110, 110, 100000)]).astype(np.float32)


def units_off(got, want):
    """The largest error in units in the last place of float32 among normal numbers; below those, what is allowed is one of them."""
    size = abs(want)
    normal = (size >= 2.0 ** -126) & (size < 2.0 ** 128)
    assert (abs(got - want)[size < 2.0 ** -126] <= 2.0 ** -126).all()
    return (abs(got - want)[normal] / np.spacing(size[normal].astype(np.float32))).max()


def by_logistic(x, u):
    """x / (1 + e^-u) in float64, without overflow."""
    e = np.exp(-abs(u))
    return x * np.where(u < 0, e, 1) / (1 + e)


EXACT = {"gelu": lambda x: x * ndtr(x), "silu": lambda x: by_logistic(x, x), "tanh": np.tanh,
         "gelu_tanh": lambda x: by_logistic(x, (8 / np.pi) ** 0.5 * (x + 0.044715 * x ** 3))}


@pytest.mark.parametrize("activation", EXACT)
def test_elementary_functions_within_two_units(rng, activation):
    """Wherever the result is a normal number, relative to itself: the tails too."""
    x = whole_range(rng)
    got = kernels.pointwise(x[None], room(1, x.size), Epilogue(activation=activation))[0].astype(np.float64)
    assert units_off(got, EXACT[activation](x.astype(np.float64))) <= 2


@pytest.mark.parametrize("function, exact, low, high", [(maths.exp, np.exp, -200, 88), (maths.exp2, np.exp2, -300, 126)])
def test_exponentials_within_two_units(rng, function, exact, low, high):
    x = whole_range(rng)
    x = x[(x >= low) & (x <= high)]
    got = x.copy()
    over_all(function)(address(got), got.size)
    assert units_off(got.astype(np.float64), exact(x.astype(np.float64))) <= 2
    got = np.array([-np.inf, np.nan, low], np.float32)
    over_all(function)(address(got), got.size)
    assert got[0] == got[2] == 0 and np.isnan(got[1])


def test_rough_activations_are_as_near_as_bounds_allow():
    """Those that products of narrow numbers end with."""
    x = np.concatenate([np.linspace(-12, 12, 200001), [-1e30, 1e30, -np.inf, np.inf, np.nan]]).astype(np.float32)
    for name, function in ROUGH.items():
        if function is KERNEL_ACTIVATIONS[name]: continue
        got, want = x.copy(), Epilogue(activation=name).reference(x[None, :-3])[0]
        function.call(address(got), got.size)
        assert (abs(got[:-3] - want) <= ROUGH_ERROR * np.maximum(1, abs(want))).all()
        assert abs(got[-3]) <= ROUGH_ERROR and got[-2] == np.inf and np.isnan(got[-1])


def over_all(function):
    """A pass of a function of vectors."""
    @njit
    def each(y, count): each_vector(function, y, count)
    return each


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name])
def test_activations_over_their_whole_range(activation):
    """Each keeps within 2e-7, relative to 1 and to itself; what is no number stays none, infinities have their limits."""
    x = np.concatenate([np.linspace(-12, 12, 20001), np.linspace(-0.7, 0.7, 5001), [-1e15, -90, -88, 88, 1e15, 0.0]])
    x = (abs(x) + 1e-3 if activation == "rsqrt" else x).astype(np.float32)[None]
    alone = Epilogue(activation=activation)
    with np.errstate(over="ignore"): got, want = kernels.pointwise(x, room(*x.shape), alone), alone.reference(x)
    assert (abs(got - want) <= 2e-7 * np.maximum(1, abs(want))).all()
    assert np.isnan(kernels.pointwise(np.full((1, 20), np.nan, np.float32), room(1, 20), alone)).all()
    if activation in EXACT:
        ends = kernels.pointwise(np.array([[-np.inf, np.inf]], np.float32), room(1, 2), alone)[0].tolist()
        assert ends == ([-1, 1] if activation == "tanh" else [0, np.inf])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [None, "layer", "rms"])
@pytest.mark.parametrize("T, n, p", [(1, 9, 20), (70, 33, 50)])
def test_gates_and_norms_behind_a_product(rng, T, n, p, norm, activation):
    """activation(x @ W + b) * times + residual, normed: all of a gated layer in one pass."""
    bias = numbers(rng, p) + (40 if activation == "rsqrt" else 0)
    after = Epilogue(bias, activation, numbers(rng, T, p), None if norm is None else 1e-6, numbers(rng, p), numbers(rng, p),
                     numbers(rng, T, p), norm or "layer")
    x, w = numbers(rng, T, n), numbers(rng, n, p)
    product_within(kernels.product_dense(x, w, room(T, p), after), x, w, after)


def test_what_an_epilogue_does_not_know_is_named(rng):
    with pytest.raises(ValueError, match="activation 'sine' is unknown"): Epilogue(activation="sine")
    with pytest.raises(ValueError, match="norm 'batch' is unknown"): Epilogue(eps=0.1, norm="batch")
    with pytest.raises(ValueError, match=r"times is \(3, 4\)"): Epilogue(times=numbers(rng, 3, 4)).check(3, 5)


def test_scale(rng):
    x = numbers(rng, 37, 3, 5)
    assert (kernels.scale(x, 0.3, room(37, 3, 5)) == x * np.float32(0.3)).all()
    assert (kernels.scale(x.ravel(), -2.0, room(x.size)) == -2 * x.ravel()).all()


def test_gather_and_embed(rng):
    tokens, kinds = rng.integers(0, 50, 130), rng.integers(0, 2, 130)
    table, two = numbers(rng, 50, 48), numbers(rng, 2, 48).astype(np.float16)
    assert (kernels.gather(tokens, table, room(130, 48)) == table[tokens]).all()
    assert (kernels.gather(kinds[::2], two, room(65, 48)) == two[kinds[::2]]).all()
    after, y = Epilogue(eps=1e-12, gain=numbers(rng, 48)), table[tokens].astype(np.float64) + two[kinds]
    error = gamma(2) * (abs(table[tokens]) + abs(two[kinds]).astype(np.float64))
    got = kernels.embed([(tokens, table), (kinds, two)], room(130, 48), after)
    within(got, after.reference(y), after.bound(y, error))


def test_ids_outside_the_table_are_named(rng):
    table = numbers(rng, 5, 3)
    with pytest.raises(IndexError, match="7 is outside 0 to 4"): kernels.gather(np.array([1, 7]), table, room(2, 3))
    with pytest.raises(IndexError, match="-1 is outside"): kernels.gather(np.array([-1, 0]), table, room(2, 3))


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
    flat = room(h * int((lengths ** 2).sum()))
    kernels.scores(kernels.scale(np.ascontiguousarray(q), scale, room(*q.shape)), k, starts, flat)
    kernels.softmax(flat, starts, h, flat)
    return kernels.values(flat, v, starts, out)


@pytest.mark.parametrize("lengths", [[1], [5, 0, 17], [300, 1, 64, 257], [256], [0], [700]])
@pytest.mark.parametrize("h, d, e", [(1, 1, 1), (3, 32, 32), (2, 20, 7)])
def test_attention(rng, lengths, h, d, e):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    T = int(starts[-1])
    wide = numbers(rng, T, h * (2 * d + e) + 3)
    q, k, v = (np.lib.stride_tricks.as_strided(wide[:, at:], (T, h, w), (wide.strides[0], 4 * w, 4))
               for at, w in ((0, d), (h * d, d), (2 * h * d, e)))
    want, bound = oracle(q, k, v, starts, d ** -0.5)
    within(kernels.attention(q, k, v, starts, room(T, h, e), d ** -0.5), want, bound)
    within(in_parts(q, k, v, starts, d ** -0.5, room(T, h, e)), want, bound)


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


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 110), min_size=1, max_size=6), st.integers(1, 4), st.integers(1, 40), st.integers(1, 70),
       st.sampled_from([1, 3, 50, 256]), st.integers(0, 2**32 - 1))
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
    """(attention, a bound on its error) over what is seen, sequence by sequence; heads are shared where there are fewer."""
    heads = max(part.shape[1] for part in (q, k, v))
    q, k, v = (part.astype(np.float64).repeat(heads // part.shape[1], 1).swapaxes(0, 1) for part in (q, k, v))
    found, off = [np.zeros((heads, 0, v.shape[2]))] * 2
    for a, b in pairwise(starts):
        s, sees = scale * q[:, a:b] @ k[:, a:b].swapaxes(1, 2), seen_by(b - a, reach)
        size = np.where(sees, abs(scale) * (abs(q[:, a:b]) @ abs(k[:, a:b]).swapaxes(1, 2)), 0)
        p = np.where(sees, np.exp(s - np.where(sees, s, -1e9).max(-1, keepdims=True, initial=-1e9)), 0) if sees.any() else 0 * s
        p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
        wrong = gamma(2 * q.shape[2] + b - a + 16) * (1 + 2 * size.max(-1, keepdims=True, initial=0))
        found = np.concatenate([found, p @ v[:, a:b]], 1)
        off = np.concatenate([off, 4 * np.expm1(2 * wrong) * (p @ abs(v[:, a:b]))], 1)
    return found.swapaxes(0, 1), off.swapaxes(0, 1)


REACHES = [(2 ** 40, 2 ** 40), (2 ** 40, 0), (0, 0), (3, 3), (7, 0), (200, 150), (-1, -1), (0, 2 ** 40)]


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
    if reach == (-1, -1): assert not want.any()


HALF = 2.0 ** -9                                             # what rounding to bfloat16 costs


def in_halves(q, k, v, starts, scale, reach):
    """(attention, a bound on its error in bfloat16): two roundings of a score's factors, of exponentials and of v."""
    found, off = [], []
    for a, b in pairwise(starts):
        s, size = (abs(scale) * np.einsum("qhd,khd->hqk", *parts) for parts in ((q[a:b], k[a:b]), (abs(q[a:b]), abs(k[a:b]))))
        s, sees = s * np.sign(scale), seen_by(b - a, reach)
        top = np.where(sees, s, -np.inf).max(-1, keepdims=True, initial=-1e9)
        p = np.where(sees, np.exp(np.minimum(s - top, 0)), 0)
        p /= np.maximum(p.sum(-1, keepdims=True), 1e-300)
        wrong = (2.1 * HALF + gamma(q.shape[2] + 4)) * np.where(sees, size, 0).max(-1, keepdims=True, initial=0) + 1.5 * HALF
        found.append(np.einsum("hqk,khd->qhd", p, v[a:b]))
        off.append(np.einsum("hqk,khd->qhd", (np.expm1(2 * wrong) + 2 * HALF) * p, abs(v[a:b])))
    return np.concatenate(found), np.concatenate(off)


@pytest.mark.parametrize("kernel", sorted({kernel.name for kernel in (halves.attend_halves, halves.attend_halves_matrix)}))
@pytest.mark.parametrize("reach", [(2 ** 40, 2 ** 40), (2 ** 40, 0), (40, 3), (-1, -1)])
@pytest.mark.parametrize("lengths, h, d, e, tile", [([1, 0, 13, 31], 3, 32, 32, 256), ([300, 77], 2, 40, 50, 96), ([65], 1, 1, 1, 1)])
def test_attention_in_halves(rng, kernel, reach, lengths, h, d, e, tile, monkeypatch):
    """By vectors and by matrix registers; nothing beside out is written."""
    monkeypatch.setattr(halves, "attend_halves_matrix", FUNCTIONS[kernel])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    T = int(starts[-1])
    q, k, v, around = numbers(rng, T, h, d), numbers(rng, T, h, d), numbers(rng, T, h, e), room(T + 2, h + 1, e + 3)
    out = around[1:-1, :-1, 1:-2]
    within(kernels.attention_halves(q, k, v, starts, out, 0.3, reach, tile).copy(),
           *in_halves(*(part.astype(np.float64) for part in (q, k, v)), starts, 0.3, reach))
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


@pytest.mark.parametrize("T, alike", [(1, False), (45, False), (200, True)])
def test_headwise(rng, T, alike):
    x, w = numbers(rng, T, 1 if alike else 4, 12), numbers(rng, 4, 12, 9)
    want = np.einsum("thd,hdn->thn", np.broadcast_to(x, (T, 4, 12)).astype(np.float64), w)
    bound = gamma(14) * np.einsum("thd,hdn->thn", np.broadcast_to(abs(x), (T, 4, 12)).astype(np.float64), abs(w))
    within(kernels.headwise(x, w, room(T, 4, 9)), want, bound)


def test_wrong_shapes_are_named(rng):
    with pytest.raises(ValueError, match=r"x: expected float32 of shape \(3, 4\)"):
        kernels.product_dense(numbers(rng, 3, 5), numbers(rng, 4, 2), room(3, 2))
    with pytest.raises(ValueError, match="out: expected float32"):
        kernels.product_dense(numbers(rng, 3, 4), numbers(rng, 4, 2), np.zeros((3, 2)))


def test_importing_formats_leaves_numba_alone():
    code = "import formats, sys; from formats import kernels; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
