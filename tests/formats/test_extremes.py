"""Rows that are tiny, vast, zero, or no numbers: what rounding kernels and norms make of them, against float64."""

import numpy as np
import pytest

from formats import FORMATS, Epilogue, FormatError, kernels

HUGE = float(np.finfo(np.float32).max)
SIZES = 1e-45, 1e-42, 1e-40, 1e-38, 1e-37, 1e-36, 1e-20, 1.0, 1e10, 1e18, 1e20, 1e30, HUGE
ROUNDING = [(name, options) for name, F in FORMATS.items() if F.rounds for options in F.choices(100, 35)]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def rows(rng, kind, size, shape=(5, 100)):
    """Rows about as large as `size`."""
    x = rng.uniform(-1, 1, shape)
    if kind == "equal":
        x[:] = 1
    if kind == "one":
        x[:, 1:], x[:, 0] = 0, 1
    if kind == "opposite":
        x[:] = np.where(np.arange(shape[1]) % 2, 1, -1)
    if kind == "zeros":
        x[:] = -0.0
    return np.clip(x * size, -HUGE, HUGE).astype(np.float32)


@pytest.mark.deep(every=17)
@pytest.mark.parametrize("kind", ["any", "equal", "one", "opposite", "zeros"])
@pytest.mark.parametrize("name, options", ROUNDING, ids=str)
def test_rounding_kernels_on_rows_of_any_size(rng, name, options, kind):
    """Where no partial sum exceeds float32: as near to the rounded numbers as sums are, and these as near to x as their
    type is."""
    for unit in (1e-30, 1e-5, 1.0, 1e5, 1e18):
        try:
            W = FORMATS[name].approximate(rng.standard_normal((100, 35)) * unit, **options)
        except FormatError:  # scales of blocks are float16
            assert unit > 1 and FORMATS[name].filed
            continue
        least = getattr(W, "least", 2.0**-133)  # what is read as nothing, where a format says so
        for size in SIZES:
            x = rows(rng, kind, size)
            read, wide = W.operands(x)
            near, given = (read, W.turned(x)) if hasattr(W, "turned") else (W.reads(x), x)
            assert (abs(near - given) <= np.maximum(abs(given).max(1, keepdims=True) / 253, least)).all(), (unit, size)
            small = abs(read) @ getattr(W, "sizes_of", abs)(wide) < HUGE / 2  # of what is added up
            for some in (x, x[:1]):
                off = abs(W.matmul(some) - (read @ wide)[: len(some)]) - W.bound(some)
                assert (off[small[: len(some)]] <= 0).all(), (unit, size)


@pytest.mark.parametrize("name, options", ROUNDING, ids=str)
def test_what_is_no_number_stays_in_its_row(rng, name, options):
    W, x = (
        FORMATS[name].approximate(rng.standard_normal((100, 35)), **options),
        rng.standard_normal((5, 100), np.float32),
    )
    exact = W.matmul(x)
    for bad in (np.nan, np.inf, -np.inf, np.array(0x7FFFFFFF, np.uint32).view(np.float32)):
        worse = x.copy()
        worse[2, 7] = bad
        got = W.matmul(worse)
        assert not np.isfinite(got[2]).any() and (np.delete(got, 2, 0) == np.delete(exact, 2, 0)).all()
        assert not np.isfinite(W.matmul(worse[2:3])).any()
        if np.isnan(bad):
            assert np.isnan(got[2]).all()


