"""Random models of transformers, as save_pretrained writes them: hidden states and scores of the vocabulary, in its own
float32."""

from itertools import pairwise

import numpy as np
import pytest
from searched import structure

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from rewrites.laws import EXACT_LAWS

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

WORDS, LENGTHS = 90, (1, 7, 33, 60)
SIZES = dict(
    vocab_size=WORDS,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)
SHARED = SIZES | dict(num_key_value_heads=2, bos_token_id=None, eos_token_id=None)
T5 = dict(
    vocab_size=WORDS,
    d_model=48,
    d_kv=12,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    relative_attention_num_buckets=16,
    relative_attention_max_distance=40,
)
TIED = dict(tie_word_embeddings=True)


def turning(kind, **more):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=1e4, factor=4.0, **more))


PADDED = dict(pad_token_id=0)
FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWED = dict(sliding_window=7, sliding_window_pattern=2, num_hidden_layers=3)
MULTIPLIERS = dict(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.1, logits_scaling=8.0)
LONGROPE = dict(
    original_max_position_embeddings=60,
    rope_parameters=dict(
        rope_type="longrope",
        rope_theta=1e4,
        short_factor=[1 + 0.2 * column for column in range(6)],
        long_factor=[2.0] * 6,
        original_max_position_embeddings=60,
    ),
)
GEMMA = SHARED | dict(head_dim=16, query_pre_attn_scalar=20, sliding_window=7)
CAPPED = dict(attn_logit_softcapping=1.5, final_logit_softcapping=3.0)
TEXT = {
    family: "Text" for family in ("Gemma3", "Qwen3_5", "Qwen3_5Moe")
}  # families of which a text model's config has another name
DELTA = SHARED | dict(head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, full_attention_interval=2)
DELTA |= dict(linear_key_head_dim=12, linear_value_head_dim=10)
MIXED = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, shared_expert_intermediate_size=28)
REAL = dict(hidden_size=2048, head_dim=256, num_attention_heads=16, num_key_value_heads=2, num_hidden_layers=2)
REAL |= dict(linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128)
REAL |= dict(moe_intermediate_size=512, shared_expert_intermediate_size=512)
LESS_ONE = "Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm"  # norms whose gain is 1 + w
CASES = {  # name: the class of the config, of the model, what the
    # config says
    "bert": ("Bert", "ForMaskedLM", SIZES),
    "roberta": ("Roberta", "ForMaskedLM", SIZES | dict(max_position_embeddings=66)),
    "distilbert": (
        "DistilBert",
        "Model",
        dict(vocab_size=WORDS, dim=48, hidden_dim=64, n_layers=2, n_heads=4, max_position_embeddings=64),
    ),
    "gpt2": (
        "GPT2",
        "LMHeadModel",
        dict(vocab_size=WORDS, n_embd=48, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=1),
    ),
    "gpt2, hidden": (
        "GPT2",
        "Model",
        dict(
            vocab_size=WORDS, n_embd=48, n_layer=2, n_head=4, n_positions=64, n_inner=40, bos_token_id=1, eos_token_id=1
        ),
    ),
    "bloom": (
        "Bloom",
        "ForCausalLM",
        dict(vocab_size=WORDS, hidden_size=48, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=1),
    ),
    "bloom, twelve heads": (
        "Bloom",
        "Model",
        dict(vocab_size=WORDS, hidden_size=48, n_layer=2, n_head=12, bos_token_id=1, eos_token_id=1),
    ),
    "t5": ("T5", "EncoderModel", T5),
    "t5, gated": ("T5", "EncoderModel", T5 | dict(feed_forward_proj="gated-gelu", num_heads=3, d_kv=20)),
    "mamba": ("Mamba", "ForCausalLM", dict(vocab_size=WORDS, hidden_size=48, num_hidden_layers=2)),
    "mamba, other sizes": (
        "Mamba",
        "Model",
        dict(vocab_size=WORDS, hidden_size=40, expand=3, state_size=3, time_step_rank=7, num_hidden_layers=2)
        | dict(conv_kernel=2, use_conv_bias=False, use_bias=True),
    ),
    "mamba, 130M's width": ("Mamba", "ForCausalLM", dict(vocab_size=WORDS, hidden_size=768, num_hidden_layers=1)),
    "mamba2": (
        "Mamba2",
        "ForCausalLM",
        dict(vocab_size=WORDS, hidden_size=48, num_heads=6, head_dim=16, n_groups=2, state_size=20)
        | dict(num_hidden_layers=2, bos_token_id=1, eos_token_id=1),
    ),
    "mamba2, other sizes": (
        "Mamba2",
        "Model",
        dict(vocab_size=WORDS, hidden_size=40, expand=3, num_heads=4, head_dim=30, n_groups=4, state_size=1)
        | dict(num_hidden_layers=2, conv_kernel=2, use_conv_bias=False, use_bias=True, chunk_size=8),
    ),
    "mamba2, 130M's width": (
        "Mamba2",
        "ForCausalLM",
        dict(vocab_size=WORDS, hidden_size=768, num_heads=24, head_dim=64, n_groups=1, num_hidden_layers=2)
        | dict(tie_word_embeddings=True, bos_token_id=1, eos_token_id=1),
    ),
    "qwen3-next": ("Qwen3Next", "ForCausalLM", DELTA | MIXED),
    "qwen3-next, other sizes": (
        "Qwen3Next",
        "ForCausalLM",
        DELTA
        | MIXED
        | dict(linear_num_key_heads=3, linear_num_value_heads=3, linear_conv_kernel_dim=2, num_hidden_layers=4)
        | dict(norm_topk_prob=False, decoder_sparse_step=2, mlp_only_layers=[3], attention_bias=True, head_dim=24),
    ),
    "qwen3-next, 80B's width": ("Qwen3Next", "ForCausalLM", DELTA | MIXED | REAL),
    "qwen3.5": ("Qwen3_5", "ForCausalLM", DELTA | TIED),
    "qwen3.5, experts": ("Qwen3_5Moe", "ForCausalLM", DELTA | MIXED | dict(num_key_value_heads=4)),
    "llama": ("Llama", "ForCausalLM", SHARED),
    "llama, tied": ("Llama", "ForCausalLM", SHARED | TIED),
    "llama, biases": ("Llama", "Model", SHARED | dict(attention_bias=True, mlp_bias=True, head_dim=16)),
    "llama, linear": ("Llama", "Model", SHARED | turning("linear")),
    "llama, llama3": (
        "Llama",
        "Model",
        SHARED | turning("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16),
    ),
    "llama, yarn": ("Llama", "Model", SHARED | turning("yarn", original_max_position_embeddings=16)),
    "mistral": ("Mistral", "ForCausalLM", SHARED | dict(sliding_window=7)),
    "mistral, no window": ("Mistral", "Model", SHARED | dict(sliding_window=None)),
    "qwen2": ("Qwen2", "ForCausalLM", SHARED | TIED),
    "qwen2, windows": ("Qwen2", "Model", SHARED | dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen2, both ways": ("Qwen2", "Model", SHARED | dict(is_causal=False)),
    "mistral, both ways": ("Mistral", "Model", SHARED | dict(sliding_window=7, is_causal=False)),
    "qwen3": ("Qwen3", "ForCausalLM", SHARED | dict(head_dim=16)),
    "granite": ("Granite", "ForCausalLM", SHARED | PADDED | MULTIPLIERS),
    "granite, biases": ("Granite", "Model", SHARED | PADDED | dict(attention_bias=True, mlp_bias=True)),
    "cohere": ("Cohere", "ForCausalLM", SHARED | dict(logit_scale=0.25)),
    "cohere, query-key norms": ("Cohere", "ForCausalLM", SHARED | dict(use_qk_norm=True, attention_bias=True)),
    "cohere, a head of its own": ("Cohere", "ForCausalLM", SHARED | dict(tie_word_embeddings=False)),
    "cohere2": ("Cohere2", "ForCausalLM", SHARED | WINDOWED),
    "cohere2, kinds listed": ("Cohere2", "ForCausalLM", SHARED | dict(sliding_window=7, layer_types=[FULL, SLIDING])),
    "gemma2": ("Gemma2", "ForCausalLM", GEMMA | CAPPED),
    "gemma2, uncapped": (
        "Gemma2",
        "ForCausalLM",
        GEMMA | dict(attn_logit_softcapping=None, final_logit_softcapping=None, attention_bias=True),
    ),
    "gemma2, other kinds": ("Gemma2", "Model", GEMMA | CAPPED | dict(layer_types=[FULL, SLIDING], head_dim=12)),
    "gemma3": ("Gemma3", "ForCausalLM", GEMMA | dict(sliding_window_pattern=2)),
    "olmo2": ("Olmo2", "ForCausalLM", SHARED | PADDED),
    "olmo2, biases": ("Olmo2", "Model", SHARED | PADDED | dict(attention_bias=True)),
    "smollm3": ("SmolLM3", "ForCausalLM", SHARED | PADDED | dict(num_hidden_layers=4)),
    "smollm3, a window": (
        "SmolLM3",
        "ForCausalLM",
        SHARED | PADDED | dict(no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=7, attention_bias=True),
    ),
    "phi3": ("Phi3", "ForCausalLM", SHARED | PADDED),
    "phi3, a window": ("Phi3", "Model", SHARED | PADDED | dict(sliding_window=7)),
    "phi3, partial": ("Phi3", "Model", SHARED | PADDED | dict(partial_rotary_factor=0.5)),
    "phi3, longrope": ("Phi3", "ForCausalLM", SHARED | PADDED | LONGROPE),
}


def written(directory, case, changed=None):
    """A model of random weights, three times the size that training starts from, gains 1 ± 0.3, shifts that are not
    zero; saved in several shards."""
    family, kind, said = CASES[case]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}{TEXT.get(family, '')}Config")(**said | (changed or {}))
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}{kind}")(config).eval()
    with torch.no_grad():
        for name, each in model.named_parameters():
            last = name.split(".")[-2].lower()
            if name.endswith(".A_log"):
                each.add_(0.3 * torch.randn_like(each))  # rates near those that training starts from
            elif each.ndim == 1 or "norm" in last:
                each.copy_(name.endswith("weight") + 0.3 * torch.randn_like(each))
            else:
                each.copy_(
                    torch.randn_like(each)
                    * (1 if "embed" in last or last in ("wte", "wpe") else 3 * each[0].numel() ** -0.5)
                )
        for module in model.modules():
            if type(module).__name__ in LESS_ONE:
                module.weight.sub_(1)
    model.save_pretrained(directory, max_shard_size="40KB")
    assert (directory / "model.safetensors.index.json").exists()
    return model


