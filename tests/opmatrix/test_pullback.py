"""Gradients as terms: against finite differences, whatever is kept; each kind's cotangent by its definition; what is
refused; a tiny model whose loss falls."""

from itertools import pairwise

import numpy as np
import pytest
from partitioned import ANY, BERT, GPT2, LLAMA, VOCABULARY

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra import monoids
from opmatrix.algebra.nodes import DERIVATIVES, scalar_function
from opmatrix.algebra.term import KINDS
from opmatrix.autodiff.backward_kinds import derivative, fold, shares, widen
from opmatrix.autodiff.checkpoint_policy import NAMED_POLICIES
from opmatrix.autodiff.learning import Adam, cross_entropy, squared_error
from opmatrix.autodiff.pullback import pullback
from opmatrix.models import build, head

MIXED = ANY | dict(gated=True, norm="rms", positions="rotary", num_key_value_heads=2, pre_norm=False)
BLOOM = dict(model_type="bloom", vocab_size=VOCABULARY, hidden_size=12, n_head=6, n_layer=2)
MODELS = dict(bert=BERT, gpt2=GPT2, llama=LLAMA, mixed=MIXED, bloom=BLOOM)
IDS = [1, 2, 3], [4, 5, 6, 7]


def drawn(config, seed=0):
    """A model and its arrays by name."""
    rng, arrays = np.random.default_rng([seed, 27]), {}  # numbers that no other test has: equal arrays are one

    def at(name, *shape):
        arrays.setdefault(name, rng.normal(size=shape) * 0.4)
        return om.Data(arrays[name], name)

    return build(config, at), arrays


def along(make, arrays, name, batch, g, step=1e-5):
    """The derivative of <g, f> along a random direction of one array, by differences, and the direction."""
    way = np.random.default_rng(len(name)).normal(size=arrays[name].shape)

    def at(t):
        moved = {**arrays, name: arrays[name] + t * way}
        return (om.dense(make(lambda n, *shape: om.Data(moved[n], n)), batch) * g).sum()

    return (at(step) - at(-step)) / (2 * step), way


@pytest.mark.deep(every=5)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_differences_whatever_is_kept(name):
    """Every array of a model, along a random direction; every policy gives the numbers of every other."""
    config = MODELS[name]
    term, arrays = drawn(config)
    batch, g = om.Batch(IDS), np.random.default_rng(1).normal(size=(7, 12))
    found = [pullback(term, tokens=True, keep=keep).at(batch, cotangent=g) for keep in NAMED_POLICIES]
    np.testing.assert_allclose(found[0].value, om.dense(term, batch), rtol=1e-12)
    assert found[0].arrays.keys() == arrays.keys()
    for one, other in pairwise(found):
        for each in arrays:
            np.testing.assert_array_equal(one.arrays[each], other.arrays[each])
    for each in list(arrays)[::3]:
        wanted, way = along(lambda at: build(config, at), arrays, each, batch, g)
        assert (found[0].arrays[each] * way).sum() == pytest.approx(wanted, rel=2e-6, abs=2e-6), each


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_stand_beside_their_functions(name):
    """Against differences of the function itself."""
    u, h = np.array([[0.3, 0.9, 1.7, 2.5]]), 1e-6
    f = KINDS[name].dense
    np.testing.assert_allclose(u @ derivative(KINDS[name]()), (f(u + h) - f(u - h)) / (2 * h), rtol=1e-7)


LINEAR = dict(
    weight=om.weight(np.arange(24).reshape(4, 6) / 7),
    diag=om.diag([1.0, -2, 3, 4]),
    cols=om.cols(1, 3),
    place=om.place(2, 9),
    sum=om.ones,
    mean=om.I @ om.mean,
    centre=om.centre,
    heads=om.heads(2),
    widen=om.ones @ widen(5),
    repeat=om.heads(2) @ om.repeat(4),
    fold=om.heads(4) @ fold(2),
    total=om.heads(2) @ om.total,
    join=om.heads(2) @ om.weight(np.arange(20).reshape(2, 2, 5) / 9) @ om.heads(2).T,
    row=om.row(om.cols(0, 2, 4), om.weight(np.ones((4, 1)))),
    rotate=om.rotary(8, 4),
    last=om.pick("last"),
    stack=om.weight(np.arange(24).reshape(2, 4, 3) / 5),
)


