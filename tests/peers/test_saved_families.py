"""Families of benchmarks/widths.py from transformers' save_pretrained to a program that runs: grouped keys, a head
wider than its share, one head alone."""

import sys

import pytest
from children import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import widths

pytest.importorskip("torch", reason="needs peers: torch")
pytest.importorskip("transformers", reason="needs peers: transformers")

BERT = dict(hidden_size=48, num_attention_heads=3, intermediate_size=40)
LLAMA = dict(hidden_size=48, num_attention_heads=4, num_key_value_heads=2, intermediate_size=40)


@pytest.mark.parametrize(
    "made",
    [
        widths.WidthsCase("gpt2", dict(n_embd=64, n_head=1), 1, "GPT2LMHeadModel", "float32"),
        widths.WidthsCase("llama", LLAMA | dict(head_dim=20, attention_bias=True), 1, "LlamaForCausalLM", "bfloat16"),
        widths.WidthsCase("distilbert", dict(dim=24, n_heads=3, hidden_dim=20), 2, "DistilBertModel", "float16"),
        widths.WidthsCase(
            "qwen3", LLAMA | dict(head_dim=16, tie_word_embeddings=True), 1, "Qwen3ForCausalLM", "float32"
        ),
        widths.WidthsCase("pangu-alpha", dict(hidden_size=48, num_heads=3), 2, "GPTPanguForCausalLM", "bfloat16"),
        widths.WidthsCase("modernbert", BERT | dict(local_attention=10), 2, "ModernBertForMaskedLM", "bfloat16"),
        widths.WidthsCase("albert", BERT | dict(embedding_size=20), 3, "AlbertForMaskedLM", "float16"),
        widths.WidthsCase("gte", BERT | dict(type_vocab_size=1), 1, "GteModel", "float32"),
        widths.WidthsCase("gemma3_text", LLAMA | dict(head_dim=16), 2, "Gemma3TextModel", "bfloat16"),
        widths.WidthsCase("cohere", LLAMA | dict(use_qk_norm=True), 1, "CohereForCausalLM", "bfloat16"),
        widths.WidthsCase("cohere2", LLAMA, 2, "Cohere2ForCausalLM", "float32"),
        widths.WidthsCase("gemma2", LLAMA | dict(head_dim=16), 2, "Gemma2ForCausalLM", "bfloat16"),
        widths.WidthsCase("smollm3", LLAMA | dict(no_rope_layers=[0, 1]), 2, "SmolLM3ForCausalLM", "bfloat16"),
        widths.WidthsCase("granite", LLAMA | dict(attention_multiplier=0.1), 1, "GraniteForCausalLM", "float32"),
        widths.WidthsCase("olmo2", LLAMA, 2, "Olmo2ForCausalLM", "bfloat16"),
        widths.WidthsCase("phi3", LLAMA | dict(partial_rotary_factor=0.5), 1, "Phi3ForCausalLM", "float32"),
        widths.WidthsCase("openpangu", LLAMA, 1, "LlamaForCausalLM", "float32"),
    ],
    ids=lambda made: made.family,
)
def test_what_transformers_saves_of_a_family_is_optimised_and_agrees(made, laws_known, machine_known):
    ((good, row),) = widths.ran(made, 0, [0.0])
    assert good, row
