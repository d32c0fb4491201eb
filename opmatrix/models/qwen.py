"""Qwen2 (Yang et al. 2024): a LLaMA whose queries, keys and values have biases. Qwen3 (Yang et al. 2025): instead,
queries and keys are normed in every head. Both may look back no further than a window, from some layer on."""

from collections.abc import Callable

from opmatrix.algebra.positions.patterns import Pattern
from opmatrix.algebra.term import Operator
from opmatrix.models.config import (
    FULL_ATTENTION,
    LAYER_TYPES,
    SLIDING_ATTENTION,
    ArraySource,
    Settings,
    declares,
    dimension,
    flag,
    optional,
    whole,
)
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, QKV, decoder, windowed

WINDOWS = dict(
    use_sliding_window=flag(False),
    sliding_window=optional(whole()),
    max_window_layers=whole(0, default=28),
    layer_types=LAYER_TYPES,
)


def windows(config: Settings) -> Callable[[int], Pattern]:
    """Return the pattern of each layer, as a function of the layer's number. Raises InputError for layer types that do
    not fit."""
    seen = config["sliding_window"] if config["use_sliding_window"] else None
    late = config["max_window_layers"]
    return windowed(config, seen, lambda l: SLIDING_ATTENTION if seen and l >= late else FULL_ATTENTION)[1]


@declares(LAYOUT, **LLAMA_KEYS, **WINDOWS)
def qwen2(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA with biases on queries, keys and values."""
    return decoder(config, at, QKV, where=windows(config))


@declares(LAYOUT, **LLAMA_KEYS | dict(head_dim=dimension(128)), **WINDOWS, attention_bias=flag(False))
def qwen3(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA with query-key norms (Henry et al. 2020)."""
    return decoder(config, at, (*QKV, "o") * config["attention_bias"], normed=True, where=windows(config))