@pytest.mark.parametrize("name", LINEAR)
def test_linear_kinds_go_back_by_their_adjoint(name):
    """<g, x A> = <g A*, x> for random g and x."""
    rng, A, batch = np.random.default_rng(0), LINEAR[name], om.Batch([[1], [2, 3]])
    x = rng.normal(size=(3, 4))
    y = om.dense(A, x, batch)
    g = rng.normal(size=y.shape)
    found = pullback(A, x=4).at(x, batch, g)
    assert (g * y).sum() == pytest.approx((found.x.reshape(x.shape) * x).sum(), rel=1e-12)


CURVED = dict(
    attention=om.formula(lambda x: om.product(x @ x.T * 0.3, x, over=om.softmax, where=om.sequence & om.causal)),
    share=om.share,
    logsumexp=om.over(om.ones, monoids.logsumexp),
    largest=om.I @ om.maximum,
    smallest=om.I @ om.minimum,
    unit=om.unit_length(),
    gate=om.keep_top(om.share, om.I, 2),
    layer=om.layernorm(1e-5),
    roots=om.rmsnorm(1e-5),
    squares=om.formula(lambda x: x * x),
    squared=squared_error(4),
    entropy=cross_entropy(4),
    product=om.formula(lambda x: om.product(x @ x.T, x)),
    shared=om.formula(lambda x: om.product(shares(x @ x.T, om.sequence), x)),
)


@pytest.mark.parametrize("name", CURVED)
def test_cotangents_are_those_of_differences(name):
    """Along a random direction of x."""
    rng, A = np.random.default_rng(3), CURVED[name]
    x, way = rng.normal(size=(2, 5, 4))
    targets = np.array([[0], [3], [1], [2], [3]]) if name == "entropy" else rng.normal(size=(5, 4))
    batch = om.Batch([[1, 2], [3, 4, 5]], inputs=dict(targets=targets))
    y = om.dense(A, x, batch)
    g = rng.normal(size=y.shape)
    wanted = sum(s * (om.dense(A, x + s * 1e-5 * way, batch) * g).sum() for s in (1, -1)) / 2e-5
    assert (pullback(A, x=4).at(x, batch, g).x * way).sum() == pytest.approx(wanted, rel=1e-6)


def test_terms_are_what_the_numbers_are():
    """A gradient and a cotangent read as terms, with the cotangent of what comes out as an input."""
    W, rng = om.Data(np.random.default_rng(0).normal(size=(4, 4)), "W"), np.random.default_rng(1)
    term = om.weight(W) @ om.gelu @ om.layernorm(1e-5)
    x, g = rng.normal(size=(2, 3, 4))
    pulled = pullback(term)
    batch = om.Batch([[1, 2, 3]], inputs=dict(cotangent=g.astype(np.float32)))
    found = pulled.at(x, batch, g.astype(np.float32))
    np.testing.assert_allclose(om.dense(pulled.gradient("W"), x, batch), found.arrays["W"], rtol=1e-12)
    np.testing.assert_allclose(om.dense(pulled.cotangent, x, batch), found.x, rtol=1e-12)
    assert "derivative(gelu)" in str(pulled.gradient("W"))
    with pytest.raises(InputError, match="no learned array is called 'V': arrays are W"):
        pulled.gradient("V")


