"""Embeddings of configurations that are drawn from a table: modes, several at once, layers, prompts that are pooled and
not, shorter rows, lengths, as sentence-transformers saves and computes them."""

import random
from importlib.util import find_spec

import encoders
import numpy as np
import pytest
from test_encoder_calls import PROMPTS, TEXTS, bert

import opmatrix as om

torch = pytest.importorskip("torch", reason="needs peers: torch")
if not find_spec("sentence_transformers"):  # to import it takes seconds: only its tests do
    pytest.skip("needs peers: sentence-transformers", allow_module_level=True)

__all__ = ["bert"]  # the fixture
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
ACTIVATIONS = ["Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid"]
COUNT = 24


def drawn(at):
    """A configuration: modes in turn, and the rest at random."""
    rng = random.Random(at)
    modes = [MODES[at % 6], *rng.sample(MODES, rng.choice([0, 0, 1, 2]))]
    pooled = at % 4 != 3
    layers = [
        (rng.choice([5, 16, 24]), rng.choice(ACTIVATIONS), rng.random() < 0.7, rng.random() < 0.3)
        for _ in range(rng.choice([0, 0, 1, 2]) if pooled else 0)
    ]
    said = dict(prompts=PROMPTS, default_prompt_name=rng.choice([None, "query", "passage"]))
    if rng.random() < 0.4:
        said["truncate_dim"] = rng.randint(2, 5)
    if rng.random() < 0.5:
        said["similarity_fn_name"] = rng.choice(["cosine", "dot", "euclidean", "manhattan"])
    return tuple(dict.fromkeys(modes)), layers, rng.random() < 0.5, said, pooled, rng.choice([9, 14, None])


def test_the_table_has_every_kind():
    table = [drawn(at) for at in range(COUNT)]
    assert {mode for modes, *_ in table for mode in modes} == {*MODES} and any(len(modes) > 1 for modes, *_ in table)
    assert any(len(layers) > 1 for _, layers, *_ in table) and {pooled for *_, pooled, _ in table} == {True, False}
    assert any("truncate_dim" in said for _, _, _, said, *_ in table) and {most for *_, most in table} == {9, 14, None}


@pytest.mark.parametrize("at", range(COUNT))
def test_embeddings_of_a_configuration_are_those_of_the_peer(bert, tmp_path, monkeypatch, at):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

    modes, layers, normalised, said, pooled, most = drawn(at)
    torch.manual_seed(at)
    modules, width = [Transformer(str(bert), max_seq_length=most), Pooling(24, modes, include_prompt=pooled)], 0
    width = 24 * len(modes)
    for columns, act, bias, residual in layers:
        modules.append(Dense(width, columns, bias, getattr(torch.nn, act)(), use_residual=residual))
        width = columns
    peer = SentenceTransformer(modules=[*modules, *[Normalize()] * normalised], device="cpu", **said)
    peer.save(str(tmp_path / "model"), create_model_card=False)
    encoders.keep_in(monkeypatch, tmp_path / "cache")
    ours = om.SentenceTransformer(str(tmp_path / "model"))
    assert ours.max_seq_length == peer.max_seq_length and ours.similarity_fn_name == peer.similarity_fn_name
    for call in ("encode", "encode_query", "encode_document"):
        rows, wanted = getattr(ours, call)(TEXTS), getattr(peer, call)(TEXTS)
        assert rows.shape == wanted.shape
        np.testing.assert_allclose(rows, wanted, atol=1e-5)
    alone = peer.encode(TEXTS[3], prompt="a the ", normalize_embeddings=True)
    np.testing.assert_allclose(ours.encode(TEXTS[3], prompt="a the ", normalize_embeddings=True), alone, atol=1e-5)
