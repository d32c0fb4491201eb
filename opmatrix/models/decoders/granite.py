"""Granite 3 (IBM 2024): a LLaMA whose rows of tokens, parts of layers and scores have factors of their own, as maximal
update parametrisation asks for them (Yang et al. 2022, table 8)."""

from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, declares, flag, real
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, MLP, QKV, DecoderForm, decoder

MULTIPLIER = real(1e-6, 1e6, 1.0)


@declares(
    LAYOUT._replace(divided="logits_scaling"),
    **LLAMA_KEYS,
    attention_bias=flag(False),
    mlp_bias=flag(False),
    embedding_multiplier=MULTIPLIER,
    residual_multiplier=MULTIPLIER,
    attention_multiplier=MULTIPLIER,
    logits_scaling=MULTIPLIER,
)
def granite(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA with four factors; scores of the vocabulary are divided by `logits_scaling`."""
    biased = (*QKV, "o") * config["attention_bias"] + MLP * config["mlp_bias"]
    form = DecoderForm(
        embedding=config["embedding_multiplier"],
        residual=config["residual_multiplier"],
        scores=config["attention_multiplier"],
    )
    return decoder(config, at, biased, form=form)