def test_weights_that_no_scale_holds_are_refused():
    for name in ("int8", "int4"):
        with pytest.raises(FormatError, match=r"beyond 1.18e\+21"):
            FORMATS[name].fit(np.full((4, 3), 1e22))
    with pytest.raises(FormatError, match="beyond the largest bfloat16"):
        FORMATS["bf16"].fit(np.full((4, 3), 3.4e38))


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("kind", ["any", "equal", "one", "opposite", "zeros"])
def test_norms_of_rows_of_any_size(rng, kind, norm):
    for eps in (2.0**-126, 1e-12, 1e-5, 1.0, 2.0**100):
        alone = Epilogue(eps=eps, norm=norm)
        for size in SIZES:
            x = rows(rng, kind, size)
            got, want = kernels.pointwise(x, np.full_like(x, np.nan), alone), alone.reference(x)
            # one over a root takes a denormal number up to a normal one: it is as far off as denormal numbers are apart
            bound = alone.bound(x, np.full(x.shape, 2.0**-149)) + 2.0**-149
            assert (abs(got - want) <= bound).all(), (eps, size, abs(got - want).max(), bound.max())


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_of_what_is_no_number(norm):
    """As in float64: NaN everywhere in its row; infinity too, but zeros beside it where no mean is taken."""
    alone = Epilogue(eps=1e-5, norm=norm)
    x = np.ones((3, 20), np.float32)
    x[0, 3], x[1, 3] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want = alone.reference(x)
    got = kernels.pointwise(x, np.empty_like(x), alone)
    assert np.isnan(got[0]).all() and (np.isnan(got) == np.isnan(want)).all() and np.allclose(got, want, equal_nan=True)


def test_an_eps_that_divides_by_nothing_is_refused():
    for eps in (0.0, 1e-39, 1e39, np.nan, -1.0):
        with pytest.raises(ValueError, match=r"is not from 1\.18e-38 to"):
            Epilogue(eps=eps)


def test_attention_in_halves_keeps_what_is_finite():
    v, starts, q = np.zeros((40, 1, 8), np.float32), np.array([0, 40]), np.zeros((40, 1, 8), np.float32)
    v[7] = HUGE
    got = kernels.attention_halves(q, q, v, starts, np.empty_like(v))
    assert (abs(got / (HUGE / 40) - 1) < 2.0**-8).all()
    v[3, 0, 2] = np.array(0x7FFFFFFF, np.uint32).view(np.float32)
    got = kernels.attention_halves(q, q, v, starts, np.empty_like(v))
    assert np.isnan(got[:, 0, 2]).all() and np.isnan(got).sum() == 40


SCALES = 1e-45, 1e-42, 3.7e-37, 1.0, 1e20, 1e30, 3e38
WEIGHTS = {
    "all": lambda w, size: w * size,
    "a column": lambda w, size: np.where(np.arange(w.shape[1]) == w.shape[1] // 2, w * size, w),
    "a row": lambda w, size: np.where(np.arange(len(w))[:, None] == len(w) // 2, w * size, w),
    "one number": lambda w, size: np.where(np.arange(w.size).reshape(w.shape) == w.size // 2, size, 0),
    "equal": lambda w, size: np.full(w.shape, size),
    "zeros and a column": lambda w, size: np.where(np.arange(w.shape[1]) == 0, 0, w * size),
}


@pytest.mark.deep(every=9)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(64, 32), (1, 1), (1, 32), (64, 1), (33, 7)], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_weights_of_any_size_are_held_or_refused(name, shape):
    """No format makes of them what is no number, or is further off than nothing at all would be, or warns."""
    form, drawn = FORMATS[name], np.random.default_rng(5).uniform(-1, 1, shape)
    for options in form.choices(*shape) if not form.plain else [{}]:
        for make in WEIGHTS.values():
            for size in SCALES:
                W = np.clip(make(drawn, size), -HUGE, HUGE).astype(np.float32)
                try:
                    stored = form.approximate(W, **options)
                except FormatError:
                    continue
                held = stored.unpack().astype(np.float64)
                assert np.isfinite(held).all(), (options, size)
                assert np.linalg.norm(held - W) <= 1.001 * np.linalg.norm(W.astype(np.float64)), (options, size)
                if size < 1e30:
                    assert np.isfinite(stored.matmul(np.ones((2, len(W)), np.float32))).all()
