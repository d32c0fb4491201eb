"""Gradients of scans and of linear attention: against finite differences, for every monoid that has them, both patterns
and every way in which operands spread; whatever is kept; as terms; what is refused."""

import numpy as np
import pytest
from partitioned import VOCABULARY, random_arrays
from trained_ranks import differences, off
from trained_ranks import drawn as one_rank

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.operators import (
    I,
    const,
    delta_rule,
    gated_delta_rule,
    gated_linear_attention,
    heads,
    linear_attention,
    scan,
    sigmoid,
    weight,
)
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.term import formula
from opmatrix.autodiff.backward_kinds import backwards
from opmatrix.autodiff.checkpoint_policy import NAMED_POLICIES
from opmatrix.autodiff.pullback import pullback
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.train.backward_ranks import run_backward

PREFIX = sequence & causal
OVER = "sum", "decay"
N, LENGTHS = 4, (5, 1, 3)
BATCH = om.Batch([[0] * length for length in LENGTHS])
SHAPES = dict(
    A=(N, N),
    one=(N, 1),
    q=(N, 4),
    k=(N, 4),
    v=(N, 6),
    k1=(N, 2),
    v1=(N, 3),
    gate=(N, 2),
    row=(N,),
    rates=(2,),
    beta=(N, 2),
    beta1=(N, 1),
)


def drawn(seed=0):
    rng = np.random.default_rng([seed, 53])
    return {name: rng.uniform(0.2, 0.9, shape) * rng.choice([1, -1], shape) for name, shape in SHAPES.items()}


def scanned(left, right):
    return lambda x, W, where, over: scan(left(x, W), right(x, W), over, where)


def decayed(decays, keys="k", values="v"):
    """Linear attention of two heads, of which keys and values may be those of one; with decays or without."""

    def mixed(x, W, where, over):
        q, k, v = (x @ W(name) for name in ("q", keys, values))
        parts = q @ heads(2), *(part @ heads(2) if name in "kv" else part for part, name in ((k, keys), (v, values)))
        made = linear_attention(*parts, where) if over == "sum" else gated_linear_attention(*parts, decays(x, W), where)
        return made @ heads(2).T

    return mixed


def corrected(decays=None, keys="k", betas="beta"):
    """The delta rule of two heads, of which keys and betas may be those of one; with decays or without."""

    def mixed(x, W, where, over):
        split = lambda name: x @ W(name) if name in ("k1", "beta1") else x @ W(name) @ heads(2)
        parts = split("q"), split(keys), split("v"), split(betas) @ sigmoid
        made = gated_delta_rule(*parts, decays(x, W)) if decays else delta_rule(*parts)
        return made @ heads(2).T

    return mixed


DELTA = {
    "delta": corrected(),
    "delta, one head of keys": corrected(keys="k1"),
    "delta, heads": corrected(lambda x, W: x @ W("gate") @ sigmoid @ heads(2)),
    "delta, columns of keys": corrected(lambda x, W: x @ W("A") @ sigmoid @ heads(2), betas="beta1"),
    "delta, rates": corrected(lambda x, W: W("rates") @ heads(2)),
}
FORMS = DELTA | {
    "columns": scanned(lambda x, W: x @ sigmoid, lambda x, W: x @ W("A")),
    "a factor a row": scanned(lambda x, W: x @ W("one") @ sigmoid, lambda x, W: x),
    "one number for rows": scanned(lambda x, W: x @ W("A") @ sigmoid, lambda x, W: x @ W("one")),
    "factors that all rows have": scanned(lambda x, W: W("row"), lambda x, W: x),
    "numbers that all rows have": scanned(lambda x, W: x @ sigmoid, lambda x, W: W("row")),
    "no rows": scanned(lambda x, W: const(0.5), lambda x, W: x @ W("A")),
    "factors above 1": scanned(lambda x, W: x @ W("A") * 2.0, lambda x, W: x),
    "heads": decayed(lambda x, W: x @ W("gate") @ sigmoid @ heads(2)),
    "columns of keys": decayed(lambda x, W: x @ W("A") @ sigmoid @ heads(2)),
    "rates": decayed(lambda x, W: W("rates") @ heads(2)),
    "shared keys and values": decayed(lambda x, W: x @ W("gate") @ sigmoid @ heads(2), "k1", "v1"),
}


