"""Families with experts: the float64 reading is plain numpy, whoever is asked, and what a config may not say is refused
in a line."""

import numpy as np
import plain_experts
import pytest

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.data import Data
from opmatrix.algebra.operators import ACTIVATIONS, I, const, total, weight
from opmatrix.algebra.oracles import dense
from opmatrix.algebra.shapes import size
from opmatrix.models import activated, build, name_sizes, parameters, promised, tensors
from opmatrix.models.deepseek import best_of_best_groups
from opmatrix.models.experts import Experts, best_of_groups, best_shares, kept_columns, read_shares, renormalised
from opmatrix.runtime.terms import data_of

WORDS = 50
RAGGED = Batch([[3, 4, 5, 6, 7, 9, 30, 2, 11], [8], [9, 2, 10, 11, 4, 4, 0, 2, 3]])
LLAMA = dict(
    vocab_size=WORDS,
    hidden_size=24,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=20,
    rms_norm_eps=1e-5,
    rope_theta=300.0,
)
QWEN = LLAMA | dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=8)
QWEN2 = QWEN | dict(model_type="qwen2_moe", shared_expert_intermediate_size=12)
QWEN3 = QWEN | dict(model_type="qwen3_moe", head_dim=8)
DELTA_NETS = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=5)
DELTA_NETS |= dict(head_dim=8, full_attention_interval=2, shared_expert_intermediate_size=12)
NEXT = QWEN | DELTA_NETS | dict(model_type="qwen3_next")
PANGU = LLAMA | dict(
    model_type="PanguProMoE",
    num_experts=8,
    num_experts_per_tok=4,
    moe_intermediate_size=8,
    shared_expert_intermediate_size=12,
)
MIXTRAL = LLAMA | dict(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2)
PR_MOE = dict(
    model_type="pr_moe",
    vocab_size=WORDS,
    n_embd=24,
    n_layer=4,
    n_head=3,
    n_positions=20,
    num_experts=[3, 5],
    expert_interval=2,
    layer_norm_epsilon=1e-5,
)
GPT_OSS = LLAMA | dict(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=8, sliding_window=3)
CASES = {
    "mixtral": (MIXTRAL, plain_experts.mixtral),
    "mixtral, all": (MIXTRAL | dict(num_experts_per_tok=4), plain_experts.mixtral),
    "mixtral, one": (MIXTRAL | dict(num_local_experts=1, num_experts_per_tok=1), plain_experts.mixtral),
    "qwen2": (QWEN2, plain_experts.qwen),
    "qwen2, sums to one": (QWEN2 | dict(norm_topk_prob=True), plain_experts.qwen),
    "qwen2, every other": (QWEN2 | dict(decoder_sparse_step=2, num_hidden_layers=3), plain_experts.qwen),
    "qwen3": (QWEN3 | dict(norm_topk_prob=True), plain_experts.qwen),
    "qwen3, some dense": (QWEN3 | dict(mlp_only_layers=[0]), plain_experts.qwen),
    "qwen3-next": (NEXT, plain_experts.qwen3_next),
    "qwen3-next, some dense": (
        NEXT | dict(norm_topk_prob=False, mlp_only_layers=[0], attention_bias=True, partial_rotary_factor=1.0),
        plain_experts.qwen3_next,
    ),
    "qwen3.5": (NEXT | dict(model_type="qwen3_5_moe_text", linear_num_key_heads=4), plain_experts.qwen3_next),
    "pangu": (PANGU, plain_experts.pangu),
    "pangu, one group": (PANGU | dict(num_experts_per_tok=1), plain_experts.pangu),
    "pangu, first dense": (PANGU | dict(mlp_only_layers=[0]), plain_experts.pangu),
    "gpt-oss": (GPT_OSS, plain_experts.gpt_oss),
    "gpt-oss, all experts, no biases of attention": (
        GPT_OSS | dict(num_experts_per_tok=4, attention_bias=False),
        plain_experts.gpt_oss,
    ),
    "pr-moe": (PR_MOE, plain_experts.pr_moe),
}


def made(seed=0):
    """`at`: matrices three times the size that training starts from, so that scores of routers are spread; gains and
    scales 1 ± 0.3."""
    rng, found = np.random.default_rng(seed), {}

    def at(name, *shape):
        if name not in found:
            gain = name.endswith("router_scale") or ("bias" not in name and len(shape) == 1)
            table = len(shape) == 2 and name.split(".")[0] in ("embed_tokens", "wte", "wpe")
            numbers = rng.normal(size=shape) * (
                0.3 if gain or "bias" in name else 1.0 if table else 3 * max(shape[-2:]) ** -0.5
            )
            found[name] = Data((numbers + gain).astype(np.float32), name)
        return found[name]

    at.found = found
    return at


