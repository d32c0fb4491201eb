"""Random encoders of transformers, as save_pretrained writes them: rows of ragged batches beside those of a padded
batch there, at small odd sizes and at those of published models, by float64 and by the exact program."""

from itertools import pairwise

import checkpoints
import numpy as np
import pytest
from searched import structure

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from rewrites.laws import EXACT_LAWS

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

WORDS, FIRST = 120, 5  # ids of a vocabulary; the first that is no special token
LENGTHS = 1, 2, 13, 37
SMALL = dict(
    vocab_size=WORDS,
    hidden_size=42,
    intermediate_size=50,
    num_hidden_layers=3,
    num_attention_heads=3,
    max_position_embeddings=60,
)
ODD = SMALL | dict(hidden_size=40, num_attention_heads=5, intermediate_size=33, num_hidden_layers=1)
REAL = SMALL | dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=2)
NARROW = dict(embedding_size=10)
MODERN = dict(pad_token_id=0, eos_token_id=1, bos_token_id=2, cls_token_id=2, sep_token_id=1)
APART = dict(
    relative_attention=True,
    position_biased_input=False,
    pos_att_type=["p2c", "c2p"],
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    position_buckets=8,
)
GEMMA = dict(query_pre_attn_scalar=30, sliding_window_pattern=2)
CASES = {  # the words that classes begin and end with, three configs
    "XLMRoberta": ("Model", SMALL, ODD | dict(type_vocab_size=1), REAL),
    "Electra": ("ForPreTraining", SMALL | NARROW, ODD | dict(embedding_size=40), REAL | dict(embedding_size=128)),
    "Albert": (
        "Model",
        SMALL | NARROW,
        ODD | NARROW | dict(num_hidden_layers=4, num_hidden_groups=2, inner_group_num=2),
        REAL | dict(embedding_size=128),
    ),
    "MPNet": ("ForMaskedLM", SMALL, ODD | dict(hidden_act="gelu_new"), REAL),
    "ModernBert": (
        "ForMaskedLM",
        SMALL | MODERN | dict(local_attention=6),
        ODD | MODERN | dict(attention_bias=True, mlp_bias=True, norm_bias=True, layer_types=["sliding_attention"]),
        REAL | MODERN | dict(intermediate_size=1152, local_attention=11, num_hidden_layers=4),
    ),
    "DebertaV2": (
        "Model",
        SMALL | APART,
        ODD | dict(relative_attention=True, pos_att_type="c2p", type_vocab_size=2, max_relative_positions=16),
        REAL | APART | dict(position_buckets=256, max_position_embeddings=512),
    ),
    "NomicBert": (
        "Model",
        SMALL,
        ODD | dict(hidden_act="gelu", rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=3.0)),
        REAL,
    ),
    "Gte": ("ForMaskedLM", SMALL, ODD | dict(type_vocab_size=0, hidden_act="relu"), REAL),
    "Gemma3Text": (
        "Model",
        SMALL | GEMMA | dict(head_dim=14, num_key_value_heads=1, sliding_window=9, use_bidirectional_attention=True),
        ODD | GEMMA | dict(head_dim=6, num_key_value_heads=5, sliding_window=4, attention_bias=True),
        REAL
        | GEMMA
        | dict(head_dim=64, num_key_value_heads=4, sliding_window=16, use_bidirectional_attention=True)
        | dict(query_pre_attn_scalar=64, layer_types=["sliding_attention", "full_attention"]),
    ),
    "Qwen3": (
        "Model",
        SMALL | dict(head_dim=14, num_key_value_heads=1),
        ODD | dict(head_dim=8, num_key_value_heads=5, attention_bias=True),
        REAL | dict(head_dim=64, num_key_value_heads=4),
    ),
    "Camembert": ("ForMaskedLM", SMALL, ODD | dict(hidden_act="relu"), REAL),
}
SAVED = [(stem, size) for stem in CASES for size in ("small", "odd", "real")]


@torch.no_grad()
def randomise(model):
    """Random weights, gains 1 ± 0.3, shifts that are not zero."""
    for name, weights in model.named_parameters():
        if weights.ndim == 1:
            weights.copy_(name.endswith("weight") + 0.3 * torch.randn_like(weights))
        else:
            table = name.split(".")[-2].endswith(("embeddings", "embed_tokens"))
            spread = 1 if table else 1.5 * weights.shape[1] ** -0.5
            weights.copy_(spread * torch.randn_like(weights))
    return model


def written(directory, stem, size):
    """A model of random weights; in float64, but for families with windows, whose masks are of float32."""
    kind, *sizes = CASES[stem]
    torch.manual_seed(len(stem))
    config = getattr(transformers, f"{stem}Config")(**sizes[["small", "odd", "real"].index(size)])
    config._attn_implementation = "eager"
    model = getattr(transformers, stem + kind)(config).eval()
    randomise(model).save_pretrained(directory)
    return model.base_model.double() if "layer_types" not in config.to_dict() else model.base_model


def padded(model, batch, answer="last_hidden_state"):
    """The rows of an answer to a batch that is padded to its longest text."""
    rows = [one.tokens for one in batch]
    longest = max(map(len, rows))
    padding = model.config.pad_token_id or 0
    tokens = torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    with torch.no_grad():
        states = getattr(model(input_ids=tokens, attention_mask=mask), answer).numpy()
    return np.concatenate([state[: len(row)] for state, row in zip(states, rows, strict=True)])


def relative(rows, wanted):
    return np.abs(rows - wanted).max() / np.abs(wanted).max()


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("stem, size", SAVED)
def test_rows_are_those_of_transformers(rng, tmp_path, stem, size):
    model = written(tmp_path, stem, size)
    batch = Batch([rng.integers(FIRST, WORDS, length) for length in LENGTHS])
    operator, wanted = open_model(tmp_path).operator(), padded(model, batch)
    assert relative(dense(operator, batch), wanted) < 1e-5
    program, _ = structure(operator, EXACT_LAWS, batch=batch).program({})
    assert relative(program.run(batch), wanted) < 1e-5


@pytest.mark.parametrize("stem", ["Qwen3", "Gemma3Text", "ModernBert"])
@pytest.mark.parametrize("mode", ["lasttoken", "mean"])
def test_embeddings_are_those_that_files_declare(rng, tmp_path, stem, mode):
    """Of a model with a head, too: a Qwen3 that embeds is a language model by its class."""
    model = written(tmp_path, stem, "odd")
    checkpoints.pool(tmp_path, mode)
    batch = Batch([rng.integers(FIRST, WORDS, length) for length in LENGTHS])
    rows = padded(model, batch)
    texts = [rows[lo:hi] for lo, hi in pairwise(batch.starts)]
    pooled = np.stack([text[-1] if mode == "lasttoken" else text.mean(0) for text in texts])
    wanted = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    assert relative(dense(open_model(tmp_path).operator(pooled=True), batch), wanted) < 1e-5
