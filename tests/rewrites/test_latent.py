"""Latent attention: both of its forms are in the graph, the search takes the absorbed one for steps and the expanded
one for prompts, and a session of either gives what whole texts give."""

from functools import cache

import numpy as np
import pytest
from searched import Round

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import I
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import size
from opmatrix.models import build, promised, tensors
from opmatrix.models.decoders.latent import CutRows, score_factor
from opmatrix.runtime.declarations.operands import Cache, Heads
from opmatrix.runtime.kernels import KERNELS
from rewrites.laws import EXACT_LAWS
from rewrites.lowering.phased import Generation
from rewrites.opened import Opened
from rewrites.workload.workload import draw_workload

RANK, STAYS, TURNS, VALUES, HEADS = 32, 16, 8, 12, 4
SIZES = dict(
    vocab_size=50,
    hidden_size=48,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=HEADS,
    max_position_embeddings=5000,
    kv_lora_rank=RANK,
    qk_nope_head_dim=STAYS,
    qk_rope_head_dim=TURNS,
    v_head_dim=VALUES,
    n_routed_experts=4,
    num_experts_per_tok=2,
    n_shared_experts=1,
    moe_intermediate_size=8,
    first_k_dense_replace=2,
)
V2, V3 = SIZES | dict(model_type="deepseek_v2"), SIZES | dict(model_type="deepseek_v3", n_group=2, topk_group=1)
BATCH = Batch([[1, 2, 3, 4, 5], [7], [*range(9, 40)]])


class Reading(Round):
    """A machine whose attention over caches takes as long as it multiplies, and reads keys and values."""

    def seconds(self, kernel, **sizes):
        if kernel == "attention_cached":
            return sizes["S2"] * sizes["d"] * (sizes["h"] / 5e10 + sizes["g"] / sizes["T"] / 1e9)
        return super().seconds(kernel, **sizes)


def model(config):
    rng = np.random.default_rng(0)

    def at(name, *shape):
        return Data(rng.normal(1.0 if "norm" in name else 0.0, 0.3, shape).astype(np.float32), name)

    return build(config, at)


@cache
def found(prompt, answer, without=""):
    """The model, and its program for a request, without a law."""
    operator, laws = model(V2), [law for law in EXACT_LAWS if law.name != without]
    opened = Opened(operator, draw_workload(Generation(prompt, answer), operator), Reading(), laws, {})
    return operator, opened.structure(laws).program({})[0]


def held(program):
    """Heads and columns of the caches of each layer."""
    ports = [(port.heads, port.columns) for port in program.decoder.inputs if port.name in program.decoder.state]
    return ports[: len(ports) // 2], ports[len(ports) // 2 :]


def test_steps_read_latent_rows_and_prompts_expanded_ones():
    """A cache of the narrow row and the shared key, in place of keys and values of every head."""
    assert held(found(8, 4000)[1]) == ([(1, RANK + TURNS)],) * 2
    assert held(found(4000, 1)[1]) == ([(HEADS, STAYS + TURNS), (HEADS, VALUES)],) * 2


LATENT_VALUES = 8, 4000, "keys_hold_values"  # values are latent rows, which are the first columns of the keys


def test_values_that_are_columns_of_keys_have_no_cache():
    program = found(*LATENT_VALUES)[1]
    assert held(program) == ([(1, RANK + TURNS)],) * 2
    steps = [step for step in program.decoder.steps if step.kernel == "attention_cached"]
    assert [step.attributes["values"] for step in steps] == [RANK] * 2
    assert all(step.operands["k"] == step.operands["v"] for step in steps)


def test_no_more_columns_are_values_than_there_are():
    k = Cache(1, 8)
    record = KERNELS["attention_cached"].record(
        q=Heads(4, 8), k=k, v=k, bias=None, margin=None, scale=1.0, rows="all", values=9
    )
    with pytest.raises(ValueError, match="values: 9 columns, but v has 8"):
        KERNELS["attention_cached"].shape(record)


@pytest.mark.parametrize("request_", [(8, 4000), (4000, 1), LATENT_VALUES])
def test_both_forms_are_the_model_whole_and_in_steps(request_):
    operator, program = found(*request_)
    whole = dense(operator, BATCH)
    np.testing.assert_allclose(program.run(BATCH), whole, rtol=0, atol=1e-4 * abs(whole).max())
    session = program.decoder.start(64)
    one, other = session.join(), session.join()
    rows = [session.step({one: [*range(9, 30)]})]
    fork = session.fork(one)
    session.step({other: [7], fork: [3, 4]})
    rows += [session.step({one: [token]}) for token in range(30, 40)]
    np.testing.assert_allclose(np.concatenate(rows), whole[6:], rtol=0, atol=1e-4 * abs(whole).max())


def test_rows_of_a_head_are_cut_and_pairs_put_apart():
    stored = Data(np.arange(24.0).reshape(12, 2), "W")  # two heads of six rows
    assert CutRows("first", 0, 2).cut(stored, 2).array[:, 0].tolist() == [0, 2, 12, 14]
    turned = CutRows("turns", 2, 4, paired=True).cut(stored, 2)
    assert (turned.array[:, 0] / 2).tolist() == [2, 4, 3, 5, 8, 10, 9, 11] and turned.name == "W[turns]"


@pytest.mark.parametrize("config", [V2, V2 | dict(q_lora_rank=20, attention_bias=True), V3])
def test_what_is_promised_is_what_is_read(config):
    """Sizes may have names, but for the columns that turn."""
    names = {name for name in tensors(config) if ".0.self_attn." in name}
    assert ("layers.0.self_attn.q_b_proj.weight" in names) == bool(config.get("q_lora_rank"))
    named = promised(config | dict(hidden_size="n", kv_lora_rank="r", v_head_dim="e", num_attention_heads="a"))
    assert named.out.cols == size("n") and (I @ named).shape


def test_the_factor_of_scores_is_that_of_yarn():
    """Peng et al. 2024, eq. 22, squared: once for queries, once for keys."""
    yarn = dict(rope_type="yarn", factor=40.0, mscale_all_dim=0.707)
    config = dict(rope_theta=1e4, partial_rotary_factor=1.0, rope_parameters=None)
    assert score_factor(config | dict(rope_scaling=None)) == 1
    assert score_factor(config | dict(rope_scaling=yarn)) == pytest.approx((0.0707 * np.log(40) + 1) ** 2)
    assert score_factor(config | dict(rope_scaling=yarn | dict(mscale_all_dim=0))) == 1


@pytest.mark.parametrize(
    "config, said",
    [
        (V2 | dict(qk_rope_head_dim=7), "qk_rope_head_dim is 7: it must be an even whole number"),
        (V2 | dict(kv_lora_rank=None), "'kv_lora_rank' is missing|kv_lora_rank is null"),
        (V2 | dict(topk_method="noaux_tc"), "topk_method is 'noaux_tc': it must be greedy or group_limited_greedy"),
        (V2 | dict(topk_method="group_limited_greedy"), "n_group is null: it must be a divisor of n_routed_experts, 4"),
        (V2 | dict(norm_topk_prob=True), "norm_topk_prob is true: it must be false or left out"),
        (V3 | dict(v_head_dim=None), "v_head_dim is null: it must be given beside kv_lora_rank, 32"),
    ],
)
def test_what_a_config_may_not_say(config, said):
    with pytest.raises(InputError, match=said) as caught:
        tensors(config)
    assert "\n" not in str(caught.value)
