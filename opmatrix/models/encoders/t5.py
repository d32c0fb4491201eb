"""T5 (Raffel et al. 2020): the encoder, which has a bias of scores by distance in place of a table of positions, and
the first step of the decoder, by whose two words monoT5 scores pairs of texts (Nogueira et al. 2020,
arXiv:2003.06713)."""

from functools import reduce
from operator import matmul
from typing import NamedTuple

import numpy as np

from opmatrix.algebra.data import Data, Promised
from opmatrix.algebra.monoids import softmax
from opmatrix.algebra.operators import ACTIVATIONS, I, diag, given, heads, pick, product, rmsnorm, weight
from opmatrix.algebra.positions.distances import bucketed
from opmatrix.algebra.positions.patterns import sequence
from opmatrix.algebra.shapes import LiveSize
from opmatrix.algebra.term import Operator, Value, formula
from opmatrix.models.config import (
    NOT_QUANTISED,
    AnswerDecoder,
    ArraySource,
    Key,
    Settings,
    TensorNames,
    declares,
    dimension,
    flag,
    layers,
    one_of,
    optional,
    real,
    whole,
    wrong,
)

T5_KEYS = dict(
    vocab_size=dimension(),
    hidden_size=dimension().under("d_model"),
    head_dim=dimension().under("d_kv"),
    intermediate_size=dimension().under("d_ff"),
    num_attention_heads=dimension().under("num_heads"),
    num_hidden_layers=layers(1).under("num_layers"),
    num_decoder_layers=optional(whole()),
    max_position_embeddings=dimension(512).under("n_positions"),
    relative_attention_num_buckets=whole(4, 4096, 32),
    relative_attention_max_distance=whole(4, 1 << 16, 128),
    layer_norm_eps=real(1e-20, 1, 1e-6).under("layer_norm_epsilon"),
    hidden_act=Key("a name", lambda said: type(said) is str, "relu").under("feed_forward_proj"),
    dense_act_fn=optional(one_of(ACTIVATIONS)),
    is_gated_act=optional(flag()),
    decoder_start_token_id=whole(0, default=0),
    tie_word_embeddings=flag(True),
    scale_decoder_outputs=optional(flag()),
    quantization_config=NOT_QUANTISED,
)
# feed_forward_proj -> dense_act_fn and is_gated_act, which go before it where a config has them
T5_UNITS = {"relu": ("relu", False), "gated-gelu": ("gelu_new", True)}
PAIR_TEXT = ("", "Query: "), ("query", ""), ("", " Document: "), ("document", ""), ("", " Relevant:</s>")


class T5Parts(NamedTuple):
    """The parts of layers, by their names in files, of either stack."""

    config: Settings
    at: ArraySource

    @property
    def width(self) -> LiveSize:
        """The columns of the model."""
        columns: LiveSize = self.config["hidden_size"]
        return columns

    def matrix(self, name: str, n: LiveSize, p: LiveSize) -> Operator:
        """Build x @ W without a bias; files store W as (outputs, inputs)."""
        return weight(self.at(f"{name}.weight", p, n).T)

    def norm(self, name: str) -> Operator:
        """Build a norm by the root mean square, with a gain."""
        return rmsnorm(self.config["layer_norm_eps"]) @ diag(self.at(f"{name}.weight", self.width))

    def into_heads(self, name: str) -> Value:
        """Build a product into the columns of heads, and split these."""
        h, d = self.config["num_attention_heads"], self.config["head_dim"]
        split: Value = self.matrix(name, self.width, h * d) @ heads(h)
        return split

    def out_of_heads(self, name: str) -> Value:
        """Put heads side by side, and build the product behind them."""
        h, d = self.config["num_attention_heads"], self.config["head_dim"]
        joined: Value = heads(h).T @ self.matrix(f"{name}.o", h * d, self.width)
        return joined

    def feeding(self, name: str) -> Operator:
        """Build the feed-forward unit, gated in later versions of T5."""
        n, f, (act, gated) = self.width, self.config["intermediate_size"], t5_unit(self.config)
        if gated:
            up = (self.matrix(f"{name}.wi_0", n, f) @ act) * self.matrix(f"{name}.wi_1", n, f)
        else:
            up = self.matrix(f"{name}.wi", n, f) @ act
        return up @ self.matrix(f"{name}.wo", f, n)


def t5_unit(config: Settings) -> tuple[Operator, bool]:
    """Return the activation of the units, and True where each unit has another for a gate."""
    known, called = T5_UNITS.get(config["hidden_act"]), config["dense_act_fn"]
    if known is None and called is None:
        raise wrong("feed_forward_proj", config["hidden_act"], " or ".join(T5_UNITS))
    usual, gated = known or ("", config["hidden_act"].startswith("gated-"))
    return ACTIVATIONS[called or usual], gated if config["is_gated_act"] is None else config["is_gated_act"]


