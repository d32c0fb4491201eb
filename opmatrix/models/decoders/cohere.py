"""Command-R (Cohere 2024): attention and a gated unit beside each other behind one layer norm without a shift, and
rotations of neighbouring columns. Command-R7B (`cohere2`): most layers see a window and rotate, those between see all
rows and have no positions."""

from collections.abc import Mapping

from opmatrix.algebra.data import Data, Promised, split_pairs
from opmatrix.algebra.operators import DEFAULT_BASE
from opmatrix.algebra.shapes import LiveSize, quotient
from opmatrix.algebra.term import Operator
from opmatrix.models.config import (
    FULL_ATTENTION,
    LAYER_TYPES,
    SLIDING_ATTENTION,
    ArraySource,
    Settings,
    declares,
    flag,
    never,
    optional,
    real,
    whole,
)
from opmatrix.models.llama import LAYOUT, LLAMA_KEYS, QKV, DecoderForm, decoder, windowed

COHERE = LAYOUT._replace(multiplied="logit_scale")
COHERE_KEYS = LLAMA_KEYS | dict(
    rms_norm_eps=real(1e-20, 1, 1e-5).under("layer_norm_eps"),
    tie_word_embeddings=flag(True),
    rope_theta=real(1, 1e12, 5e5),
    partial_rotary_factor=never(1.0, "all columns of a head rotate"),
    attention_bias=flag(False),
    logit_scale=real(1e-6, 1e6, 0.0625),
)
PARALLEL = DecoderForm(parallel=True, centred=True)


def halved_rows(at: ArraySource, config: Settings) -> ArraySource:
    """Return arrays of which the rows of queries and keys are reordered in each head: columns that rotate together lie
    side by side in files, and half a head apart in a rotation here. Scores are sums over columns, in any order."""
    queries = config["num_attention_heads"]
    keys = config["num_key_value_heads"] or queries
    heads: Mapping[str, LiveSize] = dict(q_proj=queries, k_proj=keys, q_norm=queries, k_norm=keys)

    def reordered(name: str, *shape: LiveSize) -> Data:
        """Read an array; a gain of queries or keys, stored as (heads, columns), as one row."""
        _, part, _ = f".{name}".rsplit(".", 2)
        if part not in heads:
            return at(name, *shape)
        count = heads[part]
        stored = (count, quotient(shape[0], count)) if part.endswith("norm") else shape
        return in_halves(at(name, *stored), count, *shape)

    return reordered


def in_halves(data: Data, heads: LiveSize, *shape: LiveSize) -> Data:
    """Return an array of this shape with the even rows of each head before its odd ones."""
    name = f"{data.name} in halves"
    if isinstance(data, Promised) or not isinstance(heads, int):
        return Promised(name, shape)
    blocks = None if data.blocks is None else split_pairs(data.blocks, heads)
    return Data(split_pairs(data.array.reshape(shape), heads), name, blocks)


@declares(COHERE, **COHERE_KEYS, use_qk_norm=flag(False))
def cohere(config: Settings, at: ArraySource) -> Operator:
    """Scores of the vocabulary are multiplied by `logit_scale`; queries and keys may be normed in every head."""
    form = PARALLEL._replace(normed_columns=config["use_qk_norm"])
    return decoder(config, halved_rows(at, config), (*QKV, "o") * config["attention_bias"], form=form)


@declares(
    COHERE,
    **COHERE_KEYS | dict(rope_theta=real(1, 1e12, DEFAULT_BASE)),
    use_qk_norm=never(False, "queries and keys are never normed in this family"),
    sliding_window=optional(whole()),
    layer_types=LAYER_TYPES,
    sliding_window_pattern=whole(1, default=4).once("_sliding_window_pattern"),
)
def cohere2(config: Settings, at: ArraySource) -> Operator:
    """Layers with a window rotate, the others do not."""
    every = config["sliding_window_pattern"]
    kinds, where = windowed(
        config, config["sliding_window"], lambda l: SLIDING_ATTENTION if (l + 1) % every else FULL_ATTENTION
    )
    form = PARALLEL._replace(turned=lambda l: kinds[l] == SLIDING_ATTENTION)
    return decoder(config, halved_rows(at, config), (*QKV, "o") * config["attention_bias"], where=where, form=form)
