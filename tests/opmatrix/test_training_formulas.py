"""Formulas of the literature on training, derived from backward lines and typed in here alone (Korthikanti et al. 2022;
Shoeybi et al. 2019; Rajbhandari et al. 2020), and the activations of its figure 1."""

import csv
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import sympy
from partitioned import ANY, LLAMA

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch_sizes import BatchSizes
from opmatrix.algebra.shapes import size
from opmatrix.models import promised
from opmatrix.parallel.cost.formulas import busiest
from opmatrix.parallel.cost.step_costs import busiest_kept, training_step
from opmatrix.parallel.cost.step_time import STATES
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition
from opmatrix.parallel.train.backward_split import BackwardSplit

B, S, H, A, T = map(size, "bshat")
Q = A * S / H  # a s / h
DROPOUT = 0.1


@cache
def gpt(layers=2, **changed):
    """A GPT with a name for every size."""
    sizes = dict(
        hidden_size=H,
        intermediate_size=4 * H,
        num_attention_heads=A,
        num_key_value_heads=A,
        head_dim=H / A,
        num_hidden_layers=layers,
        mask="sequence & causal",
    )
    return promised(ANY | sizes | changed)


@cache
def layer_of(keep="units", dropout=DROPOUT, model=None, **axes):
    """A step of training of a model with two layers, and what stands for both."""
    step = training_step(partition(model or gpt(), Mesh.of(**axes)), keep, dropout)
    return step, step.stages[0][1].booked


def kept(keep="units", dropout=DROPOUT, model=None, **axes):
    """Bytes that a layer keeps, by s b h."""
    found = layer_of(keep, dropout, model, **axes)[1].kept()
    return sympy.expand(even(sum(found.values())) / (S * B * H))


TENSOR, SEQUENCE = dict(x=("t", "tensor")), dict(x=("t", "sequence"))


@pytest.mark.parametrize(
    "wanted, told",
    [
        (34 + 5 * Q, {}),
        (10 + 24 / T + 5 * Q / T, TENSOR),
        ((34 + 5 * Q) / T, SEQUENCE),
        (34, dict(keep="selective")),
        (10 + 24 / T, dict(keep="selective", **TENSOR)),
        (34 / T, dict(keep="selective", **SEQUENCE)),
        (2, dict(keep="full")),
        (2, dict(keep="full", **TENSOR)),
        (2 / T, dict(keep="full", **SEQUENCE)),
        (32 + 2 * Q, dict(dropout=0)),
        (8 + 24 / T + 2 * Q / T, dict(dropout=0, **TENSOR)),
        (32, dict(dropout=0, keep="selective")),
        ((34 + 5 * Q) / T, dict(x=("t", "data"))),
    ],
    ids=str,
)
def test_a_layer_keeps_what_the_literature_says(wanted, told):
    """Table 2 of Korthikanti et al.; and without dropout, whose masks and dropped shares then are not there."""
    assert sympy.expand(kept(**told) - wanted) == 0


def test_the_fewest_bytes_are_fewer():
    """Without a product computed again: norms, functions of single numbers and shares run once more."""
    assert sympy.expand(kept("least") - (22 + 3 * Q)) == 0 and sympy.expand(kept("least", 0) - (20 + 2 * Q)) == 0
    assert layer_of("least")[1].flops_of("again") == 0


def test_another_term_keeps_other_values():
    """A gated layer of roots: the gate and what it lets through, wider; grouped keys are kept as they are made."""
    llama = promised(
        LLAMA
        | dict(
            hidden_size=H, intermediate_size=4 * H, num_attention_heads=A, num_hidden_layers=2, num_key_value_heads="g"
        )
    )
    g = size("g")
    assert sympy.expand(kept(dropout=0, model=llama) - (2 + 2 + 2 + 4 * g / A + 2 * Q + 2 + 2 + 2 + 24)) == 0


def sent(phases, **axes):
    _, booked = layer_of(**axes)
    return Counter(each.op for each in booked.crossings_of(*phases))


EVERY = "forward", "kept", "again", "backward"


def test_a_step_sends_what_the_literature_says():
    """4 sums under tensor parallelism; with rows that are stored as shards 6 gathers and 4 scatters, of which two
    gathers are of what is kept as a shard; the duals of an exchange are exchanges."""
    assert sent(EVERY, **TENSOR) == {"all_reduce": 4}
    assert sent(EVERY, **SEQUENCE) == {"all_gather": 6, "reduce_scatter": 4}
    assert sent(["backward"], x=("t", "ulysses"), keep="reads").keys() == {"all_to_all"}
    assert sent(EVERY, x=("t", "data")) == {}
    _, booked = layer_of(**SEQUENCE)
    wire = even(sum(each.wire for each in booked.crossings_of(*EVERY)))
    assert sympy.expand(wire - 10 * B * S * H * (T - 1) / T) == 0