def made(form, where, over, arrays):
    """The term of a form over arrays: constants of one row, else weights."""

    def learned(name):
        return (const if arrays[name].ndim == 1 else weight)(om.Data(arrays[name], name))

    return formula(lambda x: FORMS[form](x, learned, where, over))


@pytest.mark.parametrize(
    ("form", "where", "over"),
    [(form, where, over) for form in FORMS if form not in DELTA for where in (PREFIX, sequence) for over in OVER]
    + [(form, PREFIX, "delta") for form in DELTA],
    ids=str,
)
def test_gradients_are_those_of_differences(form, where, over):
    """Of x and of every array, along random directions."""
    arrays, rng = drawn(), np.random.default_rng(1)
    x, step = rng.normal(size=(sum(LENGTHS), N)), 1e-5
    term = made(form, where, over, arrays)
    value = om.dense(term, x, BATCH)
    g, way = rng.normal(size=value.shape), rng.normal(size=x.shape)
    found = pullback(term, x=N).at(x, BATCH, g)
    np.testing.assert_allclose(found.value, value, rtol=1e-12)

    def slope(at):
        return sum(sign * (at(sign * step) * g).sum() for sign in (1, -1)) / (2 * step)

    wanted = slope(lambda t: om.dense(term, x + t * way, BATCH))
    assert (found.x.reshape(x.shape) * way).sum() == pytest.approx(wanted, rel=1e-6, abs=1e-7)
    for name, gradient in found.arrays.items():
        way = rng.normal(size=arrays[name].shape)
        moved = lambda t, name=name, way=way: arrays | {name: arrays[name] + t * way}
        wanted = slope(lambda t, moved=moved: om.dense(made(form, where, over, moved(t)), x, BATCH))
        assert (gradient.reshape(way.shape) * way).sum() == pytest.approx(wanted, rel=1e-6, abs=1e-7), name
    named = {part for node in term.walk() for part in map(str, node.attributes)}
    assert {*found.arrays} == {name for name in SHAPES if name in named}


@pytest.mark.parametrize(
    ("form", "where"),
    [(form, where) for form in ("columns", "columns of keys") for where in (PREFIX, sequence)]
    + [("delta, heads", PREFIX)],
    ids=str,
)
def test_what_is_kept_changes_no_gradient(form, where):
    x = np.random.default_rng(2).normal(size=(sum(LENGTHS), N))
    first, *others = (pullback(made(form, where, "decay", drawn()), x=N, keep=keep) for keep in NAMED_POLICIES)
    wanted = first.at(x, BATCH)
    assert any(first.again) or first.kept
    for other in others:
        found = other.at(x, BATCH)
        np.testing.assert_array_equal(found.x, wanted.x)
        for name, array in wanted.arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)


@pytest.mark.parametrize("form", ["columns", "delta, heads"])
def test_a_sequence_has_the_gradients_that_it_has_alone(form):
    """No factor of a row reaches the rows of another sequence."""
    term, x = made(form, PREFIX, "decay", drawn()), np.random.default_rng(3).normal(size=(sum(LENGTHS), N))
    pulled, ends = pullback(term, x=N), np.cumsum(LENGTHS)
    whole = pulled.at(x, BATCH).x
    for length, end in zip(LENGTHS, ends, strict=True):
        alone = pulled.at(x[end - length : end], om.Batch([[0] * length])).x
        np.testing.assert_allclose(whole[end - length : end], alone, rtol=1e-12)


def test_a_factor_of_0_lets_no_gradient_pass():
    reset = formula(lambda x: scan(x @ om.cols(0, 1, 2), x @ om.cols(1, 2, 2), om.decay))
    rows = np.stack([np.array([0.5, 0.5, 0, 0.5, 0.5]), np.arange(1.0, 6)], 1)
    g = np.array([[0.0], [0], [0], [0], [1]])
    back = pullback(reset, x=2).at(rows, om.Batch([[0] * 5]), g).x
    np.testing.assert_allclose(back[:, 1], [0, 0, 0.25, 0.5, 1])
    np.testing.assert_allclose(back[:, 0], [0, 0, 0.25 * 2.5, 0.5 * 3, 5.5])


