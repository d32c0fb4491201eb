"""Formulas of the literature, derived from terms and typed in here alone: what a layer sends and computes, what ZeRO
stores (Shoeybi et al. 2019; Korthikanti et al. 2022; Rajbhandari et al. 2020). Another term gives other formulas."""

from collections import Counter

import pytest
import sympy
from partitioned import ANY, compared, made, random_arrays

from opmatrix.algebra.operators import I, attention, diag, gelu, rmsnorm, weight
from opmatrix.algebra.positions.patterns import causal, sequence
from opmatrix.algebra.shapes import size
from opmatrix.models import promised
from opmatrix.parallel.sharding.axis_states import even
from opmatrix.parallel.sharding.mesh import Mesh
from opmatrix.parallel.sharding.partition import partition

B, S, H, A, T, N = map(size, "bshatn")  # sequences, tokens, width, heads; ranks
PARAMETERS = 12 * H**2 + 13 * H + (23 + 16) * H + 2 * H  # a layer, tables of 23 tokens and 16 positions, a norm


def gpt(**changed):
    """A layer of GPT with a name for every size."""
    sizes = dict(
        hidden_size=H,
        intermediate_size=4 * H,
        num_attention_heads=A,
        num_key_value_heads=A,
        head_dim=H / A,
        num_hidden_layers=1,
        mask="sequence & causal",
    )
    return promised(ANY | sizes | changed)


def layer_of(model, **axes):
    """A plan, and what its layer sends: all factors but tables and the last norm."""
    plan = partition(model, Mesh.of(**axes))
    return plan, [each for times, each in plan.crossings() for _ in range(times)]


def equals(found, wanted):
    return sympy.expand(even(found) - wanted) == 0


def test_a_layer_computes_what_the_literature_says():
    """24 b s h^2 + 4 b s^2 h, over t ranks."""
    whole = 24 * B * S * H**2 + 4 * B * S**2 * H
    assert equals(layer_of(gpt())[0].flops(), whole)
    for name in ("tensor", "sequence"):
        assert equals(layer_of(gpt(), x=("t", name))[0].flops(), whole / T)
    assert equals(layer_of(gpt(), x=("t", "data"))[0].flops(), whole / T)
    assert equals(layer_of(gpt(mask="sequence"), x=("t", "ring"))[0].flops(), whole / T)
    assert equals(layer_of(gpt(mask="sequence"), x=("t", "ulysses"))[0].flops(), whole / T)


def test_tensor_parallel_layers_sum_twice():
    _, sent = layer_of(gpt(), x=("t", "tensor"))
    assert [each.op for each in sent] == ["all_reduce"] * 2
    for each in sent:
        assert equals(each.payload, B * S * H) and equals(each.wire, 2 * (T - 1) / T * B * S * H)


def test_sequence_parallel_layers_gather_and_scatter_twice():
    """As much on the wire as two sums."""
    _, sent = layer_of(gpt(), x=("t", "sequence"))
    assert Counter(each.op for each in sent) == {"all_gather": 2, "reduce_scatter": 2}
    for each in sent:
        whole = B * S * H
        assert equals(each.payload, whole / T if each.op == "all_gather" else whole)
        assert equals(each.wire, (T - 1) / T * whole)


def test_attention_over_cut_rows_sends_what_it_must():
    """A ring sends keys and values n - 1 times; ulysses exchanges queries, keys, values and what comes out."""
    block = B * S * H / T
    [ring] = layer_of(gpt(mask="sequence"), x=("t", "ring"))[1]
    assert (ring.op, ring.messages) == ("send", T - 1) and equals(ring.payload, 2 * block * (T - 1))
    sent = layer_of(gpt(mask="sequence"), x=("t", "ulysses"))[1]
    assert [each.op for each in sent] == ["all_to_all"] * 4
    assert all(equals(each.payload, block) and equals(each.wire, block * (T - 1) / T) for each in sent)