def test_dropout_is_a_mask_of_the_batch():
    """The model is another one; its gradients are those of differences; a mask that is missing is named."""
    term, arrays = drawn(GPT2 | dict(n_layer=1))
    pulled, rng = pullback(term, tokens=True, dropout=0.25), np.random.default_rng(5)
    shapes = {line.more[0]: line.shape for line in pulled.lines if line.op == "dropped"}
    assert [*shapes] == ["dropout 0", "dropout 1", "dropout 2"]
    masks = {name: rng.random((6, 7, 7) if shape.heads == 6 else (7, 12)) < 0.75 for name, shape in shapes.items()}
    batch = om.Batch(IDS, inputs=masks)
    g = rng.normal(size=(7, 12))
    found = pulled.at(batch, cotangent=g)
    assert np.abs(found.value - om.dense(term, batch)).max() > 0.1
    for name in ("h.0.attn.c_attn.weight", "h.0.mlp.c_fc.bias", "wpe.weight"):
        way, values = rng.normal(size=arrays[name].shape), []
        for step in (1e-5, -1e-5):
            moved = {**arrays, name: arrays[name] + step * way}
            again = build(GPT2 | dict(n_layer=1), lambda n, *_, moved=moved: om.Data(moved[n], n))
            values.append((pullback(again, tokens=True, dropout=0.25).at(batch, cotangent=g).value * g).sum())
        assert (found.arrays[name] * way).sum() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)
    with pytest.raises(ValueError, match="dropout 'dropout 0': the batch gives no mask of this name"):
        pulled.at(om.Batch(IDS))


def test_what_has_no_pullback_is_named():
    """In a line, by its name."""

    @scalar_function()
    def floor(u):
        return np.floor(u)

    for term, said in (
        (floor, "floor declares no derivative"),
        (om.over(om.ones, om.monoids.moments), "moments"),
        (om.formula(lambda x: om.product(x @ x.T, x, over=om.mean, where=om.sequence)), "mean"),
        (om.symbol("A", 4, 4), "A"),
        (om.formula(lambda x: om.product(x @ x.T, x, where=om.sequence)), "over sum where sequence"),
    ):
        with pytest.raises(InputError, match=said) as raised:
            pullback(term, x=4)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "told, said",
    [
        (dict(keep="selectiv"), "keep 'selectiv': did you mean selective"),
        (dict(keep=["norm inn"]), "no unit"),
        (dict(wrt=["V"]), "wrt 'V': there is no such array"),
        (dict(dropout=1.0), "dropout 1.0"),
        (dict(keep=["weight in"]), "x is needed in backward, and neither saved nor recomputed: add 'input' to keep"),
    ],
)
def test_bad_input_is_named(told, said):
    with pytest.raises(InputError, match="gelu takes any number of columns"):
        pullback(om.gelu)
    with pytest.raises(InputError, match=said):
        pullback(om.gelu @ om.weight(om.Data(np.eye(3), "W")), **told)


def test_only_asked_arrays_learn():
    """And nothing is computed for the others."""
    term, _ = drawn(GPT2)
    every, one = (pullback(term, tokens=True, wrt=wrt) for wrt in (None, ["h.1.mlp.c_proj.weight"]))
    batch = om.Batch(IDS)
    name, g = "h.1.mlp.c_proj.weight", np.ones((7, 12))
    np.testing.assert_array_equal(one.at(batch, cotangent=g).arrays[name], every.at(batch, cotangent=g).arrays[name])
    assert [*one.at(batch).arrays] == [name] and len(one.lines) < len(every.lines) / 2


def test_a_tiny_language_model_learns():
    """Ten steps of Adam: the loss of next tokens falls at every one, and by half at the end."""
    arrays, config = drawn(GPT2 | dict(n_layer=1))[1], GPT2 | dict(n_layer=1)
    ids = [[1, 2, 3, 4, 5, 1, 2, 3]]
    batch = om.Batch(ids, inputs=dict(targets=np.roll(ids[0], -1)[:, None]))
    adam, losses = Adam(rate=0.03), []
    for _ in range(10):

        def at(name, *_):
            return om.Data(arrays[name], name)  # noqa: B023

        term = build(config, at) @ head(config, at) @ cross_entropy(VOCABULARY)
        found = pullback(term, tokens=True, keep="full").at(batch)
        losses.append(found.value.mean())
        arrays = adam.step(arrays, found.arrays)
    assert all(b < a for a, b in pairwise(losses)) and losses[-1] < losses[0] / 2, losses
    with pytest.raises(InputError, match="step 11: the gradient of w is not finite"):
        adam.step(dict(w=np.ones(2)), dict(w=np.array([1, np.nan])))
    with pytest.raises(InputError, match="step 12: a gradient of v, which is not among the arrays: equal arrays"):
        adam.step(dict(w=np.ones(2)), dict(v=np.ones(2)))
