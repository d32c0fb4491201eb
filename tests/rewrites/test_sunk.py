"""Sinks of attention, from the term to the kernels: what is searched and verified, in sessions, with gradients; what is
refused. And experts whose factors have biases and a function."""

import numpy as np
import pytest
from attended import BATCH, WORDS, H, N, drawn, projected, pulls_as_differences, steps_as_whole_texts
from searched import KINDS, structure

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.algebra.operators import I, attention_sunk, const, heads, pick, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.inference.cached_terms import cached_model
from opmatrix.runtime.kernels import KERNELS
from rewrites.lowering.narrowing import narrows
from rewrites.verify import verify_exact, verify_steps
from rewrites.verify.programs import unrounded


def attending(where=sequence & causal, shared=2, size=1.0, seed=0):
    """Embeddings, attention beside sinks, and what is added to."""
    q, k, v = projected(shared, seed)
    margin = const(size * drawn(H, seed=9)) @ heads(H)
    mixed = attention_sunk(q, k, v, where, margin) @ heads(H).T
    return weight(drawn(WORDS, N, seed=seed)) @ (I + mixed)


CASES = {
    "causal": attending(),
    "both ways": attending(sequence),
    "a window": attending(sequence & causal & window(3)),
    "no groups": attending(shared=H),
    "margins of any size": attending(size=100.0),
}


def test_a_sink_is_a_key_that_all_see_whose_value_is_zero():
    """In plain numpy, of one sentence."""
    x = drawn(WORDS, N)[BATCH.tokens[:9]].astype(np.float64)
    Q, K, V = (drawn(N, columns, seed=s).astype(np.float64) / 3 for s, columns in enumerate((N, 12, 12), 1))
    q, k, v = (y.reshape(9, -1, 6) for y in (x @ Q, x @ K, x @ V))
    k, v = (y.repeat(2, 1) for y in (k, v))
    scores = np.where(np.tri(9, dtype=bool), np.einsum("qhd,khd->hqk", q, k) / 6**0.5, -np.inf)
    sinks = np.broadcast_to(-drawn(H, seed=9)[:, None, None], (H, 9, 1))
    powers = np.exp(np.concatenate([scores, sinks], -1))
    shares = powers[..., :-1] / powers.sum(-1, keepdims=True)
    wanted = x + np.einsum("hqk,khd->qhd", shares, v).reshape(9, N)
    np.testing.assert_allclose(dense(CASES["causal"], BATCH)[:9], wanted, rtol=0, atol=1e-6 * abs(wanted).max())


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("case", CASES)
def test_a_term_becomes_attention_with_margins(case):
    """Imported, fused and searched it is one step of attention, equals float64, and all checks hold."""
    operator = CASES[case]
    structures = {kind: structure(operator, *how, batch=BATCH) for kind, how in KINDS.items()}
    programs = {kind: each.program({"model": kind}) for kind, each in structures.items()}
    for kind, (program, emitter) in programs.items():
        verify_exact(program, operator, [BATCH], programs["imported"][0], unrounded(structures[kind], emitter))
        [step] = [step for step in program.steps if step.kernel in ("attention", "interpret", "fold_term")]
        assert step.kernel == "attention" and "margin" in step.operands
    np.testing.assert_allclose(programs["exact"][0].run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


def test_of_one_row_a_sequence_one_query_is_left():
    operator = attending() @ pick("last")
    program, _ = structure(operator, batch=BATCH).program({})
    [step] = [step for step in program.steps if step.kernel in ("attention", "attend_once")]
    assert step.kernel == "attend_once" and "margin" in step.operands
    verify_steps(program, [BATCH])
    np.testing.assert_allclose(program.run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["causal", "a window"])
def test_a_session_gives_what_whole_texts_give(case):
    steps_as_whole_texts(CASES[case])


def test_no_term_of_caches_has_sinks():
    with pytest.raises(InputError, match=r"no term expresses masses of caches: search the model as it is"):
        cached_model(CASES["causal"])


@pytest.mark.parametrize("case", ["causal", "no groups"])
def test_gradients_are_those_of_differences(case):
    """Of steps, as terms of a model that learns are."""
    pulls_as_differences(CASES[case])


def test_scores_beside_sinks_are_not_narrowed():
    program, _ = structure(CASES["causal"], batch=BATCH).program({})
    [call] = [call for call in program.schedule.calls[program.schedule.first :] if call.kernel.name == "attention"]
    assert not narrows(call)
    with pytest.raises(ValueError, match="number_type: bf16: scores beside a sink"):
        call.kernel.shape(call.kernel.record(**vars(call.bound) | {"number_type": "bf16"}))
    with pytest.raises(ValueError, match="margin: "):
        call.kernel.shape(call.kernel.record(**vars(call.bound) | {"margin": np.zeros(3, np.float32)}))


# ---- experts


def test_factors_of_experts_with_biases_and_a_function():
    """The cotangents of rows are those of differences; a bias without a factor is refused."""
    rng, kernel = np.random.default_rng(4), KERNELS["experts"]
    up, beside = rng.normal(size=(2, 3, 10, 6))
    gate = np.array([[0.7, 0, 0.3], [0, 1, 0], [0.2, 0.8, 0], [0, 0, 0]])[:, :, None]
    biases = dict(bias=3 * rng.normal(size=18), beside_bias=3 * rng.normal(size=18))
    functions = dict(most=2, activation="clamped_gate", beside_activation="clamped_factor")
    stacks = dict(up=up, beside=beside, down=rng.normal(size=(3, 6, 5)))
    record = lambda x: kernel.record(x=x, gate=gate, residual=None, **stacks, **biases, **functions)
    x, way, g = rng.normal(size=(4, 10)), rng.normal(size=(4, 10)), rng.normal(size=(4, 5))
    ends = [kernel.reference(record(x + s * 1e-6 * way)) for s in (1, -1)]
    found = (kernel.pullback(record(x), g[None])["x"][0] * way).sum()
    assert found == pytest.approx(((ends[0] - ends[1]) * g).sum() / 2e-6, rel=1e-5)


def test_experts_of_this_form_are_one_step():
    from opmatrix.algebra.operators import affine, clamped_factor, clamped_gate, total
    from opmatrix.models.experts import best_shares

    def stack(*shape, seed):
        return affine(drawn(*shape, seed=seed) / 3, drawn(shape[0], 1, shape[2], seed=seed + 9))

    gate = om.weight(drawn(N, 4, seed=1)) @ best_shares(2) @ heads(4)
    hidden = (stack(4, N, 10, seed=2) @ clamped_gate) * (stack(4, N, 10, seed=3) @ clamped_factor)
    operator = weight(drawn(WORDS, N)) @ ((hidden @ weight(drawn(4, 10, N, seed=4)) * gate) @ total)
    program, _ = structure(operator, batch=BATCH).program({})
    [step] = [step for step in program.steps if step.kernel == "experts"]
    assert {"bias", "beside", "beside_bias"} <= step.operands.keys()
    assert step.attributes["beside_activation"] == "clamped_factor"
    verify_steps(program, [BATCH])
    wanted = dense(operator, BATCH)
    assert abs(program.run(BATCH) - wanted).max() < 1e-5 * abs(wanted).max()
