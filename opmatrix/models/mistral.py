"""Mistral (Jiang et al. 2023): a LLaMA that looks back no further than a window."""
from opmatrix.algebra.term import Operator
from opmatrix.models.config import ArraySource, Settings, declares, optional, whole
from opmatrix.models.llama import LLAMA_KEYS, PAIRED, decoder
from opmatrix.patterns import Pattern, causal, sequence, window


@declares(PAIRED, **LLAMA_KEYS, sliding_window=optional(whole()))
def mistral(config: Settings, at: ArraySource) -> Operator:
    """A token sees itself and those before it, `sliding_window` in all."""
    return decoder(config, at, where=lambda l: looking_back(config["sliding_window"]))


def looking_back(seen: int | None) -> Pattern:
    """So many of the last tokens, or all of them."""
    return sequence & causal & window(seen - 1) if seen else sequence & causal