def test_a_dual_that_is_forgotten_is_found(monkeypatch):
    """The control: parts of cotangents that are taken for the whole are summed by nobody."""
    right = BackwardSplit.lying

    def wrong(*args):
        demand, out, stored, why = right(*args)
        return demand, None if why == "rows of a matrix" else out, stored, why

    monkeypatch.setattr(BackwardSplit, "lying", wrong)
    _, booked = layer_of.__wrapped__(**TENSOR)
    assert Counter(each.op for each in booked.crossings_of(*EVERY)) == {"all_reduce": 2}


def test_backward_computes_twice_what_forward_does():
    """Of a layer; tables multiply nothing. What runs again is what is read: scores, or all but the last product."""
    whole = 24 * B * S * H**2 + 4 * B * S**2 * H
    for axes, share in (({}, 1), (TENSOR, T), (SEQUENCE, T), (dict(x=("t", "ulysses")), T)):
        step, _ = layer_of(**axes)
        flops = {name: sympy.expand(even(each) * share / 2) for name, each in step.flops().items()}
        assert flops == dict(forward=sympy.expand(whole), again=0, backward=sympy.expand(2 * whole))
    again = {keep: layer_of(keep)[0].flops()["again"] for keep in ("selective", "full")}
    assert again["selective"] == 2 * 2 * B * S**2 * H
    assert sympy.expand(again["full"] - 2 * (whole - 8 * B * S * H**2)) == 0


def test_gradients_are_summed_over_data():
    """Once a step: 2 (n - 1)/n of the parameters by rings, whether they are stored once or not; norms whose rows are
    cut are summed, too."""
    layer, n = 12 * H**2 + 13 * H, size("n")  # each layer's numbers
    scattered, gathered = "reduce_scatter", "all_gather"
    for name, ops in (("data", ["all_reduce"]), ("zero2", [scattered, gathered]), ("zero3", [scattered])):
        step, _ = layer_of(x=("n", name))
        own = [each for count, each in step.gradients() if even(each.whole).has(H**2)]
        assert [each.op for each in own] == ops
        wire = sum(even(each.wire) for each in own)
        assert sympy.expand(wire - len(ops * (2 if name == "data" else 1)) * layer * (n - 1) / n) == 0
    step, _ = layer_of(**SEQUENCE)
    norms = [each for _, each in step.gradients() if even(each.whole) == 6 * H]
    assert [each.op for each in norms] == ["all_reduce"]


@pytest.mark.parametrize("policy", STATES)
def test_state_of_each_policy_is_so_many_bytes_a_parameter(policy):
    """16 to 20, and of what ZeRO stores once over n ranks a part each (Rajbhandari et al. 2020, figure 1)."""
    own, n = STATES[policy], size("n")
    stored = {
        "data": (2, own.gradient, own.optimiser),
        "zero1": (2, own.gradient, own.optimiser / n),
        "zero2": (2, own.gradient / n, own.optimiser / n),
        "zero3": (2 / n, own.gradient / n, own.optimiser / n),
    }
    assert 2 + own.gradient + own.optimiser == int(policy)
    for strategy, each in stored.items():
        plan = partition(gpt(), Mesh.of(x=("n", strategy)))
        found = even(plan.state(0, 2, own.gradient, own.optimiser))
        assert sympy.expand(found - sum(each) * plan.parameters()) == 0


def test_policies_may_differ_by_layer():
    """Two layers in full, one as units: what a stage keeps is their sum."""
    plan = partition(gpt(3), Mesh.of())
    step = training_step(plan, ["full", "units", "full"], DROPOUT)
    whole = training_step(plan, "units", DROPOUT)
    rest = sum(sum(chunk.booked.kept().values()) for chunk in whole.stages[0] if chunk.count == 1)
    assert sympy.expand(sum(step.kept().values()) - rest - S * B * H * (34 + 5 * Q + 4)) == 0
    with pytest.raises(InputError, match="2 policies for 3 layers"):
        training_step(plan, ["full", "units"])
    with pytest.raises(InputError, match="keep 'ful': did you mean full"):
        training_step(plan, "ful")