def first_step(config: Settings, at: ArraySource) -> Operator:
    """Build the decoder's row for the token that begins every answer, a row a text, from the rows of its encoder. The
    row sees itself alone, so self-attention is the product of its values; its scores of the encoder's rows have no
    bias. Every row of a text is put through it, and the first one is picked: laws pick it early."""
    parts, h, d = T5Parts(config, at), config["num_attention_heads"], config["head_dim"]

    def alone(name: str) -> Operator:
        """Build self-attention of one row. Products of queries and keys are read, so that their shapes are checked: the
        softmax of a single score is 1."""
        for part in "qk":
            at(f"{name}.{part}.weight", h * d, parts.width)
        return parts.matrix(f"{name}.v", parts.width, h * d) @ parts.matrix(f"{name}.o", h * d, parts.width)

    def decode(x: Value) -> Value:
        """Return the decoder's rows beside the encoder's."""
        y = x @ given("positions", config["max_position_embeddings"]) @ weight(begun(config, at))
        for l in (
            f"decoder.block.{i}.layer" for i in range(config["num_decoder_layers"] or config["num_hidden_layers"])
        ):
            y = y @ (I + parts.norm(f"{l}.0.layer_norm") @ alone(f"{l}.0.SelfAttention"))
            q = y @ parts.norm(f"{l}.1.layer_norm") @ parts.into_heads(f"{l}.1.EncDecAttention.q")
            k, v = (x @ parts.into_heads(f"{l}.1.EncDecAttention.{part}") for part in "kv")
            seen = product(q @ k.T, v, over=softmax, where=sequence)
            y = y + seen @ parts.out_of_heads(f"{l}.1.EncDecAttention")
            y = y @ (I + parts.norm(f"{l}.2.layer_norm") @ parts.feeding(f"{l}.2.DenseReluDense"))
        return y

    at(
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        config["relative_attention_num_buckets"],
        h,
    )
    row = formula(decode) @ pick("first") @ parts.norm("decoder.final_layer_norm")
    scaled = config["scale_decoder_outputs"]  # by its older name, whether the head is the table of tokens
    return row @ (I * parts.width**-0.5) if (config["tie_word_embeddings"] if scaled is None else scaled) else row


def begun(config: Settings, at: ArraySource) -> Data:
    """Return the embedding of the token that begins every answer, for each position, (positions, n)."""
    start, v = config["decoder_start_token_id"], config["vocab_size"]
    if not start < v:
        raise wrong("decoder_start_token_id", start, f"below vocab_size, {v}")
    table, shape = (
        at("shared.weight", v, config["hidden_size"]),
        (config["max_position_embeddings"], config["hidden_size"]),
    )
    if isinstance(table, Promised):
        return Promised("begun", shape)
    return Data(np.broadcast_to(table.array[start], shape).copy(), "begun")


T5_NAMES = TensorNames(
    table="shared.weight",
    copies={"shared.weight": "encoder.embed_tokens.weight"},
    trained=("decoder", "lm_head"),
    decoder=AnswerDecoder("lm_head.weight", ("▁true", "▁false"), PAIR_TEXT, first_step),
)


@declares(T5_NAMES, **T5_KEYS)
def t5(config: Settings, at: ArraySource) -> Operator:
    """The encoder: scores are not scaled, and those of all layers have the bias that the first one stores. Of a whole
    T5 the decoder is left alone, unless it scores pairs of texts."""
    parts, h = T5Parts(config, at), config["num_attention_heads"]
    count, farthest = config["relative_attention_num_buckets"], config["relative_attention_max_distance"]
    if farthest <= count // 4:
        raise wrong("relative_attention_max_distance", farthest, f"more than {count // 4}, as {count} buckets have")
    first = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    near = bucketed(at(first, count, h), farthest)

    def mixing(name: str) -> Operator:
        """Build attention whose scores are not scaled, but have the bias by distance."""

        def mixed(x: Value) -> Value:
            """Attend within sequences: queries, keys and values by heads, then heads side by side."""
            q, k, v = (x @ parts.into_heads(f"{name}.{part}") for part in "qkv")
            attended: Value = product(q @ k.T + near, v, over=softmax, where=sequence) @ parts.out_of_heads(name)
            return attended

        return formula(mixed)

    def layer(i: int) -> Operator:
        """Build layer i: attention, then the unit, each behind a norm and added to its input."""
        l = f"encoder.block.{i}.layer"
        F, G = mixing(f"{l}.0.SelfAttention"), parts.feeding(f"{l}.1.DenseReluDense")
        return (I + parts.norm(f"{l}.0.layer_norm") @ F) @ (I + parts.norm(f"{l}.1.layer_norm") @ G)

    embed = weight(at("shared.weight", config["vocab_size"], parts.width))
    stack = map(layer, range(config["num_hidden_layers"]))
    return reduce(matmul, [embed, *stack, parts.norm("encoder.final_layer_norm")])
