"""Encoders that transformers has no class for, as GGUF files under the names that the `gguf` package gives their
published tensors, beside plain numpy of their papers."""

import ggufs
import numpy as np
import plain_encoders
import pytest

import opmatrix as om
from formats.core.errors import InputError
from opmatrix.files.checkpoint import open_model
from opmatrix.models import tensors

gguf = pytest.importorskip("gguf", reason="needs peers: gguf")

SIZES = {"small": (24, 20, 4), "real": (768, 3072, 12)}  # columns, hidden units, heads
WORDS, LENGTH, LAYERS, EXPERTS = 41, 60, 2, 8
LENGTHS = (1, 7, 33, 60)
JINA, NOMIC = "jina-bert-v2", "nomic-bert-moe"
ARCHITECTURES = {JINA: gguf.MODEL_ARCH.JINA_BERT_V2, NOMIC: gguf.MODEL_ARCH.NOMIC_BERT_MOE}
NONE = {name: None for name in (*ggufs.shapes(), *(key for key in ggufs.SAID if key.startswith("llama.")))}


def config_of(case, size):
    n, f, h = SIZES[size]
    if case == "nomic":
        return dict(
            model_type="nomic_bert",
            vocab_size=WORDS,
            n_embd=n,
            n_inner=f,
            n_layer=LAYERS,
            n_head=h,
            n_positions=LENGTH,
            type_vocab_size=1,
            layer_norm_epsilon=1e-5,
            activation_function="gelu",
            qkv_proj_bias=True,
            mlp_fc1_bias=True,
            mlp_fc2_bias=True,
            rotary_emb_base=300.0,
            moe_every_n_layers=2,
            num_experts=EXPERTS,
            moe_top_k=2,
            moe_normalize_expert_weights=False,
        )
    return dict(
        model_type="jina_bert_normed" if "normed" in case else "jina_bert",
        position_embedding_type="alibi",
        vocab_size=WORDS,
        hidden_size=n,
        intermediate_size=f,
        num_hidden_layers=LAYERS,
        num_attention_heads=h,
        max_position_embeddings=LENGTH,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
    )


def weights_of(config):
    """Random weights under published names; no row is added behind experts, which such files do not hold."""
    rng, weights = np.random.default_rng(0), {}
    for name, shape in tensors(config).items():
        scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.3
        shift = float(len(shape) == 1 and name.endswith("weight"))
        weights[name] = (rng.normal(size=shape) * scale + shift).astype("<f4")
        if name.endswith("experts.bias"):
            weights[name] *= 0
    return weights


def write(file, case, size, keys=None):
    """A file of the weights of a case, and these weights."""
    config = config_of(case, size)
    weights, (n, f, h) = weights_of(config), SIZES[size]
    kind = NOMIC if case == "nomic" else JINA
    names, stored = gguf.get_tensor_name_map(ARCHITECTURES[kind], LAYERS), {}
    for name, array in weights.items():
        if name.endswith("experts.bias"):
            continue
        stem, end = (name, "weight") if name.endswith(("mlp.w1", "mlp.w2")) else name.rsplit(".", 1)
        if name.endswith("mlp.w2"):
            array = array.transpose(0, 2, 1)
        halves = {stem: array}
        if "gated_layer" in stem and "packed" not in case:  # as convert_hf_to_gguf.py parts them
            halves = dict(zip(parted(stem), np.split(array, [f]), strict=True))
        stored |= {f"{names.get_name(part)}.{end}": np.ascontiguousarray(half) for part, half in halves.items()}
    said = {
        "embedding_length": n,
        "feed_forward_length": f,
        "block_count": LAYERS,
        "attention.head_count": h,
        "context_length": LENGTH,
        "attention.layer_norm_epsilon": config.get("layer_norm_eps") or config["layer_norm_epsilon"],
        "attention.causal": False,
        "pooling_type": 1,
    }
    if case == "nomic":
        said |= {"moe_every_n_layers": 2, "expert_count": EXPERTS, "expert_used_count": 2, "rope.freq_base": 300.0}
    said = {f"{kind}.{key}": value for key, value in said.items()} | {"general.architecture": kind}
    ggufs.write(file, NONE | said | (keys or {}), NONE | stored)
    return config, {name: array.astype(np.float64) for name, array in weights.items()}


def parted(stem):
    """The names of both halves of a packed product: w is the gate, v the other."""
    if "up_gated_layer" in stem:
        return [stem.replace("up_gated_layer", f"gated_layers_{half}") for half in "vw"]
    return [stem.replace("gated_layers", f"gated_layers_{half}") for half in "wv"]


CASES = {
    "nomic": plain_encoders.nomic_experts,
    "jina": plain_encoders.jina,
    "jina, packed": plain_encoders.jina,
    "jina, normed": plain_encoders.jina,
}


@pytest.mark.parametrize(
    "case, size", [*((case, "small") for case in CASES), ("nomic", "real"), ("jina, normed", "real")]
)
def test_rows_are_those_of_the_papers(rng, tmp_path, case, size):
    config, weights = write(tmp_path / "it.gguf", case, size)
    batch = om.Batch([rng.integers(1, WORDS, length) for length in LENGTHS])
    rows = om.dense(open_model(tmp_path / "it.gguf").operator(), batch)
    for at, tokens in enumerate(np.split(batch.tokens, batch.starts[1:-1])):
        wanted = CASES[case](config, weights, tokens)
        part = rows[batch.starts[at] : batch.starts[at + 1]]
        assert np.abs(part - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "case, keys, words",
    [
        ("nomic", {f"{NOMIC}.expert_used_count": 9}, "moe_top_k is 9: it must be at most num_experts, 8"),
        ("nomic", {f"{NOMIC}.expert_count": None}, "moe_top_k is 2: it must be at most num_experts, null"),
        ("nomic", {f"{NOMIC}.expert_shared_count": 1}, "expert_shared_count is 1: the model would be computed without"),
        ("jina", {f"{JINA}.pooling_type": 4}, "a head that scores texts is read of 'bert' with tensors 'cls' and"),
        ("jina", {f"{JINA}.context_length": 2**31}, "max_position_embeddings is 2147483648"),
        ("jina, normed and packed", {}, "'encoder.layer.0.mlp.up_gated_layer.weight' is missing"),
    ],
)
def test_what_does_not_fit_is_a_line(tmp_path, case, keys, words):
    write(tmp_path / "it.gguf", case, "small", keys)
    with pytest.raises(InputError, match=words) as caught:
        open_model(tmp_path / "it.gguf").operator()
    assert "\n" not in str(caught.value)
