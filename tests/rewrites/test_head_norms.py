"""Norms, gains and shifts of single heads, as queries and keys have them: one kernel, whatever heads share."""

import numpy as np
import pytest
from searched import KINDS, RAGGED, relative, structure

from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import const, diag, heads, layernorm, product, rmsnorm, rotary, softmax, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.term import formula
from opmatrix.runtime.program import Program
from rewrites.verify import unrounded, verify_steps

h, d, WIDE = 3, 4, 40


def normed(rng, norm, apart):
    """A norm of heads, with a gain and a shift of all heads alike, or of each."""
    gain, shift = (Data(rng.normal(size=(h if apart else 1) * d)) for _ in range(2))
    behind = diag(gain) + const(shift)
    return norm(1e-3) @ (heads(h).T @ behind @ heads(h) if apart else behind)


def model(rng, norm, apart):
    """Causal attention whose queries and keys are normed and rotated."""
    Q, K, V = (weight(Data(rng.normal(size=(WIDE, h * d)))) @ heads(h) for _ in range(3))
    turned, norms = rotary(32, d), [normed(rng, norm, apart) for _ in range(2)]

    def mix(x):
        q, k = (x @ W @ each @ turned for W, each in zip((Q, K), norms, strict=True))
        return product(q @ k.T * 0.5, x @ V, over=softmax, where=sequence & causal) @ heads(h).T

    return weight(Data(rng.normal(size=(WIDE, WIDE)))) @ formula(mix)


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("apart", [False, True], ids=["alike", "apart"])
@pytest.mark.parametrize("norm", [rmsnorm, layernorm], ids=["rms", "layer"])
def test_nothing_of_such_a_model_is_interpreted(rng, norm, apart, kind, tmp_path):
    operator = model(rng, norm, apart)
    found = structure(operator, *KINDS[kind])
    made, emitter = found.program({})
    used = [step.kernel for step in made.steps]
    assert "interpret" not in used and used.count("pointwise_heads") >= 2, used
    assert relative(made.exact(RAGGED, unrounded(found, emitter)), dense(operator, RAGGED)) < 1e-12
    assert relative(made.run(RAGGED), dense(operator, RAGGED)) < 1e-5
    verify_steps(made, [RAGGED])
    made.save(tmp_path / "made")
    assert np.array_equal(Program.load(tmp_path / "made").run(RAGGED), made.run(RAGGED))


def test_a_gain_of_all_heads_alike_is_stored_once(rng):
    """Of a head's columns, not of all."""
    made, _ = structure(
        weight(Data(rng.normal(size=(WIDE, h * d)))) @ heads(h) @ rmsnorm(1e-3) @ diag(rng.normal(size=d)) @ heads(h).T
    ).program({})
    [step] = [step for step in made.steps if step.kernel == "pointwise_heads"]
    assert made.constants[step.operands["gain"]].shape == (d,)


@pytest.mark.parametrize(
    "given, words",
    [
        ({"gain": np.ones(3, np.float32)}, r"gain: expected shape \(4,\), got \(3,\)"),
        ({"eps": 0.0}, "eps = 0.0 is not from"),
        ({"norm": "both"}, "'both' is unknown: give layer or rms"),
        ({"shift": np.ones((3, 4), np.float32)}, r"shift: expected shape \(4,\), got \(3, 4\)"),
    ],
)
def test_what_does_not_fit_is_said(given, words):
    from formats import kernels

    x = np.ones((2, h, d), np.float32)
    with pytest.raises(ValueError, match=words):
        kernels.pointwise_heads(x, np.empty_like(x), **given)