def theirs(model, batch, scores):
    """The last hidden state of the model without its head, or the scores of the vocabulary, sentence by sentence."""
    model = model if scores else model.base_model
    with torch.no_grad():
        found = [model(torch.from_numpy(batch.tokens[lo:hi])[None]) for lo, hi in pairwise(batch.starts)]
    return np.concatenate([(each.logits if scores else each.last_hidden_state)[0].numpy() for each in found])


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.parametrize("case", CASES)
def test_what_transformers_saves_is_read_as_it_is(rng, tmp_path, case):
    model = written(tmp_path, case)
    checkpoint = open_model(tmp_path)
    assert checkpoint.speaks == (CASES[case][1] in ("LMHeadModel", "ForCausalLM"))
    batch = Batch([rng.integers(2, WORDS, length) for length in LENGTHS])
    wanted = theirs(model, batch, checkpoint.speaks)
    assert relative(dense(checkpoint.operator(), batch), wanted) < 1e-4
    if checkpoint.speaks:  # a row a text: the scores of what comes next
        assert relative(dense(checkpoint.operator(pooled=True), batch), wanted[batch.starts[1:] - 1]) < 1e-4


SCORED = ["gpt2", "llama, tied", "mistral", "qwen3", "mamba", "mamba, 130M's width", "granite", "olmo2", "phi3"]
LATER = [
    "cohere",
    "cohere, query-key norms",
    "cohere2",
    "gemma2",
    "gemma3",
    "smollm3",
    "mamba2",
    "mamba2, 130M's width",
    "qwen3-next",
    "qwen3-next, other sizes",
    "qwen3-next, 80B's width",
    "qwen3.5",
    "qwen3.5, experts",
]


