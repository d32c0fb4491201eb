"""ModernBERT (Warner et al. 2024): norms before the parts of layers and without shift, gated units (Shazeer 2020),
rotations in place of a table of positions. Every few layers see the whole text, those between a window, with a base of
rotations of their own."""

from functools import reduce
from operator import matmul
from typing import NamedTuple

from opmatrix.algebra.monoids import mean
from opmatrix.algebra.operators import ACTIVATIONS, I, affine, attention, given, pick, product, weight
from opmatrix.algebra.positions.patterns import sequence, window
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator, formula
from opmatrix.models import rope
from opmatrix.models.config import (
    FULL_ATTENTION,
    LAYER_TYPES,
    MODEL_SIZES,
    NOT_QUANTISED,
    SLIDING_ATTENTION,
    ArraySource,
    Settings,
    TensorNames,
    declares,
    flag,
    kinds_of_layers,
    layers,
    never,
    one_of,
    real,
    whole,
)
from opmatrix.models.encoders.parts import EncoderParts, head_columns, packed_products

MODERNBERT_KEYS = dict(
    **MODEL_SIZES,
    num_hidden_layers=layers(),
    hidden_act=one_of(ACTIVATIONS, "gelu").under("hidden_activation"),
    norm_eps=real(1e-20, 1, 1e-5),
    norm_bias=flag(False),
    attention_bias=flag(False),
    mlp_bias=flag(False),
    local_attention=whole(1, default=128),
    global_attn_every_n_layers=whole(1, default=3),
    layer_types=LAYER_TYPES,
    global_rope_theta=real(1, 1e12, 160000.0),
    local_rope_theta=real(1, 1e12, 10000.0),
    rope_parameters=rope.OBJECT,
    rope_scaling=never(None, "rope_parameters holds the rotation of each kind of layers"),
    classifier_pooling=one_of(["cls", "mean"], "cls"),
    classifier_activation=one_of(ACTIVATIONS, "gelu"),
    classifier_bias=flag(False),
    decoder_bias=flag(True),
    tie_word_embeddings=flag(True),
    quantization_config=NOT_QUANTISED,
)


TOKEN_TABLE = "embeddings.tok_embeddings"


def predicting(config: Settings, parts: EncoderParts) -> Operator:
    """Build the part that both heads begin with: a product with an activation, then a norm."""
    n, act = config["hidden_size"], ACTIVATIONS[config["classifier_activation"]]
    inner = parts.linear_if(config["classifier_bias"], "head.dense", n, n) @ act
    return inner @ parts.norm_if(config["norm_bias"], "head.norm", n)


class ModernBertHead(NamedTuple):
    """The head that scores the vocabulary in place of a masked token: its product, tied to the table of tokens or not,
    has a shift if the config says so."""

    scores: str = "decoder.weight"
    shift: str = "decoder.bias"
    table: str = f"{TOKEN_TABLE}.weight"

    def build(self, config: Settings, at: ArraySource, stored: bool) -> Operator:
        """Build the operator from features (T, n) to a score for each token of the vocabulary (T, v). `stored`: files
        hold a matrix for it."""
        n, v = config["hidden_size"], config["vocab_size"]
        matrix = at(self.scores if stored else self.table, v, n).T
        last = affine(matrix, at(self.shift, v)) if config["decoder_bias"] else weight(matrix)
        return predicting(config, EncoderParts(at, config["norm_eps"])) @ last


def score_texts(config: Settings, at: ArraySource, labels: int) -> Operator:
    """Build the head that scores texts: the first row of a text, or the mean of all, through a product with an
    activation, then a norm, then a product."""
    parts = EncoderParts(at, config["norm_eps"])
    rows = {"cls": pick("first"), "mean": formula(lambda x: product(given("members"), x, over=mean))}
    last = parts.linear("classifier", config["hidden_size"], labels)
    return rows[config["classifier_pooling"]] @ predicting(config, parts) @ last


@declares(
    TensorNames(
        "model.",
        trained=("head", "decoder"),
        positions=rope.held_positions,
        classifier=score_texts,
        masked=ModernBertHead(),
    ),
    **MODERNBERT_KEYS,
)
def modernbert(config: Settings, at: ArraySource) -> Operator:
    """The first layer's attention has no norm before it, as embeddings are normed already."""
    n, f, h = (config[size] for size in ("hidden_size", "intermediate_size", "num_attention_heads"))
    parts, d, act = EncoderParts(at, config["norm_eps"]), head_columns(config), ACTIVATIONS[config["hidden_act"]]
    every = config["global_attn_every_n_layers"]
    kinds = kinds_of_layers(config, lambda l: SLIDING_ATTENTION if l % every else FULL_ATTENTION)
    seen = {FULL_ATTENTION: sequence, SLIDING_ATTENTION: sequence & window(config["local_attention"] // 2)}
    bases = {FULL_ATTENTION: config["global_rope_theta"], SLIDING_ATTENTION: config["local_rope_theta"]}
    turned = {kind: rope.rope_of(config, d, kind, bases[kind]) for kind in sorted(set(kinds))}

    def linear(name: str, n: LiveSize, p: LiveSize, biased: str) -> Operator:
        """Build a product, with a row added if the config says so under this key."""
        return parts.linear_if(config[biased], name, n, p)

    def norm(name: str) -> Operator:
        """Build a norm, with a shift if the config says so."""
        return parts.norm_if(config["norm_bias"], name, n)

    def attending(name: str, kind: str) -> Operator:
        """Build attention of a layer of a kind."""
        Q, K, V = packed_products(linear(f"{name}.Wqkv", n, 3 * n, "attention_bias"), 3, n)
        return attention(Q, K, V, h, seen[kind], turned[kind]) @ linear(f"{name}.Wo", n, n, "attention_bias")

    def feeding(name: str) -> Operator:
        """Build the gated unit."""
        up, gate = packed_products(linear(f"{name}.Wi", n, 2 * f, "mlp_bias"), 2, f)
        return (up @ act * gate) @ linear(f"{name}.Wo", f, n, "mlp_bias")

    def layer(l: int) -> Operator:
        """Build layer l: attention and the unit, each behind a norm and added to its input."""
        name = f"layers.{l}"
        before = norm(f"{name}.attn_norm") if l else I
        F, G = attending(f"{name}.attn", kinds[l]), feeding(f"{name}.mlp")
        return (I + before @ F) @ (I + norm(f"{name}.mlp_norm") @ G)

    embed = parts.plain(TOKEN_TABLE, config["vocab_size"], n) @ norm("embeddings.norm")
    return reduce(matmul, [embed, *map(layer, range(config["num_hidden_layers"])), norm("final_norm")])
