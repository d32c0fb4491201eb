"""Experts in GGUF files: stacks as llama.cpp names them, the very model of a safetensors file of the same numbers."""

import ggufs
import numpy as np
import pytest
from checkpoints import fused
from test_expert_files import arrays, write
from test_gguf import permuted

from formats.core.errors import InputError
from opmatrix.files.checkpoint import Checkpoint, open_model

SIZES = dict(
    vocab_size=ggufs.WORDS,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=16,
    rms_norm_eps=1e-5,
    rope_theta=300.0,
    tie_word_embeddings=True,
    num_experts_per_tok=2,
)
EXPERTS = dict(num_experts=4, moe_intermediate_size=32)
CONFIGS = {
    "llama": SIZES | dict(model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=4),
    "qwen2moe": SIZES
    | EXPERTS
    | dict(model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"], shared_expert_intermediate_size=96),
    "qwen3moe": SIZES
    | EXPERTS
    | dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], head_dim=8, norm_topk_prob=True),
}
KEYS = {"expert_count": 4, "expert_used_count": 2}
OWN = {
    "llama": {},
    "qwen2moe": {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 96},
    "qwen3moe": {"expert_feed_forward_length": 32},
}
NAMES = [
    ("layers.", "blk."),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    *((f"self_attn.{part}_proj", f"attn_{part}") for part in "qkv"),
    *((f"mlp.experts.{part}_proj", f"ffn_{part}_exps.weight") for part in ("gate", "up", "down")),
    *((f"mlp.shared_expert.{part}_proj", f"ffn_{part}_shexp") for part in ("gate", "up", "down")),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("embed_tokens", "token_embd"),
]


def called(name):
    """A tensor's name in a GGUF file."""
    if name == "norm.weight":
        return "output_norm.weight"
    for ours, theirs in NAMES:
        name = name.replace(ours, theirs)
    return name


def file_of(path, kind, found, said=None, **changes):
    """A GGUF file of these arrays, the gate of a shared expert as a vector."""
    made = dict.fromkeys(ggufs.shapes()) | {called(name): array for name, array in found.items()}
    for name, array in made.items():
        if name.endswith("ffn_gate_inp_shexp.weight"):
            made[name] = array.reshape(-1)
        for part, heads in (("attn_q", 4), ("attn_k", 2)):
            if kind == "llama" and name.endswith(f"{part}.weight"):
                made[name] = permuted(array, heads)
    keys = (
        {name: None for name in ggufs.SAID if name.startswith("llama.")}
        | {name.replace("llama.", f"{kind}."): value for name, value in ggufs.SAID.items()}
        | {f"{kind}.{name}": value for name, value in (KEYS | OWN[kind] | (said or {})).items()}
    )
    return ggufs.write(path, keys | {"general.architecture": kind}, made | changes)


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_is_the_model_of_the_same_numbers_in_safetensors(tmp_path, kind):
    """Leaves are equal, so terms are one node."""
    found = arrays(CONFIGS[kind])
    directory = Checkpoint.open(write(tmp_path / "whole", CONFIGS[kind], fused(found)))
    assert open_model(file_of(tmp_path / "one.gguf", kind, found)).operator() is directory.operator()


def test_blocks_of_experts_stay_as_stored(tmp_path):
    """Q8_0: an exponent and a byte for each number of a block, matrix by matrix."""
    found, name = arrays(CONFIGS["llama"]), "blk.1.ffn_up_exps.weight"
    block = np.dtype([("scale", "<f2"), ("numbers", "i1", 32)])
    rows = np.zeros((4, 64, 1), block)
    rows["scale"], rows["numbers"] = 0.5, np.arange(4 * 64 * 32).reshape(4, 64, 1, 32) % 200 - 100
    stored = file_of(tmp_path / "q8.gguf", "llama", found, **{name: (8, (4, 64, 32), rows.tobytes())})
    stack = open_model(stored).at("layers.1.mlp.experts.up_proj", 4, 64, 32)
    assert np.array_equal(stack.array, rows["numbers"].reshape(4, 64, 32) * np.float32(0.5))
    assert stack.blocks is not None and stack.blocks.shape == (4, 64, 1)


@pytest.mark.parametrize(
    "kind, said, change, words",
    [
        ("llama", {"expert_used_count": 5}, {}, "num_experts_per_tok is 5: it must be at most num_local_experts, 4"),
        ("llama", {"expert_used_count": 0}, {}, "num_experts_per_tok is 0: it must be a whole number from 1"),
        ("llama", {"expert_count": 3}, {}, r"ffn_gate_inp.weight' is 4 × 32, but .* leads to 3 × 32"),
        ("qwen3moe", {"expert_count": None}, {}, "bad.gguf: 'num_experts' is missing"),
        ("qwen3moe", {"expert_gating_func": 2}, {}, "qwen3moe.expert_gating_func is 2: the model would be computed"),
        (
            "qwen2moe",
            {},
            {"blk.1.ffn_up_exps.weight": np.ones((4, 32, 31))},
            "is 4 × 32 × 31, but .* leads to 4 × 32 × 32",
        ),
        ("qwen2moe", {}, {"blk.0.ffn_down_exps.weight": None}, r"layers.0.mlp.experts.0.down_proj.weight' is missing"),
        (
            "llama",
            {"expert_count": 0},
            {},
            "tensor 'layers.0.mlp.gate_proj.weight' is missing|no part of a plain llama",
        ),
    ],
)
def test_what_does_not_fit_is_a_line(tmp_path, kind, said, change, words):
    with pytest.raises(InputError, match=words) as caught:
        open_model(file_of(tmp_path / "bad.gguf", kind, arrays(CONFIGS[kind]), said, **change)).operator()
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
