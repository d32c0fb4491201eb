"""SmolLM3 (Bakouch et al. 2025): a LLaMA of which every fourth layer has no positions (Yang et al. 2025, RNoPE)."""

from opmatrix.algebra.term import Operator
from opmatrix.models.config import (
    FULL_ATTENTION,
    LAYER_TYPES,
    SLIDING_ATTENTION,
    ArraySource,
    Key,
    Settings,
    declares,
    flag,
    never,
    optional,
    real,
    whole,
    wrong,
)
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, MLP, QKV, DecoderForm, decoder, windowed

ROTATED = optional(
    Key(
        "a list of 1, for layers that rotate, and 0",
        lambda said: isinstance(said, list) and all(type(each) is int and each in (0, 1) for each in said),
    )
)
SMOLLM_KEYS = LLAMA_KEYS | dict(
    tie_word_embeddings=flag(True),
    rope_theta=real(1, 1e12, 2e6),
    partial_rotary_factor=never(1.0, "all columns of a head rotate"),
    attention_bias=flag(False),
    mlp_bias=flag(False),
    use_sliding_window=flag(False),
    sliding_window=optional(whole()),
    layer_types=LAYER_TYPES,
    no_rope_layers=ROTATED,
    no_rope_layer_interval=whole(1, default=4),
)


def rotated_layers(config: Settings) -> list[int]:
    """Return a number for each layer: 1 if it rotates. Raises InputError for a list of another length."""
    listed: list[int] | None = config["no_rope_layers"]
    layers, every = config["num_hidden_layers"], config["no_rope_layer_interval"]
    if listed is None:
        return [int((l + 1) % every != 0) for l in range(layers)]
    if len(listed) != layers:
        raise wrong("no_rope_layers", listed, f"as long as there are layers, {layers}")
    return listed


@declares(LAYOUT, **SMOLLM_KEYS)
def smollm3(config: Settings, at: ArraySource) -> Operator:
    """Layers that do not rotate may look back no further than a window."""
    rotates = rotated_layers(config)
    seen = config["sliding_window"] if config["use_sliding_window"] else None
    _, where = windowed(config, seen, lambda l: SLIDING_ATTENTION if seen and not rotates[l] else FULL_ATTENTION)
    return decoder(
        config,
        at,
        (*QKV, "o") * config["attention_bias"] + MLP * config["mlp_bias"],
        where=where,
        form=DecoderForm(turned=lambda l: bool(rotates[l])),
    )
