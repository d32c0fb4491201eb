"""Elementary functions over their whole range, in units in the last place of float32."""

import numpy as np
import pytest
from arrays import room
from scipy.special import ndtr

from formats import kernels
from formats.core.activation import ACTIVATIONS, COMPILED, activation, names_called
from formats.core.epilogue import ROUGH_ERROR, Epilogue
from formats.kernels.engine.compiled import Function
from formats.kernels.engine.launch import address
from formats.kernels.rows.activations import PASSES as KERNEL_ACTIVATIONS
from formats.kernels.rows.activations import ROUGH, each_vector
from formats.kernels.simd import maths, tail


def floats_of(low, high, count, rng):
    """So many float32 of each sign and exponent from low on."""
    bits = (np.arange(low, high)[:, None] + 127 << 23 | rng.integers(0, 1 << 23, (high - low, count))).astype(np.uint32)
    return np.concatenate([bits.view(np.float32).ravel(), -bits.view(np.float32).ravel()])


def whole_range(rng):
    """float32 of all exponents, more where functions bend, and the neighbours of where they are put together."""
    borders = np.array(
        [*tail.EDGES, tail.EDGE, 0.625, 1, 10, 12, 50, 86.6, 87.34, 87.68, 88, 91.8, 104, 110], np.float32
    )
    near = (borders.view(np.uint32)[:, None] + np.arange(-50, 50).astype(np.uint32)).view(np.float32).ravel()
    return np.concatenate(
        [
            floats_of(-126, 128, 300, rng),
            floats_of(-8, 7, 40000, rng),
            near,
            -near,
            [0.0, -0.0],
            rng.uniform(-14, 14, 300000),
            rng.uniform(-110, 110, 100000),
        ]
    ).astype(np.float32)


def units_off(got, want):
    """The largest error in units in the last place of float32 among normal numbers; below those, what is allowed is one
    of them."""
    size = abs(want)
    normal = (size >= 2.0**-126) & (size < 2.0**128)
    assert (abs(got - want)[size < 2.0**-126] <= 2.0**-126).all()
    return (abs(got - want)[normal] / np.spacing(size[normal].astype(np.float32))).max()


def by_logistic(x, u):
    """x / (1 + e^-u) in float64, without overflow."""
    e = np.exp(-abs(u))
    return x * np.where(u < 0, e, 1) / (1 + e)


EXACT = {
    "sigmoid": lambda x: by_logistic(1, x),
    "gelu": lambda x: x * ndtr(x),
    "silu": lambda x: by_logistic(x, x),
    "tanh": np.tanh,
    "gelu_tanh": lambda x: by_logistic(x, (8 / np.pi) ** 0.5 * (x + 0.044715 * x**3)),
}


@pytest.mark.parametrize("activation", EXACT)
def test_elementary_functions_within_two_units(rng, activation):
    """Wherever the result is a normal number, relative to itself: the tails too."""
    x = whole_range(rng)
    got = kernels.pointwise(x[None], room(1, x.size), Epilogue(activation=activation))[0].astype(np.float64)
    assert units_off(got, EXACT[activation](x.astype(np.float64))) <= 2


@Function.of(4, rare=True)
def exp_of_all(y, count, rows, step):
    """A pass of exp."""
    each_vector(maths.exp, y, count, rows, step)


@Function.of(4, rare=True)
def exp2_of_all(y, count, rows, step):
    """A pass of exp2."""
    each_vector(maths.exp2, y, count, rows, step)


def share(x):
    return np.where(x < -100, 0, np.exp2(x))


@pytest.mark.parametrize(
    "function, exact, low, high", [(exp_of_all, np.exp, -200, 88), (exp2_of_all, share, -300, 126)]
)
def test_exponentials_within_two_units(rng, function, exact, low, high):
    x = whole_range(rng)
    x = x[(x >= low) & (x <= high)]
    got = x.copy()
    function.call(address(got), got.size, 1, got.nbytes)
    assert units_off(got.astype(np.float64), exact(x.astype(np.float64))) <= 2
    got = np.array([-np.inf, np.nan, low], np.float32)
    function.call(address(got), got.size, 1, got.nbytes)
    assert got[0] == got[2] == 0 and np.isnan(got[1])


