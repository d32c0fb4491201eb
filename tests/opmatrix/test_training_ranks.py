"""Forward and backward on virtual ranks: gradients are one rank's, and what is counted is what the formulas say, for
every strategy, pairs of them, and random models on random meshes."""

import numpy as np
import pytest
from partitioned import ANY, BERT, GPT2, LLAMA, TABLES, ids_of, made, random_arrays
from trained_ranks import differences, drawn, off, random_training_case, trained, without_a_dual

from formats.core.errors import InputError
from opmatrix.algebra.nodes import weight
from opmatrix.parallel.cost.step_costs import BackwardBooked
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.feeds import Feed
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.train.backward_ranks import run_backward

ONE = dict(num_hidden_layers=1)
STRATEGIES = [
    dict(x=(3, "data")),
    dict(x=(2, "zero2")),
    dict(x=(2, "tensor")),
    dict(x=(2, "sequence")),
    dict(x=(2, "ulysses")),
    dict(x=(3, "zero3"), y=(2, "gathered")),
    dict(x=(2, "sequence-vocabulary")),
    dict(d=(2, "zero1"), x=(2, "tensor-vocabulary")),
    dict(d=(2, "data"), x=(2, "sequence")),
]


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("axes", STRATEGIES, ids=str)
def test_gradients_and_counts_of_every_strategy(axes):
    """A family for each, with a policy for each."""
    k = STRATEGIES.index(axes)
    term, mesh = made((GPT2 | dict(n_layer=1), LLAMA | ONE, BERT | ONE)[k % 3]), Mesh.of(**axes)
    ids, g, alone = drawn(term, 4, 5)
    ran = run_backward(term, mesh, Feed(ids), g, keep=("units", "selective", "full")[k // 3])
    assert off(ran, alone.arrays) < 1e-13 and differences(ran) == []


@pytest.mark.parametrize("seed", [2, 3, 10])
def test_random_models_on_random_meshes(seed):
    """Of those that `benchmarks/partitions.py --backward` runs: sizes of cuts that do not divide among them."""
    case = random_training_case(seed)
    assert trained(case).agrees, str(case)


@pytest.mark.parametrize(
    "config",
    [
        LLAMA | ONE | dict(num_attention_heads=4, hidden_size=16),
        ANY | ONE | dict(positions="rotary", num_attention_heads=4),
    ],
    ids=lambda config: config["model_type"],
)
@pytest.mark.parametrize("axes", [dict(), dict(c=(2, "ring"))], ids=["alone", "ring"])
def test_one_head_of_keys_that_all_ranks_copy(config, axes):
    """Weights of keys that turn lie whole, those of values as a copy: what each rank's heads give is summed. Where rows
    are cut like their keys, the keys of each rank's heads are taken of those that are gathered."""
    term, mesh = made(config | dict(num_key_value_heads=1)), Mesh.of(**axes, x=(2, "tensor"))
    ids, g, alone = drawn(term, 2, 4)
    ran = run_backward(term, mesh, Feed(ids), g)
    assert off(ran, alone.arrays) < 1e-13 and differences(ran) == []


@pytest.mark.parametrize(
    "axes",
    [
        dict(t=(2, "sequence-vocabulary")),
        dict(t=(3, "tensor-vocabulary")),
        dict(d=(2, "data"), t=(2, "sequence-vocabulary")),
    ],
    ids=str,
)
def test_a_tied_head_gathers_rows_and_sends_no_scores(axes):
    """Scores of a vocabulary stay cut by columns, forward and back, so the gradient of the table is found where it
    lies; what crosses has as many numbers as the rows that come in, once each for forward, the gradient, the rows."""
    table, mesh = random_arrays(3)("E", 12, 6), Mesh.of(**axes)
    term, rng = weight(table.T), np.random.default_rng(0)
    x, g = rng.normal(size=(2, 6, 6)), rng.normal(size=(2, 6, 12))
    ran = run_backward(term, mesh, Feed(x), g, tokens=False)
    wanted = np.einsum("bsv,bsn->vn", g, x)
    np.testing.assert_allclose(ran.gradients["E"], wanted, rtol=1e-12)
    np.testing.assert_allclose(ran.value.reshape(12, 12), x.reshape(12, 6) @ table.array.T, rtol=1e-12)
    assert differences(ran) == []
    crossed = [each for each in ran.sent[0] if each.axis == "t"]
    rows = x.size // (2 if "d" in axes else 1)
    assert len(crossed) == (3 if "sequence" in str(axes) else 1)
    assert {int(even(each.whole)) for each in crossed} == {rows}
    assert [each.axis for each in ran.sent[1]] == [name for name in axes if name == "d"]


def test_a_crossing_or_a_dual_that_is_left_out_is_found(monkeypatch):
    """Formulas without the last crossing differ from what was counted; cotangents of which each rank has a part, taken
    for the whole, give other gradients."""
    term, mesh = made(GPT2 | dict(n_layer=1)), Mesh.of(x=(2, "tensor"))
    ids, g, alone = drawn(term, 2, 5)
    ran = run_backward(term, mesh, Feed(ids), g)
    whole = BackwardBooked.crossings_of
    with monkeypatch.context() as patched:
        patched.setattr(BackwardBooked, "crossings_of", lambda self, *phases: [*whole(self, *phases)][:-1])
        assert {*differences(ran)} == {*TABLES}
    with without_a_dual():
        assert off(run_backward(term, mesh, Feed(ids), g), alone.arrays) > 0.01


def test_dropout_is_the_same_on_every_mesh():
    """Masks are data: whoever holds a part of a value reads that part of its mask."""
    term, rng = made(GPT2 | dict(n_layer=1)), np.random.default_rng(0)
    ids, g, _ = drawn(term, 2, 5)
    shapes = (6, 5, 5), (1, 5, 12), (1, 5, 12)
    masks = {f"dropout {k}": rng.random((2, *shape)) < 0.7 for k, shape in enumerate(shapes)}
    one, two = (
        run_backward(term, Mesh.of(**axes), Feed(ids, inputs=masks), g, dropout=0.3)
        for axes in ({}, dict(x=(2, "sequence")))
    )
    for name, each in one.gradients.items():
        np.testing.assert_allclose(two.gradients[name], each, atol=1e-12)
    plain = run_backward(term, Mesh.of(), Feed(ids), g)
    assert np.abs(plain.value - one.value).max() > 0.1


def test_stages_are_refused():
    with pytest.raises(InputError, match="virtual ranks run one stage forward and back: leave stages out"):
        run_backward(made(GPT2), Mesh.of(p=(2, "pipeline")), Feed(ids_of(2, 4)), np.ones((2, 4, 12)))
