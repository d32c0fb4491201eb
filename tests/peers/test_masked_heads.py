"""Scores of the vocabulary in place of masked tokens, of random models of transformers as save_pretrained writes them:
beside those of a padded batch there, at small odd sizes and at those of published models."""

import numpy as np
import pytest
from searched import structure
from test_encoders import APART, FIRST, LENGTHS, MODERN, NARROW, ODD, REAL, SMALL, WORDS, padded, randomise, relative

from opmatrix.algebra.batch.batch import Batch
from opmatrix.algebra.oracles import dense
from opmatrix.files.checkpoint import open_model
from opmatrix.models import fill_masks
from rewrites.laws import EXACT_LAWS

torch = pytest.importorskip("torch", reason="needs peers: torch")
transformers = pytest.importorskip("transformers", reason="needs peers: transformers")

OTHERS = dict(tie_word_embeddings=False, hidden_act="relu")
WIDE = REAL | dict(num_hidden_layers=1)
CASES = {  # three configs of each family
    "Bert": (SMALL, ODD | OTHERS, WIDE),
    "Roberta": (SMALL, ODD | OTHERS, WIDE),
    "DistilBert": (SMALL, ODD | OTHERS, WIDE),
    "Electra": (SMALL | NARROW, ODD | NARROW | OTHERS, WIDE | dict(embedding_size=128)),
    "Albert": (SMALL | NARROW, ODD | NARROW | OTHERS, WIDE | dict(embedding_size=128)),
    "MPNet": (SMALL, ODD | OTHERS, WIDE),
    "ModernBert": (
        SMALL | MODERN | dict(local_attention=6),
        ODD
        | MODERN
        | dict(tie_word_embeddings=False, hidden_activation="relu", classifier_activation="silu")
        | dict(classifier_bias=True, norm_bias=True, decoder_bias=False),
        WIDE | MODERN | dict(intermediate_size=1152),
    ),
    "DebertaV2": (SMALL | APART, ODD | APART | dict(hidden_act="relu", share_att_key=False), WIDE | APART),
    "NomicBert": (SMALL, ODD | dict(tie_word_embeddings=False, hidden_act="gelu"), WIDE),
    "Gte": (SMALL, ODD | OTHERS | dict(type_vocab_size=0), WIDE),
}
SAVED = [(stem, size) for stem in CASES for size in range(3)]


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("stem, size", SAVED)
def test_scores_of_tokens_are_those_of_transformers(rng, tmp_path, stem, size):
    torch.manual_seed(len(stem))
    config = getattr(transformers, f"{stem}Config")(**CASES[stem][size])
    config._attn_implementation = "eager"
    model = randomise(getattr(transformers, f"{stem}ForMaskedLM")(config).eval())
    model.save_pretrained(tmp_path)
    checkpoint = open_model(tmp_path)
    head = fill_masks(checkpoint.config, checkpoint.at, checkpoint.holds_masked_head())
    assert checkpoint.holds_masked_head() == (not config.tie_word_embeddings)
    batch = Batch([rng.integers(FIRST, WORDS, length) for length in LENGTHS])
    wanted = padded(model if stem == "ModernBert" else model.double(), batch, "logits")
    assert np.ptp(wanted, 0).min() > 0.1  # every token's score depends on the row
    operator = checkpoint.operator() @ head
    assert relative(dense(operator, batch), wanted) < 1e-5
    program, _ = structure(operator, EXACT_LAWS, batch=batch).program({})
    assert relative(program.run(batch), wanted) < 1e-5
