"""Phi-3 and Phi-4-mini (Abdin et al. 2024): a LLaMA whose files hold queries, keys and values as one matrix, and both
sides of the gated unit as another. A share of a head's columns may rotate, by LongRoPE (Ding et al. 2024, section
3.3)."""

from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import ArraySource, Settings, declares, optional, real, whole, wrong
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, DecoderForm, decoder, seen_within

OLDER_TYPES = "su", "yarn"  # names that files of this family have for longrope


def with_longrope(config: Settings) -> Settings:
    """Return a config whose rotation is longrope under that name, with the factor by which its texts are longer.
    Positions end at `original_max_position_embeddings`: a longer text turns otherwise from its first token on. Raises
    InputError without that key."""
    stated = rope.rotation_settings(config)
    if stated.get("rope_type") in OLDER_TYPES:
        stated["rope_type"] = rope.LONGROPE
    if stated.get("rope_type") != rope.LONGROPE:
        return config
    longest = config["max_position_embeddings"]
    original = stated.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
    if not isinstance(original, int) or original < 2:
        raise wrong("original_max_position_embeddings", original, "a whole number, 2 or more, as longrope requires")
    shorter = original
    if isinstance(longest, int):
        stated.setdefault("factor", longest / original)
        shorter = min(original, longest)
    stated["original_max_position_embeddings"] = original
    return {**config} | dict(rope_parameters=stated, rope_scaling=None, max_position_embeddings=shorter)


def held_positions(config: Settings) -> int:
    """Return how many positions a model has here; see `with_longrope`."""
    return rope.held_positions(with_longrope(config))


PHI_KEYS = LLAMA_KEYS | dict(rms_norm_eps=real(1e-20, 1, 1e-5), sliding_window=optional(whole()))


@declares(LAYOUT._replace(positions=held_positions), **PHI_KEYS)
def phi3(config: Settings, at: ArraySource) -> Operator:
    """A LLaMA of packed matrices that may look back no further than a window."""
    seen = seen_within(config["sliding_window"], config["is_causal"])
    form = DecoderForm(packed=True, turns={**rope.ROPE_TYPES, **rope.LONG_TYPES})
    return decoder(with_longrope(config), at, where=lambda l: seen, form=form)
