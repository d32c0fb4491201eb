"""Directories with one key changed, dropped or null, beside transformers and sentence-transformers: a fixed part of
benchmarks/spoilt_files.py changed."""

import sys
from importlib.util import find_spec

import pytest
from children import ROOT

from opmatrix.files.directory.left_out import LEFT_OUT
from opmatrix.models import FAMILIES

sys.path.append(str(ROOT / "benchmarks"))

from lib.saved_models import SAVED

import spoilt_files
from spoilt_files import DROPPED, MODEL, OLD, TOKENIZER, WORDS, Change

pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

TOKEN = {
    "id": 300,
    "content": "iver",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": False,
}
NAMED = {  # a kind each; what else there is, the benchmark tries
    "bert": [
        Change(WORDS, ("do_lower_case",), False),
        Change(WORDS, ("strip_accents",), False),
        Change(WORDS, ("tokenize_chinese_chars",), False),
        Change(WORDS, (), DROPPED),
        Change(TOKENIZER, ("normalizer", "lowercase"), False),
        Change(TOKENIZER, ("post_processor",), None),
        Change(WORDS, ("cls_token",), "river"),
        Change(MODEL, ("layer_norm_eps",), DROPPED),
    ],
    "bert, older files": [
        Change(OLD, ("mask_token",), "runs"),
        Change(OLD, (), DROPPED),
        Change(WORDS, ("tokenizer_class",), "PreTrainedTokenizerFast"),
    ],
    "gpt2, older files": [
        Change(WORDS, ("add_prefix_space",), True),
        Change(OLD, ("bos_token",), None),
        Change(MODEL, ("tie_word_embeddings",), DROPPED),
        Change(TOKENIZER, ("pre_tokenizer",), None),
    ],
    "llama": [
        Change(MODEL, ("tie_word_embeddings",), True),
        Change(MODEL, ("rms_norm_eps",), DROPPED),
        Change(MODEL, ("rope_scaling",), {"type": "linear", "factor": 2.0}),
        Change(WORDS, ("additional_special_tokens",), ["river"]),
        Change(WORDS, ("add_bos_token",), False),
        Change(TOKENIZER, ("added_tokens",), [TOKEN]),
    ],
    "mistral": [Change(MODEL, ("sliding_window",), DROPPED), Change(MODEL, ("sliding_window",), None)],
    "modernbert": [
        Change(MODEL, ("local_attention",), 5),
        Change(MODEL, ("layer_types",), DROPPED),
        Change(MODEL, ("rope_parameters",), DROPPED),
        Change(MODEL, ("norm_eps",), DROPPED),
    ],
    "gemma2": [
        Change(MODEL, ("attn_logit_softcapping",), DROPPED),
        Change(MODEL, ("attn_logit_softcapping",), None),
        Change(MODEL, ("final_logit_softcapping",), DROPPED),
        Change(MODEL, ("layer_types",), DROPPED),
    ],
    "gpt-oss": [
        Change(MODEL, ("layer_types",), DROPPED),
        Change(MODEL, ("swiglu_limit",), DROPPED),
        Change(MODEL, ("rope_parameters",), DROPPED),
        Change(MODEL, ("attention_bias",), DROPPED),
    ],
    "cohere": [Change(MODEL, ("logit_scale",), DROPPED), Change(MODEL, ("use_qk_norm",), DROPPED)],
    "cohere2": [Change(MODEL, ("layer_types",), DROPPED), Change(MODEL, ("sliding_window",), DROPPED)],
    "smollm3": [Change(MODEL, ("no_rope_layers",), DROPPED), Change(MODEL, ("rope_parameters",), DROPPED)],
    "qwen3_next": [
        Change(MODEL, ("layer_types",), DROPPED),
        Change(MODEL, ("norm_topk_prob",), DROPPED),
        Change(MODEL, ("rope_parameters", "partial_rotary_factor"), DROPPED),
        Change(MODEL, ("linear_conv_kernel_dim",), DROPPED),
        Change(MODEL, ("mlp_only_layers",), [0]),
    ],
    "gemma3_text": [
        Change(MODEL, ("sliding_window",), 5),
        Change(MODEL, ("use_bidirectional_attention",), False),
        Change(MODEL, ("layer_types",), DROPPED),
        Change(MODEL, ("query_pre_attn_scalar",), 7),
        Change(MODEL, ("rope_parameters",), DROPPED),
    ],
    "nomic_bert": [Change(MODEL, ("rope_parameters",), DROPPED), Change(MODEL, ("hidden_act",), "gelu")],
    "gte": [Change(MODEL, ("rope_parameters",), DROPPED), Change(MODEL, ("layer_norm_eps",), DROPPED)],
    "albert": [Change(MODEL, ("hidden_act",), DROPPED), Change(MODEL, ("num_hidden_groups",), DROPPED)],
    "mpnet": [Change(MODEL, ("pad_token_id",), 0), Change(MODEL, ("relative_attention_num_buckets",), DROPPED)],
    "t5": [
        Change(TOKENIZER, ("post_processor",), None),
        Change(WORDS, ("extra_ids",), 3),
        Change(MODEL, ("feed_forward_proj",), "relux"),
        Change(MODEL, ("dense_act_fn",), "gelu_new"),
    ],
}
EMBEDDING = [
    Change("sentence_bert_config.json", ("do_lower_case",), True),
    Change("1_Pooling/config.json", ("word_embedding_dimension",), 25),
    Change("1_Pooling/config.json", ("pooling_mode_max_tokens",), None),
    Change(OLD, ("cls_token",), "</s>"),
    Change(WORDS, ("add_prefix_space",), True),
]


def check(name, only):
    """No change is read otherwise, and of what changes nothing none is refused."""
    spoilt_files.silence()
    for each in spoilt_files.outcomes(name, only=only):
        assert each.outcome != "wrong" and not (each.stays and each.outcome == "refused"), f"{each.change}: {each}"


@pytest.mark.deep(every=3)
@pytest.mark.parametrize("name", NAMED)
def test_ids_and_scores_are_those_of_transformers(name):
    check(name, NAMED[name])


@pytest.mark.deep(every=2)
def test_embeddings_are_those_of_sentence_transformers():
    if not find_spec("sentence_transformers"):
        pytest.skip("needs peers: sentence-transformers")
    check("roberta, embeds", EMBEDDING)


@pytest.mark.parametrize("family", LEFT_OUT)
def test_a_key_that_is_left_out_has_the_default_of_its_family(family):
    """Of every key that a family reads and transformers declares, or has once a config is made."""
    kind = transformers.CONFIG_MAPPING[family]
    fields = {name: each.default for name, each in kind.__dataclass_fields__.items()}
    for name, key in FAMILIES[family].keys.items():
        called = key.called or name
        said = LEFT_OUT[family].get(called, key.default)
        if called in fields:
            made = fields[called] if said is None else fields[called] or getattr(kind(), called)
            assert said == made or not (said or made), (called, said)
        elif called == "rope_theta":
            base = kind.default_theta  # of each kind of layers, where there are several
            assert said == (base["global"] if isinstance(base, dict) else base)
    assert LEFT_OUT[family].keys() <= {key.called or name for name, key in FAMILIES[family].keys.items()}


def test_every_family_that_transformers_saves_is_here():
    """But DeepSeek-V2 and V3, which test_deepseek.py has."""
    opened = {transformers.CONFIG_MAPPING[family].__name__.removesuffix("Config") for family in LEFT_OUT}
    assert {family.stem for family in SAVED.values()} == opened