def wide(at):
    return {name: data.array.astype(np.float64) for name, data in at.found.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_reading_is_plain_numpy(case):
    config, numpy = CASES[case]
    operator, w = build(config, at := made()), wide(at)
    wanted = np.concatenate([numpy(config, w, one.tokens) for one in RAGGED])
    assert np.abs(dense(operator, RAGGED) - wanted).max() < 1e-10 * np.abs(wanted).max()


@pytest.mark.parametrize("case", CASES)
def test_every_name_is_asked_for_once(case):
    config, _ = CASES[case]
    build(config, at := made())
    assert [*tensors(config)] == [*at.found] and tensors(config) == {n: d.shape for n, d in at.found.items()}


def layer(count, hidden, asked, gate, n=10, seed=1):
    at = made(seed)
    return Experts(count, hidden, asked).layer(at, "mlp", n, ACTIVATIONS["silu"], gate), at


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("count, asked", [(5, 2), (5, 5), (1, 1), (5, 1)])
def test_a_layer_of_experts_is_plain_numpy(rows, count, asked):
    """All of them or one, of one row or several."""
    gate = best_shares(asked) @ renormalised()
    operator, at = layer(count, 6, asked, gate)
    x = np.random.default_rng(2).normal(size=(rows, 10))
    wanted = plain_experts.experts(x, wide(at), "mlp", plain_experts.best_gates(asked, True))
    np.testing.assert_allclose(operator(x), wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


def test_one_expert_that_no_row_asks_and_one_that_all_ask():
    """What the first is counts for nothing."""
    at = layer(4, 6, 2, best_shares(2))[1]
    x = abs(np.random.default_rng(3).normal(size=(9, 10))) + 0.1
    router = at.found["mlp.gate.weight"].array.copy()
    router[0], router[3] = 5.0, -5.0
    at.found["mlp.gate.weight"] = Data(router, "router")
    operator = Experts(4, 6, 2).layer(at, "mlp", 10, ACTIVATIONS["silu"], best_shares(2))
    gates = x @ wide(at)["mlp.gate.weight"].T
    chosen = np.argsort(-gates, 1)[:, :2]
    assert (chosen == 0).any(1).all() and not (chosen == 3).any()
    found = operator(x)
    wanted = plain_experts.experts(x, wide(at), "mlp", plain_experts.best_gates(2, False))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    other = at.found["mlp.experts.down_proj"].array.copy()
    other[3] = 1e6
    at.found["mlp.experts.down_proj"] = Data(other, "other")
    assert np.array_equal(Experts(4, 6, 2).layer(at, "mlp", 10, ACTIVATIONS["silu"], best_shares(2))(x), found)


# ---- what one row reads


@pytest.mark.parametrize(
    "gate, wanted",
    [
        (best_shares(2), 2),
        (best_shares(2) @ renormalised(), 2),
        (best_of_groups(4), 4),
        (best_of_groups(4) * np.ones((1, 8)), 4),
        (best_shares(3) * best_shares(2), 2),
    ],
    ids=str,
)
def test_a_gate_keeps_so_many(gate, wanted):
    assert kept_columns(gate, 8) == wanted


def test_shares_that_a_row_reads():
    """Of experts those that are asked, behind other layers too; what something else reads, all the same."""
    found = {data.name: share for data, share in read_shares(promised(MIXTRAL)).items()}
    stacks = {name for name in tensors(MIXTRAL) if ".experts." in name}
    assert {name for name, share in found.items() if share != 1} == stacks and len(stacks) == 6
    assert {found[name] * 4 for name in stacks} == {2}
    routed, at = layer(4, 6, 1, best_shares(1))
    up = weight(at.found["mlp.experts.up_proj"].T)
    both = read_shares(routed @ routed + up @ total @ weight(np.ones((6, 10))))
    assert {data.name: 4 * share for data, share in both.items() if data.name} == {
        "mlp.gate.weight": 4,
        "mlp.experts.gate_proj": 1,
        "mlp.experts.up_proj": 4,
        "mlp.experts.down_proj": 1,
    }


def test_counts_of_what_is_learned_and_what_a_row_reads():
    """By hand: a layer has two rows of gains, four products of attention, a router, and experts of three matrices."""
    n, f, e, k = 24, 20, 4, 2
    others = (2 * n * n + 2 * n * 12 + 2 * n + e * n) * 2 + n + 2 * WORDS * n
    assert parameters(MIXTRAL) == others + 2 * e * 3 * n * f
    assert activated(MIXTRAL) == others + 2 * k * 3 * n * f
    assert activated(LLAMA | dict(model_type="llama")) == parameters(LLAMA | dict(model_type="llama"))


def test_sizes_may_have_names():
    """The number of experts, too; a formula holds for every number."""
    config = MIXTRAL | dict(num_local_experts="e", intermediate_size="f")
    e, f = size("e"), size("f")
    count, asked = parameters(config), activated(config)
    assert (count - asked).expand() == (2 * 3 * 24 * f * (e - 2)).expand()
    assert count.subs({e: 4, f: 20}) == parameters(MIXTRAL)


def test_sizes_of_experts_have_names_of_their_own():
    found = name_sizes(QWEN2)
    sizes = "num_experts", "moe_intermediate_size", "shared_expert_intermediate_size"
    assert [found[each] for each in sizes] == [*"emu"]
    assert name_sizes(MIXTRAL)["num_local_experts"] == "e" and name_sizes(PR_MOE)["num_experts"] == [3, 5]


def test_what_nobody_has_yet_is_read_by_its_shape_alone():
    """One zero that is seen everywhere would be as many numbers as the weight that it stands for."""
    assert data_of(np.broadcast_to(np.float32(0), (2**20, 2**20))).shape == (2**20, 2**20)
    assert data_of(np.zeros((2, 3), np.float32)) == Data(np.zeros((2, 3), np.float32))


# ---- what is refused


@pytest.mark.parametrize(
    "config, words",
    [
        (MIXTRAL | dict(num_experts_per_tok=0), "num_experts_per_tok is 0: it must be a whole number from 1"),
        (MIXTRAL | dict(num_experts_per_tok=5), "num_experts_per_tok is 5: it must be at most num_local_experts, 4$"),
        (QWEN2 | dict(num_experts_per_tok=7), "num_experts_per_tok is 7: it must be at most num_experts, 6$"),
        (QWEN2 | dict(num_experts=None), "num_experts is null: it must be a whole number|'num_experts' is missing"),
        (
            QWEN2 | dict(use_sliding_window=True),
            "use_sliding_window is true: it must be false or left out: versions of",
        ),
        (
            QWEN2 | dict(mlp_only_layers=[-1]),
            r"mlp_only_layers is \[-1\]: it must be a list of layers by their numbers",
        ),
        (QWEN2 | dict(decoder_sparse_step=0), "decoder_sparse_step is 0: it must be a whole number from 1"),
        (QWEN3 | dict(num_experts=None), "num_experts is null: it must be a whole number"),
        (PANGU | dict(num_experts_per_tok=3), "num_experts_per_tok is 3: it must be a divisor of num_experts, 8: one"),
        (
            PANGU | dict(mlp_only_layers=[1], intermediate_size=None),
            "intermediate_size is null: it must be a whole number",
        ),
        (
            PANGU | dict(norm_topk_prob=True),
            "norm_topk_prob is true: it must be false or left out: shares of the chosen",
        ),
        (PANGU | dict(sandwich_norm=True), "sandwich_norm is true: it must be false or left out: the second version"),
        (
            PR_MOE | dict(num_experts=[3]),
            r"num_experts is \[3\]: it must be as long as there are layers with experts, 2",
        ),
        (PR_MOE | dict(num_experts=[3, 0]), r"num_experts is \[3, 0\]: it must be a list of whole numbers from 1 on"),
    ],
)
def test_what_a_config_may_not_say(config, words):
    with pytest.raises(InputError, match=words) as caught:
        tensors(config)
    assert "\n" not in str(caught.value) and str(caught.value).startswith("config: ")


# ---- groups of which some are reached

DEEPSEEK = LLAMA | dict(
    model_type="deepseek_v3",
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    moe_intermediate_size=8,
    n_group=4,
    topk_group=2,
    first_k_dense_replace=1,
)


def test_a_row_reaches_its_best_groups_alone():
    """As the published router says, row by row: groups by their two best, then experts within these."""
    rng = np.random.default_rng(0)
    x, bias, groups, reached, k = rng.normal(size=(40, 12)), rng.normal(size=12), 4, 2, 5
    found = dense(I @ best_of_best_groups(const(bias), len(bias), groups, reached, k), x)
    for row, own in zip(x, found, strict=True):
        scores = 1 / (1 + np.exp(-row))
        biased = (scores + bias).reshape(groups, -1)
        best = np.argsort(-np.sort(biased)[:, -2:].sum(1))[:reached]
        left = np.where(np.isin(np.arange(groups), best)[:, None], biased, -np.inf).ravel()
        wanted = np.zeros(12)
        wanted[chosen] = scores[chosen := np.argsort(-left)[:k]]
        np.testing.assert_allclose(own, wanted, rtol=1e-12)
        assert len({*np.flatnonzero(own) // 3}) <= reached


@pytest.mark.parametrize(
    "changed, said",
    [
        (dict(n_group=3), "n_group is 3: it must be a divisor of n_routed_experts, 8$"),
        (dict(topk_group=5), "topk_group is 5: it must be at most n_group, 4$"),
        (dict(kv_lora_rank=512), "qk_nope_head_dim is null: it must be given beside kv_lora_rank, 512"),
    ],
)
def test_groups_that_do_not_fit(changed, said):
    assert promised(DEEPSEEK).shape
    with pytest.raises(InputError, match=said):
        promised(DEEPSEEK | changed)
