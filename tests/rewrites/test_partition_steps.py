"""The derivation of a partition prints: each rule with its equation and what crosses, equal factors once."""

import pytest
import sympy

from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.data import Promised
from opmatrix.models import build
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from rewrites.explain.derivations.partitioned import derivation_of, runs
from rewrites.laws.law import PARTITION

CONFIG = dict(model_type="gpt2", vocab_size=50, n_embd=24, n_positions=40, n_head=6, n_layer=3)
MODEL = build(CONFIG, lambda name, *shape: Promised(name, shape))


def derived(sizes=None, **axes):
    plan = partition(MODEL, Mesh.of(**axes), sizes or BatchSizes(), name="gpt2")
    return plan, derivation_of(plan)


def test_tensor_parallel_layer():
    """Columns and rows of weights in turns, and an all-reduce behind each pair."""
    _, found = derived(tp=(2, "tensor"))
    mlp = next(part for part in found.parts if any("mlp" in step.what for step in part.steps))
    assert [str(step) for step in mlp.steps if step.rule != ("add", "entry by entry")] == [
        "PARTITION tp: columns of a matrix (h_0_mlp_c_fc_weight): x @ W = [x @ W1 .. x @ Wn]",
        "PARTITION tp: slice: x = [x1 .. xn]",
        "PARTITION tp: columns: [x1 .. xn] @ f = [x1 @ f .. xn @ f]",
        "PARTITION tp: rows of a matrix (h_0_mlp_c_proj_weight): [x1 .. xn] @ [W1; ..; Wn] = x1 @ W1 + .. + xn @ Wn",
        "PARTITION tp: all-reduce: x = x1 + .. + xn, in any order: "
        "all-reduce over tp of 24·b·s numbers, 24·b·s on the wire",
    ]


def test_equal_layers_are_said_once():
    _, found = derived(tp=(2, "tensor"))
    assert [part.factors for part in found.parts] == [(1,), (2, 4, 6), (3, 5, 7), (8,)]
    assert "\nfactor 2 of 8, and alike 4, 6\n" in str(found) and str(found).count("c_proj") == 2
    assert str(found).startswith(f"gpt2: {len([*found.steps])} steps\nfactor 1 of 8\n")


def test_stages_and_stored_weights():
    plan, found = derived(pp=(2, "pipeline"), dp=(2, "zero3"))
    first, second, stored = map(str, found.between)
    assert first == (
        "PARTITION pp: stages (stage 1: factors 1 to 5): x @ (A @ B) = (x @ A) @ B: "
        "send over pp of 12·b·s numbers, 12·b·s on the wire"
    )
    assert second == "PARTITION pp: stages (stage 2: factors 6 to 8): x @ (A @ B) = (x @ A) @ B"
    weights = sum(plan.parameters(stage) for stage in range(2))
    assert f"all-gather over dp of {weights} numbers" in stored


def test_a_ring_is_an_equation_of_carriers():
    _, found = derived(BatchSizes(2, 12), tp=(2, "tensor"), cp=(2, "ring"))
    [ring] = [step for step in found.steps if step.rule == ("ring", "ring of keys")]
    assert str(ring) == (
        "PARTITION cp: ring of keys (softmax where sequence & causal): z · v over softmax = "
        "finish(merge(own block, block of the left neighbour, ..)): "
        "send over cp of 576 numbers, 288 on the wire"
    )


@pytest.mark.parametrize(
    "axes",
    [
        dict(tp=(2, "sequence-vocabulary")),
        dict(dp=(2, "data"), cp=(2, "ulysses")),
        dict(cp=(2, "keys")),
        dict(dp=(2, "zero3"), tp=(3, "tensor"), cp=(2, "ring")),
    ],
)
def test_all_that_crosses_is_said(axes):
    """As many steps send as the plan books, each with its axis; every step is of its kind and says an equation."""
    plan, found = derived(BatchSizes(4, 12), **axes)
    sent = [step.crosses for step in found.steps if step.crosses and step.what != "stored weights"]
    booked = [each for group in plan.stages[0] for each in group.crossings]
    assert len(sent) == len(booked) > 0
    assert [text.split(" of ")[0] for text in sent] == [
        f"{each.op.replace('_', '-')} over {each.axis}" for each in booked
    ]
    assert all(step.kind == PARTITION and "=" in step.says and step.axes for step in found.steps)


def test_one_rank_derives_nothing():
    _, found = derived()
    assert not [*found.steps] and "PARTITION" not in str(found)


def test_runs_of_numbers():
    assert runs([1, 2, 3, 5, 7, 8]) == "1 to 3, 5, 7 to 8" and runs([4]) == "4"


def test_sizes_may_be_names():
    """Ranks, sequences and tokens as symbols stay so."""
    _, found = derived(BatchSizes(sympy.Symbol("b", positive=True, integer=True), 12), tp=("t", "tensor"))
    assert "all-reduce over tp of 288·b numbers" in str(found)