@pytest.mark.parametrize("form", ["columns", "delta, columns of keys"])
def test_gradients_are_terms(form):
    rng, term = np.random.default_rng(4), made(form, PREFIX, "decay", drawn())
    x, g = (rng.normal(size=(sum(LENGTHS), n)).astype(np.float32) for n in (N, term.out.cols))
    pulled = pullback(term, x=N)
    batch = om.Batch([[0] * length for length in LENGTHS], inputs=dict(cotangent=g))
    found = pulled.at(x, batch, g)
    np.testing.assert_allclose(om.dense(pulled.cotangent, x, batch), found.x, rtol=1e-10)
    np.testing.assert_allclose(om.dense(pulled.gradient("A"), x, batch), found.arrays["A"], rtol=1e-10)
    for oracle in (om.dense, om.entrywise):
        rows = np.asarray(oracle(backwards(), x, batch)).astype(float).reshape(x.shape)
        np.testing.assert_array_equal(rows, np.concatenate([x[:5][::-1], x[5:6], x[6:][::-1]]))


def test_a_table_of_tokens_learns_behind_one_head():
    """One-hot rows, which are never written out: what two orders of linear attention give its table."""
    table, batch = om.Data(np.random.default_rng(5).normal(size=(6, N)), "table"), om.Batch([[3, 1, 5, 1], [2, 0]])
    g = np.random.default_rng(6).normal(size=(6, N))
    found = [
        pullback(weight(table) @ formula(mixed), tokens=True).at(batch, cotangent=g).arrays["table"]
        for mixed in (lambda x: linear_attention(x, x, x), lambda x: gated_linear_attention(x, x, x, const(1.0)))
    ]
    np.testing.assert_allclose(*found, rtol=1e-12)
    rows, wanted = table.array[batch.tokens], np.zeros((6, N))
    for lo, hi in ((0, 4), (4, 6)):
        q = k = v = rows[lo:hi]
        seen, back = np.tril(np.ones((hi - lo, hi - lo))), g[lo:hi]
        of_scores = (back @ v.T) * seen
        of_rows = of_scores @ k + of_scores.T @ q + ((q @ k.T) * seen).T @ back
        np.add.at(wanted, batch.tokens[lo:hi], of_rows)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-10)


@pytest.mark.parametrize(
    ("term", "named"),
    [
        (scan(const(1.0), I, om.monoids.max), "a scan over max"),
        (scan(const(1.0), I, om.monoids.mean), "a scan over mean"),
    ],
    ids=["max", "mean"],
)
def test_others_are_refused_by_name(term, named):
    with pytest.raises(InputError, match=rf"^pullback: {named} has no pullback") as caught:
        pullback(term, x=N)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", ["linear attention", "delta rule"])
@pytest.mark.parametrize("name", ["data", "zero3", "tensor", "sequence", "rows"])
def test_ranks_have_the_gradients_of_one(name, rule):
    """Sequences and heads stay sharded, rows are gathered; what is counted is what the formulas say."""
    at = random_arrays()
    parts = [weight(at(part, 12, 12)) @ heads(2) for part in "qkv"] + [weight(at("g", 12, 2)) @ sigmoid @ heads(2)]
    if rule == "delta rule":
        mixed = gated_delta_rule(*parts, weight(at("b", 12, 2)) @ sigmoid @ heads(2))
    else:
        mixed = gated_linear_attention(*parts)
    mixed = mixed @ heads(2).T @ weight(at("o", 12, 12))
    term = weight(at("table", VOCABULARY, 12)) @ (I + mixed) @ scan(const(0.5), I, om.decay)
    ids, g, alone = one_rank(term, 4, 6)
    ran = run_backward(term, om.Mesh.of(x=(2, name)), Feed(ids), g)
    assert off(ran, alone.arrays) < 1e-12 and not differences(ran)