def test_a_vocabulary_that_is_cut_sums_rows_of_its_table():
    _, sent = layer_of(gpt(), x=("t", "vocabulary"))
    assert [each.op for each in sent] == ["all_reduce"] and equals(sent[0].payload, B * S * H)


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("data", 16 * PARAMETERS),
        ("zero1", 4 * PARAMETERS + 12 * PARAMETERS / N),
        ("zero2", 2 * PARAMETERS + 14 * PARAMETERS / N),
        ("zero3", 16 * PARAMETERS / N),
    ],
)
def test_state_of_zero(name, wanted):
    """In mixed precision with Adam: 2 + 2 + 12 bytes a parameter."""
    plan = partition(gpt(), Mesh.of(x=("n", name)))
    assert equals(plan.parameters(), PARAMETERS) and equals(plan.state(weights=2, gradients=2, optimiser=12), wanted)


def test_zero_3_gathers_all_weights():
    plan, sent = layer_of(gpt(), x=("n", "zero3"))
    assert {each.op for each in sent} == {"all_gather"}
    assert equals(sum(each.whole for each in sent), plan.parameters())


# ---- the term varied


def test_a_gate_is_a_product_more():
    """And crosses nothing: two weights are cut by columns, one by rows."""
    whole = 4 * B * S**2 * H + 32 * B * S * H**2
    plan, sent = layer_of(gpt(gated=True), x=("t", "tensor"))
    assert equals(plan.flops(), whole / T) and [each.op for each in sent] == ["all_reduce"] * 2


def test_grouped_keys_are_narrower():
    """Of g heads of keys for a of queries, two products have g/a of the columns; a ring sends keys before they are
    repeated."""
    g = size("g")
    grouped = promised(
        dict(
            model_type="llama",
            vocab_size=23,
            hidden_size=H,
            intermediate_size=4 * H,
            num_attention_heads=A,
            num_key_value_heads=g,
            max_position_embeddings=16,
            num_hidden_layers=1,
        )
    )
    _, sent = layer_of(grouped, x=("t", "tensor"))
    assert [each.op for each in sent] == ["all_reduce"] * 2
    assert equals(layer_of(grouped)[0].flops(), (28 + 4 * g / A) * B * S * H**2 + 4 * B * S**2 * H)
    [ring] = layer_of(gpt(mask="sequence", num_key_value_heads=g), x=("t", "ring"))[1]
    assert equals(ring.payload, 2 * (T - 1) * B * S * H * g / A / T)


def test_another_norm_costs_no_product_and_no_crossing():
    at = random_arrays()
    model = made(ANY, num_hidden_layers=1)
    more = model @ rmsnorm(1e-5) @ diag(at("gain", 12))
    one, other = (layer_of(each, x=("t", "sequence")) for each in (model, more))
    assert other[0].parameters() - one[0].parameters() == 12 and equals(other[0].flops(), even(one[0].flops()))
    assert [each[:3] for each in one[1]] == [each[:3] for each in other[1]]
    assert compared(more, Mesh.of(x=(3, "sequence"))).agrees


def mixing_alone(at, h, heads, out):
    """A layer of attention with or without its output projection, behind a table, and an inner layer."""
    attend = attention(*(weight(at(name, h, h)) for name in "QKV"), heads, sequence & causal)
    mixed = attend @ weight(at("O", h, h)) if out else attend
    return (
        weight(at("table", 23, h))
        @ (I + mixed)
        @ (I + weight(at("up", h, 2 * h)) @ gelu @ weight(at("down", 2 * h, h)))
    )


def test_without_an_output_projection_nothing_merges_heads():
    """So its weights are not cut, every rank computes all of attention, and one sum of two is left."""
    h, at = 12, random_arrays()
    for out, sums in ((True, 2), (False, 1)):
        model = mixing_alone(at, h, 6, out)
        plan, sent = layer_of(model, x=("t", "tensor"))
        assert [each.op for each in sent] == ["all_reduce"] * sums
        mixed, inner = 2 * B * S * h * h * (3 + out) + 4 * B * S**2 * h, 8 * B * S * h * h
        assert equals(plan.flops(), (mixed if out is False else mixed / T) + inner / T)
        assert compared(model, Mesh.of(x=(2, "tensor"))).agrees
