"""Every kernel against float64, within the bound of its roundings: gamma(k) |A| |B| (Higham 2002, section 3.5)."""

import subprocess
import sys

import numpy as np
import pytest
from arrays import numbers, room, within
from hypothesis import given, settings
from hypothesis import strategies as st

from formats import kernels
from formats.core.activation import COMPILED
from formats.core.epilogue import NOTHING, Epilogue, gamma

FORMS = ["plain", "bias", "gelu", "residual", "norm", "all"]


@pytest.fixture
def rng():
    return np.random.default_rng(20240517)


def epilogue(rng, form, T, p):
    bias, residual, gain, shift = numbers(rng, p), numbers(rng, T, p), numbers(rng, p), numbers(rng, p)
    return {
        "plain": NOTHING,
        "bias": Epilogue(bias=bias),
        "gelu": Epilogue(activation="gelu"),
        "residual": Epilogue(bias=bias, residual=residual),
        "norm": Epilogue(eps=1e-5, gain=gain, shift=shift),
        "all": Epilogue(bias=bias, activation="gelu", residual=residual, eps=1e-12, gain=gain, shift=shift),
    }[form]


def product_within(got, x, w, after):
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    y, error = x @ w, gamma(len(w) + 2) * (abs(x) @ abs(w))
    within(got, after.reference(y), after.bound(y, error))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "T, n, p", [(1, 384, 1152), (3, 5, 7), (17, 384, 333), (129, 100, 384), (300, 33, 1), (1000, 7, 65)]
)
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
    within(
        kernels.product_lowrank(x, u, v, room(T, 310), after),
        after.reference(y),
        after.bound(y, gamma(200 + 9 + 4) * (a @ b @ c)),
    )


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
@given(
    st.integers(1, 150),
    st.integers(1, 70),
    st.integers(1, 70),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(0, 2**32 - 1),
)
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


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 20),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_rotate(T, h, k, rest, inside, seed):
    """In place or apart, of columns of a wider value; what a row becomes depends on no other row."""
    rng, d = np.random.default_rng(seed), 2 * k + rest
    wide, cos, sin, at = numbers(rng, T, h * d + 9), numbers(rng, 20, k), numbers(rng, 20, k), rng.integers(0, 20, T)
    x = wide[:, 4 : 4 + h * d].reshape(T, h, d) if inside else numbers(rng, T, h, d)
    given, got = x.copy(), kernels.rotate(x, at, cos, sin, room(T, h, d))
    a, b, left = np.split(given.astype(np.float64), (k, 2 * k), -1)
    c, s = (each.astype(np.float64)[at][:, None] for each in (cos, sin))
    size = np.concatenate([abs(a * c) + abs(b * s), abs(a * s) + abs(b * c), 0 * left], -1)
    within(got, np.concatenate([a * c - b * s, a * s + b * c, left], -1), gamma(2) * size)
    one = int(rng.integers(T))
    assert (kernels.rotate(given[one : one + 1], at[one : one + 1], cos, sin, room(1, h, d)) == got[one]).all()
    kernels.rotate(x, at, cos, sin, x)
    assert (x == got).all()
    if inside:
        assert np.array_equal(wide[:, 4 : 4 + h * d].reshape(T, h, d), got)


def test_what_a_rotation_refuses(rng):
    x, table, at = numbers(rng, 5, 2, 6), numbers(rng, 9, 3), np.arange(5)
    for message, error, arguments in (
        (r"cos \(9, 3\) and sin \(9, 2\)", ValueError, (x, at, table, table[:, :2], x)),
        (r"at most half of 6 columns", ValueError, (x, at, numbers(rng, 9, 4), numbers(rng, 9, 4), x)),
        (r"positions: 9 is outside 0 to 8", IndexError, (x, at + 5, table, table, x)),
        (r"positions: expected 5 whole numbers", ValueError, (x, at[:4], table, table, x)),
        (r"x overlaps out", ValueError, (x[1:], at[1:], table, table, x[:-1])),
        (r"out \(4, 2, 6\)", ValueError, (x, at, table, table, x[:4])),
    ):
        with pytest.raises(error, match=message):
            kernels.rotate(*arguments)


def test_pointwise_in_place(rng):
    x, after = numbers(rng, 70, 90), epilogue(rng, "all", 70, 90)
    assert (kernels.pointwise(x.copy(), room(70, 90), after) == kernels.pointwise(y := x.copy(), y, after)).all()


@pytest.mark.parametrize("activation", COMPILED)
@pytest.mark.parametrize("norm", [None, "layer", "rms"])
@pytest.mark.parametrize("T, n, p", [(1, 9, 20), (70, 33, 50)])
def test_gates_and_norms_behind_a_product(rng, T, n, p, norm, activation):
    """activation(x @ W + b) * times + residual, normed: all of a gated layer in one pass."""
    bias = numbers(rng, p) + (40 if activation == "rsqrt" else 0)
    after = Epilogue(
        bias=bias,
        activation=activation,
        residual=numbers(rng, T, p),
        eps=None if norm is None else 1e-6,
        gain=numbers(rng, p),
        shift=numbers(rng, p),
        times=numbers(rng, T, p),
        norm=norm or "layer",
    )
    x, w = numbers(rng, T, n), numbers(rng, n, p)
    product_within(kernels.product_dense(x, w, room(T, p), after), x, w, after)


def test_what_an_epilogue_does_not_know_is_named(rng):
    with pytest.raises(ValueError, match="activation 'sine' is unknown"):
        Epilogue(activation="sine")
    with pytest.raises(ValueError, match="norm 'batch' is unknown"):
        Epilogue(eps=0.1, norm="batch")
    with pytest.raises(ValueError, match=r"times is \(3, 4\)"):
        Epilogue(times=numbers(rng, 3, 4)).check(3, 5)


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
    with pytest.raises(IndexError, match="7 is outside 0 to 4"):
        kernels.gather(np.array([1, 7]), table, room(2, 3))
    with pytest.raises(IndexError, match="-1 is outside"):
        kernels.gather(np.array([-1, 0]), table, room(2, 3))


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
