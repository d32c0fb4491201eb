"""Qwen3-Next and Qwen3.5 beside transformers' own classes: every layer, texts at lengths about a chunk of the delta
rule, programs of all their number types, and replies."""

import numpy as np
import pytest
from searched import structure
from test_saved import CASES, WORDS, relative, theirs, torch, written

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.models import build
from rewrites.laws import EXACT_LAWS

LENGTHS = 1, 2, 63, 64, 65, 129
SMALL = "qwen3-next", "qwen3-next, other sizes", "qwen3.5", "qwen3.5, experts"
assert set(SMALL) < set(CASES)


def text_batch(rng):
    return Batch([rng.integers(2, WORDS, length) for length in LENGTHS])


def rows_behind_layers(model, batch):
    """The normed rows behind the first layer, the first two, and so on, (T, n) each."""
    with torch.no_grad():
        texts = [torch.from_numpy(one.tokens)[None] for one in batch]
        hidden = [model.model(text, output_hidden_states=True).hidden_states[1:] for text in texts]
        normed = [[model.model.norm(rows)[0] for rows in layers[:-1]] + [layers[-1][0]] for layers in hidden]
    return [np.concatenate([rows.numpy() for rows in layer]) for layer in zip(*normed, strict=True)]


@pytest.mark.parametrize("case", SMALL)
def test_every_layer_is_what_transformers_computes(rng, tmp_path, case):
    """Rows behind each layer, at lengths on both sides of chunks, of texts beside one another."""
    model, batch = written(tmp_path, case, dict(max_position_embeddings=256)), text_batch(rng)
    checkpoint = open_model(tmp_path)
    kinds = model.config.layer_types
    for depth, wanted in enumerate(rows_behind_layers(model, batch), 1):
        config = dict(checkpoint.config) | dict(num_hidden_layers=depth, layer_types=kinds[:depth])
        assert relative(dense(build(config, checkpoint.at), batch), wanted) < 1e-4, depth


@pytest.mark.parametrize("case", SMALL)
def test_programs_compute_texts_about_a_chunk_as_transformers_does(rng, tmp_path, case):
    """Together and alone: a text has the same bits beside others."""
    model, batch = written(tmp_path, case, dict(max_position_embeddings=256)), text_batch(rng)
    program, _ = structure(open_model(tmp_path).operator(), EXACT_LAWS, batch=batch).program({})
    assert "interpret" not in {step.kernel for step in program.steps}
    rows = program.run(batch)
    assert relative(rows, theirs(model, batch, True)) < 1e-4
    assert np.concatenate([program.run(one) for one in batch]).tobytes() == rows.tobytes()