def test_shares_are_never_so_small_that_their_products_are_denormal():
    """Those of a softmax: arithmetic on denormal numbers takes a hundred times as long."""
    got = np.linspace(-200, 0, 100001, dtype=np.float32)
    exp2_of_all.call(address(got), got.size, 1, got.nbytes)
    assert got[got > 0].min() >= 2.0**-100 and not got[:40000].any()


def test_rough_activations_are_as_near_as_bounds_allow():
    """Those that products of narrow numbers end with."""
    x = np.concatenate([np.linspace(-12, 12, 200001), [-1e30, 1e30, -np.inf, np.inf, np.nan]]).astype(np.float32)
    for name, function in ROUGH.items():
        if function is KERNEL_ACTIVATIONS[name]:
            continue
        got, want = x.copy(), Epilogue(activation=name).reference(x[None, :-3])[0]
        function.call(address(got), got.size, 1, got.nbytes)
        assert (abs(got[:-3] - want) <= ROUGH_ERROR * np.maximum(1, abs(want))).all()
        assert abs(got[-3]) <= ROUGH_ERROR and got[-2] == np.inf and np.isnan(got[-1])


@pytest.mark.parametrize("activation", COMPILED)
def test_activations_over_their_whole_range(activation):
    """Each keeps within 2e-7, relative to 1 and to itself; what is no number stays none, infinities have their
    limits."""
    x = np.concatenate([np.linspace(-12, 12, 20001), np.linspace(-0.7, 0.7, 5001), [-1e15, -90, -88, 88, 1e15, 0.0]])
    x = (abs(x) + 1e-3 if activation == "rsqrt" else x).astype(np.float32)[None]
    alone = Epilogue(activation=activation)
    with np.errstate(over="ignore"):
        got, want = kernels.pointwise(x, room(*x.shape), alone), alone.reference(x)
    assert (abs(got - want) <= 2e-7 * np.maximum(1, abs(want))).all()
    assert np.isnan(kernels.pointwise(np.full((1, 20), np.nan, np.float32), room(1, 20), alone)).all()
    if activation in EXACT:
        ends = np.array([[-np.inf, np.inf]], np.float32)
        limits = {"tanh": [-1, 1], "sigmoid": [0, 1]}.get(activation, [0, np.inf])
        assert kernels.pointwise(ends, room(1, 2), alone)[0].tolist() == limits == alone.reference(ends)[0].tolist()


@pytest.mark.parametrize("record", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_an_error_spreads_no_further_than_is_said(record, rng):
    """|f(y + e) - f(y)| of random numbers, small errors and large ones, where f has values."""
    y = rng.normal(size=20000) * 10.0 ** rng.integers(-3, 2, 20000)
    e = rng.normal(size=20000) * 10.0 ** rng.integers(-6, 1, 20000)
    if not record.everywhere:
        y, e = abs(y) + 2, np.clip(e, -1, 1)
    with np.errstate(all="ignore"):
        off, said = abs(record.function(y + e) - record.function(y)), record.spread(y, abs(e))
    known = np.isfinite(off)
    assert known.mean() > 0.9 and (off[known] <= said[known] * (1 + 1e-9) + 1e-9).all()


def test_two_activations_of_one_name_in_configurations():
    @activation(1.0, 1, called=("one", "other"))
    def first(u):
        return u

    @activation(1.0, 1, called=("other",))
    def second(u):
        return u

    assert names_called([first]) == {"one": "first", "other": "first"}
    with pytest.raises(TypeError, match="activation second: other is already what checkpoints call first"):
        names_called([first, second])
    with pytest.raises(TypeError, match="give a tuple of names"):
        activation(1.0, 1, called="hardswish")
