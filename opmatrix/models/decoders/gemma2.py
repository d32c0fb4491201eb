"""Gemma 2 (Gemma Team 2024): the layers of Gemma 3 with one base of rotations, without norms of queries and keys.
Scores of attention, and of the vocabulary, lie within caps: c · tanh(score / c) (Bello et al. 2016)."""

from opmatrix.algebra.term import Operator
from opmatrix.models import rope
from opmatrix.models.config import ArraySource, Settings, declares, never, whole
from opmatrix.models.encoders.gemma import CAP, GEMMA, GEMMA_KEYS, gemma_layers
from opmatrix.models.rope import ROPE_KEYS

ONE_WAY = dict(
    partial_rotary_factor=never(1.0, "all columns of a head rotate"),
    use_bidirectional_attention=never(False, "a token of this family sees none behind it"),
)


@declares(
    GEMMA, **GEMMA_KEYS | ROPE_KEYS | ONE_WAY, sliding_window_pattern=whole(1, default=2), attn_logit_softcapping=CAP
)
def gemma2(config: Settings, at: ArraySource) -> Operator:
    """Every second layer, from the first on, sees a window."""
    return gemma_layers(config, at, lambda config, kind: rope.rope(config, config["head_dim"]), normed=False)
