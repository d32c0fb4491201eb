"""Logits of random DeepSeek-V2s and V3s of transformers, whose attention is latent, from the files that it saves; of
whole texts, and of steps over caches; one of them of DeepSeek-V2-Lite's widths."""

import numpy as np
import pytest
from searched import structure

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import Checkpoint

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

LENGTHS, WORDS, POSITIONS = (1, 7, 33, 60), 90, 64
SIZES = dict(
    vocab_size=WORDS,
    max_position_embeddings=POSITIONS,
    rms_norm_eps=1e-5,
    hidden_size=48,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    kv_lora_rank=20,
    q_lora_rank=None,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    v_head_dim=10,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=2,
    moe_intermediate_size=16,
    first_k_dense_replace=1,
    n_group=4,
    topk_group=2,
)
YARN = dict(
    rope_type="yarn",
    rope_theta=10000.0,
    factor=4.0,
    original_max_position_embeddings=16,
    beta_fast=32,
    beta_slow=1,
    mscale=0.7,
    mscale_all_dim=0.9,
)
NARROW_QUERIES = dict(q_lora_rank=16, attention_bias=True, routed_scaling_factor=2.5)
PEERS = {
    "v2": ("DeepseekV2", {}),
    "v2, best groups, queries compressed": ("DeepseekV2", NARROW_QUERIES | dict(topk_method="group_limited_greedy")),
    "v2, longer texts": ("DeepseekV2", dict(rope_parameters=YARN)),
    "v3, queries compressed": ("DeepseekV3", NARROW_QUERIES),
    "v3, longer texts, turned by halves": ("DeepseekV3", dict(rope_parameters=YARN, rope_interleave=False)),
    "v3, shares as they are": ("DeepseekV3", dict(norm_topk_prob=False, n_group=1, topk_group=1)),
}
LITE = dict(hidden_size=2048, num_attention_heads=16, num_key_value_heads=16, kv_lora_rank=512)
LITE |= dict(qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, intermediate_size=256, num_hidden_layers=2)


def made(kind, config):
    """A model of weights that spread the scores of routers; gains are about 1."""
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**config)).eval()
    with torch.no_grad():
        for name, each in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name:
                each.copy_(1 + 0.3 * torch.randn_like(each))
            elif "inv_freq" not in name:
                each.copy_(3 * torch.randn_like(each) * (1 if "embed" in name else each.shape[-1] ** -0.5))
    return model


def logits(model, batch):
    with torch.no_grad():
        return np.concatenate(
            [model(torch.from_numpy(row)[None]).logits[0].numpy() for row in np.split(batch.tokens, batch.starts[1:-1])]
        )


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


def opened(model, directory):
    model.save_pretrained(directory)
    return Checkpoint.open(directory)


@pytest.mark.parametrize("peer", PEERS)
def test_logits_are_theirs(peer, rng, tmp_path):
    """A row whose two best scores float32 tells apart otherwise than float64 would be far off: there is none here."""
    kind, config = PEERS[peer]
    model = made(kind, SIZES | config)
    batch = Batch([rng.integers(0, WORDS, length) for length in LENGTHS])
    assert relative(dense(opened(model, tmp_path).operator(), batch), logits(model, batch)) < 1e-4


@pytest.mark.deep
def test_logits_are_theirs_at_the_widths_of_v2_lite(rng, tmp_path):
    model, batch = made("DeepseekV2", SIZES | LITE), Batch([rng.integers(0, WORDS, 24)])
    assert relative(dense(opened(model, tmp_path).operator(), batch), logits(model, batch)) < 1e-4


def test_steps_are_theirs(rng, tmp_path):
    model = made("DeepseekV2", SIZES)
    operator, text = opened(model, tmp_path).operator(), rng.integers(0, WORDS, 20)
    program = structure(operator, batch=Batch([text])).program({})[0]
    wanted = logits(model, Batch([text]))
    assert relative(program.run(Batch([text])), wanted) < 1e-4
    session = program.decoder.start(64)
    one = session.join()
    steps = [session.step({one: text[:12]}), *(session.step({one: text[at : at + 1]}) for at in range(12, 20))]
    assert relative(np.concatenate(steps), wanted) < 1e-4
