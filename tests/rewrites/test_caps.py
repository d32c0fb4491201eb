"""Capped scores, from the term to the kernels of attention: what is searched and verified, in sessions, exported, with
gradients; and what is refused."""

import numpy as np
import pytest
from attended import BATCH, WORDS, H, N, drawn, projected, pulls_as_differences, steps_as_whole_texts
from searched import KINDS, structure

import opmatrix as om
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.operators import I, attention_capped, capped, heads, pick, tanh, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.positions.patterns import causal, sequence, window
from opmatrix.autodiff.pullback import pullback
from rewrites.lowering.narrowing import narrows
from rewrites.verify import verify_exact, verify_steps
from rewrites.verify.programs import unrounded


def attending(where=sequence & causal, shared=2, cap=1.5, seed=0):
    """Embeddings, attention with capped scores, and what is added to."""
    q, k, v = projected(shared, seed)
    mixed = attention_capped(q, k, v, where, cap) @ heads(H).T
    return weight(drawn(WORDS, N, seed=seed)) @ (I + mixed)


CASES = {
    "causal": attending(),
    "both ways": attending(sequence),
    "a window": attending(sequence & causal & window(3)),
    "no groups": attending(shared=H),
    "a large cap": attending(cap=50.0),
}


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("case", CASES)
def test_a_term_becomes_attention_with_a_cap(case):
    """Imported, fused and searched it is one step of attention, equals float64, and all checks hold."""
    operator = CASES[case]
    structures = {kind: structure(operator, *how, batch=BATCH) for kind, how in KINDS.items()}
    programs = {kind: each.program({"model": kind}) for kind, each in structures.items()}
    for kind, (program, emitter) in programs.items():
        verify_exact(program, operator, [BATCH], programs["imported"][0], unrounded(structures[kind], emitter))
    exact = programs["exact"][0]
    [step] = [step for step in exact.steps if step.kernel in ("attention", "interpret", "fold_term")]
    assert step.kernel == "attention" and step.attributes["cap"] == operator_cap(case)
    np.testing.assert_allclose(exact.run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


def operator_cap(case):
    return 50.0 if case == "a large cap" else 1.5


def test_a_cap_of_two_factors_is_found():
    """1/√d and 1/cap, written apart, are one number of the queries."""

    def mixed(x):
        q, k, v = (x @ weight(drawn(N, N, seed=s) / 3) @ om.heads(H) for s in (1, 2, 3))
        scores = ((q @ k.T * 6**-0.5) * (1 / 1.5)) @ tanh * 1.5
        return om.product(scores, v, over=om.softmax, where=sequence & causal) @ om.heads(H).T

    operator = weight(drawn(WORDS, N)) @ om.formula(mixed)
    program, _ = structure(operator, batch=BATCH).program({})
    [step] = [step for step in program.steps if step.kernel == "attention"]
    assert step.attributes["cap"] == 1.5
    np.testing.assert_allclose(program.run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


def test_of_one_row_a_sequence_one_query_is_left():
    operator = attending() @ pick("last")
    program, _ = structure(operator, batch=BATCH).program({})
    [step] = [step for step in program.steps if step.kernel in ("attention", "attend_once")]
    assert (step.kernel, step.attributes["cap"]) == ("attend_once", 1.5)
    verify_steps(program, [BATCH])
    np.testing.assert_allclose(program.run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["causal", "a window"])
def test_a_session_gives_what_whole_texts_give(case):
    steps_as_whole_texts(CASES[case])


@pytest.mark.parametrize("case", ["causal", "no groups"])
def test_gradients_are_those_of_differences(case):
    """Of steps, as terms of a model that learns are."""
    pulls_as_differences(CASES[case])


def test_a_term_that_learns_has_its_cotangent():
    operator = om.formula(lambda x: om.product((x @ x.T * 0.3) @ tanh * 1.5, x, over=om.softmax, where=sequence))
    rng = np.random.default_rng(3)
    x, way = rng.normal(size=(2, 5, 4))
    batch = Batch([[1, 2], [3, 4, 5]])
    y = dense(operator, x, batch)
    g = rng.normal(size=y.shape)
    wanted = sum(s * (dense(operator, x + s * 1e-5 * way, batch) * g).sum() for s in (1, -1)) / 2e-5
    assert (pullback(operator, x=4).at(x, batch, g).x * way).sum() == pytest.approx(wanted, rel=1e-6)


def test_scores_with_a_cap_are_not_narrowed():
    program, _ = structure(CASES["causal"], batch=BATCH).program({})
    calls = program.schedule.calls[program.schedule.first :]
    assert [narrows(call) for call in calls if call.kernel.name == "attention"] == [False]
    [call] = [call for call in calls if call.kernel.name == "attention"]
    with pytest.raises(ValueError, match="number_type: bf16: scores with a cap"):
        call.kernel.shape(call.kernel.record(**vars(call.bound) | {"number_type": "bf16"}))


def test_numbers_lie_within_their_cap():
    x = np.random.default_rng(0).normal(size=(9, 4)) * 100
    found = dense(capped(I, 3.0), x, Batch([[*range(9)]]))
    np.testing.assert_allclose(found, 3 * np.tanh(x / 3), rtol=1e-12)