@pytest.mark.parametrize("case", [*SCORED, *LATER])
def test_the_exact_program_scores_what_transformers_scores(rng, tmp_path, case):
    model = written(tmp_path, case)
    batch = Batch([rng.integers(2, WORDS, length) for length in LENGTHS])
    program, _ = structure(open_model(tmp_path).operator(), EXACT_LAWS, batch=batch).program({})
    assert relative(program.run(batch), theirs(model, batch, True)) < 1e-4


@pytest.mark.parametrize("case", ["mamba2", "mamba2, 130M's width", "qwen3-next", "qwen3.5"])
def test_sessions_with_states_generate_what_transformers_does(rng, tmp_path, case):
    """In steps of any rows the same bits; each token is the one that transformers scores highest, but for ties."""
    model, prompt = written(tmp_path, case), rng.integers(2, WORDS, 9)
    program, _ = structure(
        open_model(tmp_path).operator(pooled=True), EXACT_LAWS, batch=Batch([prompt, prompt[:2]])
    ).program({})
    session = program.decoder.start(64)
    one, two = session.join(), session.join()
    scores, text = session.step({one: prompt})[-1], [*prompt.tolist()]
    assert [session.step({two: part}) for part in (prompt[:5], prompt[5:])][-1][-1].tobytes() == scores.tobytes()
    for _ in range(5):
        wanted = theirs(model, Batch([text]), True)[-1]
        assert relative(scores, wanted) < 1e-4
        assert wanted.max() - wanted[scores.argmax()] <= 1e-4 * np.linalg.norm(wanted)
        text.append(int(scores.argmax()))
        scores = session.step({one: text[-1:]})[-1]


@pytest.mark.parametrize("case", ["llama, llama3", "qwen2, windows"])
def test_long_texts(rng, tmp_path, case):
    model = written(tmp_path, case, dict(max_position_embeddings=512))
    batch = Batch([rng.integers(2, WORDS, 512)])
    assert relative(dense(open_model(tmp_path).operator(), batch), theirs(model, batch, False)) < 1e-4