@pytest.mark.parametrize("strategy", ["ring", "gathered"])
def test_attention_in_a_ring_gathers_its_keys(strategy):
    """Keys and values are gathered forward and once more backward, where what they are given is summed and scattered; a
    rank computes and keeps its share of rows."""
    step, booked = layer_of(model=gpt(mask="sequence"), x=("t", strategy))
    once, whole = B * S * H * (T - 1) / T, 24 * B * S * H**2 + 4 * B * S**2 * H
    for phase, sends in (("forward", {"all_gather": 2}), ("backward", {"all_gather": 2, "reduce_scatter": 2})):
        crossings = [*booked.crossings_of(phase)]
        assert Counter(each.op for each in crossings) == sends
        assert all(sympy.expand(even(each.wire) - once) == 0 for each in crossings)
    assert not [*booked.crossings_of("kept", "again")]
    flops = {name: sympy.expand(even(each) * T / 2) for name, each in step.flops().items()}
    assert flops == dict(forward=sympy.expand(whole), again=0, backward=sympy.expand(2 * whole))
    assert sympy.expand(even(sum(booked.kept().values())) / (S * B * H) - (34 + 5 * Q) / T) == 0


@pytest.mark.parametrize("heads, copies, messages", [(6, 1, 0), (3, 2, 1), (2, 3, 4)])
def test_key_heads_that_ranks_copy_are_summed(heads, copies, messages):
    """Of 6 ranks so many have the same head: once a step they sum, in a ring of their own, or two of them at once, what
    they give to its weights of keys and of values, of 12 inputs and 2 columns each; a micro-batch sends what it does
    without copies."""
    step = training_step(partition(LLAMA | dict(num_key_value_heads=heads), Mesh.of(x=(6, "tensor"))))
    held = 2 * 12 * 2
    found = [(count, each.op, each.whole, each.messages) for count, each in step.gradients()]
    assert found == [(2, "all_reduce", held, messages)] * (copies > 1)
    assert all(even(each.wire) == 2 * (held - held // copies) for _, each in step.gradients())
    sends = Counter(each.op for each in step.stages[0][1].booked.crossings_of(*EVERY))
    assert sends == {"all_reduce": 4}


def rows_of_figure():
    """Rows of figure 1: sizes, whether rows are cut and shares computed again, GiB of the first stage."""
    path = Path(os.environ.get("OPMATRIX_DATA", "")) / "parallel_measurements.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if "Fig. 1" in row["source"]]


FIGURE = {  # GPT: layers, width, heads, stages, chunks, sequences; GiB
    "22B": (48, 6144, 64, 1, 1, 4, 59.25, 9.5625),
    "175B": (96, 12288, 96, 8, 3, 1, 66.84375, 12.3515625),
    "530B": (105, 20480, 128, 35, 3, 1, 114.0234375, 23.076171875),
    "1T": (128, 25600, 160, 64, 1, 1, 131.25, 26.5625),
}


@pytest.mark.parametrize("name", FIGURE)
def test_activations_of_figure_1(name):
    """Within 0.1 %: none computed again on 8 tensor ranks, and rows cut with shares computed again. The first of p
    stages holds p micro-batches, of v chunks L (1 + (p - 1)/(p v)) layers' (Korthikanti et al. 2022, section 4.2.3)."""
    layers, width, heads, p, v, sequences, plain, selective = FIGURE[name]
    held = layers * (1 + sympy.Rational(p - 1, p * v) if v > 1 else 1)
    for found, gib in (kept(x=(8, "tensor")), plain), (kept("selective", x=(8, "sequence")), selective):
        layer = (found * S * B * H).subs({S: 2048, B: sequences, H: width, A: heads})
        assert float(held * layer / 2**30) == pytest.approx(gib, rel=1e-3)
    for row in rows_of_figure():
        if row["model"] != f"GPT-{name}":
            continue
        assert (int(row["layers"]), int(row["hidden"]), int(row["heads"])) == (layers, width, heads)
        assert f"first stage {plain if row['recompute'] == 'none' else selective}" in row["notes"]


def test_the_busiest_rank_is_a_number_where_sizes_are():
    plan = partition(ANY | dict(num_hidden_layers=2), Mesh.of(x=(2, "sequence")))
    found = busiest_kept(training_step(plan), 0)
    assert found.free_symbols == {B, S} and busiest(found) == found


@pytest.mark.parametrize("strategy, ops", [("data", ["all_reduce"]), ("zero1", ["reduce_scatter", "all_gather"])])
def test_copies_of_experts_are_summed_among_themselves(strategy, ops):
    """Two of four ranks have the same two experts of four: what they sum is those alone, between two."""
    config = LLAMA | dict(
        model_type="mixtral",
        hidden_size=8,
        intermediate_size=5,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=1,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    step, place = (
        training_step(partition(promised(config), Mesh.of(d=(4, strategy), e=(2, "experts")), BatchSizes(4, 5))),
        (3, 1),
    )
    own = 2 * 3 * 8 * 5
    found = [each for _, each in step.gradients() if step.plan.on(each.whole, place) == own]
    assert [each.op for each in found] == ops
    assert sum(step.plan.on(each.wire, place) for each in found) == own
