"""Values of the keys that a config.json leaves out, by family: the defaults of transformers, which it does not write
into every file. Only sizes and settings that a family reads are here; a null in a file stays null."""

from collections.abc import Mapping

BERT = dict(
    vocab_size=30522,
    hidden_size=768,
    intermediate_size=3072,
    num_attention_heads=12,
    num_hidden_layers=12,
    max_position_embeddings=512,
    type_vocab_size=2,
    layer_norm_eps=1e-12,
)
LLAMA = dict(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_attention_heads=32,
    num_hidden_layers=32,
    max_position_embeddings=2048,
)
MISTRAL = LLAMA | dict(intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072)
QWEN = LLAMA | dict(vocab_size=151936, intermediate_size=22016, num_key_value_heads=32, max_position_embeddings=32768)
GEMMA = dict(
    vocab_size=262208,
    hidden_size=2304,
    intermediate_size=9216,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_hidden_layers=26,
    max_position_embeddings=131072,
    sliding_window=4096,
)
COHERE = dict(
    vocab_size=256000,
    hidden_size=8192,
    intermediate_size=22528,
    num_attention_heads=64,
    num_hidden_layers=40,
    max_position_embeddings=8192,
)
DELTA_NETS = dict(
    vocab_size=248320,
    hidden_size=2048,
    num_hidden_layers=40,
    num_attention_heads=16,
    num_key_value_heads=2,
    max_position_embeddings=32768,
)
FEW_EXPERTS = dict(moe_intermediate_size=512, shared_expert_intermediate_size=512)
QWEN_MOE = QWEN | dict(hidden_size=2048, num_hidden_layers=24)

LEFT_OUT: Mapping[str, Mapping[str, object]] = {  # by model_type, keys as files call them
    "bert": BERT,
    "roberta": BERT | dict(vocab_size=50265),
    "xlm-roberta": BERT,
    "camembert": BERT,
    "distilbert": dict(vocab_size=30522, dim=768, hidden_dim=3072, n_heads=12, n_layers=6, max_position_embeddings=512),
    "electra": BERT | dict(hidden_size=256, embedding_size=128, intermediate_size=1024, num_attention_heads=4),
    "albert": BERT
    | dict(
        vocab_size=30000,
        hidden_size=4096,
        embedding_size=128,
        intermediate_size=16384,
        num_attention_heads=64,
        num_hidden_groups=1,
        inner_group_num=1,
    ),
    "mpnet": {key: value for key, value in BERT.items() if key != "type_vocab_size"} | dict(vocab_size=30527),
    "deberta-v2": BERT
    | dict(
        vocab_size=128100,
        hidden_size=1536,
        intermediate_size=6144,
        num_attention_heads=24,
        num_hidden_layers=24,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
    ),
    "modernbert": dict(
        vocab_size=50368,
        hidden_size=768,
        intermediate_size=1152,
        num_attention_heads=12,
        num_hidden_layers=22,
        max_position_embeddings=8192,
    ),
    "nomic_bert": BERT | dict(vocab_size=30528, max_position_embeddings=2048),
    "gte": BERT | dict(vocab_size=250048, max_position_embeddings=8192, type_vocab_size=1),
    "gemma3_text": GEMMA,
    "gemma2": GEMMA
    | dict(vocab_size=256000, max_position_embeddings=8192, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    "gpt2": dict(vocab_size=50257, n_embd=768, n_head=12, n_layer=12, n_positions=1024),
    "mamba": dict(vocab_size=50280, hidden_size=768, num_hidden_layers=32),
    "mamba2": dict(vocab_size=32768, hidden_size=4096, num_hidden_layers=64),
    "qwen3_next": DELTA_NETS
    | FEW_EXPERTS
    | dict(vocab_size=151936, num_hidden_layers=48, intermediate_size=5632, num_experts=512, num_experts_per_tok=10),
    "qwen3_5_text": DELTA_NETS
    | dict(hidden_size=4096, num_hidden_layers=32, intermediate_size=12288, num_key_value_heads=4),
    "qwen3_5_moe_text": DELTA_NETS | FEW_EXPERTS | dict(num_experts=256, num_experts_per_tok=8),
    "bloom": dict(vocab_size=250880, hidden_size=64, n_head=8, n_layer=2),
    "t5": dict(vocab_size=32128, d_model=512, d_kv=64, d_ff=2048, num_heads=8, num_layers=6),
    "llama": LLAMA,
    "mistral": MISTRAL | dict(sliding_window=4096),
    "mixtral": MISTRAL | dict(num_local_experts=8, num_experts_per_tok=2, rms_norm_eps=1e-5, rope_theta=1e6),
    "qwen2": QWEN | dict(sliding_window=4096),
    "qwen3": QWEN | dict(sliding_window=4096),
    "cohere": COHERE,
    "cohere2": COHERE | dict(sliding_window=4096),
    "granite": LLAMA,
    "olmo2": LLAMA | dict(vocab_size=50304),
    "phi3": LLAMA
    | dict(
        vocab_size=32064,
        hidden_size=3072,
        intermediate_size=8192,
        max_position_embeddings=4096,
        original_max_position_embeddings=4096,
    ),
    "smollm3": LLAMA
    | dict(
        vocab_size=128256,
        hidden_size=2048,
        num_attention_heads=16,
        num_key_value_heads=4,
        num_hidden_layers=36,
        max_position_embeddings=32768,
    ),
    "gpt_oss": dict(
        vocab_size=201088,
        hidden_size=2880,
        intermediate_size=2880,
        num_attention_heads=64,
        num_key_value_heads=8,
        num_hidden_layers=36,
        num_local_experts=128,
        num_experts_per_tok=4,
        sliding_window=128,
        max_position_embeddings=131072,
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=150000.0,
            factor=32.0,
            beta_fast=32.0,
            beta_slow=1.0,
            truncate=False,
            original_max_position_embeddings=4096,
        ),
    ),
    "qwen2_moe": QWEN_MOE
    | dict(
        intermediate_size=5632,
        num_attention_heads=16,
        num_key_value_heads=16,
        num_experts=60,
        num_experts_per_tok=4,
        moe_intermediate_size=1408,
        shared_expert_intermediate_size=5632,
    ),
    "qwen3_moe": QWEN_MOE
    | dict(
        intermediate_size=6144,
        num_key_value_heads=4,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        sliding_window=4096,
    ),
}
