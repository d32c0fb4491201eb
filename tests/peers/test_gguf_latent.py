"""GGUF files of DeepSeek-V2 and V3, written by the names of the gguf package, against transformers' logits: with keys
and values of heads in one matrix, as older files have them, and in one for each head."""

import ggufs
import numpy as np
import pytest
from test_deepseek import NARROW_QUERIES, SIZES, YARN, logits, made, relative

from formats.core.errors import InputError
from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model

gguf = pytest.importorskip("gguf", reason="needs peers: gguf")

FILED = SIZES | dict(vocab_size=ggufs.WORDS)
HEADS, RANK, STAYS, TURNS, VALUES = 4, 20, 12, 8, 10  # as in SIZES
LONGER = dict(rope_parameters=YARN | dict(mscale=0.9))
PLAIN = dict(NARROW_QUERIES, attention_bias=False)
CASES = {
    "v2": ("DeepseekV2", {}, False),
    "v2, a matrix a head, longer texts": ("DeepseekV2", LONGER, True),
    "v2, best groups": ("DeepseekV2", PLAIN | dict(topk_method="group_limited_greedy"), True),
    "v3": ("DeepseekV3", PLAIN | LONGER, True),
    "v3, one matrix": ("DeepseekV3", dict(norm_topk_prob=False, n_group=1, topk_group=1), False),
}


def keys_of(config, by_head):
    """The keys of a file, as convert_hf_to_gguf.py of llama.cpp writes them."""
    columns = RANK + TURNS if by_head else STAYS + TURNS
    said = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1 if by_head else HEADS,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.kv_lora_rank": RANK,
        "attention.key_length": columns,
        "attention.value_length": RANK if by_head else VALUES,
        "rope.dimension_count": TURNS,
        "rope.freq_base": 10000.0,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_weights_scale": float(config.routed_scaling_factor),
        "expert_weights_norm": bool(config.norm_topk_prob),
        "expert_gating_func": 2 if config.model_type == "deepseek_v3" else 1,
    }
    if by_head:
        said |= {"attention.key_length_mla": STAYS + TURNS, "attention.value_length_mla": VALUES}
    if config.q_lora_rank:
        said["attention.q_lora_rank"] = config.q_lora_rank
    if config.model_type == "deepseek_v3" or config.topk_method != "greedy":
        said |= {"expert_group_count": config.n_group, "expert_group_used_count": config.topk_group}
    if (rope := config.rope_parameters)["rope_type"] == "yarn":
        said |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"],
        }
    return {f"deepseek2.{name}": value for name, value in said.items()}


def split_experts(name, array):
    """Gates and ups of experts apart, as files have them."""
    if not name.endswith("experts.gate_up_proj"):
        return {name: array}
    parts = zip(("gate_proj", "up_proj"), np.split(array, 2, 1), strict=True)
    return {name.replace("gate_up_proj", part): half for part, half in parts}


def split_heads(name, array):
    """A matrix of keys and one of values for each head."""
    keys, values = np.split(array.reshape(HEADS, -1, RANK), [STAYS], 1)
    stem = name.removesuffix("kv_b_proj.weight")
    return {f"{stem}k_b_proj.weight": keys.swapaxes(1, 2), f"{stem}v_b_proj.weight": values}


def written(path, model, by_head, said=None):
    """The file of a model."""
    called = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, model.config.num_hidden_layers)
    found = {}
    for name, tensor in model.state_dict().items():
        parts = split_experts(name, tensor.numpy())
        if by_head and name.endswith("kv_b_proj.weight"):
            parts = split_heads(name, tensor.numpy())
        found |= parts
    tensors = dict.fromkeys(ggufs.shapes())
    for name, array in found.items():
        plain = name.replace("e_score_correction_bias", "e_score_correction.bias")
        stem, end = plain.rsplit(".", 1) if plain.endswith((".weight", ".bias")) else (plain, "weight")
        tensors[f"{called.get_name(stem)}.{end}"] = np.ascontiguousarray(array, "<f4")
    keys = {name: None for name in ggufs.SAID if name.startswith("llama.")}
    keys |= keys_of(model.config, by_head) | {"general.architecture": "deepseek2"} | (said or {})
    return ggufs.write(path, keys, tensors)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_theirs(case, rng, tmp_path):
    kind, changed, by_head = CASES[case]
    model, batch = made(kind, FILED | changed), Batch([rng.integers(0, ggufs.WORDS, length) for length in (1, 7, 40)])
    operator = open_model(written(tmp_path / "one.gguf", model, by_head)).operator()
    assert relative(dense(operator, batch), logits(model, batch)) < 1e-4


@pytest.mark.parametrize(
    "said, words",
    [
        ({"expert_gating_func": 3}, "expert_gating_func is 3: it must be 1 or 2"),
        ({"attention.key_length": 8}, "attention.key_length is 8: it must be more than rope.dimension_count, 8"),
        ({"attention.value_length": 11}, "attn_kv_b.weight' is 88 × 20, but .* leads to 92 × 20"),
        ({"attention.kv_lora_rank": None}, "'kv_lora_rank' is missing"),
        ({"attention.indexer.top_k": 5}, "attention.indexer.top_k is 5: the model would be computed without it"),
        ({"rope.scaling.yarn_log_multiplier": "a"}, "yarn_log_multiplier is 'a': it must be a number"),
    ],
)
def test_what_does_not_fit_is_a_line(said, words, tmp_path):
    model = made("DeepseekV2", FILED | LONGER)
    path = written(tmp_path / "bad.gguf", model, False, {f"deepseek2.{name}": value for name, value in said.items()})
    with pytest.raises(InputError, match=words) as caught:
        open_model(path).operator()
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
