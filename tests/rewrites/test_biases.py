"""A bias of scores by distance, from the term to the kernels of attention: what is searched, verified, planted, kept in
sessions, split among ranks; and what is refused."""

import numpy as np
import pytest
from partitioned import compared
from searched import KINDS, structure

import opmatrix as om
from formats import kernels
from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I, affine, by_distance, heads, pick, product, repeat, weight
from opmatrix.algebra.oracles import dense, entrywise
from opmatrix.algebra.positions.distances import alibi, bucketed, list_slopes, number_buckets
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.inference.cached import cached
from opmatrix.inference.cached_terms import cached_model, check_sessions
from opmatrix.models import build
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.runtime.program import Program
from rewrites.verify import VerificationError, verify_exact, verify_steps
from rewrites.verify.programs import unrounded

WORDS, N, H = 30, 24, 4
BATCH = Batch([[3, 4, 5, 6, 7, 9, 20, 2, 11], [8], [9, 2, 10, 11, 4, 4, 0, 2, 3, 1, 1, 1, 5, 6, 7]])


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def table(own=H, most=5):
    return by_distance(Data(drawn(own, 2 * most + 1, seed=9), "near"), most)


def attending(bias, where=sequence, scale=0.4, shared=H, shift=False, first=False):
    """Embeddings, attention with a bias, and what is added to."""

    def linear(seed, columns):
        w = drawn(N, columns, seed=seed) / 5
        return affine(w, drawn(columns, seed=seed + 10)) if shift else weight(w)

    def mixed(x):
        q, (k, v) = x @ linear(1, N) @ heads(H), (x @ linear(s, N // H * shared) @ heads(shared) for s in (2, 3))
        if shared != H:
            k, v = k @ repeat(H), v @ repeat(H)
        scores = q @ k.T if scale == 1 else q @ k.T * scale
        near = bias + scores if first else scores + bias
        return product(near, v, over="softmax", where=where) @ heads(H).T

    return weight(drawn(WORDS, N)) @ (I + om.formula(mixed))


CASES = {
    "alibi": (alibi(H, 20), {}),
    "alibi, causal": (alibi(H, 20), dict(where=sequence & causal)),
    "t5": (bucketed(Data(drawn(8, H, seed=4), "buckets"), 12), dict(scale=1)),
    "one table for all heads": (table(1), {}),
    "groups": (table(), dict(shared=2)),
    "the bias first": (table(), dict(first=True, shift=True)),
    "shifts": (table(), dict(shift=True, where=sequence & causal)),
    "a window": (table(), dict(where=sequence & om.window(3))),
}


@pytest.mark.deep(every=4)
@pytest.mark.parametrize("case", CASES)
def test_a_term_becomes_attention_with_a_bias(case):
    """Imported, fused and searched it has no step that is read, equals float64, and all checks hold."""
    bias, more = CASES[case]
    operator = attending(bias, **more)
    structures = {kind: structure(operator, *how, batch=BATCH) for kind, how in KINDS.items()}
    programs = {kind: each.program({"model": kind}) for kind, each in structures.items()}
    for kind, (program, emitter) in programs.items():
        assert not {"interpret", "row_term"} & {step.kernel for step in program.steps}, kind
        verify_exact(program, operator, [BATCH], programs["imported"][0], unrounded(structures[kind], emitter))
    exact = programs["exact"][0]
    [step] = [step for step in exact.steps if step.kernel == "attention"]
    assert exact.constants[step.operands["bias"]].shape == bias.args[0].shape
    assert sum(step.kernel == "linear" for step in exact.steps) <= 2  # queries, keys and values are one product
    np.testing.assert_allclose(exact.run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["last", "first"])
def test_of_one_row_a_sequence_one_query_is_left(which):
    operator = attending(table()) @ pick(which)
    program, _ = structure(operator, batch=BATCH).program({})
    [step] = [step for step in program.steps if step.kernel in ("attention", "attend_once")]
    assert step.kernel == "attend_once" and "bias" in step.operands and step.attributes["query"] == which
    verify_steps(program, [BATCH])
    np.testing.assert_allclose(program.run(BATCH), dense(operator, BATCH), rtol=1e-4, atol=1e-5)


def test_distances_from_another_row_than_the_query_are_no_bias_of_it():
    def mixed(x):
        q, k, v = (x @ weight(drawn(N, N, seed=s) / 5) @ heads(H) for s in (1, 2, 3))
        return product((q @ pick("last")) @ k.T + table() @ pick("first"), v, over="softmax") @ heads(H).T

    operator = weight(drawn(WORDS, N)) @ om.formula(mixed)
    program, _ = structure(operator, batch=Batch([[1, 2, 3, 4, 5]])).program({})
    assert "attend_once" not in {step.kernel for step in program.steps}


def test_a_bias_shifted_by_one_is_found_in_a_program():
    """The program is run beside the model."""
    made = structure(operator := attending(table()), batch=BATCH)
    right, emitter = made.program({})
    [step] = [step for step in right.steps if step.kernel == "attention"]
    shifted = np.ascontiguousarray(np.roll(right.constants[name := step.operands["bias"]], 1, 1))
    wrong = Program(right.steps, {**right.constants, name: shifted}, right.outputs, right.meta)
    verify_exact(right, operator, [BATCH], right, unrounded(made, emitter))
    with pytest.raises(VerificationError):
        verify_exact(wrong, operator, [BATCH], right, {**unrounded(made, emitter), name: shifted.astype(float)})


@pytest.mark.parametrize("kernel, more", [("attention", {}), ("attend_once", {"which": "last"})])
def test_a_kernel_that_shifts_its_bias_by_one_is_found(monkeypatch, kernel, more):
    operator = attending(alibi(H, 20)) if not more else attending(table()) @ pick("last")
    made, _ = structure(operator, batch=BATCH).program({})
    verify_steps(made, [BATCH])
    right = getattr(kernels, kernel)

    def shifted(*given, bias=None, **options):
        if bias is None:
            *given, bias, options["cap"], options["margin"] = given
        return right(*given, bias=np.ascontiguousarray(np.roll(bias, 1, 1)), **options)

    monkeypatch.setattr(kernels, kernel, shifted)
    with pytest.raises(VerificationError, match=kernel):
        verify_steps(made, [BATCH])


# ---- sessions


def test_a_session_of_a_bloom_gives_what_whole_texts_give():
    config = dict(model_type="bloom", vocab_size=WORDS, hidden_size=N, n_layer=2, n_head=H, seq_length=400)

    def at(name, *shape):
        return Data(drawn(*shape, seed=len(name)) * (0.3 if len(shape) > 1 else 1), name)

    model = build(config, at)
    text = np.random.default_rng(1).integers(0, WORDS, 300).tolist()
    whole = structure(model, batch=BATCH).program({"config": config})[0]
    rows, session = whole.run(Batch([text])), cached(whole).start(400)
    own = session.join()

    def near(found, k):
        np.testing.assert_allclose(np.reshape(found, (-1, N))[-1], rows[k], rtol=1e-3, atol=1e-4)

    near(session.step({own: text[:270]}), 269)
    for k in range(270, 300):
        near(session.step({own: [text[k]]}), k)


def test_terms_over_caches_say_no_distances():
    model = attending(table(), where=sequence & causal)
    with pytest.raises(InputError, match=r"by_distance.*apply cached\(program\)"):
        cached_model(model)
    check_sessions(model)  # of a program a session computes it


# ---- tables


def test_slopes_are_those_that_were_published():
    """Press et al. 2022: a geometric sequence for a power of two; for 12 heads those of 8, and every second of 16."""
    assert list_slopes(8) == [2.0**-k for k in range(1, 9)]
    assert list_slopes(12) == list_slopes(8) + [2.0 ** -(k + 0.5) for k in range(4)]
    assert list_slopes(1) == [2.0**-8]


def test_buckets_are_those_of_the_paper():
    """Single distances, then wider ones, one for all beyond; keys behind the query in the other half."""
    both = number_buckets(np.array([0, -1, -7, -8, -16, -200, 1, 7, 8, 200]), 32, 128, True)
    assert both.tolist() == [0, 1, 7, 8, 10, 15, 17, 23, 24, 31]
    one = number_buckets(np.array([5, 0, -1, -15, -16, -500]), 32, 128, False)
    assert one.tolist() == [0, 0, 1, 15, 16, 31]


def test_both_oracles_agree():
    x, batch = drawn(9, 6), Batch([[0] * 7, [0] * 2])
    term = om.formula(lambda x: product(x @ x.T + by_distance(Data(drawn(1, 5)), 2), x, over="softmax", where=sequence))
    np.testing.assert_allclose(entrywise(term, x, batch)[0].astype(float), dense(term, x, batch), rtol=1e-12)


@pytest.mark.parametrize(
    "made, said",
    [
        (lambda: by_distance(np.zeros((4, 8)), 4), "a table of 4 × 8 for distances up to 4: give .* 9 columns"),
        (lambda: by_distance(np.zeros((4, 7)), 4), "a table of 4 × 7 for distances up to 4"),
        (lambda: by_distance(np.zeros(9), 4), "a table of 9 for distances"),
        (lambda: by_distance(np.full((4, 9), np.inf), 4), "not finite"),
        (lambda: attending(alibi(3, 9)), "heads 4 ≠ 3"),
        (lambda: alibi(0, 9), "alibi: heads is 0"),
        (lambda: alibi(4, 0), "alibi: most is 0"),
        (lambda: bucketed(Data(np.zeros((3, 4)))), "bucketed: numbers of"),
        (lambda: pick("last") @ by_distance(np.zeros((4, 9)), 4), "distances are between tokens"),
    ],
    ids=range(9),
)
def test_what_is_no_table_is_refused(made, said):
    with pytest.raises((TypeError, ValueError, InputError), match=said) as error:
        made()
    assert "\n" not in str(error.value)


# ---- ranks, gradients


@pytest.mark.parametrize("strategy", ["data", "tensor", "sequence", "ulysses", "ring", "zero3"])
def test_ranks_give_what_one_gives(strategy):
    """Each has the numbers of its heads, and of its rows."""
    found = compared(attending(table(most=3), where=sequence & causal), Mesh.of(x=(2, strategy)), 4, 7)
    assert found.agrees, found


def test_a_table_that_would_learn_has_no_pullback_and_says_so():
    model = attending(table())
    with pytest.raises(InputError, match=r"pullback: by_distance\(near\): .* not implemented"):
        om.pullback(model)
